"""Consumer groups, who is in them, what they subscribe to and how far they have read; and the requests about that."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from admin.demo.broker.channel import LANGUAGE, VERSION, Channel, Refused, answer, number, text
from admin.demo.broker.store import MAX_TOPIC_BYTES, Store, is_legal_name
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import RETRY_PREFIX, RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

#: A group's retry topic must still be a topic.
_MAX_NAME: Final = MAX_TOPIC_BYTES - len(RETRY_PREFIX)

#: How long a client id may be; it is kept for as long as the connection lasts.
_MAX_CLIENT_ID: Final = 1024
_BROADCASTING: Final = (0, "0", "BROADCASTING")

QueueKey = tuple[str, int]
"""A topic's name and a queue's number."""


class Subscription(msgspec.Struct, frozen=True):
    """What a group wants of one topic.

    Attributes:
        topic: name of the topic.
        expression: ``*``, or tags joined by ``||``.
        version: the client's own; a later one replaces an earlier one.
        kind: ``TAG``, or another language that this broker does not speak.
    """

    topic: str
    expression: str
    version: int = 0
    kind: str = "TAG"


def tag_filter(expression: str) -> Callable[[str], bool] | None:
    """Return what says by a message's tag whether an expression wants it, or None for every message."""
    if expression in ("", "*"):
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return tags.__contains__


