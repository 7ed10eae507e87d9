"""The writer of one peer of a connection: the only one that sends to that peer.

What is to be written is the session's; when, is the connection's.
"""

from collections.abc import Callable, Sequence
from select import EPOLLIN, EPOLLOUT

from proxy.deciding.batch import Side
from proxy.net.reactor import BROKER, CLIENT, Reactor, Watched
from proxy.net.sockets import Wire
from proxy.protocols.base import Buffer


class PeerError(Exception):
    """A socket of one peer failed."""

    def __init__(self, side: Side, error: OSError) -> None:
        super().__init__(f"{side.value}: {error.strerror or error}")
        self.side = side


class Writer(Watched):
    """The one writer of one peer: what the kernel does not take at once it writes when the socket is writable again.

    Args:
        reactor: watches the socket.
        side: the peer.
        wire: its socket.
        take: hands out what waits for a peer, as ``Session.take`` does.

    Attributes:
        on_written: told of the peer whenever all that was taken is with the kernel; None if nobody is.
        busy: something is taken and not yet with the kernel.
        ended: the end of the stream was sent. What the session queues for this peer later is dropped.
    """

    __slots__ = ("_ending", "_large", "_rest", "_take", "busy", "ended", "on_written", "side", "wire")

    def __init__(
        self,
        reactor: Reactor,
        side: Side,
        wire: Wire,
        take: Callable[[Side], Sequence[Buffer]],
    ) -> None:
        super().__init__(reactor, wire.fileno(), BROKER if side is Side.BROKER else CLIENT)
        self.side = side
        self.wire = wire
        self._take = take
        self.on_written: Callable[[Side], None] | None = None
        self._rest: Sequence[Buffer] = ()
        self._ending = False
        #: The last read filled its buffer, so the kernel may hold more.
        self._large = False
        self.busy = False
        self.ended = False

    def flush(self) -> None:
        """Write all that the session has for this peer, as far as the kernel takes it.

        Raises:
            PeerError: the socket failed; what waits for the peer is dropped.
        """
        if not self.busy:
            buffers = self._take(self.side)
            if buffers and not self.ended:
                # Not asked of a peer whose kernel held nothing more a moment ago: it is asked for each write.
                if (self._large or not self.events & EPOLLIN) and self.must_read_first():
                    self._rest, self.busy = buffers, True
                else:
                    self._send(buffers)

    def write_on(self) -> None:
        """Write more, as the kernel takes some again; then the end of the stream, if that waits for it.

        Raises:
            PeerError: as ``flush`` does.
        """
        if self.busy:
            self.busy = False
            self._send(self._rest)
            # A peer that takes more is there, so nothing has to be read first.
            buffers = () if self.busy else self._take(self.side)
            if buffers and not self.ended:
                self._send(buffers)
        if not self.busy:
            self.want_no_more(EPOLLOUT)
            if self._ending:
                self.end()

    def end(self) -> None:
        """Write all that the session has for this peer, then the end of the stream.

        Raises:
            PeerError: as ``flush`` does.
        """
        self._ending = True
        self.flush()
        if not self.busy and not self.ended:
            self.ended = True
            try:
                self.wire.end()
            except OSError as error:
                self.write_failed(PeerError(self.side, error))

    def write_failed(self, error: PeerError) -> None:
        """Take a failure to write; what waits for the peer is dropped.

        Raises:
            PeerError: as given, if that is to end the connection.
        """
        raise error

    def must_read_first(self) -> bool:
        """Say whether a write has to wait until more was read, of a peer that is not read now."""
        return False

    def stop_writing(self) -> None:
        """Write nothing any more, but read on: the peer takes nothing."""
        self.ended, self.busy, self._rest = True, False, ()
        self.want_no_more(EPOLLOUT)

    def leave(self) -> None:
        """Write nothing any more, and do not read: the peer has gone."""
        self.stop_writing()
        self.unwatch()

    def _send(self, buffers: Sequence[Buffer]) -> None:
        try:
            self._rest = self.wire.send_now(buffers)
        except OSError as error:
            self._rest = ()
            self.want_no_more(EPOLLOUT)
            self.write_failed(PeerError(self.side, error))
            return
        if self._rest:
            self.busy = True
            self.want(EPOLLOUT)
        elif self.on_written is not None:
            self.on_written(self.side)
