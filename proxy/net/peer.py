"""One peer of a connection: reads it and relays what it sends, and writes to it, by plain calls in one go.

    ======== ================================================= ============================================
    Doing    what the direction waits for                      who goes on with it
    ======== ================================================= ============================================
    READING  bytes of its peer, or its turn if there are some  the reactor, while the peer may be read
    RELAYING nothing: it runs                                  itself
    DECIDING the verdicts of a lane                            a task
    WRITING  the other peer's socket takes no more             that peer's writer, when all is with the kernel
    KEEPING  its session: the client has gone, but not all     whatever has the session let the last of it go
             that it takes for delivered
    LEAVING  the broker watch, as the broker ended its stream  a task
    ENDING   the end of its stream is behind unwritten bytes   the other peer's writer, likewise
    ENDED    nothing any more                                  nobody
    ======== ================================================= ============================================

Bytes are read only in READING, so TCP carries the back pressure. They come from the chunk in hand, if the session left
some of it, then from what was read ahead, then from the kernel. A peer has one writer: what the kernel does not take at
once is written when the socket is writable again.

A client that leaves more than the receive window holds keeps the rest in its own kernel, which forgets it as soon as
something is written to it. So before anything is written to a client that is not read, what it has sent is read ahead
(``Peer.must_read_first``).
"""

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from select import EPOLLIN, EPOLLOUT
from typing import TYPE_CHECKING, Final

from proxy.deciding.batch import Batch, Side
from proxy.flow.credit import Stage
from proxy.net.reactor import BROKER, CLIENT, Timer, Watched
from proxy.net.services import Services
from proxy.net.sockets import Wire
from proxy.protocols.base import Buffer, Session

if TYPE_CHECKING:
    from sluice_native import Lent

    from proxy.net.connection import Connection

#: A client that is unread for no longer than this, as the broker takes no more or a decision is awaited, is written to
#: as by a broker that is busy for a moment.
BRIEF_NS: Final = 100_000_000
#: How long a write to an unread client waits for what its kernel still sends: until nothing has come for LOOK_S, which
#: is more than a round trip, and at most MAX_LOOKS times as long.
LOOK_S: Final = 0.05
MAX_LOOKS: Final = 4
#: How often a client that is not read is read ahead a little.
KEEP_OPEN_S: Final = 0.4
_NOTHING: Final = memoryview(b"")


class PeerError(Exception):
    """A socket of one peer failed."""

    def __init__(self, side: Side, error: OSError) -> None:
        super().__init__(f"{side.value}: {error.strerror or error}")
        self.side = side


class Doing(Enum):
    """What one direction does; the module's docstring says what it waits for."""

    READING = "reading"
    RELAYING = "relaying"
    DECIDING = "deciding"
    WRITING = "writing"
    KEEPING = "keeping"
    LEAVING = "leaving"
    ENDING = "ending"
    ENDED = "ended"


