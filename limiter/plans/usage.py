"""Usage: how near to its limit something is, before the first refusal.

What was spent is summed second by second, for the last 60 complete seconds; no task runs for it, and adding to
the present second is an addition. The figures are exact sums of whole permits, with what was debited after
the fact. Seconds are those of the monotonic clock; the one that has begun is in no figure.

Bounded: so many limits are told apart, besides those of names with a rule of their own. A new one takes the place
of one that was silent for all the time that is looked at; while there is none, it is not shown.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from limiter.counting.rotation import Rotation
from limiter.rules.resource import Resource
from limiter.rules.rule import DIMENSIONS, NS_PER_S, UPERMITS_PER_PERMIT, Dimension, Rule

WINDOWS_S: Final = (1, 10, 60)
_KEPT_S: Final = WINDOWS_S[-1]
_MAX_SHOWN: Final = 10_000
_LOOKS: Final = 4
"""Places looked at for each new limit once the bound is reached."""


class Usage(NamedTuple):
    """Shares of the permits that the rate allows in a window that were used in it; 1.0 is all of them.

    More than that is possible: a burst, or a debt. At rate 0 it is 1.0 if anything was asked, else 0.

    Attributes:
        used_1s: in the last complete second.
        used_10s: in the last ten.
        used_60s: in the last sixty.
    """

    used_1s: float
    used_10s: float
    used_60s: float


class Meter:
    """What one limit has spent, second by second.

    Attributes:
        ends_ns: when the present second ends; whoever adds at that time or later calls ``turn`` for it.
        spent: permits spent in the present second.
    """

    __slots__ = ("_board", "_dimension", "_resource", "_second", "_seconds", "ends_ns", "spent")

    def __init__(self, board: "Meters", dimension: Dimension, resource: Resource) -> None:
        self._board = board
        self._dimension: Dimension = dimension
        self._resource = resource
        self._second = 0
        #: By second, round and round: one more than what was spent, 0 if nothing was asked. None while not shown.
        self._seconds: array[int] | None = None
        self.ends_ns = 0
        self.spent = 0

    def add(self, now_ns: int, permits: int) -> None:
        """Note that something was asked, and the permits that were spent for it: none is worth noting, too."""
        if now_ns < self.ends_ns:
            self.spent += permits
        else:
            self.turn(now_ns, permits)

    def turn(self, now_ns: int, permits: int) -> None:
        """Begin with the second that ``now_ns`` lies in; it has spent so many permits."""
        second = now_ns // NS_PER_S
        seconds = self._seconds
        if seconds is None:
            if self._board.show(self._dimension, self._resource, self, second):
                self._seconds = array("q", bytes(8 * _KEPT_S))
        else:
            seconds[self._second % _KEPT_S] = self.spent + 1
            for silent in range(max(self._second + 1, second - _KEPT_S), second):
                seconds[silent % _KEPT_S] = 0
        self._second = second
        self.ends_ns = (second + 1) * NS_PER_S
        self.spent = permits

    def hide(self) -> None:
        """Give up the place, and what was kept."""
        self._seconds = None

    def is_silent(self, second: int) -> bool:
        """Say whether nothing was asked in all the seconds looked at before this one."""
        return self._second < second - _KEPT_S

    def usage(self, now_ns: int, rule: Rule) -> Usage | None:
        """Return the shares of a rule's permits; None if nothing was asked in the last 60 seconds."""
        present = max(now_ns // NS_PER_S, self._second)
        seconds = self._seconds
        if seconds is None or self.is_silent(present):
            return None
        # The seconds before the last one that was asked in, the oldest first; that one if it is complete; and those
        # since then.
        oldest, silent = self._second % _KEPT_S, present - self._second
        kept = seconds[oldest:] + seconds[:oldest]
        if silent:
            kept.append(self.spent + 1)
            kept.extend([0] * (silent - 1))
        shares, asked = [], 0
        rate = rule.rate_upermits_per_s
        for window_s in WINDOWS_S:
            window = kept[-window_s:]
            asked = window_s - window.count(0)
            permits = sum(window) - asked
            shares.append(permits * UPERMITS_PER_PERMIT / (rate * window_s) if rate else float(asked > 0))
        return Usage(*shares) if asked else None


def _none(resource: Resource) -> bool:
    """Say of no resource that it is shown whatever the bound."""
    del resource
    return False


class Meters:
    """The meters that are shown.

    Args:
        pinned: says of a resource whether it is shown whatever the bound.
        max_shown: how many others are.
    """

    __slots__ = ("_max_shown", "_meters", "_pinned", "_pinned_meters")

    def __init__(self, pinned: Callable[[Resource], bool] = _none, max_shown: int = _MAX_SHOWN) -> None:
        self._max_shown = max_shown
        self._pinned = pinned
        self._pinned_meters: dict[tuple[Dimension, Resource], Meter] = {}
        self._meters: Rotation[tuple[Dimension, Resource], Meter] = Rotation()

    def pin(self, pinned: Callable[[Resource], bool], changed: Iterable[Resource]) -> None:
        """Go by another word on what is shown whatever the bound; it differs for some resources at most.

        Those that are not any more give up their places if there are more than the bound allows.
        """
        self._pinned = pinned
        for resource in sorted(changed, key=pinned, reverse=True):
            stays = pinned(resource)
            of = self._meters if stays else self._pinned_meters
            for dimension in DIMENSIONS:
                key = (dimension, resource)
                meter = of.pop(key, None)
                if meter is None:
                    continue
                if stays:
                    self._pinned_meters[key] = meter
                elif len(self._meters) < self._max_shown:
                    self._meters.place(key, meter)
                else:
                    meter.hide()

    def meter(self, dimension: Dimension, resource: Resource) -> Meter:
        """Return the meter of a limit: the one that is shown, or else a new one."""
        return self.shown(dimension, resource) or Meter(self, dimension, resource)

    def shown(self, dimension: Dimension, resource: Resource) -> Meter | None:
        """Return the meter that is shown for a limit, if any."""
        key = (dimension, resource)
        return self._meters.get(key) or self._pinned_meters.get(key)

    def show(self, dimension: Dimension, resource: Resource, meter: Meter, second: int) -> bool:
        """Give a meter a place from this second on, if there is one."""
        key = (dimension, resource)
        other = self.shown(dimension, resource)
        if other is not None:
            other.hide()
        if self._pinned(resource):
            self._pinned_meters[key] = meter
            return True
        if other is None and len(self._meters) >= self._max_shown and not self._retire_silent(second):
            return False
        self._meters.place(key, meter)
        return True

    def _retire_silent(self, second: int) -> bool:
        """Look at a few of those that were looked at longest ago; hide one that is silent, and say if there was one."""
        for _ in range(_LOOKS):
            key, meter = self._meters.look()
            if meter.is_silent(second):
                del self._meters[key]
                meter.hide()
                return True
        return False

    def __iter__(self) -> Iterator[tuple[Dimension, Resource, Meter]]:
        """Yield what is shown; safe while that changes between two steps."""
        for meters in (self._pinned_meters, self._meters):
            # References only, as a tuple for each of many thousands would take its time.
            for (dimension, resource), meter in zip(list(meters), list(meters.values()), strict=True):
                yield dimension, resource, meter
