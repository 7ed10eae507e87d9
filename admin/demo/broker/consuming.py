"""Consumer groups: who is in them, what they subscribe to, how far they have read; and pulls with long polling."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from admin.demo.broker.channel import LANGUAGE, VERSION, Channel, Refused, answer, number, text
from admin.demo.broker.store import Queue, Store
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY, RETRY_PREFIX, RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

#: Bits of a pull's ``sysFlag``.
_COMMIT_OFFSET: Final = 1
_SUSPEND: Final = 2
_SUBSCRIPTION: Final = 4
#: Bytes of one pull's answer, unless its first message alone is larger.
_MAX_PULL_BYTES: Final = 256 << 10

QueueKey = tuple[str, int]
"""A topic's name and a queue's number."""


class _SubscriptionData(msgspec.Struct, rename="camel"):
    topic: str
    sub_string: str = "*"
    expression_type: str | None = None


class _ConsumerData(msgspec.Struct, rename="camel"):
    group_name: str
    subscription_data_set: tuple[_SubscriptionData, ...] = ()


class _Heartbeat(msgspec.Struct):
    client_id: str = msgspec.field(name="clientID")
    consumers: tuple[_ConsumerData, ...] = msgspec.field(default=(), name="consumerDataSet")


class Group:
    """One consumer group.

    Attributes:
        members: the connections that consume in it, with their client ids.
        subscriptions: ``*`` or tags joined by ``||``, by topic.
        offsets: next message to consume, by queue.
    """

    def __init__(self) -> None:
        self.members: dict[Channel, str] = {}
        self.subscriptions: dict[str, str] = {}
        self.offsets: dict[QueueKey, int] = {}


class _Reading(NamedTuple):
    """What a read of a queue gave: the answer's code and remark, where to go on, and the records."""

    code: ResponseCode
    remark: str
    next_offset: int
    body: bytes = b""


class _HeldPull(msgspec.Struct, eq=False):
    """A pull that found nothing and waits for the next message of its queue, until ``due_s``."""

    channel: Channel
    request: RemotingCommand
    queue: Queue
    offset: int
    expression: str
    due_s: float


class Consuming:
    """The handlers of requests about consumer groups, and of pulls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: dict[str, Group] = {}
        self._held: list[_HeldPull] = []

    # --- Groups ----------------------------------------------------------------------------------

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> bytes:
        """Take a heartbeat, code 34; members or topics that changed make the group share its queues anew."""
        try:
            heartbeat = msgspec.json.decode(request.body, type=_Heartbeat)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the heartbeat cannot be read: {error}") from error
        for consumer in heartbeat.consumers:
            self._store.create_topic(RETRY_PREFIX + consumer.group_name, 1)
            group = self._group(consumer.group_name)
            before = (group.members.get(channel), group.subscriptions.keys())
            group.members[channel] = heartbeat.client_id
            group.subscriptions = {
                each.topic: each.sub_string
                for each in consumer.subscription_data_set
                if each.expression_type in {None, "", "TAG"}
            }
            if before != (heartbeat.client_id, group.subscriptions.keys()):
                _notify(consumer.group_name, group)
        return answer(request, fields={"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"})

    def unregister(self, channel: Channel, request: RemotingCommand) -> bytes:
        """Take a client's leave of a group, code 35."""
        self._leave(channel, request.fields.get("consumerGroup", ""))
        return answer(request)

    def forget(self, channel: Channel) -> None:
        """Take a connection that is gone out of its groups, and drop its held pulls."""
        self._held = [pull for pull in self._held if pull.channel is not channel]
        for name in self._groups:
            self._leave(channel, name)

    def consumer_list(self, _channel: Channel, request: RemotingCommand) -> bytes:
        """Answer with the client ids of a group's consumers, each once; code 38."""
        name = text(request.fields, "consumerGroup")
        members = self._group(name).members
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return answer(request, body=msgspec.json.encode({"consumerIdList": list(dict.fromkeys(members.values()))}))

    def query_offset(self, _channel: Channel, request: RemotingCommand) -> bytes:
        """Answer with a group's next offset in a queue, code 14."""
        fields = request.fields
        key, queue = self._queue(fields)
        offset = self._group(text(fields, "consumerGroup")).offsets.get(key)
        if offset is None:
            # A new group reads a young queue from its start; where it starts elsewhere is the client's choice.
            if not queue.messages or queue.min_offset > 0 or fields.get("setZeroIfNotFound") == "false":
                raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
            offset = 0
        return _offset(request, offset)

    def update_offset(self, _channel: Channel, request: RemotingCommand) -> bytes:
        """Keep a group's next offset in a queue, code 15."""
        key, _ = self._queue(request.fields)
        self._group(text(request.fields, "consumerGroup")).offsets[key] = number(request.fields, "commitOffset")
        return answer(request)

    def max_offset(self, _channel: Channel, request: RemotingCommand) -> bytes:
        """Answer with the offset that the next message of a queue gets, code 30."""
        return _offset(request, self._queue(request.fields)[1].max_offset)

    def min_offset(self, _channel: Channel, request: RemotingCommand) -> bytes:
        """Answer with the offset of a queue's oldest message, code 31."""
        return _offset(request, self._queue(request.fields)[1].min_offset)

    def _group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group())

    def _leave(self, channel: Channel, name: str) -> None:
        group = self._groups.get(name)
        if group is not None and group.members.pop(channel, None) is not None:
            _notify(name, group)

    def _queue(self, fields: Mapping[str, str]) -> tuple[QueueKey, Queue]:
        """Return the queue that a request names.

        Raises:
            Refused: there is no such queue.
        """
        name, queue_id = text(fields, "topic"), number(fields, "queueId")
        topic = self._store.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        if not 0 <= queue_id < len(topic.queues):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic {name}")
        return (name, queue_id), topic.queues[queue_id]

    # --- Pulls -----------------------------------------------------------------------------------

    @property
    def held_pulls(self) -> int:
        """Return how many pulls wait for a message."""
        return len(self._held)

    def pull(self, channel: Channel, request: RemotingCommand, now_s: float) -> bytes | None:
        """Answer a pull, codes 11 and 361, or hold it until there is a message for it.

        Raises:
            Refused: the queue or the subscription does not exist.
        """
        fields = request.fields
        key, queue = self._queue(fields)
        group_name, offset = text(fields, "consumerGroup"), number(fields, "queueOffset")
        flags = number(fields, "sysFlag")
        group = self._group(group_name)
        if flags & _SUBSCRIPTION:
            expression: str | None = fields.get("subscription", "*")
        else:
            expression = group.subscriptions.get(key[0])
        if expression is None:
            raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the group {group_name} has not subscribed {key[0]}")
        if flags & _COMMIT_OFFSET:
            group.offsets[key] = number(fields, "commitOffset", 0)
        due_s = now_s + number(fields, "suspendTimeoutMillis", 0) / 1000 if flags & _SUSPEND else now_s
        pull = _HeldPull(channel, request, queue, offset, expression, due_s)
        frame = _try(pull, now_s)
        if frame is None and not request.flag & FLAG_ONEWAY:
            self._held.append(pull)
        return frame

    def answer_held(self, now_s: float) -> None:
        """Answer the held pulls for which there is something now, and those that have waited long enough."""
        held, self._held = self._held, []
        for pull in held:
            frame = _try(pull, now_s)
            if frame is None:
                self._held.append(pull)
            else:
                pull.channel.send(frame)


