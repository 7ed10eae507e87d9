"""One proxied connection: drives a sans-IO session between two sockets.

Each direction is a generator: read, decide, write, read. It runs by plain calls as long as it need not wait, and
where it must, it yields what it waits for:

    ===== ================================================ ==========================================================
    READ  its peer's bytes                                 the reactor goes on with it, when the peer may be read
    WRITE the other peer's socket takes no more            that one's writer does, when all is with the kernel
    TASK  a lane's verdicts, its turn, or the broker watch a task of the connection's nursery does, when it has these
    ENDED nothing any more: its stream has ended           nobody does
    ===== ================================================ ==========================================================

Only in READ bytes are read, so TCP carries the back pressure. What is written to one peer goes through that peer's one
writer, whoever queued it. A task for timers exists only for sessions that tick.

A request that is held belongs to its ticket: when that is resolved, the session is told and what it queues is
written, whatever else the connection does. When its peer's stream has ended, or the connection ends, the
ticket is dropped.

A connection that Sluice itself ends is parted from in order: what is queued is written, both peers are sent
the end of the stream, and what they still send is read and dropped for a moment. Closing with unread bytes
would make the kernel send a reset, and a reset can destroy answers that the client has not read yet.
"""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from select import EPOLLIN
from typing import Any, Final

import structlog
import trio

from limiter.counting.recorder import NOBODY, Sender
from proxy.common.buffers import CHUNK_BYTES, BufferPool
from proxy.common.cooperative import connection_turn
from proxy.common.log_rate import LogRate
from proxy.control import LimitCommandReply
from proxy.deciding.batch import Batch, ConnectionInfo, Hold, Request, Side, Ticket
from proxy.deciding.pipeline import Pipeline
from proxy.net.limit_commands import LimitCommands
from proxy.net.reactor import Reactor
from proxy.net.sockets import Wire
from proxy.net.writer import PeerError, Writer
from proxy.protocols.base import Close, CommandRequest, CommandStatus, Session
from proxy.stats.tally import Tally
from proxy.stats.timing import Timings

_log = structlog.get_logger(__name__)


# The held requests of one connection, by their tickets: whose they are, until they are resolved or dropped.
#
# What becomes of their bytes is the session's business; when they are resolved is their handler's.
class Tickets:
    """The tickets that one connection waits for.

    Args:
        tally: where requests that are dropped are counted.
        now_ns: the data path's clock.
        sender: whose requests they are.
    """

    def __init__(self, tally: Tally, now_ns: Callable[[], int], sender: Sender = NOBODY) -> None:
        self._tally = tally
        self._now_ns = now_ns
        self._sender = sender
        #: By the peer that the requests came from, in the order of the wire.
        self._held: dict[Side, dict[Ticket, Request]] = {side: {} for side in Side}

    def take(self, batch: Batch) -> dict[Ticket, Request]:
        """Wait for the held requests of a batch that was decided and counted; returns them."""
        if not any(issubclass(kind, Hold) for kind in set(map(type, batch.verdicts.values()))):
            return {}
        taken = {
            verdict.ticket: batch.requests[index]
            for index, verdict in sorted(batch.verdicts.items())
            if isinstance(verdict, Hold)
        }
        self._held[batch.side].update(taken)
        return taken

    def claim(self, side: Side, ticket: Ticket) -> bool:
        """Wait for a ticket no longer, since it was resolved; False if nobody waited any more."""
        return self._held[side].pop(ticket, None) is not None

    def drop(self, *sides: Side) -> None:
        """Give up the held requests of these peers, or of both.

        The last goes first, so that no handler passes on to a request what the one before it leaves.
        """
        for side in sides or Side:
            held, self._held[side] = self._held[side], {}
            for ticket, request in reversed(held.items()):
                self._tally.dropped(request, self._now_ns(), self._sender)
                _drop(ticket)


def _drop(ticket: Ticket) -> None:
    try:
        ticket.drop()
    except Exception:  # noqa: BLE001 - whatever it is, the other tickets are dropped all the same
        _log.exception("handler failed to drop a held request")


