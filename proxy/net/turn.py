"""Lends connections to the compiled extension, which serves them faster than Python.

A connection is *lent* while the compiled extension can handle everything that its peers send (see ``Session.lend``).
Python takes it back when a peer sends something else, when a stream ends, or on request. If a connection uses TLS,
Python reads and writes its sockets, and the compiled extension only parses (``Lending.feed``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from limiter.compiled import COMPILED
from limiter.counting.accounts import Accounts
from proxy.deciding.batch import Side
from proxy.flow.broker_signals import BrokerSignals
from proxy.net.reactor import ROUND_NS
from proxy.stats.timing import Timings

if TYPE_CHECKING:
    from sluice_native import Lent, Turn

_SIDES: Final = tuple(Side)
_LEFT: Final = 0
_STALLED: Final = 1
_FLOWS: Final = 2
_ENDS: Final = 3
_ENDED: Final = 4
_BROKEN: Final = 5
#: Python takes a lent connection back if the broker has accepted no data for this long.
MAX_STALL_S: Final = 0.1


Pieces = tuple[list[bytes | tuple[int, int]], list[bytes | tuple[int, int]]]
"""Output for the client and for the broker. A pair of numbers is the start and stop of a slice of the chunk."""

Returned = tuple[Any, tuple[bytes, bytes], tuple[bytes, bytes], tuple[bytes, bytes], tuple[int, int]]


class Borrowed(Protocol):
    def left(self, *, broken: bool) -> None:
        """Take the connection back. ``broken`` is True if a stream has ended or failed."""

    def stalled(self, *, on: bool) -> None:
        """Called with True when the broker stops accepting data, and with False when it accepts data again."""

    def ends(self, *, over: bool) -> None:
        """Called when the client's stream ends. If ``over``, the broker's has ended too. Requires ``ends_here``."""


class Lending:
    """Lends connections to the compiled extension. ``lent`` maps each connection's number to its owner."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        accounts: Accounts,
        timings: Timings,
        frames: dict[Side, int],
        bytes_read: dict[Side, int],
    ) -> None:
        self._faults: dict[int, Exception] = {}
        assert COMPILED is not None  # noqa: S101 - the caller has checked
        self._turn: Turn = COMPILED.Turn(now_ns, accounts.moment, self._faults.__setitem__)
        self._now_ns = now_ns
        self._accounts = accounts
        self._timings = timings
        self._frames = frames
        self._bytes_read = bytes_read
        self.lent: dict[int, Borrowed] = {}
        self._scopes: dict[str, int] = {}

    def lend(
        self,
        borrowed: Borrowed,
        client_fd: int,
        broker_fd: int,
        lent: "Lent",
        scope: str,
        *,
        ends_here: bool = False,
        unread: tuple[bytes, bytes] = (b"", b""),
    ) -> int:
        """Lend a connection and return its number. Raises OSError if the kernel cannot watch its sockets.

        If ``ends_here``, the compiled extension also handles the end of the client's stream. ``unread`` contains the
        client's unparsed bytes and the broker's.
        """
        place = self._scopes.setdefault(scope, len(self._scopes))
        number = self._turn.lend(client_fd, broker_fd, lent, ends_here, unread, place)
        self.lent[number] = borrowed
        return number

    def feed(
        self, lent: "Lent", side: Side, chunk: memoryview, now_ns: int, signals: BrokerSignals
    ) -> tuple[Pieces, int, bool]:
        """Have the compiled extension parse a chunk that Python has read.

        Returns:
            The output, the number of bytes parsed, and whether the session must parse the rest.
        """
        number = 0 if side is Side.CLIENT else 1
        second = self._accounts.at(now_ns)
        fed = lent.feed(number, chunk, now_ns, self._now_ns, second)
        pieces, stop, leaves, frames, processing, round_trips, (answers, busy) = fed
        signals.answers += answers
        signals.busy += busy
        signals.round_trips_ns.extend(round_trips)
        self._count(frames, processing, round_trips)
        return pieces, stop, leaves

    def take(self, number: int) -> Returned:
        """Take a connection back. If the compiled extension failed, raise its exception, because data was lost."""
        del self.lent[number]
        returned = self._turn.take(number)
        fault = self._faults.pop(number, None)
        if fault is not None:
            raise fault
        return returned

    def forget(self, number: int) -> None:
        del self.lent[number]
        self._faults.pop(number, None)
        self._turn.forget(number)

    def take_signals(self, signals: Mapping[str, BrokerSignals]) -> dict[str, int]:
        """Add the compiled extension's load signals to ``signals``.

        Return the number of unanswered messages in each scope.
        """
        unanswered: dict[str, int] = {}
        for scope, (answers, busy, round_trips_ns, waiting) in zip(
            self._scopes, self._turn.take_signals(), strict=False
        ):
            of_scope = signals[scope]
            of_scope.answers += answers
            of_scope.busy += busy
            of_scope.round_trips_ns.extend(round_trips_ns)
            unanswered[scope] = waiting
        return unanswered

    def take_counts(self, number: int) -> tuple[int, int, tuple[int, int], int]:
        """Return requests, refusals and bytes per peer since the last call, and the time of the last read."""
        return self._turn.take_counts(number)

    def _count(
        self, frames: tuple[int, int], processing: Sequence[tuple[int, int]], round_trips: Sequence[int]
    ) -> None:
        for side, count in zip(_SIDES, frames, strict=True):
            self._frames[side] += count
        for took_ns, requests in processing:
            self._timings.processing.observe(took_ns, requests)
        for took_ns in round_trips:
            self._timings.round_trip.observe(took_ns)

    async def run(self) -> None:
        fd = self._turn.fileno()
        while True:
            await trio.lowlevel.wait_readable(fd)
            while not self._serve():
                await trio.lowlevel.checkpoint()

    def _serve(self) -> bool:
        is_idle, events, frames, bytes_read, processing, round_trips = self._turn.serve(ROUND_NS)
        self._count(frames, processing, round_trips)
        for side, of_bytes in zip(_SIDES, bytes_read, strict=True):
            self._bytes_read[side] += of_bytes
        for number, event in events:
            borrowed = self.lent.get(number)
            if borrowed is None:
                continue
            if event in {_ENDS, _ENDED}:
                borrowed.ends(over=event == _ENDED)
            elif event in {_STALLED, _FLOWS}:
                borrowed.stalled(on=event == _STALLED)
            else:
                borrowed.left(broken=event == _BROKEN)
        return is_idle
