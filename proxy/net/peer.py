"""Relays the data that one peer sends, and writes to that peer. Only the states DECIDING and LEAVING use a task.

======== ================================================= ============================================
State    The peer waits for                                Continued by
======== ================================================= ============================================
READING  data, or its next turn                            the reactor, unless the peer is paused
RELAYING nothing, because its data is being processed      the same call
DECIDING handlers to decide on its requests                the task
WRITING  the other peer to accept all of its data          the other peer's writer
KEEPING  delivery of messages that it sent before it left  the call that forwards the last message
LEAVING  a probe of the broker, which ended its stream     the task
ENDING   the other peer to accept the last of its data     the other peer's writer
ENDED    nothing                                           nothing
======== ================================================= ============================================

Data is read only in READING, so TCP slows the sender down in all other states.

If a client disconnects with more unsent data than Sluice's receive window can take, the client's kernel keeps the rest,
but discards it if Sluice writes to the client. Sluice therefore reads ahead from a paused client before it writes.
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

#: Sluice does not read ahead from a client that has been paused for less than this.
BRIEF_NS: Final = 100_000_000
#: A write to a paused client waits until nothing has arrived for CHECK_S (more than a round trip), but at most for
#: MAX_CHECKS such periods.
CHECK_S: Final = 0.05
MAX_CHECKS: Final = 4
KEEP_OPEN_INTERVAL_S: Final = 0.4
_NOTHING: Final = memoryview(b"")


class PeerError(Exception):
    def __init__(self, side: Side, error: OSError) -> None:
        super().__init__(f"{side.value}: {error.strerror or error}")
        self.side = side


class PeerState(Enum):
    READING = "reading"
    RELAYING = "relaying"
    DECIDING = "deciding"
    WRITING = "writing"
    KEEPING = "keeping"
    LEAVING = "leaving"
    ENDING = "ending"
    ENDED = "ended"


class Peer(Watched):
    """One end of a proxied connection.

    Attributes:
        counted_bytes: The number of unread bytes that the byte counters already include.
        busy: Whether data for the peer is still unwritten.
        ended: Whether Sluice has ended the stream to the peer. Data that is queued later is dropped.
    """

    __slots__ = (
        *("_buffer", "_check_timer", "_checks_left", "_chunk", "_connection", "_ends", "_keep_open_timer", "_kept"),
        *("_observed", "_received_bytes", "_rest", "_services", "_session", "_shutdown", "_unread_ns", "busy"),
        *("counted_bytes", "ended", "opposite", "side", "state", "wire"),
    )

    opposite: "Peer"

    def __init__(self, connection: "Connection", side: Side, wire: Wire, services: Services, session: Session) -> None:
        super().__init__(services.reactor, wire.fileno(), BROKER if side is Side.BROKER else CLIENT)
        self.side = side
        self.wire = wire
        self._connection = connection
        self._shutdown = connection.shutdown
        self._services = services
        self._session = session
        self._observed = side is Side.BROKER and services.pipeline.wants_responses
        #: The read buffer. It stays in use until the chunk's output is written.
        self._buffer: memoryview | None = None
        self._chunk = _NOTHING
        self._kept = b""
        self.state = PeerState.READING
        self.counted_bytes = 0
        self._rest: Sequence[Buffer] = ()
        #: Whether to end the stream to the peer after ``_rest``.
        self._ends = False
        self.busy = self.ended = False
        self._unread_ns = 0
        self._check_timer: Timer | None = None
        self._checks_left = self._received_bytes = 0
        self._keep_open_timer: Timer | None = None

    def start_reading(self) -> None:
        self.add_interest(EPOLLIN)
        if self._chunk:
            self._show_stall(self._services.decoding)
        if self._chunk or self.wire.has_unread:
            self.reactor.count_readable(self)

    def readable(self) -> None:
        if self._check_timer is not None:
            if self.read_ahead() is None:
                self._end_check()
            return
        if self.state is PeerState.READING and self._chunk:
            self._show_stall(None)
        if self.state is not PeerState.READING or self._shutdown.over or self._connection.must_wait(self.side):
            # Pause only when data arrives, because the wait is usually over before that.
            self.pause_reading()
            return
        self.state = PeerState.RELAYING
        if self._shutdown.close_reason is not None:
            self._discard_input()
        elif self._chunk or self._read():
            self._relay()

    def _read(self) -> bool:
        session, side = self._session, self.side
        buffer = self._buffer = self._services.buffers.borrow()
        if len(self._kept) >= len(buffer):
            self._connection.recall()
        kept = len(self._kept)
        most = session.max_bytes(side)
        if self._connection.draining and side is Side.CLIENT:
            most = min(most, session.missing_bytes(side))
        count = self._receive_into(buffer[kept : kept + most])
        if count:
            self.takes_long = kept + count == len(buffer)
            self._shutdown.extend_timeout()
            buffer[:kept], self._kept = self._kept, b""
            self._chunk = buffer[: kept + count]
        else:
            self._end_chunk(is_over=count == 0)
        return bool(count)

    def _receive_into(self, room: memoryview) -> int | None:
        try:
            count = self.wire.receive_into(room)
        except OSError as error:
            if self._shutdown.close_reason is None:
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
        connection = self._connection
        read_ns = connection.read_ns = self._services.now_ns()
        if connection.reading is not None and self._feed_lent(connection.reading, read_ns):
            self._decided(None, read_ns)
            return
        batch = self._session.receive(self.side, self._chunk, read_ns)
        if batch is not None:
            if not batch.requests:
                # The batch needs no decision, so the session's output need not wait.
                self.opposite.flush()
            rest = connection.begin(batch)
            if rest is not None:
                self._show_stall(self._services.limiter)
                decided = partial(self._decided, batch, read_ns)
                self._wait(PeerState.DECIDING, partial(connection.decide_later, batch, rest), decided)
                return
        self._decided(batch, read_ns)

    def _decided(self, batch: Batch | None, read_ns: int) -> None:
        services = self._services
        if batch is not None:
            requests = self._connection.decided(batch)
            if requests:
                services.timings.processing.observe(services.now_ns() - read_ns, requests)
        if self._observed:
            responses = self._session.take_responses()
            if responses:
                services.pipeline.observe(self._connection.info, responses)
        # Write to this peer first, because refusals need not wait for a slow broker.
        self.flush()
        self.opposite.flush()
        self._written()

    def _written(self) -> None:
        if self._shutdown.over:
            return
        if self.opposite.busy:
            self.state = PeerState.WRITING
            self._show_stall(self._connection.writer)
            return
        left = self._session.left_bytes(self.side) if self._shutdown.close_reason is None else 0
        if left:
            self._chunk = self._chunk[-left:]
        self.takes_long = self.takes_long or left > 0
        self._end_chunk(keeps=left > 0)
        self._connection.lend()

    def _end_chunk(self, *, keeps: bool = False, is_over: bool = False) -> None:
        if not keeps:
            self._give_back()
        if is_over:
            self.end_stream()
            return
        self.state = PeerState.READING
        if self.events & EPOLLIN:
            self.start_reading()
        self._connection.progressed()

    def _discard_input(self) -> None:
        self._give_back()
        buffer = self._buffer = self._services.buffers.borrow()
        count = self._receive_into(buffer)
        if count:
            self._connection.guard(self.receive_closing, buffer[:count])
        self._end_chunk(is_over=count == 0)

    def receive_closing(self, chunk: memoryview = _NOTHING) -> None:
        if not self.ended and self._session.receive_closing(self.side, chunk):
            self.end()

    def _give_back(self) -> None:
        if self._buffer is not None:
            self._services.buffers.give_back(self._buffer)
            self._buffer, self._chunk = None, _NOTHING

    @property
    def unread_bytes(self) -> int:
        left = len(self._chunk) if self.state is PeerState.READING else 0
        return left + self.wire.unread_bytes()

    def end_stream(self) -> None:
        self._connection.recall()
        shutdown, session = self._shutdown, self._session
        if shutdown.close_reason is not None or shutdown.first is not None:
            self._forward_end()
        elif self.side is Side.BROKER and session.closing is not Side.CLIENT:
            self._wait(PeerState.LEAVING, self._connection.broker_left, self._end_or_keep)
        else:
            self._end_or_keep()

    def _end_or_keep(self) -> None:
        shutdown = self._shutdown
        if shutdown.first is not None or not shutdown.has_undelivered(self.side):
            self._forward_end()
            return
        self.state = PeerState.KEEPING
        self.stop_writing()
        self.unwatch()
        shutdown.keep_undelivered(self.side)
        # Data for this peer is now dropped, so reading from the other peer can continue.
        self.opposite.resume()

    def _forward_end(self) -> None:
        self.state = PeerState.ENDING
        self._shutdown.on_stream_end(self.side)
        if self._shutdown.close_reason is None:
            self._session.end(self.side, self._services.now_ns())
            self.opposite.end()
        self._end_written()

    def _end_written(self) -> None:
        if not self.opposite.busy:
            self.state = PeerState.ENDED
            self.remove_interest(EPOLLIN)
            self._shutdown.on_end_forwarded()

    def _wait(self, state: PeerState, wait: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        self.state = state
        self._connection.start_soon(self._wait_then, wait, then)

    async def _wait_then(self, wait: Callable[[], Awaitable[None]], then: Callable[[], None]) -> None:
        try:
            await wait()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            then = partial(self.failed, error)
        if self._shutdown.over:
            return
        # Clear the stall first, because must_wait checks it.
        self._show_stall(None)
        self.state = PeerState.RELAYING
        try:
            then()
        except Exception as error:  # noqa: BLE001 - as the reactor does
            self.failed(error)

    def resume(self) -> None:
        if self._shutdown.over:
            return
        if self.state is PeerState.WRITING or self.state is PeerState.RELAYING:
            if self.state is PeerState.WRITING and not self.opposite.busy:
                self._show_stall(None)
            self._written()
        elif self.state is PeerState.ENDING:
            self._end_written()

    def progressed(self) -> None:
        if self.state is PeerState.READING:
            if not self.events & EPOLLIN and not self._connection.must_wait(self.side):
                self.start_reading()
        elif self.state is PeerState.KEEPING and not self._session.has_undelivered(self.side):
            self._forward_end()

    @property
    def is_deciding(self) -> bool:
        """Whether the current chunk may contain undecided requests."""
        if self.state is PeerState.READING:
            return bool(self._chunk and self.events & EPOLLIN)
        return self.state is PeerState.RELAYING or self.state is PeerState.DECIDING or self.state is PeerState.WRITING

    @property
    def is_finished(self) -> bool:
        return self.state is PeerState.ENDED or self.state is PeerState.KEEPING

    def _show_stall(self, follower: Stage | None) -> None:
        if self.side is Side.CLIENT:
            self._connection.stall(follower)

    def flush(self) -> None:
        """Write queued data. If the broker's socket has failed, drop the data and raise PeerError."""
        if not self.busy:
            buffers = self._connection.take(self.side)
            if buffers and not self.ended:
                # Skip the check if everything has just been read, because this runs on every write.
                if (self.takes_long or not self.events & EPOLLIN) and self.must_read_first():
                    self._rest, self.busy = buffers, True
                else:
                    self._send(buffers)

    def writable(self) -> None:
        if self._shutdown.over:
            self.unwatch()
            return
        if self.busy:
            self.busy = False
            if self.side is Side.BROKER:
                self._connection.broker_takes()
            self._send(self._rest)
            # The peer accepts data, so it is alive and need not be checked.
            buffers = () if self.busy else self._connection.take(self.side)
            if buffers and not self.ended:
                self._send(buffers)
        if not self.busy:
            self.remove_interest(EPOLLOUT)
            if self._ends:
                self.end()
        if not self.busy:
            self.opposite.resume()
            self._connection.progressed()

    def write_later(self, data: bytes) -> None:
        if data:
            self._rest, self.busy = (memoryview(data),), True
            self.add_interest(EPOLLOUT)

    def _send(self, buffers: Sequence[Buffer]) -> None:
        try:
            self._rest = self.wire.send_now(buffers)
        except OSError as error:
            self._rest = ()
            self.remove_interest(EPOLLOUT)
            self._write_failed(PeerError(self.side, error))
            return
        if self._rest:
            self.busy = True
            self.add_interest(EPOLLOUT)
        else:
            self._connection.written(self.side)

    def end(self) -> None:
        self._ends = True
        self.flush()
        if not self.busy and not self.ended:
            self.ended = True
            try:
                self.wire.end()
            except OSError as error:
                self._write_failed(PeerError(self.side, error))

    def stop_writing(self) -> None:
        self.ended, self.busy, self._rest = True, False, ()
        self.remove_interest(EPOLLOUT)

    def failed(self, error: Exception) -> None:
        connection = self._connection
        connection.failed(error)
        # Resume both peers twice, because the rest of a chunk may end the connection.
        for peer in 2 * (self, self.opposite):
            connection.guard(peer.resume)

    def _write_failed(self, error: PeerError) -> None:
        if self.side is Side.BROKER:
            raise error
        if self.wire.ended:
            self.stop_writing()
        else:
            self._shutdown.client_failed(error)

    def must_read_first(self) -> bool:
        """Read ahead from a paused client. Return whether a write must wait for more of the client's data to arrive.

        If the client has disconnected unnoticed, a write would destroy the rest of its data.
        """
        connection = self._connection
        if self.side is Side.BROKER or self._shutdown.close_reason is not None or connection.draining:
            return False
        if self._check_timer is None:
            if not self._session.paused(Side.CLIENT):
                is_read = self.events & EPOLLIN or self.state is PeerState.READING or self.state is PeerState.RELAYING
                if is_read and not connection.must_wait(Side.CLIENT):
                    return False
                if self._services.now_ns() - self._unread_ns < BRIEF_NS:
                    return False
            if not self.read_ahead():
                return False
            self._checks_left, self._received_bytes = MAX_CHECKS, 0
            self._check_timer = self.reactor.after(CHECK_S, self._check_again)
            # Read what arrives, so that the client's kernel can send the rest.
            self.add_interest(EPOLLIN)
        return True

    def pause_reading(self) -> None:
        if self.events & EPOLLIN:
            self._unread_ns = self._services.now_ns()
        self.remove_interest(EPOLLIN)
        if self.state is PeerState.READING and self._chunk:
            self._show_stall(None)
        if self.side is Side.CLIENT and self._keep_open_timer is None and not self._shutdown.over:
            self._keep_open_timer = self.reactor.after(KEEP_OPEN_INTERVAL_S, self._keep_open)

    def _keep_open(self) -> None:
        """Read a little from a paused client, so that its TCP_USER_TIMEOUT does not expire, which would lose data.

        py-amqp sets this timeout to one second.
        """
        self._keep_open_timer = None
        if self.events & EPOLLIN or self._shutdown.over or self._connection.draining:
            return
        if self.is_finished or self.state is PeerState.ENDING:
            return
        if self._check_timer is None:
            self.read_ahead(a_little=True)
        if self.wire.ended:
            self._connection.guard(self._shutdown.client_left)
        else:
            self._keep_open_timer = self.reactor.after(KEEP_OPEN_INTERVAL_S, self._keep_open)

    def read_ahead(self, *, a_little: bool = False) -> int | None:
        try:
            count = self.wire.read_ahead(self._services.ahead, a_little=a_little)
        except OSError as error:
            self._shutdown.client_failed(PeerError(self.side, error))
            return None
        self._received_bytes += count or 0
        return count

    def _check_again(self) -> None:
        self._check_timer = None
        self._checks_left -= 1
        if self._received_bytes and self._checks_left and not self._shutdown.over:
            self._received_bytes = 0
            self._check_timer = self.reactor.after(CHECK_S, self._check_again)
        else:
            self._connection.guard(self._end_check)

    def _end_check(self) -> None:
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        self.pause_reading()
        self.writable()

    @property
    def is_quiet(self) -> bool:
        """Whether this peer's state allows the connection to be lent. Unread data is allowed only without TLS."""
        return (
            self.state is PeerState.READING
            and self.events == EPOLLIN
            and not (self.busy or self.ended or self.wire.ended)
            and self._check_timer is None
            and (self.wire.is_plain or not (self._chunk or self.wire.has_unread))
        )

    def _feed_lent(self, reading: "Lent", read_ns: int) -> bool:
        """Parse the chunk in the compiled extension. Return False if it leaves a remainder for the session to parse."""
        connection, chunk = self._connection, self._chunk
        assert self._services.lending is not None  # noqa: S101 - otherwise nothing is lent
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

    def feed_kept_bytes(self) -> None:
        kept, self._kept = self._kept, b""
        if kept:
            self._session.put_back(self.side, kept, self._services.now_ns())

    def lend(self) -> bytes:
        """Stop watching the socket, so that it can be lent. Return the bytes that were received but not parsed."""
        self.unwatch()
        ahead = self.wire.take_ahead()
        self._count(len(ahead))
        unread = bytes(self._chunk) + ahead
        self._give_back()
        if self._keep_open_timer is not None:
            self._keep_open_timer.cancel()
            self._keep_open_timer = None
        return unread

    def put_back(self, unread: bytes, errno: int = 0) -> None:
        self.wire.put_back(unread, errno, self._services.ahead)
        self.counted_bytes = len(unread)

    def resume_reading(self) -> None:
        # If the client must wait, it is paused when it next sends data.
        self.start_reading()
        if self.opposite.busy:
            self.state = PeerState.WRITING
            self._show_stall(self._connection.writer)

    def release(self) -> None:
        for timer in (self._check_timer, self._keep_open_timer):
            if timer is not None:
                timer.cancel()
        self.unwatch()
        self._give_back()
        # Break reference cycles, because a session can use a megabyte.
        del self._session, self.opposite
