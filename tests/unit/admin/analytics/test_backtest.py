"""The backtest against real limiters that get the same demand request by request, with and without clients that retry.

The log that the backtest sees has one figure for each second; the requests come when they like within it.
"""

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import pytest

from admin.analytics.advice import NEXT_TO_NOTHING, Advice, Candidate, Rates, decide, recommendation
from admin.analytics.backtest import Minute, replay
from admin.analytics.demand import demand_of
from admin.analytics.figures import HourDemand, Known, Limit, Most, Storms
from admin.analytics.options import Options
from admin.analytics.replay import Replay, Second
from admin.common.numbers import percent
from admin.common.recommendations import Recommendation
from limiter.buckets.fair import FairLimiter
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, NS_PER_S, Rule

SECONDS = 480
POINT = 0.01
"""One point of refused share."""
NOTHING = 0.0005
"""Where no more than this is refused, 0 may be said."""
ATTEMPTS = 3


class Request(NamedTuple):
    """One attempt: when, the how manieth of which request, and what is in it."""

    at_ns: int
    original: int
    attempt: int
    messages: int
    size_bytes: int


class Sidecar:
    """Real limiters and a manual clock; and a line for those who may wait, in order, as ``limiter.waiting`` says."""

    def __init__(self, limit: Limit) -> None:
        resource = Resource("topic", "orders")
        self._delays = limit.action == "delay"
        rule = Rule(
            *resource,
            limit.rate_per_s,
            burst_s=limit.burst_s,
            break_s=limit.break_s,
            bytes_per_s=limit.bytes_per_s,
            bytes_burst_s=limit.bytes_burst_s,
            action="delay" if self._delays else "reject",
            allow_under_limit=True,
        )
        self._unit = 1 if limit.count == "requests" else 0
        self._limiters = [] if limit.rate_per_s is None else [(Limiter(resource, rule, 0), self._unit)]
        if rule.bytes_rule is not None:
            self._limiters.append((Limiter(resource, rule.bytes_rule, 0), 2))
        self._line: deque[tuple[int, int, int]] = deque()
        self._now_ns = 0

    def ask(self, now_ns: int, messages: int, size_bytes: int) -> bool:
        """Say whether a request passes, at once or later."""
        costs = (messages, 1, size_bytes)
        self._release(now_ns)
        if self._delays:
            waits = [
                limiter.wait_us_behind(now_ns, sum(each[unit] for each in self._line), costs[unit])
                for limiter, unit in self._limiters
            ]
            if max(waits) > DEFAULT_MAX_DELAY_S * 1e6:
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
                break
            self._now_ns += wait_us * 1000
            for limiter, unit in self._limiters:
                limiter.commit(self._now_ns, (costs[unit],))
            self._line.popleft()
        else:
            self._now_ns = now_ns


class Logged(NamedTuple):
    """What came of a demand: the log's minutes, the share of messages refused, and of requests given up."""

    minutes: list[Minute]
    refused: float
    given_up: float


