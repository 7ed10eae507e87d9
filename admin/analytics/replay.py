"""What a limit would have done to a demand: the real limiter, fed with what the log says was asked for.

The log has one figure for each second. Within it the requests are taken to come at even distances and to be of one
size, with the messages of the second shared out over them; where a bucket holds but a few, they come at any time. What
decides are ``limiter.buckets.limiter.Limiter`` objects, one for messages or requests and one for bytes. Of many
requests, what happens between two turns of theirs (the bucket runs out, the breaker closes) is computed at once instead
of request by request, so that a second costs a few steps however much is in it.

What even distances cannot know: a burst within a second that is larger than the bucket holds, which matters where
``burst_s`` is far below a second. What the log does not say is left out: shares of callers (``fair_by``), warm-up,
debts and delays other than by default, and totals or scopes that refuse besides. Action ``delay`` holds a request for
up to 2 s, which is Sluice's default: it is admitted where its wait is not longer, as out of a bucket that holds 2 s
more.

Pure: no Spark and no clock.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache, lru_cache
from math import inf
from random import Random
from typing import Final, NamedTuple

from admin.analytics.figures import Limit
from limiter.buckets.bucket import closes_at_ns, is_open
from limiter.buckets.limiter import Limiter
from limiter.rules.resource import Resource
from limiter.rules.rule import (
    DEFAULT_MAX_DELAY_S,
    MAX_RATE_PER_S,
    MAX_TIME_S,
    NS_PER_S,
    UPERMITS_PER_PERMIT,
    Rule,
)

FEW: Final = 50
"""Where a bucket holds fewer requests than this, much depends on when within a second they come."""
_REQUESTS, _MESSAGES, _BYTES = 1, 2, 3
"""Places in a ``Second`` of what is limited."""
VARIANTS: Final = 61
"""So many seconds differ in when their requests come."""
_RESOURCE: Final = Resource("topic", "replay")


class Second(NamedTuple):
    """What was asked for in a second, ``at_s`` since 1970."""

    at_s: int
    requests: int
    messages: int
    size_bytes: int = 0


class Stretch(NamedTuple):
    """Some seconds in a row.

    Attributes:
        seconds: ascending.
        most: what is asked for in one of them, at most; of each figure of ``Second``.
        before: what is asked for in all but the last.
    """

    seconds: Sequence[Second]
    most: Sequence[int]
    before: Sequence[int]

    @classmethod
    def of(cls, seconds: Sequence[Second]) -> "Stretch":
        """Return some seconds as a stretch."""
        columns = list(zip(*seconds, strict=True))
        return cls(seconds, [max(each) for each in columns], [sum(each[:-1]) for each in columns])


class Replay:
    """One resource under one limit; play its seconds in order. Those without a request can be left out.

    Args:
        limit: what limits.
        at_s: the first second; the buckets are full then.
    """

    def __init__(self, limit: Limit, at_s: int) -> None:
        self._gates: tuple[_Gate, ...] = ()
        now_ns = at_s * NS_PER_S
        rule = _rule(limit)
        if rule.rate_per_s is not None:
            self._gates += (
                _Gate(Limiter(_RESOURCE, rule, now_ns), _REQUESTS if limit.count == "requests" else _MESSAGES),
            )
        if rule.bytes_rule is not None:
            self._gates += (_Gate(Limiter(_RESOURCE, rule.bytes_rule, now_ns), _BYTES),)

    def play(self, stretch: Stretch) -> int:
        """Play some seconds; return how many of their messages are refused."""
        seconds = stretch.seconds
        if not seconds or not self._gates:
            return 0
        if all(gate.lasts(stretch) for gate in self._gates):
            for gate in self._gates:
                gate.pass_by(stretch)
            seconds = seconds[-1:]
        return sum(map(self.second, seconds))

    def second(self, second: Second) -> int:
        """Play one second; return how many of its messages are refused."""
        at_s, requests, messages, _ = second
        gates = self._gates
        if not gates or requests <= 0:
            return 0
        begin_ns = at_s * NS_PER_S
        gap_ns = NS_PER_S / requests
        for gate in gates:
            if not gate.ask(second, gap_ns):
                # Each is refused for its own size, which costs nothing and opens no breaker.
                return messages
        if requests <= FEW and any(gate.holds_few() for gate in gates):
            return self._one_by_one(at_s, requests, messages)
        if len(gates) == 1 and gates[0].takes_all(begin_ns):
            return 0
        refused = at = 0
        while at < requests:
            now_ns = begin_ns + int((at + 0.5) * gap_ns)
            free_ns = max(gate.closed_from_ns(now_ns) for gate in gates)
            if free_ns > now_ns:
                # A breaker is open: whatever comes before it closes is refused, by others too that have nothing left.
                self._stopping(now_ns)
                after = requests if free_ns >= begin_ns + NS_PER_S else _index_from(free_ns - begin_ns, gap_ns, at + 1)
                after = min(after, requests)
                refused += _part(messages, at, after, requests)
                at = after
                continue
            runs = [gate.run(now_ns, requests - at) for gate in gates]
            run = min(runs)
            if run:
                for gate in gates:
                    gate.admit(now_ns, at, run)
                at += run
                if at >= requests:
                    break
                now_ns = begin_ns + int((at + 0.5) * gap_ns)
            stopping = self._stopping(now_ns)
            if not stopping:
                # Rounding: the run ended a moment early.
                continue
            if any(gate.limiter.open_next_free_ns is not None for gate in stopping):
                refused += _part(messages, at, at + 1, requests)
                at += 1
                continue
            # Without a breaker what accrues is spent at once: what is admitted of the rest follows from the rate.
            rest = requests - at
            admitted = min((gate.trickle(now_ns, rest) for gate in stopping), default=0)
            for gate in gates:
                gate.drip(begin_ns + int((requests - 0.5) * gap_ns), at, admitted)
            total = _part(messages, at, requests, requests)
            refused += total - round(total * admitted / rest)
            at = requests
        return refused

    def _one_by_one(self, at_s: int, requests: int, messages: int) -> int:
        """Play a second's requests, each at a time of its own."""
        refused = at = 0
        begin_ns, gates = at_s * NS_PER_S, self._gates
        offsets_ns = times_ns(requests, at_s % VARIANTS)
        while at < requests:
            now_ns = begin_ns + offsets_ns[at]
            free_ns = max([gate.refuses_until_ns(now_ns) for gate in gates])
            if free_ns > now_ns:
                # Whatever comes before is refused, by others too that have nothing left.
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
        """Let those refuse a request that have nothing left, and return them; each does so whatever the others do."""
        stopping = [gate for gate in self._gates if gate.closed_from_ns(now_ns) <= now_ns and gate.empty(now_ns)]
        for gate in stopping:
            gate.limiter.refuse(now_ns)
        return stopping


