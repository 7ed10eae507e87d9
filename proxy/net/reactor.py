"""The reactor: waits for all sockets of the data path in one task, and for all timers in another.

A task for each direction costs a task switch, an epoll_ctl and an epoll_wait for each chunk. Here the kernel is told
once which sockets matter, and what is ready is served by plain calls. Trio stays in charge: an epoll descriptor can
itself be waited for, so this is one task among others, which gives them their turn at least every ``ROUND_NS``. What
really has to wait for something else is a task of its own.

Sockets are served in three ranks, by turns, so that nobody waits for a full round of those that keep everybody busy:
all brokers' that are ready, since their answers are waited for; then some clients'; then one of those whose reads are
large, which are floods as a rule. The kernel hands out those of one rank that were served longest ago first, but what
becomes ready meanwhile stands behind all that it has handed out: so few are taken at a time.
"""

import select
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import cycle
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from time import perf_counter_ns
from typing import Final

import structlog
import trio

_log = structlog.get_logger(__name__)

BROKER: Final = 0
CLIENT: Final = 1
FLOOD: Final = 2
#: Sockets taken from the kernel at a time, by rank.
_MAX_READY: Final = (128, 16, 1)
ROUND_NS: Final = 1_000_000
"""How long sockets are served before all other tasks have their turn."""
_FAILED: Final = EPOLLERR | EPOLLHUP


class Watched(ABC):
    """One socket in the reactor, which is told when it is ready for what is wanted of it.

    A socket that failed counts as ready for whatever is wanted of it: who reads or writes then meets the error.

    Args:
        reactor: where it is watched.
        fd: its descriptor.
        rank: how it is served: as BROKER, CLIENT or FLOOD.

    Attributes:
        events: what is wanted, as epoll names it.
        rank: as given; see ``move``.
    """

    __slots__ = ("_fd", "events", "rank", "reactor")

    def __init__(self, reactor: "Reactor", fd: int, rank: int = CLIENT) -> None:
        self.reactor = reactor
        self._fd = fd
        self.rank = rank
        self.events = 0

    @abstractmethod
    def readable(self) -> None:
        """Read bytes, an end of stream or an error. It need not be so: then there is nothing to read."""

    @abstractmethod
    def writable(self) -> None:
        """Write, as the kernel takes bytes again. It need not be so: then it takes none."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Take what ``readable`` or ``writable`` raised, so that it reaches nobody else. It raises nothing."""

    def want(self, event: int) -> None:
        """Be told of EPOLLIN or EPOLLOUT from now on."""
        if not self.events & event:
            self._change(self.events | event)

    def want_no_more(self, event: int) -> None:
        """Be told of EPOLLIN or EPOLLOUT no more."""
        if self.events & event:
            self._change(self.events & ~event)

    def move(self, rank: int) -> None:
        """Be served in another rank from now on."""
        events = self.events
        if events:
            self._change(0)
        self.rank = rank
        if events:
            self._change(events)

    def unwatch(self) -> None:
        """Want nothing any more; comes before the socket is closed."""
        if self.events:
            self._change(0)

    def _change(self, events: int) -> None:
        epoll, watched = self.reactor.epolls[self.rank], self.reactor.watched
        if not events:
            # Errors are reported whatever is asked for; of who is not to be served now nothing is wanted.
            epoll.unregister(self._fd)
            del watched[self._fd]
        elif self.events:
            epoll.modify(self._fd, events)
        else:
            epoll.register(self._fd, events)
            watched[self._fd] = self
        began = events & ~self.events & EPOLLIN
        self.events = events
        if began:
            self.reactor.read_on(self._fd)


class Timer:
    """What is to be done at some time, unless it is cancelled before."""

    __slots__ = ("_among", "call", "due_s")

    def __init__(self, due_s: float, call: Callable[[], None], among: "OrderedDict[Timer, None]") -> None:
        self.due_s = due_s
        self.call = call
        self._among = among
        among[self] = None

    def cancel(self) -> None:
        """Do nothing then; likewise when it is done already."""
        self._among.pop(self, None)


