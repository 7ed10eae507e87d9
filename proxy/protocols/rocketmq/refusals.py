"""Busy answers, and refusals that do not depend on limits.

Most of these refusals concern broker features that would bypass limits. Each refusal is counted and logged under a rule
name defined here. ``docs/limits.md`` lists other ways to store messages without a permit.
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
# Followed by the scarce resource, as in ``alarm:memory``.
ALARM: Final = "alarm"

# ``TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET``, and topics missing from it.
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
# ``TopicValidator.SYSTEM_TOPIC_PREFIX``.
INTERNAL_PREFIX: Final = "rmq_sys_"

PURGED: Final = "spool:purged"
TOO_OLD: Final = "spool:too_old"
LOST: Final = "spool:lost"
NO_ROOM: Final = "spool:no_room"
_SPOOL_FAILURES: Final = {
    PURGED: "an operator purged the message from Sluice's spool",
    TOO_OLD: "the message waited too long in Sluice's spool",
    LOST: "the message was damaged in Sluice's spool",
}
_ROOM_WAIT_US: Final = 1_000_000
# Alarms are checked once a second.
_ALARM_WAIT_US: Final = 1_000_000


class Forbidden(Refuse, frozen=True):
    """A refusal whose response carries its ``remark``, with ``busy_code`` as the response code."""

    remark: str = ""


def is_internal(topic: str) -> bool:
    # Topics for message traces and replies are not included, because clients send to them.
    return topic in INTERNAL_TOPICS or topic.startswith(INTERNAL_PREFIX)


def internal_topic(resource: Resource) -> Forbidden:
    return _forbid(resource, INTERNAL_TOPIC, f"Sending message to topic[{resource.name}] is forbidden.")


def inner_batch(resource: Resource) -> Forbidden:
    return _forbid(
        resource, INNER_BATCH, "Sending an inner batch, or a message that sets an INNER_ property, is forbidden."
    )


def unknown_transaction(resource: Resource) -> Forbidden:
    remark = "Find prepared transaction message failed"
    return Forbidden(resource, UNKNOWN_TRANSACTION, 0, ResponseCode.SYSTEM_ERROR.value, remark=remark)


def unreadable_batch(resource: Resource) -> Refuse:
    """Return the refusal of a batch whose messages cannot be counted because memory is short."""
    return Refuse(resource, UNREADABLE_BATCH, _ROOM_WAIT_US)


def no_room(resource: Resource) -> Refuse:

    return Refuse(resource, NO_ROOM, _ROOM_WAIT_US)


def malformed_batch(resource: Resource) -> Forbidden:
    return _forbid(
        resource,
        MALFORMED_BATCH,
        "The batch is malformed: the lengths of its messages are inconsistent.",
        ResponseCode.MESSAGE_ILLEGAL,
    )


def alarm(listener: str, reason: str) -> Forbidden:
    scarce = "+".join(word for word in get_args(Scarce) if word in reason.split())
    remark = f"{reason} and accepts no messages until the alarm ends"
    rule = f"{ALARM}:{scarce}" if scarce else ALARM
    return Forbidden(Resource(LISTENER, listener), rule, _ALARM_WAIT_US, ResponseCode.SYSTEM_BUSY.value, remark=remark)


def spool_failure(resource: Resource, why: str) -> Forbidden:
    return _forbid(resource, why, _SPOOL_FAILURES[why], ResponseCode.SYSTEM_BUSY)


def _forbid(resource: Resource, rule: str, remark: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> Forbidden:
    return Forbidden(resource, rule, 0, code.value, remark=remark)


# The version in busy answers: RocketMQ 5.5.0.
VERSION: Final = 513
_prefix = struct.Struct(">ii").pack


def busy_answer(refuse: Refuse, opaque: int, kind: str) -> bytes:
    """Return the frame of a busy answer. Its header is JSON, which every client can read.

    The response code is the rule's ``busy_code`` if clients treat that code as busy. Otherwise, it is FLOW_CONTROL for
    consuming requests, because clients soon repeat these, and SYSTEM_BUSY for all others. ``kind`` is the kind of the
    request's first resource.
    """
    head, tail = around_opaque(refuse, kind)
    header = b"%b%d%b" % (head, opaque, tail)
    size = len(header)
    return _prefix(size + 4, size) + header


@lru_cache(maxsize=1024)  # often, all requests of a chunk get the same refusal
def around_opaque(refuse: Refuse, kind: str = KIND_TOPIC) -> tuple[bytes, bytes]:
    code = refuse.busy_code
    if code not in BUSY_CODES and not (isinstance(refuse, Forbidden) and code is not None):
        busy = ResponseCode.FLOW_CONTROL if kind == KIND_SUBSCRIPTION else ResponseCode.SYSTEM_BUSY
        code = busy.value
    header = {"code": code, "language": "JAVA", "version": VERSION, "flag": FLAG_RESPONSE, "remark": remark_of(refuse)}
    return json.dumps(header, separators=(",", ":"))[:-1].encode() + b',"opaque":', b"}"


def remark_of(refuse: Refuse) -> str:
    # Clients look for ``RateLimit`` in the text.
    if isinstance(refuse, Forbidden) and refuse.busy_code is not None:
        return refuse.remark
    name, rule = _spell(refuse.resource), refuse.rule[:MAX_NAME_CHARS]
    if refuse.most is not None:
        return f"[RateLimit] {name} accepts at most {refuse.most} {refuse.most_of} at a time, rule {rule}"
    why = "the broker is overloaded; " if rule.startswith(ADAPTIVE_NAME) else ""
    return f"[RateLimit] {why}for {name} need wait:{refuse.wait_us}microsecs, rule {rule}"


def _spell(resource: Resource) -> str:
    kind, name = resource
    name = name[:MAX_NAME_CHARS]
    if kind == KIND_RETRY_GROUP:
        return RETRY_PREFIX + name
    return name if kind in {KIND_TOPIC, KIND_SUBSCRIPTION} else f"{kind.replace('_', ' ')} {name}"
