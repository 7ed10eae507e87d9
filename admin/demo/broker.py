"""An embedded RocketMQ broker and name server for the demo and fast tests. Not for production.

Unmodified Java, C++/Python and Node.js producers can send to it. It only counts messages.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
import trio

from admin.config.addresses import Endpoint
from proxy.protocols.rocketmq.batch_body import BatchMessage, decode_batch
from proxy.protocols.rocketmq.wire.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    MAX_FRAME_BYTES,
    MIN_LENGTH,
    PREFIX_BYTES,
    ProtocolError,
    RemoteProtocolError,
    RequestCode,
    ResponseCode,
)
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

_HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 64 << 10
_TICK_S: Final = 0.1
#: RocketMQ 5.5.0.
VERSION: Final = 513
LANGUAGE: Final = "JAVA"
#: Producers request this topic's route before they send to a new topic.
TEMPLATE_TOPIC: Final = "TBW102"
DEFAULT_QUEUES: Final = 8
_LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_MAX_REMARK: Final = 500
#: RocketMQ 4.9.4. Older clients need unquoted numeric keys in JSON.
_STANDARD_JSON_VERSION: Final = 401
_BROKER_NAME: Final = "loopback"
_READ_AND_WRITE: Final = 6
_INHERITED: Final = 7
#: Maps the field names of SEND_MESSAGE to those of SEND_MESSAGE_V2.
_SHORT_NAMES: Final = {
    "topic": "b",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "batch": "m",
}
_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


class Refused(Exception):  # noqa: N818 - a response, not an internal failure
    """Raised by a handler to send an error response."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code, self.remark = code, remark


class Channel:
    """A client's connection, without its socket. ``wake`` is set when responses are waiting to be sent."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.wake = trio.Event()
        self._outbox: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self.wake.set()

    def take(self) -> bytes:
        waiting, self._outbox = self._outbox, []
        return b"".join(waiting)


class Topic:
    def __init__(self, name: str, queues: int) -> None:
        self.name = name
        self.offsets = [0] * queues
        self.stored = 0


Handler = Callable[[Channel, RemotingCommand], bytes | None]
"""Returns the response to a request, or None to respond later. May raise Refused."""


class Broker:
    """A name server and broker without sockets. ``advertised`` is the ``host:port`` to which routes send clients."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.advertised = ""
        self.handlers: dict[int, Handler] = {
            **dict.fromkeys(_SENDS, self._send),
            RequestCode.HEART_BEAT: lambda _, request: answer(request),
            RequestCode.UNREGISTER_CLIENT: lambda _, request: answer(request),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
        }
        self._bytes = 0
        self.create_topic(TEMPLATE_TOPIC, DEFAULT_QUEUES)

    def receive(self, channel: Channel, data: bytearray) -> None:
        """Remove complete requests from ``data`` and execute them.

        Raises:
            RemoteProtocolError: The data is invalid. The connection must be closed.
        """
        for request in cut(data):
            if request.flag & FLAG_RESPONSE:
                continue
            try:
                frame = self.handlers.get(request.code, _not_supported)(channel, request)
            except Refused as refused:
                frame = answer(request, refused.code, refused.remark)
            if frame is not None and not request.flag & FLAG_ONEWAY:
                channel.send(frame)

    def tick(self, now_s: float) -> None:
        """Hook for subclasses, called a few times a second."""

    def disconnected(self, channel: Channel) -> None:
        """Hook for subclasses, called when a client disconnects."""

    def create_topic(self, name: str, queues: int = 4) -> Topic:
        """Return the topic with this name. Create it if it does not exist. Raises Refused if the name is illegal."""
        if not _LEGAL_NAME.fullmatch(name):
            raise Refused(ResponseCode.SYSTEM_ERROR, "a topic name must be 1 to 127 characters of A-Z a-z 0-9 % | - _")
        return self.topics.setdefault(name, Topic(name, queues))

    def stored(self, topic: str) -> int:
        found = self.topics.get(topic)
        return found.stored if found else 0

    def keep(
        self, channel: Channel, topic: Topic, queue_id: int, message: BatchMessage, fields: Mapping[str, str]
    ) -> str:
        """Count a message and return its id. The keys of ``fields`` are those of SEND_MESSAGE_V2."""
        del channel, fields
        host, _, port = self.advertised.rpartition(":")
        message_id = pack_host(host, int(port)) + self._bytes.to_bytes(8, "big")
        topic.offsets[queue_id] += 1
        topic.stored += 1
        self._bytes += len(message.body) + 1
        return message_id.hex().upper()

    def _send(self, channel: Channel, request: RemotingCommand) -> bytes:
        fields: Mapping[str, str] = request.fields
        if "b" not in fields:
            fields = {short: fields[name] for name, short in _SHORT_NAMES.items() if name in fields}
        topic = self.create_topic(text(fields, "b"), max(1, min(number(fields, "d", 4), DEFAULT_QUEUES)))
        queue_id = number(fields, "e", -1)
        if queue_id >= len(topic.offsets):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"request queueId[{queue_id}] is illegal, topic {topic.name}")
        if queue_id < 0:
            queue_id = topic.stored % len(topic.offsets)
        messages = [BatchMessage(request.body, fields.get("i", ""), number(fields, "h", 0))]
        if fields.get("m", "").lower() == "true":
            try:
                messages = list(decode_batch(request.body))
            except ProtocolError as error:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"invalid batch: {error}") from error
            if not messages:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        offset = topic.offsets[queue_id]
        ids = [self.keep(channel, topic, queue_id, message, fields) for message in messages]
        return answer(
            request,
            fields={
                "queueId": str(queue_id),
                "msgId": ",".join(ids),
                "TRACE_ON": "true",
                "MSG_REGION": "DefaultRegion",
                "queueOffset": str(offset),
                "transactionId": property_of(fields.get("i", ""), "UNIQ_KEY") or ids[0],
            },
        )

    def _route(self, _channel: Channel, request: RemotingCommand) -> bytes:
        name = text(request.fields, "topic")
        topic = self.topics.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {name}")
        broker = {
            "brokerAddrs": {"0": self.advertised},
            "brokerName": _BROKER_NAME,
            "cluster": "DefaultCluster",
            "enableActingMaster": False,
        }
        queues = {
            "brokerName": _BROKER_NAME,
            "perm": _INHERITED if name == TEMPLATE_TOPIC else _READ_AND_WRITE,
            "readQueueNums": len(topic.offsets),
            "topicSysFlag": 0,
            "writeQueueNums": len(topic.offsets),
        }
        body = msgspec.json.encode({"brokerDatas": [broker], "filterServerTable": {}, "queueDatas": [queues]})
        asked = request.fields.get("acceptStandardJsonOnly", "").lower() == "true"
        standard_json = asked or request.version >= _STANDARD_JSON_VERSION
        return answer(request, body=body if standard_json else body.replace(b'{"0":', b"{0:"))


