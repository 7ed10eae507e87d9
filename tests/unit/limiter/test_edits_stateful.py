"""Switches and edits during requests: they never cause a refusal below the limit, and never let more pass than the
bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from live_states import states_of

from limiter.deciding.limits import Caller, Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import DIMENSIONS, Action, Dimension, Rule
from limiter.rules.rule_set import RuleSet

NS_PER_S = 1_000_000_000
TOPICS = ("orders", "mail", "other")
# The topics of each pattern, the most specific pattern last.
PATTERNS = {"*": TOPICS, "m*": ("mail",), "orders": ("orders",)}
ASKER = Caller("10.0.0.1", "", "main")
UNIT: dict[Dimension, int] = {"messages": 0, "bytes": 1}

rates = st.sampled_from([None, 0, 0.5, 3, 20, 100])
bytes_rates = st.sampled_from([None, None, 0, 40, 500])
costs = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 60)), min_size=1, max_size=8)
times_ns = st.sampled_from([0, 1, NS_PER_S // 50, NS_PER_S // 3, NS_PER_S, 3 * NS_PER_S])


class Imagined:
    """A bucket that has always existed, and was charged for everything that ever arrived."""

    def __init__(self, rate: Fraction, max_debt: Fraction, arrived: Sequence[tuple[int, int]]) -> None:
        self.rate, self.max_debt = rate, max_debt
        self.stored, self.at_ns = rate, 0
        self.never_over = True
        for at_ns, cost in arrived:
            self.arrives(at_ns, cost)

    def arrives(self, now_ns: int, cost: int) -> None:
        self.stored = min(self.rate, self.stored + self.rate * (now_ns - self.at_ns) / NS_PER_S)
        self.at_ns = now_ns
        # The limiter rounds down to the micro-permit, and at each edit.
        self.never_over = self.never_over and self.stored > Fraction(1, 1000)
        self.stored -= cost
        self.never_over = self.never_over and self.stored >= -self.max_debt


class Stretch:
    """The admitted permits while a limit was active without a gap."""

    def __init__(self) -> None:
        self.rates: list[tuple[int, Fraction]] = []
        self.admitted: list[tuple[int, int]] = []

    def integral(self, from_ns: int, to_ns: int) -> Fraction:
        total = Fraction(0)
        ends = [at_ns for at_ns, _ in self.rates[1:]] + [to_ns]
        later = Fraction(0)
        for (begin_ns, rate), end_ns in reversed(list(zip(self.rates, ends, strict=True))):
            later = rate or later
            total += later * max(0, min(end_ns, to_ns) - max(begin_ns, from_ns)) / NS_PER_S
        return total

    def burst(self, from_ns: int) -> Fraction:
        ends = [at_ns for at_ns, _ in self.rates[1:]] + [2**63]
        return max(rate for (_, rate), end_ns in zip(self.rates, ends, strict=True) if end_ns >= from_ns)

    def check(self) -> None:
        last_ns = self.admitted[-1][0]
        total = largest = 0
        for at_ns, cost in reversed(self.admitted):
            total += cost
            largest = max(largest, cost)
            assert total <= math.ceil(self.integral(at_ns, last_ns) + self.burst(at_ns)) + largest - 1


class EditsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.written: dict[str, Rule] = {"*": Rule("topic", "*", 20)}
        self.before: dict[str, Rule | None] = {}
        self.enabled, self.off = True, False
        self.limits = Limits(self.rule_set())
        self.arrived: dict[str, list[tuple[int, tuple[int, int]]]] = {topic: [] for topic in TOPICS}
        self.imagined: dict[tuple[str, Dimension], Imagined | None] = defaultdict(lambda: None)
        self.stretches: dict[tuple[str, Dimension], Stretch | None] = {}
        self.note()

    def rule_set(self) -> RuleSet:
        off_kinds = frozenset({"topic"} if self.off else ())
        return RuleSet(tuple(self.written.values()), enabled=self.enabled, off_kinds=off_kinds)

    def limit(self, topic: str, dimension: Dimension) -> Rule | None:
        if not self.enabled or self.off:
            return None
        found = [
            self.written[pattern] for pattern, topics in PATTERNS.items() if topic in topics and pattern in self.written
        ]
        return found[-1].part(dimension) if found else None

    def swap(self) -> None:
        self.limits.swap(self.rule_set(), self.now_ns)
        self.note()

    def note(self) -> None:
        """Record the limits from now on."""
        for topic in TOPICS:
            for dimension in DIMENSIONS:
                key, limit = (topic, dimension), self.limit(topic, dimension)
                if limit is None or limit.action == "shadow":
                    self.stretches.pop(key, None)
                if limit is None:
                    continue
                assert limit.rate_per_s is not None
                rate = Fraction(limit.rate_per_s)
                if limit.action != "shadow":
                    stretch = self.stretches.setdefault(key, Stretch())
                    assert stretch is not None
                    stretch.rates.append((self.now_ns, rate))
                lowest = self.imagined[key]
                if rate and (lowest is None or rate < lowest.rate):
                    arrived = [(at_ns, cost[UNIT[dimension]]) for at_ns, cost in self.arrived[topic]]
                    self.imagined[key] = Imagined(rate, max(rate * 10, Fraction(1)), arrived)

    @rule(
        pattern=st.sampled_from(list(PATTERNS)),
        rate=rates,
        bytes_per_s=bytes_rates,
        action=st.sampled_from(["reject", "reject", "shadow"]),
    )
    def edit(self, pattern: str, rate: float | None, bytes_per_s: float | None, action: Action) -> None:
        self.before[pattern] = self.written.get(pattern)
        self.written[pattern] = Rule("topic", pattern, rate, bytes_per_s=bytes_per_s, action=action)
        self.swap()

    @rule(pattern=st.sampled_from(list(PATTERNS)), rate=rates)
    def edit_the_rate_alone(self, pattern: str, rate: float | None) -> None:
        old = self.written.get(pattern)
        self.edit(pattern, rate, None if old is None else old.bytes_per_s, "reject" if old is None else old.action)

    @rule(pattern=st.sampled_from(list(PATTERNS)))
    def what_held_before_holds_again(self, pattern: str) -> None:
        """An edit expires, or is reverted."""
        if pattern in self.before:
            rule_before = self.before.pop(pattern)
            if rule_before is None:
                self.written.pop(pattern, None)
            else:
                self.written[pattern] = rule_before
            self.swap()

    @rule()
    def switch_all(self) -> None:
        self.enabled = not self.enabled
        self.swap()

    @rule()
    def switch_the_kind(self) -> None:
        self.off = not self.off
        self.swap()

    @rule(time_ns=times_ns)
    def wait(self, time_ns: int) -> None:
        self.now_ns += time_ns

    @rule(topic=st.sampled_from(TOPICS), requests=costs)
    def arrive(self, topic: str, requests: list[tuple[int, int]]) -> None:
        admitted = self.ask(topic, requests)
        for passed, cost in zip(admitted, requests, strict=True):
            below = True
            self.arrived[topic].append((self.now_ns, cost))
            for dimension, unit in UNIT.items():
                imagined, limit = self.imagined[topic, dimension], self.limit(topic, dimension)
                if imagined is not None:
                    imagined.arrives(self.now_ns, cost[unit])
                    below = below and imagined.never_over
                below = below and (limit is None or limit.action == "shadow" or limit.rate_per_s != 0)
                stretch = self.stretches.get((topic, dimension))
                if passed and stretch is not None:
                    stretch.admitted.append((self.now_ns, cost[unit]))
                    stretch.check()
            assert passed or not below, f"{topic} is below the limit and was refused"

    @rule(topic=st.sampled_from(TOPICS), requests=costs)
    def arrive_if_below_the_limit(self, topic: str, requests: list[tuple[int, int]]) -> None:
        """Most drawn requests exceed it. A name that was once over the limit is ignored."""
        arrived = [*self.arrived[topic], *((self.now_ns, cost) for cost in requests)]
        for dimension, unit in UNIT.items():
            lowest = self.imagined[topic, dimension]
            if lowest is not None:
                each = [(at_ns, cost[unit]) for at_ns, cost in arrived]
                if not Imagined(lowest.rate, lowest.max_debt, each).never_over:
                    return
        self.arrive(topic, requests)

    @rule(
        topic=st.sampled_from(TOPICS),
        rate=st.sampled_from([0, 0.5, 3, 20, 100]),
        pause_ns=st.sampled_from([0, 0, NS_PER_S // 2]),
        most=st.sampled_from([1, 12]),
    )
    def flood_while_the_limit_goes_to_and_fro(self, topic: str, rate: float, pause_ns: int, most: int) -> None:
        pattern = next(each for each in reversed(PATTERNS) if topic in PATTERNS[each])
        flood = [(1 + at % most, 10) for at in range(130)]
        self.arrive(topic, flood)
        self.edit_the_rate_alone(pattern, rate)
        self.now_ns += pause_ns
        self.what_held_before_holds_again(pattern)
        self.arrive(topic, flood)

    @rule(topic=st.sampled_from(TOPICS), pause_ns=times_ns, requests=costs)
    def nothing_passes_for_a_while(self, topic: str, pause_ns: int, requests: list[tuple[int, int]]) -> None:
        pattern = next(each for each in reversed(PATTERNS) if topic in PATTERNS[each])
        self.edit_the_rate_alone(pattern, 0)
        self.now_ns += pause_ns
        self.what_held_before_holds_again(pattern)
        self.arrive_if_below_the_limit(topic, requests)

    def ask(self, topic: str, requests: list[tuple[int, int]]) -> list[bool]:
        """Ask for all at once, like the handler."""
        outcomes: list[bool] = []
        while len(outcomes) < len(requests):
            left = requests[len(outcomes) :]
            decision: Any = self.limits.decide(
                self.now_ns,
                (Resource("topic", topic),),
                ASKER,
                [messages for messages, _ in left],
                lambda: [size for _, size in left],  # noqa: B023 - asked within the call
            )
            refused = decision.alone or len(left) - decision.admitted
            outcomes += [True] * decision.admitted + [False] * refused
        return outcomes

    @invariant()
    def nothing_is_stored_beyond_the_burst(self) -> None:
        for state in states_of(self.limits, self.now_ns):
            assert state.stored_permits <= max(1000, state.rate_per_s)


TestEdits = EditsMachine.TestCase
TestEdits.settings = settings(max_examples=60, stateful_step_count=25)
