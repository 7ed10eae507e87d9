"""One proxied connection: drives a sans-IO session between two sockets.

What comes from one peer is read, decided and written to the other by plain calls, in one go. Where that has to wait it
stops, and what it waits for goes on with it:

    ======== ================================================= ============================================
    Doing    what this peer's direction waits for              who goes on with it
    ======== ================================================= ============================================
    READING  bytes of its peer                                 the reactor, when the peer may be read
    RELAYING nothing: it runs                                  itself
    TURN     its turn among connections that take long         a task
    DECIDING the verdicts of a lane                            a task
    WRITING  the other peer's socket takes no more             that peer's writer, when all is with the kernel
    PAUSED   its session, which left some of a chunk           whatever has the session read on
    KEEPING  its session: the client has gone, but not all     whatever has the session let the last of it go
             that it takes for delivered
    LEAVING  the broker watch, as the broker ended its stream  a task
    ENDING   the end of its stream is behind unwritten bytes   the other peer's writer, likewise
    ENDED    nothing any more                                  nobody
    ======== ================================================= ============================================

Only in READING bytes are read, so TCP carries the back pressure. The connection's stage shows why its client is not
read: it is out of credit if what the session queues has nowhere to go, and for as long as the client's direction is in
WRITING, TURN or DECIDING it is stalled by the broker's writer, by the stage that stands for decoding, or by the
limiter's. What is written to one peer goes through that peer's
one writer, whoever queued it. There is a task only while something is waited for that is no socket, and for sessions
that tick.

A request that is held belongs to its ticket: when that is resolved, the session is told and what it queues is
written, whatever else the connection does. When its peer's stream has ended, or the connection ends, the
ticket is dropped.

A connection that Sluice itself ends is parted from in order: what is queued is written, both peers are sent the end of
the stream, once they have answered the protocol's goodbye if it has one, and what they still send is read and dropped
for a moment. Closing with unread bytes would make the kernel send a reset, and a reset can destroy answers that the
client has not read yet.

A client's reset ends its stream, as a FIN does: what it had sent before is read to its end. Before anything is written
to a client that is not read, what it has sent is read ahead, so that the write cannot destroy it if the client has left
(``Peer.must_read_first``).

Whatever a call from outside raises comes to ``Connection.failed``, which ends this connection and no other. If it was
the broker's socket that failed, what it had sent before still goes to the client. A connection that is over does
nothing any more; it lets go of everything as soon as what is under way has returned.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from select import EPOLLIN, EPOLLOUT
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
import trio

from limiter.rules.resource import USER, Resource
from proxy.common.buffers import CHUNK_BYTES, BufferPool
from proxy.common.log_rate import LogRate
from proxy.control import LimitCommandReply
from proxy.deciding.batch import Batch, ConnectionInfo, Later, Request, Side, Ticket, drop_tickets
from proxy.deciding.counting import Tally
from proxy.deciding.judge import Judge, judge_of
from proxy.deciding.pipeline import Pipeline
from proxy.flow.credit import DEFAULT_CREDIT, Credit, Stage
from proxy.net.limit_commands import LimitCommands
from proxy.net.reactor import BROKER, CLIENT, ROUND_NS, Reactor, Timer
from proxy.net.sockets import ReadAhead, Wire
from proxy.net.tickets import Tickets
from proxy.net.turn import LONGEST_STALL_S, Lending
from proxy.net.writer import PeerError, Writer
from proxy.protocols.base import Advance, Buffer, Close, CommandRequest, CommandStatus, Session, TermsOf, no_terms
from proxy.spool.spool import Spool
from proxy.stats.timing import Timings

if TYPE_CHECKING:
    from sluice_native import Lent, Pieces, Resources

_log = structlog.get_logger(__name__)

#: A client whose unwritten answers have grown to this is not read until they are gone.
OUTBOX_BYTES: Final = 1024 * 1024
#: How long one direction may stay silent after the other has ended, where a peer may do that and wait.
HALF_CLOSED_S: Final = 60.0
#: How long the broker's connection may outlive a client that left something which it takes for delivered. Directly,
#: that would be stored at once; but who waits for a limit that admits next to nothing would keep sockets for ever.
KEPT_S: Final = 600.0
#: A frame that comes as fast as this may take as long as it needs. A modem of 9600 bit/s is faster.
MIN_FRAME_BYTES_PER_S: Final = 1024
#: After so many halves of a heartbeat without a byte a client has left. RabbitMQ waits for two to three heartbeats.
MAX_SILENT: Final = 6
#: A client that is unread for no longer than this, as the broker takes no more or a decision is awaited, is written to
#: as by a broker that is busy for a moment.
BRIEF_NS: Final = 100_000_000
#: How long a write to an unread client waits for what its kernel still sends: until nothing has come for LOOK_S, which
#: is more than a round trip, and at most MAX_LOOKS times as long.
LOOK_S: Final = 0.05
MAX_LOOKS: Final = 4
#: How often a client that is not read is read ahead a little.
KEEP_OPEN_S: Final = 0.4
#: So many times in its idle timeout a connection is looked at.
_IDLE_LOOKS: Final = 4
#: How long parting may take.
PARTING_S: Final = 1.0
_NOTHING: Final = memoryview(b"")
_turns: Final = trio.lowlevel.RunVar[trio.StrictFIFOLock]("proxy.net.connection.turns")


async def connection_turn() -> None:
    """Wait until this connection may read a chunk that takes long: one at a time, and all others go on in between."""
    try:
        lock = _turns.get()
    except LookupError:
        lock = trio.StrictFIFOLock()
        _turns.set(lock)
    async with lock:
        # To take the lock took a turn of the event loop already; this is the one without a chunk.
        await trio.lowlevel.checkpoint()


class Timeouts(NamedTuple):
    """How long a client may keep a connection waiting, as ``ListenerConfig`` says."""

    handshake_s: float = 10.0
    frame_s: float = 60.0
    idle_s: float | None = None


@dataclass(slots=True)
class EndedStages:
    """For how long connections that are over showed a state that is not running, all together."""

    flow_s: float = 0.0
    throttled_s: float = 0.0
    blocked_s: float = 0.0

    def add(self, stage: Stage, now_ns: int) -> None:
        """Add the stage of a connection that is over."""
        figures = stage.figures(now_ns)
        self.flow_s += figures.flow_s
        self.throttled_s += figures.throttled_s
        self.blocked_s += figures.blocked_s


@dataclass(slots=True)
class Services:
    """What all connections of a data path share.

    Attributes:
        spool: where what waits is put aside, if there is one; it is there before the first connection.
        credit: what stages give to those that send to them, all but the store.
        decoding: stands for what is done in turns, since it takes long.
        limiter: stands for the handlers' lanes.
        ahead: what was read ahead of all connections.
        lending: serves connections of which all is plain; None without the compiled part.
        terms: as SessionContext has it.
        tightest: likewise.
        after_consume: likewise.
        rules_version: likewise.
        ended: the connections' stages that are no more.
        lost_messages, lost_bytes: what was lost of clients that assume it delivered, by listener.
    """

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
    resources: "Resources | None" = None
    lending: Lending | None = None
    spool: Spool | None = None
    credit: Credit = DEFAULT_CREDIT
    decoding: Stage = field(default_factory=lambda: Stage("channel", "decoding"))
    limiter: Stage = field(default_factory=lambda: Stage("resource", "limiter"))
    ended: EndedStages = field(default_factory=EndedStages)
    ahead: ReadAhead = field(default_factory=ReadAhead)
    terms: TermsOf = no_terms
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False
    rules_version: Callable[[], int] = lambda: 0
    log_rate: LogRate = field(default_factory=LogRate)
    lost_messages: Counter[str] = field(default_factory=Counter)
    lost_bytes: Counter[str] = field(default_factory=Counter)

    def count_lost(self, info: ConnectionInfo, messages: int, size_bytes: int, unread_bytes: int) -> None:
        """Count what a connection's end has lost of its client, and warn of it, at a bounded rate."""
        self.lost_messages[info.listener] += messages
        self.lost_bytes[info.listener] += size_bytes + unread_bytes
        not_logged = self.log_rate.take((info.listener, "lost"), trio.current_time())
        if not_logged is not None:
            _log.warning(
                "messages lost that their client assumes delivered",
                peer=info.peer,
                listener=info.listener,
                messages=messages,
                bytes=size_bytes,
                unread_bytes=unread_bytes,
                not_logged=not_logged,
            )

    def log_failed(self, info: ConnectionInfo, error: Exception) -> None:
        """Write down which fault of ours or of a plug-in's ends a connection, at a bounded rate."""
        not_logged = self.log_rate.take((info.listener, type(error)), trio.current_time())
        if not_logged is not None:
            _log.error(
                "connection failed", peer=info.peer, listener=info.listener, not_logged=not_logged, exc_info=error
            )