#: A client whose unwritten answers have grown to this is not read until they are gone.
OUTBOX_BYTES: Final = 1024 * 1024
#: How long one direction may stay silent after the other has ended, where a peer may do that and wait.
HALF_CLOSED_S: Final = 60.0
#: How long parting may take.
PARTING_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Services:
    """What all connections of a data path share."""

    pipeline: Pipeline
    tally: Tally
    buffers: BufferPool
    now_ns: Callable[[], int]
    bytes_read: dict[Side, int]
    limits_kind: Callable[[str], bool]
    commands: LimitCommands
    timings: Timings
    reactor: Reactor
    limiting: Callable[[], bool] = lambda: True
    log_rate: LogRate = field(default_factory=LogRate)

    def log_failed(self, info: ConnectionInfo, error: Exception) -> None:
        """Write down which fault of ours or of a plug-in's ends a connection, at a bounded rate."""
        not_logged = self.log_rate.take((info.listener, type(error)), trio.current_time())
        if not_logged is not None:
            _log.error(
                "connection failed", peer=info.peer, listener=info.listener, not_logged=not_logged, exc_info=error
            )


class Waits(Enum):
    """What one direction waits for; the module's docstring says who goes on with it."""

    READ = auto()
    WRITE = auto()
    TASK = auto()
    ENDED = auto()


_Steps = Generator[Waits, None, None]


