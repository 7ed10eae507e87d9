"""What a limit would have refused of a recorded demand, by the real limiter.

The log has one figure for each second. Within a second, requests are assumed to arrive at even distances and to be of
one size, or at random times where a bucket holds only a few of them. The decisions are those of
``limiter.buckets.limiter.Limiter`` objects, one for messages or requests and one for bytes. Runs of requests that are
all admitted or all refused are computed in one step, so a second costs a few steps however many requests it has.

Not in the model: bursts within a second, which matter if ``burst_s`` is far below a second, warm-up, debts, fair shares
and further limits such as totals and scopes. Action ``delay`` admits what would wait up to ``max_delay_s``, like a
bucket that holds that much more.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import inf
from random import Random
from typing import Final, NamedTuple

import numpy as np

from admin.analytics.demand import Ints, Limit, Minute
from admin.analytics.words import MINUTE_S
from limiter.buckets.bucket import closes_at_ns, is_open
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import DEFAULT_BREAK_S, MAX_RATE_PER_S, MAX_TIME_S, NS_PER_S, UPERMITS_PER_PERMIT, Rule

FEW: Final = 50
"""If a bucket holds fewer requests than this, their times within a second matter."""
VARIANTS: Final = 61
"""How many patterns of random times there are for a number of requests."""
_QUIET_SHARE: Final = 0.99
"""A second with less than this share of rate and capacity cannot empty a full bucket."""
_REQUESTS, _MESSAGES, _BYTES = 1, 2, 3
"""Places in a ``Second``."""
_RESOURCE: Final = Resource("topic", "replay")


class Second(NamedTuple):
    """The demand of one second, ``at_s`` since 1970."""

    at_s: int
    requests: int
    messages: int
    size_bytes: int = 0


class Rates(NamedTuple):
    """What a limit admits per second; None is unlimited."""

    per_s: float | None
    bytes_per_s: float | None = None

    @property
    def limits(self) -> bool:
        """Whether anything is limited."""
        return self.per_s is not None or self.bytes_per_s is not None


class Backtest:
    """What limits would have refused over the same minutes.

    Args:
        minutes: of one resource, in order.
        now: the limit in force at their end. Candidates differ from it by their rates.
    """

    def __init__(self, minutes: Sequence[Minute], now: Limit) -> None:
        self.minutes, self._now = minutes, now
        self._refused: dict[tuple[Rates, bool], Ints] = {}
        columns = [(each.requests, each.messages, each.bytes) for each in minutes]
        self._peaks, self._sums = (
            np.array([(0, *(how(each, initial=0) for each in its)) for its in columns], np.int64).reshape(-1, 4)
            for how in (np.max, np.sum)
        )
        self.messages = int(self._sums[:, _MESSAGES].sum())
        self.wanted_messages = sum(
            float(total if minute.shares is None else (minute.messages * minute.shares).sum())
            for minute, total in zip(minutes, self._sums[:, _MESSAGES].tolist(), strict=True)
        )
        self._is_now = np.array([minute.limit == now for minute in minutes], bool)
        logged = np.array([minute.refused_messages for minute in minutes], np.int64)
        self.now_messages = int(self._sums[self._is_now, _MESSAGES].sum())
        """Demand while the limit in force was in force."""
        self.logged_messages = int(logged[self._is_now].sum())
        """Refused by the limit in force, by the log."""

    def refused(self, rates: Rates, *, wanted: bool = False) -> int:
        """Return how many messages a limit would have refused; ``wanted`` is the demand without retries."""
        return int(self._played(rates, wanted=wanted).sum())

    def error(self) -> int:
        """Return what the replay refuses beyond the log while the limit in force was in force."""
        played = self._played(Rates(self._now.rate, self._now.bytes_rate), wanted=False)
        return int(played[self._is_now].sum()) - self.logged_messages

    def _played(self, rates: Rates, *, wanted: bool) -> Ints:
        """Return the messages refused in each minute."""
        key = (rates, wanted)
        if key not in self._refused:
            self._refused[key] = found = np.zeros(len(self.minutes), np.int64)
            if rates.limits and self.minutes:
                limit = limit_of(self._now, rates)
                loud = self._loud(limit)
                loud[1:] |= loud[:-1].copy()
                player = Replay(limit, self.minutes[0].minute_s)
                for at in np.flatnonzero(loud).tolist():
                    found[at] = player.play(_seconds(self.minutes[at], wanted=wanted))
        return self._refused[key]

    def _loud(self, limit: Limit) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Find the minutes in which a full bucket may run out or not be full at the end."""
        loud = np.zeros(len(self.minutes), bool)
        of = _REQUESTS if limit.count == "requests" else _MESSAGES
        for place, rate, burst_s in ((of, limit.rate, limit.burst_s), (_BYTES, limit.bytes_rate, limit.bytes_burst_s)):
            if rate is not None:
                capacity = rate * burst_s
                loud |= self._peaks[:, place] > _QUIET_SHARE * min(rate, capacity)
                loud |= self._sums[:, place] > MINUTE_S * rate - capacity
        return loud


