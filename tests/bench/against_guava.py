"""Limiter decisions per second in one thread: Guava's RateLimiter.tryAcquire() and Sluice's limiter in turns.

Both have one bucket that never refuses, read the clock at each call, and are measured by processor time. Sluice is
called like a client with one request, and like the data path: all limits by name, for a whole batch at once.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import guava
from decisions import FRAMES_PER_READ, PLENTY, ns_per_call, of_all_limits, of_one_limiter, stacked
from goals import BATCHED
from peers import BenchError
from report import GUAVA, Table
from rows import DECISIONS, Row

ONE_RULE = 1
LINES = {
    "sluice, one by one, the limiter alone": (1, partial(of_one_limiter, f"topic:bench={PLENTY}/s", 1)),
    "sluice, one by one": (1, partial(of_all_limits, stacked(ONE_RULE), 1)),
    "sluice, batches of 16": (16, partial(of_all_limits, stacked(ONE_RULE), 16)),
    BATCHED: (FRAMES_PER_READ, partial(of_all_limits, stacked(ONE_RULE), FRAMES_PER_READ)),
}
"""By name: requests of a call, and its setup."""


def compare(rounds: int, seconds: float) -> Table:
    guava.build()
    table = Table(Row("decisions", DECISIONS, ()))
    asks = {name: (batch, make()) for name, (batch, make) in LINES.items()}
    for _, ask in asks.values():
        ns_per_call(ask, min(seconds, 0.1))
    with guava.started() as ns_per_decision:
        for _ in range(rounds):
            _add(table, GUAVA, ns_per_decision(seconds))
            for name, (batch, ask) in asks.items():
                _add(table, name, ns_per_call(ask, seconds) / batch)
    return table


def _add(table: Table, name: str, ns: float) -> None:
    table.add(name, {"ns_per_decision": ns, "decisions_per_s": 1e9 / ns})


def main() -> int:
    parser = argparse.ArgumentParser(prog="against_guava.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    try:
        table = compare(given.rounds, given.seconds)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(table.text())
    if given.json:
        given.json.write_text(json.dumps({"lines": table.rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
