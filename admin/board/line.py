"""One line of the board: a resource, a scope, a total or a pattern, what it did and what it does."""

from array import array
from collections.abc import Mapping
from typing import Any, Final

from admin import wire
from admin.board.clock import NS_PER_S, Clock
from admin.live.model import LimitEntry
from limiter.rule import Dimension
from proxy.snapshot import RequestVerdict, ResourceState, RuleVerdict, Usage

POINTS: Final = 60
"""Points of a history."""
POINT_S: Final = 5
"""Seconds between two of them."""
NEAR: Final = 0.8
"""The share of a limit from which on it is near."""
#: The last seconds: a limit that is asked for too much refuses, closes its breaker and refuses again, and is limited
#: all the time.
_LATELY_NS: Final = 3 * NS_PER_S

VERDICTS: Final[tuple[RequestVerdict, ...]] = ("pass", "refuse", "shadow", "bypass", "exempt", "drop")
Counts = tuple[int, ...]
"""In the order of ``wire.Verdicts``: what is shadowed has passed, too."""
NOTHING: Final[Counts] = (0,) * len(VERDICTS)
REFUSED, SHADOWED = VERDICTS.index("refuse"), VERDICTS.index("shadow")
_RULE_VERDICTS: Final[tuple[RuleVerdict, ...]] = ("refuse", "hold", "shadow")
_RULE_NOTHING: Final[Counts] = (0,) * len(_RULE_VERDICTS)
#: Where a rule's count of a verdict is.
_RULE_INDEX: Final = {REFUSED: _RULE_VERDICTS.index("refuse"), SHADOWED: _RULE_VERDICTS.index("shadow")}
_NO_USAGE: Final[Mapping[Dimension, Usage]] = {}
_NO_RATES: Final = wire.Verdicts()


def counts_of(counts: Mapping[RequestVerdict, int]) -> Counts:
    """Return counts as they are shown."""
    passed, *others = [counts.get(verdict, 0) for verdict in VERDICTS]
    return (passed + counts.get("shadow", 0), *others)


class Ring:
    """The history of passed and refused messages; the points of all histories are written in step."""

    __slots__ = ("passed", "refused", "written")

    def __init__(self) -> None:
        self.passed = array("f", bytes(4 * POINTS))
        self.refused = array("f", bytes(4 * POINTS))
        self.written = 0

    def write(self, point: int, passed: float, refused: float) -> None:
        """Write the next point, which is that of all histories at this time."""
        index = point % POINTS
        self.passed[index], self.refused[index] = passed, refused
        self.written += 1

    def read(self, points: int) -> wire.History:
        """Return the history.

        Args:
            points: that were written since the board began; all before this history began are 0.
        """
        return wire.History(POINT_S, _unrolled(self.passed, points), _unrolled(self.refused, points))

    @property
    def idle(self) -> bool:
        """Whether nothing happened in all its time."""
        return not any(self.passed) and not any(self.refused)


def _unrolled(ring: "array[float]", points: int) -> tuple[float, ...]:
    start = points % POINTS
    points_in_order = ring[:points] if points < POINTS else ring[start:] + ring[:start]
    return tuple(round(point, 2) for point in points_in_order)


def rates(before: Counts, now: Counts, seconds: float) -> wire.Verdicts:
    """Return how much of what came to which end per second."""
    if before == now:
        return _NO_RATES
    return wire.Verdicts(*(round((new - old) / seconds, 2) for old, new in zip(before, now, strict=True)))


def _is_lately(at_ns: int, now_ns: int) -> bool:
    return at_ns > 0 and now_ns - at_ns <= _LATELY_NS


def _rule_rates(before: Counts, now: Counts, seconds: float) -> wire.RuleRates:
    return wire.RuleRates(*(round((new - old) / seconds, 2) for old, new in zip(before, now, strict=True)))


