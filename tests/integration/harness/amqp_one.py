"""A raw AMQP 1.0 client: one connection, whatever frames a test wants, in whatever order."""

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
HEARTBEAT: Final = bytes.fromhex("0000000802000000")
ACCEPTED, REJECTED, RELEASED = 0x24, 0x25, 0x26

_PATIENCE_S: Final = 60.0
_WINDOW: Final = 1 << 30

# Fields with their types: string, symbol (Y), binary (B), uint, ushort (h), ubyte (o), ulong (L), bool, anything (*).
# A line that begins with a space goes on.
_LAYOUTS: Final = """
open 10 container_id:s hostname:s max_frame_size:u channel_max:h idle_time_out:u
begin 11 remote_channel:h next_outgoing_id:u incoming_window:u outgoing_window:u handle_max:u
attach 12 name:s handle:u role:b snd_settle_mode:o rcv_settle_mode:o source:* target:*
  unsettled:* incomplete:b initial_delivery_count:u
flow 13 next_incoming_id:u incoming_window:u next_outgoing_id:u outgoing_window:u handle:u delivery_count:u
  link_credit:u available:u drain:b echo:b
transfer 14 handle:u delivery_id:u delivery_tag:B message_format:u settled:b more:b
  rcv_settle_mode:o state:* resume:b aborted:b
disposition 15 role:b first:u last:u settled:b state:*
detach 16 handle:u closed:b error:*
end 17 error:*
close 18 error:*
mechanisms 40 mechanisms:*
init 41 mechanism:Y initial_response:B hostname:s
outcome 44 code:o
"""


class Described(NamedTuple):
    """A described value: source, target, an outcome or an error."""

    code: int
    value: Any


@dataclass(frozen=True)
class Came:
    """A frame that the peer sent."""

    name: str
    channel: int
    fields: Mapping[str, Any]
    payload: bytes
    at_s: float

    def get(self, field: str, otherwise: Any = None) -> Any:
        """Return one field."""
        return self.fields.get(field, otherwise)

    def __getitem__(self, field: str) -> Any:
        """Return one field that is there."""
        return self.fields[field]


class AmqpOneError(RuntimeError):
    """The peer ended the connection, or what a test waited for did not come."""


def _layouts() -> tuple[dict[str, tuple[int, list[tuple[str, str]]]], dict[int, tuple[str, list[str]]]]:
    by_name, by_code = {}, {}
    for line in filter(None, _LAYOUTS.replace("\n  ", " ").split("\n")):
        name, code, *fields = line.split()
        pairs = [(field[:-2], field[-1]) for field in fields]
        by_name[name] = (int(code, 16), pairs)
        by_code[int(code, 16)] = (name, [field for field, _ in pairs])
    return by_name, by_code


_BY_NAME, _BY_CODE = _layouts()
_FIXED: Final = {"u": (b"\x70", ">I"), "h": (b"\x60", ">H"), "o": (b"\x50", ">B"), "L": (b"\x80", ">Q")}
_SIZED: Final = {"s": (b"\xa1", b"\xb1"), "Y": (b"\xa3", b"\xb3"), "B": (b"\xa0", b"\xb0")}


def encoded(kind: str, value: Any) -> bytes:
    """Return a value of AMQP; of kind ``*`` it is a Described of fields that are encoded already, or such bytes."""
    if value is None:
        return b"\x40"
    if kind in _FIXED:
        code, layout = _FIXED[kind]
        return code + struct.pack(layout, value)
    if kind == "b":
        return b"\x41" if value else b"\x42"
    if kind in _SIZED:
        raw = value if isinstance(value, bytes) else value.encode()
        short, long = _SIZED[kind]
        return short + bytes([len(raw)]) + raw if len(raw) < 256 else long + struct.pack(">I", len(raw)) + raw
    if isinstance(value, Described):
        return b"\x00\x53" + bytes([value.code]) + listed(*value.value)
    assert isinstance(value, bytes), value
    return value


