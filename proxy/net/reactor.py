"""The reactor: one epoll for the sockets of all connections, and one task that waits for it.

A task for each direction costs a task switch, an epoll_ctl and an epoll_wait for each chunk. Here the kernel is told
once which sockets matter, and what is ready is served by plain calls. Trio stays in charge: an epoll descriptor can
itself be waited for, so this is one task among others, which gives them their turn at least every ``ROUND_NS``.
"""

import select
from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

import trio

from proxy.net.sockets import Wire

#: Sockets taken from the kernel at a time. It hands out those that were served longest ago first.
_MOST_READY: Final = 128
ROUND_NS: Final = 1_000_000
"""How long sockets are served before all other tasks have their turn."""
_FAILED: Final = select.EPOLLERR | select.EPOLLHUP


class Watch:
    """One socket in the reactor, and who is called when it is ready.

    A socket that failed counts as ready for whatever is wanted of it: who reads or writes then meets the error.

    Args:
        epoll: the reactor's.
        watches: the reactor's, by descriptor.
        wire: the socket.
        on_readable: called when there are bytes, an end of stream or an error to read. It raises nothing.
        on_writable: called when the kernel takes bytes again. It raises nothing.

    Attributes:
        events: what is wanted, as epoll names it.
    """

    __slots__ = ("_epoll", "_fd", "_on_readable", "_on_writable", "_watches", "events")

    def __init__(
        self,
        epoll: select.epoll,
        watches: "dict[int, Watch]",
        wire: Wire,
        on_readable: Callable[[], None],
        on_writable: Callable[[], None],
    ) -> None:
        self._epoll = epoll
        self._watches = watches
        self._fd = wire.fileno()
        self._on_readable = on_readable
        self._on_writable = on_writable
        self.events = 0

    def want(self, event: int) -> None:
        """Be called for EPOLLIN or EPOLLOUT from now on."""
        if not self.events & event:
            self._change(self.events | event)

    def want_no_more(self, event: int) -> None:
        """Be called for EPOLLIN or EPOLLOUT no more."""
        if self.events & event:
            self._change(self.events & ~event)

    def close(self) -> None:
        """Want nothing any more; comes before the socket is closed."""
        if self.events:
            self._change(0)

    def _change(self, events: int) -> None:
        if not events:
            # Errors are reported whatever is asked for; of who is not to be served now nothing is wanted.
            self._epoll.unregister(self._fd)
            del self._watches[self._fd]
        elif self.events:
            self._epoll.modify(self._fd, events)
        else:
            self._epoll.register(self._fd, events)
            self._watches[self._fd] = self
        self.events = events

    def ready(self, events: int) -> None:
        """Call whoever wants what is ready."""
        if events & _FAILED:
            events |= select.EPOLLIN | select.EPOLLOUT
        if events & self.events & select.EPOLLOUT:
            self._on_writable()
        # The first may have ended the second.
        if events & self.events & select.EPOLLIN:
            self._on_readable()


class Reactor:
    """Serves the sockets of all connections of a data path."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watches: dict[int, Watch] = {}

    def watch(self, wire: Wire, on_readable: Callable[[], None], on_writable: Callable[[], None]) -> Watch:
        """Return the place of a connected socket; nothing is wanted of it yet."""
        return Watch(self._epoll, self._watches, wire, on_readable, on_writable)

    async def run(self) -> None:
        """Serve until cancelled."""
        watches = self._watches
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            ends_ns = perf_counter_ns() + ROUND_NS
            for fd, events in self._epoll.poll(0, _MOST_READY):
                # What one does may end another, and a new connection may get its descriptor: that one wants to read,
                # too, and finds nothing there.
                watch = watches.get(fd)
                if watch is not None:
                    watch.ready(events)
                if perf_counter_ns() >= ends_ns:
                    await trio.lowlevel.checkpoint()
                    ends_ns = perf_counter_ns() + ROUND_NS

    def close(self) -> None:
        """Let go of the descriptor; nothing is watched after that."""
        self._epoll.close()
