"""A scripted broker that acts one step at a time, and loses transient messages on request."""

import struct
from collections import deque
from dataclasses import dataclass, field

from . import frames
from .driver import BROKER, CLIENT, Driver


@dataclass(eq=False, slots=True)
class Stored:
    header: bytes
    body: bytes
    queue: str
    exchange: str
    redelivered: bool = False

    @property
    def is_durable(self) -> bool:
        return mode_of(self.header) == 2


def mode_of(header: bytes) -> int | None:
    (flags,) = struct.unpack_from(">H", header, 12)
    at = 14
    for bit in (15, 14):
        if flags >> bit & 1:
            at += 1 + header[at]
    if flags >> 13 & 1:
        at += 4 + struct.unpack_from(">I", header, at)[0]
    return header[at] if flags >> 12 & 1 else None


@dataclass(eq=False, slots=True)
class Confirm:
    """An unconfirmed publish. A durable one is confirmed once it is written."""

    tag: int
    message: Stored
    routed: bool


@dataclass(eq=False, slots=True)
class Channel:
    number: int
    confirms: bool = False
    published: int = 0
    unconfirmed: list[Confirm] = field(default_factory=list)
    delivered: int = 0
    unacked: dict[int, Stored] = field(default_factory=dict)
    consumers: dict[str, tuple[str, bool]] = field(default_factory=dict)


