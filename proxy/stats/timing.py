"""Histograms of durations in the data path. They count in integers, which are converted on scraping."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from proxy.stats.snapshot import BUCKETS_S, Durations

_BOUNDS_NS: Final = [round(bound_s * 1e9) for bound_s in BUCKETS_S]


class Histogram:
    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_NS) + 1)
        self._sum_ns = 0

    def observe(self, duration_ns: int, times: int = 1) -> None:
        self._counts[bisect_left(_BOUNDS_NS, duration_ns)] += times
        self._sum_ns += duration_ns * times

    def durations(self) -> Durations:
        return Durations(tuple(self._counts), self._sum_ns / 1e9)


@dataclass(frozen=True, slots=True)
class Timings:
    processing: Histogram = field(default_factory=Histogram)
    held: Histogram = field(default_factory=Histogram)
    round_trip: Histogram = field(default_factory=Histogram)
