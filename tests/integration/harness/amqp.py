"""A raw AMQP 0.9.1 client: one connection, and any frames in any order."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME, HEADER_FRAME, BODY_FRAME, HEARTBEAT_FRAME = 1, 2, 3, 8
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_TIMEOUT_S: Final = 60.0
_CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "authentication_failure_close",
)

# Names and types of arguments: octet, short, long, Long (64 bits), short string, Long string, table, bit.
_LAYOUTS: Final = """
connection.start 10 10 version_major:o version_minor:o server_properties:t mechanisms:S locales:S
connection.start-ok 10 11 client_properties:t mechanism:s response:S locale:s
connection.tune 10 30 channel_max:h frame_max:l heartbeat:h
connection.tune-ok 10 31 channel_max:h frame_max:l heartbeat:h
connection.open 10 40 virtual_host:s reserved_1:s reserved_2:b
connection.open-ok 10 41 reserved_1:s
connection.close 10 50 reply_code:h reply_text:s class_id:h method_id:h
connection.close-ok 10 51
connection.blocked 10 60 reason:s
connection.unblocked 10 61
channel.open 20 10 reserved_1:s
channel.open-ok 20 11 reserved_1:S
channel.flow 20 20 active:b
channel.flow-ok 20 21 active:b
channel.close 20 40 reply_code:h reply_text:s class_id:h method_id:h
channel.close-ok 20 41
exchange.declare 40 10 ticket:h exchange:s type:s passive:b durable:b auto_delete:b internal:b nowait:b arguments:t
exchange.declare-ok 40 11
exchange.delete 40 20 ticket:h exchange:s if_unused:b nowait:b
exchange.delete-ok 40 21
queue.declare 50 10 ticket:h queue:s passive:b durable:b exclusive:b auto_delete:b nowait:b arguments:t
queue.declare-ok 50 11 queue:s message_count:l consumer_count:l
queue.bind 50 20 ticket:h queue:s exchange:s routing_key:s nowait:b arguments:t
queue.bind-ok 50 21
queue.purge 50 30 ticket:h queue:s nowait:b
queue.purge-ok 50 31 message_count:l
queue.delete 50 40 ticket:h queue:s if_unused:b if_empty:b nowait:b
queue.delete-ok 50 41 message_count:l
basic.qos 60 10 prefetch_size:l prefetch_count:h global_:b
basic.qos-ok 60 11
basic.consume 60 20 ticket:h queue:s consumer_tag:s no_local:b no_ack:b exclusive:b nowait:b arguments:t
basic.consume-ok 60 21 consumer_tag:s
basic.cancel 60 30 consumer_tag:s nowait:b
basic.cancel-ok 60 31 consumer_tag:s
basic.publish 60 40 ticket:h exchange:s routing_key:s mandatory:b immediate:b
basic.return 60 50 reply_code:h reply_text:s exchange:s routing_key:s
basic.deliver 60 60 consumer_tag:s delivery_tag:L redelivered:b exchange:s routing_key:s
basic.get 60 70 ticket:h queue:s no_ack:b
basic.get-ok 60 71 delivery_tag:L redelivered:b exchange:s routing_key:s message_count:l
basic.get-empty 60 72 reserved_1:s
basic.ack 60 80 delivery_tag:L multiple:b
basic.reject 60 90 delivery_tag:L requeue:b
basic.recover 60 110 requeue:b
basic.recover-ok 60 111
basic.nack 60 120 delivery_tag:L multiple:b requeue:b
confirm.select 85 10 nowait:b
confirm.select-ok 85 11
tx.select 90 10
tx.select-ok 90 11
tx.commit 90 20
tx.commit-ok 90 21
tx.rollback 90 30
tx.rollback-ok 90 31
"""


@dataclass(frozen=True)
class _Layout:
    name: str
    numbers: tuple[int, int]
    arguments: tuple[tuple[str, str], ...]


def _read_layouts() -> dict[str, _Layout]:
    layouts = {}
    for line in _LAYOUTS.split("\n"):
        if line:
            name, class_id, method_id, *arguments = line.split()
            pairs = tuple((argument[:-2], argument[-1]) for argument in arguments)
            layouts[name] = _Layout(name, (int(class_id), int(method_id)), pairs)
    return layouts


_BY_NAME: Final = _read_layouts()
_BY_NUMBERS: Final = {layout.numbers: layout for layout in _BY_NAME.values()}
_WITH_CONTENT: Final = frozenset({"basic.return", "basic.deliver", "basic.get-ok"})
_NUMBERS: Final = {"o": ">B", "h": ">H", "l": ">I", "L": ">Q"}
# From the highest flag of a content header down. Properties that the tests do not set have no encoder.
_PROPERTIES: Final = (
    *(("content_type", "s"), ("content_encoding", "s"), ("headers", "t"), ("delivery_mode", "o"), ("priority", "o")),
    *(("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s"), ("message_id", "s"), ("timestamp", "L")),
    *(("type", "s"), ("user_id", "s"), ("app_id", "s"), ("cluster_id", "s")),
)


class AmqpError(RuntimeError):
    """The peer ended the connection, or an awaited method did not come. Shows the last methods."""


@dataclass(frozen=True)
class Event:
    """A method from the peer, with its content if it has one."""

    name: str
    channel: int
    arguments: Mapping[str, Any]
    properties: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""
    at_s: float = 0.0
    header: bytes = b""

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, name: str, **arguments: Any) -> bytes:
    """Return the frame of a method. Omitted arguments are 0, empty or false."""
    layout = _BY_NAME[name]
    if unknown := arguments.keys() - {argument for argument, _ in layout.arguments}:
        raise TypeError(f"{name} has no {unknown}")
    parts = [struct.pack(">HH", *layout.numbers)]
    bits: list[bool] = []
    for argument, kind in layout.arguments:
        if kind == "b":
            bits.append(bool(arguments.get(argument)))
            continue
        parts += [_packed_bits(bits), _encoded(kind, arguments.get(argument))]
        bits = []
    parts.append(_packed_bits(bits))
    return frame(METHOD_FRAME, channel, b"".join(parts))


def content(channel: int, body: bytes, *, frame_max: int = 131_072, **properties: Any) -> bytes:
    """Return the frames of a content: its header, and its body in as few frames as fit."""
    flags, values = 0, []
    for place, (name, kind) in enumerate(_PROPERTIES):
        if name in properties:
            flags |= 1 << 15 - place
            values.append(_encoded(kind, properties[name]))
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + b"".join(values)
    most = frame_max - 8
    return frame(HEADER_FRAME, channel, header) + b"".join(
        frame(BODY_FRAME, channel, body[at : at + most]) for at in range(0, len(body), most)
    )


def publish(
    channel: int,
    routing_key: str | bytes,
    body: bytes = b"",
    *,
    exchange: str = "",
    mandatory: bool = False,
    **properties: Any,
) -> bytes:
    """Return the frames of a publish, by default to the default exchange."""
    sent = method(channel, "basic.publish", exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    return sent + content(channel, body, **properties)


def split_frames(data: bytes) -> list[bytes]:
    frames, at = [], 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        frames.append(data[at:end])
        at = end
    return frames


@dataclass
class Confirmed:
    """Answered publishes of a confirm channel, by number from 1."""

    acked: list[int] = field(default_factory=list)
    nacked: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    _open: dict[int, None] = field(default_factory=dict)

    def sent(self, number: int) -> None:
        self._open[number] = None

    def answered(self, event: Event) -> None:
        tag = event["delivery_tag"]
        numbers = [tag]
        if event["multiple"]:
            numbers = []
            for number in self._open:  # in the order of publishing
                if tag and number > tag:
                    break
                numbers.append(number)
        elif tag not in self._open:
            self.again.append(tag)
            return
        (self.acked if event.name == "basic.ack" else self.nacked).extend(numbers)
        for number in numbers:
            del self._open[number]

    @property
    def outstanding(self) -> int:
        return len(self._open)


class AmqpClient:
    def __init__(
        self,
        address: str,
        *,
        vhost: str = "/",
        user: str = "guest",
        heartbeat_s: int = 0,
        frame_max: int = 131_072,
        capabilities: Iterable[str] = _CAPABILITIES,
        beating: bool = True,
        source: str = "",
    ) -> None:
        host, _, port = address.rpartition(":")
        is_ipv6 = host.startswith("[")
        self.confirmed: dict[int, Confirmed] = {}
        self._frame_max = frame_max
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._history: list[Event] = []
        self._heartbeats = 0
        self._ended: str | None = None
        self._over = threading.Event()
        self._unpaused = threading.Event()
        self._unpaused.set()
        self._writing = threading.Lock()
        self._next_channel = 1
        self._published: dict[int, int] = {}
        self._socket = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
        try:
            self._socket.settimeout(_TIMEOUT_S)
            if source:
                self._socket.bind((source, 0))
            self._socket.connect((host.strip("[]"), int(port)))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            self._shake_hands(vhost, user, heartbeat_s, list(capabilities))
            if heartbeat_s and beating:
                threading.Thread(target=self._beat, args=(heartbeat_s / 2,), daemon=True).start()
        except BaseException:
            self.abort()
            raise

    @property
    def events(self) -> list[Event]:
        with self._changed:
            return list(self._history)

    @property
    def heartbeats(self) -> int:
        return self._heartbeats

    @property
    def end(self) -> str | None:
        return self._ended

    def send(self, *frames: bytes) -> None:
        data = b"".join(frames)
        try:
            with self._writing:
                self._socket.sendall(data)
        except OSError as error:
            # The reader's end has the reason.
            self._reader.join(_TIMEOUT_S)
            raise AmqpError(f"cannot write: {error}; {self._last()}") from error

    def open_channel(self, number: int = 0, *, confirms: bool = False, prefetch: int = 0) -> int:
        """Return the number of a new channel, which can be given."""
        if not number:
            number = self._next_channel
            self._next_channel += 1
        self.call(number, "channel.open")
        if prefetch:
            self.call(number, "basic.qos", prefetch_count=prefetch)
        if confirms:
            self._published[number] = 0
            self.confirmed[number] = Confirmed()
            self.call(number, "confirm.select")
        return number

    def publish(self, channel: int, routing_key: str | bytes, body: bytes = b"", **how: Any) -> int:
        """Publish at once and return the number for the confirm. Arguments as of the function `publish`."""
        number = self.number_publish(channel)
        self.send(publish(channel, routing_key, body, frame_max=self._frame_max, **how))
        return number

    def number_publish(self, channel: int) -> int:
        """Count a publish whose frames the test sends itself, and return the number for the confirm."""
        if (confirmed := self.confirmed.get(channel)) is None:
            return 0
        with self._changed:
            self._published[channel] += 1
            number = self._published[channel]
            confirmed.sent(number)
        return number

    def call(self, channel: int, name: str, **arguments: Any) -> Event:
        """Send a method and return its ``-ok`` (or get-empty)."""
        self.send(method(channel, name, **arguments))
        answers = (f"{name}-ok", "basic.get-empty") if name == "basic.get" else (f"{name}-ok",)
        ends = "channel.close", "connection.close"
        answer = self.wait_for(
            lambda event: event.channel in {0, channel} and event.name in answers + ends,
            what=f"{name}-ok on channel {channel}",
        )
        if answer.name not in answers:
            raise AmqpError(f"{name}: {answer.name} {answer['reply_code']} {answer['reply_text']}")
        return answer

    def expect(self, *names: str, channel: int | None = None, timeout_s: float = _TIMEOUT_S) -> Event:
        """Take the next event with one of these names. Others stay."""
        return self.wait_for(
            lambda event: event.name in names and channel in {None, event.channel},
            what=f"{' or '.join(names)} on channel {channel}",
            timeout_s=timeout_s,
        )

    def take(self, name: str) -> list[Event]:
        """Take all events with a name that have arrived."""
        with self._changed:
            taken = [event for event in self._events if event.name == name]
            self._events = [event for event in self._events if event.name != name]
        return taken

    def wait_for(self, wanted: Callable[[Event], bool], *, what: str, timeout_s: float = _TIMEOUT_S) -> Event:
        """Take the next event that fulfils a condition, see `expect`."""
        deadline = time.monotonic() + timeout_s
        looked = 0
        with self._changed:
            while True:
                for place in range(looked, len(self._events)):
                    if wanted(self._events[place]):
                        return self._events.pop(place)
                looked = len(self._events)
                if self._ended is not None:
                    raise AmqpError(f"the connection ended without {what}: {self._last()}")
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise AmqpError(f"no {what} within {timeout_s:g} s: {self._last()}")

    def wait_until(self, condition: Callable[[], bool], *, what: str, timeout_s: float = _TIMEOUT_S) -> None:
        """Wait until a condition is true. It is checked again at each event."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._ended is not None, timeout_s)
            if not condition():
                raise AmqpError(f"not {what}: {self._last()}")

    def wait_for_confirms(self, channel: int, *, at_most: int = 0, timeout_s: float = _TIMEOUT_S) -> Confirmed:
        """Wait until at most this many publishes of a channel have no answer, see `wait_until`."""
        confirmed = self.confirmed[channel]
        self.wait_until(
            lambda: confirmed.outstanding <= at_most, what=f"confirmed on channel {channel}", timeout_s=timeout_s
        )
        return confirmed

    def wait_for_end(self, *, timeout_s: float = _TIMEOUT_S) -> str:
        self.wait_until(lambda: self._ended is not None, what="ended", timeout_s=timeout_s)
        assert self._ended is not None
        return self._ended

    def pause(self) -> None:
        """Stop reading, so that the peer's writes stall."""
        self._unpaused.clear()

    def resume(self) -> None:
        self._unpaused.set()

    def close(self) -> None:
        with contextlib.suppress(AmqpError):
            if self._ended is None:
                self.call(0, "connection.close", reply_code=200, reply_text="bye")
        self.abort()

    def abort(self) -> None:
        self._unpaused.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if hasattr(self, "_reader"):
            self._reader.join(_TIMEOUT_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        # A peer that reads nothing would keep the close, and the error, for ever.
        if kind is None:
            self.close()
        else:
            self.abort()

    def _shake_hands(self, vhost: str, user: str, heartbeat_s: int, capabilities: list[str]) -> None:
        self.send(PROTOCOL_HEADER)
        self.expect("connection.start")
        properties = {"product": "sluice-tests", "capabilities": dict.fromkeys(capabilities, True)}
        response = f"\0{user}\0{user}"
        self.send(
            method(
                0,
                "connection.start-ok",
                client_properties=properties,
                mechanism="PLAIN",
                response=response,
                locale="en_US",
            )
        )
        self.tuned = self.expect("connection.tune", "connection.close")
        if self.tuned.name == "connection.close":
            raise AmqpError(f"{self.tuned['reply_code']} {self.tuned['reply_text']}")
        self.send(
            method(
                0,
                "connection.tune-ok",
                channel_max=self.tuned["channel_max"],
                frame_max=self._frame_max,
                heartbeat=heartbeat_s,
            ),
            method(0, "connection.open", virtual_host=vhost),
        )
        answer = self.expect("connection.open-ok", "connection.close")
        if answer.name == "connection.close":
            raise AmqpError(f"{answer['reply_code']} {answer['reply_text']}")

    def _beat(self, every_s: float) -> None:
        while not self._over.wait(every_s):
            with contextlib.suppress(OSError), self._writing:
                self._socket.sendall(HEARTBEAT)

    def _read(self) -> None:
        reading = EventReader()
        how = "end of stream"
        self._socket.settimeout(None)
        try:
            while data := self._socket.recv(262_144):
                self._take(reading.events(data))
                if not self._unpaused.is_set():
                    self._unpaused.wait()
        except OSError as error:
            how = type(error).__name__
        with self._changed:
            self._ended = how
            self._changed.notify_all()
        self._over.set()

    def _take(self, events: list[Event]) -> None:
        # Before the close is visible, because the channel may then be opened again at once.
        for event in events:
            if event.name in {"channel.close", "connection.close"}:
                with contextlib.suppress(OSError), self._writing:
                    self._socket.sendall(method(event.channel, f"{event.name}-ok"))
        with self._changed:
            for event in events:
                if event.name == "heartbeat":
                    self._heartbeats += 1
                    continue
                self._history.append(event)
                if event.name in {"basic.ack", "basic.nack"} and event.channel in self.confirmed:
                    self.confirmed[event.channel].answered(event)
                else:
                    self._events.append(event)
            self._changed.notify_all()

    def _last(self) -> str:
        shown = [f"{event.name} {dict(event.arguments)}" for event in self._history[-5:]]
        return f"{self._ended or 'still open'}, the last that came: {shown}"


class EventReader:
    """Joins frames to methods, and methods with their contents."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._open: dict[int, tuple[Event, list[bytes], int, bytes]] = {}

    def events(self, data: bytes) -> list[Event]:
        self._data += data
        found: list[Event] = []
        at, now_s = 0, time.monotonic()
        while len(self._data) - at >= 8:
            kind, channel, size = struct.unpack_from(">BHI", self._data, at)
            end = at + 8 + size
            if len(self._data) < end:
                break
            if self._data[end - 1] != 0xCE:
                raise OSError(f"a frame of the peer does not end with 0xCE: {self._data[at:end][:200].hex()}")
            payload = bytes(self._data[at + 7 : end - 1])
            at = end
            if kind == METHOD_FRAME:
                self._method(channel, payload, now_s, found)
            elif kind == HEARTBEAT_FRAME:
                found.append(Event("heartbeat", channel, {}))
            else:
                self._content(kind, channel, payload, now_s, found)
        del self._data[:at]
        return found

    def _method(self, channel: int, payload: bytes, now_s: float, found: list[Event]) -> None:
        if channel in self._open:
            raise OSError(f"a method of the peer on channel {channel}, in the midst of a content")
        numbers = struct.unpack_from(">HH", payload)
        layout = _BY_NUMBERS[numbers]
        event = Event(layout.name, channel, _arguments(layout, payload), at_s=now_s)
        if layout.name in _WITH_CONTENT:
            self._open[channel] = event, [], -1, b""
        else:
            found.append(event)

    def _content(self, kind: int, channel: int, payload: bytes, now_s: float, found: list[Event]) -> None:
        event, body, left, header = self._open[channel]
        if kind == HEADER_FRAME:
            header = payload
            _, _, left, _ = struct.unpack_from(">HHQH", payload)
        else:
            body.append(payload)
            left -= len(payload)
        if left:
            self._open[channel] = event, body, left, header
            return
        del self._open[channel]
        properties = _properties(int.from_bytes(header[12:14], "big"), header)
        found.append(Event(event.name, channel, event.arguments, properties, b"".join(body), now_s, header))


def _packed_bits(bits: list[bool]) -> bytes:
    return bytes([sum(bit << place for place, bit in enumerate(bits))]) if bits else b""


def _encoded(kind: str, value: Any) -> bytes:
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value or 0)
    if kind == "t":
        fields = (
            value
            if isinstance(value, bytes)
            else b"".join(_short(name) + _field(each) for name, each in (value or {}).items())
        )
        return struct.pack(">I", len(fields)) + fields
    text = value.encode() if isinstance(value, str) else value or b""
    return (struct.pack(">B", len(text)) if kind == "s" else struct.pack(">I", len(text))) + text


def _short(text: str) -> bytes:
    return _encoded("s", text)


def _field(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"t" + bytes([value])
    if isinstance(value, int):
        return b"l" + struct.pack(">q", value)
    if isinstance(value, Mapping):
        return b"F" + _encoded("t", value)
    if isinstance(value, (list, tuple)):
        items = b"".join(map(_field, value))
        return b"A" + struct.pack(">I", len(items)) + items
    return b"S" + _encoded("S", value)


def _arguments(layout: _Layout, payload: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    at, bit = 4, 0
    for name, kind in layout.arguments:
        if kind == "b":
            values[name] = bool(payload[at] >> bit & 1)
            bit += 1
            continue
        at, bit = at + (bit > 0), 0
        values[name], at = _decoded(kind, payload, at)
    return values


def _properties(flags: int, payload: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    at = 14
    for place, (name, kind) in enumerate(_PROPERTIES):
        if flags & 1 << 15 - place:
            values[name], at = _decoded(kind, payload, at)
    return values


def _decoded(kind: str, data: bytes, at: int) -> tuple[Any, int]:
    if kind in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[kind], data, at)
        return number, at + struct.calcsize(_NUMBERS[kind])
    if kind == "s":
        start = at + 1
        end = start + data[at]
    else:
        start = at + 4
        end = start + int.from_bytes(data[at:start], "big")
    if kind != "t":
        return data[start:end].decode(errors="replace"), end
    table = {}
    while start < end:
        name, start = _decoded("s", data, start)
        table[name], start = _decoded_field(data, start)
    return table, end


# Fields of a fixed size, by the letter before them.
_FIELDS: Final = dict(
    pair.split(":", 1)
    for pair in ("t:>?", "b:>b", "B:>B", "s:>h", "u:>H", "I:>i", "i:>I", "l:>q", "f:>f", "d:>d", "T:>Q", "D:>Bi")
)


def _decoded_field(data: bytes, at: int) -> tuple[Any, int]:
    letter, at = chr(data[at]), at + 1
    if letter in _FIELDS:
        layout = _FIELDS[letter]
        values = struct.unpack_from(layout, data, at)
        return (values[0] if len(values) == 1 else values), at + struct.calcsize(layout)
    if letter == "V":
        return None, at
    if letter in "Sx":
        return _decoded("S", data, at)
    if letter == "F":
        return _decoded("t", data, at)
    if letter != "A":
        raise OSError(f"the peer sent a field of an unknown type: {letter!r}")
    start = at + 4
    end = start + int.from_bytes(data[at:start], "big")
    items = []
    while start < end:
        item, start = _decoded_field(data, start)
        items.append(item)
    return items, end