class Calls(NamedTuple):
    """What a session may call of its connection, as ``SessionContext`` says."""

    wake: Callable[[], None]
    ask: Callable[[CommandRequest], CommandStatus]
    give_up: Callable[[Sequence[Request]], None]
    pass_on: Callable[[Sequence[Request]], None]
    lose: Callable[[Sequence[Request]], None]
    stage: Stage
    writer: Stage
    hear_of_writes: Callable[[bool], None]
    end_client: Callable[[], None]
    client_silent: Callable[[], None]


class Doing(Enum):
    """What one direction does; the module's docstring says what it waits for."""

    READING = "reading"
    RELAYING = "relaying"
    TURN = "turn"
    DECIDING = "deciding"
    WRITING = "writing"
    PAUSED = "paused"
    KEEPING = "keeping"
    LEAVING = "leaving"
    ENDING = "ending"
    ENDED = "ended"

    # Enum's own hash is Python code, and directions are looked up for each chunk.
    __hash__ = object.__hash__


#: Once a client's direction does this, it has ended.
_PAST: Final = frozenset({Doing.KEEPING, Doing.ENDING, Doing.ENDED})
#: As long as a client's direction does this, requests may be in its chunk that nobody has decided.
_DECIDING: Final = frozenset({Doing.RELAYING, Doing.TURN, Doing.DECIDING, Doing.WRITING})


