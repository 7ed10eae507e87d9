"""Limiter decisions per second in one thread: one limiter alone, then all rules that apply together.

Every call reads the clock, as a caller would. There is no protocol and no handler: the first table calls one limiter,
the second all limits by name, with 1, 3 and 6 rules that apply, against one limiter in the same run. The third finds
the rule of one of a thousand topics among few rules and among very many.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, repeat
from pathlib import Path
from statistics import median

from report import aligned

from limiter.buckets.limiter import Limiter
from limiter.deciding.limits import Caller, Limits
from limiter.rules.limit_text import parse_limit
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

# The 536-byte frames in one read of 256 KiB.
FRAMES_PER_READ = 489
CALLS_BETWEEN_LOOKS = 1000
PLENTY = 1_000_000_000
TOPIC = Resource("topic", "bench")
CALLER = Caller("10.1.2.3", "bench", "main")

Ask = Callable[[], object]
"""Makes one decision about a whole batch."""


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    make: Callable[[], Ask]


def of_one_limiter(limit: str, batch: int) -> Ask:
    clock, costs = time.monotonic_ns, (1,) * batch
    acquire = Limiter(TOPIC, parse_limit(limit), clock()).acquire
    return lambda: acquire(clock(), costs)


def of_all_limits(rules: tuple[Rule, ...], batch: int) -> Ask:
    clock, costs, resources = time.monotonic_ns, (1,) * batch, (TOPIC,)
    decide = Limits(RuleSet(rules)).decide
    return lambda: decide(clock(), resources, CALLER, costs, list)


def of_many_topics(rules: tuple[Rule, ...]) -> Ask:
    clock = time.monotonic_ns
    decide = Limits(RuleSet(rules)).decide
    topics: Iterator[tuple[Resource]] = cycle([(Resource("topic", f"bench-{number}"),) for number in range(1000)])
    return lambda: decide(clock(), next(topics), CALLER, (1,), list)


def stacked(count: int) -> tuple[Rule, ...]:
    """Return this many rules that all apply to the topic and its caller."""
    rules = (
        Rule("topic", "*", PLENTY),
        Rule("client", "10.0.0.0/8", PLENTY),
        Rule("producer_group", "*", PLENTY),
        Rule("listener", "main", PLENTY),
        Rule("topic", "*", PLENTY, shared=True),
        Rule("client", "10.1.0.0/16", PLENTY, shared=True),
    )
    return rules[:count]


def large(exact: int, patterns: int) -> tuple[Rule, ...]:
    """Return a rule set of exact names and patterns, few of which match, and a default."""
    names = tuple(Rule("topic", f"bench-{number * 7}", PLENTY) for number in range(exact))
    globs = tuple(Rule("topic", f"other-{number}-*", PLENTY) for number in range(patterns))
    return (*names, *globs, Rule("topic", "*", PLENTY))


ALONE = tuple(
    Case(name, batch, lambda limit=limit, batch=batch: of_one_limiter(limit, batch))  # type: ignore[misc]  # defaults
    for name, limit, batch in (
        ("single, admitted", "topic:bench=1000000000/s", 1),
        ("batches of 16, admitted", "topic:bench=1000000000/s", 16),
        (f"batches of {FRAMES_PER_READ}, admitted", "topic:bench=1000000000/s", FRAMES_PER_READ),
        ("single, refused, breaker open", "topic:bench=1/s", 1),
        ("single, refused, rate 0", "topic:bench=0/s", 1),
    )
)
TOGETHER = tuple(
    case
    for batch, words in ((1, "single"), (64, "groups of 64"))
    for case in (
        Case(f"{words}, one limiter", batch, lambda batch=batch: of_one_limiter(f"topic:bench={PLENTY}/s", batch)),  # type: ignore[misc]  # defaults
        *(
            Case(
                f"{words}, {count} rule{'s' * (count > 1)}",
                batch,
                lambda count=count, batch=batch: of_all_limits(stacked(count), batch),  # type: ignore[misc]  # defaults
            )
            for count in (1, 3, 6)
        ),
    )
)
LOOKUPS = (
    Case("10 rules", 1, lambda: of_many_topics(large(5, 4))),
    Case("10 000 exact names and 200 patterns", 1, lambda: of_many_topics(large(10_000, 200))),
)


def ns_per_call(ask: Ask, seconds: float) -> float:
    """Call for ``seconds``. Return the nanoseconds of processor time per call."""
    calls = 0
    # Not the time of day, which includes other work of the machine.
    start_ns = now_ns = time.thread_time_ns()
    until_ns = start_ns + round(seconds * 1e9)
    while now_ns < until_ns:
        for _ in repeat(None, CALLS_BETWEEN_LOOKS):
            ask()
        calls += CALLS_BETWEEN_LOOKS
        now_ns = time.thread_time_ns()
    return (now_ns - start_ns) / calls


def table(title: str, cases: tuple[Case, ...], rounds: dict[str, list[float]], base: Callable[[Case], str]) -> str:
    """Print medians, and their ratios to another case of the same run."""
    lines = [[title, "decisions/s", "ns a decision", "ns a call", "spread", "calls compared"]]
    for case in cases:
        calls_ns = rounds[case.name]
        middle_ns = median(calls_ns)
        times = middle_ns / median(rounds[base(case)])
        lines.append(
            [
                case.name,
                f"{case.batch * 1e9 / middle_ns:,.0f}",
                f"{middle_ns / case.batch:,.1f}",
                f"{middle_ns:,.0f}",
                f"{(max(calls_ns) - min(calls_ns)) / middle_ns:.0%}",
                "1" if base(case) == case.name else f"{times:.2f}",
            ]
        )
    return aligned(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="decisions.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every measurement here")
    given = parser.parse_args()
    if given.rounds < 1 or given.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cases = (*ALONE, *TOGETHER, *LOOKUPS)
    asks = {case.name: case.make() for case in cases}
    rounds: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(given.rounds):
        for case in cases:
            rounds[case.name].append(ns_per_call(asks[case.name], given.seconds))
    print(f"limiter decisions, one thread (median of {given.rounds})")
    print(table("one limiter", ALONE, rounds, lambda _: ALONE[0].name), end="\n\n")
    print(table("all limits", TOGETHER, rounds, lambda case: f"{case.name.split(', ')[0]}, one limiter"), end="\n\n")
    print(table("the rule of one of 1000 topics", LOOKUPS, rounds, lambda _: LOOKUPS[0].name))
    if given.json:
        given.json.write_text(json.dumps({"ns_per_call": rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
