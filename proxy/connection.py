"""One proxied connection: drives a sans-IO session between two sockets.

One task per direction, each read, decide, write, read: while a write waits nothing is read, so TCP carries
the back pressure. A third task exists only for sessions that tick. What is written to one peer goes through
that peer's one writer, whoever queued it.

A request that is held belongs to its ticket: when that is resolved, the session is told and what it queues is
written, whatever else the connection does. When its peer's stream has ended, or the connection ends, the
ticket is dropped.

A connection that Sluice itself ends is parted from in order: what is queued is written, both peers are sent
the end of the stream, and what they still send is read and dropped for a moment. Closing with unread bytes
would make the kernel send a reset, and a reset can destroy answers that the client has not read yet.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from limiter.recorder import Sender
from proxy.batch import Batch, ConnectionInfo, Request, Side, Ticket, drop_tickets
from proxy.buffers import CHUNK_BYTES, BufferPool
from proxy.control import RemoteReply
from proxy.pipeline import Pipeline
from proxy.protocols.base import Ask, Asked, Close, Session
from proxy.remote import RemoteCommands
from proxy.sockets import Wire
from proxy.tally import Tally
from proxy.tickets import Tickets
from proxy.writer import PeerError, Writer

_log = structlog.get_logger(__name__)

#: A client whose unwritten answers have grown to this is not read until they are gone.
OUTBOX_BYTES: Final = 1024 * 1024
#: How long one direction may stay silent after the other has ended.
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
    commands: RemoteCommands


class Connection:
    """Two sockets and the session between them.

    Args:
        info: whose connection it is.
        client: the accepted socket.
        broker: the connected socket.
        services: shared by all connections.
        open_session: makes the session; it is given the connection's waker, and what takes questions to Sluice itself.
    """

    def __init__(
        self,
        info: ConnectionInfo,
        client: Wire,
        broker: Wire,
        services: Services,
        open_session: Callable[[Callable[[], None], Callable[[Ask], Asked]], Session],
    ) -> None:
        self.info = info
        self.wires = {Side.CLIENT: client, Side.BROKER: broker}
        self.opened_ns = services.now_ns()
        self.bytes_read = dict.fromkeys(Side, 0)
        self._services = services
        self.session = open_session(self._wake_up, self._ask)
        self._writers = {
            side: Writer(side, self.wires[side], self.session.take, self.start_soon, self.progressed) for side in Side
        }
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._progress = trio.lowlevel.ParkingLot()
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
            self._tickets.drop()
            self._services.commands.forget(self.info.id)
        if self._parting is not None:
            return self._parting
        ended = (self._ended or Side.CLIENT).value
        return "half_closed", f"silent for {HALF_CLOSED_S:.0f} s after the end of the {ended}'s stream"

    async def _relay_both(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.session.ticks:
                nursery.start_soon(self._guard, self._tick)
            async with trio.open_nursery() as pumps:
                for side in Side:
                    pumps.start_soon(self._guard, self._pump, side)
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
        """Run something beside the pumps: the remainder of a write, or what is called for from outside."""
        assert self._nursery is not None  # noqa: S101 - there is nothing to do before the connection runs
        self._nursery.start_soon(self._guard, task, *args)

    def progressed(self) -> None:
        """Look again at what had to wait for a write or for the session."""
        if self._progress:
            self._progress.unpark_all()
        if self._draining:
            self._check_drained()

    def _wake_up(self) -> None:
        self._woken.set()

    def _ask(self, ask: Ask) -> Asked:
        return self._services.commands.ask(self.info, ask, self._on_replied)

    def _on_replied(self, ask: Ask, reply: RemoteReply) -> None:
        """Tell the session what is answered to its client; called by whoever answers."""
        if self._parting is not None or self._scope.cancel_called:
            return
        with self._guarded():
            try:
                self.session.replied(ask, reply, self._services.now_ns())
            except Close as close:
                self._part_soon(close.reason, close.detail)
                return
            self._writers[Side.CLIENT].flush_soon()
            self.progressed()

    async def _guard(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        with self._guarded():
            await task(*args)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let no error of one connection reach another."""
        try:
            yield
        except PeerError as error:
            # Who is parted from may be gone already; the other peer is still written what waits for it.
            if self._parting is None:
                self.finish(f"{error.side.value}_error", str(error))
        except trio.ClosedResourceError:
            self.finish("closed", "closed while in use")
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this connection, and no other
            _log.exception("connection failed", peer=self.info.peer, listener=self.info.listener)
            self.finish("internal_error", repr(error))

    async def _pump(self, side: Side) -> None:
        """Carry one direction until its end."""
        wire, buffers = self.wires[side], self._services.buffers
        bytes_read = self._services.bytes_read
        more = large = False
        while True:
            if more:
                # There is likely more to read at once; to ask the kernel would take as long as to read.
                more = False
                await trio.lowlevel.checkpoint()
            else:
                await wire.readable()
            while self._must_wait(side):
                await self._progress.park()
            buffer = buffers.borrow(large=large and self.session.reads_fast(side))
            try:
                held_back = self.session.held_back(side)
                room = self._room(side, buffer, held_back)
                try:
                    count = wire.receive_into(room)
                except OSError as error:
                    raise PeerError(side, error) from None
                if count is None:
                    continue
                if count == 0:
                    break
                more = count == len(room)
                large = more or count > CHUNK_BYTES
                self.bytes_read[side] += count
                bytes_read[side] += count
                if self._parting is not None:
                    continue
                if self._ended is not None:
                    self._scope.deadline = trio.current_time() + HALF_CLOSED_S
                try:
                    if held_back:
                        buffer[:held_back] = self.session.take_back(side)
                    await self._carry(side, buffer[: held_back + count])
                except Close as close:
                    await self._part(close.reason, close.detail)
                    continue
            finally:
                buffers.give_back(buffer)
            self.progressed()
        await self._pass_end_on(side)

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

    async def _carry(self, side: Side, chunk: memoryview) -> None:
        """Relay one chunk, in as many turns as the session asks for, and write what comes of it."""
        while True:
            await self._relay(side, chunk)
            # Before the other peer's, which may have to wait: refusals need not wait for a slow broker.
            self._writers[side].flush_soon()
            await self._writers[side.other].flush()
            left = self.session.left_bytes(side)
            if not left or self._parting is not None:
                return
            chunk = chunk[-left:]
            self.progressed()
            await trio.lowlevel.checkpoint()

    async def _relay(self, side: Side, chunk: memoryview) -> None:
        """Give one chunk to the session, and what it holds to the pipeline."""
        services, session = self._services, self.session
        batch = session.receive(side, chunk, services.now_ns())
        if batch is not None:
            if not batch.requests:
                # It only charges: what the session queued need not wait for that.
                self._writers[side.other].flush_soon()
            await self._decide(batch)
        if side is Side.BROKER and services.pipeline.wants_responses:
            responses = session.take_responses()
            if responses:
                services.pipeline.observe(self.info, responses)

    async def _decide(self, batch: Batch) -> None:
        """Have the handlers decide one batch, count it, and tell the session."""
        await self._judge(batch)
        now_ns = self._services.now_ns()
        tickets = self._tickets.take(batch) if batch.verdicts else {}
        if tickets and (self._parting is not None or self._scope.cancel_called):
            self._tickets.drop()
        self.session.decided(batch, now_ns)
        for ticket, request in tickets.items():
            ticket.attach(partial(self._on_resolved, batch.side, request))

    async def _judge(self, batch: Batch) -> None:
        """Have the handlers decide one batch, and count it."""
        services = self._services
        self._deciding += 1
        try:
            await services.pipeline.decide(batch)
        except BaseException:
            drop_tickets(batch.verdicts)
            raise
        finally:
            self._deciding -= 1
        sender = self._sender
        if not sender.language:
            sender.language = self.session.language
        services.tally.count(batch, services.now_ns(), sender)

    async def _charge(self, batch: Batch) -> None:
        """Charge what a held request turned out to cost; its session may be waiting for the verdicts on a chunk."""
        await self._judge(batch)
        self.progressed()

    def _on_resolved(self, side: Side, request: Request, ticket: Ticket) -> None:
        """Tell the session what becomes of a request that was held; called by whoever resolved its ticket."""
        if self._scope.cancel_called:
            # What was read into may be another's buffer by now, so nothing is written any more.
            self._tickets.drop()
        if not self._tickets.claim(side, ticket):
            return
        services = self._services
        now_ns = services.now_ns()
        with self._guarded():
            services.tally.resolved(request, ticket.refuse or ticket.shadow, now_ns, self._sender)
            try:
                batch = self.session.resolved(request, ticket.refuse, now_ns)
            except Close as close:
                self._part_soon(close.reason, close.detail)
                return
            if batch is not None:
                self.start_soon(self._charge, batch)
            for writer in self._writers.values():
                writer.flush_soon()
            self.progressed()

    async def _pass_end_on(self, side: Side) -> None:
        """Carry one peer's end of stream to the other; the other direction goes on for as long as it is used."""
        if self._ended is None:
            self._ended = side
            if self._parting is None:
                self._scope.deadline = trio.current_time() + HALF_CLOSED_S
        if self._parting is None:
            self._tickets.drop(side)
            self.session.end(side, self._services.now_ns())
            await self._writers[side.other].end()

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
                    await self._decide(batch)
            except Close as close:
                await self._part(close.reason, close.detail)
                return
            for writer in self._writers.values():
                writer.flush_soon()
            self.progressed()

    def _check_drained(self) -> None:
        if (
            self._parting is None
            and self._nursery is not None
            and not self._deciding
            and self.session.in_flight() == 0
            and all(self.session.between_frames(side) and not self._writers[side].busy for side in Side)
        ):
            self._part_soon("drained", "no request was in flight")

    def _part_soon(self, reason: str, detail: str) -> None:
        """Part in a task of its own; from here on nothing else is begun."""
        if self._parting is None:
            self._parting = (reason, detail)
            self._tickets.drop()
            self.start_soon(self._part, reason, detail)

    async def _part(self, reason: str, detail: str) -> None:
        """End the connection in order, as the module's docstring says; the pumps drop what they read from here on."""
        self._parting = self._parting or (reason, detail)
        self._scope.deadline = trio.current_time() + PARTING_S
        self._tickets.drop()
        self._progress.unpark_all()
        async with trio.open_nursery() as nursery:
            for writer in self._writers.values():
                nursery.start_soon(self._guard, writer.end)