def listed(*values: bytes) -> bytes:
    """Return a list of encoded values."""
    raw = b"".join(values)
    return b"\xd0" + struct.pack(">II", len(raw) + 4, len(values)) + raw


def frame(performative: str, channel: int = 0, payload: bytes = b"", /, **fields: Any) -> bytes:
    """Return the bytes of a frame; fields that are not given are left out."""
    code, layout = _BY_NAME[performative]
    if unknown := fields.keys() - {field for field, _ in layout}:
        raise TypeError(f"{performative} has no {unknown}")
    values = [encoded(kind, fields.get(field)) for field, kind in layout]
    while values and values[-1] == b"\x40":
        values.pop()
    body = b"\x00\x53" + bytes([code]) + listed(*values) + payload
    return struct.pack(">IBBH", len(body) + 8, 2, code >= 0x40, channel) + body


def message(body: bytes, *, to: str | None = None, subject: str | None = None, durable: bool = False) -> bytes:
    """Return the sections of a message with one data section."""
    sections = []
    if durable:
        sections.append(b"\x00\x53\x70" + listed(encoded("b", True)))
    if to is not None or subject is not None:
        values = (b"\x40", b"\x40", encoded("s", to), encoded("s", subject))
        sections.append(b"\x00\x53\x73" + listed(*values))
    return b"".join(sections) + b"\x00\x53\x75" + b"\xb0" + struct.pack(">I", len(body)) + body


def body_of(payload: bytes) -> bytes:
    """Return the data of a message, whatever other sections it has."""
    at, found = 0, b""
    while at < len(payload):
        value, at = _decoded(payload, at)
        if value.code == 0x75:
            found += value.value
    return found


def _decoded(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    at += 1
    if code == 0x00:
        descriptor, at = _decoded(data, at)
        value, at = _decoded(data, at)
        return Described(descriptor, value), at
    simple: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}
    if code in simple:
        return simple[code], at
    if code in {0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56}:
        return (data[at] == 1 if code == 0x56 else data[at]), at + 1
    fixed = {0x60: ">H", 0x61: ">h", 0x70: ">I", 0x71: ">i", 0x80: ">Q", 0x81: ">q", 0x82: ">d", 0x83: ">q"}
    if code in fixed:
        return struct.unpack_from(fixed[code], data, at)[0], at + struct.calcsize(fixed[code])
    if code == 0x98:
        return data[at : at + 16], at + 16
    size, at = (data[at], at + 1) if code >> 4 in {0xA, 0xC, 0xE} else (int.from_bytes(data[at : at + 4]), at + 4)
    raw, end = data[at : at + size], at + size
    if code in {0xA0, 0xB0}:
        return raw, end
    if code in {0xA1, 0xB1, 0xA3, 0xB3}:
        return raw.decode(), end
    count, at = (data[at], at + 1) if code >> 4 in {0xC, 0xE} else (int.from_bytes(data[at : at + 4]), at + 4)
    if code >> 4 in {0xE, 0xF}:  # an array; only those of symbols are of interest
        symbols, constructor, at = [], data[at], at + 1
        for _ in range(count):
            symbol, behind = _decoded(bytes([constructor]) + data[at:end], 0)
            symbols.append(symbol)
            at += behind - 1
        return symbols, end
    values = []
    for _ in range(count):
        value, at = _decoded(data, at)
        values.append(value)
    return values, end