class Line:
    """What is known of one limit and what it limits."""

    __slots__ = (
        "_history",
        "_history_at",
        "_new",
        "counted",
        "entry",
        "key",
        "kind",
        "last_refused_at",
        "last_refused_ns",
        "last_refused_rule",
        "last_wait_us",
        "lower",
        "messages",
        "messages_before",
        "name",
        "open",
        "open_ns",
        "point_start",
        "requests",
        "requests_before",
        "ring",
        "rule",
        "rule_messages",
        "rule_messages_before",
        "seen_ns",
        "shadowed_ns",
        "shown",
        "shown_etag",
        "stopped_ns",
        "stored_permits",
        "usage",
        "used_ratio",
        "wait_until_ns",
    )

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name, self.key, self.lower = kind, name, f"{kind}/{name}", name.casefold()
        #: The limit, if it has a rule of its own.
        self.entry: LimitEntry | None = None
        #: The limit as it was last shown, and of which state of all limits that was.
        self.shown: LimitEntry | None = None
        self.shown_etag = ""
        self.seen_ns: int | None = None
        #: Nothing came before the first sample.
        self._new = False
        self.counted = False
        self.messages = self.messages_before = self.point_start = NOTHING
        self.requests = self.requests_before = NOTHING
        #: The rule whose own counts are shown, and these.
        self.rule = ""
        self.rule_messages = self.rule_messages_before = _RULE_NOTHING
        self.usage: Mapping[Dimension, Usage] = _NO_USAGE
        self.used_ratio: float | None = None
        self.stored_permits: float | None = None
        self.open = False
        #: When it was last seen open, when something was last refused or held, and when something last would have been.
        self.open_ns = self.stopped_ns = self.shadowed_ns = 0
        self.wait_until_ns = 0
        self.last_refused_ns: int | None = None
        self.last_refused_rule = ""
        #: The same as a time of day, and of which time.
        self.last_refused_at: tuple[int, str] | None = None
        self.last_wait_us = 0
        self.ring: Ring | None = None
        self._history: wire.History | None = None
        self._history_at = -1

    def sample(self, state: ResourceState, now_ns: int) -> None:
        """Take over what the data path says."""
        first = self.seen_ns is None
        self.seen_ns = now_ns
        if state.counts is not None:
            self.messages_before, self.messages = self.messages, counts_of(state.counts.messages)
            self.requests_before, self.requests = self.requests, counts_of(state.counts.requests)
            if first and not self._new:
                # What was there before this line began happened at no known time.
                self.messages_before, self.requests_before = self.messages, self.requests
                self.point_start = self.messages
            if self.moved(SHADOWED):
                self.shadowed_ns = now_ns
            self.counted = True
        elif state.rule:
            self._sample_rule(state, began=first and not self._new)
        self.usage = state.usage
        self.used_ratio = max((usage.last_10s for usage in state.usage.values()), default=None)
        if self.used_ratio is None and state.stored_permits is not None:
            self.used_ratio = 0.0
        self.stored_permits = state.stored_permits
        self.open = state.open
        if state.open:
            self.open_ns = now_ns
        self.wait_until_ns = now_ns + state.wait_us * 1000 if state.wait_us else 0
        self.last_refused_ns, self.last_wait_us = state.last_refused_ns, state.last_wait_us
        self.last_refused_rule = state.last_refused_rule
        self.stopped_ns = max(state.last_refused_ns or 0, state.last_held_ns or 0)
        self.shadowed_ns = max(self.shadowed_ns, state.last_shadowed_ns or 0)

    def _sample_rule(self, state: ResourceState, *, began: bool) -> None:
        counts = None if state.rule_counts is None else state.rule_counts.messages
        now = _RULE_NOTHING if counts is None else tuple(counts.get(verdict, 0) for verdict in _RULE_VERDICTS)
        # What another rule did, or this one before the line began, happened at no known time.
        known = state.rule == self.rule or (not self.rule and not began)
        self.rule_messages_before = self.rule_messages if known else now
        self.rule, self.rule_messages = state.rule, now

    def begin_at_zero(self) -> None:
        """Take all that the first sample counts for new: the resource was not there before."""
        self._new = True

    def rest(self) -> None:
        """Nothing came since the last sample."""
        self.messages_before, self.requests_before = self.messages, self.requests
        self.rule_messages_before = self.rule_messages

    def moved(self, verdict: int) -> int:
        """Return how many messages came to an end, an index of ``VERDICTS``, between the last two samples."""
        moved = self.messages[verdict] - self.messages_before[verdict]
        if self.rule and verdict in _RULE_INDEX:
            index = _RULE_INDEX[verdict]
            moved = self.rule_messages[index] - self.rule_messages_before[index]
        return moved

    def fade(self) -> None:
        """Nothing came for more than a minute."""
        self.usage = _NO_USAGE
        if self.used_ratio:
            self.used_ratio = 0.0

    def write_point(self, point: int, seconds: float) -> None:
        """Write the next point of the history, if there is anything to tell.

        Args:
            point: how many there were before, of all histories.
            seconds: since the last one.
        """
        moved = self.messages != self.point_start
        if self.ring is None:
            if not moved:
                return
            self.ring = Ring()
        before, now = self.point_start, self.messages
        self.ring.write(point, (now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds)
        self.point_start = now
        if not moved and self.ring.written % POINTS == 0 and self.ring.idle:
            self.ring = None

    def is_limited(self, now_ns: int) -> bool:
        """Whether something was refused or held of late, or everything is refused."""
        return _is_lately(self.stopped_ns, now_ns) or self.is_open(now_ns)

    def is_open(self, now_ns: int) -> bool:
        """Whether everything is refused at this moment, or was of late."""
        return _is_lately(self.open_ns, now_ns) or (self.open and self.wait_until_ns > now_ns)

    def is_shadowed(self, now_ns: int) -> bool:
        """Whether a shadow rule would have refused something of late."""
        return _is_lately(self.shadowed_ns, now_ns)

    @property
    def is_near(self) -> bool:
        """Whether the limit is near."""
        return self.used_ratio is not None and self.used_ratio >= NEAR

    @property
    def is_edited(self) -> bool:
        """Whether an edit stands."""
        return self.entry is not None and self.entry.edit is not None

    def figures(self, clock: Clock, sampled_ns: int, seconds: float, rule: str) -> wire.LiveFigures | None:
        """Return what it does now, or None if it was never asked for.

        Args:
            clock: for the time of day.
            sampled_ns: when the last sample was taken.
            seconds: how long the last sample was.
            rule: the name of the limit's own rule.
        """
        if self.seen_ns is None:
            return None
        wait_ns = max(self.wait_until_ns - sampled_ns, 0)
        return wire.LiveFigures(
            messages_per_s=rates(self.messages_before, self.messages, seconds) if self.counted else None,
            requests_per_s=rates(self.requests_before, self.requests, seconds) if self.counted else None,
            rule_messages_per_s=(
                _rule_rates(self.rule_messages_before, self.rule_messages, seconds) if self.rule else None
            ),
            used=self.usage,
            used_ratio=self.used_ratio,
            limited=self.is_limited(sampled_ns),
            would_refuse=self.is_shadowed(sampled_ns),
            near=self.is_near,
            open=self.is_open(sampled_ns),
            wait_s=wait_ns / NS_PER_S,
            stored_permits=None if self.stored_permits is None else round(self.stored_permits, 3),
            last_refused_at=self._last_refused(clock),
            last_wait_s=self.last_wait_us / 1e6,
            refused_by=self.last_refused_rule if self.last_refused_rule not in ("", rule) else None,
        )

    def _last_refused(self, clock: Clock) -> str | None:
        if self.last_refused_ns is None:
            return None
        # Worked out once: the two clocks never agree to the millisecond twice.
        if self.last_refused_at is None or self.last_refused_at[0] != self.last_refused_ns:
            self.last_refused_at = (self.last_refused_ns, clock.iso_of(self.last_refused_ns))
        return self.last_refused_at[1]

    def history(self, points: int) -> wire.History | None:
        """Return what it did in the last minutes."""
        if self.ring is None:
            return None
        if self._history is None or self._history_at != points:
            self._history, self._history_at = self.ring.read(points), points
        return self._history

    def row(self, entry: LimitEntry, live: wire.LiveFigures | None, history: wire.History | None) -> wire.Row:
        """Return the line as it is shown."""
        return wire.Row(key=self.key, own=self.entry is not None, live=live, history=history, **_fields(entry))


def _fields(entry: LimitEntry) -> dict[str, Any]:
    return {field: getattr(entry, field) for field in _ENTRY_FIELDS}


_ENTRY_FIELDS: Final = LimitEntry.__struct_fields__