class Connection:
    """Two sockets and the session between them.

    Args:
        info: whose connection it is.
        client: the accepted socket.
        broker: the connected socket.
        services: shared by all connections.
        open_session: makes the session; it is given the connection's waker, and what takes questions to Sluice itself.
        broker_left: called when the broker has ended the connection of itself, before the client hears of it.
        half_closes: as the protocol says.
    """

    def __init__(
        self,
        info: ConnectionInfo,
        client: Wire,
        broker: Wire,
        services: Services,
        open_session: Callable[[Callable[[], None], Callable[[CommandRequest], CommandStatus]], Session],
        *,
        broker_left: Callable[[], Awaitable[None]],
        half_closes: bool,
    ) -> None:
        self.info = info
        self.wires = {Side.CLIENT: client, Side.BROKER: broker}
        self.opened_ns = services.now_ns()
        self.bytes_read = dict.fromkeys(Side, 0)
        self._services = services
        self._broker_left = broker_left
        self._half_closes = half_closes
        self._half_closed_s = HALF_CLOSED_S
        self.session = open_session(self._wake_up, self._ask)
        self._watches = {
            side: services.reactor.watch(self.wires[side], partial(self._readable, side), partial(self._writable, side))
            for side in Side
        }
        self._writers = {side: Writer(side, self.wires[side], self._watches[side], self.session.take) for side in Side}
        self._pumps = {side: self._pump(side) for side in Side}
        #: What each direction waits for; None while it runs.
        self._waits: dict[Side, Waits | None] = dict.fromkeys(Side)
        self._both_ended = trio.Event()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._woken = trio.Event()
        self._ended: Side | None = None
        self._deciding = 0
        self._sender = Sender(info.address)
        self._tickets = Tickets(services.tally, services.now_ns, self._sender)
        self._draining = False
        self._parting: tuple[str, str] | None = None

    async def run(self) -> tuple[str, str]:
        """Relay until both directions have ended, or something ends the connection.

        Returns:
            Why it ended: one word for the metric, and a sentence for the log.
        """
        try:
            with self._scope:
                await self._relay_both()
        finally:
            for side in Side:
                self._watches[side].close()
                self._pumps[side].close()
            self._tickets.drop()
            self.session.close()
            self._services.commands.forget(self.info.id)
            # They know this connection, and it them. What a session remembers of unanswered requests can be a megabyte,
            # and the garbage collector seldom looks at what lives as long as a connection.
            self._writers.clear()
            self._watches.clear()
            self._pumps.clear()
            del self.session
        if self._parting is not None:
            return self._parting
        ended = (self._ended or Side.CLIENT).value
        reason = "half_closed" if self._half_closes else f"{ended}_closed"
        return reason, f"silent for {self._half_closed_s:.0f} s after the end of the {ended}'s stream"

    async def _relay_both(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.session.ticks:
                nursery.start_soon(self._guard, self._tick)
            for side in Side:
                self._go_on(side)
            try:
                await self._both_ended.wait()
            finally:
                # Nothing is begun any more, in whatever order the tasks end that are cancelled with the data path.
                for watch in self._watches.values():
                    watch.close()
            ended = (self._ended or Side.CLIENT).value
            self._parting = self._parting or (f"{ended}_closed", f"the {ended} closed first")
            nursery.cancel_scope.cancel()

    def finish(self, reason: str, detail: str) -> None:
        """End the connection at once, whatever is under way; the first reason given is the one that counts."""
        if self._parting is None:
            self._parting = (reason, detail)
        self._scope.cancel()
        self._tickets.drop()

    def drain(self) -> None:
        """Read no further requests, and part once every request in flight has its answer."""
        self._draining = True
        with self._guarded():
            self._check_drained()

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something beside the two directions."""
        assert self._nursery is not None  # noqa: S101 - there is nothing to do before the connection runs
        self._nursery.start_soon(self._guard, task, *args)

    def progressed(self) -> None:
        """Look again at what had to wait for a write or for the session."""
        for side in Side:
            if self._waits[side] is Waits.READ:
                self._want_to_read(side)
        if self._draining:
            self._check_drained()

    def _wake_up(self) -> None:
        self._woken.set()

    def _ask(self, ask: CommandRequest) -> CommandStatus:
        return self._services.commands.ask(self.info, ask, self._on_replied)

    def _on_replied(self, ask: CommandRequest, reply: LimitCommandReply) -> None:
        """Tell the session what is answered to its client; called by whoever answers."""
        if self._parting is not None or self._scope.cancel_called:
            return
        with self._guarded():
            try:
                self.session.replied(ask, reply, self._services.now_ns())
            except Close as close:
                self._part(close.reason, close.detail)
                return
            self._writers[Side.CLIENT].flush()
            self.progressed()

    async def _guard(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        with self._guarded():
            await task(*args)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let no error of one connection reach another."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, PeerError):
            # Who is parted from may be gone already; the other peer is still written what waits for it.
            if self._parting is None:
                self.finish(f"{error.side.value}_error", str(error))
        else:
            # A fault of ours ends this connection, and no other.
            self._services.log_failed(self.info, error)
            self.finish("internal_error", repr(error))

    def _readable(self, side: Side) -> None:
        """Read a peer, if its direction waits for that."""
        if self._waits[side] is not Waits.READ:
            # Not looked at before: mostly a direction is back before there is more to read.
            self._watches[side].want_no_more(EPOLLIN)
        else:
            self._go_on(side)

    def _writable(self, side: Side) -> None:
        """Write more to a peer, and go on with the direction that waits for that."""
        if self._scope.cancel_called:
            # What was read into may be another's buffer by now, so nothing is written any more.
            self._watches[side].close()
            return
        try:
            written = self._writers[side].go_on()
        except Exception as error:  # noqa: BLE001 - as in _guarded
            self._failed(error)
            written = True
        if written:
            if self._waits[side.other] is Waits.WRITE:
                self._go_on(side.other)
            with self._guarded():
                self.progressed()

    def _go_on(self, side: Side) -> None:
        """Let one direction go on until it has to wait again."""
        if self._scope.cancel_called:
            self._watches[side].close()
            return
        self._waits[side] = None
        try:
            waits = next(self._pumps[side], Waits.ENDED)
        except Exception as error:  # noqa: BLE001 - as in _guarded
            self._failed(error)
            waits = Waits.ENDED
        self._waits[side] = waits
        if waits is Waits.READ:
            # The session is asked, and what it raises is its own connection's fault.
            with self._guarded():
                self._want_to_read(side)
        elif waits is Waits.ENDED:
            self._watches[side].want_no_more(EPOLLIN)
            if self._waits[side.other] is Waits.ENDED:
                self._both_ended.set()

    def _want_to_read(self, side: Side) -> None:
        """Have the reactor call as soon as this peer can be read, unless it may not be read now."""
        if not self._must_wait(side):
            self._watches[side].want(EPOLLIN)

    def _await(self, side: Side, task: Callable[..., Awaitable[None]], *args: object) -> _Steps:
        """Let a direction wait for a task of its own."""
        self.start_soon(self._then_go_on, side, task, *args)
        yield Waits.TASK

    async def _then_go_on(self, side: Side, task: Callable[..., Awaitable[None]], *args: object) -> None:
        await task(*args)
        self._go_on(side)

    def _pump(self, side: Side) -> _Steps:
        """Carry one direction until its end."""
        wire, buffers = self.wires[side], self._services.buffers
        bytes_read = self._services.bytes_read
        large = False
        while True:
            yield Waits.READ
            if self.session.takes_turns(side):
                yield from self._await(side, connection_turn)
            if self._must_wait(side):
                self._watches[side].want_no_more(EPOLLIN)
                continue
            buffer = buffers.borrow(large=large and self.session.reads_fast(side))
            try:
                held_back = self.session.held_back(side)
                if held_back >= len(buffer):
                    # There would be no room to read into. The session takes a frame in two pieces as well.
                    held_back = 0
                room = self._room(side, buffer, held_back)
                try:
                    count = wire.receive_into(room)
                except OSError as error:
                    raise PeerError(side, error) from None
                if count is None:
                    continue
                if count == 0:
                    break
                large = count == len(room) or count > CHUNK_BYTES
                self.bytes_read[side] += count
                bytes_read[side] += count
                if self._parting is not None:
                    continue
                if self._ended is not None:
                    self._scope.deadline = trio.current_time() + self._half_closed_s
                try:
                    if held_back:
                        buffer[:held_back] = self.session.take_back(side)
                    yield from self._carry(side, buffer[: held_back + count])
                except Close as close:
                    self._part(close.reason, close.detail)
                    yield from self._until_written(side.other)
                    continue
            finally:
                buffers.give_back(buffer)
            self.progressed()
        yield from self._pass_end_on(side)

    def _room(self, side: Side, buffer: memoryview, held_back: int) -> memoryview:
        """Return as much of the buffer as may be filled, behind what is held back of the peer's frame.

        A drain takes no more than the client's frame in hand.
        """
        if self._parting is not None:
            return buffer
        most = self.session.most_bytes(side)
        if self._draining and side is Side.CLIENT:
            most = min(most, self.session.missing_bytes(side))
        return buffer[held_back : held_back + most]

    def _carry(self, side: Side, chunk: memoryview) -> _Steps:
        """Relay one chunk, in as many turns as the session asks for, and write what comes of it."""
        services, session = self._services, self.session
        own, other = self._writers[side], self._writers[side.other]
        while True:
            read_ns = services.now_ns()
            batch = session.receive(side, chunk, read_ns)
            if batch is not None:
                if not batch.requests:
                    # It only charges: what the session queued need not wait for that.
                    other.flush()
                rest = self._begin(batch)
                if rest is not None:
                    yield from self._await(side, self._decide_later, rest)
                requests = self._decided(batch)
                if requests:
                    # Before the write, which lasts for as long as the broker does not read.
                    services.timings.processing.observe(services.now_ns() - read_ns, requests)
            if side is Side.BROKER and services.pipeline.wants_responses:
                responses = session.take_responses()
                if responses:
                    services.pipeline.observe(self.info, responses)
            # Before the other peer's, which may have to wait: refusals need not wait for a slow broker.
            own.flush()
            while not other.flush():
                yield Waits.WRITE
            left = session.left_bytes(side)
            if not left or self._parting is not None:
                return
            chunk = chunk[-left:]
            self.progressed()
            yield from self._await(side, connection_turn)

    def _begin(self, batch: Batch) -> Coroutine[Any, Any, None] | None:
        """Have the handlers decide one batch; returns what is to be awaited for that, if a lane is to be waited for."""
        rest = None
        # From now on, since a handler may resolve tickets while it decides, and a drain then looks whether it may part.
        self._deciding += 1
        try:
            rest = self._services.pipeline.decide_now(batch)
        finally:
            if rest is None:
                self._deciding -= 1
        return rest

    async def _decide_later(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        finally:
            self._deciding -= 1

    def _decided(self, batch: Batch) -> int:
        """Count a batch that the handlers have decided, and tell the session; return how many are not held."""
        services, sender = self._services, self._sender
        if not sender.language:
            sender.language = self.session.language
        now_ns = services.now_ns()
        services.tally.count(batch, now_ns, sender)
        tickets = self._tickets.take(batch) if batch.verdicts else {}
        if tickets and (self._parting is not None or self._scope.cancel_called):
            self._tickets.drop()
        self.session.decided(batch, now_ns)
        for ticket, request in tickets.items():
            ticket.attach(partial(self._on_resolved, batch.side, request, now_ns))
        return len(batch.requests) - len(tickets)

    def _on_resolved(self, side: Side, request: Request, held_ns: int, ticket: Ticket) -> None:
        """Tell the session what becomes of a request that was held since then; called by who resolved its ticket."""
        if self._scope.cancel_called:
            # What was read into may be another's buffer by now, so nothing is written any more.
            self._tickets.drop()
        if not self._tickets.claim(side, ticket):
            return
        services = self._services
        now_ns = services.now_ns()
        services.timings.held.observe(now_ns - held_ns)
        with self._guarded():
            services.tally.resolved(request, ticket.refuse or ticket.shadow, now_ns, self._sender)
            try:
                self.session.resolved(request, ticket.refuse, now_ns)
            except Close as close:
                self._part(close.reason, close.detail)
                return
            for writer in self._writers.values():
                writer.flush()
            self.progressed()

    def _until_written(self, side: Side) -> _Steps:
        """Wait until all that was taken for a peer is with the kernel."""
        while self._writers[side].busy:
            yield Waits.WRITE

    def _pass_end_on(self, side: Side) -> _Steps:
        """Carry one peer's end of stream to the other; the other direction goes on for as long as it is used.

        Where the protocol knows no half-close nobody waits for what the other peer still has to say. It may hang, so
        both sides end soon, once all that came before the end is written.
        """
        if side is Side.BROKER and self._ended is None and self._parting is None:
            yield from self._await(side, self._broker_left)
        if self._ended is None:
            self._ended = side
            if self._parting is None:
                self._scope.deadline = trio.current_time() + HALF_CLOSED_S
        if self._parting is None:
            self._tickets.drop(side)
            self.session.end(side, self._services.now_ns())
            while not self._writers[side.other].end():
                yield Waits.WRITE
            if not self._half_closes and self._parting is None:
                self._half_closed_s = PARTING_S
                self._scope.deadline = trio.current_time() + PARTING_S
        # When both directions have ended nothing more is written.
        yield from self._until_written(side.other)

    def _must_wait(self, side: Side) -> bool:
        """Whether this peer may not be read now."""
        if self._parting is not None:
            return False
        session = self.session
        if session.paused(side):
            return True
        if side is Side.CLIENT:
            if self._draining and session.between_frames(side):
                return True
            return session.backlog_bytes(side) > OUTBOX_BYTES
        return False

    async def _tick(self) -> None:
        """Call the session when its timer is due or someone woke it."""
        services, session = self._services, self.session
        while True:
            due_ns = session.next_tick_ns()
            with trio.CancelScope() as timer:
                if due_ns is not None:
                    timer.deadline = trio.current_time() + max(0, due_ns - services.now_ns()) / 1e9
                await self._woken.wait()
            self._woken = trio.Event()
            if self._parting is not None:
                return
            try:
                batch = session.tick(services.now_ns())
                if batch is not None:
                    rest = self._begin(batch)
                    if rest is not None:
                        await self._decide_later(rest)
                    self._decided(batch)
            except Close as close:
                self._part(close.reason, close.detail)
                return
            for writer in self._writers.values():
                writer.flush()
            self.progressed()

    def _check_drained(self) -> None:
        if (
            self._parting is None
            and self._nursery is not None
            and not self._deciding
            and self.session.in_flight() == 0
            and all(self.session.between_frames(side) and not self._writers[side].busy for side in Side)
        ):
            self._part("drained", "no request was in flight")

    def _part(self, reason: str, detail: str) -> None:
        """End the connection in order, as the module's docstring says; what is read from here on is dropped."""
        if self._parting is not None:
            return
        self._parting = (reason, detail)
        self._scope.deadline = trio.current_time() + PARTING_S
        self._tickets.drop()
        for writer in self._writers.values():
            with self._guarded():
                writer.end()
        self.progressed()
