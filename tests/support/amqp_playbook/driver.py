"""A stand-in for the driver: it calls one session as ``proxy.net.connection`` does, and decides its batches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from playbook.lending import Loan

from limiter.counting.row import Second
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, ConnectionInfo, Hold, Later, Refuse, Request, Side, Ticket, Verdict
from proxy.flow.credit import Stage
from proxy.net.connection import OUTBOX_BYTES
from proxy.protocols.amqp091 import PROTOCOL
from proxy.protocols.amqp091.after_consume import Hub
from proxy.protocols.amqp091.session import AMQP091Options, AMQP091Session
from proxy.protocols.amqp091.stream import MAX_TAKEN_BACK_BYTES
from proxy.protocols.base import Confirming, Replayed, SessionContext, Terms, WireCounters
from proxy.spool.spool import Spool

from . import frames
from .lending import StandIn

if TYPE_CHECKING:
    from sluice_native import Resources

ORDERS = Resource("queue", "orders")
BUSY = Refuse(ORDERS, "queue:orders", 1000)
CLIENT, BROKER = Side.CLIENT, Side.BROKER

Decide = Callable[[Request], Verdict | None]


class Driver:
    """One session and its output."""

    # Lend the session to the compiled extension for each chunk, if possible, and its publishes, if they are decided
    # ``alike``.
    lends = False

    def __init__(
        self,
        decide: Decide | None = None,
        *,
        limits: Iterable[str] = (),
        options: AMQP091Options | None = None,
        hub: Hub | None = None,
        exempt: bool = False,
        spool: Spool | None = None,
        keeps_order: bool = True,
        resources: "Resources | None" = None,
        confirming: Mapping[str, Confirming] | None = None,
        scopes: tuple[Resource, ...] = (),
        alike: bool = False,
    ) -> None:
        self.decide: Decide = passes if decide is None else decide
        self._alike = alike
        self.limits = set(limits)
        self.confirming = {} if confirming is None else confirming
        self.rules_version = 0
        self.written = {side: bytearray() for side in Side}
        self.held: dict[int, tuple[Request, Ticket]] = {}
        self.given_up: list[Request] = []
        self.lost: list[Request] = []
        self.requests: list[Request] = []
        self.batches: list[Batch] = []
        self.woken = False
        self.writes = True
        self.later: Callable[[Request], bool] = lambda request: request.refusal == "impossible"
        self.now_ns = 0
        self.left = dict.fromkeys(Side, b"")
        # Data that was not read, because the session pauses.
        self.unread = dict.fromkeys(Side, b"")
        self._keeps_order = keeps_order
        self._rooms = {side: bytearray() for side in Side}
        # Peers with data that the sockets have not accepted.
        self._unwritten: set[Side] = set()
        connection = ConnectionInfo(
            *(1, "main", "default", "192.0.2.1:4000", "192.0.2.1", exempt, scopes),
            spools=spool is not None,
        )
        self.replayed: list[Replayed] = []
        self.watches_writes = self.client_ended = False
        self.stage, self.writer = Stage("connection"), Stage("writer")
        counters = WireCounters()
        judge = StandIn(self) if self.lends else None
        context = SessionContext(
            connection,
            counters,
            self._wake,
            False,
            self.limits.__contains__,
            options or AMQP091Options(),
            hub=hub or Hub(),
            give_up=self._give_up,
            pass_on=self._give_up,
            lose=self.lost.extend,
            resources=judge.resources if judge is not None and resources is None else resources,
            stage=self.stage,
            writer=self.writer,
            spool=spool,
            watch_writes=self._watch_writes,
            end_client=self._end_client,
            replayed=self.replayed.append,
            terms=self._terms,
            after_consume=lambda: bool(self.confirming),
            rules_version=lambda: self.rules_version,
        )
        session = PROTOCOL.open_session(context)
        assert isinstance(session, AMQP091Session)
        self.session = session
        self.loan = None if judge is None else Loan(session, judge, counters, context.signals, self._write)

    def _write(self, side: Side, data: bytes) -> None:
        self.written[side] += data

    def _end_client(self) -> None:
        self.client_ended = True

    def _watch_writes(self, on: bool) -> None:  # noqa: FBT001 - as SessionContext has it
        self.watches_writes = on

    def _terms(self, connection: ConnectionInfo, resources: tuple[Resource, ...], consumes: bool) -> Terms:  # noqa: FBT001 - as SessionContext has it
        del connection, consumes
        return Terms(confirm=self.confirming.get(str(resources[0])))

    def _wake(self) -> None:
        self.woken = True

    def _give_up(self, requests: Sequence[Request]) -> None:
        for request in requests:
            _, ticket = self.held.pop(id(request), (None, None))
            if ticket is not None:
                ticket.drop()
            self.given_up.append(request)

    def open(self, channels: Iterable[int] = (1,), *, confirms: Iterable[int] = (), **greeting: object) -> "Driver":
        """Open the connection and some channels, and forget the output."""
        self.give(CLIENT, frames.greeting(**greeting))  # type: ignore[arg-type]  # as greeting's
        welcome = {key: value for key, value in greeting.items() if key in {"frame_max", "heartbeat_s"}}
        self.give(BROKER, frames.welcome(**welcome))  # type: ignore[arg-type]  # likewise
        for channel in channels:
            self.give(CLIENT, frames.channel_open(channel))
        for channel in confirms:
            self.give(CLIENT, frames.confirm_select(channel))
        return self.forget()

    def forget(self) -> "Driver":
        for written in self.written.values():
            written.clear()
        return self

    def take(self) -> None:
        for side, written in self.written.items():
            taken = self.session.take(side)
            for each in taken:
                written.extend(each)
                self._unwritten.add(side)
            if side in self._unwritten and self.writes:
                self._unwritten.remove(side)
                if self.watches_writes:
                    self.session.written(side, self.now_ns)

    def give(self, side: Side, data: bytes, random: Random | None = None, longest: int = 1 << 20) -> None:
        """Give a peer's bytes, with a random in chunks of random length. Data waits while the session pauses."""
        self.unread[side] += data
        self.read(side, random, longest)
        self._read_on()

    def read(self, side: Side, random: Random | None = None, longest: int = 1 << 20) -> None:
        while self.unread[side] and not self.must_wait(side):
            most = self.max_bytes(side, longest if random is None else random.randint(1, longest))
            # As the compiled extension does with the beginning of a frame.
            stream, again = self.session._streams[side], random is None or random.random() < 0.5
            taken_back = stream.take_back() if again and len(stream._beginning) <= MAX_TAKEN_BACK_BYTES else b""
            chunk, self.unread[side] = taken_back + self.unread[side][:most], self.unread[side][most:]
            if self.loan is not None:
                chunk = self._lend(self.loan, side, chunk)
            batch = self.receive(side, chunk) if chunk else None
            if batch is not None:
                self.finish(batch)
            self.unread[side] = self.left[side] + self.unread[side]
            self.left[side] = b""

    def _lend(self, loan: Loan, side: Side, chunk: bytes) -> bytes:
        """Let the compiled extension read its part of a chunk. Return the rest."""
        self.session._stages.now_ns = self.now_ns
        alike = self._alike or self.decide in {passes, refuse}
        loan.judge.connection = self.batches[-1].connection if alike and self.batches else None
        left = loan.read(side, chunk, self.now_ns, Second(0))
        self.take()
        return left

    def must_wait(self, side: Side) -> bool:
        return self.session.paused(side) or (side is CLIENT and self.session.backlog_bytes(side) > OUTBOX_BYTES)

    def max_bytes(self, side: Side, longest: int) -> int:
        most = self.session.max_bytes(side)
        assert most >= 1
        return min(longest, most)

    def receive(self, side: Side, chunk: bytes) -> Batch | None:
        """Give one chunk. ``finish`` must follow if it holds requests."""
        # The session must not keep slices of a buffer, which is read into again.
        room = self._rooms[side] = bytearray(chunk)
        batch = self.session.receive(side, memoryview(room), self.now_ns)
        if batch is None:
            self.take()
            room[:] = b"\xaa" * len(room)
        left = self.session.left_bytes(side)
        self.left[side] = chunk[len(chunk) - left :] if left else b""
        return batch

    def finish(self, batch: Batch) -> None:
        self._decide(batch)
        room = self._rooms[batch.side]
        room[:] = b"\xaa" * len(room)

    def _decide(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.requests += batch.requests
        verdicts: dict[int, Verdict] = {}
        tickets: list[tuple[Request, Ticket]] = []
        keys = {request.order_key for request, _ in self.held.values()} if self._keeps_order else set()
        for index, request in enumerate(batch.requests):
            verdict = self.decide(request)
            if request.order_key in keys:
                verdict = Later() if self.later(request) else Hold(ORDERS, "rule", Ticket(lambda: None))
            if isinstance(verdict, Hold):
                tickets.append((request, verdict.ticket))
                if self._keeps_order:
                    keys.add(request.order_key)
            if verdict is not None:
                verdicts[index] = verdict
        batch.add_verdicts(verdicts)
        for request, ticket in tickets:
            self.held[id(request)] = (request, ticket)
        self.session.decided(batch, self.now_ns)
        self.take()

    def resolve(self, request: Request | None = None, refuse: Refuse | None = None) -> None:
        if request is None:
            request = next(iter(self.held.values()))[0]
        del self.held[id(request)]
        self.session.resolved(request, refuse, self.now_ns)
        self.take()
        self._read_on()

    def alarm(self, reason: str) -> None:
        self.session.alarm(reason, self.now_ns)
        self.take()
        self._read_on()

    def tick(self, *, finish: bool = True) -> Batch | None:
        self.woken = False
        batch = self.session.tick(self.now_ns)
        if batch is not None and finish:
            self.finish_tick(batch)
        self.take()
        self._read_on()
        return batch

    def _read_on(self) -> None:
        # One side's data may end the other's pause.
        while any(self.unread[side] and not self.must_wait(side) for side in Side):
            for side in Side:
                self.read(side)

    def finish_tick(self, batch: Batch) -> None:
        self._decide(batch)

    def settle(self, *, all_read: bool = True) -> None:
        self.decide = lambda _: None
        while self.held or self.woken:
            if self.held:
                self.resolve()
            else:
                self.tick()
        assert not all_read or not any(self.unread.values())

    def to_broker(self) -> list[frames.Message]:
        return list(frames.messages(bytes(self.written[BROKER])))

    def to_client(self) -> list[frames.Message]:
        return list(frames.messages(bytes(self.written[CLIENT])))


def passes(request: Request) -> Verdict | None:
    del request
    return None


def hold(request: Request) -> Verdict:
    del request
    return Hold(ORDERS, "rule", Ticket(lambda: None))


def refuse(request: Request) -> Verdict:
    del request
    return BUSY
