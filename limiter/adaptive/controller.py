"""Estimates the rate that a broker can currently handle.

**Overload.** By Little's law, a message spends ``unanswered / answers per second`` seconds in the broker. This reveals
a queue sooner than latencies do, because those are known only for messages that have left the queue.

**The limit** is the goodput, corrected by a Newton step so that the time in the broker reaches its target within a
fixed horizon. The target is the usual time plus a short queue, which is longer at lower rates, as in Swift (Kumar et
al., SIGCOMM 2020, 3.1). Each step adds a few messages, as in AIMD, so that multiple sidecars sharing a broker converge.

**The usual time** is the minimum latency over the last few seconds, as in BBR (Cardwell et al., ACM Queue 2016).
Because a limit keeps a short queue, latencies may stay above this minimum. If no latency has been this low for 3.5 s,
the target briefly *dips* below the usual time. If latencies stay higher even then, the usual time is raised slightly,
or to the current latency if the queue does not shrink.
"""

from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from limiter.rules.rule import NS_PER_S

STEP_NS: Final = 100_000_000

_MIN_SMOOTHED_S, _MAX_SMOOTHED_S, _SMOOTHED_MESSAGES = 0.3, 1.0, 30
"""Rates are averaged over the time in which ``_SMOOTHED_MESSAGES`` are answered, but within these bounds."""
_SLOWER: Final = 1 / 3
"""Weight for the goodput's slower average. Cuts use the lower average: a queue costs more than idle capacity."""
_WAIT_MESSAGES, _MIN_PART = 30, 0.25
_QUEUE_S: Final = 0.015
_FOR_FEW_S, _MAX_FOR_FEW_S = 0.3, 0.05
"""The target queue is ``_QUEUE_S + min(_FOR_FEW_S / sqrt(rate), _MAX_FOR_FEW_S)``."""
_HORIZON_S: Final = 0.25
_MIN_FACTOR, _MAX_FACTOR = 0.35, 1.15
_ADDED_PER_S: Final = 30.0
_BEGINS_S, _BEGINS_MESSAGES = 0.1, 100
"""Limiting starts when the queue is growing and exceeds its usual length by this time plus this many messages."""
_BUSY: Final = 0.01
_SILENT_NS: Final = NS_PER_S // 2
_USUAL_NS: Final = 3_500_000_000
_FIRST_DIP_NS: Final = 1_500_000_000
_DIP_NS: Final = 800_000_000
_MAX_RAISE_S: Final = 0.01
_STUCK_STEPS: Final = 20
_HELD_NS: Final = NS_PER_S
_ENDS_NS: Final = 5 * NS_PER_S
_LEAK: Final = 0.05
"""Maximum fraction of messages assumed to be lost."""


class BrokerSeen(NamedTuple):
    answers: int
    busy: int
    round_trips_ns: Sequence[int]
    unanswered: int
    blocked: bool  # whether the broker sent connection.blocked, or its socket is full