class Peer(Writer):
    """One of the two peers of a connection: the direction that comes from it, and the writer of what goes to it.

    Attributes:
        doing: what the direction does.
        opposite: the other peer.
        counted_bytes: of those that are to be read, how many were counted before the compiled part has left them.
    """

    __slots__ = (
        "_buffer",
        "_came_bytes",
        "_chunk",
        "_connection",
        "_keeps_open",
        "_kept",
        "_look",
        "_looks_left",
        "_observed",
        "_services",
        "_session",
        "_unread_ns",
        "counted_bytes",
        "doing",
        "opposite",
    )

    opposite: "Peer"

    def __init__(self, connection: "Connection", side: Side, wire: Wire, services: Services, session: Session) -> None:
        super().__init__(services.reactor, side, wire, connection.take)
        self._connection = connection
        self._services = services
        self._session = session
        self._observed = side is Side.BROKER and services.pipeline.wants_responses
        #: What was read into, and what is there to be relayed, until that is with the kernel.
        self._buffer: memoryview | None = None
        self._chunk = _NOTHING
        self.doing = Doing.READING
        self.counted_bytes = 0
        #: Since when it has not been read, though there may be something.
        self._unread_ns = 0
        #: While a write waits for what is read ahead: when to look again, how often, and what has come since.
        self._look: Timer | None = None
        self._looks_left = self._came_bytes = 0
        #: The beginning of a frame of which the compiled part has to see more.
        self._kept = b""
        #: Looks after a client that is not read.
        self._keeps_open: Timer | None = None

    def readable(self) -> None:
        """Read the peer and relay what it sent, if its direction waits for that."""
        if self._look is not None:
            if self.read_ahead() is None:
                self._end_look()
            return
        if self.doing is not Doing.READING or self._connection.over:
            # Not looked at before: mostly a direction is back before there is more to read.
            self.leave_unread()
            return
        self.doing = Doing.RELAYING
        if self._session.takes_turns(self.side) and self._connection.parting is None:
            self._wait(Doing.TURN, connection_turn, self._read)
        else:
            self._read()

    def writable(self) -> None:
        """Write more to the peer, and go on with what waits for that."""
        if self._connection.over:
            self.unwatch()
            return
        self.write_on()
        if not self.busy:
            self.opposite.go_on()
            self._connection.progressed()

    def failed(self, error: Exception) -> None:
        """End the connection for a fault. One that is parted from goes on with that."""
        connection = self._connection
        connection.failed(error)
        # Twice, since what is left of a chunk may itself end the connection.
        for peer in 2 * (self, self.opposite):
            connection.guard(peer.go_on)

    def write_failed(self, error: PeerError) -> None:
        """Write nothing more to a client that does not take it, and read on; a broker's failure ends the connection."""
        if self.side is Side.BROKER:
            raise error
        if self.wire.ended:
            # It has left, and all that it sent is here.
            self.stop_writing()
        else:
            self._connection.client_failed(error)

    def must_read_first(self) -> bool:
        """Say whether a write waits, for a moment, since the client may have left unnoticed.

        What such a client has sent and its kernel still holds is lost if anything is written to it (see
        ``Wire.read_ahead``). Nothing waits that needs it: a client whose kernel has nothing left is written to at once,
        and so is one that has sent all that may be read ahead, as only a client that is alive does.
        """
        connection = self._connection
        if self.side is Side.BROKER or connection.parting is not None or connection.draining:
            return False
        if self._look is None:
            if not self._session.paused(Side.CLIENT):
                is_read = self.events & EPOLLIN or self.doing is Doing.READING or self.doing is Doing.RELAYING
                if is_read and not connection.must_wait(Side.CLIENT):
                    # It is read, or will be in a moment.
                    return False
                if self._services.now_ns() - self._unread_ns < BRIEF_NS:
                    return False
            if not self.read_ahead():
                return False
            self._looks_left, self._came_bytes = MAX_LOOKS, 0
            self._look = self._services.reactor.after(LOOK_S, self._look_again)
            # What the client still has comes as it is read.
            self.want(EPOLLIN)
        return True

    def leave_unread(self) -> None:
        """Read nothing more for now, though there may be something."""
        if self.events & EPOLLIN:
            self._unread_ns = self._services.now_ns()
        self.want_no_more(EPOLLIN)
        if self.side is Side.CLIENT and self._keeps_open is None and not self._connection.over:
            self._keeps_open = self._services.reactor.after(KEEP_OPEN_S, self._keep_open)

    def _keep_open(self) -> None:
        """Open the receive window of a client that is not read: its kernel gives a shut one up, and what it has.

        It does so after TCP_USER_TIMEOUT, which py-amqp, and so Celery, sets to one second; of a client that has left,
        after some minutes in any case.
        """
        self._keeps_open = None
        connection = self._connection
        if self.events & EPOLLIN or connection.over or connection.draining or self.doing in _PAST:
            return
        if self._look is None:
            self.read_ahead(a_little=True)
        if self.wire.ended:
            connection.guard(connection.client_left)
        else:
            self._keeps_open = self._services.reactor.after(KEEP_OPEN_S, self._keep_open)

    def read_ahead(self, *, a_little: bool = False) -> int | None:
        """Read a client on that its session does not want to read; return as ``Wire.read_ahead`` does."""
        try:
            count = self.wire.read_ahead(self._services.ahead, self._services.reactor, a_little=a_little)
        except OSError as error:
            self._connection.client_failed(PeerError(self.side, error))
            return None
        self._came_bytes += count or 0
        return count

    def _look_again(self) -> None:
        self._look = None
        self._looks_left -= 1
        if self._came_bytes and self._looks_left and not self._connection.over:
            self._came_bytes = 0
            self._look = self._services.reactor.after(LOOK_S, self._look_again)
        else:
            self._connection.guard(self._end_look)

    def _end_look(self) -> None:
        """Write what has waited."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        # Whoever reads it next asks for that, and is then given what was read ahead.
        self.leave_unread()
        self.writable()

    def go_on(self) -> None:
        """Go on if the direction waits for the other peer's writer, or failed on its way."""
        if self._connection.over:
            return
        if self.doing is Doing.WRITING or self.doing is Doing.RELAYING:
            if self.doing is Doing.WRITING and not self.opposite.busy:
                self._show_stall(None)
            if self._written():
                self._relay()
        elif self.doing is Doing.ENDING:
            self._end_written()

    def go_on_with_session(self) -> None:
        """Go on if the direction waits for its session, and need not any more."""
        if self.doing is Doing.PAUSED:
            if not self._connection.must_wait(self.side):
                self._wait(Doing.TURN, connection_turn, self._relay)
        elif self.doing is Doing.KEEPING and not self._session.keeps(self.side):
            self._pass_end_on()

    @property
    def is_quiet(self) -> bool:
        """Whether the direction only waits for bytes, and nothing of this peer is here."""
        return (
            self.doing is Doing.READING
            and self.events == EPOLLIN
            and not self.busy
            and not self.ended
            and self._look is None
            and not self.wire.has_read_ahead
        )

    def keep(self, data: bytes) -> None:
        """Put this before the next bytes of the peer."""
        self._kept = data

    def let_session_have_kept(self) -> None:
        kept, self._kept = self._kept, b""
        if kept:
            self._session.put_back(self.side, kept, self._services.now_ns())

    def lend(self) -> int:
        """Leave the peer to the compiled part; returns its descriptor."""
        self.unwatch()
        if self._keeps_open is not None:
            self._keeps_open.cancel()
            self._keeps_open = None
        return self.wire.fileno()

    def write_later(self, data: bytes) -> None:
        """Write what the kernel took no more of."""
        if data:
            self._rest, self.busy = (memoryview(data),), True
            self.want(EPOLLOUT)

    def go_on_reading(self) -> None:
        """Read on, or wait for the other peer's writer."""
        if self.opposite.busy:
            self.doing = Doing.WRITING
            self._show_stall(self._connection.writer)
        elif not self._connection.must_wait(self.side):
            self.want(EPOLLIN)

    def hear_out(self, chunk: memoryview) -> None:
        """Take what the peer sends as it is parted from, and end the stream to it once nothing is waited for."""
        if not self.ended and self._session.heard_out(self.side, chunk):
            self.end()

    def let_go(self) -> None:
        """Be done; nothing is called any more."""
        for timer in (self._look, self._keeps_open):
            if timer is not None:
                timer.cancel()
        self.unwatch()
        self._give_back()
        # The two know each other. What a session remembers of unanswered requests can be a megabyte, and the garbage
        # collector seldom looks at what lives as long as a connection.
        del self._session, self._take, self.opposite

    def _wait(self, doing: Doing, wait: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        """Let the direction wait for something that is no socket."""
        self.doing = doing
        if doing is Doing.TURN:
            self._show_stall(self._services.decoding)
        elif doing is Doing.DECIDING:
            self._show_stall(self._services.limiter)
        self._connection.start_soon(self._wait_then, wait, then)

    async def _wait_then(self, wait: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        try:
            await wait()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            then = partial(self.failed, error)
        if self._connection.over:
            return
        # Before anything asks whether the client may be read.
        self._show_stall(None)
        self.doing = Doing.RELAYING
        try:
            then()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            self.failed(error)

    def _show_stall(self, follower: Stage | None) -> None:
        """Show what the client's direction waits for; None if nothing."""
        if self.side is Side.CLIENT:
            self._connection.stall(follower)

    def _read(self) -> None:
        connection, session, side = self._connection, self._session, self.side
        if connection.must_wait(side):
            self.doing = Doing.READING
            self.leave_unread()
            return
        room = buffer = self._buffer = self._services.buffers.borrow(large=self._large and session.reads_fast(side))
        held_back = 0
        if connection.parting is None:
            held_back = len(self._kept) or session.held_back(side)
            if held_back >= len(buffer):
                # There would be no room to read into. The session takes a frame in two pieces as well.
                held_back = 0
            most = session.most_bytes(side)
            if connection.draining and side is Side.CLIENT:
                # No more than the frame in hand.
                most = min(most, session.missing_bytes(side))
            room = buffer[held_back : held_back + most]
        try:
            count = self.wire.receive_into(room)
        except OSError as error:
            if connection.parting is None:
                self.write_failed(PeerError(side, error))
            count = 0
        if count:
            large = held_back + count == len(buffer) or count > CHUNK_BYTES
            if large is not self._large:
                self._large = large
                # A broker's large answers are waited for, so they go before floods; but not before what clients ask.
                self.move((BROKER if side is Side.BROKER else CLIENT) + large)
            new = count
            if self.counted_bytes:
                new = max(0, count - self.counted_bytes)
                self.counted_bytes -= count - new
            connection.bytes_read[side] += new
            self._services.bytes_read[side] += new
            if connection.parting is None:
                connection.goes_on()
                if held_back:
                    buffer[:held_back] = self._kept or session.take_back(side)
                    self._kept = b""
                self._chunk = buffer[: held_back + count]
                self._relay()
                return
            connection.guard(self.hear_out, room[:count])
        self._give_back()
        if count == 0:
            self.end_stream()
        else:
            self.doing = Doing.READING
            connection.progressed()

    def _relay(self) -> None:
        """Relay a chunk, or what the session left of one, in parts."""
        ends_ns = perf_counter_ns() + ROUND_NS
        while self._relay_part():
            if perf_counter_ns() >= ends_ns:
                # Others have waited for long enough.
                self._wait(Doing.TURN, connection_turn, self._relay)
                return

    def _relay_part(self) -> bool:
        """Have the session read what it will, and the handlers decide it; return whether more is to follow at once."""
        connection = self._connection
        if connection.parting is not None:
            # Since the last of it was read.
            return self._written()
        read_ns = connection.read_ns = self._services.now_ns()
        if connection.reading is not None and self._fed(connection.reading, read_ns):
            return self._decided()
        batch = self._session.receive(self.side, self._chunk, read_ns)
        if batch is None:
            return self._decided()
        if not batch.requests:
            # It only charges, or counts: what the session queued need not wait for that.
            self.opposite.flush()
        rest = connection.begin(batch)
        if rest is None:
            return self._decided(batch, read_ns)
        decided = partial(self._decided_late, batch, read_ns)
        self._wait(Doing.DECIDING, partial(connection.decide_later, batch, rest), decided)
        return False

    def _fed(self, reading: "Lent", read_ns: int) -> bool:
        """Have the compiled part read the chunk; False if the session has to read on in it."""
        connection, chunk = self._connection, self._chunk
        assert self._services.lending is not None  # noqa: S101 - else nothing is lent
        pieces, stop, leaves = self._services.lending.feed(reading, self.side, chunk, read_ns)
        connection.queue(chunk, pieces)
        if not leaves:
            self._kept = bytes(chunk[stop:])
            return True
        connection.recall()
        self._chunk = chunk[stop:]
        return not self._chunk

    def _decided_late(self, batch: Batch, read_ns: int) -> None:
        if self._decided(batch, read_ns):
            self._relay()

    def _decided(self, batch: Batch | None = None, read_ns: int = 0) -> bool:
        """Write what comes of a chunk, for either peer; return as ``_relay_part`` does."""
        services = self._services
        if batch is not None:
            requests = self._connection.decided(batch)
            if requests:
                # Before the write, which lasts for as long as the broker does not read.
                services.timings.processing.observe(services.now_ns() - read_ns, requests)
        if self._observed:
            responses = self._session.take_responses()
            if responses:
                services.pipeline.observe(self._connection.info, responses)
        # Before the other peer's, which may have to wait: refusals need not wait for a slow broker.
        self.flush()
        self.opposite.flush()
        return self._written()

    def _written(self) -> bool:
        """Read on once what came of a chunk is with the kernel; until then nothing else is read into its buffer.

        Returns:
            As ``_relay_part`` does.
        """
        connection = self._connection
        if connection.over:
            return False
        if self.opposite.busy:
            self.doing = Doing.WRITING
            self._show_stall(connection.writer)
            return False
        left = self._session.left_bytes(self.side)
        if left and connection.parting is None:
            self._chunk = self._chunk[-left:]
            if connection.must_wait(self.side):
                self.doing = Doing.PAUSED
                connection.progressed()
                return False
            if not self._session.takes_turns(self.side):
                self.doing = Doing.RELAYING
                return True
            self._wait(Doing.TURN, connection_turn, self._relay)
        else:
            self._give_back()
            self.doing = Doing.READING
        connection.progressed()
        connection.lend()
        return False

    def _give_back(self) -> None:
        if self._buffer is not None:
            self._services.buffers.give_back(self._buffer)
            self._buffer, self._chunk = None, _NOTHING

    def end_stream(self) -> None:
        """Take note that the peer sends nothing more, and all of it was read."""
        connection, session = self._connection, self._session
        connection.recall()
        if connection.parting is not None or connection.ended is not None:
            self._pass_end_on()
        elif self.side is Side.BROKER and session.closing is not Side.CLIENT:
            self._wait(Doing.LEAVING, connection.broker_left, self._pass_end_on)
        elif connection.keeps(self.side):
            self.doing = Doing.KEEPING
            self.leave()
            connection.keep()
            # What waited to be written is dropped, so the broker is read on.
            self.opposite.go_on()
        else:
            self._pass_end_on()

    def _pass_end_on(self) -> None:
        """Carry the end of the stream to the other peer; its direction goes on for as long as it is used."""
        self.doing = Doing.ENDING
        connection = self._connection
        connection.stream_ended(self.side)
        if connection.parting is None:
            self._session.end(self.side, self._services.now_ns())
            self.opposite.end()
        self._end_written()

    def _end_written(self) -> None:
        if not self.opposite.busy:
            self.doing = Doing.ENDED
            self.want_no_more(EPOLLIN)
            self._connection.end_passed_on()


class Connection:
    """Two sockets and the session between them.

    Args:
        info: whose connection it is.
        client: the accepted socket.
        broker: the connected socket.
        services: shared by all connections.
        open_session: makes the session.
        broker_left: called when the broker has ended the connection of itself, before the client hears of it.
        on_over: called once the connection is over and has let go of everything but the sockets, with the reason, one
            word for the metric, and a sentence for the log.
        half_closes: as the protocol says.
        timeouts: how long it may be kept waiting.
        broker_name: the broker's ``address:port``, for people.
        opened_ns: since when it is open, if not since now.
        lent: its number with the compiled part, which has served it so far; ``start`` takes it back.

    Attributes:
        read_ns: when bytes of either peer were read last; 0 if none were.
        stage: of what its session queues.
        writer: of what goes to the broker.
        parting: why it ends, if it does: the reason and the sentence.
        over: nothing is done any more.
        ended: whose stream was the first to end.
        reading: reads what both peers say, while it is lent but Python serves its sockets.
        draining: no further requests are read.
        half_closed_s: how long the peer that has not ended may be silent.
    """

    #: A dict of so many attributes takes half a KiB more.
    __slots__ = (
        "__weakref__",
        "_came_bytes",
        "_client_failed",
        "_deciding",
        "_failed",
        "_fed",
        "_frame_seen",
        "_had_gone",
        "_half_closes",
        "_hears_of_writes",
        "_judge",
        "_lent",
        "_long_stall",
        "_looks",
        "_on_over",
        "_scopes",
        "_services",
        "_silent",
        "_stalled_by",
        "_tickets",
        "_ticking",
        "_timeouts",
        "_timer",
        "_woken",
        "broker_left",
        "bytes_read",
        "draining",
        "ended",
        "half_closed_s",
        "info",
        "opened_ns",
        "over",
        "parting",
        "peers",
        "read_ns",
        "reading",
        "session",
        "stage",
        "writer",
    )

    def __init__(
        self,
        info: ConnectionInfo,
        client: Wire,
        broker: Wire,
        services: Services,
        open_session: Callable[[Calls], Session],
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
        self.parting: tuple[str, str] | None = None
        self.over = False
        self.ended: Side | None = None
        self._services = services
        self._on_over = on_over
        self._half_closes = half_closes
        self.half_closed_s = HALF_CLOSED_S
        self._timer: Timer | None = None
        self._timeouts = timeouts
        #: What looks after the timeouts, by what is called.
        self._looks: dict[Callable[[], None], Timer] = {}
        #: Where in the client's stream the frame ends that was in hand at the last look; and how much was read by then.
        self._frame_seen: tuple[int, int] | None = None
        #: What became of the broker's socket, while what it had sent is still read; and of the client's.
        self._failed: PeerError | None = None
        self._client_failed: PeerError | None = None
        #: The client had gone before the broker's socket failed, which many a broker answers it with.
        self._had_gone = False
        #: Of the tasks that wait for something.
        self._scopes: set[trio.CancelScope] = set()
        self._woken = trio.Event()
        self._deciding = 0
        self._tickets = Tickets(services.tally, services.now_ns, services.tally.sender(info.address))
        self.draining = False
        self._ticking = False
        self.stage = Stage("connection", info.peer, services.credit, self._on_credit)
        self.writer = Stage("writer", broker_name, services.credit)
        #: Who stalls it: what the client's direction waits for.
        self._stalled_by: Stage | None = None
        self._hears_of_writes = False
        #: Its number with the compiled part, while it is lent; what decides for it there; and what ends a long stall.
        self._lent = lent
        self.reading: Lent | None = None
        self._fed: dict[Side, list[Buffer]] = {Side.CLIENT: [], Side.BROKER: []}
        self._judge: Judge | None = None
        self._long_stall: Timer | None = None
        #: How often in a row nothing had come of the client, and how much had come before.
        self._silent = self._came_bytes = 0
        self.peers: dict[Side, Peer] = {}
        calls = Calls(
            self._wake_up,
            self._ask,
            self._tickets.give_up,
            self._tickets.pass_on,
            self._tickets.lose,
            self.stage,
            self.writer,
            self._hear_of_writes,
            partial(services.reactor.soon, partial(self.guard, self._client_closed)),
            partial(services.reactor.soon, partial(self.guard, self._client_silent)),
        )
        self.session = open_session(calls)
        if services.lending is not None and services.resources is not None and self.session.lends:
            sender = self._tickets.sender
            self._judge = judge_of(services.pipeline, services.tally, services.resources, info, sender)
        wires = {Side.CLIENT: client, Side.BROKER: broker}
        self.peers = {side: Peer(self, side, wire, services, self.session) for side, wire in wires.items()}
        for side, peer in self.peers.items():
            peer.opposite = self.peers[side.other]
        self._hear_of_writes(self._hears_of_writes)

    def start(self, handshake: Timer | None = None) -> None:
        """Relay until both directions have ended, or something ends the connection.

        ``handshake`` is the timer of a connection that has waited for its client before.
        """
        if self.session.ticks:
            self._begin_ticks()
        if handshake is None:
            self._look_in(self._timeouts.handshake_s, self._look_at_handshake)
        else:
            handshake.call = partial(self.guard, self._look_at_handshake)
            self._looks[self._look_at_handshake] = handshake
        if self._timeouts.idle_s is not None:
            # One that the compiled part has served may be idle already.
            looks = 1 if self._lent is None else _IDLE_LOOKS
            self._look_in(self._timeouts.idle_s / looks, self._look_at_idleness)
        self.guard(self.progressed)

    def lend(self) -> None:
        """Let the compiled part serve both peers, if nothing is under way and it reads all that they say."""
        lending, judge = self._services.lending, self._judge
        if (
            lending is None
            or judge is None
            or self.reading is not None
            or self.parting is not None
            or self.over
            or self.draining
            or self.ended is not None
            or self._deciding
            or not all(peer.is_quiet for peer in self.peers.values())
        ):
            return
        if not self._tickets.sender.language:
            # What it has sent until now was not counted.
            self._know_sender(self.info)
        judge.connection, judge.sender = self.info, self._tickets.sender
        lent = self.session.lend(judge)
        if lent is None:
            return
        if all(peer.wire.is_plain for peer in self.peers.values()):
            client, broker = (peer.lend() for peer in self.peers.values())
            try:
                self._lent = lending.lend(self, client, broker, lent)
            except OSError as error:
                # The kernel has no room to watch it there.
                self._services.log_failed(self.info, error)
                self.progressed()
            else:
                return
        self.reading = lent
        for peer, kept in zip(self.peers.values(), lent.take_kept(), strict=True):
            peer.keep(kept)

    def recall(self) -> None:
        """Have Python read both peers again, if the compiled part does."""
        if self._lent is None and self.reading is None:
            return
        self.count_lent()
        number, self._lent = self._lent, None
        reading, self.reading = self.reading, None
        try:
            if reading is not None:
                self.session.returned(reading.give_back())
            elif number is not None:
                self._take_back(number)
            for peer in self.peers.values():
                peer.let_session_have_kept()
                peer.flush()
            if number is not None:
                # Not before: a drain waits for the end of a frame, but for no other.
                for peer in self.peers.values():
                    peer.go_on_reading()
        except Exception as error:  # noqa: BLE001 - as in guard
            self.failed(error)

    def _take_back(self, number: int) -> None:
        assert self._services.lending is not None  # noqa: S101 - else nothing is lent
        state, has_left, unread, unwritten, errnos = self._services.lending.take(number)
        if self._long_stall is not None:
            self._long_stall.cancel()
        self.stall(None)
        self.session.returned(state)
        peers = self.peers.values()
        for peer, not_taken, not_written, errno in zip(peers, unread, unwritten, errnos, strict=True):
            peer.write_later(not_written)
            if has_left:
                peer.wire.put_back(not_taken, errno, self._services.ahead, self._services.reactor)
                peer.counted_bytes = len(not_taken)
            else:
                peer.keep(not_taken)

    def count_lent(self) -> None:
        """Count what the compiled part has done for the connection so far."""
        if self.reading is not None:
            self.session.count_lent(*self.reading.take_counts())
        if self._lent is None or self._services.lending is None:
            return
        requests, refused, read_bytes, read_ns = self._services.lending.take_counts(self._lent)
        self.session.count_lent(requests, refused)
        for side, count in zip(Side, read_bytes, strict=True):
            self.bytes_read[side] += count
        self.read_ns = max(self.read_ns, read_ns)

    def queue(self, chunk: memoryview, pieces: "Pieces") -> None:
        """Have written what the compiled part has made of a chunk."""
        for side, of_side in zip(Side, pieces, strict=True):
            self._fed[side] += [each if isinstance(each, bytes) else chunk[slice(*each)] for each in of_side]

    def take(self, side: Side) -> Sequence[Buffer]:
        """Hand out what waits for a peer."""
        fed = self._fed[side]
        if not fed:
            return self.session.take(side)
        self._fed[side] = []
        return [*fed, *self.session.take(side)]

    def left(self, *, broken: bool = False) -> None:
        """Go on with what the compiled part does not serve; with a broken stream it would leave again and again."""
        if broken:
            self._judge = None
        self.guard(self.progressed)

    def ends(self, *, over: bool) -> None:
        """Is not asked for."""

    def stalled(self, *, on: bool) -> None:
        """Take note that the broker takes no more of what the compiled part writes, or that it does again."""
        self.stall(self.writer if on else None)
        if self._long_stall is not None:
            self._long_stall.cancel()
        self._long_stall = self._services.reactor.after(LONGEST_STALL_S, self.left) if on else None

    def finish(self, reason: str, detail: str) -> None:
        """End the connection at once, whatever is under way; the first reason given is the one that counts."""
        self.recall()
        if self.parting is None:
            self.parting = (reason, detail)
        if not self.over:
            self.over = True
            for scope in self._scopes:
                scope.cancel()
            self._tickets.ends = True
            self._tickets.drop()
            self._services.reactor.soon(self._end)

    def dismiss(self, reason: str, detail: str) -> None:
        """Say goodbye to both peers, and end the connection at once."""
        if self.parting is None and not self.over:
            self.guard(self.session.farewell, detail, self._services.now_ns())
            self.guard(self._flush)
        self.finish(reason, detail)

    def _end(self) -> None:
        if not self.peers:
            # Let go of meanwhile, as the server ends.
            return
        try:
            self._settle()
        except Exception as error:  # noqa: BLE001 - as in guard
            self._services.log_failed(self.info, error)
        self.let_go()
        assert self.parting is not None  # noqa: S101 - that is why it ends
        self._on_over(*self.parting)

    def _settle(self) -> None:
        """Charge and count what the session has not yet: it is over for the limits as well."""
        services = self._services
        batch = self.session.settle(services.now_ns())
        if batch is not None:
            rest = services.pipeline.decide_now(batch)
            services.tally.count(batch, services.now_ns(), self._tickets.sender)
            if rest is not None:
                services.reactor.start_soon(lambda: rest)

    def let_go(self) -> None:
        """Let go of everything but the sockets; nothing of the connection is under way, and nothing is begun."""
        if not self.over:
            self.recall()
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        for timer in self._looks.values():
            timer.cancel()
        self._looks.clear()
        client = self.peers[Side.CLIENT]
        # What a client that is alive has sent, it knows to be lost.
        left = client.wire.ended or self._client_failed is not None
        unread_bytes = client.wire.unread_bytes() if left and client.doing is not Doing.ENDED else 0
        for peer in self.peers.values():
            peer.let_go()
        self.peers.clear()
        tickets, spool = self._tickets, self._services.spool
        tickets.ends = True
        tickets.drop()
        # What is put aside then is on disk, for the next process.
        tickets.ends = spool is None or not spool.keeps
        try:
            self.session.close()
        except Exception as error:  # noqa: BLE001 - as in guard
            self._services.log_failed(self.info, error)
        if tickets.lost_messages or unread_bytes:
            self._services.count_lost(self.info, tickets.lost_messages, tickets.lost_bytes, unread_bytes)
        self._services.commands.forget(self.info.id)
        now_ns = self._services.now_ns()
        self._services.ended.add(self.stage, now_ns)
        for stage in (self.stage, self.writer):
            stage.close(now_ns)
        # The session, what judges for it and what watches the time call the connection back.
        self._timer = self._judge = None
        del self.session

    @property
    def deciding(self) -> bool:
        """Whether something that its client sent is on its way to be decided."""
        return not self.over and self.parting is None and self.peers[Side.CLIENT].doing in _DECIDING

    def drain(self) -> None:
        """Read no further requests, and part once every request in flight has its answer."""
        self.draining = True
        self.guard(self._check_drained)

    def guard(self, step: Callable[..., None], *args: object) -> None:
        """Do something of which no error may reach another connection."""
        try:
            self.recall()
            step(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Do what a session's Close says, or end the connection for a fault."""
        if isinstance(error, Close):
            self.part(error.reason, error.detail)
        elif not isinstance(error, PeerError):
            # A fault of ours ends this connection, and no other.
            self._services.log_failed(self.info, error)
            self.finish("internal_error", repr(error))
        elif self.parting is None and not self.over:
            # Who is parted from may be gone already; the other peer is still written what waits for it.
            broker = self.peers[Side.BROKER]
            if self._failed is None:
                self._had_gone = self.ended is Side.CLIENT
            all_read = self._failed is not None or broker.doing is Doing.ENDED
            self._failed = self._failed or error
            if self.session.closing is Side.CLIENT or all_read:
                self.finish(*self._why())
            else:
                # Before its socket failed the broker may have said why. So it is read until its stream ends.
                self._tickets.ends = True
                self._tickets.drop()
                broker.stop_writing()
                self.end_in(PARTING_S)
                self.progressed()

    def client_failed(self, error: PeerError) -> None:
        """Write nothing to the client any more, as its socket has failed; what it has sent is still read."""
        client = self.peers[Side.CLIENT]
        client.stop_writing()
        if self._client_failed is None and self.parting is None:
            self._client_failed = error
            if client.doing is Doing.ENDED:
                # It waited for the broker's last words, and does so no more.
                self.end_passed_on()

    def _why(self) -> tuple[str, str]:
        """Return the reason and the sentence for the end of a connection whose peer's stream or socket has ended."""
        error = self._client_failed if self._failed is None or self._had_gone else self._failed
        broke = error is not None
        closing = self.session.closing or (None if broke else self.ended or Side.CLIENT)
        if closing is None:
            assert error is not None  # noqa: S101 - else it is known
            return f"{error.side.value}_error", str(error)
        return f"{closing.value}_closed", f"the {closing.value} closed first"

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something that waits, for as long as the connection is not over."""
        scope = trio.CancelScope()
        if self.over:
            scope.cancel()
        self._scopes.add(scope)
        self._services.reactor.start_soon(self._run_task, scope, task, *args)

    async def _run_task(self, scope: trio.CancelScope, task: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            with scope:
                await task(*args)
        except Exception as error:  # noqa: BLE001 - as in guard
            self.failed(error)
        finally:
            self._scopes.discard(scope)

    def progressed(self) -> None:
        """Look again at what had to wait for a write or for the session."""
        if self._lent is not None:
            return
        for peer in self.peers.values():
            if peer.doing is not Doing.READING:
                peer.go_on_with_session()
            elif not peer.events & EPOLLIN and not self.must_wait(peer.side):
                peer.want(EPOLLIN)
        if self.draining:
            self._check_drained()

    def must_wait(self, side: Side) -> bool:
        """Whether this peer may not be read now."""
        if self.parting is not None:
            return False
        session = self.session
        if session.paused(side):
            return True
        if side is Side.CLIENT:
            if self.stage.out_of_credit and not session.client_left:
                return True
            if self.draining and session.between_frames(side):
                return True
            fed_bytes = sum(map(len, self._fed[side]))
            return session.backlog_bytes(side) + fed_bytes > OUTBOX_BYTES
        return False

    def stall(self, follower: Stage | None) -> None:
        """Have the connection show that a later stage takes no more for now, or with None that all do again."""
        before, self._stalled_by = self._stalled_by, follower
        if before is not follower:
            now_ns = self._services.now_ns()
            if follower is not None:
                self.stage.stall(follower, now_ns, on=True)
            if before is not None:
                self.stage.stall(before, now_ns, on=False)

    def alarm(self, reason: str) -> None:
        """Tell the session that Sluice runs short of something, or with an empty reason that it does no more."""
        if self.parting is None and not self.over and not self.info.exempt:
            self.guard(self._alarm, reason)

    def waiting(self) -> Iterator[tuple[Resource, int]]:
        """Yield the resource of each message that waits in memory, and since when; at least the oldest of each."""
        yield from self._tickets.waiting()
        yield from self.session.waiting()

    def purge(self, resource: Resource) -> tuple[int, int]:
        """Have the session refuse or drop some of what it has put aside of a resource; return how many of either."""
        if self.parting is not None or self.over:
            return 0, 0
        try:
            self.recall()
            purged = self.session.purge(resource, self._services.now_ns())
            self._flush()
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
        if client.doing is Doing.READING and self.must_wait(Side.CLIENT):
            # Not read from now on, so what it has sent is read ahead before it is told.
            client.leave_unread()
        self._flush()

    def stream_ended(self, side: Side) -> None:
        """Take note that one peer's stream has ended."""
        if self.parting is None:
            self._tickets.ends |= side is Side.CLIENT
            self._tickets.drop(side)
        if self.ended is None:
            self.ended = side
            self.goes_on()

    def goes_on(self) -> None:
        """Let a peer that goes on after the other has ended do so for longer."""
        if self.ended is not None and self.parting is None and self._failed is None:
            self.end_in(self.half_closed_s)

    def keeps(self, side: Side) -> bool:
        """Say whether what a peer that has gone takes for delivered can still go on."""
        return self._failed is None and self.session.keeps(side)

    def keep(self) -> None:
        """Give up what is held of a client that has gone, but for what it takes for delivered: that for a while."""
        if self.session.closing is not Side.CLIENT:
            self._tickets.drop(Side.CLIENT, refusable=True)
        self.half_closed_s = KEPT_S
        self.end_in(KEPT_S)

    def end_passed_on(self) -> None:
        """End the connection if both streams have ended, or soon.

        Where the protocol knows no half-close, or the client was reset, nobody waits for what the other peer still has
        to say. It may hang, so both sides end soon, once all that came before the end is written.
        """
        is_reset = self._client_failed is not None and self.peers[Side.CLIENT].doing is Doing.ENDED
        # What is kept for a client that has gone is nothing to a broker that has.
        if all(peer.doing in {Doing.ENDED, Doing.KEEPING} for peer in self.peers.values()):
            self.finish(*self._why())
        elif self._failed is not None and self.parting is None:
            # What it had sent is with the client; what that still sends is read and dropped.
            self.parting = self._why()
            self.progressed()
        elif (is_reset or not self._half_closes) and self.parting is None:
            self.half_closed_s = PARTING_S
            self.end_in(PARTING_S)

    def _look_in(self, delay_s: float, look: Callable[[], None]) -> None:
        self._looks[look] = self._services.reactor.after(delay_s, partial(self.guard, look))

    def _look_at_handshake(self) -> None:
        """End the connection if its client has said nothing yet; then look after its frames."""
        timeouts = self._timeouts
        if not self.bytes_read[Side.CLIENT] and self._reads_client():
            raise Close("handshake_timeout", f"nothing came within {timeouts.handshake_s:g} s of the connection")
        self._look_in(timeouts.frame_s, self._look_at_frame)

    def _look_at_frame(self) -> None:
        """End the connection if the frame in hand is still that of the last look and hardly any of it has come since.

        Looking costs nothing for each frame: one is known by where it ends.
        """
        read_bytes, period_s = self.bytes_read[Side.CLIENT], self._timeouts.frame_s
        seen, self._frame_seen = self._frame_seen, None
        missing_bytes = self.session.missing_bytes(Side.CLIENT)
        if self._reads_client() and self.session.within_frame(Side.CLIENT):
            self._frame_seen = read_bytes + missing_bytes, read_bytes
            if seen is not None and seen[0] == self._frame_seen[0]:
                came_bytes = read_bytes - seen[1]
                if came_bytes < period_s * MIN_FRAME_BYTES_PER_S:
                    detail = f"of an unfinished frame {came_bytes} bytes came in {period_s:g} s"
                    raise Close("frame_timeout", f"{detail}; {missing_bytes} are missing")
        self._look_in(period_s, self._look_at_frame)

    def _look_at_idleness(self) -> None:
        """End the connection if neither peer has said anything for long, and nothing is on its way."""
        idle_s = self._timeouts.idle_s
        assert idle_s is not None  # noqa: S101 - it is not looked at otherwise
        silent_s = (self._services.now_ns() - (self.read_ns or self.opened_ns)) / 1e9
        # What is held of a client may take longer, and what it left behind has a bound of its own.
        if silent_s >= idle_s and self.ended is None and self._reads_client() and not self.session.in_flight():
            raise Close("idle_timeout", f"nothing came from either side for {idle_s:g} s")
        self._look_in(idle_s / _IDLE_LOOKS, self._look_at_idleness)

    def _reads_client(self) -> bool:
        """Say whether it is up to the client that nothing more of it is read."""
        return self.peers[Side.CLIENT].doing is Doing.READING and not self.must_wait(Side.CLIENT)

    def end_in(self, delay_s: float) -> None:
        """Be over after so long; what was said before counts no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._services.reactor.after(delay_s, self._time_is_over)

    def _time_is_over(self) -> None:
        reason, detail = self._why()
        if self._half_closes and self._failed is None and self._client_failed is None:
            ended = (self.ended or Side.CLIENT).value
            reason, detail = "half_closed", f"not over {self.half_closed_s:.0f} s after the end of the {ended}'s stream"
        self.finish(reason, detail)

    def part(self, reason: str, detail: str) -> None:
        """End the connection in order, as the module's docstring says; what is read from here on is dropped."""
        if self.parting is not None:
            return
        self.recall()
        self.parting = (reason, detail)
        self.end_in(PARTING_S)
        self._tickets.ends = True
        self._tickets.drop()
        self.guard(self.session.farewell, detail, self._services.now_ns())
        for peer in self.peers.values():
            self.guard(peer.flush)
            self.guard(peer.hear_out, _NOTHING)
        self.progressed()

    def _check_drained(self) -> None:
        if (
            self.parting is None
            and not self._deciding
            and self.session.in_flight() == 0
            and all(self.session.between_frames(side) and not peer.busy for side, peer in self.peers.items())
        ):
            self.part("drained", "Sluice is shutting down, and nothing is in flight any more")
        elif self.parting is None and not self._deciding and self.ended is None and not self.peers[Side.CLIENT].ended:
            # Who waits for no answer would go on sending, into a socket that nobody reads.
            detail = "Sluice is shutting down, and reads no more"
            if self.session.dismisses_client(detail, self._services.now_ns()):
                self.peers[Side.CLIENT].end()

    def _client_closed(self) -> None:
        """End the stream to a client that has closed the connection, and bound how long what it sent may take."""
        if not self.over and self.parting is None:
            self.keep()
            self.peers[Side.CLIENT].end()

    def _client_silent(self) -> None:
        """Take a client that has sent nothing for too long for one that has left."""
        if self.over or self.parting is not None:
            return
        client = self.peers[Side.CLIENT]
        if not client.events & EPOLLIN and client.read_ahead() is None and not client.wire.ended:
            # There is no room for what it may have sent.
            return
        unread_bytes = client.wire.unread_bytes()
        came_bytes = self.bytes_read[Side.CLIENT] + unread_bytes
        self._silent = self._silent + 1 if came_bytes == self._came_bytes else 0
        self._came_bytes = came_bytes
        if self._silent < MAX_SILENT:
            return
        if client.doing is Doing.READING and not unread_bytes:
            self.client_failed(PeerError(Side.CLIENT, TimeoutError("no heartbeats")))
            client.end_stream()
        else:
            self.client_left()

    def client_left(self) -> None:
        """Read all that is left of a client that has gone, however much waits: until then it has what it consumes."""
        self.session.client_left = True
        self.progressed()

    def begin(self, batch: Batch) -> Coroutine[Any, Any, None] | None:
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

    async def decide_later(self, batch: Batch, rest: Coroutine[Any, Any, None]) -> None:
        """Wait for what ``begin`` returned."""
        try:
            await rest
        finally:
            self._deciding -= 1
        if self.over:
            # It ended when the verdicts were there and nobody had taken them.
            drop_tickets(batch.verdicts)

    def decided(self, batch: Batch) -> int:
        """Count a batch that the handlers have decided, and tell the session; return how many are not held."""
        services, session, sender = self._services, self.session, self._tickets.sender
        if (
            batch.connection is not self.info
            or (not sender.language and session.language)
            or (not sender.product and session.product)
        ):
            self._know_sender(batch.connection)
        now_ns = services.now_ns()
        services.tally.count(batch, now_ns, self._tickets.sender)
        tickets = self._tickets.take(batch) if batch.verdicts else {}
        if tickets and (self.parting is not None or self.over):
            self._tickets.drop()
        self.session.decided(batch, now_ns)
        for ticket, request in tickets.items():
            ticket.attach(partial(self._on_resolved, batch.side, request, now_ns))
        undecided = sum(isinstance(verdict, Later) for verdict in batch.verdicts.values()) if tickets else 0
        return len(batch.requests) - len(tickets) - undecided

    def _know_sender(self, info: ConnectionInfo) -> None:
        """Count for whom the session knows by now."""
        self.info, session = info, self.session
        user = next((scope.name for scope in info.scopes if scope.kind == USER), "")
        self._tickets.sender = self._services.tally.sender(info.address, session.language, user, session.product)

    def _on_resolved(self, side: Side, request: Request, held_ns: int, ticket: Ticket) -> None:
        """Tell the session what becomes of a request that was held since then; called by who resolved its ticket."""
        if self._tickets.claim(side, request):
            now_ns = self._services.now_ns()
            self._services.timings.held.observe(now_ns - held_ns)
            self.guard(self._resolved, request, ticket, now_ns)

    def _resolved(self, request: Request, ticket: Ticket, now_ns: int) -> None:
        # Whoever resolved it cannot refuse what nobody can.
        refuse = None if request.refusal == "impossible" else ticket.refuse
        self._services.tally.resolved(request, refuse or ticket.shadow, now_ns, self._tickets.sender)
        self.session.resolved(request, refuse, now_ns)
        self._flush()

    def _flush(self) -> None:
        """Write what the session has for either peer, outside of a chunk."""
        for peer in self.peers.values():
            peer.flush()
        self.progressed()

    def _ask(self, ask: CommandRequest) -> CommandStatus:
        return self._services.commands.ask(self.info, ask, self._on_replied)

    def _on_replied(self, ask: CommandRequest, reply: LimitCommandReply) -> None:
        """Tell the session what is answered to its client; called by whoever answers."""
        if self.parting is None:
            self.guard(self._replied, ask, reply)

    def _replied(self, ask: CommandRequest, reply: LimitCommandReply) -> None:
        self.session.replied(ask, reply, self._services.now_ns())
        self._flush()

    def _wake_up(self) -> None:
        self._woken.set()
        if not self._ticking and not self.over:
            self._begin_ticks()

    def _begin_ticks(self) -> None:
        self._ticking = True
        self.start_soon(self._tick, self.session)

    def _hear_of_writes(self, on: bool) -> None:  # noqa: FBT001 - as SessionContext has it
        self._hears_of_writes = on
        for peer in self.peers.values():
            peer.on_written = self._written if on else None

    def _written(self, side: Side) -> None:
        """Tell the session that all that was taken for a peer is with the kernel."""
        if not self.over:
            self.session.written(side, self._services.now_ns())

    def _on_credit(self) -> None:
        """Read the client on, once what gives credit is done; a direction that is busy looks by itself."""
        if self.peers and self.peers[Side.CLIENT].doing in {Doing.READING, Doing.PAUSED}:
            self._services.reactor.soon(partial(self.guard, self.progressed))

    async def _tick(self, session: Session) -> None:
        """Call the session when its timer is due or someone woke it."""
        services = self._services
        while True:
            due_ns = session.next_tick_ns()
            with trio.CancelScope() as timer:
                if due_ns is not None:
                    timer.deadline = trio.current_time() + max(0, due_ns - services.now_ns()) / 1e9
                await self._woken.wait()
            self._woken = trio.Event()
            if self.parting is not None:
                return
            self.recall()
            batch = session.tick(services.now_ns())
            if batch is not None:
                rest = self.begin(batch)
                if rest is not None:
                    await self.decide_later(batch, rest)
                if self.over:
                    return
                self.decided(batch)
            self._flush()
            self.lend()