class AmqpOneClient:
    """A connection that is open on both ends, with one session, which is channel 0."""

    def __init__(
        self,
        address: str,
        *,
        user: str = "guest",
        hostname: str | None = None,
        frame_bytes: int = 65_536,
        idle_s: float = 0,
        beating: bool = True,
        source: str = "",
    ) -> None:
        host, _, port = address.rpartition(":")
        self._changed = threading.Condition()
        self._waiting: list[Came] = []
        self._history: list[Came] = []
        self._ended: str | None = None
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._handles = itertools.count()
        self._next_outgoing = self._next_delivery = 0
        self._incoming = 0
        self._may_send_to = 0
        self._socket = socket.create_connection((host, int(port)), _PATIENCE_S, (source, 0) if source else None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        try:
            self._socket.sendall(SASL_HEADER)
            self._expect_header(SASL_HEADER)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            self.expect("mechanisms")
            mechanism, response = ("PLAIN", f"\0{user}\0{user}".encode()) if user else ("ANONYMOUS", b"")
            self.send(frame("init", mechanism=mechanism, initial_response=response))
            if code := self.expect("outcome").get("code"):
                raise AmqpOneError(f"SASL outcome {code}")  # noqa: TRY301
            idle = {"idle_time_out": int(idle_s * 1000)} if idle_s else {}
            self.send(
                AMQP_HEADER, frame("open", container_id="raw", hostname=hostname, max_frame_size=frame_bytes, **idle)
            )
            self.opened = self.expect("open")
            self.send(frame("begin", next_outgoing_id=0, incoming_window=_WINDOW, outgoing_window=_WINDOW))
            begun = self.expect("begin")
            self._may_send_to = begun["incoming_window"]
            self._incoming = begun["next_outgoing_id"]
            if beating and (asked_ms := self.opened.get("idle_time_out")):
                threading.Thread(target=self._beat, args=(asked_ms / 2000,), daemon=True).start()
        except BaseException:
            self.abort()
            raise

    @property
    def history(self) -> list[Came]:
        """All that the peer has sent since the SASL header, in its order."""
        with self._changed:
            return list(self._history)

    @property
    def end(self) -> str | None:
        """How the connection ended; None while it stands."""
        return self._ended

    def send(self, *frames: bytes) -> None:
        """Write bytes."""
        try:
            with self._writing:
                self._socket.sendall(b"".join(frames))
        except OSError as error:
            self._reader.join(_PATIENCE_S)
            raise AmqpOneError(f"cannot write: {error}; {self._last()}") from error

    def attach_sender(self, address: str | None, *, settled: bool = False, name: str = "", **fields: Any) -> "Sender":
        """Attach a link that publishes; without an address it is the anonymous terminus."""
        handle = next(self._handles)
        target = Described(0x29, [encoded("s", address)])
        source = Described(0x28, [encoded("s", "raw")])
        fields = {"snd_settle_mode": 1 if settled else 0, "initial_delivery_count": 0, **fields}
        name = name or f"raw-{id(self)}-{handle}"
        self.send(frame("attach", name=name, handle=handle, role=False, source=source, target=target, **fields))
        attached = self.expect("attach", name=name)
        theirs = attached["handle"]
        with self._changed:
            # The peer may have used its handle before, for a link that is over.
            self._waiting = [
                each
                for each in self._waiting
                if each.name != "flow" or each.get("handle") != theirs or each.at_s > attached.at_s
            ]
        return Sender(self, handle, theirs, settled=settled)

    def attach_receiver(self, address: str, *, name: str = "", **fields: Any) -> "Receiver":
        """Attach a link that consumes."""
        handle = next(self._handles)
        source, target = Described(0x28, [encoded("s", address)]), Described(0x29, [encoded("s", "raw")])
        name = name or f"raw-{id(self)}-{handle}"
        self.send(frame("attach", name=name, handle=handle, role=True, source=source, target=target, **fields))
        attached = self.expect("attach", name=name)
        return Receiver(self, handle, attached["handle"], attached.get("initial_delivery_count", 0))

    def expect(self, *names: str, timeout_s: float = _PATIENCE_S, **fields: Any) -> Came:
        """Take the next frame of one of those names and with those fields out of what came; the others stay."""
        return self.wait_for(
            lambda came: came.name in names and all(came.get(field) == wanted for field, wanted in fields.items()),
            what=f"{names} with {fields}",
            timeout_s=timeout_s,
        )

    def wait_for(self, wanted: Callable[[Came], bool], *, what: str, timeout_s: float = _PATIENCE_S) -> Came:
        """Take the next frame of which something is true."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for place, came in enumerate(self._waiting):
                    if wanted(came):
                        return self._waiting.pop(place)
                left_s = deadline - time.monotonic()
                if self._ended is not None or left_s <= 0:
                    raise AmqpOneError(f"{what} did not come; {self._last()}")
                self._changed.wait(left_s)

    def session_fields(self) -> dict[str, int]:
        """Return what a flow says of the session."""
        with self._changed:
            return {
                "next_incoming_id": self._incoming,
                "incoming_window": _WINDOW,
                "next_outgoing_id": self._next_outgoing,
                "outgoing_window": _WINDOW,
            }

    def flow(self, **fields: Any) -> None:
        """Send a flow; what it says of the session is added."""
        self.send(frame("flow", **self.session_fields(), **fields))

    def number_delivery(self) -> int:
        """Return the next delivery-id."""
        self._next_delivery += 1
        return self._next_delivery - 1

    def transfer(self, payload: bytes, **fields: Any) -> None:
        """Send one transfer frame, once the session's window lets it through."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._next_outgoing < self._may_send_to or self._ended is not None, _PATIENCE_S
            )
            if not room or self._ended is not None:
                raise AmqpOneError(f"no room in the session's window; {self._last()}")
            self._next_outgoing += 1
        self.send(frame("transfer", 0, payload, **fields))

    def close(self) -> None:
        """Close the connection in the protocol's words, if it still stands."""
        with contextlib.suppress(AmqpOneError):
            if self._ended is None:
                self.send(frame("close"))
                self.expect("close", timeout_s=10)
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()

    def _last(self) -> str:
        shown = [(came.name, dict(came.fields)) for came in self._history[-5:]]
        return f"the connection {self._ended or 'stands'}; last came {shown}"

    def _expect_header(self, wanted: bytes) -> None:
        while len(self._buffer) < len(wanted):
            if not (data := self._socket.recv(65_536)):
                break
            self._buffer += data
        if bytes(self._buffer[:8]) != wanted:
            raise AmqpOneError(f"the peer's header is {bytes(self._buffer)!r}")
        del self._buffer[:8]

    def _beat(self, every_s: float) -> None:
        with contextlib.suppress(AmqpOneError):
            while not self._over.wait(every_s):
                self.send(HEARTBEAT)

    def _read(self) -> None:
        ended = "was closed by the peer"
        try:
            while True:
                for came in self._frames():
                    with self._changed:
                        self._take(came)
                        self._changed.notify_all()
                if not (data := self._socket.recv(262_144)):
                    break
                self._buffer += data
        except OSError as error:
            ended = f"broke: {error}"
        with self._changed:
            self._ended = ended
            self._changed.notify_all()

    def _take(self, came: Came) -> None:
        self._history.append(came)
        if came.name == "transfer":
            self._incoming = (self._incoming + 1) & 0xFFFF_FFFF
        elif came.name == "flow":
            self._may_send_to = came.get("next_incoming_id", 0) + came["incoming_window"]
        if came.name != "heartbeat":
            self._waiting.append(came)

    def _frames(self) -> Iterator[Came]:
        at = 0
        while len(self._buffer) - at >= 8:
            if self._buffer[at : at + 8] == AMQP_HEADER:
                at += 8
                continue
            size = int.from_bytes(self._buffer[at : at + 4])
            if len(self._buffer) - at < size:
                break
            yield _came(bytes(self._buffer[at : at + size]))
            at += size
        del self._buffer[:at]


