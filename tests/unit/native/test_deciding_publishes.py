"""Publishes that are for an exchange and a routing key at once: decided and counted as Python does it."""

from collections.abc import Sequence
from unittest.mock import patch

import pytest
import sluice_native
from hypothesis import given
from hypothesis import strategies as st
from live_states import states_of
from playbook import amqp_frames as frames

from limiter.counting.accounts import Accounts
from limiter.counting.rejections import OUTCOMES
from limiter.deciding import limits as limits_module
from limiter.deciding.limits import Caller, Limits
from limiter.rules.rule import NS_PER_S, Rule
from limiter.rules.rule_set import RuleSet

ADDRESS = "192.0.2.1"
CALLER = Caller(ADDRESS, "", "main")
ADMITTED = OUTCOMES.index("admitted")
RULES = (
    Rule("exchange", "*", 3),
    Rule("exchange", "*", None),
    Rule("exchange", "e", 2, bytes_per_s=500),
    Rule("exchange", "f", None, exempt=True),
    Rule("exchange", "*", 4, shared=True),
    Rule("routing_key", "*", 2),
    Rule("routing_key", "e/a", 1),
    Rule("routing_key", "e/*", 3),
    Rule("routing_key", "*", 1, action="shadow"),
    Rule("routing_key", "f/b", None, bytes_per_s=200),
    Rule("queue", "*", 2),
    Rule("queue", "a", 5),
    Rule("client", "*", 7),
)


class Way:
    """One way to decide and count what is read of a chunk."""

    def __init__(self, rules: Sequence[Rule], *, compiled: bool) -> None:
        self.accounts = Accounts()
        self.compiled = compiled
        with patch.object(limits_module, "COMPILED", sluice_native if compiled else None):
            self.limits = Limits(_rule_set(rules, 1), 100, self.accounts)
        # What is read is decided by either.
        resources = self.limits.resources if compiled else Limits(RuleSet()).resources
        assert resources is not None
        self.channels = sluice_native.Channels(resources, ("queue", "exchange", "routing_key"), "", 131_072, 100)
        self.channels.mark(1)
        self.channels.mark(2)

    def swap(self, rules: Sequence[Rule], version: int, now_ns: int) -> None:
        """Put other rules in force."""
        self.limits.swap(_rule_set(rules, version), now_ns)

    def take(self, chunk: bytes, now_ns: int, *, routing_keys: bool = True) -> list[int]:
        """Decide and count a chunk; return how many publishes of each run pass."""
        publishes = self.channels.scan(chunk, 0, 100, 1000, routing_keys)
        assert publishes.stop == len(chunk)
        passed, run, judged = [0] * publishes.runs, 0, list[int]()
        while run < publishes.runs:
            left = self.limits.admit(now_ns, CALLER, publishes, run) if self.compiled else run
            for admitted in range(run, left):
                passed[admitted] = len(publishes.run(admitted)[0])
            if left < publishes.runs:
                resources, _ = publishes.asker(left)
                indexes, _ = publishes.run(left)
                sizes = publishes.sizes(indexes)
                decision = self.limits.decide(now_ns, resources, CALLER, [1] * len(indexes), lambda: sizes)  # noqa: B023 - asked within the call
                passed[left] = decision.admitted
                judged += indexes[decision.admitted :]
            run = left + 1
        self._count(publishes, sorted(judged), now_ns)
        return passed

    def _count(self, publishes: sluice_native.Publishes, judged: list[int], now_ns: int) -> None:
        sender = self.accounts.sender(ADDRESS)
        every = range(publishes.runs)
        if self.compiled:
            left: Sequence[int] = publishes.count(self.accounts.at(now_ns), now_ns, sender, ADMITTED, judged)
            assert list(left) == [run for run in every if set(judged).intersection(publishes.run(run)[0])]
        else:
            left = every
        for run in left:
            indexes, size_bytes = publishes.run(run)
            amount = (len(indexes), len(indexes), size_bytes)
            self.accounts.count(now_ns, publishes.asker(run)[0], sender, "admitted", amount)


def _rule_set(rules: Sequence[Rule], version: int) -> RuleSet:
    return RuleSet({rule.key: rule for rule in reversed(rules)}.values(), True, version)


def chunk_of(sends: Sequence[tuple[int, str, str, int]]) -> bytes:
    """Return publishes: channel, exchange, routing key, and how long their bodies are."""
    return b"".join(
        b"".join(frames.content(channel, exchange.encode(), key.encode(), bytes(size)))
        for channel, exchange, key, size in sends
    )


sends = st.tuples(
    st.sampled_from([1, 1, 2]), st.sampled_from(["", "e", "f"]), st.sampled_from("ab"), st.integers(0, 99)
)
steps = st.tuples(
    st.lists(sends, min_size=1, max_size=12),
    st.sampled_from([0, 1_000_000, 300_000_000, NS_PER_S, 5 * NS_PER_S, 100 * NS_PER_S]),
    st.none() | st.lists(st.sampled_from(RULES), max_size=6),
    st.booleans(),
)


@given(st.lists(st.sampled_from(RULES), max_size=6), st.lists(steps, min_size=1, max_size=8))
def test_both_ways_come_to_the_same(
    rules: list[Rule], script: list[tuple[list[tuple[int, str, str, int]], int, list[Rule] | None, bool]]
) -> None:
    ways = [Way(rules, compiled=True), Way(rules, compiled=False)]
    now_ns = 0
    for version, (sent, later_ns, swapped, routing_keys) in enumerate(script, 2):
        now_ns += later_ns
        passed = []
        for way in ways:
            if swapped is not None:
                way.swap(swapped, version, now_ns)
            passed.append(way.take(chunk_of(sent), now_ns, routing_keys=routing_keys))
        assert passed[0] == passed[1]
        compiled, python = (
            (
                {(state.resource, state.rule): state for state in states_of(way.limits, now_ns)},
                dict(filter(None, way.accounts.each())),
                dict(way.limits.usages(now_ns)),
            )
            for way in ways
        )
        assert compiled == python


@pytest.mark.parametrize("routing_keys", [True, False])
def test_what_is_limited_by_name_alone_is_decided_at_once(routing_keys: bool) -> None:  # noqa: FBT001 - a case
    way = Way([Rule("exchange", "*", 1000), Rule("routing_key", "*", 500)], compiled=True)
    chunk = chunk_of([(1, "e", "a", 9), (1, "e", "b", 9), (1, "e", "a", 9)])
    publishes = way.channels.scan(chunk, 0, 100, 1000, routing_keys)
    assert way.limits.admit(0, CALLER, publishes, 0) == publishes.runs == 2
    assert {state.resource.kind for state in states_of(way.limits, 0)} == {"exchange", "routing_key"} - (
        set() if routing_keys else {"routing_key"}
    )


def test_it_is_for_both_or_for_none() -> None:
    way = Way([Rule("exchange", "e", 100, break_s=0), Rule("routing_key", "e/a", 1, break_s=0)], compiled=True)
    assert way.take(chunk_of([(1, "e", "a", 9)] * 3 + [(1, "e", "b", 9)]), 0) == [1, 1]
    (spent,) = (state for state in states_of(way.limits, 0) if state.resource.name == "e")
    assert spent.stored_permits == 98
