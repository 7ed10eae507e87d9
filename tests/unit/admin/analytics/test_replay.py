"""The replay against the real limiter, which gets the same requests one by one."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from admin.analytics import replay as module
from admin.analytics.figures import Limit
from admin.analytics.replay import Replay, Second
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, Rule

Arrival = tuple[int, int, int]
"""When, how many messages, how many bytes."""


def replayed(limit: Limit, seconds: list[Second]) -> int:
    replay = Replay(limit, 0)
    return sum(map(replay.second, seconds))


WITHIN = 0.02
"""Of what was asked for."""


def test_a_limit_that_no_rule_has_is_replayed_as_the_nearest_one() -> None:
    for burst_s in (0.0, 1e-12):
        limit = Limit("r", 10.0, burst_s=burst_s, bytes_per_s=10.0, bytes_burst_s=burst_s)
        assert replayed(limit, [Second(0, 9000, 9000, 9000)]) > 0


def rule_of(limit: Limit) -> Rule:
    return Rule(
        "topic",
        "orders",
        limit.rate_per_s,
        burst_s=limit.burst_s,
        break_s=limit.break_s,
        bytes_per_s=limit.bytes_per_s,
        bytes_burst_s=limit.bytes_burst_s,
        allow_under_limit=True,
    )


def refused_one_by_one(limit: Limit, arrivals: Iterator[Arrival]) -> int:
    """What the real limiters refuse: both must admit, and a refusal spends from neither."""
    rule, resource = rule_of(limit), Resource("topic", "orders")
    limiters = [] if limit.rate_per_s is None else [(Limiter(resource, rule, 0), 1 if limit.count == "requests" else 0)]
    if rule.bytes_rule is not None:
        limiters.append((Limiter(resource, rule.bytes_rule, 0), 2))
    refused = 0
    for now_ns, messages, size_bytes in arrivals:
        costs = (messages, 1, size_bytes)
        stopping = [limiter for limiter, unit in limiters if not limiter.check(now_ns, (costs[unit],)).admitted]
        if stopping:
            refused += messages
            for limiter in stopping:
                limiter.refuse(now_ns)
        else:
            for limiter, unit in limiters:
                limiter.commit(now_ns, (costs[unit],))
    return refused


def evenly(seconds: list[Second]) -> Iterator[Arrival]:
    for at_s, requests, messages, size_bytes in seconds:
        for index in range(requests):
            yield (
                at_s * NS_PER_S + (2 * index + 1) * NS_PER_S // (2 * requests),
                messages * (index + 1) // requests - messages * index // requests,
                size_bytes * (index + 1) // requests - size_bytes * index // requests,
            )


def at_its_times(seconds: list[Second]) -> Iterator[Arrival]:
    """The times that a replay takes requests to come at where a bucket holds few."""
    for at_s, requests, messages, size_bytes in seconds:
        for index, offset_ns in enumerate(module.times_ns(requests, at_s % module.VARIANTS)):
            yield (
                at_s * NS_PER_S + offset_ns,
                messages * (index + 1) // requests - messages * index // requests,
                size_bytes * (index + 1) // requests - size_bytes * index // requests,
            )


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(0, module.FEW), min_size=1, max_size=30),
    batch=st.integers(1, 4),
    rate=st.floats(0.5, 45),
    break_s=st.sampled_from([0.0, 0.5, 1.0]),
    bytes_per_s=st.one_of(st.none(), st.floats(100, 2000)),
    count=st.sampled_from(["messages", "requests"]),
)
def test_of_few_requests_each_is_decided_as_by_the_real_limiter(
    *, counts: list[int], batch: int, rate: float, break_s: float, bytes_per_s: float | None, count: str
) -> None:
    limit = Limit(rate_per_s=rate, break_s=break_s, count=count, bytes_per_s=bytes_per_s)
    seconds = [Second(at_s, many, many * batch, many * batch * 50) for at_s, many in enumerate(counts) if many]
    assert replayed(limit, seconds) == refused_one_by_one(limit, at_its_times(seconds))


@pytest.fixture
def evenly_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests come at even distances even where a bucket holds few of them."""
    monkeypatch.setattr(module, "FEW", 0)


@pytest.mark.usefixtures("evenly_only")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(0, 120), min_size=1, max_size=20),
    batch=st.integers(1, 20),
    rate=st.floats(0.5, 300),
    burst_s=st.sampled_from([0.5, 1.0, 2.0, 10.0]),
    break_s=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    bytes_per_s=st.one_of(st.none(), st.floats(1_000, 100_000)),
    count=st.sampled_from(["messages", "requests"]),
)
def test_refuses_what_the_real_limiter_refuses_of_anything(
    *,
    counts: list[int],
    batch: int,
    rate: float,
    burst_s: float,
    break_s: float,
    bytes_per_s: float | None,
    count: str,
) -> None:
    limit = Limit(rate_per_s=rate, burst_s=burst_s, break_s=break_s, count=count, bytes_per_s=bytes_per_s)
    seconds = [Second(at_s, many, many * batch, many * batch * 50) for at_s, many in enumerate(counts) if many]
    asked = sum(second.messages for second in seconds)
    off = abs(replayed(limit, seconds) - refused_one_by_one(limit, evenly(seconds)))
    # Of few requests a single one is more than 2 %: a bucket that runs out between two of them to the nanosecond.
    assert off <= max(WITHIN * asked, 2 * batch)


def test_a_limit_of_0_refuses_all() -> None:
    assert Replay(Limit(rate_per_s=0.0), 0).second(Second(0, 10, 30)) == 30


def test_without_a_limit_nothing_is_refused() -> None:
    assert Replay(Limit(), 0).second(Second(0, 10, 1_000_000)) == 0


def test_delay_lets_through_what_would_wait_for_two_seconds() -> None:
    seconds = [Second(0, 250, 250, 0)]
    assert replayed(Limit(rate_per_s=100, burst_s=1.0), seconds) > 0
    assert replayed(Limit(rate_per_s=100, action="delay"), seconds) == 0
    assert Replay(Limit(rate_per_s=100, action="delay"), 0).second(Second(0, 1000, 1000)) == pytest.approx(600, abs=5)


def test_seconds_without_requests_fill_the_bucket() -> None:
    replay = Replay(Limit(rate_per_s=10, burst_s=5.0), 0)
    assert replay.second(Second(0, 200, 200)) > 0
    assert replay.second(Second(100, 50, 50)) == 0


@pytest.mark.parametrize("rate", [1e-12, 1e15])
@pytest.mark.parametrize("burst_s", [0.001, 1.0, 3600.0])
def test_a_rate_that_no_rule_can_have_is_replayed_as_the_nearest(rate: float, burst_s: float) -> None:
    seconds = [Second(at_s, 10, 100, 1000) for at_s in range(100)]
    for limit in (
        Limit("r", rate, burst_s=burst_s),
        Limit("r", None, bytes_per_s=rate, bytes_burst_s=burst_s),
    ):
        refused = replayed(limit, seconds)
        assert refused == 0 if rate > 1 else refused > 9000