def _came(data: bytes) -> Came:
    doff, channel = data[4] * 4, int.from_bytes(data[6:8])
    if len(data) == doff:
        return Came("heartbeat", channel, {}, b"", time.monotonic())
    performative, behind = _decoded(data, doff)
    name, fields = _BY_CODE[performative.code]
    known = {field: value for field, value in zip(fields, performative.value, strict=False) if value is not None}
    return Came(name, channel, known, data[behind:], time.monotonic())


class Sender:
    """A link that publishes, made by `AmqpOneClient.attach_sender`."""

    def __init__(self, client: AmqpOneClient, handle: int, theirs: int, *, settled: bool) -> None:
        self.client, self.handle, self.theirs = client, handle, theirs
        self.sent = self.limit = 0
        self._settled = settled

    def wait_for_credit(self, *, timeout_s: float = _PATIENCE_S) -> int:
        """Wait until the peer lets something through, and return how much."""
        deadline = time.monotonic() + timeout_s
        while self.limit <= self.sent:
            flow = self.client.expect("flow", handle=self.theirs, timeout_s=deadline - time.monotonic())
            self.limit = flow.get("delivery_count", 0) + flow.get("link_credit", 0)
        return self.limit - self.sent

    def send(self, payload: bytes, *, frame_bytes: int = 0, aborted: bool = False, **fields: Any) -> int:
        """Send a message as soon as there is credit, and return its delivery-id."""
        self.wait_for_credit()
        number = self.client.number_delivery()
        # No performative of a transfer that a test sends is longer.
        most = frame_bytes - 100 if frame_bytes else max(1, len(payload))
        pieces = [payload[at : at + most] for at in range(0, len(payload), most)] or [b""]
        first = {
            "delivery_id": number,
            "delivery_tag": number.to_bytes(4),
            "message_format": 0,
            "settled": self._settled,
        }
        for place, piece in enumerate(pieces):
            more = place + 1 < len(pieces) or aborted
            self.client.transfer(piece, handle=self.handle, more=more, **({**first, **fields} if place == 0 else {}))
        if aborted:
            self.client.transfer(b"", handle=self.handle, aborted=True, more=False)
        self.sent += 1
        return number

    def outcome(self, number: int, *, timeout_s: float = _PATIENCE_S) -> Described:
        """Wait for the disposition that settles a delivery; one of several is looked for among all that came."""
        deadline = time.monotonic() + timeout_s
        while True:
            for came in self.client.history:
                if came.name == "disposition" and came["first"] <= number <= came.get("last", came["first"]):
                    state = came["state"]
                    assert isinstance(state, Described)
                    return state
            self.client.expect("disposition", timeout_s=deadline - time.monotonic())

    def detach(self) -> None:
        """Detach it and wait for the answer."""
        self.client.send(frame("detach", handle=self.handle, closed=True))
        self.client.expect("detach", handle=self.theirs)


