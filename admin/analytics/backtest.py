"""The backtest: limits replayed over what was asked for, by ``replay``; several of them in one pass over the minutes.

The limit in force is up against all that was asked for, retries among it; so it should come to what the log says was
refused, and how far it does not is stated. A recommended one is up against what is left without the retries, too, since
one that is large enough causes none. A demand in fractions is rounded so that nothing of it is lost over time.

A minute that what is stored lasts for, whenever in each second its requests come, costs a few steps and no more.

Pure: no Spark. ``minutes`` may leave out those that no candidate can refuse anything of.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from admin.analytics.advice import Candidate
from admin.analytics.figures import Limit
from admin.analytics.replay import Replay, Second, Stretch
from limiter.rules.rule import DEFAULT_BREAK_S


class Minute(NamedTuple):
    """One minute of a resource.

    Attributes:
        minute_s: its beginning.
        limit: in force at its end.
        refused_messages: refused and dropped, or what would have been if the limit only shadows.
        second: offsets of the seconds with requests, ascending.
        messages: asked for, by second.
        requests: likewise.
        bytes: likewise.
        shares: what is left of each second without retries; None is all.
    """

    minute_s: int
    limit: Limit
    refused_messages: int
    second: Sequence[int]
    messages: Sequence[int]
    requests: Sequence[int]
    bytes: Sequence[int]
    shares: Sequence[float] | None = None


class Replayed(NamedTuple):
    """What limits would have refused.

    Attributes:
        refused: messages, by candidate.
        error: refused by the first candidate, which is the limit in force, while it was in force, less what was logged.
    """

    refused: tuple[int, ...]
    error: int


def replay(minutes: Iterable[Minute], now: Limit, candidates: Sequence[Candidate]) -> Replayed:
    """Replay limits over the minutes of one resource.

    Args:
        minutes: in order.
        now: the limit in force at the end; what a candidate does not say is as there.
        candidates: the limit in force over all demand first.
    """
    now = replace(now, changed=False)
    players: list[Replay] = []
    views: dict[tuple[bool, float], _View] = {}
    refused = [0] * len(candidates)
    error = 0
    for minute in minutes:
        if not players:
            players = [Replay(_limit(now, each), minute.minute_s) for each in candidates]
        seen: dict[tuple[bool, float], Stretch] = {}
        before = refused[0]
        for at, (player, each) in enumerate(zip(players, candidates, strict=True)):
            key = (each.wanted and minute.shares is not None, each.part)
            if key not in seen:
                seen[key] = views.setdefault((each.wanted, each.part), _View(each)).of(minute)
            refused[at] += player.play(seen[key])
        if minute.limit == now:
            error += refused[0] - before - minute.refused_messages
    return Replayed(tuple(refused), error)


class _View:
    """A part of the demand, in whole requests."""

    def __init__(self, candidate: Candidate) -> None:
        self._wanted, self._part = candidate.wanted, candidate.part
        # What is cut off one second's messages, so that they are whole, is added to the next one's.
        self._over = 0.0

    def of(self, minute: Minute) -> Stretch:
        """Return the seconds of a minute."""
        shares = minute.shares if self._wanted and minute.shares is not None else (1.0,) * len(minute.second)
        found = []
        for at, messages, requests, size_bytes, share in zip(
            minute.second, minute.messages, minute.requests, minute.bytes, shares, strict=True
        ):
            left = share * self._part
            if left < 1.0:
                whole, self._over = divmod(messages * left + self._over, 1.0)
                if not whole:
                    continue
                found.append(
                    Second(minute.minute_s + at, max(1, round(requests * left)), int(whole), round(size_bytes * left))
                )
            else:
                found.append(Second(minute.minute_s + at, requests, messages, size_bytes))
        return Stretch.of(found)


def _limit(now: Limit, candidate: Candidate) -> Limit:
    """Return the limit in force with the rates of a candidate; what has none yet gets a limit as by default."""
    rates = (candidate.rate_per_s, candidate.bytes_per_s)
    if now.limits or rates == (None, None):
        return replace(now, rate_per_s=rates[0], bytes_per_s=rates[1])
    action = "reject" if now.action == "off" else now.action
    break_s = 0.0 if action == "delay" else min(DEFAULT_BREAK_S, now.burst_s)
    return replace(now, rate_per_s=rates[0], bytes_per_s=rates[1], action=action, break_s=break_s)