class ModelBroker:
    def __init__(
        self, queues: tuple[str, ...] = ("orders",), bindings: dict[str, tuple[str, ...]] | None = None
    ) -> None:
        self.queues: dict[str, deque[Stored]] = {queue: deque() for queue in queues}
        self.bindings = bindings or {}
        self.written: set[bytes] = set()
        self.acked: dict[bytes, set[str]] = {}
        self.errors: list[str] = []
        self.channels: dict[Driver, dict[int, Channel]] = {}
        self._closing: set[tuple[Driver, int]] = set()

    def serve(self, driver: Driver, *channels: int, confirms: bool = False) -> Driver:
        """Open a driver's connection, with some channels."""
        driver.open(channels, confirms=channels if confirms else ())
        self.channels[driver] = {number: Channel(number, confirms) for number in channels}
        return driver

    def receive(self) -> None:
        """Take everything written to the broker."""
        for driver in list(self.channels):
            data = bytes(driver.written[BROKER])
            del driver.written[BROKER][:]
            for message in frames.messages(data):
                self._take(driver, message)

    def _say(self, driver: Driver, data: bytes) -> None:
        driver.give(BROKER, data)

    def _take(self, driver: Driver, message: frames.Message) -> None:
        channels = self.channels.get(driver)
        if channels is None:
            return
        number, method, arguments = message.channel, message.method, message.arguments
        if method == (20, 10):
            channels[number] = Channel(number)
            return
        if (driver, number) in self._closing:
            # Nothing counts until the client has agreed.
            if method == (20, 41):
                self._closing.remove((driver, number))
            return
        if number and number not in channels:
            self.errors.append(f"{method} on channel {number}, which is not open")
            return
        if not number:
            return
        channel = channels[number]
        if method == (85, 10):
            channel.confirms = True
        elif method == (60, 40):
            assert message.header is not None
            exchange, at = _short(arguments, 2)
            key, at = _short(arguments, at)
            self._publish(driver, channel, exchange, key, arguments[at] & 1 == 1, message.header, message.body)
        elif method == (60, 20):
            queue, at = _short(arguments, 2)
            tag, at = _short(arguments, at)
            channel.consumers[tag] = (queue, arguments[at] & 2 != 0)
            self._say(driver, frames.consume_ok(number, tag))
        elif method == (60, 30):
            tag, _ = _short(arguments, 0)
            channel.consumers.pop(tag, None)
            self._say(driver, frames.cancel_ok(number, tag))
        elif method in {(60, 80), (60, 90), (60, 120)}:
            self._settle(driver, channel, method, arguments)
        elif method == (60, 110):
            self._requeue(channel, list(channel.unacked))
            self._say(driver, frames.method(number, 60, 111))
        elif method == (60, 70):
            queue, _ = _short(arguments, 2)
            self._get(driver, channel, queue)
        elif method == (20, 40):
            self._requeue(channel, list(channel.unacked))
            del channels[number]
            self._say(driver, frames.close_ok(number))

    def _publish(  # noqa: PLR0917 - what there is to a publish
        self,
        driver: Driver,
        channel: Channel,
        exchange: str,
        key: str,
        mandatory: bool,  # noqa: FBT001 - a bit of the method
        header: bytes,
        body: bytes,
    ) -> None:
        names = (key,) if not exchange else self.bindings.get(exchange, ())
        queues = [name for name in names if name in self.queues]
        for queue in queues:
            self.queues[queue].append(Stored(header, body, queue, exchange))
        if mandatory and not queues:
            arguments = struct.pack(">H", 312) + frames.short("NO_ROUTE") + frames.short(exchange) + frames.short(key)
            begin = frames.method(channel.number, 60, 50, arguments)
            self._say(driver, frames.with_header(channel.number, begin, header, body))
        if channel.confirms:
            channel.published += 1
            stored = Stored(header, body, key, exchange)
            channel.unconfirmed.append(Confirm(channel.published, stored, bool(queues)))

    def _settle(self, driver: Driver, channel: Channel, method: tuple[int, int], arguments: bytes) -> None:
        tag, bits = struct.unpack_from(">QB", arguments)
        multiple = method != (60, 90) and bits & 1
        tags = [each for each in channel.unacked if each == tag or (multiple and (not tag or each <= tag))]
        if tag not in channel.unacked and (tag or not multiple):
            self.errors.append(f"{tag} of channel {channel.number} is unknown")
            self.close_channel(driver, channel.number)
        elif method == (60, 80):
            for each in tags:
                message = channel.unacked.pop(each)
                self.acked.setdefault(message.body, set()).add(message.queue)
        elif bits & (1 if method == (60, 90) else 2):
            self._requeue(channel, tags)
        else:
            for each in tags:
                del channel.unacked[each]

    def _requeue(self, channel: Channel, tags: list[int]) -> None:
        for tag in reversed(tags):
            message = channel.unacked.pop(tag)
            message.redelivered = True
            self.queues[message.queue].appendleft(message)

    def confirm(
        self, driver: Driver, number: int, count: int = 1, *, multiple: bool = False, nack: bool = False
    ) -> None:
        """Confirm the first publishes of a channel. Durable ones are then on disk."""
        self.receive()
        channel = self.channels[driver][number]
        confirmed, channel.unconfirmed = channel.unconfirmed[:count], channel.unconfirmed[count:]
        make = frames.nack if nack else frames.ack
        for each in confirmed:
            if not nack and (each.message.is_durable or not each.routed):
                self.written.add(each.message.body)
        if confirmed and multiple:
            self._say(driver, make(number, confirmed[-1].tag, multiple=True))
        elif confirmed:
            self._say(driver, b"".join(make(number, each.tag) for each in confirmed))

    def confirm_one(self, driver: Driver, number: int, index: int, *, nack: bool = False) -> None:
        self.receive()
        channel = self.channels[driver][number]
        each = channel.unconfirmed.pop(index)
        if not nack and (each.message.is_durable or not each.routed):
            self.written.add(each.message.body)
        self._say(driver, (frames.nack if nack else frames.ack)(number, each.tag))

    def deliver(self, driver: Driver, number: int, consumer: str) -> bool:
        """Give a consumer the next message of its queue, if any."""
        self.receive()
        channel = self.channels[driver][number]
        queue, automatic = channel.consumers[consumer]
        if not self.queues[queue]:
            return False
        message = self.queues[queue].popleft()
        channel.delivered += 1
        if not automatic:
            channel.unacked[channel.delivered] = message
        arguments = frames.short(consumer) + struct.pack(">QB", channel.delivered, message.redelivered)
        arguments += frames.short(message.exchange) + frames.short(queue)
        begin = frames.method(number, 60, 60, arguments)
        self._say(driver, frames.with_header(number, begin, message.header, message.body))
        return True

    def _get(self, driver: Driver, channel: Channel, queue: str) -> None:
        message = self.queues[queue].popleft()
        channel.delivered += 1
        channel.unacked[channel.delivered] = message
        arguments = struct.pack(">QB", channel.delivered, message.redelivered)
        arguments += frames.short(message.exchange) + frames.short(queue) + bytes(4)
        begin = frames.method(channel.number, 60, 71, arguments)
        self._say(driver, frames.with_header(channel.number, begin, message.header, message.body))

    def lose(self, driver: Driver) -> None:
        self.receive()
        for channel in self.channels.pop(driver).values():
            self._requeue(channel, list(channel.unacked))
        driver.session.end(CLIENT, driver.now_ns)
        driver.session.close()

    def close_channel(self, driver: Driver, number: int) -> None:
        self.receive()
        channel = self.channels[driver].pop(number)
        self._closing.add((driver, number))
        self._requeue(channel, list(channel.unacked))
        self._say(driver, frames.close(number, 406, "PRECONDITION_FAILED"))


def _short(data: bytes, at: int) -> tuple[str, int]:
    stop = at + 1 + data[at]
    return data[at + 1 : stop].decode(), stop
