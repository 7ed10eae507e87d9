"""RocketMQ's numbers and names: request and response codes, flags, languages, limits, name prefixes.

The one place that says which requests are limitable and by which field. It decodes nothing.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

# --- Framing -------------------------------------------------------------------------------------

#: The largest frame that a broker accepts, its own length word included.
MAX_FRAME_BYTES: Final = 16_777_216
#: ``i32 length`` and ``u32 (type << 24 | headerLength)``.
PREFIX_BYTES: Final = 8
#: The length word counts what follows it: at least the second word.
MIN_LENGTH: Final = 4

HEADER_JSON: Final = 0
HEADER_BINARY: Final = 1

# --- Flags ---------------------------------------------------------------------------------------

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

# --- Codes ---------------------------------------------------------------------------------------


class RequestCode(IntEnum):
    """The requests that Sluice or its embedded broker has to know by name.

    9002 and 9003 are no broker's of Apache: they are those of the limiter inside a broker that Sluice stands in for,
    and Sluice answers them itself (see ``remote``).
    """

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    LITE_PULL_MESSAGE = 361
    VIEW_SEND_RATE_LIMITS = 9002
    UPDATE_SEND_RATE_LIMIT = 9003
    POP_MESSAGE = 200_050
    NOTIFICATION = 200_054
    POP_LITE_MESSAGE = 200_070


class ResponseCode(IntEnum):
    """The answers that Sluice or its embedded broker gives."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    FLOW_CONTROL = 215
    GO_AWAY = 1500


# --- Languages -----------------------------------------------------------------------------------

#: Names as a JSON header spells them; the index is the number of the binary header.
LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
LANGUAGE_CODES: Final = {name: code for code, name in enumerate(LANGUAGES)}

# --- What is limitable ---------------------------------------------------------------------------

KIND_TOPIC: Final = "topic"
KIND_RETRY_GROUP: Final = "retry_group"
KIND_SUBSCRIPTION: Final = "subscription"

RETRY_PREFIX: Final = "%RETRY%"
#: Stands between group and topic in the name of a subscription. Names may hold it themselves: people read it at
#: the first one, rules are matched with the whole.
SUBSCRIPTION_MARK: Final = "@"
#: The longest name that a broker takes: a retry topic's. Longer ones are read as UNPARSABLE, so that what is
#: kept by name stays small.
MAX_NAME_CHARS: Final = 255


class KeyFields(NamedTuple):
    """Where a limitable request says what it is charged to: names of keys in ``extFields``.

    Attributes:
        resource: its topic or, for a send-back, its consumer group.
        producer_group: who sends; None where the request has none.
        batch: whether the body is a batch; None where it never is.
    """

    resource: str
    producer_group: str | None
    batch: str | None


SEND_V1_FIELDS: Final = KeyFields("topic", "producerGroup", "batch")
SEND_V2_FIELDS: Final = KeyFields("b", "a", "m")
SEND_BACK_FIELDS: Final = KeyFields("group", None, None)
#: The group stands where a send has its producer group; it is part of the name here.
SUBSCRIPTION_FIELDS: Final = KeyFields("topic", "consumerGroup", None)

#: The limitable requests. The broker takes "batch" from the field, not from code 320.
LIMITABLE: Final[Mapping[int, KeyFields]] = {
    RequestCode.SEND_MESSAGE.value: SEND_V1_FIELDS,
    RequestCode.SEND_REPLY_MESSAGE.value: SEND_V1_FIELDS,
    RequestCode.SEND_MESSAGE_V2.value: SEND_V2_FIELDS,
    RequestCode.SEND_BATCH_MESSAGE.value: SEND_V2_FIELDS,
    RequestCode.SEND_REPLY_MESSAGE_V2.value: SEND_V2_FIELDS,
    RequestCode.CONSUMER_SEND_MSG_BACK.value: SEND_BACK_FIELDS,
}

#: The requests that ask for messages; limitable only where subscriptions are limited, and then by what they bring.
CONSUMING: Final[Mapping[int, KeyFields]] = {
    RequestCode.PULL_MESSAGE.value: SUBSCRIPTION_FIELDS,
    RequestCode.LITE_PULL_MESSAGE.value: SUBSCRIPTION_FIELDS,
    RequestCode.POP_MESSAGE.value: SUBSCRIPTION_FIELDS,
}
LIMITABLE_OR_CONSUMING: Final[Mapping[int, KeyFields]] = {**LIMITABLE, **CONSUMING}

#: The requests that say who the client is, or that are for Sluice itself.
HEARD: Final = frozenset(
    {
        RequestCode.HEART_BEAT.value,
        RequestCode.UNREGISTER_CLIENT.value,
        RequestCode.VIEW_SEND_RATE_LIMITS.value,
        RequestCode.UPDATE_SEND_RATE_LIMIT.value,
    }
)

# --- Refusing ------------------------------------------------------------------------------------

#: What a refusal may be numbered. Clients read others as failures that they act upon, or even as success.
BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY.value, ResponseCode.FLOW_CONTROL.value})
