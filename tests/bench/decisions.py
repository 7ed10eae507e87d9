"""Limiter decisions per second in one thread: single calls, batches as the data path makes them, and refusals.

Every call reads the clock, as a caller would. Nothing but the limiter is measured: no registry, no protocol.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import median

from report import aligned

from limiter.limit_text import parse_limit
from limiter.limiter import Limiter
from limiter.resource import Resource

# As many 536-byte frames as one read of 256 KiB holds.
FRAMES_OF_A_READ = 489
CALLS_BETWEEN_LOOKS = 1000


@dataclass(frozen=True)
class Case:
    """One way to ask: a limit and how many decisions a call takes."""

    name: str
    limit: str
    batch: int


CASES = (
    Case("single, admitted", "topic:bench=1000000000/s", 1),
    Case("batches of 16, admitted", "topic:bench=1000000000/s", 16),
    Case(f"batches of {FRAMES_OF_A_READ}, admitted", "topic:bench=1000000000/s", FRAMES_OF_A_READ),
    Case("single, refused, breaker open", "topic:bench=1/s", 1),
    Case("single, refused, rate 0", "topic:bench=0/s", 1),
)


def decisions_per_s(case: Case, seconds: float, clock: Callable[[], int] = time.monotonic_ns) -> float:
    """Ask one limiter for ``seconds`` and return its decisions per second."""
    limiter = Limiter(Resource("topic", "bench"), parse_limit(case.limit), clock())
    costs = (1,) * case.batch
    acquire = limiter.acquire
    calls = 0
    start_ns = now_ns = clock()
    until_ns = start_ns + round(seconds * 1e9)
    while now_ns < until_ns:
        for _ in repeat(None, CALLS_BETWEEN_LOOKS):
            acquire(clock(), costs)
        calls += CALLS_BETWEEN_LOOKS
        now_ns = clock()
    return calls * case.batch * 1e9 / (now_ns - start_ns)


def main() -> int:
    """Measure every case in turn, round by round, and print medians."""
    parser = argparse.ArgumentParser(prog="decisions.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rounds: dict[str, list[float]] = {case.name: [] for case in CASES}
    for _ in range(given.rounds):
        for case in CASES:
            rounds[case.name].append(decisions_per_s(case, given.seconds))
    lines = [["limiter", "decisions/s", "ns each", "spread"]]
    for name, rates in rounds.items():
        middle = median(rates)
        lines.append([name, f"{middle:,.0f}", f"{1e9 / middle:,.1f}", f"{(max(rates) - min(rates)) / middle:.0%}"])
    print(f"limiter decisions, one thread (median of {given.rounds})\n{aligned(lines)}")
    if given.json:
        given.json.write_text(json.dumps({"decisions_per_s": rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
