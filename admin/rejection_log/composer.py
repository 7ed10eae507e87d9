"""Makes the records of one run, each with its number: refusals at once, traffic and a heartbeat every ten seconds.

Pure: what the data path counted goes in, encoded lines come out. A record that cannot be made is counted as lost, and
costs no other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVarTuple

import msgspec
import structlog

from admin.common.version import sluice_version
from admin.config.rulebook import BUILT_IN
from admin.edits.model import Change
from admin.rejection_log.files import Figures, Lines
from admin.rejection_log.records import (
    VERSION,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitFields,
    LimitRecord,
    Record,
    RejectionRecord,
    TrafficRecord,
    line_of,
)
from admin.rejection_log.totals import MINUTE_S, Minute, minute_of
from limiter.counting.rejections import OTHER, Rejection, TrafficSecond
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.resource import SCOPES, Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.stats.snapshot import Snapshot

_log = structlog.get_logger(__name__)

PART_S: Final = 10
"""Traffic is written so often."""
_DAY_S: Final = 86_400
_EVER: Final = datetime.max.replace(tzinfo=UTC)
#: Source of the unlimited rule that stands for having none.
_NO_RULE: Final = "default"

_LimitFields = dict[str, Any]
"""The fields of ``LimitFields`` from ``rule`` on that are not as by default."""
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(LimitFields)}
_What = TypeVarTuple("_What")


class LimitsInForce:
    """The limits of one rule set at one moment, as records have them."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._made: dict[tuple[int, bool], tuple[Rule, _LimitFields]] = {}

    def of(self, resource: Resource) -> _LimitFields:
        """Return the limit of a resource; ``_other`` has none."""
        if resource.name == OTHER:
            return {}
        return self._of_rule(self._rules.match(resource), limiting=self._rules.limiting(resource))

    def of_rules(self) -> Iterator[tuple[Rule, _LimitFields]]:
        """Yield the rules for resources with their limits; of those built in only the defaults of kinds."""
        for rule in self._rules.rules:
            if rule.shared or rule.kind in SCOPES or (rule.source == BUILT_IN and rule.pattern != DEFAULT_PATTERN):
                continue
            limiting = self._rules.enabled and rule.kind not in self._rules.off_kinds
            yield rule, self._of_rule(rule, limiting=limiting)

    def _of_rule(self, rule: Rule, *, limiting: bool) -> _LimitFields:
        made = self._made.get((id(rule), limiting))
        if made is None:
            fields = {
                "rule": "" if rule.source == _NO_RULE and not rule.limits else rule.name,
                "rate_per_s": rule.rate_per_s,
                "burst_s": rule.burst_s,
                "break_s": rule.break_in_force_s if rule.limits else 0.0,
                "count": rule.count,
                "bytes_per_s": rule.bytes_per_s,
                "bytes_burst_s": rule.bytes_burst_s,
                "action": rule.action if limiting else "off",
                "fair_by": rule.fair_by,
            }
            # Keeps the rule, so that no other one gets its id.
            made = rule, {name: value for name, value in fields.items() if value != _DEFAULTS[name]}
            self._made[id(rule), limiting] = made
        return made[1]


