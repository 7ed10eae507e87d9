"""Requests about the clients themselves: heartbeats, groups, offsets and queue locks."""

from collections.abc import Callable
from typing import Final

import msgspec

from proxy.loopback.channel import LANGUAGE, VERSION, Channel, Refused, answer, number, text
from proxy.loopback.config import LoopbackConfig
from proxy.loopback.groups import Group, Groups, Subscription
from proxy.loopback.intake import Intake
from proxy.loopback.store import Store
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.command import RemotingCommand, encode

_NS_PER_S: Final = 1_000_000_000
#: How long a client id may be; it is kept for as long as the connection lasts.
_MAX_CLIENT_ID: Final = 1024
_BROADCASTING: Final = (0, "0", "BROADCASTING")


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


class _MessageQueue(msgspec.Struct, rename="camel", frozen=True):
    topic: str
    broker_name: str
    queue_id: int


class _Locks(msgspec.Struct, rename="camel"):
    consumer_group: str
    client_id: str
    mq_set: tuple[_MessageQueue, ...] = ()


class _Locked(msgspec.Struct):
    locked: list[_MessageQueue] = msgspec.field(name="lockOKMQSet")


_decode_heartbeat = msgspec.json.Decoder(_Heartbeat).decode
_decode_locks = msgspec.json.Decoder(_Locks).decode


class Clients:
    """The handlers of requests about clients.

    Args:
        reply: sends the broker's own requests to a client.
    """

    def __init__(
        self,
        config: LoopbackConfig,
        store: Store,
        groups: Groups[Channel],
        intake: Intake,
        reply: Callable[[Channel, bytes, int], None],
    ) -> None:
        self._config = config
        self._store = store
        self._groups = groups
        self._intake = intake
        self._reply = reply
        self._opaque = 0

    def heartbeat(self, channel: Channel, request: RemotingCommand, now_ns: int) -> bytes:
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
            self._intake.retry_topic(group.name)
            changed = changed or group.fingerprint not in {0, heartbeat.fingerprint}
            group.fingerprint = heartbeat.fingerprint
            group.broadcasting = consumer.message_model in _BROADCASTING
            subscriptions = (
                None if version_2 and heartbeat.without_sub else map(_subscription, consumer.subscription_data_set)
            )
            channel.groups.add(group.name)
            if group.join(channel, heartbeat.client_id[:_MAX_CLIENT_ID], subscriptions):
                self._notify(group, now_ns)
        return answer(
            request, fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        )

    def unregister(self, channel: Channel, request: RemotingCommand, now_ns: int) -> bytes:
        """Take a client's leave of a group, code 35."""
        self._leave(channel, request.fields.get("consumerGroup", ""), now_ns)
        return answer(request)

    def forget(self, channel: Channel, now_ns: int) -> None:
        """Take a connection that is gone out of its groups."""
        for name in list(channel.groups):
            self._leave(channel, name, now_ns)

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

    def offset_at(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Answer with the offset of the first message stored at or after a time, code 29."""
        fields = request.fields
        queue = self._store.queue(text(fields, "topic"), number(fields, "queueId"))
        return _offset(request, self._store.offset_at(queue, number(fields, "timestamp")))

    def lock(self, _channel: Channel, request: RemotingCommand, now_ns: int) -> bytes:
        """Lock queues for a client that consumes in order, code 41; answers with those it holds."""
        locks, group = self._locks(request)
        expiry_ns = round(self._config.lock_expiry_s * _NS_PER_S)
        held = [
            queue
            for queue in locks.mq_set
            if group is not None
            and self._has(queue)
            and group.lock((queue.topic, queue.queue_id), locks.client_id, now_ns, expiry_ns)
        ]
        return answer(request, body=msgspec.json.encode(_Locked(held)))

    def unlock(self, _channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Release queues, code 42."""
        locks, group = self._locks(request)
        if group is not None:
            for queue in locks.mq_set:
                group.unlock((queue.topic, queue.queue_id), locks.client_id)
        return answer(request)

    def _locks(self, request: RemotingCommand) -> tuple[_Locks, Group[Channel] | None]:
        try:
            locks = _decode_locks(request.body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the locks cannot be read: {error}") from error
        return locks, self._groups.make(locks.consumer_group)

    def _has(self, queue: _MessageQueue) -> bool:
        topic = self._store.topics.get(queue.topic)
        return topic is not None and 0 <= queue.queue_id < topic.queue_count

    def _leave(self, channel: Channel, name: str, now_ns: int) -> None:
        group = self._groups.get(name)
        channel.groups.discard(name)
        if group is not None and group.leave(channel):
            self._notify(group, now_ns)

    def _notify(self, group: Group[Channel], now_ns: int) -> None:
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
            self._reply(member, encode(notice), now_ns)


def _subscription(data: _SubscriptionData) -> Subscription:
    try:
        version = int(data.sub_version)
    except ValueError:
        version = 0
    return Subscription(data.topic, data.sub_string, version, data.expression_type or "TAG")


def _offset(request: RemotingCommand, offset: int) -> bytes:
    return answer(request, fields={"offset": str(offset)})
