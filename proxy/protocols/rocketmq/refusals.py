"""Refusals regardless of limits, of broker features that would bypass them, and busy answers.

Each refusal is a verdict like any other, counted and recorded under the rule name defined here. ``docs/limits.md``
lists other ways to store messages without a permit. An alarm of Sluice refuses sends in the same way. The session
writes the answers, except to oneway requests.
"""

import json
import struct
from functools import lru_cache
from typing import Final, get_args

from limiter.rules.resource import LISTENER, Resource
from limiter.rules.rule import ADAPTIVE_NAME
from proxy.deciding.batch import Refuse
from proxy.flow.alarms import Scarce
from proxy.protocols.rocketmq.wire.codes import (
    BUSY_CODES,
    FLAG_RESPONSE,
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    MAX_NAME_CHARS,
    RETRY_PREFIX,
    ResponseCode,
)

INTERNAL_TOPIC: Final = "internal_topic"
INNER_BATCH: Final = "inner_batch"
UNKNOWN_TRANSACTION: Final = "unknown_transaction"
UNREADABLE_BATCH: Final = "unreadable_batch"
MALFORMED_BATCH: Final = "malformed_batch"
# Followed by the scarce resource: ``alarm:memory``.
ALARM: Final = "alarm"

# Topics for a broker's own records and for messages to be stored elsewhere later
# (``TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET``, and others missing there).
INTERNAL_TOPICS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
#: ``rmq_sys_wheel_timer``, ``rmq_sys_REVIVE_LOG_…`` and others (``TopicValidator.SYSTEM_TOPIC_PREFIX``).
INTERNAL_PREFIX: Final = "rmq_sys_"

# Why a spooled request is given up: by the operator, by age, or lost on disk.
PURGED: Final = "spool:purged"
TOO_OLD: Final = "spool:too_old"
LOST: Final = "spool:lost"
# Why a request was not spooled.
NO_ROOM: Final = "spool:no_room"
_SPOOL_FAILURES: Final = {
    PURGED: "Sluice held the message back, and was told to give it up",
    TOO_OLD: "Sluice held the message back until it was too old",
    LOST: "Sluice held the message back, and lost it on its disk",
}
# An estimate.
_ROOM_WAIT_US: Final = 1_000_000
# An alarm is checked once a second.
_ALARM_WAIT_US: Final = 1_000_000


class Forbidden(Refuse, frozen=True):
    """A refusal in the broker's words: the answer has this ``remark`` and the code ``busy_code``."""

    remark: str = ""


def is_internal(topic: str) -> bool:
    """Return whether clients must not send to a topic. They do send to those of message traces and replies."""
    return topic in INTERNAL_TOPICS or topic.startswith(INTERNAL_PREFIX)


def internal_topic(resource: Resource) -> Forbidden:
    """Refuse a send to an internal topic, as the broker does for those that it knows."""
    return _forbid(resource, INTERNAL_TOPIC, f"Sending message to topic[{resource.name}] is forbidden.")


def inner_batch(resource: Resource) -> Forbidden:
    """Refuse a message that sets its own count or other queues."""
    return _forbid(resource, INNER_BATCH, "Sending a message with an inner count or queue of its own is forbidden.")


def unknown_transaction(resource: Resource) -> Forbidden:
    """Refuse a commit without a pending half message, as the broker does."""
    remark = "Find prepared transaction message failed"
    return Forbidden(resource, UNKNOWN_TRANSACTION, 0, ResponseCode.SYSTEM_ERROR.value, remark=remark)


def unreadable_batch(resource: Resource) -> Refuse:
    """Refuse a batch without the memory to count its messages before it is forwarded."""
    return Refuse(resource, UNREADABLE_BATCH, _ROOM_WAIT_US)


def no_room(resource: Resource) -> Refuse:
    """Refuse an incomplete request that was to be spooled, for lack of memory."""
    return Refuse(resource, NO_ROOM, _ROOM_WAIT_US)


def malformed_batch(resource: Resource) -> Forbidden:
    """Refuse a batch that the broker might store as any number of messages."""
    return _forbid(
        resource, MALFORMED_BATCH, "The lengths of the batch's messages do not add up.", ResponseCode.MESSAGE_ILLEGAL
    )


def alarm(listener: str, reason: str) -> Forbidden:
    """Refuse a send as busy. Clients try again, later or elsewhere."""
    scarce = "+".join(word for word in get_args(Scarce) if word in reason.split())
    remark = f"{reason}, and takes no messages until there is enough again"
    rule = f"{ALARM}:{scarce}" if scarce else ALARM
    return Forbidden(Resource(LISTENER, listener), rule, _ALARM_WAIT_US, ResponseCode.SYSTEM_BUSY.value, remark=remark)


def spool_failure(resource: Resource, why: str) -> Forbidden:
    return _forbid(resource, why, _SPOOL_FAILURES[why], ResponseCode.SYSTEM_BUSY)


def _forbid(resource: Resource, rule: str, remark: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> Forbidden:
    return Forbidden(resource, rule, 0, code.value, remark=remark)


# RocketMQ 5.5.0.
VERSION: Final = 513
_prefix = struct.Struct(">ii").pack


def busy_answer(refuse: Refuse, opaque: int, kind: str) -> bytes:
    """Return the whole frame of a busy answer. Its header is JSON, which every client reads.

    The remark names the resource, the wait in microseconds and the rule. If the rule can never admit the request, it
    names the largest size instead of the wait. Clients look for ``RateLimit`` in it. The code is the rule's if clients
    treat that as busy. Otherwise it is FLOW_CONTROL for consuming requests, which clients soon repeat, and SYSTEM_BUSY
    for all others. ``kind`` is that of the request's own resource.
    """
    head, tail = around_opaque(refuse, kind)
    header = b"%b%d%b" % (head, opaque, tail)
    size = len(header)
    return _prefix(size + 4, size) + header


@lru_cache(maxsize=1024)  # one refusal often answers all requests of a chunk
def around_opaque(refuse: Refuse, kind: str = KIND_TOPIC) -> tuple[bytes, bytes]:
    """Return a busy answer's header before and after the opaque. See ``busy_answer``."""
    code = refuse.busy_code
    if code not in BUSY_CODES and not (isinstance(refuse, Forbidden) and code is not None):
        busy = ResponseCode.FLOW_CONTROL if kind == KIND_SUBSCRIPTION else ResponseCode.SYSTEM_BUSY
        code = busy.value
    header = {"code": code, "language": "JAVA", "version": VERSION, "flag": FLAG_RESPONSE, "remark": remark_of(refuse)}
    return json.dumps(header, separators=(",", ":"))[:-1].encode() + b',"opaque":', b"}"


def remark_of(refuse: Refuse) -> str:
    """Return the text of a busy answer."""
    if isinstance(refuse, Forbidden) and refuse.busy_code is not None:
        return refuse.remark
    name, rule = _spell(refuse.resource), refuse.rule[:MAX_NAME_CHARS]
    if refuse.most is not None:
        return f"[RateLimit] for {name} at most {refuse.most} {refuse.most_of} at once, rule {rule}"
    why = "the broker is short; " if rule.startswith(ADAPTIVE_NAME) else ""
    return f"[RateLimit] {why}for {name} need wait:{refuse.wait_us}microsecs, rule {rule}"


def _spell(resource: Resource) -> str:
    kind, name = resource
    name = name[:MAX_NAME_CHARS]
    if kind == KIND_RETRY_GROUP:
        return RETRY_PREFIX + name
    return name if kind in {KIND_TOPIC, KIND_SUBSCRIPTION} else f"{kind.replace('_', ' ')} {name}"
