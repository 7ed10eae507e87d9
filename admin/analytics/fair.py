"""What fair shares of a limit would do for everyone but the caller that is refused most.

The log has the callers of each storm by their part of the refusals. Without fair shares everyone is refused alike, so
that part is also their part of the demand. Each caller is replayed by itself in the seconds of the storm, against what
``limiter.buckets.fair`` guarantees it: a bucket with an n-th of the rate, which is empty when the storm begins. What
others leave unused comes on top, so the refusals are an upper bound. Nothing is promised to a caller for other times,
in which nothing was refused.

A caller that comes in bursts is replayed with the larger part that it had while it was refused. Callers without a name
in the log are taken to be as large as the smallest one with a name.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from admin.analytics.demand import WHO, Caller, Demand, Ints, Minute, Storm
from admin.analytics.replay import Replay, Second
from limiter.rules.rule import MAX_FAIR_KEYS

MAX_SHARE: Final = 0.5
"""A caller with this part of the refusals has the largest demand."""
LEAST_CALLERS: Final = 3
"""With fewer callers there are no others to protect."""
MAX_SECONDS: Final = 20_000
"""Seconds of storms that are replayed, of the largest storms; it bounds the time."""
UNEVEN: Final = 1.25
"""A caller is replayed with this much more than its mean demand, since a share has no room for its busier moments."""
_COLUMNS: Final = 4


class Others(NamedTuple):
    """All callers but the one with the largest demand, in storms.

    Attributes:
        caller: that one.
        keys: how many callers share the limit, at most.
        messages: that the others sent.
        refused_now: their share of it that was refused.
        refused_then: their share that fair shares would refuse, at most.
    """

    caller: Caller
    keys: int
    messages: float
    refused_now: float
    refused_then: float


def others_of(demand: Demand, minutes: Sequence[Minute]) -> Others | None:
    """Replay fair shares among the kind of caller where one stands out most; None if none does."""
    # If callers of two kinds stand out alike, the first: an address cannot be made up.
    caller = max(
        (callers[0] for who in WHO if who != demand.kind and (callers := demand.storms.callers.get(who))),
        key=lambda each: round(each.share, 1),
        default=None,
    )
    if caller is None or not demand.limit.rate or not MAX_SHARE <= caller.share < 1.0:
        return None
    who, since_s = caller.fair_by, demand.limit_since_s or 0
    storms = [each for each in demand.storms.each if each.start_s >= since_s]
    starts = np.array([each.minute_s for each in minutes], np.int64)
    left, keys, messages, now, then = MAX_SECONDS, 0, 0.0, 0.0, 0.0
    for storm in sorted(storms, key=lambda each: (-each.messages, each.start_s)):
        seconds, clients = _seconds(storm, minutes, starts)
        if len(seconds) > left:
            break
        left -= len(seconds)
        # Callers that were not refused have shares as well.
        count = max(storm.counts[who], -(-storm.counts[who] * clients // max(1, storm.counts["client"])))
        keys = max(keys, count)
        its = next((each.share for each in storm.callers[who] if each.name == caller.name), 0.0)
        messages += (1 - its) * int(seconds[:, 2].sum())
        now += (1 - its) * storm.messages
        then += sum(times * _refused(demand, seconds, part, count) for part, times in _parts(storm, caller))
    if not messages or not LEAST_CALLERS <= keys <= MAX_FAIR_KEYS:
        return None
    return Others(caller, keys, messages, min(1.0, now / messages), min(1.0, then / messages))


def _parts(storm: Storm, caller: Caller) -> list[tuple[float, float]]:
    """Return the other callers' parts of the demand while they asked, and how much of the time or how many did."""
    named = storm.callers[caller.fair_by]
    found = [
        (part := min(1.0, max(each.share, each.share_then) * UNEVEN), each.share / part)
        for each in named
        if each.name != caller.name and each.share
    ]
    rest = 1.0 - sum(each.share for each in named)
    if named and storm.counts[caller.fair_by] > len(named) and rest > 0:
        found.append((named[-1].share * UNEVEN, rest / named[-1].share / UNEVEN))
    return found


def _seconds(storm: Storm, minutes: Sequence[Minute], starts: Ints) -> tuple[Ints, int]:
    """Return a storm's demand as rows of ``Second``, and how many clients there were in a minute."""
    first = np.searchsorted(starts, storm.start_s, "right") - 1
    found, clients = [], 0
    for minute in minutes[max(0, int(first)) :]:
        if minute.minute_s >= storm.end_s:
            break
        at_s = minute.minute_s + minute.second
        rows = np.stack((at_s, minute.requests, minute.messages, minute.bytes), axis=1)
        found.append(rows[(at_s >= storm.start_s) & (at_s < storm.end_s)])
        clients = max(clients, minute.clients)
    return np.concatenate(found) if found else np.empty((0, _COLUMNS), np.int64), clients


def _refused(demand: Demand, seconds: Ints, part: float, count: int) -> int:
    """Return how many messages the share of one caller refuses, which has a part of each second."""
    limit = demand.limit
    share = replace(
        limit,
        rate_per_s=None if limit.rate is None else limit.rate / count,
        bytes_per_s=None if limit.bytes_rate is None else limit.bytes_rate / count,
    )
    messages = np.diff(np.floor(np.cumsum(seconds[:, 2] * part) + 0.5), prepend=0.0).astype(np.int64)
    requests = np.maximum(1, np.rint(seconds[:, 1] * part)).astype(np.int64)
    size = np.rint(seconds[:, 3] * part).astype(np.int64)
    its = np.stack((seconds[:, 0], requests, messages, size), axis=1)[messages > 0]
    player = Replay(share, int(seconds[0, 0]) if len(seconds) else 0, is_empty=True)
    return player.play([Second(*row) for row in its.tolist()])
