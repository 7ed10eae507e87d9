"""What Sluice refuses whatever the limits are: requests by which a broker's own features would evade them.

Each refusal is a verdict like any other, so it is counted and recorded under the name of its rule here. What else a
broker stores without a permit is told in ``docs/limits.md``. While Sluice itself runs short of something, it refuses
what would be stored in the same way.
"""

from typing import Final, get_args

from limiter.rules.resource import LISTENER, Resource
from proxy.deciding.batch import Refuse
from proxy.flow.alarms import Scarce
from proxy.protocols.rocketmq.wire.codes import ResponseCode

#: Rules of these refusals.
INTERNAL_TOPIC: Final = "internal_topic"
INNER_BATCH: Final = "inner_batch"
UNKNOWN_TRANSACTION: Final = "unknown_transaction"
UNREADABLE_BATCH: Final = "unreadable_batch"
MALFORMED_BATCH: Final = "malformed_batch"
#: What is behind it says what is scarce: ``alarm:memory``.
ALARM: Final = "alarm"

#: The topics in which a broker keeps what it has still to store elsewhere, and its own records
#: (``TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET``, and what it forgets).
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

#: Why what was put aside in the spool is given up: an operator said so, it was too old, or the disk has lost it.
PURGED: Final = "spool:purged"
TOO_OLD: Final = "spool:too_old"
LOST: Final = "spool:lost"
#: Why it was not put aside: there was no memory to gather what had come of it.
NO_ROOM: Final = "spool:no_room"
_IN_VAIN: Final = {
    PURGED: "Sluice held the message back, and was told to give it up",
    TOO_OLD: "Sluice held the message back until it was too old",
    LOST: "Sluice held the message back, and lost it on its disk",
}
#: Until there may be room for a batch again, as far as anybody can say.
_ROOM_WAIT_US: Final = 1_000_000
#: Until an alarm may have ended, likewise: it is looked at once a second.
_ALARM_WAIT_US: Final = 1_000_000


class Forbidden(Refuse, frozen=True):
    """A refusal in the broker's own words.

    Attributes:
        remark: of the answer; its code is ``busy_code``.
    """

    remark: str = ""


def is_internal(topic: str) -> bool:
    """Say whether clients have no business to send to a topic.

    The topic of message traces is not among them, nor are those of replies: clients send to both.
    """
    return topic in INTERNAL_TOPICS or topic.startswith(INTERNAL_PREFIX)


def internal_topic(resource: Resource) -> Forbidden:
    """Refuse a send to an internal topic, as the broker does with those that it knows to be."""
    return _forbid(resource, INTERNAL_TOPIC, f"Sending message to topic[{resource.name}] is forbidden.")


def inner_batch(resource: Resource) -> Forbidden:
    """Refuse a message that says itself as how many it counts, or in which other queues it is an entry."""
    return _forbid(resource, INNER_BATCH, "Sending a message with an inner count or queue of its own is forbidden.")


def unknown_transaction(resource: Resource) -> Forbidden:
    """Refuse a commit of what is no half message that waits for one, as the broker says it."""
    remark = "Find prepared transaction message failed"
    return Forbidden(resource, UNKNOWN_TRANSACTION, 0, ResponseCode.SYSTEM_ERROR.value, remark=remark)


def unreadable_batch(resource: Resource) -> Refuse:
    """Refuse a batch for which there is no memory: its messages cannot be counted before it goes on."""
    return Refuse(resource, UNREADABLE_BATCH, _ROOM_WAIT_US)


def no_room(resource: Resource) -> Refuse:
    """Refuse what was to be put aside, but has not come completely while there is no memory to gather it."""
    return Refuse(resource, NO_ROOM, _ROOM_WAIT_US)


def malformed_batch(resource: Resource) -> Forbidden:
    """Refuse a batch of which nobody here can say as how many messages the broker would store it."""
    return _forbid(
        resource, MALFORMED_BATCH, "The lengths of the batch's messages do not add up.", ResponseCode.MESSAGE_ILLEGAL
    )


def alarm(listener: str, reason: str) -> Forbidden:
    """Refuse as busy what would be stored, since Sluice runs short of something; clients try again, later or elsewhere.

    Args:
        listener: through which it came, for what no limit refuses has no resource of its own.
        reason: names Sluice, and what is scarce.
    """
    scarce = "+".join(word for word in get_args(Scarce) if word in reason.split())
    remark = f"{reason}, and takes no messages until there is enough again"
    rule = f"{ALARM}:{scarce}" if scarce else ALARM
    return Forbidden(Resource(LISTENER, listener), rule, _ALARM_WAIT_US, ResponseCode.SYSTEM_BUSY.value, remark=remark)


def put_aside_in_vain(resource: Resource, why: str) -> Forbidden:
    """Refuse as busy what was put aside and does not go on, for one of the reasons above."""
    return _forbid(resource, why, _IN_VAIN[why], ResponseCode.SYSTEM_BUSY)


def _forbid(resource: Resource, rule: str, remark: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> Forbidden:
    return Forbidden(resource, rule, 0, code.value, remark=remark)
