"""The reactor: waits for all sockets and timers of the data path.

The kernel is told once which sockets matter, and ready ones are served by plain calls. Trio stays in charge: an epoll
descriptor can itself be waited for, so this is a task among others, which have their turn at least every ``ROUND_NS``.
What has to wait for anything but a socket is a task of its own.

In each round brokers are served before clients, as their answers are waited for. Of those that take long, one is served
after all others.
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
#: Sockets taken from the kernel at a time.
_MAX_READY: Final = 64
ROUND_NS: Final = 1_000_000
"""How long sockets are served before all other tasks have their turn."""
_FAILED: Final = EPOLLERR | EPOLLHUP


class Watched(ABC):
    """One socket in the reactor, which is told when it is ready for what is wanted of it.

    A socket that failed counts as ready for whatever is wanted of it: who reads or writes then meets the error.

    Attributes:
        events: what is wanted, as epoll names it.
        rank: BROKER or CLIENT.
        takes_long: it is served after others; in each round one such socket is.
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
        """Read bytes, an end of stream or an error. It need not be so: then there is nothing to read."""

    @abstractmethod
    def writable(self) -> None:
        """Write, as the kernel takes bytes again. It need not be so: then it takes none."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Take what ``readable`` or ``writable`` raised, so that it reaches no other socket. It raises nothing."""

    def want(self, event: int) -> None:
        """Be told of EPOLLIN or EPOLLOUT from now on."""
        if not self.events & event:
            self._change(self.events | event)

    def want_no_more(self, event: int) -> None:
        """Be told of EPOLLIN or EPOLLOUT no more."""
        if self.events & event:
            self._change(self.events & ~event)

    def unwatch(self) -> None:
        """Want nothing any more; comes before the socket is closed."""
        if self.events:
            self._change(0)

    def _change(self, events: int) -> None:
        epoll, watched = self.reactor.epoll, self.reactor.watched
        if not events:
            # The kernel would report errors all the same.
            epoll.unregister(self._fd)
            del watched[self._fd]
        elif self.events:
            epoll.modify(self._fd, events)
        else:
            epoll.register(self._fd, events)
            watched[self._fd] = self
        self.events = events


class Timer:
    """What is to be done at some time, unless it is cancelled before."""

    __slots__ = ("_among", "call", "due_s")

    def __init__(self, due_s: float, call: Callable[[], None], among: "OrderedDict[Timer, None]") -> None:
        self.due_s = due_s
        self.call = call
        self._among = among
        among[self] = None

    def cancel(self) -> None:
        """Do nothing then; also when it is done already."""
        self._among.pop(self, None)


class Reactor:
    """Serves the sockets of a data path.

    Attributes:
        epoll: of all sockets.
        watched: those of which something is wanted, by descriptor.
    """

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.watched: dict[int, Watched] = {}
        #: Readable in the next round, whatever the kernel says.
        self._readable: dict[Watched, int] = {}
        #: Ready and waiting for their turn, with what they are ready for.
        self._take_long: OrderedDict[Watched, int] = OrderedDict()
        self._soon: deque[Callable[[], None]] = deque()
        #: By how long they wait. Those that wait equally long are due in the order in which they were set.
        self._timers: dict[float, OrderedDict[Timer, None]] = {}
        #: None of the timers is due before.
        self._due_s = float("inf")
        self._sleep: trio.CancelScope | None = None
        self._woken = trio.Event()
        self._serving = False
        #: When all other tasks have their turn.
        self._ends_ns = 0
        self._tasks: trio.Nursery | None = None

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Have something done after so long; there are few different delays. It raises nothing."""
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
        """Have something done as soon as whatever is under way is over. It raises nothing."""
        self._soon.append(call)
        self._wake()

    def end_round(self) -> None:
        """Give all other tasks their turn as soon as whatever is under way is over."""
        self._ends_ns = 0

    def count_readable(self, watched: Watched) -> None:
        """Serve one as readable soon, as there are bytes that the kernel has handed out already."""
        self._readable[watched] = EPOLLIN
        self._wake()

    def _wake(self) -> None:
        if not self._serving:
            self._woken.set()

    def start_soon(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task for what has to wait; it raises nothing."""
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
        """Do all that is to be done now; nothing if the other task is at it."""
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
        """Yield what is to be done now."""
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
        # What is asked for meanwhile is done in the next round.
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
    """Tell one what it is ready for, if that is still wanted: another may have ended it in the same round."""
    if events & _FAILED:
        events |= EPOLLIN | EPOLLOUT
    try:
        if events & watched.events & EPOLLOUT:
            watched.writable()
        # The first may have ended the second.
        if events & watched.events & EPOLLIN:
            watched.readable()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is one connection's
        watched.failed(error)


def _do(step: Callable[[], None]) -> None:
    """Do something that should raise nothing; if it does all the same, no other step suffers."""
    try:
        step()
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception("unexpected error in the data path")
