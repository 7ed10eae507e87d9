"""Requests that bring messages: sends of every kind, send-backs, and the end of a transaction."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from proxy.loopback.channel import Channel, Refused, answer, number, text, truth
from proxy.loopback.config import LoopbackConfig
from proxy.loopback.groups import Groups
from proxy.loopback.intake import DLQ_PREFIX, REGION, Intake, delay_level, property_of, with_property
from proxy.loopback.records import (
    MAX_PROPERTIES_BYTES,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    Message,
    decode_record,
)
from proxy.loopback.store import TEMPLATE_TOPIC, Store, Topic
from proxy.protocols.rocketmq.batch_body import decode_batch
from proxy.protocols.rocketmq.codes import RETRY_PREFIX, RequestCode, ResponseCode
from proxy.protocols.rocketmq.command import RemotingCommand
from proxy.protocols.rocketmq.errors import ProtocolError

#: The largest body that a real broker takes by default.
MAX_BODY_BYTES: Final = 4 << 20
#: A send-back that names no level waits for this one and the number of earlier redeliveries more.
FIRST_RETRY_LEVEL: Final = 3


class _Names(NamedTuple):
    """What the fields of a send are called."""

    topic: str
    default_queues: str
    queue_id: str
    sys_flag: str
    born: str
    flag: str
    properties: str
    reconsume_times: str
    max_reconsume_times: str
    batch: str


_V1: Final = _Names(
    "topic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "maxReconsumeTimes",
    "batch",
)
_V2: Final = _Names("b", "d", "e", "f", "g", "h", "i", "j", "l", "m")
_V1_CODES: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)


class _Place(NamedTuple):
    """Where a message went, as the answer to its send says."""

    physical_offset: int
    queue_offset: int


class Sending:
    """The handlers of requests that bring messages."""

    def __init__(self, config: LoopbackConfig, store: Store, groups: Groups[Channel], intake: Intake) -> None:
        self._config = config
        self._store = store
        self._groups = groups
        self._intake = intake
        self._stamps = {"MSG_REGION": REGION, "TRACE_ON": "true", "CLUSTER": config.cluster}
        self._stamp = "".join(f"{name}\x01{value}\x02" for name, value in self._stamps.items())
        self._prepared: OrderedDict[int, tuple[Topic, Message, str]] = OrderedDict()

    def send(self, channel: Channel, request: RemotingCommand, now_ns: int) -> bytes:
        """Take a send: codes 10, 310, 320, and the answers of request-reply, 324 and 325.

        Raises:
            Refused: the topic does not exist and is not made, or the message is not legal.
        """
        fields = request.fields
        names = _V1 if request.code in _V1_CODES or _V2.topic not in fields else _V2
        topic = self._topic(text(fields, names.topic), number(fields, names.default_queues, 4))
        queue_id = number(fields, names.queue_id, -1)
        if queue_id >= topic.queue_count:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"request queueId[{queue_id}] is illegal, topic {topic.name}")
        if queue_id < 0:
            queue_id = topic.stored % topic.queue_count
        if len(request.body) > MAX_BODY_BYTES:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is larger than {MAX_BODY_BYTES} bytes")
        properties = fields.get(names.properties, "")
        message = Message(
            topic=topic.name,
            queue_id=queue_id,
            body=request.body,
            properties=b"",
            flag=_i32(fields, names.flag),
            sys_flag=_i32(fields, names.sys_flag),
            born_ms=number(fields, names.born, 0),
            born_host=channel.born_host,
            reconsume_times=_i32(fields, names.reconsume_times),
        )
        if topic.name.startswith(RETRY_PREFIX):
            topic, message = self._for_retry(topic, message, fields, names.max_reconsume_times, now_ns)
        unique_key = property_of(properties, "UNIQ_KEY")
        if truth(fields, names.batch):
            places = self._put_batch(topic, message)
        else:
            if not unique_key:
                unique_key = self._intake.unique_key()
                properties = with_property(properties, "UNIQ_KEY", unique_key)
            places = [self._put(topic, message, self._stamped(properties), now_ns)]
        if not places:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch holds no message")
        result = {
            "queueId": str(message.queue_id),
            "msgId": ",".join(self._message_id(place.physical_offset) for place in places),
            "TRACE_ON": "true",
            "MSG_REGION": REGION,
            "queueOffset": str(places[0].queue_offset),
        }
        if unique_key:
            result["transactionId"] = unique_key
        return answer(request, fields=result)

    def send_back(self, _channel: Channel, request: RemotingCommand, now_ns: int) -> bytes:
        """Take a consumer's send-back, code 36: the message comes again later, or goes to the dead letters.

        Raises:
            Refused: the message is no longer stored, or too much waits already.
        """
        fields = request.fields
        group = text(fields, "group")
        if self._groups.make(group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}")
        offset = number(fields, "offset")
        stored = self._store.at(offset)
        if stored is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        message = decode_record(stored.record).message
        properties = message.properties.decode()
        if property_of(properties, "RETRY_TOPIC") is None:
            properties = with_property(properties, "RETRY_TOPIC", message.topic)
        if property_of(properties, "ORIGIN_MESSAGE_ID") is None:
            properties = with_property(properties, "ORIGIN_MESSAGE_ID", self._message_id(offset))
        properties = with_property(properties, "WAIT", "false")
        level = number(fields, "delayLevel", 0)
        done = message.reconsume_times
        dead = level < 0 or done >= number(fields, "maxReconsumeTimes", self._config.max_reconsume_times)
        topic = self._intake.dead_letters(group) if dead else self._intake.retry_topic(group)
        message = msgspec.structs.replace(message, topic=topic.name, queue_id=0, reconsume_times=done + 1)
        if not dead:
            properties = with_property(properties, "DELAY", str(level or FIRST_RETRY_LEVEL + done))
        self._put(topic, message, properties, now_ns)
        return answer(request)

    def end_transaction(self, _channel: Channel, request: RemotingCommand, now_ns: int) -> bytes:
        """Take the end of a transaction, code 37: a commit makes the prepared message visible."""
        fields = request.fields
        prepared = self._prepared.get(number(fields, "commitLogOffset"))
        verdict = number(fields, "commitOrRollback", 0) & TRANSACTION_MASK
        if verdict == 0:
            return answer(request)
        if prepared is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "no such prepared message: it has ended, or was forgotten")
        del self._prepared[number(fields, "commitLogOffset")]
        if verdict == TRANSACTION_COMMIT:
            topic, message, properties = prepared
            message = msgspec.structs.replace(message, sys_flag=message.sys_flag | TRANSACTION_COMMIT)
            self._put(topic, message, properties, now_ns)
        return answer(request)

    def _topic(self, name: str, wanted_queues: int) -> Topic:
        topic = self._store.topics.get(name)
        if topic is not None:
            if name == TEMPLATE_TOPIC:
                raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] is only a template")
            return topic
        if name.startswith(RETRY_PREFIX):
            return self._intake.retry_topic(name.removeprefix(RETRY_PREFIX))
        if not self._config.auto_create_topics:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        return self._store.create_topic(name, max(1, min(wanted_queues, self._config.default_queues)))

    def _for_retry(
        self, topic: Topic, message: Message, fields: Mapping[str, str], max_name: str, now_ns: int
    ) -> tuple[Topic, Message]:
        """Send what was redelivered too often, or what is consumed in order, to the dead letters instead."""
        name = topic.name.removeprefix(RETRY_PREFIX)
        group = self._groups.make(name)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        most = number(fields, max_name, self._config.max_reconsume_times)
        if message.reconsume_times > most or group.has_locks(now_ns):
            topic = self._intake.dead_letters(name)
            message = msgspec.structs.replace(message, topic=topic.name, queue_id=0)
        return topic, message

    def _stamped(self, properties: str) -> str:
        """Add what a broker adds to every single message."""
        missing = [name for name in self._stamps if f"{name}\x01" not in properties]
        if len(missing) == len(self._stamps) and (not properties or properties[-1] == "\x02"):
            return properties + self._stamp
        for name in missing:
            properties = with_property(properties, name, self._stamps[name])
        return properties

    def _put(self, topic: Topic, message: Message, properties: str, now_ns: int) -> _Place:
        """Store one message now or later, or keep it as prepared."""
        encoded = properties.encode(errors="replace")
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the properties are longer than {MAX_PROPERTIES_BYTES} bytes")
        message.properties = encoded
        if message.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED:
            return self._prepare(topic, message, properties)
        level = delay_level(properties)
        if level and not topic.name.startswith(DLQ_PREFIX):
            return _Place(self._intake.put_later(topic, message, properties, level, now_ns), 0)
        stored = self._intake.put(topic, message, property_of(properties, "TAGS") or "")
        return _Place(stored.physical_offset, stored.queue_offset)

    def _prepare(self, topic: Topic, message: Message, properties: str) -> _Place:
        message.sys_flag &= ~TRANSACTION_MASK
        offset = self._store.reserve(1)
        self._prepared[offset] = (topic, message, properties)
        if len(self._prepared) > self._config.max_prepared:
            self._prepared.popitem(last=False)
        return _Place(offset, 0)

    def _put_batch(self, topic: Topic, message: Message) -> list[_Place]:
        try:
            inner = list(decode_batch(message.body))
        except ProtocolError as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from error
        places = []
        for one in inner:
            tag = property_of(one.properties, "TAGS") or ""
            single = msgspec.structs.replace(
                message, body=one.body, flag=one.flag, properties=one.properties.encode(errors="replace")
            )
            stored = self._intake.put(topic, single, tag)
            places.append(_Place(stored.physical_offset, stored.queue_offset))
        return places

    def _message_id(self, physical_offset: int) -> str:
        return (self._store.store_host + physical_offset.to_bytes(8, "big")).hex().upper()


def _i32(fields: Mapping[str, str], name: str) -> int:
    value = number(fields, name, 0)
    if not -(1 << 31) <= value < 1 << 31:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is no number of 32 bits: {value}")
    return value


#: The codes that ``Sending.send`` takes.
SEND_CODES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
