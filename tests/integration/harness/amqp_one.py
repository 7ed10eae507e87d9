"""A raw AMQP 1.0 client: one connection, and any frames in any order."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from amqp10_playbook import codec
from amqp10_playbook.codec import HEADER, SASL_HEADER, Described, Said, ULong, message, say

__all__ = ["ACCEPTED", "HEADER", "REJECTED", "RELEASED", "SASL_HEADER", "AmqpOneClient", "AmqpOneError", "Came"]
__all__ += ["Described", "Receiver", "Sender", "body_of", "message", "say"]

ACCEPTED, REJECTED, RELEASED = 0x24, 0x25, 0x26

_TIMEOUT_S: Final = 60.0
_WINDOW: Final = 1 << 30


@dataclass
class Came(Said):
    at_s: float = 0.0

    def get(self, field: str, otherwise: Any = None) -> Any:
        return self.fields.get(field, otherwise)


class AmqpOneError(RuntimeError):
    """The peer ended the connection, or an awaited frame did not come."""


def body_of(payload: bytes) -> bytes:
    """Return the data sections of a message."""
    at, found = 0, b""
    while at < len(payload):
        section, at = codec.decode(payload, at)
        if section.descriptor == 0x75:
            found += section.value
    return found


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
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S, (source, 0) if source else None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        try:
            self._socket.sendall(SASL_HEADER)
            self._expect_header(SASL_HEADER)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            self.expect("sasl_mechanisms")
            mechanism, response = ("PLAIN", f"\0{user}\0{user}".encode()) if user else ("ANONYMOUS", b"")
            self.send(say(0, "sasl_init", mechanism=mechanism, initial_response=response))
            if code := self.expect("sasl_outcome").get("code"):
                raise AmqpOneError(f"SASL outcome {code}")  # noqa: TRY301
            idle = {"idle_time_out": int(idle_s * 1000)} if idle_s else {}
            self.send(HEADER, say(0, "open", container_id="raw", hostname=hostname, max_frame_size=frame_bytes, **idle))
            self.opened = self.expect("open")
            self.send(say(0, "begin", next_outgoing_id=0, incoming_window=_WINDOW, outgoing_window=_WINDOW))
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
        """All frames from the peer since the SASL header, in order."""
        with self._changed:
            return list(self._history)

    @property
    def end(self) -> str | None:
        """How the connection ended. None: it is open."""
        return self._ended

    def send(self, *frames: bytes) -> None:
        try:
            with self._writing:
                self._socket.sendall(b"".join(frames))
        except OSError as error:
            self._reader.join(_TIMEOUT_S)
            raise AmqpOneError(f"cannot write: {error}; {self._last()}") from error

    def attach_sender(self, address: str | None, *, settled: bool = False, name: str = "", **fields: Any) -> "Sender":
        """Attach a link that publishes. Without an address it is the anonymous terminus."""
        handle = next(self._handles)
        target = Described(ULong(0x29), [address])
        source = Described(ULong(0x28), ["raw"])
        fields = {"snd_settle_mode": 1 if settled else 0, "initial_delivery_count": 0, **fields}
        name = name or f"raw-{id(self)}-{handle}"
        self.send(say(0, "attach", name=name, handle=handle, role=False, source=source, target=target, **fields))
        attached = self.expect("attach", name=name)
        theirs = attached["handle"]
        with self._changed:
            # The peer may have used its handle for an earlier link.
            self._waiting = [
                each
                for each in self._waiting
                if each.name != "flow" or each.get("handle") != theirs or each.at_s > attached.at_s
            ]
        return Sender(self, handle, theirs, settled=settled)

    def attach_receiver(self, address: str, *, name: str = "", **fields: Any) -> "Receiver":
        handle = next(self._handles)
        source, target = Described(ULong(0x28), [address]), Described(ULong(0x29), ["raw"])
        name = name or f"raw-{id(self)}-{handle}"
        self.send(say(0, "attach", name=name, handle=handle, role=True, source=source, target=target, **fields))
        attached = self.expect("attach", name=name)
        return Receiver(self, handle, attached["handle"], attached.get("initial_delivery_count", 0))

    def expect(self, *names: str, timeout_s: float = _TIMEOUT_S, **fields: Any) -> Came:
        """Take the next frame with one of these names and with these fields. Others stay."""
        return self.wait_for(
            lambda came: came.name in names and all(came.get(field) == wanted for field, wanted in fields.items()),
            what=f"{names} with {fields}",
            timeout_s=timeout_s,
        )

    def wait_for(self, wanted: Callable[[Came], bool], *, what: str, timeout_s: float = _TIMEOUT_S) -> Came:
        """Take the next frame that fulfils a condition."""
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
        """Return the session's fields of a flow."""
        with self._changed:
            return {
                "next_incoming_id": self._incoming,
                "incoming_window": _WINDOW,
                "next_outgoing_id": self._next_outgoing,
                "outgoing_window": _WINDOW,
            }

    def flow(self, **fields: Any) -> None:
        """Send a flow, with the session's fields."""
        self.send(say(0, "flow", **self.session_fields(), **fields))

    def number_delivery(self) -> int:
        self._next_delivery += 1
        return self._next_delivery - 1

    def transfer(self, payload: bytes, **fields: Any) -> None:
        """Send one transfer frame, once the session's window allows it."""
        with self._changed:
            room = self._changed.wait_for(
                lambda: self._next_outgoing < self._may_send_to or self._ended is not None, _TIMEOUT_S
            )
            if not room or self._ended is not None:
                raise AmqpOneError(f"no room in the session's window; {self._last()}")
            self._next_outgoing += 1
        self.send(say(0, "transfer", payload, **fields))

    def close(self) -> None:
        """Close the connection properly, if it is open."""
        with contextlib.suppress(AmqpOneError):
            if self._ended is None:
                self.send(say(0, "close"))
                self.expect("close", timeout_s=10)
        self.abort()

    def abort(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
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
                self.send(codec.EMPTY)

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
        while len(self._buffer) >= 8:
            if self._buffer.startswith(HEADER):
                del self._buffer[: len(HEADER)]
                continue
            size = int.from_bytes(self._buffer[:4])
            if len(self._buffer) < size:
                break
            (said,), _ = codec.read(bytes(self._buffer[:size]))
            del self._buffer[:size]
            yield Came(said.channel, said.name or "heartbeat", said.fields, said.payload, said.data, time.monotonic())


class Sender:
    """A link that publishes, made by `AmqpOneClient.attach_sender`."""

    def __init__(self, client: AmqpOneClient, handle: int, theirs: int, *, settled: bool) -> None:
        self.client, self.handle, self.theirs = client, handle, theirs
        self.sent = self.limit = 0
        self._settled = settled

    def wait_for_credit(self, *, timeout_s: float = _TIMEOUT_S) -> int:
        """Wait for credit and return it."""
        deadline = time.monotonic() + timeout_s
        while self.limit <= self.sent:
            flow = self.client.expect("flow", handle=self.theirs, timeout_s=deadline - time.monotonic())
            self.limit = flow.get("delivery_count", 0) + flow.get("link_credit", 0)
        return self.limit - self.sent

    def send(self, payload: bytes, *, frame_bytes: int = 0, aborted: bool = False, **fields: Any) -> int:
        """Send a message once there is credit, and return its delivery-id."""
        self.wait_for_credit()
        number = self.client.number_delivery()
        # The maximum length of a transfer's performative in the tests.
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

    def outcome(self, number: int, *, timeout_s: float = _TIMEOUT_S) -> Described:
        """Wait for the disposition that settles a delivery, among all frames."""
        deadline = time.monotonic() + timeout_s
        while True:
            for came in self.client.history:
                if came.name == "disposition" and came["first"] <= number <= came.get("last", came["first"]):
                    state = came["state"]
                    assert isinstance(state, Described)
                    return state
            self.client.expect("disposition", timeout_s=deadline - time.monotonic())

    def detach(self) -> None:
        self.client.send(say(0, "detach", handle=self.handle, closed=True))
        self.client.expect("detach", handle=self.theirs)


class Receiver:
    """A link that consumes, made by `AmqpOneClient.attach_receiver`."""

    def __init__(self, client: AmqpOneClient, handle: int, theirs: int, count: int) -> None:
        self.client, self.handle, self.theirs, self.count = client, handle, theirs, count

    def flow(self, credit: int, **fields: Any) -> None:
        """Give credit, counted from the messages that have arrived."""
        self.client.flow(handle=self.handle, delivery_count=self.count, link_credit=credit, **fields)

    def receive(self, *, accept: bool = True, timeout_s: float = _TIMEOUT_S) -> bytes:
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
                say(
                    0,
                    "disposition",
                    role=True,
                    first=number,
                    last=number,
                    settled=True,
                    state=Described(ULong(ACCEPTED), []),
                )
            )
        return b"".join(payloads)

    def drained(self, *, timeout_s: float = _TIMEOUT_S) -> Came:
        """Wait for the sender's flow that reports its credit as used up."""
        return self.client.wait_for(
            lambda came: came.name == "flow" and came.get("handle") == self.theirs and not came.get("link_credit", 0),
            what="the end of a drain",
            timeout_s=timeout_s,
        )

    def detach(self) -> None:
        self.client.send(say(0, "detach", handle=self.handle, closed=True))
        self.client.expect("detach", handle=self.theirs)