class Composer:
    """Makes the records of one process.

    Args:
        instance: name of the sidecar.
        run: of the process.
        max_resources: told apart in a minute.
        figures: count what could not be made, and what is odd about the traffic.
        now_s: the wall clock, in seconds since 1970.

    Attributes:
        killed: run and last number of a predecessor that was killed, for the first heartbeat.
    """

    def __init__(self, instance: str, run: str, *, max_resources: int, figures: Figures, now_s: float) -> None:
        self.killed: tuple[str, int] | None = None
        self._instance, self._run, self._n = instance, run, 0
        self._max_resources, self._figures, self._version = max_resources, figures, sluice_version()
        self._lines: Lines = []
        #: The kinds of faults that were logged.
        self._told: set[tuple[str, type[Exception]]] = set()
        self._bypassed: dict[str, int] = {}
        self._other = 0
        self._limits = LimitsInForce(RuleSet(()))
        self._limits_version = -1
        #: The limits hold from one moment until before another.
        self._limits_hold = _EVER, _EVER
        self._limits_day = -1
        self.begin(now_s)

    def begin(self, now_s: float, snapshot: Snapshot | None = None) -> None:
        """Begin to record: what was bypassed before is not told."""
        self._from_s = self._taken_s = int(now_s)
        self._minute = Minute(minute_of(self._from_s), self._max_resources)
        self._bypassed = {} if snapshot is None else _bypassed(snapshot)

    def is_due(self, seconds: Iterable[TrafficSecond], now_s: float) -> bool:
        """Say whether traffic is to be written, for which a snapshot is needed."""
        part_s = _part_of(self._from_s)
        return _part_of(int(now_s)) != part_s or any(_part_of(second.at_s) != part_s for second in seconds)

    def compose(
        self,
        seconds: Sequence[TrafficSecond],
        rules: RuleSet,
        now_s: float,
        *,
        snapshot: Snapshot | None = None,
        changes: Iterable[Change] = (),
        limits_again: bool = False,
        last: bool = False,
    ) -> Lines:
        """Return the records of what happened.

        Args:
            seconds: what the data path counted.
            rules: the limits.
            now_s: the wall clock, in seconds since 1970.
            snapshot: for the heartbeat, when it is due.
            changes: of limits.
            limits_again: say how all rules stand, as that was lost.
            last: the process ends.
        """
        self._look_at_limits(rules, now_s)
        for second in seconds:
            self._go_to(second.at_s, rules, snapshot)
            self._add(second)
        self._go_to(int(now_s), rules, snapshot)
        self._taken_s = int(now_s)
        if last:
            self._end_part(int(now_s) + 1, rules, snapshot, ends=True)
        day = int(now_s) // _DAY_S
        if limits_again or day > self._limits_day:
            self._limits_day = day
            for rule, limit in self._limits.of_rules():
                self._record("limit", self._limit, int(now_s), rule, limit)
        for change in changes:
            if change.action != "purge":
                self._record("limit_change", self._limit_change, change)
        lines, self._lines = self._lines, []
        return lines

    def fault(self, what: str, error: Exception) -> None:
        """Count a record that could not be made, and log the first of a kind; called while the error is handled."""
        self._figures.lost["fault"] += 1
        if (what, type(error)) not in self._told:
            self._told.add((what, type(error)))
            _log.exception("rejection log: a fault cost a record; more of them are counted", of=what, error=repr(error))

    def _look_at_limits(self, rules: RuleSet, now_s: float) -> None:
        """See whether other limits are in force, by a change or by the clock."""
        now = datetime.fromtimestamp(now_s, UTC)
        since, until = self._limits_hold
        if rules.version == self._limits_version and since <= now < until:
            return
        try:
            limits, change = LimitsInForce(rules.at(now)), rules.next_change(now)
        except Exception as error:  # noqa: BLE001 - the limits known so far are better than no records
            self.fault("limit", error)
            return
        # A clock that is set back is before what they hold from.
        self._limits, self._limits_version, self._limits_hold = limits, rules.version, (now, change or _EVER)

    def _go_to(self, at_s: int, rules: RuleSet, snapshot: Snapshot | None) -> None:
        """End the part under way if a moment is not in it."""
        part_s = _part_of(at_s)
        begun_s = _part_of(self._from_s)
        if part_s == begun_s:
            return
        if 0 < part_s - self._from_s <= MINUTE_S:
            until_s, next_s = part_s, part_s
        else:
            # The clock was set, or nothing was taken for long.
            until_s, next_s = (begun_s + PART_S if at_s > self._from_s else self._taken_s), at_s
        self._end_part(until_s, rules, snapshot)
        self._from_s = next_s
        if minute_of(at_s) != self._minute.at_s:
            self._minute = Minute(minute_of(at_s), self._max_resources)

    def _add(self, second: TrafficSecond) -> None:
        if second.stepped_s:
            self._figures.clock_steps += 1
            _log.warning("the clock was set; the rejection log goes by it", by_s=second.stepped_s)
        self._other += second.other
        self._figures.other_runs += second.other
        for rejection in second.rejections:
            self._record("rejection", self._rejection, second.at_s, rejection)
        for traffic in second.resources:
            try:
                self._other += self._minute.add(second.at_s, traffic)
            except Exception as error:  # noqa: BLE001 - as in _record
                self.fault("traffic", error)

    def _end_part(self, until_s: int, rules: RuleSet, snapshot: Snapshot | None, *, ends: bool = False) -> None:
        """Make the records of the traffic since the last ones; the heartbeat last, so that it says all are there."""
        for resource, fields in self._minute.take():
            self._record("traffic", self._traffic, resource, fields)
        if snapshot is not None:
            self._record("heartbeat", self._heartbeat, until_s, rules, snapshot, ends)

    def _record(self, type_: str, make: Callable[[*_What], bytes], *what: *_What) -> None:
        try:
            self._lines.append((type_, make(*what)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one may be different
            self.fault(type_, error)

    def _line(self, record: type[Record], at_s: int, **fields: Any) -> bytes:
        self._n += 1
        return line_of(record(v=VERSION, instance=self._instance, run=self._run, n=self._n, at_s=at_s, **fields))

    def _rejection(self, at_s: int, rejection: Rejection) -> bytes:
        resource, amount = rejection.resource, rejection.amount
        return self._line(
            RejectionRecord,
            at_s,
            kind=resource.kind,
            name=resource.name,
            client=rejection.client,
            user=rejection.user,
            product=rejection.product,
            producer_group=rejection.producer_group,
            rule=rejection.rule,
            verdict=rejection.verdict,
            requests=amount.requests,
            messages=amount.messages,
            bytes=amount.size_bytes,
            wait_max_us=rejection.wait_max_us,
        )

    def _traffic(self, resource: Resource, fields: Mapping[str, Any]) -> bytes:
        names = {"kind": resource.kind, "name": resource.name}
        return self._line(TrafficRecord, self._minute.at_s, **names, **self._limits.of(resource), **fields)

    def _limit(self, at_s: int, rule: Rule, limit: _LimitFields) -> bytes:
        return self._line(LimitRecord, at_s, kind=rule.kind, name=rule.key.pattern, **{**limit, "rule": rule.name})

    def _limit_change(self, change: Change) -> bytes:
        what, _, rest = change.target.partition("/")
        kind, _, name = rest.partition("/")
        return self._line(
            LimitChangeRecord,
            int(datetime.fromisoformat(change.at).timestamp()),
            change_id=change.id,
            action=change.action,
            kind=kind,
            name=name if what == "limits" else "",
            rate_before_per_s=_rate(change.old),
            rate_after_per_s=_rate(change.new),
            by=change.by,
            reason=change.reason,
        )

    def _heartbeat(self, until_s: int, rules: RuleSet, snapshot: Snapshot, ends: bool) -> bytes:  # noqa: FBT001 - passed on
        before, self._bypassed = self._bypassed, _bypassed(snapshot)
        other, self._other = self._other, 0
        killed, self.killed = self.killed, None
        run, n = killed or ("", 0)
        return self._line(
            HeartbeatRecord,
            self._from_s,
            version=self._version,
            seconds=min(max(until_s - self._from_s, 1), MINUTE_S),
            limiting=rules.enabled,
            connections=sum(listener.connections for listener in snapshot.listeners),
            bypassed_requests={
                key: more for key, count in self._bypassed.items() if (more := count - before.get(key, 0))
            },
            other=other,
            lost_records=self._figures.lost.total(),
            ends=ends,
            killed_run=run,
            killed_n=n,
        )


def _part_of(at_s: int) -> int:
    return at_s - at_s % PART_S


def _bypassed(snapshot: Snapshot) -> dict[str, int]:
    return {f"{handler}/{reason}": count for (handler, reason), count in snapshot.bypassed.items()}


def _rate(limit: Mapping[str, Any] | None) -> float | None:
    rate = (limit or {}).get("rate")
    return float(rate) if isinstance(rate, int | float) else None