class Peer(Watched):
    """One of the two peers of a connection: the direction that comes from it, and the writer of what goes to it.

    Attributes:
        doing: what the direction does.
        opposite: the other peer.
        counted_bytes: of those that are to be read, how many were counted before the compiled part has left them.
        busy: something is taken to be written to it, and not yet with the kernel.
        ended: the end of the stream was sent. What the session queues for this peer later is dropped.
    """

    __slots__ = (
        *("_buffer", "_came_bytes", "_chunk", "_connection", "_ending", "_ends", "_keeps_open", "_kept", "_look"),
        *("_looks_left", "_observed", "_rest", "_services", "_session", "_unread_ns", "busy", "counted_bytes", "doing"),
        *("ended", "opposite", "side", "wire"),
    )

    opposite: "Peer"

    def __init__(self, connection: "Connection", side: Side, wire: Wire, services: Services, session: Session) -> None:
        super().__init__(services.reactor, wire.fileno(), BROKER if side is Side.BROKER else CLIENT)
        self.side = side
        self.wire = wire
        self._connection = connection
        self._ending = connection.ending
        self._services = services
        self._session = session
        self._observed = side is Side.BROKER and services.pipeline.wants_responses
        #: What was read into, and what of it is to be relayed, until that is with the kernel.
        self._buffer: memoryview | None = None
        self._chunk = _NOTHING
        #: The beginning of a frame of which the compiled part has to see more.
        self._kept = b""
        self.doing = Doing.READING
        self.counted_bytes = 0
        #: What was taken to be written.
        self._rest: Sequence[Buffer] = ()
        #: The end of the stream is to be sent behind that.
        self._ends = False
        self.busy = self.ended = False
        #: Since when it has not been read, though there may be something.
        self._unread_ns = 0
        #: While a write waits for what is read ahead: when to look again, how often, and what has come since.
        self._look: Timer | None = None
        self._looks_left = self._came_bytes = 0
        #: Looks after a client that is not read.
        self._keeps_open: Timer | None = None

    # --- Reading and relaying ---------------------------------------------------------------------

    def read_on(self) -> None:
        self.want(EPOLLIN)
        if self._chunk:
            self._show_stall(self._services.decoding)
        if self._chunk or self.wire.has_unread:
            self.reactor.count_readable(self)

    def readable(self) -> None:
        """Read the peer and relay what it sent, if its direction waits for that."""
        if self._look is not None:
            if self.read_ahead() is None:
                self._end_look()
            return
        if self.doing is Doing.READING and self._chunk:
            # Before anything asks whether the client may be read.
            self._show_stall(None)
        if self.doing is not Doing.READING or self._ending.over or self._connection.must_wait(self.side):
            # Not looked at before: mostly a direction is back before there is more to read.
            self.leave_unread()
            return
        self.doing = Doing.RELAYING
        if self._ending.parting is not None:
            self._hear_out()
        elif self._chunk or self._read():
            self._relay()

    def _read(self) -> bool:
        """Read a chunk; return whether there is one."""
        session, side = self._session, self.side
        buffer = self._buffer = self._services.buffers.borrow()
        if len(self._kept) >= len(buffer):
            # There is no room to read behind it.
            self._connection.recall()
        kept = len(self._kept)
        most = session.most_bytes(side)
        if self._connection.draining and side is Side.CLIENT:
            # No more than the frame in hand.
            most = min(most, session.missing_bytes(side))
        count = self._receive_into(buffer[kept : kept + most])
        if count:
            self.takes_long = kept + count == len(buffer)
            self._ending.goes_on()
            buffer[:kept], self._kept = self._kept, b""
            self._chunk = buffer[: kept + count]
        else:
            self._end_chunk(is_over=count == 0)
        return bool(count)

    def _receive_into(self, room: memoryview) -> int | None:
        try:
            count = self.wire.receive_into(room)
        except OSError as error:
            if self._ending.parting is None:
                self._write_failed(PeerError(self.side, error))
            return 0
        if count:
            self._count(count)
        return count

    def _count(self, count: int) -> None:
        new = max(0, count - self.counted_bytes)
        self.counted_bytes -= count - new
        self._connection.bytes_read[self.side] += new
        self._services.bytes_read[self.side] += new

    def _relay(self) -> None:
        """Have the session read what it will of the chunk, and the handlers decide it."""
        connection = self._connection
        read_ns = connection.read_ns = self._services.now_ns()
        if connection.reading is not None and self._is_fed(connection.reading, read_ns):
            self._decided(None, read_ns)
            return
        batch = self._session.receive(self.side, self._chunk, read_ns)
        if batch is not None:
            if not batch.requests:
                # It only charges, or counts: what the session queued need not wait for that.
                self.opposite.flush()
            rest = connection.begin(batch)
            if rest is not None:
                self._show_stall(self._services.limiter)
                decided = partial(self._decided, batch, read_ns)
                self._wait(Doing.DECIDING, partial(connection.decide_later, batch, rest), decided)
                return
        self._decided(batch, read_ns)

    def _decided(self, batch: Batch | None, read_ns: int) -> None:
        """Write what comes of the chunk, for either peer."""
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
        self._written()

    def _written(self) -> None:
        """Read on once what came of the chunk is with the kernel; until then nothing else is read into its buffer."""
        if self._ending.over:
            return
        if self.opposite.busy:
            self.doing = Doing.WRITING
            self._show_stall(self._connection.writer)
            return
        left = self._session.left_bytes(self.side) if self._ending.parting is None else 0
        if left:
            self._chunk = self._chunk[-left:]
        self.takes_long = self.takes_long or left > 0
        self._end_chunk(keeps=left > 0)
        self._connection.lend()

    def _end_chunk(self, *, keeps: bool = False, is_over: bool = False) -> None:
        """Wait for more, or for the turn of what is left of the chunk."""
        if not keeps:
            self._give_back()
        if is_over:
            self.end_stream()
            return
        self.doing = Doing.READING
        if self.events & EPOLLIN:
            self.read_on()
        self._connection.progressed()

    def _hear_out(self) -> None:
        """Drop what the peer sends as it is parted from."""
        self._give_back()
        buffer = self._buffer = self._services.buffers.borrow()
        count = self._receive_into(buffer)
        if count:
            self._connection.guard(self.hear, buffer[:count])
        self._end_chunk(is_over=count == 0)

    def hear(self, chunk: memoryview = _NOTHING) -> None:
        """Take what the peer sends as it is parted from, and end the stream to it once nothing is waited for."""
        if not self.ended and self._session.heard_out(self.side, chunk):
            self.end()

    def _give_back(self) -> None:
        if self._buffer is not None:
            self._services.buffers.give_back(self._buffer)
            self._buffer, self._chunk = None, _NOTHING

    @property
    def unread_bytes(self) -> int:
        """How many bytes have come that the session has not read."""
        left = len(self._chunk) if self.doing is Doing.READING else 0
        return left + self.wire.unread_bytes()

    def end_stream(self) -> None:
        """Take note that the peer sends nothing more, and all of it was read."""
        self._connection.recall()
        ending, session = self._ending, self._session
        if ending.parting is not None or ending.first is not None:
            self._pass_end_on()
        elif self.side is Side.BROKER and session.closing is not Side.CLIENT:
            self._wait(Doing.LEAVING, self._connection.broker_left, self._pass_end_on)
        elif ending.keeps(self.side):
            self.doing = Doing.KEEPING
            self.stop_writing()
            self.unwatch()
            ending.keep()
            # What waited to be written is dropped, so the broker is read on.
            self.opposite.go_on()
        else:
            self._pass_end_on()

    def _pass_end_on(self) -> None:
        """Carry the end of the stream to the other peer; its direction goes on for as long as it is used."""
        self.doing = Doing.ENDING
        self._ending.stream_ended(self.side)
        if self._ending.parting is None:
            self._session.end(self.side, self._services.now_ns())
            self.opposite.end()
        self._end_written()

    def _end_written(self) -> None:
        if not self.opposite.busy:
            self.doing = Doing.ENDED
            self.want_no_more(EPOLLIN)
            self._ending.end_passed_on()

    # --- Waiting ----------------------------------------------------------------------------------

    def _wait(self, doing: Doing, wait: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        self.doing = doing
        self._connection.start_soon(self._wait_then, wait, then)

    async def _wait_then(self, wait: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        try:
            await wait()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            then = partial(self.failed, error)
        if self._ending.over:
            return
        # Before anything asks whether the client may be read.
        self._show_stall(None)
        self.doing = Doing.RELAYING
        try:
            then()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            self.failed(error)

    def go_on(self) -> None:
        """Go on if the direction waits for the other peer's writer, or failed on its way."""
        if self._ending.over:
            return
        if self.doing is Doing.WRITING or self.doing is Doing.RELAYING:
            if self.doing is Doing.WRITING and not self.opposite.busy:
                self._show_stall(None)
            self._written()
        elif self.doing is Doing.ENDING:
            self._end_written()

    def progressed(self) -> None:
        if self.doing is Doing.READING:
            if not self.events & EPOLLIN and not self._connection.must_wait(self.side):
                self.read_on()
        elif self.doing is Doing.KEEPING and not self._session.keeps(self.side):
            self._pass_end_on()

    @property
    def is_deciding(self) -> bool:
        """Whether requests may be in the chunk in hand that nobody has decided."""
        if self.doing is Doing.READING:
            return bool(self._chunk and self.events & EPOLLIN)
        return self.doing is Doing.RELAYING or self.doing is Doing.DECIDING or self.doing is Doing.WRITING

    @property
    def is_past(self) -> bool:
        """Whether the peer's stream has ended, and nothing of it is on its way any more but what is kept."""
        return self.doing is Doing.ENDED or self.doing is Doing.KEEPING

    def _show_stall(self, follower: Stage | None) -> None:
        if self.side is Side.CLIENT:
            self._connection.stall(follower)

    # --- Writing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all that waits for this peer, as far as the kernel takes it.

        Raises:
            PeerError: the broker's socket failed; what waits for it is dropped.
        """
        if not self.busy:
            buffers = self._connection.take(self.side)
            if buffers and not self.ended:
                # Not asked of a peer whose kernel held nothing more a moment ago: it is asked for each write.
                if (self.takes_long or not self.events & EPOLLIN) and self.must_read_first():
                    self._rest, self.busy = buffers, True
                else:
                    self._send(buffers)

    def writable(self) -> None:
        """Write more to the peer, then the end of the stream if that waits, and go on with what waits for that."""
        if self._ending.over:
            self.unwatch()
            return
        if self.busy:
            self.busy = False
            if self.side is Side.BROKER:
                self._connection.broker_takes()
            self._send(self._rest)
            # A peer that takes more is there, so nothing has to be read first.
            buffers = () if self.busy else self._connection.take(self.side)
            if buffers and not self.ended:
                self._send(buffers)
        if not self.busy:
            self.want_no_more(EPOLLOUT)
            if self._ends:
                self.end()
        if not self.busy:
            self.opposite.go_on()
            self._connection.progressed()

    def write_later(self, data: bytes) -> None:
        """Write what the compiled part has not."""
        if data:
            self._rest, self.busy = (memoryview(data),), True
            self.want(EPOLLOUT)

    def _send(self, buffers: Sequence[Buffer]) -> None:
        try:
            self._rest = self.wire.send_now(buffers)
        except OSError as error:
            self._rest = ()
            self.want_no_more(EPOLLOUT)
            self._write_failed(PeerError(self.side, error))
            return
        if self._rest:
            self.busy = True
            self.want(EPOLLOUT)
        else:
            self._connection.written(self.side)

    def end(self) -> None:
        """Write all that waits for this peer, then the end of the stream.

        Raises:
            PeerError: as ``flush`` does.
        """
        self._ends = True
        self.flush()
        if not self.busy and not self.ended:
            self.ended = True
            try:
                self.wire.end()
            except OSError as error:
                self._write_failed(PeerError(self.side, error))

    def stop_writing(self) -> None:
        """Write nothing any more, but read on: the peer takes nothing."""
        self.ended, self.busy, self._rest = True, False, ()
        self.want_no_more(EPOLLOUT)

    def failed(self, error: Exception) -> None:
        """End the connection for a fault. One that is parted from goes on with that."""
        connection = self._connection
        connection.failed(error)
        # Twice, since what is left of a chunk may itself end the connection.
        for peer in 2 * (self, self.opposite):
            connection.guard(peer.go_on)

    def _write_failed(self, error: PeerError) -> None:
        """Write nothing more to a client that does not take it, and read on; a broker's failure ends the connection."""
        if self.side is Side.BROKER:
            raise error
        if self.wire.ended:
            # It has left, and all that it sent is here.
            self.stop_writing()
        else:
            self._ending.client_failed(error)

    # --- A client that is not read ----------------------------------------------------------------

    def must_read_first(self) -> bool:
        """Say whether a write waits, for a moment, since the client may have left unnoticed.

        Nothing waits that needs it: a client whose kernel has nothing left is written to at once, and so is one that
        has sent all that may be read ahead, as only a client that is alive does.
        """
        connection = self._connection
        if self.side is Side.BROKER or self._ending.parting is not None or connection.draining:
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
            self._look = self.reactor.after(LOOK_S, self._look_again)
            # What the client still has comes as it is read.
            self.want(EPOLLIN)
        return True

    def leave_unread(self) -> None:
        """Read nothing more for now, though there may be something."""
        if self.events & EPOLLIN:
            self._unread_ns = self._services.now_ns()
        self.want_no_more(EPOLLIN)
        if self.doing is Doing.READING and self._chunk:
            # It does not wait for its turn any more.
            self._show_stall(None)
        if self.side is Side.CLIENT and self._keeps_open is None and not self._ending.over:
            self._keeps_open = self.reactor.after(KEEP_OPEN_S, self._keep_open)

    def _keep_open(self) -> None:
        """Open the receive window of a client that is not read: its kernel gives a shut one up, and what it has.

        It does so after TCP_USER_TIMEOUT, which py-amqp, and so Celery, sets to one second; of a client that has left,
        after some minutes in any case.
        """
        self._keeps_open = None
        if self.events & EPOLLIN or self._ending.over or self._connection.draining:
            return
        if self.is_past or self.doing is Doing.ENDING:
            return
        if self._look is None:
            self.read_ahead(a_little=True)
        if self.wire.ended:
            self._connection.guard(self._ending.client_left)
        else:
            self._keeps_open = self.reactor.after(KEEP_OPEN_S, self._keep_open)

    def read_ahead(self, *, a_little: bool = False) -> int | None:
        """Read a client on that its session does not want to read; return as ``Wire.read_ahead`` does."""
        try:
            count = self.wire.read_ahead(self._services.ahead, a_little=a_little)
        except OSError as error:
            self._ending.client_failed(PeerError(self.side, error))
            return None
        self._came_bytes += count or 0
        return count

    def _look_again(self) -> None:
        self._look = None
        self._looks_left -= 1
        if self._came_bytes and self._looks_left and not self._ending.over:
            self._came_bytes = 0
            self._look = self.reactor.after(LOOK_S, self._look_again)
        else:
            self._connection.guard(self._end_look)

    def _end_look(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        # Whoever reads it next asks for that, and is then given what was read ahead.
        self.leave_unread()
        self.writable()

    # --- Lending ----------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether the direction waits for bytes, and nothing is on its way to the peer.

        What was received and not read goes along, if the compiled part serves the socket as well.
        """
        return (
            self.doing is Doing.READING
            and self.events == EPOLLIN
            and not (self.busy or self.ended or self.wire.ended)
            and self._look is None
            and (self.wire.is_plain or not (self._chunk or self.wire.has_unread))
        )

    def _is_fed(self, reading: "Lent", read_ns: int) -> bool:
        """Have the compiled part read the chunk; False if the session has to read on in it."""
        connection, chunk = self._connection, self._chunk
        assert self._services.lending is not None  # noqa: S101 - else nothing is lent
        signals = self._services.signals[connection.info.scope]
        pieces, stop, leaves = self._services.lending.feed(reading, self.side, chunk, read_ns, signals)
        connection.queue(chunk, pieces)
        if not leaves:
            self._kept = bytes(chunk[stop:])
            return True
        connection.recall()
        self._chunk = chunk[stop:]
        return not self._chunk

    def keep(self, data: bytes) -> None:
        self._kept = data

    def let_session_have_kept(self) -> None:
        kept, self._kept = self._kept, b""
        if kept:
            self._session.put_back(self.side, kept, self._services.now_ns())

    def lend(self) -> bytes:
        """Leave the peer to the compiled part; returns what was received and not read."""
        self.unwatch()
        ahead = self.wire.take_ahead()
        self._count(len(ahead))
        unread = bytes(self._chunk) + ahead
        self._give_back()
        if self._keeps_open is not None:
            self._keeps_open.cancel()
            self._keeps_open = None
        return unread

    def put_back(self, unread: bytes, errno: int = 0) -> None:
        """Have bytes that were received, and counted, read here; then what they met is raised, if anything."""
        self.wire.put_back(unread, errno, self._services.ahead)
        self.counted_bytes = len(unread)

    def go_on_reading(self) -> None:
        # If it must wait, it is left unread once there is something: how long that lasts counts from then on.
        self.read_on()
        if self.opposite.busy:
            self.doing = Doing.WRITING
            self._show_stall(self._connection.writer)

    def let_go(self) -> None:
        """Be done; nothing is called any more."""
        for timer in (self._look, self._keeps_open):
            if timer is not None:
                timer.cancel()
        self.unwatch()
        self._give_back()
        # The two know each other. What a session remembers of unanswered requests can be a megabyte, and the garbage
        # collector seldom looks at what lives as long as a connection.
        del self._session, self.opposite
