"""What fair shares of a limit would do for everyone but the caller that is refused most.

The log has the callers of each storm by their part of the refusals. Without fair shares everyone is refused alike, so
that part is also their part of the demand. Each caller is replayed by itself in the seconds of the storm, against what
``limiter.buckets.fair`` guarantees it: a bucket with an n-th of the rate, which is empty when the storm begins. What
others leave unused comes on top, so the refusals are an upper bound. Nothing is promised to a caller for other times,
in which nothing was refused.

A caller that comes in bursts is replayed with the larger part that it had while it was refused. Callers without a name
in the log are taken to be as large as the smallest one with a name.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from admin.analytics.demand import Caller, Demand, Limit, Minutes, Storm, standing_out
from admin.analytics.replay import refused
from admin.analytics.words import MINUTE_S
from limiter.rules.rule import MAX_FAIR_KEYS

MAX_SHARE: Final = 0.5
"""A caller with this part of the refusals has the largest demand."""
LEAST_CALLERS: Final = 3
"""With fewer callers there are no others to protect."""
MAX_SECONDS: Final = 20_000
"""Seconds of storms that are replayed, of the largest storms; it bounds the time."""
UNEVEN: Final = 1.25
"""A caller is replayed with this much more than its mean demand, since a share has no room for its busier moments."""


class Others(NamedTuple):
    """All callers but the one with the largest demand, in storms.

    Attributes:
        caller: that one.
        keys: how many callers share the limit, at most.
        messages: that the others sent.
        refused_now: their share of it that was refused.
        refused_then: their share of it that fair shares would refuse, at most.
        worst_then: the share that fair shares would refuse to any of them, at most.
    """

    caller: Caller
    keys: int
    messages: float
    refused_now: float
    refused_then: float
    worst_then: float


def others_of(demand: Demand, minutes: Minutes) -> Others | None:
    """Replay fair shares among the kind of caller where one stands out most; None if none does."""
    caller = standing_out(demand)
    if caller is None or not demand.limit.rate or not MAX_SHARE <= caller.share < 1.0:
        return None
    who, since_s = caller.fair_by, demand.limit_since_s or 0
    storms = [each for each in demand.storms.each if each.start_s >= since_s]
    if max((max(each.counts[who], each.counts["client"]) for each in storms), default=0) < LEAST_CALLERS:
        return None
    left, keys, now = MAX_SECONDS, 0, 0.0
    asked, then = defaultdict[str, float](float), defaultdict[str, float](float)
    for storm in sorted(storms, key=lambda each: (-each.messages, each.start_s)):
        begin, end = np.searchsorted(minutes.at_s, (storm.start_s, storm.end_s)).tolist()
        played = min(end - begin, left)
        if not played:
            break
        left, refused_messages = left - played, storm.messages * played / (end - begin)
        end = begin + played
        first, last = np.searchsorted(minutes.minute_s, (storm.start_s - MINUTE_S, storm.end_s)).tolist()
        clients = minutes.clients[first:last].max(initial=0)
        # Callers that were not refused have shares as well.
        count = max(storm.counts[who], -(-storm.counts[who] * int(clients) // max(1, storm.counts["client"])))
        keys = max(keys, count)
        total = float(minutes.messages[begin:end].sum())
        for name, share, part in _parts(storm, caller):
            asked[name] += share * total
            now += share * refused_messages
            then[name] += share / part * _refused(demand.limit, minutes, slice(begin, end), part, count)
    messages = sum(asked.values())
    if not messages or not LEAST_CALLERS <= keys <= MAX_FAIR_KEYS:
        return None
    worst = max(min(1.0, then[name] / its) for name, its in asked.items() if its)
    return Others(caller, keys, messages, *(min(1.0, each / messages) for each in (now, sum(then.values()))), worst)


def _parts(storm: Storm, caller: Caller) -> Iterator[tuple[str, float, float]]:
    """Return the other callers, their parts of all demand, and of the demand while they asked."""
    named = storm.callers[caller.fair_by]
    for each in named:
        if each.name != caller.name and each.share:
            yield each.name, each.share, min(1.0, max(each.share, each.share_then) * UNEVEN)
    rest = 1.0 - sum(each.share for each in named)
    if named and storm.counts[caller.fair_by] > len(named) and rest > 0:
        yield "", rest, named[-1].share * UNEVEN


def _refused(limit: Limit, minutes: Minutes, at: slice, part: float, count: int) -> float:
    """Return how many messages the share of one caller refuses, which has a part of each second."""
    share = replace(
        limit,
        rate_per_s=None if limit.rate is None else limit.rate / count,
        bytes_per_s=None if limit.bytes_rate is None else limit.bytes_rate / count,
    )
    # In whole messages: a small caller sends in some of the seconds only.
    messages = np.diff(np.floor(np.cumsum(minutes.messages[at] * part) + 0.5), prepend=0.0)
    sent = messages > 0
    requests, size = (np.maximum(1.0, each[at] * part)[sent] for each in (minutes.requests, minutes.bytes))
    return float(refused(share, minutes.at_s[at][sent], requests, messages[sent], size, is_empty=True).sum())