def _try(pull: _HeldPull, now_s: float) -> bytes | None:
    """Return the answer to a pull, or None if it is to wait for messages."""
    asked = number(pull.request.fields, "maxMsgNums", 32)
    reading = _read(pull.queue, pull.offset, asked, pull.expression)
    if reading.code is ResponseCode.PULL_NOT_FOUND and now_s < pull.due_s:
        return None
    fields = {
        "suggestWhichBrokerId": "0",
        "groupSysFlag": "0",
        "nextBeginOffset": str(reading.next_offset),
        "maxOffset": str(pull.queue.max_offset),
        "minOffset": str(pull.queue.min_offset),
        "topicSysFlag": "0",
    }
    return answer(pull.request, reading.code, reading.remark, fields, reading.body)


def _read(queue: Queue, offset: int, max_messages: int, expression: str) -> _Reading:
    """Read the messages with one of the wanted tags from ``offset`` on; the remarks are those of a real broker."""
    low, high = queue.min_offset, queue.max_offset
    if offset == high:
        return _Reading(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset)
    if offset < low:
        return _Reading(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low)
    if offset > high:
        return _Reading(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", high)
    tags = {tag.strip() for tag in expression.split("||")}
    everything = expression in {"", "*"}
    parts: list[bytes] = []
    size = 0
    while offset < high and len(parts) < max(1, max_messages):
        record, tag = queue.messages[offset - low]
        if everything or (tag and tag in tags):
            size += len(record)
            if parts and size > _MAX_PULL_BYTES:
                break
            parts.append(record)
        offset += 1
    if not parts:
        return _Reading(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", offset)
    return _Reading(ResponseCode.SUCCESS, "FOUND", offset, b"".join(parts))


def _notify(name: str, group: Group) -> None:
    """Tell every member that the group changed, so that they share its queues anew; code 40, oneway."""
    notice = RemotingCommand(
        code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        opaque=0,
        language=LANGUAGE,
        version=VERSION,
        flag=FLAG_ONEWAY,
        fields={"consumerGroup": name},
    )
    for member in group.members:
        member.send(encode(notice))


def _offset(request: RemotingCommand, offset: int) -> bytes:
    return answer(request, fields={"offset": str(offset)})
