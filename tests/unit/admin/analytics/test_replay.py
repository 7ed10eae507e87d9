"""The replay against real limiters with the same demand, request by request."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from demands import limited

from admin.analytics.demand import Limit, Minutes
from admin.analytics.replay import Backtest, refused
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, Rule

SECONDS = 480
WITHIN = 0.015
"""Tolerance as a share of the messages, because the log does not record times within a second."""
NOTHING = 0.0005
"""Up to this share, 0 is right, too."""


class Second(NamedTuple):
    at_s: int
    requests: int
    messages: int
    size_bytes: int = 0


Arrival = tuple[int, int, int]
"""Time, messages and bytes of requests."""


class Sidecar:
    """Real limiters, and a line of waiting requests."""

    def __init__(self, limit: Limit) -> None:
        resource = Resource("topic", "orders")
        rule = Rule(
            *resource, limit.rate_per_s, burst_s=limit.burst_s, break_s=limit.break_s, action=limit.action,  # type: ignore[arg-type]
            bytes_per_s=limit.bytes_per_s, bytes_burst_s=limit.bytes_burst_s, allow_under_limit=True,
        )  # fmt: skip
        unit = 1 if limit.count == "requests" else 0
        self._limiters = [] if limit.rate_per_s is None else [(Limiter(resource, rule, 0), unit)]
        if rule.bytes_rule is not None:
            self._limiters.append((Limiter(resource, rule.bytes_rule, 0), 2))
        self._max_delay_us = limit.max_delay_s * 1e6 if limit.action == "delay" else 0.0
        self._line: deque[tuple[int, int, int]] = deque()
        self._now_ns = 0

    def asks(self, now_ns: int, messages: int, size_bytes: int) -> bool:
        """Say whether a request is admitted, at once or after a wait."""
        costs = (messages, 1, size_bytes)
        self._release(now_ns)
        if self._max_delay_us:
            waits = (
                limiter.wait_us_behind(now_ns, sum(each[unit] for each in self._line), costs[unit])
                for limiter, unit in self._limiters
            )
            if max(waits) > self._max_delay_us:
                return False
            self._line.append(costs)
            self._release(now_ns)
            return True
        stopping = [limiter for limiter, unit in self._limiters if not limiter.check(now_ns, (costs[unit],)).admitted]
        for limiter in stopping:
            limiter.refuse(now_ns)
        if not stopping:
            for limiter, unit in self._limiters:
                limiter.commit(now_ns, (costs[unit],))
        return not stopping

    def _release(self, now_ns: int) -> None:
        while self._line:
            costs = self._line[0]
            wait_us = max(limiter.wait_us_behind(self._now_ns, 0, costs[unit]) for limiter, unit in self._limiters)
            if self._now_ns + wait_us * 1000 > now_ns:
                return
            self._now_ns += wait_us * 1000
            for limiter, unit in self._limiters:
                limiter.commit(self._now_ns, (costs[unit],))
            self._line.popleft()
        self._now_ns = now_ns


def really_refused(limit: Limit, arrivals: Sequence[Arrival]) -> int:
    sidecar = Sidecar(limit)
    return sum(messages for now_ns, messages, size in arrivals if not sidecar.asks(now_ns, messages, size))


def minutes_of(
    seconds: Sequence[Second], left: float = 1.0, refused: Sequence[int] = (0,), under: Sequence[int] = (0,)
) -> Minutes:
    at_s, requests, messages, size = np.array(seconds, np.int64).reshape(-1, 4).T
    minute_s, counts = np.unique(at_s - at_s % 60, return_counts=True)
    many = len(minute_s)
    by_minute = (np.resize(each, many).astype(np.int64) for each in (under, refused, (1,)))
    top = np.zeros(many, np.int64)
    return Minutes(
        minute_s, *by_minute, counts, top, at_s, messages, requests, size, np.full(len(at_s), left, np.float32)
    )


def replayed(limit: Limit, seconds: Sequence[Second]) -> float:
    at_s, *amounts = np.array(seconds, np.int64).reshape(-1, 4).T
    return float(refused(limit, at_s, *(each.astype(float) for each in amounts)).sum())


def drawn(number: int) -> tuple[Limit, list[Second], list[Arrival]]:
    """Draw a limit and a demand about it, by second and by request."""
    rng = random.Random(number)
    rate = rng.choice((25, 40, 100))
    batch = rng.choice((1, 1, 1, 8)) if rate > 25 else 1
    size = rng.choice((100, 1000))
    action = rng.choice(("reject", "reject", "delay"))
    # Smaller buckets depend on the times within a second.
    burst_s = rng.choice((0.5, 1.0, 1.0, 1.0, 5.0))
    limit = Limit(
        "topic:orders",
        rate,
        burst_s=burst_s,
        break_s=0.0 if action == "delay" else rng.choice((0.0, min(1.0, burst_s), min(1.0, burst_s))),
        count=rng.choice(("messages", "messages", "requests")),
        bytes_per_s=rng.choice((None, None, rate * size * 1.1)),
        action=action,
        max_delay_s=rng.choice((2.0, 2.0, 7.0)),
    )
    per_request = 1 if limit.count == "requests" else batch
    times = rng.choice((0.5, 0.8, 0.95, 1.1, 1.5, 3.0))
    shape = rng.choice(("steady", "bursty", "storms", "waves"))
    even = rng.random() < 0.3
    seconds, arrivals = [], []
    for at_s in range(SECONDS):
        wanted = times * rate / per_request
        wanted *= {
            "steady": 1.0,
            "bursty": rng.choice((0.2, 0.5, 1.0, 2.0)),
            "storms": 1.0 if at_s % 120 < 15 else 0.3 / times,
            "waves": 0.5 + at_s % 60 / 60,
        }[shape]
        if count := int(wanted + rng.random()):
            offsets = sorted((2 * at + 1) / (2 * count) if even else rng.random() for at in range(count))
            arrivals += [(at_s * NS_PER_S + int(offset * NS_PER_S), batch, batch * size) for offset in offsets]
            seconds.append(Second(at_s, count, count * batch, count * batch * size))
    return limit, seconds, arrivals


@pytest.mark.parametrize("number", range(40))
def test_refuses_the_same_as_real_limiters(number: int) -> None:
    limit, seconds, arrivals = drawn(number)
    total = sum(each.messages for each in seconds)
    for times in (1.0, 1.4):
        then = replace(
            limit,
            rate_per_s=limit.rate_per_s and limit.rate_per_s * times,
            bytes_per_s=limit.bytes_per_s and limit.bytes_per_s * times,
        )
        said, real = replayed(then, seconds) / total, really_refused(then, arrivals) / total
        assert said == pytest.approx(real, abs=WITHIN)
        assert said > 0 or real <= NOTHING


def steady(per_s: int, seconds: int = 60, first_s: int = 0) -> list[Second]:
    return [Second(at_s, per_s, per_s, 10 * per_s) for at_s in range(first_s, first_s + seconds)]


@pytest.mark.parametrize(
    ("limit", "seconds", "refused"),
    [
        (Limit(), [Second(0, 10, 1_000_000)], 0),
        (Limit(rate_per_s=0.0), [Second(0, 10, 30)], 30),
        # Each request is larger than the bucket ever holds.
        (limited(100.0), [Second(0, 1, 1200), Second(1, 50, 50)], 1200),
        # 1 s of the rate passes, is stored, and waits for 2 s, or for 5 s.
        (Limit(rate_per_s=100, action="delay"), [Second(0, 1000, 1000)], 600),
        (Limit(rate_per_s=100, action="delay", max_delay_s=5.0), [Second(0, 1000, 1000)], 300),
        # Time without requests fills the bucket.
        (Limit(rate_per_s=10, burst_s=5.0), [Second(0, 50, 50), Second(100, 50, 50)], 0),
        # No rule has these rates, so the nearest are replayed.
        (Limit(rate_per_s=1e-12), steady(10), 599),
        (Limit(rate_per_s=1e15), steady(10), 0),
        (Limit(rate_per_s=10.0, burst_s=0.0), [Second(0, 9000, 9000)], 8990),
    ],
)
def test_known_cases(limit: Limit, seconds: list[Second], refused: int) -> None:
    assert replayed(limit, seconds) == pytest.approx(refused, abs=6)


NOW = limited(100.0)


@pytest.mark.parametrize(("left", "wanted"), [(1.0, 420), (0.375, 158), (0.01, 4)])
def test_demand_without_retries_is_replayed_by_its_part(left: float, wanted: int) -> None:
    backtest = Backtest(minutes_of(steady(7), left), NOW)
    assert (backtest.replay(0.0).refused_messages, backtest.replay(0.0, wanted=True).refused_messages) == (420, wanted)


def test_the_log_and_the_replay_are_compared_while_the_limit_was_the_same() -> None:
    seconds = [*steady(300), *steady(300, first_s=60)]
    backtest = Backtest(minutes_of(seconds, refused=(9, 11_000), under=(0, 1)), NOW, under=1)
    both, first = (
        backtest.replay(100.0).refused_messages,
        Backtest(minutes_of(steady(300)), NOW).replay(100.0).refused_messages,
    )
    assert (backtest.logged_messages, backtest.now_messages) == (11_000, 60 * 300)
    assert backtest.error() == pytest.approx(both - first - 11_000, abs=1)
    # The busiest minutes may all be under earlier limits.
    none = Backtest(minutes_of(seconds, under=(0, 1)), NOW, under=2)
    assert (none.logged_messages, none.now_messages, none.error()) == (0, 0, 0)


@pytest.mark.parametrize("now", [Limit(), replace(NOW, action="off")])
def test_a_new_limit_is_replayed_with_the_defaults(now: Limit) -> None:
    minutes = minutes_of(steady(300))
    new = Backtest(minutes, now)
    assert new.replay(None).refused_messages == 0
    assert new.replay(100.0).refused_messages == Backtest(minutes, NOW).replay(100.0).refused_messages