class _Gate:
    """One limiter, and what a second asks of it."""

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
        # At rate 0 nothing is too large: all is refused.
        self._most_permits = limiter.rule.most_permits if limiter.rate_upermits_per_s else inf
        self._gap_ns = self._cost_upermits = self._gain_upermits = 0.0

    def lasts(self, stretch: Stretch) -> bool:
        """Say whether what is stored lasts for some seconds, whenever in each the requests come.

        If it does for the busiest of them, it does for the next: that much comes in again within a second.
        """
        limiter = self.limiter
        now_ns = stretch.seconds[0].at_s * NS_PER_S
        if self.closed_from_ns(now_ns) > now_ns:
            return False
        most = stretch.most[self._of] * UPERMITS_PER_PERMIT
        return most <= limiter.rate_upermits_per_s and most < limiter.refill(now_ns)

    def pass_by(self, stretch: Stretch) -> None:
        """Spend all but the last of seconds for which what is stored lasts."""
        limiter = self.limiter
        # What would come in beyond the capacity is missing at most for the second before.
        limiter.stored_upermits -= stretch.before[self._of] * UPERMITS_PER_PERMIT
        limiter.refill(stretch.seconds[-1].at_s * NS_PER_S)

    def takes_all(self, begin_ns: int) -> bool:
        """Say whether a whole second is admitted, and spend it if so: what most seconds come to, in one step."""
        limiter, requests, total, gap_ns = self.limiter, self._requests, self._total, self._gap_ns
        if limiter.open_next_free_ns is not None:
            return False
        stored = limiter.refill(begin_ns + int(0.5 * gap_ns))
        # What is spent more than accrues from the first request to the last, which is what the last one finds gone.
        loss = (total * UPERMITS_PER_PERMIT - limiter.rate_upermits_per_s) * (requests - 1) // requests
        if stored <= 0 or stored <= loss:
            return False
        # Where more accrues than is spent, the last one finds at most a full bucket.
        found = min(limiter.capacity_upermits, stored - loss)
        limiter.stored_upermits = found - total * UPERMITS_PER_PERMIT // requests
        limiter.at_ns = begin_ns + int((requests - 0.5) * gap_ns)
        return True

    def ask(self, second: Second, gap_ns: float) -> bool:
        """Say what comes in the next second; False if each request of it costs more than is ever admitted."""
        requests, total = second.requests, second[self._of]
        self._requests, self._total, self._gap_ns = requests, total, gap_ns
        self._cost_upermits = total * UPERMITS_PER_PERMIT / requests
        self._gain_upermits = self.limiter.rate_upermits_per_s * gap_ns / NS_PER_S
        return total <= requests * self._most_permits

    def closed_from_ns(self, now_ns: int) -> int:
        """Return from when on the breaker lets requests be decided; not later than now if it does."""
        limiter = self.limiter
        next_free_ns = limiter.open_next_free_ns
        if next_free_ns is None:
            return now_ns
        if is_open(next_free_ns, limiter.rule.break_ns, now_ns):
            return closes_at_ns(next_free_ns, limiter.rule.break_ns)
        limiter.open_next_free_ns = None
        return now_ns

    def refuses_until_ns(self, now_ns: int) -> int:
        """Return now if a request passes; or refuse it, and return until when others are refused as well."""
        limiter = self.limiter
        closed_ns = self.closed_from_ns(now_ns)
        if closed_ns > now_ns or limiter.refill(now_ns) > 0:
            return closed_ns
        limiter.refuse(now_ns)
        next_free_ns = limiter.open_next_free_ns
        return now_ns + 1 if next_free_ns is None else closes_at_ns(next_free_ns, limiter.rule.break_ns)

    def empty(self, now_ns: int) -> bool:
        """Say whether a request is refused now."""
        return self.limiter.refill(now_ns) <= 0

    def run(self, now_ns: int, most: int) -> int:
        """Return how many requests from this moment on are admitted before the first that is not."""
        stored = self.limiter.refill(now_ns)
        if stored <= 0:
            return 0
        loss = self._cost_upermits - self._gain_upermits
        if loss <= 0:
            return most
        # The k-th finds what is stored less k times the loss; it is admitted while that is more than nothing.
        return min(most, max(1, -int(-stored // loss)))

    def admit(self, now_ns: int, at: int, run: int) -> None:
        """Spend what a run of requests costs, as if each came at its time: the first now."""
        limiter = self.limiter
        stored = limiter.refill(now_ns)
        permits = _part(self._total, at, at + run, self._requests)
        if run > 1 and self._gain_upermits >= self._cost_upermits:
            # It fills up: each request finds at most a full bucket.
            last_ns = now_ns + int((run - 1) * self._gap_ns)
            cost = int(self._cost_upermits)
            full = limiter.capacity_upermits - cost
            grown = stored + int((run - 1) * self._gain_upermits) - permits * UPERMITS_PER_PERMIT
            limiter.stored_upermits, limiter.at_ns = min(full, grown), last_ns
            return
        # It runs down: nothing is ever cut off at the top, so the order of refill and spending does not matter.
        limiter.spend(permits)
        if run > 1:
            limiter.refill(now_ns + int((run - 1) * self._gap_ns))

    def holds_few(self) -> bool:
        """Say whether a full bucket holds few of the requests of this second."""
        return self.limiter.capacity_upermits < FEW * self._cost_upermits

    def run_of(self, begin_ns: int, offsets_ns: Sequence[int], at: int, end: int) -> tuple[int, float]:
        """Return the first of some requests of the second that is not admitted, and what those before it leave stored.

        Args:
            begin_ns: of the second.
            offsets_ns: when in it each comes.
            at: the first of them.
            end: behind the last of them; this is what is returned if all are admitted.
        """
        limiter = self.limiter
        # As the limiter does for each, but without a call, and parts of a micro-permit are kept.
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
        """Return how many of the rest of the second pass an empty bucket without a breaker, the first of them now."""
        limiter = self.limiter
        if not limiter.rate_upermits_per_s or not self._cost_upermits:
            return 0 if not limiter.rate_upermits_per_s else rest
        accrued = limiter.refill(now_ns) + (rest - 1) * self._gain_upermits
        return min(rest, max(0, -int(-accrued // self._cost_upermits)))

    def drip(self, last_ns: int, at: int, admitted: int) -> None:
        """Spend what trickled through until the last request of the second."""
        limiter = self.limiter
        limiter.spend(_part(self._total, at, at + admitted, self._requests))
        limiter.refill(last_ns)


def _rule(limit: Limit) -> Rule:
    delays = limit.action == "delay"
    # A time has whole nanoseconds.
    burst_s, bytes_burst_s = (max(each, 1 / NS_PER_S) for each in (limit.burst_s, limit.bytes_burst_s))
    held_s = DEFAULT_MAX_DELAY_S if delays else 0.0
    return Rule(
        _RESOURCE.kind,
        _RESOURCE.name,
        _rate(limit.rate, burst_s),
        burst_s=min(MAX_TIME_S, burst_s + held_s),
        break_s=0.0 if delays else limit.break_s,
        bytes_per_s=_rate(limit.bytes_rate, bytes_burst_s),
        bytes_burst_s=min(MAX_TIME_S, bytes_burst_s + held_s),
        allow_under_limit=True,
    )


def _rate(rate: float | None, burst_s: float) -> float | None:
    """Return a rate as near as a rule can have it: others may be asked about, or be a part of one."""
    if not rate:
        return rate
    # So that a millionth of a permit is stored, whichever way it is rounded.
    least = 2 / UPERMITS_PER_PERMIT * max(1.0, 1.0 / burst_s)
    return min(max(rate, least), float(MAX_RATE_PER_S))


@cache
def times_ns(requests: int, variant: int) -> list[int]:
    """Return when within a second requests come; for all limits the same, as these are compared."""
    random = Random(requests * VARIANTS + variant).random  # noqa: S311 - nothing is to be kept secret
    return sorted([int(random() * NS_PER_S) for _ in range(requests)])


@lru_cache(4096)
def _costs_upermits(total: int, requests: int) -> list[int]:
    """Return what each request of a second costs that costs so much in all."""
    return [_part(total, at, at + 1, requests) * UPERMITS_PER_PERMIT for at in range(requests)]


def _part(total: int, begin: int, end: int, requests: int) -> int:
    """Return what of a total falls upon the requests from one index up to another, shared out evenly."""
    return total * end // requests - total * begin // requests


def _index_from(after_ns: int, gap_ns: float, least: int) -> int:
    """Return the first request that comes not before a time of the second."""
    index = max(least, int(after_ns / gap_ns - 0.5))
    while int((index + 0.5) * gap_ns) < after_ns:
        index += 1
    return index
