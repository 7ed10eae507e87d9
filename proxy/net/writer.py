"""The writer of one peer of a connection: the only one that sends to that peer.

What is to be written is the session's; when, is the connection's.
"""

from collections.abc import Callable, Sequence
from select import EPOLLOUT

from proxy.deciding.batch import Side
from proxy.net.reactor import Watch
from proxy.net.sockets import Wire
from proxy.protocols.base import Buffer


class PeerError(Exception):
    """A socket of one peer failed."""

    def __init__(self, side: Side, error: OSError) -> None:
        super().__init__(f"{side.value}: {error.strerror or error}")
        self.side = side


class Writer:
    """The one writer of one peer: what the kernel does not take at once it writes when the socket is writable again.

    Args:
        side: the peer.
        wire: its socket.
        watch: the socket's place in the reactor, which calls ``go_on``.
        take: hands out what waits for a peer, as ``Session.take`` does.

    Attributes:
        busy: something is taken and not yet with the kernel.
        ended: the end of the stream was sent. What the session queues for this peer later is dropped.
    """

    __slots__ = ("_ending", "_rest", "_side", "_take", "_watch", "_wire", "busy", "ended")

    def __init__(self, side: Side, wire: Wire, watch: Watch, take: Callable[[Side], Sequence[Buffer]]) -> None:
        self._side = side
        self._wire = wire
        self._watch = watch
        self._take = take
        self._rest: Sequence[Buffer] = ()
        self._ending = False
        self.busy = False
        self.ended = False

    def flush(self) -> bool:
        """Write all that the session has for this peer; returns whether all of it is with the kernel.

        Raises:
            PeerError: the socket failed; what waits for the peer is dropped.
        """
        if self.busy:
            return False
        buffers = self._take(self._side)
        return not buffers or self.ended or self._send(buffers)

    def go_on(self) -> bool:
        """Write more, as the kernel takes some again; returns whether all is with it now.

        Raises:
            PeerError: as ``flush`` does.
        """
        self.busy = False
        if not self._send(self._rest) or not self.flush():
            return False
        self._watch.want_no_more(EPOLLOUT)
        if self._ending:
            self.end()
        return True

    def end(self) -> bool:
        """Write all that the session has for this peer, then the end of the stream; returns whether that is done.

        Raises:
            PeerError: as ``flush`` does.
        """
        self._ending = True
        if not self.flush():
            return False
        if not self.ended:
            self.ended = True
            try:
                self._wire.end()
            except OSError as error:
                raise PeerError(self._side, error) from None
        return True

    def _send(self, buffers: Sequence[Buffer]) -> bool:
        try:
            self._rest = self._wire.send_now(buffers)
        except OSError as error:
            self._rest = ()
            self._watch.want_no_more(EPOLLOUT)
            raise PeerError(self._side, error) from None
        if self._rest:
            self.busy = True
            self._watch.want(EPOLLOUT)
            return False
        return True
