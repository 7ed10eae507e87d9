"""The reactor: waits for all sockets and timers of the data path.

Sockets are registered with the kernel once, and ready ones are served by plain calls. Trio stays in charge: it waits
for the epoll descriptor in one task, and other tasks have their turn at least every ``ROUND_NS``. Anything that waits
for something other than a socket is a task of its own.

Each round serves brokers before clients, because clients wait for their answers. Of the sockets that take long, one is
served after all others.
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
"""How long sockets are served before all other tasks have their turn."""
_FAILED: Final = EPOLLERR | EPOLLHUP


class Watched(ABC):
    """One socket in the reactor, which is called when it is ready.

    A failed socket counts as ready for every wanted event, so the next read or write meets the error.

    Attributes:
        events: The wanted epoll events.
        takes_long: It is served after the others, one such socket per round.
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
        """Read bytes, an end of stream or an error. It may be called with nothing to read."""

    @abstractmethod
    def writable(self) -> None:
        """Write, because the kernel may accept bytes again."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Handle an error of ``readable`` or ``writable``, so that no other socket is affected. Does not raise."""

    def add_interest(self, event: int) -> None:
        if not self.events & event:
            self._change(self.events | event)

    def remove_interest(self, event: int) -> None:
        if self.events & event:
            self._change(self.events & ~event)

    def unwatch(self) -> None:
        """Stop all events. Call this before the socket is closed."""
        if self.events:
            self._change(0)

    def _change(self, events: int) -> None:
        epoll, watched = self.reactor.epoll, self.reactor.watched
        if not events:
            # With no events, the kernel would still report errors.
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
        #: Readable in the next round, whatever the kernel reports.
        self._readable: dict[Watched, int] = {}
        self._take_long: OrderedDict[Watched, int] = OrderedDict()
        self._soon: deque[Callable[[], None]] = deque()
        #: By delay. Timers with the same delay are due in the order they were set.
        self._timers: dict[float, OrderedDict[Timer, None]] = {}
        #: No timer is due before this time.
        self._due_s = float("inf")
        self._sleep: trio.CancelScope | None = None
        self._woken = trio.Event()
        self._serving = False
        self._ends_ns = 0
        self._tasks: trio.Nursery | None = None

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Schedule a call that must not raise. There should be few different delays."""
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
        """Call as soon as the current step is over. The call must not raise."""
        self._soon.append(call)
        self._wake()

    def end_round(self) -> None:
        """Give all other tasks their turn as soon as the current step is over."""
        self._ends_ns = 0

    def count_readable(self, watched: Watched) -> None:
        """Treat a socket as readable soon, because some of its bytes have already left the kernel."""
        self._readable[watched] = EPOLLIN
        self._wake()

    def _wake(self) -> None:
        if not self._serving:
            self._woken.set()

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task for something that waits. The task must not raise."""
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
        """Do everything that is due. Returns at once if the other task is doing so."""
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
        # Calls added from here on are made in the next round.
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
    """Report ready events that are still wanted, because an earlier step of the round may have ended the socket."""
    if events & _FAILED:
        events |= EPOLLIN | EPOLLOUT
    try:
        if events & watched.events & EPOLLOUT:
            watched.writable()
        if events & watched.events & EPOLLIN:
            watched.readable()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is one connection's
        watched.failed(error)


def _do(step: Callable[[], None]) -> None:
    """Run a step that should not raise. If it does, other steps are unaffected."""
    try:
        step()
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception("unexpected error in the data path")
