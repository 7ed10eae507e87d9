"""Counts the demo's messages, and compares the counts with the broker's and with the limit."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from admin.common.numbers import number

WINDOW_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TopicLoad:
    topic: str
    rate_per_s: float
    runaway: bool = False


@dataclass(slots=True)
class Counts:
    """Counts of one client's requests. ``stray`` counts responses that match no pending request."""

    sent: int = 0
    passed: int = 0
    refused: int = 0
    failed: int = 0
    stray: int = 0

    @property
    def unanswered(self) -> int:
        return self.sent - self.passed - self.refused - self.failed


@dataclass(slots=True)
class Ledger:
    """Counts of all clients' requests by topic, with enough history to compute rates.

    ``edited`` means that limits were changed during the run, so they are not checked.
    """

    loads: Sequence[TopicLoad]
    kind: str = "topic"
    counts: dict[str, Counts] = field(init=False)
    edited: bool = field(init=False, default=False)
    _history: deque[tuple[float, dict[str, Counts]]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self.counts = {load.topic: Counts() for load in self.loads}

    def mark(self, now_s: float) -> None:
        self._history.append((now_s, {topic: replace(counts) for topic, counts in self.counts.items()}))
        while len(self._history) > 2 and self._history[1][0] <= now_s - WINDOW_S:
            self._history.popleft()

    def rates(self, topic: str) -> tuple[float, float, float]:
        """Return the messages sent, passed and refused per second over the last WINDOW_S seconds."""
        if len(self._history) < 2:
            return 0.0, 0.0, 0.0
        (from_s, before), (to_s, after) = self._history[0], self._history[-1]
        old, new, span_s = before[topic], after[topic], to_s - from_s
        return (new.sent - old.sent) / span_s, (new.passed - old.passed) / span_s, (new.refused - old.refused) / span_s


@dataclass(frozen=True, slots=True)
class Check:
    holds: bool
    text: str


EDITED: Final = Check(holds=True, text="limits were changed during the run, so they are not checked")


def check(ledger: Ledger, stored: Mapping[str, int], limit_per_s: float, elapsed_s: float) -> list[Check]:
    """Compare the clients' counts with the limit of each topic, and with the broker's counts (``stored``).

    The limit's burst is one second's worth of messages. ``elapsed_s`` is the time from the first message to the last.
    """
    counts = ledger.counts
    checks = [EDITED] if ledger.edited else [_quiet(ledger, stored)]
    for load in ledger.loads if not ledger.edited else ():
        if load.runaway:
            allowed = int(limit_per_s * elapsed_s + limit_per_s) + 1
            bound = f"{number(limit_per_s)}/s for {elapsed_s:.1f} s and one burst of {number(limit_per_s)}, plus one"
            checks.append(held(load.topic, counts[load.topic], stored.get(load.topic, 0), allowed, bound))
    passed, kept = sum(each.passed for each in counts.values()), sum(stored.get(topic, 0) for topic in counts)
    agree = all(stored.get(topic, 0) == each.passed for topic, each in counts.items())
    checks.append(Check(agree, f"clients and broker agree on every topic above: {passed:,} passed, {kept:,} stored"))
    strange = sum(each.failed + each.unanswered + each.stray for each in counts.values())
    checks.append(Check(not strange, f"every request was answered: {strange:,} were not"))
    return checks


def held(topic: str, counts: Counts, stored: int, allowed: int, bound: str) -> Check:
    """Check that a topic stayed within its limit. A topic that never reached its limit passes too."""
    text = f"{topic} stayed within its limit: {stored:,} stored, {allowed:,} allowed ({bound})"
    return Check(stored <= allowed and (counts.sent <= allowed or counts.refused > 0), text)


def _quiet(ledger: Ledger, stored: Mapping[str, int]) -> Check:
    quiet = [load.topic for load in ledger.loads if not load.runaway]
    sent, refused = (sum(getattr(ledger.counts[topic], key) for topic in quiet) for key in ("sent", "refused"))
    kept = sum(stored.get(topic, 0) for topic in quiet)
    text = f"quiet topics lost nothing: {sent:,} sent, {refused:,} refused, {kept:,} stored"
    return Check(sent == kept and not refused, text)
