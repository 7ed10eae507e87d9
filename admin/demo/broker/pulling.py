"""Requests that take messages: pulls with long polling, and looking at one message by its place."""

from collections.abc import Callable
from typing import Final

from admin.demo.broker.channel import Channel, Refused, answer, number, text
from admin.demo.broker.groups import Groups, QueueKey, Subscription, tag_filter
from admin.demo.broker.store import Found, LoopbackConfig, Reading, Store
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand


# Long polls: pulls that found nothing and wait for the next message of their queue.
class _HeldPull:
    """One pull that waits.

    Attributes:
        channel: the connection that asked.
        key: the queue it asked about.
        due_ns: when its wait ends.
        retry: reads again at ``now_ns``, and answers the pull if there is something or its wait has ended.
    """

    __slots__ = ("channel", "due_ns", "key", "retry")

    def __init__(self, channel: Channel, key: QueueKey, due_ns: int, retry: Callable[[int], None]) -> None:
        self.channel = channel
        self.key = key
        self.due_ns = due_ns
        self.retry = retry


_COMMIT_OFFSET: Final = 1
_SUSPEND: Final = 2
_SUBSCRIPTION: Final = 4
_NS_PER_MS: Final = 1_000_000
#: A client may not ask for more messages at once, nor hold a pull for longer.
_MAX_MESSAGES: Final = 1024
_MAX_SUSPEND_MS: Final = 120_000

_CODES: Final = {
    Found.FOUND: ResponseCode.SUCCESS,
    Found.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Found.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    Found.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    Found.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    Found.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class Pulling:
    """The handler of requests that take messages."""

    def __init__(self, config: LoopbackConfig, store: Store, groups: Groups) -> None:
        self._config = config
        self._store = store
        self._groups = groups
        #: In the order they came.
        self._held: dict[_HeldPull, None] = {}
        self._arrived: set[QueueKey] = set()

    @property
    def held(self) -> int:
        """Return how many pulls wait for a message."""
        return len(self._held)

    def pull(self, channel: Channel, request: RemotingCommand, now_ns: int) -> bytes | None:
        """Answer a pull, codes 11 and 361, or hold it until there is a message for it.

        Raises:
            Refused: the topic, queue, group or subscription does not exist.
        """
        fields = request.fields
        group_name, topic_name = text(fields, "consumerGroup"), text(fields, "topic")
        queue_id, offset = number(fields, "queueId"), number(fields, "queueOffset")
        flags = number(fields, "sysFlag")
        group = self._groups.make(group_name)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group_name}")
        topic = self._store.topics.get(topic_name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic_name}] not exist, apply first please!")
        if not 0 <= queue_id < topic.queue_count:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic {topic_name}")
        if flags & _SUBSCRIPTION:
            kind = fields.get("expressionType") or "TAG"
            wanted: Subscription | None = Subscription(topic_name, fields.get("subscription", "*"), kind=kind)
        else:
            wanted = group.subscriptions.get(topic_name)
        if wanted is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the group {group_name} has not subscribed {topic_name}"
            )
        if wanted.kind != "TAG":
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {wanted.kind}"
            )
        key = (topic_name, queue_id)
        if flags & _COMMIT_OFFSET:
            group.offsets[key] = number(fields, "commitOffset", 0)
        max_messages = max(1, min(number(fields, "maxMsgNums", 32), _MAX_MESSAGES))
        max_bytes = self._config.max_pull_bytes
        max_bytes = max(1, min(number(fields, "maxMsgBytes", max_bytes), max_bytes))
        accepts = tag_filter(wanted.expression)

        def read(from_offset: int) -> Reading:
            queue = self._store.queue(topic_name, queue_id)
            return self._store.read(queue, from_offset, max_messages=max_messages, max_bytes=max_bytes, accepts=accepts)

        reading = read(offset)
        suspend_ms = min(number(fields, "suspendTimeoutMillis", 0), _MAX_SUSPEND_MS)
        if (
            not flags & _SUSPEND
            or suspend_ms <= 0
            or request.flag & FLAG_ONEWAY
            or _code(reading, offset) is not ResponseCode.PULL_NOT_FOUND
            or sum(pull.channel is channel for pull in self._held) >= self._config.max_held_pulls
        ):
            return _answer(request, reading, offset)

        def retry(now_ns: int) -> None:
            nonlocal offset
            found = read(offset)
            nothing = found.found is Found.NO_MATCHED_MESSAGE or _code(found, offset) is ResponseCode.PULL_NOT_FOUND
            if nothing and now_ns < pull.due_ns:
                # What was passed over is of no use to this client, so the next look starts behind it.
                offset = found.next_offset
                return
            del self._held[pull]
            channel.send(_answer(request, found, offset))

        pull = _HeldPull(channel, key, now_ns + suspend_ms * _NS_PER_MS, retry)
        self._held[pull] = None
        return None

    def next_due_ns(self) -> int | None:
        """Return when the wait of a held pull ends, or None."""
        return min((pull.due_ns for pull in self._held), default=None)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Note that a queue got a message; ``wake`` looks at it once the whole chunk is stored."""
        self._arrived.add((topic, queue_id))

    def wake(self, now_ns: int) -> None:
        """Answer the held pulls for which there is something now, and those that have waited long enough."""
        arrived, self._arrived = self._arrived, set()
        for pull in list(self._held):
            if pull.key in arrived or pull.due_ns <= now_ns:
                pull.retry(now_ns)

    def forget(self, channel: Channel) -> None:
        """Drop the held pulls of a connection that is gone."""
        self._held = {pull: None for pull in self._held if pull.channel is not channel}


def _code(reading: Reading, asked_offset: int) -> ResponseCode:
    if reading.found is Found.NO_MESSAGE_IN_QUEUE and asked_offset != 0:
        return ResponseCode.PULL_OFFSET_MOVED
    return _CODES[reading.found]


def _answer(request: RemotingCommand, reading: Reading, asked_offset: int) -> bytes:
    fields = {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "0",
        "nextBeginOffset": str(reading.next_offset),
        "maxOffset": str(reading.max_offset),
        "minOffset": str(reading.min_offset),
        "topicSysFlag": "0",
    }
    return answer(request, _code(reading, asked_offset), reading.found.value, fields, reading.body)
