"""The writer of one peer of a connection: the only one that sends to that peer.

What is to be written is the session's; when, is the connection's.
"""

from collections.abc import Callable, Sequence

import trio

from proxy.deciding.batch import Side
from proxy.net.sockets import Wire
from proxy.protocols.base import Buffer


class PeerError(Exception):
    """A socket of one peer failed."""

    def __init__(self, side: Side, error: OSError) -> None:
        super().__init__(f"{side.value}: {error.strerror or error}")
        self.side = side


class Writer:
    """The one writer of one peer: whoever writes takes all that waits, and the others wait for it.

    Args:
        side: the peer.
        wire: its socket.
        take: hands out what waits for a peer, as ``Session.take`` does.
        start_soon: runs a task beside the caller.
        progressed: told whenever all was written.

    Attributes:
        busy: something is taken and not yet with the kernel.
        ended: the end of the stream was sent. What the session queues for this peer later is dropped.
    """

    def __init__(
        self,
        side: Side,
        wire: Wire,
        take: Callable[[Side], Sequence[Buffer]],
        start_soon: Callable[..., None],
        progressed: Callable[[], None],
    ) -> None:
        self._side = side
        self._wire = wire
        self._take_from_session = take
        self._start_soon = start_soon
        self._progressed = progressed
        self._idle = trio.lowlevel.ParkingLot()
        self.busy = False
        self.ended = False

    async def flush(self) -> None:
        """Write all that the session has for this peer; returns when it is with the kernel."""
        while self.busy:
            await self._idle.park()
        rest = self._send_now()
        if rest:
            self.busy = True
            await self._send(rest)

    def flush_soon(self) -> None:
        """Write what the kernel takes at once, and leave the rest to a task of its own."""
        if not self.busy:
            rest = self._send_now()
            if rest:
                self.busy = True
                self._start_soon(self._send, rest)

    async def end(self) -> None:
        """Write all that the session has for this peer, then the end of the stream."""
        await self.flush()
        if not self.ended:
            self.ended = True
            try:
                self._wire.end()
            except OSError as error:
                raise PeerError(self._side, error) from None

    def _take(self) -> Sequence[Buffer]:
        buffers = self._take_from_session(self._side)
        return () if self.ended else buffers

    def _send_now(self) -> Sequence[Buffer]:
        buffers = self._take()
        return self._try(buffers) if buffers else ()

    def _try(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        try:
            return self._wire.send_now(buffers)
        except OSError as error:
            raise PeerError(self._side, error) from None

    async def _send(self, rest: Sequence[Buffer]) -> None:
        try:
            while rest:
                await self._wire.writable()
                # When the connection was ended meanwhile, the buffers it read into may already be another's.
                await trio.lowlevel.checkpoint_if_cancelled()
                rest = self._try(rest) or self._take()
        finally:
            self.busy = False
            self._idle.unpark_all()
            self._progressed()
