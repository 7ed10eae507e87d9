"""Serves, by the compiled part, the connections of which everything is plain.

A connection is *lent* while all that its peers say is read, decided and written without Python; see ``Session.lend``.
It leaves at the first thing that is not, at the end of a stream, or when Python recalls it. Bytes that were not written
wait for its writer. Bytes that were not taken count as read ahead; the beginning of a frame goes to its session.

Where a socket speaks TLS, Python receives and sends, and the compiled part only reads: see ``Lending.feed``.
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
#: A connection whose broker takes nothing for so long returns: Python looks after its client then.
LONGEST_STALL_S: Final = 0.1


Pieces = tuple[list[bytes | tuple[int, int]], list[bytes | tuple[int, int]]]
"""What goes to the client and to the broker: bytes, or where they begin and end in the chunk in hand."""

Returned = tuple[Any, tuple[bytes, bytes], tuple[bytes, bytes], tuple[bytes, bytes], tuple[int, int]]
"""What a connection returns with, as ``Turn.take`` has it."""


class Borrowed(Protocol):
    """A connection that is lent."""

    def left(self, *, broken: bool) -> None:
        """Go on with what the compiled part does not serve; it serves nothing more if a stream has ended or failed."""

    def stalled(self, *, on: bool) -> None:
        """Take note that the broker takes no more for now, or that it does again."""

    def ends(self, *, over: bool) -> None:
        """Take note that the client's stream has ended, or both; only if that was asked for."""


class Lending:
    """The connections that the compiled part serves.

    Args:
        accounts: where it counts.
        frames, bytes_read: of all connections, by the peer that they came from.

    Attributes:
        lent: the connections by their numbers.
    """

    def __init__(
        self,
        now_ns: Callable[[], int],
        accounts: Accounts,
        timings: Timings,
        frames: dict[Side, int],
        bytes_read: dict[Side, int],
    ) -> None:
        #: Met in the middle of ``serve``, by the number of their connection.
        self._faults: dict[int, Exception] = {}
        assert COMPILED is not None  # noqa: S101 - who makes one has looked
        self._turn: Turn = COMPILED.Turn(now_ns, accounts.moment, self._faults.__setitem__)
        self._now_ns = now_ns
        self._accounts = accounts
        self._timings = timings
        self._frames = frames
        self._bytes_read = bytes_read
        self.lent: dict[int, Borrowed] = {}
        #: By the names of listeners' scopes, their numbers with the compiled part: 0, 1 and so on.
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
        """Have a connection served, and with ``ends_here`` its orderly end as well; returns its number.

        ``scope`` is its listener's. ``unread`` is what was received of client and broker, and not read.

        Raises:
            OSError: the kernel has no room to watch it.
        """
        place = self._scopes.setdefault(scope, len(self._scopes))
        number = self._turn.lend(client_fd, broker_fd, lent, ends_here, unread, place)
        self.lent[number] = borrowed
        return number

    def feed(
        self, lent: "Lent", side: Side, chunk: memoryview, now_ns: int, signals: BrokerSignals
    ) -> tuple[Pieces, int, bool]:
        """Have a chunk of a connection read whose sockets Python serves; return as ``Lent.feed`` does."""
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
        """Take a connection back.

        Raises:
            Exception: what the compiled part failed with, so that bytes of the connection are lost.
        """
        del self.lent[number]
        returned = self._turn.take(number)
        fault = self._faults.pop(number, None)
        if fault is not None:
            raise fault
        return returned

    def forget(self, number: int) -> None:
        """Forget a connection whose sockets are closed."""
        del self.lent[number]
        self._faults.pop(number, None)
        self._turn.forget(number)

    def take_signals(self, signals: Mapping[str, BrokerSignals]) -> dict[str, int]:
        """Add what brokers have shown to the signals of their scopes; return how many messages have no answer yet."""
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
        """Return requests, refused ones, bytes of either peer since the last call, and when one was read last."""
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
        """Serve until cancelled."""
        fd = self._turn.fileno()
        while True:
            await trio.lowlevel.wait_readable(fd)
            while not self._serve():
                await trio.lowlevel.checkpoint()

    def _serve(self) -> bool:
        """Serve what is ready, for no longer than others can wait; return whether that is all."""
        is_idle, events, frames, bytes_read, processing, round_trips = self._turn.serve(ROUND_NS)
        self._count(frames, processing, round_trips)
        for side, of_bytes in zip(_SIDES, bytes_read, strict=True):
            self._bytes_read[side] += of_bytes
        for number, event in events:
            borrowed = self.lent.get(number)
            if borrowed is None:
                # It has returned since.
                continue
            if event in {_ENDS, _ENDED}:
                borrowed.ends(over=event == _ENDED)
            elif event in {_STALLED, _FLOWS}:
                borrowed.stalled(on=event == _STALLED)
            else:
                borrowed.left(broken=event == _BROKEN)
        return is_idle
