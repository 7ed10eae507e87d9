"""How long things take on the data path: histograms of plain integers, read at scrape time.

Observing costs some tenths of a microsecond, and is done once for many requests or for few of many.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from proxy.stats.snapshot import BUCKETS_S, Durations

_BOUNDS_NS: Final = [round(bound_s * 1e9) for bound_s in BUCKETS_S]


class Histogram:
    """Durations by the buckets of ``snapshot.BUCKETS_S``; what is longer than the last has one of its own."""

    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_NS) + 1)
        self._sum_ns = 0

    def observe(self, duration_ns: int, times: int = 1) -> None:
        """Count something that took so long, once or for several requests that took the same."""
        self._counts[bisect_left(_BOUNDS_NS, duration_ns)] += times
        self._sum_ns += duration_ns * times

    def durations(self) -> Durations:
        """Return what was counted so far."""
        return Durations(tuple(self._counts), self._sum_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Timings:
    """What all connections of a data path time.

    Attributes:
        processing: from reading what completes a request to having queued it for the broker, or answered it.
        held: from holding a request to letting it go on, or refusing it.
        round_trip: from passing a request to the broker's answer.
    """

    processing: Histogram = field(default_factory=Histogram)
    held: Histogram = field(default_factory=Histogram)
    round_trip: Histogram = field(default_factory=Histogram)