def run(limit: Limit, demand: Sequence[Request], rng: random.Random, *, attempts: int) -> Logged:
    """Put a demand through a limit; who is refused tries again a moment later, up to so many times in all."""
    sidecar = Sidecar(limit)
    due = list(demand)
    heapify(due)
    asked = [[0, 0, 0, 0] for _ in range(SECONDS + 1)]
    refused = [0] * (SECONDS // 60 + 1)
    given_up = 0
    while due:
        each = heappop(due)
        at_s = each.at_ns // NS_PER_S
        for place, amount in enumerate((each.messages, 1, each.size_bytes, each.messages * (each.attempt > 1))):
            asked[at_s][place] += amount
        if sidecar.ask(each.at_ns, each.messages, each.size_bytes):
            continue
        refused[at_s // 60] += each.messages
        if each.attempt < attempts:
            again_ns = each.at_ns + rng.randrange(1_000_000, 50_000_000)
            heappush(due, each._replace(at_ns=again_ns, attempt=each.attempt + 1))
        else:
            given_up += each.messages
    minutes = []
    for number, of_minute in enumerate(refused):
        seconds = [at for at in range(60 * number, min(SECONDS + 1, 60 * number + 60)) if asked[at][1]]
        columns = [[asked[at][place] for at in seconds] for place in range(4)]
        shares = [1 - again / of for of, again in zip(columns[0], columns[3], strict=True)]
        minutes.append(
            Minute(
                number * 60,
                limit,
                of_minute,
                [at - 60 * number for at in seconds],
                columns[0],
                columns[1],
                columns[2],
                shares if any(columns[3]) else None,
            )
        )
    return Logged(
        minutes,
        sum(refused) / max(1, sum(each[0] for each in asked)),
        given_up / max(1, sum(each.messages for each in demand)),
    )


def drawn(number: int) -> tuple[Limit, list[Request], random.Random]:
    """Draw a limit, and a demand about it."""
    rng = random.Random(number)
    rate = rng.choice((12, 40, 100))
    batch = rng.choice((1, 1, 1, 8)) if rate > 12 else 1
    size = rng.choice((100, 1000))
    action = rng.choice(("reject", "reject", "delay"))
    burst_s = rng.choice((0.5, 1.0, 1.0, 1.0, 5.0))
    limit = Limit(
        "topic:orders",
        rate,
        burst_s=burst_s,
        break_s=0.0 if action == "delay" else rng.choice((0.0, min(1.0, burst_s), min(1.0, burst_s))),
        count=rng.choice(("messages", "messages", "requests")),
        bytes_per_s=rng.choice((None, None, rate * size * 1.1)),
        action=action,
    )
    per_request = 1 if limit.count == "requests" else batch
    times = rng.choice((0.5, 0.8, 0.95, 1.1, 1.5, 3.0))
    shape = rng.choice(("steady", "bursty", "storms", "waves"))
    even = rng.random() < 0.3
    found = []
    for at_s in range(SECONDS):
        wanted = times * rate / per_request
        wanted *= {
            "steady": 1.0,
            "bursty": rng.choice((0.2, 0.5, 1.0, 2.0)),
            "storms": 1.0 if at_s % 120 < 15 else 0.3 / times,
            "waves": 0.5 + at_s % 60 / 60,
        }[shape]
        count = int(wanted + rng.random())
        offsets = [(2 * at + 1) / (2 * count) if even else rng.random() for at in range(count)]
        found += [Request(at_s * NS_PER_S + int(offset * NS_PER_S), 0, 1, batch, batch * size) for offset in offsets]
    return limit, [each._replace(original=at) for at, each in enumerate(sorted(found))], rng


@pytest.mark.parametrize("number", range(50))
def test_says_what_real_limiters_refuse(number: int) -> None:
    limit, demand, rng = drawn(number)
    attempts = rng.choice((1, ATTEMPTS))
    other = replace(
        limit,
        rate_per_s=(limit.rate_per_s or 0.0) * 1.4,
        bytes_per_s=None if limit.bytes_per_s is None else limit.bytes_per_s * 1.4,
    )
    log = run(limit, demand, rng, attempts=attempts)
    candidates = [Candidate(each.rate_per_s, each.bytes_per_s, each is other) for each in (limit, other)]
    refused, error = replay(log.minutes, limit, candidates)
    asked = sum(sum(each.messages) for each in log.minutes)
    assert error == refused[0] - sum(each.refused_messages for each in log.minutes)
    said = (refused[0] / asked, refused[1] / sum(each.messages for each in demand))
    # Who is refused in the end was refused each time, so that it is left of the demand without retries as well.
    real = (log.refused, run(other, demand, rng, attempts=attempts).given_up)
    assert said == pytest.approx(real, abs=POINT)
    assert all(one > 0 or two <= NOTHING for one, two in zip(said, real, strict=True))


def quiet(limit: Limit, seconds: Sequence[int], *, at_s: int = 0, refused: int = 0) -> Minute:
    """Return a minute of requests of one message."""
    return Minute(at_s, limit, refused, range(len(seconds)), seconds, seconds, [10 * each for each in seconds])


NOW = Limit("topic:orders", 100.0, burst_s=1.0, break_s=1.0)


def test_a_minute_that_the_bucket_lasts_for_costs_no_more_than_its_last_second(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    second = Replay.second

    def counted(self: Replay, each: Second) -> int:
        played.append(each.at_s)
        return second(self, each)

    monkeypatch.setattr(Replay, "second", counted)
    minutes = [quiet(NOW, [80] * 60, at_s=at_s) for at_s in range(0, 600, 60)]
    assert replay(minutes, NOW, [Candidate(100.0, None, wanted=False)]) == ((0,), 0)
    assert played == list(range(59, 600, 60))


def test_what_is_left_without_retries_is_rounded_so_that_nothing_is_lost() -> None:
    nothing = Candidate(0.0, None, wanted=True)
    minute = quiet(NOW, [7] * 60)._replace(shares=[0.375] * 60)
    assert replay([minute], NOW, [nothing]).refused == (157,)
    halves = [Candidate(0.0, None, wanted=wanted, part=0.5) for wanted in (False, True)]
    assert replay([minute], NOW, halves).refused == (210, 78)
    assert replay([minute._replace(shares=None)], NOW, [nothing]).refused == (420,)


def test_the_model_is_held_against_the_log_only_while_the_limit_was_the_same() -> None:
    before = quiet(replace(NOW, rate_per_s=50.0), [300] * 60, refused=9)
    since = quiet(NOW, [300] * 60, at_s=60, refused=11_000)
    refused, error = replay([before, since], replace(NOW, changed=True), [Candidate(100.0, None, wanted=False)])
    both = replay([before, since], NOW, [Candidate(100.0, None, wanted=False)]).refused[0]
    first = replay([before], NOW, [Candidate(100.0, None, wanted=False)])
    assert refused[0] == both
    assert (first.error, error) == (0, both - first.refused[0] - 11_000)


def test_where_nothing_is_limited_a_candidate_is_a_limit_as_by_default() -> None:
    candidates = [Candidate(rate, None, wanted=False) for rate in (None, 100.0)]
    minute = quiet(Limit(), [300] * 60)
    free = replay([minute], Limit(), candidates)
    assert free.refused == (0, replay([minute], NOW, candidates[1:]).refused[0])
    off = replace(NOW, action="off")
    assert replay([minute], off, candidates).refused == free.refused
    assert replay([], NOW, candidates) == ((0, 0), 0)


def test_a_request_larger_than_all_that_a_limit_admits_is_refused_alone() -> None:
    large = Minute(0, NOW, 0, [0, 1], [1200, 50], [1, 50], [0, 0])
    assert replay([large], NOW, [Candidate(100.0, None, wanted=False)]).refused == (1200,)


def advised(log: Logged, limit: Limit, *, java: bool) -> Recommendation:
    """Recommend a limit, by a log that has an hour of demand besides of which nothing was refused.

    Args:
        log: of a demand.
        limit: that it met.
        java: the log says that clients try three times, and nobody has counted.
    """
    minutes = []
    asked: Counter[float] = Counter()
    wanted: Counter[float] = Counter()
    for minute in log.minutes:
        refused = minute.refused_messages / max(1, sum(minute.messages))
        share = 1 / (1 + refused + refused**2) if java else 1.0
        minutes.append(minute._replace(shares=[share] * len(minute.second) if share < 1 else None))
        asked.update(minute.messages)
        wanted.update(each * share for each in minute.messages)
    calm = HourDemand(
        rates=(limit.rate_per_s,), active_s=3600, quiet_s=3600, messages=288_000, wanted_messages=288_000.0
    )
    loud = HourDemand(
        rates=(limit.rate_per_s,),
        active_s=SECONDS,
        refused_s=SECONDS,
        refused_active_s=SECONDS,
        loud_from_s=0,
        loud_until_s=SECONDS,
        requests=asked.total(),
        messages=sum(int(value) * count for value, count in asked.items()),
        refused_messages=sum(each.refused_messages for each in log.minutes),
        wanted_messages=sum(value * count for value, count in wanted.items()),
        asked=sum(int(value) * count for value, count in asked.items()),
        wanted=sum(value * count for value, count in wanted.items()),
        refused_requests=sum(each.refused_messages for each in log.minutes),
        loud_asked=tuple(asked.items()),
        loud_wanted=tuple(wanted.items()),
    )
    hours = [
        (0, limit, replace(calm, calm=((80, 3600),), calm_minute=4800.0, quiet_minute=4800.0)),
        (3600, limit, loud),
    ]
    found = decide(demand_of("a", "topic", "orders", hours, Storms(), Known()), Options())
    return recommendation(found, *replay(minutes, limit, found.candidates))


@pytest.mark.parametrize("java", [True, False])
@pytest.mark.parametrize("number", range(4))
def test_a_raised_limit_holds_even_where_nobody_tried_again(number: int, *, java: bool) -> None:
    rng = random.Random(number)
    limit = Limit("topic:orders", 100.0, break_s=1.0)
    demand = []
    for at_s in range(SECONDS):
        # Some 112/s, and a second of more now and then.
        count = round(rng.gauss(112, 10)) if rng.random() > 0.03 else rng.randrange(150, 210)
        demand += [Request(at_s * NS_PER_S + rng.randrange(NS_PER_S), 0, 1, 1, 100) for _ in range(count)]
    log = run(limit, demand, rng, attempts=1)
    found = advised(log, limit, java=java)
    assert (found.action, found.retries) == ("raise", "assumed" if java else "none")
    assert found.recommended_rate_per_s is not None
    then = run(replace(limit, rate_per_s=found.recommended_rate_per_s), demand, rng, attempts=1)
    said = found.backtest.recommended_uncorrected
    assert said is not None
    assert said.refused_share == pytest.approx(then.refused, abs=0.001)
    assert then.refused <= 2 * NEXT_TO_NOTHING
    assert percent(said.refused_share) != "0%" or then.refused <= NOTHING
    if java:
        assert "without the retries that are assumed" in found.evidence


@pytest.mark.parametrize("others_per_s", [3, 15])
def test_fair_shares_refuse_the_others_no_more_than_is_said(others_per_s: int) -> None:
    rng = random.Random(others_per_s)
    limit = Limit("topic:orders", 100.0, break_s=1.0)
    rule = Rule("topic", "orders", 100.0, break_s=1.0, fair_by="client")
    fair = FairLimiter(Resource("topic", "orders"), rule, 0)
    arrivals = sorted(
        (at_s * NS_PER_S + rng.randrange(NS_PER_S), client)
        for at_s in range(120)
        for client, count in [("flood", 500), *((f"c{other}", others_per_s) for other in range(8))]
        for _ in range(count)
    )
    refused: Counter[str] = Counter()
    for now_ns, client in arrivals:
        if not fair.share(client, now_ns).check(now_ns, (1,)).admitted:
            fair.share(client, now_ns).refuse(now_ns)
            refused[client] += 1
        else:
            fair.share(client, now_ns).commit(now_ns, (1,))
    seconds = [500 + 8 * others_per_s] * 60
    minutes = [quiet(limit, seconds, at_s=at_s) for at_s in (0, 60)]
    most = Most("client", "flood", 500 / seconds[0], 9)
    advice = Advice(
        instance="a", kind="topic", name="orders", action="keep", limit=limit, recommended=Rates(100.0, None), most=most
    )
    said = replay(minutes, limit, [advice.fair]).refused[0]
    others = 120 * 8 * others_per_s
    really = refused.total() - refused["flood"]
    assert refused["flood"] > 45_000
    assert really <= said + POINT * others
    assert said - really <= 0.1 * others
