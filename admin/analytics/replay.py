"""What a limit would have refused of a recorded demand.

The model is the bucket and the breaker of ``limiter.buckets.limiter``, and a test compares the two. The log has one
figure for each second: within it, requests are assumed to arrive at even distances and to be of one size, or at random
times where the bucket holds only a few of them. A run of requests that are all admitted or all refused takes one step.

Seconds are played only from a full bucket on that may run out. All others are skipped, since what was refused before a
full bucket no longer matters.

Not in the model: bursts within a second, which matter if ``burst_s`` is far below a second, warm-up, debts, fair shares
and further limits such as totals and scopes. Action ``delay`` admits what would wait up to ``max_delay_s``, like a
bucket that holds that much more.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from admin.analytics.demand import Flags, Ints, Limit, Minutes, Values
from limiter.rules.rule import DEFAULT_BREAK_S, DEFAULT_MAX_DEBT_S

FEW: Final = 50
"""If a bucket holds fewer requests than this, their times within a second matter."""
_BLOCK: Final = 300
"""Seconds whose levels are computed in one step."""
_TIMES: Final = np.random.default_rng(0).random(100_003)
"""Random times within a second; the same for all limits, which are compared."""


class Backtest:
    """What limits would have refused over the same minutes.

    Args:
        minutes: of one resource.
        now: the limit in force at their end. Candidates differ from it by their rates.
    """

    def __init__(self, minutes: Minutes, now: Limit) -> None:
        self._minutes = minutes
        self._limit = now
        if now.rate is None and now.bytes_rate is None:
            # A new limit has the defaults.
            action = "reject" if now.action == "off" else now.action
            break_s = 0.0 if action == "delay" else min(DEFAULT_BREAK_S, now.burst_s)
            self._limit = replace(now, rate_per_s=None, bytes_per_s=None, action=action, break_s=break_s)
        self._refused: dict[tuple[float | None, bool], Values] = {}
        is_now = minutes.under == minutes.under[-1] if len(minutes.under) else minutes.under == 0
        self._is_now: Flags = np.repeat(is_now, minutes.seconds)
        self.messages = int(minutes.messages.sum())
        self.wanted_messages = float((minutes.messages * minutes.left).sum())
        self.now_messages = int(minutes.messages[self._is_now].sum())
        """Demand while the limit in force was in force."""
        self.logged_messages = int(minutes.refused_messages[is_now].sum())
        """Refused by the limit in force, by the log."""

    def refused(self, per_s: float | None, *, wanted: bool = False) -> int:
        """Return how many messages this rate would have refused; ``wanted`` is the demand without retries."""
        return round(float(self._played(per_s, wanted=wanted).sum()))

    def error(self) -> int:
        """Return what the replay refuses beyond the log while the limit in force was in force."""
        played = self._played(self._limit.rate, wanted=False)
        return round(float(played[self._is_now].sum())) - self.logged_messages

    def _played(self, per_s: float | None, *, wanted: bool) -> Values:
        """Return the messages refused in each second."""
        key = (per_s, wanted)
        if key not in self._refused:
            its = self._minutes
            limit = replace(self._limit, rate_per_s=per_s)
            left = np.asarray(its.left, float) if wanted else np.ones(len(its.left))
            self._refused[key] = refused(limit, its.at_s, its.requests * left, its.messages * left, its.bytes * left)
        return self._refused[key]


def refused(
    limit: Limit, at_s: Ints, requests: Values, messages: Values, size: Values, *, is_empty: bool = False
) -> Values:
    """Return the messages that a limit refuses in each second, which may be fractions.

    Args:
        limit: the limit.
        at_s: seconds in order; those without requests are left out.
        requests: requests in each.
        messages: messages in each.
        size: bytes in each.
        is_empty: the bucket is empty at the beginning, not full.
    """
    delays = limit.action == "delay"
    held_s, break_s = (limit.max_delay_s, 0.0) if delays else (0.0, limit.break_s)
    costs = requests if limit.count == "requests" else messages
    sides = ((limit.rate, costs, limit.burst_s), (limit.bytes_rate, size, limit.bytes_burst_s))
    gates = [_Gate(rate, burst_s + held_s, its) for rate, its, burst_s in sides if rate is not None]
    if not gates or not len(at_s):
        return np.zeros(len(at_s))
    if any(gate.rate <= 0 for gate in gates):
        return messages * 1.0
    requests = np.maximum(1.0, np.rint(requests))
    # Each request is refused alone for its size, which opens no breaker.
    alone = np.any([gate.costs > requests * gate.most for gate in gates], axis=0)
    is_full, is_dry = np.ones(len(at_s), bool), np.zeros(len(at_s), bool)
    for gate in gates:
        gate.costs = np.where(alone, 0.0, gate.costs)
        gate.stored = 0.0 if is_empty else gate.capacity
        level = gate.levels(at_s, float((gate.costs / requests).max()))
        is_full &= level >= gate.capacity * (1 - 1e-9)
        is_dry |= level <= gate.costs
    share = alone.astype(float)
    if is_dry.any():
        segment = np.cumsum(is_full)
        is_played = np.bincount(segment, is_dry)[segment] > 0
        if any(break_s * gate.rate > gate.capacity for gate in gates):
            # A breaker stays open beyond a full bucket.
            is_played[np.argmax(is_played) :] = True
        at = np.flatnonzero(is_played & ~alone)
        each = zip(*(gate.costs[at].tolist() for gate in gates), strict=True)
        columns = ((at_s[at] - at_s[0]).tolist(), requests[at].astype(int).tolist(), is_full[at].tolist(), each)
        share[at] = _play(gates, break_s, zip(*columns, strict=True))
    return np.asarray(messages * share)


class _Gate:
    """A bucket, in permits and seconds."""

    __slots__ = ("capacity", "cost", "costs", "most", "rate", "stored")

    def __init__(self, rate: float, burst_s: float, costs: Values) -> None:
        self.rate, self.costs = rate, costs
        self.capacity = self.stored = max(1e-6, rate * burst_s)
        self.most = max(1.0, self.capacity + rate * DEFAULT_MAX_DEBT_S)
        self.cost = 0.0

    def levels(self, at_s: Ints, largest: float) -> Values:
        """Return what is stored before each second, at least, if all its requests came at its begin.

        Args:
            at_s: seconds in order.
            largest: cost of the largest request, which is the largest debt.
        """
        found = np.empty(len(at_s))
        stored, last_s = self.stored, at_s[0]
        # As if none was refused, but for the end of each block.
        for begin in range(0, len(at_s), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            left = stored - np.cumsum(self.costs[block])
            before = self.rate * (at_s[block] - last_s) + np.append(stored, left[:-1])
            over = np.maximum.accumulate(np.maximum(before - self.capacity, 0.0))
            found[block] = before - over
            last_s = at_s[block][-1]
            stored = max(float(found[block][-1] - self.costs[block][-1]), -largest)
        return found

    def refill(self, seconds: float) -> float:
        self.stored = min(self.capacity, self.stored + seconds * self.rate)
        return self.stored

    def run(self, gap_s: float, most: int) -> int:
        """Return how many requests at even distances are admitted before the first that is not."""
        loss = self.cost - gap_s * self.rate
        return most if self.stored > loss * (most - 1) else max(1, math.ceil(self.stored / loss))

    def spend(self, gap_s: float, run: int) -> None:
        """Take what a run of requests costs. A bucket that fills up meanwhile holds no more than its capacity."""
        self.stored = min(self.capacity, self.stored - (self.cost - gap_s * self.rate) * (run - 1)) - self.cost


def _play(
    gates: Sequence[_Gate], break_s: float, seconds: Iterable[tuple[int, int, bool, tuple[float, ...]]]
) -> list[float]:
    """Play seconds, as begin, requests, whether the buckets are full, and costs; return each one's refused part."""
    last_s, free_s, found = 0.0, -math.inf, []
    for begin_s, requests, is_full, costs in seconds:
        gap_s = 1 / requests
        has_few = False
        for gate, cost in zip(gates, costs, strict=True):
            gate.cost = cost * gap_s
            has_few = has_few or (requests <= FEW and gate.capacity < FEW * gate.cost)
            if is_full:
                gate.stored = gate.capacity
        if is_full:
            last_s = float(begin_s)
        start = begin_s * 61 % (len(_TIMES) - FEW)
        offsets_s = sorted(_TIMES[start : start + requests].tolist()) if has_few else ()
        at = admitted = 0
        if offsets_s and len(gates) == 1:
            # As below, without a call for each request.
            gate = gates[0]
            stored, rate, capacity, cost = gate.stored, gate.rate, gate.capacity, gate.cost
            for offset_s in offsets_s:
                now_s = begin_s + offset_s
                if now_s < free_s:
                    continue
                stored += (now_s - last_s) * rate
                stored, last_s = (stored if stored < capacity else capacity), now_s  # noqa: FURB136 - a call is slower
                if stored > 0:
                    stored -= cost
                    admitted += 1
                elif break_s:
                    free_s = now_s - stored / rate + break_s
            gate.stored, at = stored, requests
        while at < requests:
            now_s = begin_s + (offsets_s[at] if offsets_s else (at + 0.5) * gap_s)
            if now_s < free_s:
                # An open breaker refuses everything before it closes.
                offset_s = free_s - begin_s
                after = bisect_left(offsets_s, offset_s) if offsets_s else math.ceil(offset_s * requests - 0.5)
                at = max(at + 1, after)
                continue
            empty = [gate for gate in gates if gate.refill(now_s - last_s) <= 0]
            last_s = now_s
            rest = requests - at
            if not empty:
                run = 1 if offsets_s else min(gate.run(gap_s, rest) for gate in gates)
            elif break_s:
                free_s = now_s + break_s + max(-gate.stored / gate.rate for gate in empty)
                at += 1
                continue
            elif offsets_s:
                at += 1
                continue
            else:
                # Permits are spent as they accrue: the rest of the second is admitted in part.
                for gate in gates:
                    gate.stored += (rest - 1) * gap_s * gate.rate
                run = min(rest, *(max(0, math.ceil(gate.stored / gate.cost)) for gate in empty))
                for gate in gates:
                    gate.stored -= run * gate.cost
                last_s, admitted = begin_s + 1 - gap_s / 2, admitted + run
                break
            for gate in gates:
                gate.spend(gap_s, run)
            if not offsets_s:
                last_s += (run - 1) * gap_s
            at, admitted = at + run, admitted + run
        found.append(1 - admitted / requests)
    return found