class Loopback:
    """Serves a broker over TCP. Its addresses have the form ``host:port``."""

    def __init__(self, broker: Broker, broker_address: str, name_server_address: str) -> None:
        self.broker = broker
        self.broker_address = broker.advertised = broker_address
        self.name_server_address = name_server_address

    async def serve_stream(self, stream: trio.SocketStream) -> None:
        try:
            channel = Channel(*stream.socket.getpeername())
        except OSError:
            return
        writing = trio.Lock()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write, channel, stream, writing)
                data = bytearray()
                try:
                    async for chunk in stream:
                        data += chunk
                        self.broker.receive(channel, data)
                        # Do not read from a client that does not read its responses.
                        await _flush(channel, stream, writing)
                except RemoteProtocolError:
                    await _flush(channel, stream, writing)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.broker.disconnected(channel)


async def serve_broker(
    broker_port: int = 0,
    name_server_port: int = 0,
    broker: Broker | None = None,
    *,
    task_status: trio.TaskStatus[Loopback] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the embedded broker and name server on 127.0.0.1 until cancelled. Port 0 means any free port.

    Raises:
        OSError: A port is already in use.
    """
    listeners = [
        *await trio.open_tcp_listeners(broker_port, host=_HOST),
        *await trio.open_tcp_listeners(name_server_port, host=_HOST),
    ]
    addresses = (str(Endpoint(*listener.socket.getsockname())) for listener in listeners)
    loopback = Loopback(broker or Broker(), *addresses)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, loopback.serve_stream, listeners)
        task_status.started(loopback)
        while True:
            await trio.sleep(_TICK_S)
            loopback.broker.tick(trio.current_time())


async def _write(channel: Channel, stream: trio.SocketStream, writing: trio.Lock) -> None:
    while True:
        await channel.wake.wait()
        channel.wake = trio.Event()
        await _flush(channel, stream, writing)


async def _flush(channel: Channel, stream: trio.SocketStream, writing: trio.Lock) -> None:
    async with writing:
        if waiting := channel.take():
            await stream.send_all(waiting)


def cut(data: bytearray) -> Iterator[RemotingCommand]:
    """Remove all complete frames from ``data``, and decode and yield them. Raises RemoteProtocolError."""
    at = 0
    try:
        while len(data) - at >= PREFIX_BYTES:
            length = int.from_bytes(data[at : at + 4], "big")
            if not MIN_LENGTH <= length <= MAX_FRAME_BYTES - 4:
                raise RemoteProtocolError("bad_frame", f"invalid frame length: {length} bytes")
            end = at + 4 + length
            if end > len(data):
                break
            frame, at = bytes(data[at:end]), end
            yield decode(frame)
    finally:
        del data[:at]


def answer(
    request: RemotingCommand,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """Encode a response with a JSON header, as a real broker does."""
    return encode(
        RemotingCommand(
            code=code,
            language=LANGUAGE,
            version=VERSION,
            opaque=request.opaque,
            flag=FLAG_RESPONSE,
            remark=remark and remark[:_MAX_REMARK],
            fields=fields or {},
            body=body,
        )
    )


def text(fields: Mapping[str, str], name: str) -> str:
    """Return a field. Raises Refused if it is missing."""
    value = fields.get(name)
    if value is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is missing")
    return value


def number(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = fields.get(name) or (text(fields, name) if default is None else str(default))
    try:
        return int(value)
    except ValueError:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is not a number: {value[:40]}") from None


def property_of(properties: str, name: str) -> str:
    """Return a message property. If it occurs more than once, the last one wins, as in RocketMQ's clients."""
    pairs = (pair.partition("\x01") for pair in properties.split("\x02"))
    return {key: value for key, _, value in pairs}.get(name, "")


def pack_host(host: str, port: int) -> bytes:
    return socket.inet_aton(host) + port.to_bytes(4, "big")


def _not_supported(_channel: Channel, request: RemotingCommand) -> bytes:
    remark = f" request type {request.code} not supported by the embedded broker"
    return answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
