"""The reactor waits for all sockets and timers in the data path.

A trio task waits for the epoll descriptor and serves ready sockets with plain calls. Other tasks get to run at least
every ``ROUND_NS``.

Each round serves broker sockets first, because clients are waiting for their answers. Sockets that take long to serve
come last, one per round.
"""

import select
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT
from time import perf_counter_ns
from typing import Final

import structlog
import trio

_log = structlog.get_logger(__name__)

BROKER: Final = 0
CLIENT: Final = 1
_MAX_READY: Final = 64
ROUND_NS: Final = 1_000_000
_FAILED: Final = EPOLLERR | EPOLLHUP


class Watched(ABC):
    """A socket that the reactor watches.

    A socket that has failed counts as ready, so that the next read or write reports the error.
    """

    __slots__ = ("_fd", "events", "rank", "reactor", "takes_long")

    def __init__(self, reactor: "Reactor", fd: int, rank: int = CLIENT) -> None:
        self.reactor = reactor
        self._fd = fd
        self.rank = rank
        self.events = 0
        self.takes_long = False

    @abstractmethod
    def readable(self) -> None:
        """Read from the socket. There may be nothing to read."""

    @abstractmethod
    def writable(self) -> None:
        """Write to the socket, because it may accept data again."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Handle an error from ``readable`` or ``writable``. Must not raise."""

    def add_interest(self, event: int) -> None:
        if not self.events & event:
            self._change(self.events | event)

    def remove_interest(self, event: int) -> None:
        if self.events & event:
            self._change(self.events & ~event)

    def unwatch(self) -> None:
        """Stop watching the socket. Call this before closing it."""
        if self.events:
            self._change(0)

    def _change(self, events: int) -> None:
        epoll, watched = self.reactor.epoll, self.reactor.watched
        if not events:
            # A registered socket's errors would be reported even if no event is requested.
            epoll.unregister(self._fd)
            del watched[self._fd]
        elif self.events:
            epoll.modify(self._fd, events)
        else:
            epoll.register(self._fd, events)
            watched[self._fd] = self
        self.events = events


class Timer:
    __slots__ = ("_among", "call", "due_s")

    def __init__(self, due_s: float, call: Callable[[], None], among: "OrderedDict[Timer, None]") -> None:
        self.due_s = due_s
        self.call = call
        self._among = among
        among[self] = None

    def cancel(self) -> None:
        self._among.pop(self, None)


class Reactor:
    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.watched: dict[int, Watched] = {}
        self._readable: dict[Watched, int] = {}
        self._take_long: OrderedDict[Watched, int] = OrderedDict()
        self._soon: deque[Callable[[], None]] = deque()
        #: Timers by delay. Each inner dict is in order of expiry.
        self._timers: dict[float, OrderedDict[Timer, None]] = {}
        self._due_s = float("inf")
        self._sleep: trio.CancelScope | None = None
        self._woken = trio.Event()
        self._serving = False
        self._ends_ns = 0
        self._tasks: trio.Nursery | None = None

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Run ``call`` after a delay. It must not raise. Use few distinct delays, because each has its own queue."""
        timers = self._timers.get(delay_s)
        if timers is None:
            timers = self._timers[delay_s] = OrderedDict()
        timer = Timer(trio.current_time() + delay_s, call, timers)
        if timer.due_s < self._due_s:
            self._due_s = timer.due_s
            if self._sleep is not None:
                self._sleep.deadline = timer.due_s
        return timer

    def soon(self, call: Callable[[], None]) -> None:
        """Run ``call`` after the current step. It must not raise."""
        self._soon.append(call)
        self._wake()

    def end_round(self) -> None:
        self._ends_ns = 0

    def count_readable(self, watched: Watched) -> None:
        """Treat a socket as readable in the next round, because some of its data has already left the kernel."""
        self._readable[watched] = EPOLLIN
        self._wake()

    def _wake(self) -> None:
        if not self._serving:
            self._woken.set()

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a task in the reactor's nursery. The task must not raise."""
        assert self._tasks is not None  # noqa: S101 - nothing is ready before the reactor runs
        self._tasks.start_soon(task, *args)

    async def run(self) -> None:
        async with trio.open_nursery() as self._tasks:
            self._tasks.start_soon(self._follow_time)
            while True:
                await trio.lowlevel.wait_readable(self.epoll.fileno())
                await self._serve()

    async def _follow_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._due_s) as self._sleep:
                await self._woken.wait()
            self._sleep, self._woken = None, trio.Event()
            await self._serve()

    async def _serve(self) -> None:
        if self._serving:
            return
        self._serving, is_idle = True, False
        self._ends_ns = perf_counter_ns() + ROUND_NS
        while not is_idle:
            is_idle = True
            for step in self._round():
                is_idle = False
                _do(step)
                if perf_counter_ns() >= self._ends_ns:
                    await trio.lowlevel.checkpoint()
                    self._ends_ns = perf_counter_ns() + ROUND_NS
        self._serving = False

    def _round(self) -> Iterator[Callable[[], None]]:
        ready = [(self.watched[fd], events) for fd, events in self.epoll.poll(0, _MAX_READY)]
        ready += self._readable.items()
        self._readable.clear()
        ready.sort(key=lambda each: each[0].rank)
        for watched, events in ready:
            if watched.takes_long:
                self._take_long[watched] = events
            else:
                yield partial(_tell, watched, events)
        if self._take_long:
            yield partial(_tell, *self._take_long.popitem(last=False))
        for _ in range(len(self._soon)):
            yield self._soon.popleft()
        now_s = trio.current_time()
        if now_s >= self._due_s:
            for timers in list(self._timers.values()):
                while timers and (timer := next(iter(timers))).due_s <= now_s:
                    timer.cancel()
                    yield timer.call
            self._due_s = min(
                (next(iter(timers)).due_s for timers in self._timers.values() if timers), default=float("inf")
            )

    def close(self) -> None:
        self.epoll.close()


def _tell(watched: Watched, events: int) -> None:
    if events & _FAILED:
        events |= EPOLLIN | EPOLLOUT
    try:
        if events & watched.events & EPOLLOUT:
            watched.writable()
        if events & watched.events & EPOLLIN:
            watched.readable()
    except Exception as error:  # noqa: BLE001 - any error ends one connection only
        watched.failed(error)


def _do(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception:  # noqa: BLE001 - any error
        _log.exception("unexpected error in the data path")
