"""Requests that bring messages, and the properties that messages have."""

import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from admin.demo.broker.channel import Channel, Refused, answer, number, text, truth
from admin.demo.broker.store import MAX_PROPERTIES_BYTES, TEMPLATE_TOPIC, LoopbackConfig, Message, Store, Stored, Topic
from proxy.protocols.rocketmq.batch_body import decode_batch
from proxy.protocols.rocketmq.wire.codes import ProtocolError, RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

#: The largest body that a real broker takes by default.
MAX_BODY_BYTES: Final = 4 << 20
_REGION: Final = "DefaultRegion"
_NAME_END: Final = "\x01"
_VALUE_END: Final = "\x02"


def property_of(properties: str, name: str) -> str | None:
    """Return one property's value; the last one wins, as in the clients."""
    start = properties.rfind(f"{_VALUE_END}{name}{_NAME_END}")
    if start >= 0:
        start += len(name) + 2
    elif properties.startswith(name + _NAME_END):
        start = len(name) + 1
    else:
        return None
    end = properties.find(_VALUE_END, start)
    return properties[start:] if end < 0 else properties[start:end]


def with_property(properties: str, name: str, value: str) -> str:
    """Return the properties with one more; an earlier value of the same name is taken out."""
    if property_of(properties, name) is not None:
        pairs = [pair for pair in properties.split(_VALUE_END) if pair and not pair.startswith(name + _NAME_END)]
        properties = "".join(pair + _VALUE_END for pair in pairs)
    elif properties and not properties.endswith(_VALUE_END):
        properties += _VALUE_END
    return f"{properties}{name}{_NAME_END}{value}{_VALUE_END}"


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
    "batch",
)
_V2: Final = _Names("b", "d", "e", "f", "g", "h", "i", "j", "m")
_V1_CODES: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)


class Sending:
    """The handler of requests that bring messages.

    Args:
        wall_ms: Unix milliseconds, for when messages are stored.
        arrived: told of every queue that got a message.
    """

    def __init__(
        self, config: LoopbackConfig, store: Store, wall_ms: Callable[[], int], arrived: Callable[[str, int], None]
    ) -> None:
        self._config = config
        self._store = store
        self._wall_ms = wall_ms
        self._arrived = arrived
        self._unique = os.urandom(10).hex().upper()
        self._made = 0
        self._stamps = {"MSG_REGION": _REGION, "TRACE_ON": "true", "CLUSTER": config.cluster}
        self._stamp = "".join(f"{name}\x01{value}\x02" for name, value in self._stamps.items())

    def send(self, channel: Channel, request: RemotingCommand, _now_ns: int) -> bytes:
        """Take a send: codes 10, 310, 320, and the answers of request-reply, 324 and 325.

        Raises:
            Refused: the message is not legal.
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
        unique_key = property_of(properties, "UNIQ_KEY")
        if truth(fields, names.batch):
            places = self._put_batch(topic, message)
        else:
            if not unique_key:
                unique_key = self._unique_key()
                properties = with_property(properties, "UNIQ_KEY", unique_key)
            places = [self._put(topic, message, self._stamped(properties))]
        if not places:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch holds no message")
        result = {
            "queueId": str(message.queue_id),
            "msgId": ",".join(self._message_id(place.physical_offset) for place in places),
            "TRACE_ON": "true",
            "MSG_REGION": _REGION,
            "queueOffset": str(places[0].queue_offset),
        }
        if unique_key:
            result["transactionId"] = unique_key
        return answer(request, fields=result)

    def _topic(self, name: str, wanted_queues: int) -> Topic:
        topic = self._store.topics.get(name)
        if topic is not None:
            if name == TEMPLATE_TOPIC:
                raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] is only a template")
            return topic
        return self._store.create_topic(name, max(1, min(wanted_queues, self._config.default_queues)))

    def _stamped(self, properties: str) -> str:
        """Add what a broker adds to every single message."""
        missing = [name for name in self._stamps if f"{name}\x01" not in properties]
        if len(missing) == len(self._stamps) and (not properties or properties[-1] == "\x02"):
            return properties + self._stamp
        for name in missing:
            properties = with_property(properties, name, self._stamps[name])
        return properties

    def _unique_key(self) -> str:
        """Return a UNIQ_KEY for a message whose client gave it none: 32 hexadecimal digits."""
        self._made += 1
        return f"{self._unique}{self._made & 0xFFFF_FFFF_FFFF:012X}"

    def _put(self, topic: Topic, message: Message, properties: str) -> Stored:
        """Store one message."""
        message.properties = properties.encode(errors="replace")
        if len(message.properties) > MAX_PROPERTIES_BYTES:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the properties are longer than {MAX_PROPERTIES_BYTES} bytes")
        stored = self._store.append(topic, message, property_of(properties, "TAGS") or "", self._wall_ms())
        self._arrived(topic.name, message.queue_id)
        return stored

    def _put_batch(self, topic: Topic, message: Message) -> list[Stored]:
        try:
            inner = list(decode_batch(message.body))
        except ProtocolError as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from error
        return [
            self._put(topic, msgspec.structs.replace(message, body=one.body, flag=one.flag), one.properties)
            for one in inner
        ]

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