class Reactor:
    """Serves the sockets of a data path.

    Attributes:
        epolls: of the sockets of each rank.
        watched: those of which something is wanted, by descriptor.
    """

    def __init__(self) -> None:
        self.epolls = tuple(select.epoll() for _ in _MAX_READY)
        #: Ready if one of them is.
        self._epoll = select.epoll()
        for epoll in self.epolls:
            self._epoll.register(epoll.fileno(), EPOLLIN)
        self.watched: dict[int, Watched] = {}
        #: By how long they wait. Those that wait equally long are due in the order in which they were set.
        self._timers: dict[float, OrderedDict[Timer, None]] = {}
        #: When the timers are looked at next, and what has that done sooner.
        self._look_s = float("inf")
        self._look = trio.Event()
        self._soon: deque[Callable[[], None]] = deque()
        #: Descriptors from which was read what nobody has taken yet.
        self._unread: set[int] = set()
        self._serving = False
        #: When the round ends.
        self._ends_ns = 0
        self._tasks: trio.Nursery | None = None

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Have something done after so long; there are few different delays. It raises nothing."""
        timers = self._timers.get(delay_s)
        if timers is None:
            timers = self._timers[delay_s] = OrderedDict()
        timer = Timer(trio.current_time() + delay_s, call, timers)
        if timer.due_s < self._look_s:
            self._look_s = timer.due_s
            self._look.set()
        return timer

    def soon(self, call: Callable[[], None]) -> None:
        """Have something done as soon as whatever is under way is over. It raises nothing."""
        self._soon.append(call)
        if not self._serving:
            self._look.set()

    def end_round(self) -> None:
        """Give all other tasks their turn as soon as whatever is under way is over."""
        self._ends_ns = 0

    def unread(self, fd: int, *, unread: bool) -> None:
        """Take note whether there is something to read at a descriptor that the kernel has handed out already.

        It counts as readable until this is taken back, which comes before its socket is closed.
        """
        if unread:
            self._unread.add(fd)
            self.read_on(fd)
        else:
            self._unread.discard(fd)

    def read_on(self, fd: int) -> None:
        """Have what is unread at a descriptor read, if anything is and whoever watches it wants that."""
        if fd in self._unread:
            self.soon(partial(self._read_on, fd))

    def _read_on(self, fd: int) -> None:
        watched = self.watched.get(fd)
        if watched is not None and watched.events & EPOLLIN and fd in self._unread:
            try:
                watched.readable()
            except Exception as error:  # noqa: BLE001 - as for those that the kernel reports
                watched.failed(error)

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task for what has to wait; it raises nothing."""
        assert self._tasks is not None  # noqa: S101 - nothing is ready before the reactor runs
        self._tasks.start_soon(task, *args)

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as self._tasks:
            self._tasks.start_soon(self._keep_time)
            await self._serve()

    async def _serve(self) -> None:
        ranks = [(epoll.poll, most) for epoll, most in zip(self.epolls, _MAX_READY, strict=True)]
        watched_by_fd = self.watched
        silent = 0
        for poll, most in cycle(ranks):
            ready = poll(0, most)
            if not ready:
                silent += 1
                if silent == len(ranks):
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    self._ends_ns, silent = perf_counter_ns() + ROUND_NS, 0
                continue
            silent = 0
            self._serving = True
            for fd, events in ready:
                # What one does may end another, and a new one may get its descriptor: that one finds nothing there.
                watched = watched_by_fd.get(fd)
                if watched is not None:
                    if events & _FAILED:
                        events |= EPOLLIN | EPOLLOUT  # noqa: PLW2901 - as the docstring of Watched says
                    try:
                        if events & watched.events & EPOLLOUT:
                            watched.writable()
                        # The first may have ended the second.
                        if events & watched.events & EPOLLIN:
                            watched.readable()
                    except Exception as error:  # noqa: BLE001 - whatever it is, it is one connection's
                        watched.failed(error)
                if perf_counter_ns() >= self._ends_ns:
                    self._serving = False
                    self._do_soon()
                    await trio.lowlevel.checkpoint()
                    self._serving = True
                    self._ends_ns = perf_counter_ns() + ROUND_NS
            self._serving = False
            self._do_soon()

    async def _keep_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._look_s):
                await self._look.wait()
            self._look = trio.Event()
            now_s, ends_ns = trio.current_time(), perf_counter_ns() + ROUND_NS
            for timers in list(self._timers.values()):
                while timers and (timer := next(iter(timers))).due_s <= now_s:
                    timer.cancel()
                    _do(timer.call)
                    if perf_counter_ns() >= ends_ns:
                        # Ten thousand clients that came together are closed together.
                        self._do_soon()
                        await trio.lowlevel.checkpoint()
                        ends_ns = perf_counter_ns() + ROUND_NS
            self._do_soon()
            self._look_s = min(
                (next(iter(timers)).due_s for timers in self._timers.values() if timers), default=float("inf")
            )

    def _do_soon(self) -> None:
        # What is asked for meanwhile is done when others have had their turn.
        for _ in range(len(self._soon)):
            _do(self._soon.popleft())

    def close(self) -> None:
        """Let go of the descriptors; nothing is watched after that."""
        for epoll in (self._epoll, *self.epolls):
            epoll.close()


def _do(call: Callable[[], None]) -> None:
    """Do something that should raise nothing; if it does all the same, nobody else is to suffer."""
    try:
        call()
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception("a step of the data path failed")