def _seconds(minute: Minute, *, wanted: bool) -> list[Second]:
    """Return a minute's demand; without retries in whole messages, with no drift over the minute."""
    at, requests, messages, size = minute.minute_s + minute.second, minute.requests, minute.messages, minute.bytes
    if wanted and minute.shares is not None:
        left = minute.shares
        messages = np.diff(np.floor(np.cumsum(messages * left) + 0.5), prepend=0.0).astype(np.int64)
        requests = np.maximum(1, np.rint(requests * left)).astype(np.int64)
        size = np.rint(size * left).astype(np.int64)
    rows = zip(at.tolist(), requests.tolist(), messages.tolist(), size.tolist(), strict=True)
    return [Second(*row) for row in rows if row[2]]


def limit_of(now: Limit, rates: Rates) -> Limit:
    """Return the limit in force with other rates; a new limit has the defaults."""
    if now.limits:
        return replace(now, rate_per_s=rates.per_s, bytes_per_s=rates.bytes_per_s)
    action = "reject" if now.action == "off" else now.action
    break_s = 0.0 if action == "delay" else min(DEFAULT_BREAK_S, now.burst_s)
    return replace(now, rate_per_s=rates.per_s, bytes_per_s=rates.bytes_per_s, action=action, break_s=break_s)


class Replay:
    """One resource under one limit. Seconds without requests can be left out.

    Args:
        limit: the limit.
        at_s: the first second; the buckets are full.
        is_empty: the buckets are empty instead.
    """

    def __init__(self, limit: Limit, at_s: int, *, is_empty: bool = False) -> None:
        rule, now_ns = _rule(limit), at_s * NS_PER_S
        self._gates: list[_Gate] = []
        if rule.rate_per_s is not None:
            of = _REQUESTS if limit.count == "requests" else _MESSAGES
            self._gates.append(_Gate(Limiter(_RESOURCE, rule, now_ns), of))
        if rule.bytes_rule is not None:
            self._gates.append(_Gate(Limiter(_RESOURCE, rule.bytes_rule, now_ns), _BYTES))
        if is_empty:
            for gate in self._gates:
                gate.limiter.stored_upermits = min(1, gate.limiter.capacity_upermits)

    def play(self, seconds: Sequence[Second]) -> int:
        """Play ascending seconds and return how many of their messages are refused."""
        return sum(map(self.second, seconds))

    def second(self, second: Second) -> int:
        """Play one second and return how many of its messages are refused."""
        at_s, requests, messages, _ = second
        gates = self._gates
        if not gates or requests <= 0:
            return 0
        begin_ns = at_s * NS_PER_S
        gap_ns = NS_PER_S / requests
        for gate in gates:
            if not gate.expect(second, gap_ns):
                # Each request is refused alone for its size, which opens no breaker.
                return messages
        if requests <= FEW and any(gate.holds_few() for gate in gates):
            return self._one_by_one(at_s, requests, messages)
        if len(gates) == 1 and gates[0].takes_all(begin_ns):
            return 0
        refused = at = 0
        while at < requests:
            now_ns = begin_ns + int((at + 0.5) * gap_ns)
            free_ns = max(gate.closed_until_ns(now_ns) for gate in gates)
            if free_ns > now_ns:
                # An open breaker refuses everything before it closes.
                self._stopping(now_ns)
                after = requests if free_ns >= begin_ns + NS_PER_S else _index_from(free_ns - begin_ns, gap_ns, at + 1)
                after = min(after, requests)
                refused += _part(messages, at, after, requests)
                at = after
                continue
            run = min(gate.run(now_ns, requests - at) for gate in gates)
            if run:
                for gate in gates:
                    gate.admit(now_ns, at, run)
                at += run
                if at >= requests:
                    break
                now_ns = begin_ns + int((at + 0.5) * gap_ns)
            stopping = self._stopping(now_ns)
            if not stopping:
                # Rounding ended the run a moment early.
                continue
            if any(gate.limiter.open_next_free_ns is not None for gate in stopping):
                refused += _part(messages, at, at + 1, requests)
                at += 1
                continue
            # Without a breaker, permits are spent as they accrue: the rate says how many of the rest are admitted.
            rest = requests - at
            admitted = min((gate.trickle(now_ns, rest) for gate in stopping), default=0)
            for gate in gates:
                gate.drip(begin_ns + int((requests - 0.5) * gap_ns), at, admitted)
            total = _part(messages, at, requests, requests)
            refused += total - round(total * admitted / rest)
            at = requests
        return refused

    def _one_by_one(self, at_s: int, requests: int, messages: int) -> int:
        """Play a second's requests each at a time of its own."""
        refused = at = 0
        begin_ns, gates = at_s * NS_PER_S, self._gates
        offsets_ns = times_ns(requests, at_s % VARIANTS)
        while at < requests:
            now_ns = begin_ns + offsets_ns[at]
            free_ns = max([gate.refuses_until_ns(now_ns) for gate in gates])
            if free_ns > now_ns:
                after = bisect_left(offsets_ns, free_ns - begin_ns, at + 1)
                refused += _part(messages, at, after, requests)
                at = after
                continue
            end = requests
            if len(gates) > 1:
                end = min(gate.run_of(begin_ns, offsets_ns, at, end)[0] for gate in gates)
            for gate in gates:
                end, stored = gate.run_of(begin_ns, offsets_ns, at, end)
                gate.limiter.stored_upermits = int(stored)
                gate.limiter.at_ns = begin_ns + offsets_ns[end - 1]
            at = end
        return refused

    def _stopping(self, now_ns: int) -> "list[_Gate]":
        """Let every empty limiter refuse a request, and return them."""
        stopping = [gate for gate in self._gates if gate.closed_until_ns(now_ns) <= now_ns and gate.is_empty(now_ns)]
        for gate in stopping:
            gate.limiter.refuse(now_ns)
        return stopping


