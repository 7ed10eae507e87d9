"""A proxied connection: a client's socket, a broker's socket, and the sans-IO session between them.

Each socket is served by a ``Peer``, without a task. Tasks wait for handlers and probes, and run the session's timer.
The connection's stage shows why Sluice is not reading from the client. It is out of credit while the session's queues
are full, and stalled while the writer to the broker, decoding or the limiter catches up.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from limiter.rules.resource import USER, Resource
from proxy.control import LimitCommandReply
from proxy.deciding.batch import Batch, ConnectionInfo, Later, Request, Side, Ticket, drop_tickets
from proxy.deciding.judge import Judge, judge_of
from proxy.flow.credit import Stage
from proxy.net.peer import Peer, PeerError, PeerState
from proxy.net.reactor import Timer
from proxy.net.services import Services
from proxy.net.shutdown import Shutdown
from proxy.net.sockets import Wire
from proxy.net.tickets import Tickets
from proxy.net.timeouts import TimeoutChecks, Timeouts
from proxy.net.turn import MAX_STALL_S, Pieces
from proxy.protocols.base import Buffer, Close, CommandRequest, CommandStatus, Session

if TYPE_CHECKING:
    from sluice_native import Lent

#: Sluice stops reading from a client while more bytes than this are waiting to be written to the client.
OUTBOX_BYTES: Final = 1024 * 1024
_STALLED_NS: Final = round(MAX_STALL_S * 1e9)
_MAX_LEND_BACKOFF: Final = 63
"""Maximum number of chunks that Python processes before it lends a connection again after lending did not help."""


class Connection:
    """The two peers of a proxied connection, and their session.

    Args:
        broker_left: Awaited when the broker has closed the connection, before the client is disconnected.
        on_over: Called with the close reason, as a metric label and a sentence for the log, after everything except
            the sockets has been released.
        lent: The connection's number if it is on loan to the compiled extension. ``start`` takes it back.

    Attributes:
        read_ns: When data was last read from either peer. 0 if none was.
        reading: The compiled extension's parser while it parses data that Python reads. Otherwise None.
    """

    #: An instance dict would use half a KiB more.
    __slots__ = (
        *("__weakref__", "_fed", "_judge", "_lend_backoff", "_lend_backoff_left", "_lent", "_long_stall", "_on_over"),
        *("_scopes", "_services", "_stalled_by", "_stalled_ns", "_timeout_checks", "_watches_writes", "_woken"),
        *("broker_left", "bytes_read", "draining", "info", "open_batches", "opened_ns", "peers", "read_ns", "reading"),
        *("session", "shutdown", "stage", "tickets", "writer"),
    )

    session: Session
    stage: Stage
    writer: Stage

    def __init__(
        self,
        info: ConnectionInfo,
        client: Wire,
        broker: Wire,
        services: Services,
        open_session: Callable[["Connection"], Session],
        *,
        broker_left: Callable[[], Awaitable[None]],
        on_over: Callable[[str, str], None],
        half_closes: bool,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - it is immutable
        broker_name: str = "",
        opened_ns: int | None = None,
        lent: int | None = None,
    ) -> None:
        self.info = info
        self.opened_ns = services.now_ns() if opened_ns is None else opened_ns
        self.read_ns = 0
        self.bytes_read = {Side.CLIENT: 0, Side.BROKER: 0}
        self.broker_left = broker_left
        self.draining = False
        self.shutdown = Shutdown(self, services.reactor, half_closes=half_closes)
        self.tickets = Tickets(services.tally, services.now_ns, services.tally.sender(info.address))
        self.stage = Stage("connection", info.peer, services.credit, self._on_credit)
        self.writer = Stage("writer", broker_name, services.credit)
        self._services = services
        self._on_over = on_over
        self._timeout_checks = TimeoutChecks(self, timeouts, services)
        self._scopes: dict[trio.CancelScope, None] = {}
        self._woken: trio.Event | None = None
        self.open_batches = 0
        self._stalled_by: Stage | None = None
        self._stalled_ns = 0
        self._watches_writes = False
        self._lent = lent
        self.reading: Lent | None = None
        self._fed: dict[Side, list[Buffer]] = {}
        self._judge: Judge | None = None
        self._long_stall: Timer | None = None
        self._lend_backoff = self._lend_backoff_left = 0
        self.peers: dict[Side, Peer] = {}
        self.session = open_session(self)
        if services.lending is not None and services.resources is not None and self.session.lends:
            sender = self.tickets.sender
            self._judge = judge_of(services.pipeline, services.tally, services.resources, info, sender)
        wires = {Side.CLIENT: client, Side.BROKER: broker}
        self.peers = {side: Peer(self, side, wire, services, self.session) for side, wire in wires.items()}
        for side, peer in self.peers.items():
            peer.opposite = self.peers[side.other]

    def start(self, handshake: Timer | None = None) -> None:
        if self.session.ticks:
            self._begin_ticks()
        self._timeout_checks.start(handshake, may_be_idle=self._lent is not None)
        self.guard(self.progressed)

    def guard(self, step: Callable[..., None], *args: object) -> None:
        try:
            self.recall()
            step(*args)
        except Exception as error:  # noqa: BLE001 - any error
            self.failed(error)

    def failed(self, error: Exception) -> None:
        if isinstance(error, Close):
            self.shutdown.close_gracefully(error.reason, error.detail)
        elif isinstance(error, PeerError):
            self.shutdown.broker_failed(error)
        else:
            self._services.log_failed(self.info, error)
            self.shutdown.abort("internal_error", repr(error))

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        scope = trio.CancelScope()
        if self.shutdown.over:
            scope.cancel()
        self._scopes[scope] = None
        self._services.reactor.start_soon(self._run_task, scope, task, *args)

    async def _run_task(self, scope: trio.CancelScope, task: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            with scope:
                await task(*args)
        except Exception as error:  # noqa: BLE001 - as in guard
            self.failed(error)
        finally:
            self._scopes.pop(scope, None)

    def cancel_tasks(self) -> None:
        for scope in self._scopes:
            scope.cancel()

    def progressed(self) -> None:
        if self._lent is not None:
            return
        for peer in self.peers.values():
            peer.progressed()
        if self.draining:
            self.shutdown.check_drained()

    def must_wait(self, side: Side) -> bool:
        if self.shutdown.close_reason is not None:
            return False
        session = self.session
        if session.paused(side):
            return True
        if side is Side.CLIENT:
            if self.stage.out_of_credit and not session.client_left:
                return True
            if self.draining and session.between_frames(side):
                return True
            fed_bytes = sum(map(len, self._fed[side])) if side in self._fed else 0
            return session.backlog_bytes(side) + fed_bytes > OUTBOX_BYTES
        return False

    def stall(self, follower: Stage | None) -> None:
        """Record which later stage keeps Sluice from reading from the client. None means that no stage does."""
        before, self._stalled_by = self._stalled_by, follower
        if before is not follower:
            now_ns = self._stalled_ns = self._services.now_ns()
            if follower is not None:
                self.stage.stall(follower, now_ns, on=True)
            if before is not None:
                self.stage.stall(before, now_ns, on=False)

    def is_stalled(self, now_ns: int) -> bool:
        return self._stalled_by is self.writer and now_ns - self._stalled_ns >= _STALLED_NS

    def broker_takes(self) -> None:
        self._stalled_ns = self._services.now_ns()

    def _on_credit(self) -> None:
        if self.peers and self.peers[Side.CLIENT].state is PeerState.READING:
            self._services.reactor.soon(self._read_on)

    def _read_on(self) -> None:
        try:
            self.progressed()
        except Exception as error:  # noqa: BLE001 - as in guard
            self.failed(error)

    def lend(self) -> None:
        lending, judge = self._services.lending, self._judge
        if (
            lending is None
            or judge is None
            or self.reading is not None
            or self.shutdown.close_reason is not None
            or self.shutdown.over
            or self.draining
            or self.shutdown.first is not None
            or self.open_batches
            or not all(peer.is_quiet for peer in self.peers.values())
        ):
            return
        if self._lend_backoff_left:
            self._lend_backoff_left -= 1
            return
        if not self.tickets.sender.language:
            self._update_sender(self.info)
        judge.connection, judge.sender = self.info, self.tickets.sender
        lent = self.session.lend(judge)
        if lent is None:
            return
        if all(peer.wire.is_plain for peer in self.peers.values()):
            client, broker = (peer.wire.fileno() for peer in self.peers.values())
            unread = self.peers[Side.CLIENT].lend(), self.peers[Side.BROKER].lend()
            try:
                self._lent = lending.lend(self, client, broker, lent, self.info.scope, unread=unread)
            except OSError as error:
                self._services.log_failed(self.info, error)
                for peer, data in zip(self.peers.values(), unread, strict=True):
                    peer.put_back(data)
                self.progressed()
            else:
                return
        self.reading = lent
        for peer, kept in zip(self.peers.values(), lent.take_kept(), strict=True):
            peer.keep(kept)

    def recall(self) -> None:
        if self._lent is None and self.reading is None:
            return
        self.count_lent()
        number, self._lent = self._lent, None
        reading, self.reading = self.reading, None
        try:
            if reading is not None:
                self._returned(reading.give_back())
            elif number is not None:
                self._take_back(number)
            for peer in self.peers.values():
                peer.feed_kept_bytes()
                peer.flush()
            if number is not None:
                # Read even during a drain, because the current frame may be incomplete.
                for peer in self.peers.values():
                    peer.resume_reading()
        except Exception as error:  # noqa: BLE001 - as in guard
            self.failed(error)

    def _returned(self, state: Any) -> None:
        in_vain = self.session.returned(state)
        self._lend_backoff = self._lend_backoff_left = (
            min(2 * self._lend_backoff + 1, _MAX_LEND_BACKOFF) if in_vain else 0
        )

    def _take_back(self, number: int) -> None:
        assert self._services.lending is not None  # noqa: S101 - otherwise nothing is lent
        state, begun, unread, unwritten, errnos = self._services.lending.take(number)
        if self._long_stall is not None:
            self._long_stall.cancel()
        self.stall(None)
        self._returned(state)
        peers = self.peers.values()
        for peer, beginning, not_taken, not_written, errno in zip(peers, begun, unread, unwritten, errnos, strict=True):
            peer.write_later(not_written)
            if beginning:
                peer.keep(beginning)
            if not_taken or errno:
                peer.put_back(not_taken, errno)

    def count_lent(self) -> None:
        try:
            if self.reading is not None:
                self.session.count_lent(*self.reading.take_counts())
            if self._lent is not None and self._services.lending is not None:
                requests, refused, read_bytes, read_ns = self._services.lending.take_counts(self._lent)
                self.session.count_lent(requests, refused)
                for side, count in zip(Side, read_bytes, strict=True):
                    self.bytes_read[side] += count
                self.read_ns = max(self.read_ns, read_ns)
        except Exception as error:  # noqa: BLE001 - a wrong count must not end a connection
            self._services.log_failed(self.info, error)

    def unanswered(self) -> int:
        """Return the number of unanswered messages, excluding those that ``Lending.take_signals`` returns."""
        if self.peers and self.peers[Side.CLIENT].busy:
            # The broker's answers may be unread because the client is slow.
            return 0
        if self._lent is not None:
            return self.session.unanswered_in_batches()
        if self.reading is not None:
            return self.reading.unanswered() + self.session.unanswered_in_batches()
        return self.session.unanswered()

    def queue(self, chunk: memoryview, pieces: Pieces) -> None:
        for side, of_side in zip(Side, pieces, strict=True):
            fed = self._fed.setdefault(side, [])
            fed += [each if isinstance(each, bytes) else chunk[slice(*each)] for each in of_side]

    def take(self, side: Side) -> Sequence[Buffer]:
        if side not in self._fed:
            return self.session.take(side)
        return [*self._fed.pop(side), *self.session.take(side)]

    def left(self, *, broken: bool = False) -> None:
        if broken:
            # Never lend the connection again, because it would be returned immediately.
            self._judge = None
        self.guard(self.progressed)

    def ends(self, *, over: bool) -> None:
        """Do nothing, because the peers handle the end of each stream."""

    def stalled(self, *, on: bool) -> None:
        self.stall(self.writer if on else None)
        if self._long_stall is not None:
            self._long_stall.cancel()
        self._long_stall = self._services.reactor.after(MAX_STALL_S, self.left) if on else None

    def begin(self, batch: Batch) -> Coroutine[Any, Any, None] | None:
        """Start deciding on a batch. If a handler must be awaited, return a coroutine to pass to ``decide_later``."""
        rest = None
        # Count the batch first, because a drain checks this count when a handler resolves tickets.
        self.open_batches += 1
        try:
            rest = self._services.pipeline.decide_now(batch)
        finally:
            if rest is None:
                self.open_batches -= 1
        return rest

    async def decide_later(self, batch: Batch, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        finally:
            self.open_batches -= 1
        if self.shutdown.over:
            drop_tickets(batch.verdicts)

    def decided(self, batch: Batch) -> int:
        """Count a batch and pass its verdicts to the session. Return how many requests passed or were refused."""
        services, session, sender = self._services, self.session, self.tickets.sender
        if (
            batch.connection is not self.info
            or (not sender.language and session.language)
            or (not sender.product and session.product)
        ):
            self._update_sender(batch.connection)
        now_ns = services.now_ns()
        services.tally.count(batch, now_ns, self.tickets.sender)
        tickets = self.tickets.take(batch) if batch.verdicts else {}
        if tickets and (self.shutdown.close_reason is not None or self.shutdown.over):
            self.tickets.drop()
        self.session.decided(batch, now_ns)
        for ticket, request in tickets.items():
            ticket.attach(partial(self._on_resolved, request, now_ns))
        undecided = sum(isinstance(verdict, Later) for verdict in batch.verdicts.values()) if tickets else 0
        return len(batch.requests) - len(tickets) - undecided

    def _update_sender(self, info: ConnectionInfo) -> None:
        self.info, session = info, self.session
        user = next((scope.name for scope in info.scopes if scope.kind == USER), "")
        self.tickets.sender = self._services.tally.sender(info.address, session.language, user, session.product)

    def _on_resolved(self, request: Request, held_ns: int, ticket: Ticket) -> None:
        if self.tickets.claim(request):
            now_ns = self._services.now_ns()
            self._services.timings.held.observe(now_ns - held_ns)
            self.guard(self._resolved, request, ticket, now_ns)

    def _resolved(self, request: Request, ticket: Ticket, now_ns: int) -> None:
        refuse = None if request.refusal == "impossible" else ticket.refuse
        self._services.tally.resolved(request, refuse or ticket.shadow, now_ns, self.tickets.sender)
        self.session.resolved(request, refuse, now_ns)
        self.flush()

    def flush(self) -> None:
        for peer in self.peers.values():
            peer.flush()
        self.progressed()

    def waits_for_client(self) -> bool:
        return self.peers[Side.CLIENT].state is PeerState.READING and not self.must_wait(Side.CLIENT)

    def drain(self) -> None:
        self.draining = True
        self.guard(self.shutdown.check_drained)

    @property
    def deciding(self) -> bool:
        shutdown = self.shutdown
        return not shutdown.over and shutdown.close_reason is None and self.peers[Side.CLIENT].is_deciding

    def alarm(self, reason: str) -> None:
        if self.shutdown.close_reason is None and not self.shutdown.over and not self.info.exempt:
            self.guard(self._alarm, reason)

    def waiting(self) -> Iterator[tuple[Resource, int]]:
        yield from self.tickets.waiting()
        yield from self.session.waiting()

    def purge(self, resource: Resource) -> tuple[int, int]:
        if self.shutdown.close_reason is not None or self.shutdown.over:
            return 0, 0
        try:
            self.recall()
            purged = self.session.purge(resource, self._services.now_ns())
            self.flush()
        except Exception as error:  # noqa: BLE001 - as in guard
            self.failed(error)
            return 0, 0
        return purged

    def _alarm(self, reason: str) -> None:
        now_ns = self._services.now_ns()
        self.session.alarm(reason, now_ns)
        if not reason:
            self.stage.block(now_ns, on=False)
        client = self.peers[Side.CLIENT]
        if client.state is PeerState.READING and self.must_wait(Side.CLIENT):
            # Pause the client before the session writes to it, so that its data is read ahead.
            client.pause_reading()
        self.flush()

    def ask(self, ask: CommandRequest) -> CommandStatus:
        return self._services.commands.ask(self.info, ask, self._on_replied)

    def _on_replied(self, ask: CommandRequest, reply: LimitCommandReply) -> None:
        if self.shutdown.close_reason is None:
            self.guard(self._replied, ask, reply)

    def _replied(self, ask: CommandRequest, reply: LimitCommandReply) -> None:
        self.session.replied(ask, reply, self._services.now_ns())
        self.flush()

    def wake(self) -> None:
        if self._woken is None and not self.shutdown.over:
            self._begin_ticks()
        if self._woken is not None:
            self._woken.set()

    def _begin_ticks(self) -> None:
        self._woken = woken = trio.Event()
        self.start_soon(self._tick, self.session, woken)

    def watch_writes(self, on: bool) -> None:  # noqa: FBT001 - as in SessionContext
        self._watches_writes = on

    def end_client(self) -> None:
        self._services.reactor.soon(partial(self.guard, self.shutdown.client_closed))

    def client_silent(self) -> None:
        self._services.reactor.soon(partial(self.guard, self.shutdown.client_silent))

    def written(self, side: Side) -> None:
        if self._watches_writes and not self.shutdown.over:
            self.session.written(side, self._services.now_ns())

    async def _tick(self, session: Session, woken: trio.Event) -> None:
        services = self._services
        while True:
            due_ns = session.next_tick_ns()
            with trio.CancelScope() as timer:
                if due_ns is not None:
                    timer.deadline = trio.current_time() + max(0, due_ns - services.now_ns()) / 1e9
                await woken.wait()
            self._woken = woken = trio.Event()
            if self.shutdown.close_reason is not None:
                return
            self.recall()
            batch = session.tick(services.now_ns())
            if batch is not None:
                rest = self.begin(batch)
                if rest is not None:
                    await self.decide_later(batch, rest)
                if self.shutdown.over:
                    return
                self.decided(batch)
            self.flush()
            self.lend()

    def start_close(self, detail: str) -> None:
        self.guard(self.session.start_close, detail, self._services.now_ns())

    def close_client(self, detail: str) -> bool:
        return self.session.close_client(detail, self._services.now_ns())

    def end(self) -> None:
        if not self.peers:
            return
        try:
            self._settle()
        except Exception as error:  # noqa: BLE001 - as in guard
            self._services.log_failed(self.info, error)
        self.release()
        assert self.shutdown.close_reason is not None  # noqa: S101 - set by abort
        self._on_over(*self.shutdown.close_reason)

    def _settle(self) -> None:
        services = self._services
        batch = self.session.settle(services.now_ns())
        if batch is not None:
            rest = services.pipeline.decide_now(batch)
            services.tally.count(batch, services.now_ns(), self.tickets.sender)
            if rest is not None:
                services.reactor.start_soon(lambda: rest)

    def release(self) -> None:
        if not self.shutdown.over:
            self.recall()
        unread_bytes = self.shutdown.left_unread
        self.shutdown.release()
        self._timeout_checks.stop()
        for peer in self.peers.values():
            peer.release()
        self.peers.clear()
        tickets, services = self.tickets, self._services
        tickets.ends = True
        tickets.drop()
        # Messages in a persistent spool are not lost, because the next process sends them.
        tickets.ends = services.spool is None or not services.spool.is_persistent
        try:
            self.session.close()
        except Exception as error:  # noqa: BLE001 - as in guard
            services.log_failed(self.info, error)
        if tickets.lost_messages or unread_bytes:
            services.count_lost(self.info, tickets.lost_messages, tickets.lost_bytes, unread_bytes)
        services.commands.forget(self.info.id)
        now_ns = services.now_ns()
        services.waited_ns.update(self.stage.waited_ns(now_ns))
        for stage in (self.stage, self.writer):
            stage.close(now_ns)
        self._judge = None
        del self.session
