"""What the demo's clients saw and what its broker stored, and whether the two fit together.

Plain numbers and the checks on them; nothing is sent or printed here.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from admin.common.numbers import number

#: Rates are shown over this many seconds: long enough to cover a breaker's full cycle several times.
WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """How one topic is sent to.

    Attributes:
        topic: its name.
        rate_per_s: messages per second that its client sends, whatever the answers.
        runaway: it is meant to go over the limit.
    """

    topic: str
    rate_per_s: float
    runaway: bool = False


@dataclass(slots=True)
class Counts:
    """What one topic's client saw.

    Attributes:
        sent: requests written.
        passed: answered with success.
        refused: answered SYSTEM_BUSY by Sluice.
        failed: answered with anything else.
        stray: answers that no request waited for, or waited for any more.
    """

    sent: int = 0
    passed: int = 0
    refused: int = 0
    failed: int = 0
    stray: int = 0

    @property
    def unanswered(self) -> int:
        """Requests still without an answer."""
        return self.sent - self.passed - self.refused - self.failed

    def copy(self) -> "Counts":
        """Return the counts of this moment."""
        return Counts(self.sent, self.passed, self.refused, self.failed, self.stray)


@dataclass(slots=True)
class Ledger:
    """All topics' counts, with enough history for rates.

    Attributes:
        loads: the topics, in the order they are shown.
        kind: what these are, as limits call it.
        counts: by topic.
        edited: limits were changed or switched meanwhile, so that nothing is held against them.
    """

    loads: Sequence[TopicLoad]
    kind: str = "topic"
    counts: dict[str, Counts] = field(init=False)
    edited: bool = field(init=False, default=False)
    _history: deque[tuple[float, dict[str, Counts]]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self.counts = {load.topic: Counts() for load in self.loads}

    def mark(self, now_s: float) -> None:
        """Remember this moment for ``rates``."""
        self._history.append((now_s, {topic: counts.copy() for topic, counts in self.counts.items()}))
        while len(self._history) > 2 and self._history[1][0] <= now_s - WINDOW_S:
            self._history.popleft()

    def rates(self, topic: str) -> tuple[float, float, float]:
        """Return sent, passed and refused per second over the last WINDOW_S seconds."""
        if len(self._history) < 2:
            return 0.0, 0.0, 0.0
        (from_s, before), (to_s, after) = self._history[0], self._history[-1]
        old, new, span_s = before[topic], after[topic], to_s - from_s
        return (
            (new.sent - old.sent) / span_s,
            (new.passed - old.passed) / span_s,
            (new.refused - old.refused) / span_s,
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about a run, and whether it held."""

    holds: bool
    text: str


EDITED: Final = Check(holds=True, text="limits were changed meanwhile, so what was refused is held against nobody")


def check(ledger: Ledger, stored: Mapping[str, int], limit_per_s: float, elapsed_s: float) -> list[Check]:
    """Hold what the clients saw against what the broker stored and what the limit allows.

    Args:
        ledger: what the clients saw.
        stored: messages in the broker, by topic.
        limit_per_s: the limit of each topic, with a burst of one second.
        elapsed_s: seconds from the first message to the last.
    """
    checks = [EDITED] if ledger.edited else _held(ledger, stored, limit_per_s, elapsed_s)
    passed = sum(counts.passed for counts in ledger.counts.values())
    all_stored = sum(stored.get(load.topic, 0) for load in ledger.loads)
    agrees = all(stored.get(topic, 0) == counts.passed for topic, counts in ledger.counts.items())
    checks.append(
        Check(
            agrees,
            f"clients and broker agree on every topic: {passed:,} passed, {all_stored:,} stored",
        )
    )
    strange = sum(counts.failed + counts.unanswered + counts.stray for counts in ledger.counts.values())
    checks.append(Check(not strange, f"every request got its answer: {strange:,} did not"))
    return checks


def _held(ledger: Ledger, stored: Mapping[str, int], limit_per_s: float, elapsed_s: float) -> list[Check]:
    """Hold what was stored against what the limit allows."""
    quiet = [load for load in ledger.loads if not load.runaway]
    sent = sum(ledger.counts[load.topic].sent for load in quiet)
    kept = sum(stored.get(load.topic, 0) for load in quiet)
    refused = sum(ledger.counts[load.topic].refused for load in quiet)
    checks = [
        Check(
            sent == kept and not refused,
            f"quiet topics lost nothing: {sent:,} sent, {refused:,} refused, {kept:,} stored",
        )
    ]
    for load in ledger.loads:
        if load.runaway:
            # The bound of the limiter: the rate's integral and one burst; the last message may go into debt.
            most = int(limit_per_s * elapsed_s + limit_per_s) + 1
            kept, sent = stored.get(load.topic, 0), ledger.counts[load.topic].sent
            bound = f"{number(limit_per_s)}/s for {elapsed_s:.1f} s and one burst of {number(limit_per_s)}"
            checks.append(
                Check(
                    kept <= most and (sent <= most or ledger.counts[load.topic].refused > 0),
                    f"{load.topic} was held to its limit: {kept:,} stored, {most:,} allowed ({bound}, plus one)",
                )
            )
    return checks