class Receiver:
    """A link that consumes, made by `AmqpOneClient.attach_receiver`."""

    def __init__(self, client: AmqpOneClient, handle: int, theirs: int, count: int) -> None:
        self.client, self.handle, self.theirs, self.count = client, handle, theirs, count

    def flow(self, credit: int, **fields: Any) -> None:
        """Give credit, beginning with what has come."""
        self.client.flow(handle=self.handle, delivery_count=self.count, link_credit=credit, **fields)

    def receive(self, *, accept: bool = True, timeout_s: float = _PATIENCE_S) -> bytes:
        """Return the sections of the next message."""
        first = self.client.expect("transfer", handle=self.theirs, timeout_s=timeout_s)
        return self.rest_of(first, accept=accept)

    def rest_of(self, first: Came, *, accept: bool = True) -> bytes:
        """Return the sections of a message whose first transfer has been taken."""
        payloads, came = [first.payload], first
        while came.get("more", False):
            came = self.client.expect("transfer", handle=self.theirs)
            payloads.append(came.payload)
        self.count = (self.count + 1) & 0xFFFF_FFFF
        if accept and not first.get("settled", False):
            number = first["delivery_id"]
            self.client.send(
                frame("disposition", role=True, first=number, last=number, settled=True, state=Described(ACCEPTED, []))
            )
        return b"".join(payloads)

    def drained(self, *, timeout_s: float = _PATIENCE_S) -> Came:
        """Wait for the sender's flow that says that its credit is used up."""
        return self.client.wait_for(
            lambda came: came.name == "flow" and came.get("handle") == self.theirs and not came.get("link_credit", 0),
            what="the end of a drain",
            timeout_s=timeout_s,
        )

    def detach(self) -> None:
        """Detach it and wait for the answer."""
        self.client.send(frame("detach", handle=self.handle, closed=True))
        self.client.expect("detach", handle=self.theirs)
