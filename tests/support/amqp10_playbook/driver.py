"""A stand-in for the driver: it calls one session as ``proxy.net.connection`` does, and decides its batches."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from limiter.rules.resource import Resource
from proxy.common.buffers import GatherRoom
from proxy.deciding.batch import Batch, ConnectionInfo, Hold, Refuse, Request, Side, Ticket, Verdict
from proxy.flow.credit import Stage
from proxy.protocols.amqp10.credit import Hub
from proxy.protocols.amqp10.session import AMQP10Options, AMQP10Session
from proxy.protocols.base import NO_TERMS, Advance, Close, SessionContext, Terms, WireCounters

from . import codec
from .codec import Said, say

CLIENT, BROKER = Side.CLIENT, Side.BROKER
ORDERS = Resource("queue", "orders")
BUSY = Refuse(ORDERS, "queue:orders", 1500)
SHAPED = Terms(delays=True)
REFUSED = Terms(refuses=True, advance=Advance(512_000_000, 512, 512))

Decide = Callable[[Request], Verdict | None]


class Driver:
    """One session and its output."""

    def __init__(
        self,
        decide: Decide = lambda _: None,
        *,
        terms: dict[Resource, Terms] | None = None,
        exempt: bool = False,
        options: AMQP10Options | None = None,
        room: GatherRoom | None = None,
        limits: Sequence[str] = (),
        scopes: tuple[Resource, ...] = (),
        hub: Hub | None = None,
        tightest: Advance | None = None,
    ) -> None:
        self.decide = decide
        self.terms = terms or {}
        self.limits = {*limits, *(each.kind for each in self.terms)}
        self.version = 0
        self.written = {side: bytearray() for side in Side}
        self.total = {side: bytearray() for side in Side}
        self.unread = dict.fromkeys(Side, b"")
        self.held: dict[int, tuple[Request, Ticket]] = {}
        self.given_up: list[Request] = []
        self.batches: list[Batch] = []
        self.woken = False
        self.now_ns = 0
        self.closed: Close | None = None
        self.between: Callable[[], None] = lambda: None
        self.stage = Stage("connection")
        self.counters = WireCounters()
        context = SessionContext(
            ConnectionInfo(1, "main", "default", "192.0.2.1:4000", "192.0.2.1", exempt, scopes),
            self.counters,
            self._wake,
            False,
            self.limits.__contains__,
            options or AMQP10Options(),
            give_up=self._give_up,
            room=room or GatherRoom(),
            stage=self.stage,
            terms=self._terms,
            rules_version=lambda: self.version,
            hub=hub,
            tightest=lambda _: tightest,
        )
        self.session = AMQP10Session(context)
        self.signals = context.signals

    def _wake(self) -> None:
        self.woken = True

    def _terms(self, _: ConnectionInfo, resources: tuple[Resource, ...], consumes: bool) -> Terms:  # noqa: FBT001
        del consumes
        return next((self.terms[each] for each in resources if each in self.terms), NO_TERMS)

    def _give_up(self, requests: Sequence[Request]) -> None:
        for request in requests:
            _, ticket = self.held.pop(id(request), (None, None))
            if ticket is not None:
                ticket.drop()
            self.given_up.append(request)

    @property
    def given_up_ids(self) -> set[int]:
        return set(map(id, self.given_up))

    @property
    def reason(self) -> str:
        """The reason why the session has closed the connection, or an empty text."""
        return "" if self.closed is None else self.closed.reason

    @property
    def requests(self) -> list[Request]:
        return [request for batch in self.batches for request in batch.requests]

    @property
    def charged(self) -> int:
        """Messages charged by credit so far: granted, and charged or given back."""
        waiting = self.held.keys() | self.given_up_ids
        granted = sum(request.messages for request in self.requests if request.most and id(request) not in waiting)
        return granted + sum(charge.messages for batch in self.batches for charge in batch.charges)

    @property
    def paid(self) -> int:
        return sum(paid.messages for batch in self.batches for paid in batch.paid)

    def give(self, side: Side, data: bytes, random: Random | None = None, longest: int = 1 << 20) -> None:
        """Give a peer's bytes, with a random in chunks of random length."""
        data, self.unread[side] = self.unread[side] + data, b""
        at = 0
        while at < len(data) and self.closed is None:
            if self.session.paused(side):
                self.unread[side] = data[at:]
                return
            stop = len(data) if random is None else min(len(data), at + random.randint(1, longest))
            back = self.session._streams[side].take_back() if random is None or random.random() < 0.5 else b""
            chunk = back + data[at:stop]
            at = stop
            while chunk and self.closed is None:
                left = self._receive(side, chunk)
                chunk = chunk[len(chunk) - left :] if left else b""
                if self.session.paused(side):
                    self.unread[side] = chunk + data[at:]
                    return
        if self.unread[side.other] and self.closed is None and not self.session.paused(side.other):
            self.give(side.other, b"", random, longest)

    def _receive(self, side: Side, chunk: bytes) -> int:
        # The session must not keep slices of a buffer, which is read into again.
        room = bytearray(chunk)
        try:
            batch = self.session.receive(side, memoryview(room), self.now_ns)
            if batch is not None:
                self.between()
                self._decide(batch)
        except Close as close:
            self.closed = close
        self.take()
        left = self.session.left_bytes(side)
        room[:] = b"\xaa" * len(room)
        return left

    def _decide(self, batch: Batch) -> None:
        self.batches.append(batch)
        verdicts: dict[int, Verdict] = {}
        for index, request in enumerate(batch.requests):
            verdict = self.decide(request)
            if verdict is not None:
                verdicts[index] = verdict
            if isinstance(verdict, Hold):
                self.held[id(request)] = (request, verdict.ticket)
            elif request.most:
                request.messages = getattr(verdict, "messages", request.most)
        batch.verdicts.update(verdicts)
        self.session.decided(batch, self.now_ns)

    def resolve(self, permits: int) -> None:
        request = next(iter(self.held.values()))[0]
        del self.held[id(request)]
        request.messages = permits
        self.session.resolved(request, None, self.now_ns)
        self.take()

    def tick(self) -> None:
        """Call ``tick`` as long as the session wants it."""
        first = True
        while first or self.woken:
            first = self.woken = False
            batch = self.session.tick(self.now_ns)
            if batch is not None:
                self._decide(batch)
            self.take()

    def take(self) -> None:
        for side in Side:
            for each in self.session.take(side):
                self.written[side] += each
                self.total[side] += each

    def client(self, channel: int, name: str, payload: bytes = b"", /, **fields: Any) -> list[Said]:
        self.give(CLIENT, say(channel, name, payload, **fields))
        return self.to(BROKER)

    def broker(self, channel: int, name: str, payload: bytes = b"", /, **fields: Any) -> list[Said]:
        """Let the broker send a performative. Return the client's frames."""
        self.give(BROKER, say(channel, name, payload, **fields))
        return self.to(CLIENT)

    def to(self, side: Side) -> list[Said]:
        """Return the bytes written to a peer since the last call, without protocol headers."""
        data = bytes(self.written[side])
        while data[:4] == b"AMQP":
            data = data[8:]
        said, rest = codec.read(data)
        self.written[side] = bytearray(rest)
        return said

    def forget(self) -> "Driver":
        for written in self.written.values():
            written.clear()
        return self

    def open(
        self, hostname: str | None = None, user: str = "guest", broker: dict[str, Any] | None = None, **opens: Any
    ) -> "Driver":
        """Open the connection, with the client's channel 1 and the broker's channel 5 for one session."""
        start = codec.SASL_HEADER + say(
            0, "sasl_init", mechanism="PLAIN", initial_response=b"\0" + user.encode() + b"\0pw"
        )
        begin = {"incoming_window": 400, "outgoing_window": 500}
        self.give(
            CLIENT,
            start
            + codec.HEADER
            + say(0, "open", container_id="someone", hostname=hostname, **opens)
            + say(1, "begin", next_outgoing_id=10, **begin),
        )
        self.give(
            BROKER,
            codec.SASL_HEADER
            + say(0, "sasl_mechanisms", mechanisms=codec.Array(["PLAIN"]))
            + say(0, "sasl_outcome", code=0)
            + codec.HEADER
            + say(0, "open", **({"container_id": "broker", "properties": codec.RABBITMQ} | (broker or {}))),
        )
        self.give(BROKER, say(5, "begin", remote_channel=1, next_outgoing_id=2**32 - 4, **begin))
        return self.forget()

    def sends(self, handle: int = 0, address: str | None = "/queues/orders", **fields: Any) -> "Driver":
        """Attach a link on which the client sends. The broker adds 3 to the handle."""
        target = codec.Described(codec.ULong(0x29), [address])
        source = codec.Described(codec.ULong(0x28), ["here"])
        link = {"name": f"sender-{handle}", "source": source, "target": target}
        self.client(1, "attach", handle=handle, role=False, initial_delivery_count=0, **(link | fields))
        self.broker(5, "attach", handle=handle + 3, role=True, **link)
        return self.forget()

    def takes(self, handle: int = 0, address: str = "/queues/orders", count: int = 2**32 - 5) -> "Driver":
        """Attach a link on which the client receives, in the same way."""
        source = codec.Described(codec.ULong(0x28), [address])
        target = codec.Described(codec.ULong(0x29), ["here"])
        link = {"name": f"receiver-{handle}", "source": source, "target": target}
        self.client(1, "attach", handle=handle, role=True, **link)
        self.broker(5, "attach", handle=handle + 3, role=False, initial_delivery_count=count, **link)
        return self.forget()

    def credit(self, credit: int, count: int = 0, handle: int = 0, **fields: Any) -> list[Said]:
        """Let the broker give credit to a link. Return the client's frames."""
        session = {"next_incoming_id": 10, "incoming_window": 400, "next_outgoing_id": 2**32 - 4}
        numbers = {"outgoing_window": 500, "handle": handle + 3, "delivery_count": count, "link_credit": credit}
        return self.broker(5, "flow", **(session | numbers | fields))

    def send(self, number: int, body: bytes = b"x", handle: int = 0, **fields: Any) -> list[Said]:
        payload = fields.pop("payload", None) or codec.message(body)
        return self.client(
            1, "transfer", payload, handle=handle, delivery_id=number, delivery_tag=b"%d" % number, **fields
        )


def hold(request: Request) -> Verdict | None:
    return Hold(ORDERS, "rule", Ticket(lambda: None)) if request.most else None


def refuse(request: Request) -> Verdict | None:
    return None if request.most else BUSY