class Controller:
    def __init__(self, floor_per_s: float, ceiling_per_s: float | None, now_ns: int) -> None:
        self.limit_per_s: float | None = None
        self.reason = ""
        self.latency_ns: int | None = None  # 90th percentile
        self.usual_latency_ns: int | None = None  # latency while there is no limit
        self._floor, self._ceiling = floor_per_s, float("inf") if ceiling_per_s is None else ceiling_per_s
        self._at_ns = self._answered_ns = self._held_ns = self._usual_at_ns = self._dip_ends_ns = now_ns
        # Smoothed rates per second: all answers, successful answers (fast and slow average), and their recent maximum.
        self._rate = self._good = self._slow = self._best = 0.0
        self._mean_s: float | None = None
        self._usual_s = float("inf")
        self._leaked = self._wait_s = 0.0
        self._waits_s = deque([0.0] * 10, maxlen=10)
        self._beyond = deque([0.0] * 10, maxlen=10)
        self._steps_over = 0

    def step(self, now_ns: int, seen: BrokerSeen, is_holding: bool) -> float | None:  # noqa: FBT001
        """Update the limit and return it in messages per second, or None. Must be called about every ``STEP_NS``."""
        elapsed_s = (now_ns - self._at_ns) / NS_PER_S
        if elapsed_s <= 0:
            return self.limit_per_s
        self._at_ns = now_ns
        if seen.answers or not seen.unanswered:
            # A broker that sends no answers may be pausing, which says nothing about its rate.
            self._answered_ns = now_ns
            smoothed_s = min(_MAX_SMOOTHED_S, max(_MIN_SMOOTHED_S, _SMOOTHED_MESSAGES / max(self._rate, 1.0)))
            part = min(1.0, elapsed_s / smoothed_s) if self._rate else 1.0
            self._rate += part * (seen.answers / elapsed_s - self._rate)
            good = (seen.answers - seen.busy) / elapsed_s
            self._good += part * (good - self._good)
            self._slow += part * _SLOWER * (good - self._slow)
            self._best = max(self._good, self._best * 0.99)
        if seen.round_trips_ns:
            self._learn(now_ns, seen)
        wait_s = (seen.unanswered - min(self._leaked, seen.unanswered)) / max(self._rate, 1.0)
        part = min(1.0, max(_MIN_PART, self._rate * elapsed_s / _WAIT_MESSAGES))
        self._wait_s += part * (wait_s - self._wait_s)
        busy = seen.busy / seen.answers if seen.answers else 0.0
        if self.limit_per_s is None:
            self._begin_if_short(now_ns, seen.blocked, busy)
        else:
            self._move(now_ns, elapsed_s, seen.blocked, busy, is_holding)
        self._waits_s.append(self._wait_s)
        return self.limit_per_s

    def _learn(self, now_ns: int, seen: BrokerSeen) -> None:
        samples = seen.round_trips_ns
        mean_s = fmean(samples) / NS_PER_S
        is_first = self._mean_s is None
        is_late = now_ns - self._usual_at_ns > 2 * _USUAL_NS and self.limit_per_s is None
        had_s = mean_s if self._mean_s is None or is_late else self._mean_s
        self._mean_s = had_s + min(0.5, len(samples) / 20) * (mean_s - had_s)
        self.latency_ns = _towards(self.latency_ns, sorted(samples)[len(samples) * 9 // 10], 0.3)
        if self.limit_per_s is None:
            self.usual_latency_ns = _towards(self.usual_latency_ns, self.latency_ns, 0.02)
        if is_first:
            self._usual_s, self._usual_at_ns = min(samples) / NS_PER_S, now_ns
        elif self._mean_s <= self._usual_s or is_late:
            self._usual_s, self._usual_at_ns = self._mean_s, now_ns
        elif now_ns - self._usual_at_ns > _USUAL_NS + _DIP_NS and self.limit_per_s is not None:
            self._usual_s, self._usual_at_ns = min(self._mean_s, self._usual_s + _MAX_RAISE_S), now_ns
        # Messages in excess of Little's law are either lost or newly queued.
        beyond = seen.unanswered - self._rate * self._mean_s
        # If the excess lasts longer than a second, they are lost, because latencies are shorter.
        self._leaked = max(0.0, min(beyond, max(self._leaked + _LEAK * seen.answers, min(self._beyond))))
        self._beyond.append(beyond)

    def _begin_if_short(self, now_ns: int, is_blocked: bool, busy: float) -> None:  # noqa: FBT001
        wait_s = self._wait_s
        # Latencies rarely grow this fast unless messages arrive faster than they are answered.
        growth = wait_s - self._waits_s[0]
        over_s = wait_s - self._usual_s - _BEGINS_MESSAGES / max(self._rate, 1.0)
        if is_blocked:
            reason = "the broker accepts no messages"
        elif busy > _BUSY:
            reason = "the broker refuses messages because it is busy"
        elif self._best and over_s > _BEGINS_S and (growth > 0.1 or (growth > 0.03 and over_s > 4 * _BEGINS_S)):
            reason = "the broker's queue is growing"
        else:
            return
        self._held_ns, self._steps_over = now_ns, 0
        # The usual time may be based on only a few latencies, so schedule the first dip early.
        self._usual_at_ns = min(self._usual_at_ns, now_ns - _USUAL_NS + _FIRST_DIP_NS)
        self._slow = self._good
        self._set(self._good, reason)

    def _move(self, now_ns: int, elapsed_s: float, is_blocked: bool, busy: float, is_holding: bool) -> None:  # noqa: FBT001
        limit, wait_s, added = self.limit_per_s or 0.0, self._wait_s, _ADDED_PER_S * elapsed_s
        if is_holding or is_blocked or busy > _BUSY:
            self._held_ns = now_ns
        if busy > _BUSY and self._mean_s is not None:
            self._usual_s = min(self._usual_s, self._mean_s / 2)
        target_s = self._usual_s + _QUEUE_S + min(_FOR_FEW_S / max(self._rate, 1.0) ** 0.5, _MAX_FOR_FEW_S)
        if now_ns < self._dip_ends_ns:
            target_s = 0.5 * self._usual_s
        elif now_ns - self._usual_at_ns > _USUAL_NS:
            self._dip_ends_ns = now_ns + _DIP_NS
        factor = max(_MIN_FACTOR, min(_MAX_FACTOR, 1 + (target_s - wait_s) / _HORIZON_S - 2 * busy))
        is_held = now_ns - self._held_ns < _HELD_NS
        self._steps_over = self._steps_over + 1 if factor < 1 and busy <= _BUSY else 0
        if is_blocked or now_ns - self._answered_ns > _SILENT_NS:
            self._set(0.5 * limit, "the broker accepts no messages" if is_blocked else "the broker does not answer")
        elif now_ns > self._answered_ns:
            return
        elif self._steps_over > _STUCK_STEPS and wait_s > 0.9 * max(self._waits_s) and self._mean_s is not None:
            self._usual_s, self._usual_at_ns, self._steps_over = self._mean_s, now_ns, 0
            self._set(max(limit, self._best), "the broker's queue is not getting shorter")
        elif factor < 1 and (is_held or wait_s > target_s + _BEGINS_S):
            self._set(min(self._good, self._slow) * factor + added, "the broker's queue is too long")
        elif is_held:
            self._set(max(limit, max(self._good, self._slow) * factor) + added, "the broker has spare capacity")
        elif limit < self._good:
            self._set(self._good, "the broker handled this rate before")
        elif now_ns - self._held_ns > _ENDS_NS:
            self.limit_per_s, self.reason = None, "no message exceeded the limit for 5 s"

    def _set(self, limit_per_s: float, reason: str) -> None:
        self.limit_per_s, self.reason = min(self._ceiling, max(self._floor, limit_per_s)), reason


def _towards(figure: int | None, new: int, part: float) -> int:
    return new if figure is None else round(figure + part * (new - figure))