class Group:
    """One consumer group.

    Attributes:
        members: the connections that consume in it, with their client ids.
        subscriptions: by topic.
        offsets: next message to consume, by queue.
        fingerprint: the last heartbeat's, for the version 2 of heartbeats.
        broadcasting: each member gets every message, so nobody has to share queues.
    """

    __slots__ = ("broadcasting", "fingerprint", "members", "name", "offsets", "subscriptions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Channel, str] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.offsets: dict[QueueKey, int] = {}
        self.fingerprint = 0
        self.broadcasting = False

    def client_ids(self) -> list[str]:
        """Return the ids of its consumers, each once."""
        return list(dict.fromkeys(self.members.values()))

    def join(self, member: Channel, client_id: str, subscriptions: Iterable[Subscription] | None) -> bool:
        """Take a heartbeat; ``None`` leaves the subscriptions as they are.

        Returns:
            Whether members or subscribed topics changed, so that the group has to share its queues anew.
        """
        changed = self.members.get(member) != client_id
        self.members[member] = client_id
        if subscriptions is None:
            return changed
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        changed = changed or wanted.keys() != self.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is not None and known.version > subscription.version:
                wanted[topic] = known
        self.subscriptions = wanted
        return changed

    def leave(self, member: Channel) -> bool:
        """Remove a member; returns whether it was one."""
        return self.members.pop(member, None) is not None


class Groups:
    """All groups by name; their number is bounded, and a group that was made once stays."""

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._by_name: dict[str, Group] = {}

    def get(self, name: str) -> Group | None:
        """Return a group that is known."""
        return self._by_name.get(name)

    def make(self, name: str) -> Group | None:
        """Return a group, made if it is not known; None when its name is illegal or there are too many."""
        group = self._by_name.get(name)
        if group is None and len(self._by_name) < self._max_groups and is_legal_name(name, _MAX_NAME):
            group = self._by_name[name] = Group(name)
        return group


class _SubscriptionData(msgspec.Struct, rename="camel"):
    topic: str
    sub_string: str = "*"
    sub_version: int | str = 0
    expression_type: str | None = None


class _ConsumerData(msgspec.Struct, rename="camel"):
    group_name: str
    message_model: int | str | None = None
    subscription_data_set: tuple[_SubscriptionData, ...] = ()


class _Heartbeat(msgspec.Struct):
    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: tuple[_ConsumerData, ...] = msgspec.field(default=(), name="consumerDataSet")
    fingerprint: int = msgspec.field(default=0, name="heartbeatFingerprint")
    without_sub: bool = msgspec.field(default=False, name="withoutSub")


_decode_heartbeat = msgspec.json.Decoder(_Heartbeat).decode


class Clients:
    """The handlers of requests about clients."""

    def __init__(
        self,
        store: Store,
        groups: Groups,
    ) -> None:
        self._store = store
        self._groups = groups
        self._opaque = 0

    def heartbeat(self, channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Take a heartbeat, code 34, of either version; a version 2 one may leave the subscriptions out."""
        try:
            heartbeat = _decode_heartbeat(request.body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the heartbeat cannot be read: {error}") from error
        version_2 = heartbeat.fingerprint != 0
        changed = not version_2
        for consumer in heartbeat.consumer_data_set:
            group = self._groups.make(consumer.group_name)
            if group is None:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the group {consumer.group_name} was not made: its name is illegal, or there are too many",
                )
            self._store.create_topic(RETRY_PREFIX + group.name, 1)
            changed = changed or group.fingerprint not in {0, heartbeat.fingerprint}
            group.fingerprint = heartbeat.fingerprint
            group.broadcasting = consumer.message_model in _BROADCASTING
            subscriptions = (
                None if version_2 and heartbeat.without_sub else map(_subscription, consumer.subscription_data_set)
            )
            channel.groups.add(group.name)
            if group.join(channel, heartbeat.client_id[:_MAX_CLIENT_ID], subscriptions):
                self._notify(group)
        return answer(
            request, fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        )

    def unregister(self, channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Take a client's leave of a group, code 35."""
        self._leave(channel, request.fields.get("consumerGroup", ""))
        return answer(request)

    def forget(self, channel: Channel) -> None:
        """Take a connection that is gone out of its groups."""
        for name in list(channel.groups):
            self._leave(channel, name)

    def consumer_list(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Answer with the client ids of a group's consumers, code 38."""
        name = text(request.fields, "consumerGroup")
        group = self._groups.get(name)
        if group is None or not group.members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return answer(request, body=msgspec.json.encode({"consumerIdList": group.client_ids()}))

    def query_offset(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Answer with a group's next offset in a queue, code 14."""
        fields = request.fields
        key = (text(fields, "topic"), number(fields, "queueId"))
        group = self._groups.get(text(fields, "consumerGroup"))
        offset = None if group is None else group.offsets.get(key)
        if offset is None:
            queue = self._store.queue(*key)
            # A new group reads a young queue from its start; where it starts elsewhere is the client's choice.
            if not queue.messages or queue.min_offset > 0 or fields.get("setZeroIfNotFound") == "false":
                raise Refused(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
            offset = 0
        return _offset(request, offset)

    def update_offset(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Keep a group's next offset in a queue, code 15."""
        fields = request.fields
        name, queue_id = text(fields, "topic"), number(fields, "queueId")
        group = self._groups.make(text(fields, "consumerGroup"))
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "the group does not exist")
        topic = self._store.topics.get(name)
        if topic is None or not 0 <= queue_id < topic.queue_count:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name} not exist!")
        group.offsets[(name, queue_id)] = number(fields, "commitOffset")
        return answer(request)

    def max_offset(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Answer with the offset that the next message of a queue gets, code 30."""
        fields = request.fields
        return _offset(request, self._store.queue(text(fields, "topic"), number(fields, "queueId")).max_offset)

    def min_offset(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Answer with the offset of a queue's oldest message, code 31."""
        fields = request.fields
        return _offset(request, self._store.queue(text(fields, "topic"), number(fields, "queueId")).min_offset)

    def _leave(self, channel: Channel, name: str) -> None:
        group = self._groups.get(name)
        channel.groups.discard(name)
        if group is not None and group.leave(channel):
            self._notify(group)

    def _notify(self, group: Group) -> None:
        """Tell every member that the group changed, so that they share its queues anew; code 40, oneway."""
        if group.broadcasting:
            return
        for member in group.members:
            self._opaque = (self._opaque + 1) & 0x7FFF_FFFF
            notice = RemotingCommand(
                code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                language=LANGUAGE,
                version=VERSION,
                opaque=self._opaque,
                flag=codes.FLAG_ONEWAY,
                fields={"consumerGroup": group.name},
            )
            member.send(encode(notice))


def _subscription(data: _SubscriptionData) -> Subscription:
    try:
        version = int(data.sub_version)
    except ValueError:
        version = 0
    return Subscription(data.topic, data.sub_string, version, data.expression_type or "TAG")


def _offset(request: RemotingCommand, offset: int) -> bytes:
    return answer(request, fields={"offset": str(offset)})
