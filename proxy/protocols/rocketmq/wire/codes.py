"""Constants and errors of the protocol, and the requests that can be limited."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

MAX_FRAME_BYTES: Final = 16_777_216  # the broker's maximum frame length, including the length word
PREFIX_BYTES: Final = 8  # ``i32 length`` and ``u32 (type << 24 | headerLength)``
VIP_PORT_OFFSET: Final = -2  # relative to the main port
MIN_LENGTH: Final = 4  # lengths exclude the length word

HEADER_JSON: Final = 0
HEADER_BINARY: Final = 1


FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2


class RequestCode(IntEnum):
    """Request codes. Sluice itself answers 9002 and 9003 (``limit_commands``)."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    CHECK_TRANSACTION_STATE = 39
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    LITE_PULL_MESSAGE = 361
    VIEW_SEND_RATE_LIMITS = 9002
    UPDATE_SEND_RATE_LIMIT = 9003
    POP_MESSAGE = 200_050
    NOTIFICATION = 200_054
    POP_LITE_MESSAGE = 200_070


class ResponseCode(IntEnum):
    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    INVALID_PARAMETER = 29
    FLOW_CONTROL = 215


# JSON headers contain the language's name, binary headers its index in this tuple.
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


KIND_TOPIC: Final = "topic"
KIND_RETRY_GROUP: Final = "retry_group"
KIND_SUBSCRIPTION: Final = "subscription"
KIND_TRANSACTION: Final = "transaction"

RETRY_PREFIX: Final = "%RETRY%"
SUBSCRIPTION_MARK: Final = "@"  # separates a group from a topic. Both may also contain it
MAX_NAME_CHARS: Final = 255  # maximum length of a retry topic


class KeyFields(NamedTuple):
    """The keys in ``extFields`` that Sluice reads in one kind of request."""

    resource: str
    producer_group: str | None
    batch: str | None
    sys_flag: str | None = None


SEND_V1_FIELDS: Final = KeyFields("topic", "producerGroup", "batch", "sysFlag")
SEND_V2_FIELDS: Final = KeyFields("b", "a", "m", "f")
SEND_BACK_FIELDS: Final = KeyFields("group", None, None)
TRANSACTION_FIELDS: Final = KeyFields("producerGroup", "producerGroup", None)
SUBSCRIPTION_FIELDS: Final = KeyFields("topic", "consumerGroup", None)

# The broker recognizes a batch by its field, not by code 320.
SENDS: Final[Mapping[int, KeyFields]] = {
    RequestCode.SEND_MESSAGE.value: SEND_V1_FIELDS,
    RequestCode.SEND_REPLY_MESSAGE.value: SEND_V1_FIELDS,
    RequestCode.SEND_MESSAGE_V2.value: SEND_V2_FIELDS,
    RequestCode.SEND_BATCH_MESSAGE.value: SEND_V2_FIELDS,
    RequestCode.SEND_REPLY_MESSAGE_V2.value: SEND_V2_FIELDS,
    RequestCode.CONSUMER_SEND_MSG_BACK.value: SEND_BACK_FIELDS,
}
LIMITABLE: Final[Mapping[int, KeyFields]] = {**SENDS, RequestCode.END_TRANSACTION.value: TRANSACTION_FIELDS}

# Requests that can be limited only while a rule limits subscriptions.
CONSUMING: Final[Mapping[int, KeyFields]] = {
    RequestCode.PULL_MESSAGE.value: SUBSCRIPTION_FIELDS,
    RequestCode.LITE_PULL_MESSAGE.value: SUBSCRIPTION_FIELDS,
    RequestCode.POP_MESSAGE.value: SUBSCRIPTION_FIELDS,
}
LIMITABLE_OR_CONSUMING: Final[Mapping[int, KeyFields]] = {**LIMITABLE, **CONSUMING}

# Requests that identify the client or are meant for Sluice.
HEARD: Final = frozenset(
    {
        RequestCode.HEART_BEAT.value,
        RequestCode.UNREGISTER_CLIENT.value,
        RequestCode.VIEW_SEND_RATE_LIMITS.value,
        RequestCode.UPDATE_SEND_RATE_LIMIT.value,
    }
)


SYS_FLAG_TRANSACTION: Final = 0b1100
SYS_FLAG_HALF: Final = 0b0100
# Marks one message that the broker counts as many.
SYS_FLAG_INNER_BATCH: Final = 0b1000_0000
SYS_FLAGS_SPECIAL: Final = SYS_FLAG_TRANSACTION | SYS_FLAG_INNER_BATCH
# The flags of nearly all sends, for all combinations of tags and compression.
_PLAIN: Final = (0, 1, 2, 3, 257, 259, 513, 515, 769, 771)
PLAIN_SYS_FLAG_VALUES: Final = frozenset({*_PLAIN, *map(str, _PLAIN)})


# Clients treat all other response codes as failures.
BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY.value, ResponseCode.FLOW_CONTROL.value})


class ProtocolError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class RemoteProtocolError(ProtocolError):
    pass


class LocalProtocolError(ProtocolError):
    pass
