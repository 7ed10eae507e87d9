"""Computes how many of the recorded messages a limit, with or without fair shares, would have refused.

The bucket and the breaker behave as in ``limiter.buckets.limiter``. The log has counts per second, so the requests
within a second are assumed to be equal in size and evenly spaced. If a full bucket covers only a few requests and the
second has only a few, they are placed at random times within the second instead. Only periods in which the bucket may
run empty are simulated. Each starts with a full bucket.

Warm-up, debts, other limits and bursts within a second are not modeled. With action ``delay``, the bucket also holds
the permits that accrue in ``max_delay_s``.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from admin.analytics.demand import Caller, Demand, Flags, Ints, Limit, Minutes, Values
from admin.analytics.words import MINUTE_S, Row
from admin.common.recommendations import Replay
from limiter.rules.rule import DEFAULT_BREAK_S, DEFAULT_MAX_DEBT_S, MAX_FAIR_KEYS

FEW: Final = 50  # if a full bucket holds fewer requests, their times within a second matter
MAX_SHARE: Final = 0.5  # share of the refusals
MIN_CALLERS: Final = 3
MAX_SECONDS: Final = 20_000
UNEVEN: Final = 1.25
_BLOCK: Final = 300  # seconds
_TIMES: Final = np.random.default_rng(0).random(100_003)  # within a second. All limits get the same times


class Backtest:
    """Replays recorded demand against the current limit with different rates.

    ``under`` is the number that stands for the current limit in ``minutes.under``.
    """

    def __init__(self, minutes: Minutes, now: Limit, under: int = 0) -> None:
        self._minutes = minutes
        self._limit = now
        if now.rate_per_s is None and now.bytes_per_s is None:
            self._limit = Limit(break_s=DEFAULT_BREAK_S, count=now.count)
        self._refused: dict[tuple[float | None, bool], Values] = {}
        is_now = minutes.under == under
        self._is_now: Flags = np.repeat(is_now, minutes.seconds)
        self.messages = int(minutes.messages.sum())
        self.wanted_messages = float((minutes.messages * minutes.left).sum())
        self.now_messages = int(minutes.messages[self._is_now].sum())
        self.logged_messages = int(minutes.refused_messages[is_now].sum())

    def replay(self, per_s: float | None, *, wanted: bool = False) -> Replay:
        """Replay the demand with the rate ``per_s``. If ``wanted`` is true, retries are excluded from the demand."""
        refused_messages = float(self._played(per_s, wanted=wanted).sum())
        return as_replay(refused_messages, self.wanted_messages if wanted else self.messages)

    def error(self) -> int:
        """Replay the current limit. Return how many more messages it refuses than were refused according to the log."""
        played = self._played(self._limit.rate_per_s, wanted=False)
        return round(float(played[self._is_now].sum())) - self.logged_messages

    def _played(self, per_s: float | None, *, wanted: bool) -> Values:
        key = (per_s, wanted and self.wanted_messages < self.messages)
        if key not in self._refused:
            its = self._minutes
            limit = replace(self._limit, rate_per_s=per_s)
            left = np.asarray(its.left, float) if wanted else np.ones(len(its.left))
            self._refused[key] = refused(limit, its.at_s, its.requests * left, its.messages * left, its.bytes * left)
        return self._refused[key]


def as_replay(refused: float, of: float) -> Replay:
    return Replay(refused_messages=round(refused), refused_share=min(1.0, refused / of) if of else 0.0)


def refused(
    limit: Limit, at_s: Ints, requests: Values, messages: Values, size: Values, *, is_empty: bool = False
) -> Values:
    """Return how many messages the limit would refuse in each second. The numbers may be fractional.

    ``at_s`` contains the seconds that had requests, in chronological order. ``size`` contains each second's bytes. The
    bucket starts full unless ``is_empty`` is set.
    """
    delays = limit.action == "delay"
    held_s, break_s = (limit.max_delay_s, 0.0) if delays else (0.0, limit.break_s)
    costs = requests if limit.count == "requests" else messages
    sides = ((limit.rate_per_s, costs, limit.burst_s), (limit.bytes_per_s, size, limit.bytes_burst_s))
    gates = [_Gate(rate, burst_s + held_s, its) for rate, its, burst_s in sides if rate is not None]
    if not gates or not len(at_s):
        return np.zeros(len(at_s))
    if any(gate.rate <= 0 for gate in gates):
        return messages * 1.0
    requests = np.maximum(1.0, np.rint(requests))
    # Requests larger than the bucket are refused without opening the breaker.
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
            # The breaker may stay open after the bucket is full again.
            is_played[np.argmax(is_played) :] = True
        at = np.flatnonzero(is_played & ~alone)
        each = zip(*(gate.costs[at].tolist() for gate in gates), strict=True)
        columns = ((at_s[at] - at_s[0]).tolist(), requests[at].astype(int).tolist(), is_full[at].tolist(), each)
        share[at] = _play(gates, break_s, zip(*columns, strict=True))
    return np.asarray(messages * share)


class _Gate:
    __slots__ = ("capacity", "cost", "costs", "most", "rate", "stored")

    def __init__(self, rate: float, burst_s: float, costs: Values) -> None:
        self.rate, self.costs = rate, costs
        self.capacity = self.stored = max(1e-6, rate * burst_s)
        self.most = max(1.0, self.capacity + rate * DEFAULT_MAX_DEBT_S)
        self.cost = 0.0

    def levels(self, at_s: Ints, largest: float) -> Values:
        """Return a lower bound for the stored permits at the start of each second. ``largest`` is the maximum debt."""
        found = np.empty(len(at_s))
        stored, last_s = self.stored, at_s[0]
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
        """Return how many requests, up to ``most``, empty the bucket if one arrives every ``gap_s`` seconds."""
        loss = self.cost - gap_s * self.rate
        return most if self.stored > loss * (most - 1) else max(1, math.ceil(self.stored / loss))

    def spend(self, gap_s: float, run: int) -> None:
        self.stored = min(self.capacity, self.stored - (self.cost - gap_s * self.rate) * (run - 1)) - self.cost


def _play(
    gates: Sequence[_Gate], break_s: float, seconds: Iterable[tuple[int, int, bool, tuple[float, ...]]]
) -> list[float]:
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
                offset_s = free_s - begin_s
                after = bisect_left(offsets_s, offset_s) if offsets_s else math.ceil(offset_s * requests - 0.5)
                at = max(at + 1, after)
                continue
            empty = [gate for gate in gates if gate.refill(now_s - last_s) <= 0]
            last_s = now_s
            rest = requests - at
            if not empty:
                run = 1 if offsets_s else min(gate.run(gap_s, rest) for gate in gates)
            elif break_s or offsets_s:
                free_s = now_s + break_s + max(-gate.stored / gate.rate for gate in empty) if break_s else free_s
                at += 1
                continue
            else:
                # Permits are spent as they accrue, so some of the remaining requests are admitted.
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


class Others(NamedTuple):
    """The effect of fair shares on all callers except ``caller``, the largest one."""

    caller: Caller
    keys: int
    messages: float
    refused_now: float  # share of ``messages``
    worst_then: float  # share of a caller's messages


def others_of(demand: Demand, minutes: Minutes) -> Others | None:
    """Replay storms with fair shares. Return None if fair shares would not help the callers other than the largest.

    A caller's share of the refusals is assumed to be its share of the demand. Each of the n callers is replayed
    separately, with the bucket that ``limiter.buckets.fair`` guarantees it. This bucket starts empty and gets 1 / n of
    the rate. Callers could also use permits that others leave unused, so the refusals are an upper bound.

    Bursty callers are replayed with their share of the demand in the seconds in which they were refused
    (``client_then``). Callers that the log does not list are assumed to be as large as the smallest listed one.
    """
    caller = demand.storms.top
    if caller is None or not demand.limit.rate_per_s or not MAX_SHARE <= caller.share < 1.0:
        return None
    named, counted = f"{caller.fair_by}s", f"{caller.fair_by}_count"
    storms = [row for row in demand.storms.rows if row["start_s"] >= (demand.limit_since_s or 0)]
    if max((max(row[counted], row["client_count"]) for row in storms), default=0) < MIN_CALLERS:
        return None
    left, keys, now = MAX_SECONDS, 0, 0.0
    asked, then = defaultdict[str, float](float), defaultdict[str, float](float)
    for storm in sorted(storms, key=lambda row: (-row["messages"], row["start_s"])):
        begin, end = np.searchsorted(minutes.at_s, (storm["start_s"], storm["end_s"])).tolist()
        played = min(end - begin, left)
        if not played:
            # The storm's minutes are missing, or ``MAX_SECONDS`` have been replayed.
            continue
        left, refused_messages = left - played, storm["messages"] * played / (end - begin)
        at = slice(begin, begin + played)
        first, last = np.searchsorted(minutes.minute_s, (storm["start_s"] - MINUTE_S, storm["end_s"])).tolist()
        clients = int(minutes.clients[first:last].max(initial=0))
        # Callers that were not refused get fair shares too.
        count = max(storm[counted], -(-storm[counted] * clients // max(1, storm["client_count"])))
        keys = max(keys, count)
        total = float(minutes.messages[at].sum())
        for name, share, part in _parts(storm, named, storm[counted]):
            if name != caller.name:
                asked[name] += share * total
                now += share * refused_messages
                then[name] += share / part * _refused(demand.limit, minutes, at, part, count)
    messages = sum(asked.values())
    if not messages or not MIN_CALLERS <= keys <= MAX_FAIR_KEYS:
        return None
    worst = max(min(1.0, then[name] / its) for name, its in asked.items() if its)
    refused_now = min(1.0, now / messages)
    helps = sum(then.values()) * 2 <= refused_now * messages and worst <= refused_now
    return Others(caller, keys, messages, refused_now, worst) if helps else None


def _parts(storm: Row, named: str, count: int) -> Iterator[tuple[str, float, float]]:
    callers = [each for each in storm[named] if each["messages"]]
    for each, then in zip(callers, storm[f"{named.removesuffix('s')}_then"], strict=False):
        yield each["name"], each["share"], min(1.0, max(each["share"], then) * UNEVEN)
    rest = 1.0 - sum(each["share"] for each in callers)
    if callers and count > len(callers) and rest > 0:
        yield "", rest, callers[-1]["share"] * UNEVEN


def _refused(limit: Limit, minutes: Minutes, at: slice, part: float, count: int) -> float:
    share = replace(
        limit,
        rate_per_s=None if limit.rate_per_s is None else limit.rate_per_s / count,
        bytes_per_s=None if limit.bytes_per_s is None else limit.bytes_per_s / count,
    )
    # Round to whole messages, because a small caller does not send in every second.
    messages = np.diff(np.floor(np.cumsum(minutes.messages[at] * part) + 0.5), prepend=0.0)
    sent = messages > 0
    requests, size = (np.maximum(1.0, each[at] * part)[sent] for each in (minutes.requests, minutes.bytes))
    return float(refused(share, minutes.at_s[at][sent], requests, messages[sent], size, is_empty=True).sum())
