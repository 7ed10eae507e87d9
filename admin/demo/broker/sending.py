"""Requests that bring messages, and the properties that messages have."""

import struct
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from admin.demo.broker.channel import Channel, Refused, answer, number, text
from admin.demo.broker.store import DEFAULT_QUEUES, Message, Place, Store, Topic
from proxy.protocols.rocketmq.batch_body import decode_batch
from proxy.protocols.rocketmq.wire.codes import ProtocolError, RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand

#: The fields of a send that are read here: the letters of version 2, and what version 1 calls them.
_V1_NAMES: Final = {
    "b": "topic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "m": "batch",
}

#: The codes that ``Sending.send`` takes.
SEND_CODES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


def property_of(properties: str, name: str) -> str:
    """Return one property's value, or nothing; the last one wins, as in the clients."""
    pairs = (pair.partition("\x01") for pair in properties.split("\x02"))
    return {key: value for key, _, value in pairs}.get(name, "")


class Sending:
    """The handler of requests that bring messages."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, channel: Channel, request: RemotingCommand) -> bytes:
        """Take a send: codes 10, 310, 320, and the answers of request-reply, 324 and 325.

        Raises:
            Refused: the message is not legal.
        """
        fields: Mapping[str, str] = request.fields
        if "b" not in fields:
            fields = {letter: fields[name] for letter, name in _V1_NAMES.items() if name in fields}
        queue_count = max(1, min(number(fields, "d", 4), DEFAULT_QUEUES))
        topic = self._store.create_topic(text(fields, "b"), queue_count)
        queue_id = number(fields, "e", -1)
        if queue_id >= len(topic.queues):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"request queueId[{queue_id}] is illegal, topic {topic.name}")
        if queue_id < 0:
            queue_id = topic.stored % len(topic.queues)
        message = Message(
            topic=topic.name,
            queue_id=queue_id,
            body=request.body,
            properties=b"",
            flag=number(fields, "h", 0),
            sys_flag=number(fields, "f", 0),
            born_ms=number(fields, "g", 0),
            born_host=channel.born_host,
            reconsume_times=number(fields, "j", 0),
        )
        properties = fields.get("i", "")
        if fields.get("m", "").lower() == "true":
            places = self._put_batch(topic, message)
        else:
            places = [self._put(topic, message, properties)]
        if not places:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch holds no message")
        ids = [(self._store.store_host + place.physical_offset.to_bytes(8, "big")).hex().upper() for place in places]
        result = {
            "queueId": str(queue_id),
            "msgId": ",".join(ids),
            "TRACE_ON": "true",
            "MSG_REGION": "DefaultRegion",
            "queueOffset": str(places[0].queue_offset),
            "transactionId": property_of(properties, "UNIQ_KEY") or ids[0],
        }
        return answer(request, fields=result)

    def _put(self, topic: Topic, message: Message, properties: str) -> Place:
        """Store one message."""
        message.properties = properties.encode(errors="replace")
        try:
            return self._store.append(topic, message, property_of(properties, "TAGS"), time.time_ns() // 1_000_000)
        except struct.error as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message does not fit: {error}") from error

    def _put_batch(self, topic: Topic, message: Message) -> list[Place]:
        try:
            inner = list(decode_batch(message.body))
        except ProtocolError as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from error
        return [
            self._put(topic, msgspec.structs.replace(message, body=one.body, flag=one.flag), one.properties)
            for one in inner
        ]