class _Gate:
    """One limiter and the second that it decides."""

    __slots__ = (
        "_cost_upermits",
        "_gain_upermits",
        "_gap_ns",
        "_most_permits",
        "_of",
        "_requests",
        "_total",
        "limiter",
    )

    def __init__(self, limiter: Limiter, of: int) -> None:
        self.limiter, self._of = limiter, of
        self._requests = self._total = 0
        # At rate 0 nothing is too large: everything is refused.
        self._most_permits = limiter.rule.most_permits if limiter.rate_upermits_per_s else inf
        self._gap_ns = self._cost_upermits = self._gain_upermits = 0.0

    def expect(self, second: Second, gap_ns: float) -> bool:
        """Take up the next second; False if each of its requests costs more than is ever admitted."""
        requests, total = second.requests, second[self._of]
        self._requests, self._total, self._gap_ns = requests, total, gap_ns
        self._cost_upermits = total * UPERMITS_PER_PERMIT / requests
        self._gain_upermits = self.limiter.rate_upermits_per_s * gap_ns / NS_PER_S
        return total <= requests * self._most_permits

    def takes_all(self, begin_ns: int) -> bool:
        """Spend the whole second in one step if all of it is admitted, as most seconds are."""
        limiter, requests, total, gap_ns = self.limiter, self._requests, self._total, self._gap_ns
        if limiter.open_next_free_ns is not None:
            return False
        stored = limiter.refill(begin_ns + int(0.5 * gap_ns))
        # The last request finds this much less than the first one.
        loss = (total * UPERMITS_PER_PERMIT - limiter.rate_upermits_per_s) * (requests - 1) // requests
        if stored <= 0 or stored <= loss:
            return False
        found = min(limiter.capacity_upermits, stored - loss)
        limiter.stored_upermits = found - total * UPERMITS_PER_PERMIT // requests
        limiter.at_ns = begin_ns + int((requests - 0.5) * gap_ns)
        return True

    def closed_until_ns(self, now_ns: int) -> int:
        """Return when an open breaker closes; at most now if requests are decided."""
        limiter = self.limiter
        next_free_ns = limiter.open_next_free_ns
        if next_free_ns is None:
            return now_ns
        if is_open(next_free_ns, limiter.rule.break_ns, now_ns):
            return closes_at_ns(next_free_ns, limiter.rule.break_ns)
        limiter.open_next_free_ns = None
        return now_ns

    def refuses_until_ns(self, now_ns: int) -> int:
        """Return now if a request is admitted; otherwise refuse it and return until when all are refused."""
        limiter = self.limiter
        closed_ns = self.closed_until_ns(now_ns)
        if closed_ns > now_ns or limiter.refill(now_ns) > 0:
            return closed_ns
        limiter.refuse(now_ns)
        next_free_ns = limiter.open_next_free_ns
        return now_ns + 1 if next_free_ns is None else closes_at_ns(next_free_ns, limiter.rule.break_ns)

    def is_empty(self, now_ns: int) -> bool:
        return self.limiter.refill(now_ns) <= 0

    def run(self, now_ns: int, most: int) -> int:
        """Return how many requests from now on are admitted before the first that is not."""
        stored = self.limiter.refill(now_ns)
        if stored <= 0:
            return 0
        loss = self._cost_upermits - self._gain_upermits
        return most if loss <= 0 else min(most, max(1, -int(-stored // loss)))

    def admit(self, now_ns: int, at: int, run: int) -> None:
        """Spend a run of requests, the first one now."""
        limiter = self.limiter
        stored = limiter.refill(now_ns)
        permits = _part(self._total, at, at + run, self._requests)
        last_ns = now_ns + int((run - 1) * self._gap_ns)
        if run > 1 and self._gain_upermits >= self._cost_upermits:
            # It fills up: each request finds at most a full bucket.
            full = limiter.capacity_upermits - int(self._cost_upermits)
            grown = stored + int((run - 1) * self._gain_upermits) - permits * UPERMITS_PER_PERMIT
            limiter.stored_upermits, limiter.at_ns = min(full, grown), last_ns
            return
        limiter.spend(permits)
        limiter.refill(last_ns)

    def holds_few(self) -> bool:
        return self.limiter.capacity_upermits < FEW * self._cost_upermits

    def run_of(self, begin_ns: int, offsets_ns: Sequence[int], at: int, end: int) -> tuple[int, float]:
        """Return the first request from ``at`` on that is not admitted, or ``end``, and what is stored then."""
        limiter = self.limiter
        # As the limiter does, but without a call for each request, and with fractions of micro-permits.
        stored, last_ns = float(limiter.stored_upermits), min(limiter.at_ns - begin_ns, offsets_ns[at])
        capacity, per_ns = limiter.capacity_upermits, limiter.rate_upermits_per_s / NS_PER_S
        costs = _costs_upermits(self._total, self._requests)
        for index in range(at, end):
            offset_ns = offsets_ns[index]
            found = stored + (offset_ns - last_ns) * per_ns
            if found <= 0:
                return index, stored
            stored = (found if found < capacity else capacity) - costs[index]  # noqa: FURB136 - a call is slower
            last_ns = offset_ns
        return end, stored

    def trickle(self, now_ns: int, rest: int) -> int:
        """Return how many of the rest of the second an empty bucket without a breaker admits, the first one now."""
        limiter = self.limiter
        if not limiter.rate_upermits_per_s or not self._cost_upermits:
            return 0 if not limiter.rate_upermits_per_s else rest
        accrued = limiter.refill(now_ns) + (rest - 1) * self._gain_upermits
        return min(rest, max(0, -int(-accrued // self._cost_upermits)))

    def drip(self, last_ns: int, at: int, admitted: int) -> None:
        """Spend what trickled through until the last request of the second."""
        self.limiter.spend(_part(self._total, at, at + admitted, self._requests))
        self.limiter.refill(last_ns)


def _rule(limit: Limit) -> Rule:
    delays = limit.action == "delay"
    # A time has whole nanoseconds.
    burst_s, bytes_burst_s = (max(each, 1 / NS_PER_S) for each in (limit.burst_s, limit.bytes_burst_s))
    held_s = limit.max_delay_s if delays else 0.0
    return Rule(
        *_RESOURCE,
        _rate(limit.rate, burst_s),
        burst_s=min(MAX_TIME_S, burst_s + held_s),
        break_s=0.0 if delays else limit.break_s,
        bytes_per_s=_rate(limit.bytes_rate, bytes_burst_s),
        bytes_burst_s=min(MAX_TIME_S, bytes_burst_s + held_s),
        allow_under_limit=True,
    )


def _rate(rate: float | None, burst_s: float) -> float | None:
    """Return the nearest rate that a rule can have; a millionth of a permit must fit the bucket."""
    if not rate:
        return rate
    least = 2 / UPERMITS_PER_PERMIT * max(1.0, 1.0 / burst_s)
    return min(max(rate, least), float(MAX_RATE_PER_S))


@cache
def times_ns(requests: int, variant: int) -> list[int]:
    """Return random times of requests within a second; the same for all limits, which are compared."""
    random = Random(requests * VARIANTS + variant).random  # noqa: S311 - not a secret
    return sorted([int(random() * NS_PER_S) for _ in range(requests)])


@lru_cache(4096)
def _costs_upermits(total: int, requests: int) -> list[int]:
    """Return the cost of each request of a second that costs ``total`` permits."""
    return [_part(total, at, at + 1, requests) * UPERMITS_PER_PERMIT for at in range(requests)]


def _part(total: int, begin: int, end: int, requests: int) -> int:
    """Return what the requests from ``begin`` to ``end`` have of a total that is shared out evenly."""
    return total * end // requests - total * begin // requests


def _index_from(after_ns: int, gap_ns: float, least: int) -> int:
    """Return the first request at or after a time of the second."""
    index = max(least, int(after_ns / gap_ns - 0.5))
    while int((index + 0.5) * gap_ns) < after_ns:
        index += 1
    return index
