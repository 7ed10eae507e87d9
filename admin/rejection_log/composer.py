"""Composes the records of a run. Refusals are recorded every second, and other traffic every ten seconds."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from admin.common.version import sluice_version
from admin.config.rulebook import BUILT_IN
from admin.edits.model import Change
from admin.rejection_log.files import Figures, Lines
from admin.rejection_log.records import (
    MINUTE_S,
    VERSION,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitFields,
    LimitRecord,
    Record,
    RejectionRecord,
    TrafficRecord,
    line_of,
    minute_of,
)
from limiter.counting.rejections import OTHER, Amount, Rejection, ResourceSecond, TrafficSecond, add_up
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.resource import SCOPES, Resource
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, Rule
from limiter.rules.rule_set import RuleSet
from proxy.stats.snapshot import ENDINGS, Snapshot

_log = structlog.get_logger(__name__)

PART_S: Final = 10
MAX_CLIENTS: Final = 256
"""Per resource and minute."""
_DAY_S: Final = 86_400
_NO_RULE: Final = "default"
#: Without ``held``, because held requests are counted again when their wait ends.
_REACHED: Final = {ending.outcome: ending.reached for ending in ENDINGS}
_COLUMNS: Final = ("second_admitted", "second_refused", "second_requests", "second_bytes", "second_repeated")
_NOTHING: Final = Amount()


class Total(msgspec.Struct, gc=False):
    """A resource's counts since the last write. Garbage collection ignores these objects: there may be thousands."""

    amounts: dict[str, Amount] = {}
    seconds: dict[int, "array[int]"] = {}
    languages: dict[str, tuple[int, int]] = {}
    identified: int = 0
    busy_answers: int = 0

    def add(self, offset: int, second: ResourceSecond) -> None:
        """Add the counts of the second that begins ``offset`` seconds into the minute."""
        reached = stopped = requests = size_bytes = 0
        for outcome, amount in second.outcomes.items():
            self.amounts[outcome] = add_up(self.amounts.get(outcome, _NOTHING), amount)
            if outcome in _REACHED:
                requests += amount.requests
                size_bytes += amount.size_bytes
                if _REACHED[outcome]:
                    reached += amount.messages
                else:
                    stopped += amount.messages
        if second.repeated != _NOTHING:
            self.amounts["repeated"] = add_up(self.amounts.get("repeated", _NOTHING), second.repeated)
        if requests or reached or stopped or size_bytes:
            columns = self.seconds.setdefault(offset, array("q", bytes(8 * len(_COLUMNS))))
            for place, figure in enumerate((reached, stopped, requests, size_bytes, second.repeated.messages)):
                columns[place] += figure
        self.identified += second.identified
        self.busy_answers += second.busy_answers
        for language, (of_requests, of_refused) in second.languages.items():
            before = self.languages.get(language, (0, 0))
            self.languages[language] = before[0] + of_requests, before[1] + of_refused

    def fields(self) -> dict[str, Any]:
        offsets = sorted(self.seconds)
        columns = {
            name: tuple(self.seconds[offset][place] for offset in offsets) for place, name in enumerate(_COLUMNS)
        }
        if not any(columns["second_repeated"]):
            del columns["second_repeated"]
        return {
            **self.amounts,
            "identified": self.identified,
            "busy_answers": self.busy_answers,
            "languages": self.languages,
            "second": tuple(offsets),
            **columns,
        }


class Minute:
    """Collects a minute's traffic until it is recorded. At most ``max_resources`` resources are counted by name."""

    def __init__(self, at_s: int, max_resources: int) -> None:
        self.at_s = at_s
        self._max_resources = max_resources
        self._totals: dict[Resource, Total] = {}
        self._clients: dict[Resource, dict[str, None]] = {}
        self._more_clients: set[Resource] = set()

    def add(self, at_s: int, second: ResourceSecond) -> int:
        """Add one second of a resource's traffic. Return how many of its requests were counted as ``_other``."""
        resource, other = second.resource, 0
        if resource not in self._clients and resource.name != OTHER and len(self._clients) >= self._max_resources:
            resource = Resource(resource.kind, OTHER)
            other = sum(amount.requests for amount in second.outcomes.values())
        self._totals.setdefault(resource, Total()).add(at_s - self.at_s, second)
        clients = self._clients.setdefault(resource, {})
        for client in second.clients:
            if client not in clients and len(clients) >= MAX_CLIENTS:
                self._more_clients.add(resource)
            else:
                clients[client] = None
        if second.more_clients:
            self._more_clients.add(resource)
        return other

    def take(self) -> Iterator[tuple[Resource, dict[str, Any]]]:
        """Yield the fields of a ``TrafficRecord`` for each resource that had traffic since the last call."""
        totals, self._totals = self._totals, {}
        for resource, total in totals.items():
            clients = {"clients": len(self._clients[resource]), "more_clients": resource in self._more_clients}
            yield resource, {**total.fields(), **clients}


class Composer:
    """Composes the records of one process. Times are in seconds since 1970.

    Attributes:
        killed: The previous run and its last record number, if it was killed. The first heartbeat reports them.
    """

    def __init__(
        self, instance: str, run: str, *, max_resources: int, figures: Figures, now_s: float, fleet: str = ""
    ) -> None:
        self.killed: tuple[str, int] | None = None
        self._fleet = fleet
        self._instance, self._run, self._n = instance, run, 0
        self._max_resources, self._figures, self._version = max_resources, figures, sluice_version()
        self._lines: Lines = []
        self._bypassed: dict[str, int] = {}
        self._other = 0
        self._limits_day = -1
        self.begin(now_s)

    def begin(self, now_s: float, snapshot: Snapshot | None = None) -> None:
        """Start the run. Requests that bypassed a handler before ``snapshot`` are not counted."""
        self._from_s = int(now_s)
        self._minute = Minute(minute_of(self._from_s), self._max_resources)
        self._bypassed = {} if snapshot is None else _bypassed(snapshot)

    def is_due(self, seconds: Iterable[TrafficSecond], now_s: float) -> bool:
        """Return whether ``compose`` needs a snapshot."""
        part_s = _part_of(self._from_s)
        return _part_of(int(now_s)) != part_s or any(_part_of(second.at_s) != part_s for second in seconds)

    def compose(
        self,
        lines: Lines,
        seconds: Sequence[TrafficSecond],
        rules: RuleSet,
        now_s: float,
        *,
        snapshot: Snapshot | None = None,
        changes: Iterable[Change] = (),
        last: bool = False,
    ) -> None:
        """Append records to ``lines``. If an exception is raised, ``lines`` contains the records made so far.

        ``last`` means that the process is ending.
        """
        self._lines = lines
        for second in seconds:
            self._go_to(second.at_s, rules, snapshot)
            self._add(second, rules)
        self._go_to(int(now_s), rules, snapshot)
        if last:
            self._end_part(int(now_s) + 1, rules, snapshot, ends=True)
        day = int(now_s) // _DAY_S
        if day > self._limits_day:
            self._limits_day = day
            for rule in _recorded(rules):
                limiting = rules.enabled and rule.kind not in rules.off_kinds
                fields = {**self._fields_of(rule, limiting=limiting), "rule": rule.name}
                self._record("limit", LimitRecord, int(now_s), kind=rule.kind, name=rule.key.pattern, **fields)
        for change in changes:
            if change.action != "purge":
                self._add_change(change)

    def _go_to(self, at_s: int, rules: RuleSet, snapshot: Snapshot | None) -> None:
        part_s = _part_of(at_s)
        begun_s = _part_of(self._from_s)
        if part_s == begun_s:
            return
        if 0 < part_s - self._from_s <= MINUTE_S:
            until_s, next_s = part_s, part_s
        else:
            until_s, next_s = begun_s + PART_S, at_s
        self._end_part(until_s, rules, snapshot)
        self._from_s = next_s
        if minute_of(at_s) != self._minute.at_s:
            self._minute = Minute(minute_of(at_s), self._max_resources)

    def _add(self, second: TrafficSecond, rules: RuleSet) -> None:
        if second.stepped_s:
            self._figures.clock_steps += 1
            _log.warning("system clock changed", by_s=second.stepped_s)
        self._other += second.other
        self._figures.other_runs += second.other
        for traffic in second.resources:
            self._other += self._minute.add(second.at_s, traffic)
        for rejection in second.rejections:
            self._add_rejection(second.at_s, rejection, rules)

    def _end_part(self, until_s: int, rules: RuleSet, snapshot: Snapshot | None, *, ends: bool = False) -> None:
        limits = rules.at(datetime.fromtimestamp(until_s, UTC))
        for (kind, name), fields in self._minute.take():
            limit = self._limit_of(limits, Resource(kind, name))
            self._record("traffic", TrafficRecord, self._minute.at_s, kind=kind, name=name, **limit, **fields)
        if snapshot is not None:
            self._add_heartbeat(until_s, rules, snapshot, ends=ends)

    def _record(self, type_: str, record: type[Record], at_s: int, **fields: Any) -> None:
        self._n += 1
        made = record(v=VERSION, instance=self._instance, run=self._run, n=self._n, at_s=at_s, **fields)
        self._lines.append((type_, line_of(made)))

    def _add_rejection(self, at_s: int, rejection: Rejection, rules: RuleSet) -> None:
        resource = rejection.resource
        is_fleets = self._fleet and resource.name != OTHER and rules.match(resource).fleet
        self._record(
            "rejection",
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
            requests=rejection.amount.requests,
            messages=rejection.amount.messages,
            bytes=rejection.amount.size_bytes,
            wait_max_us=rejection.wait_max_us,
            fleet=self._fleet if is_fleets else "",
        )

    def _add_change(self, change: Change) -> None:
        what, _, rest = change.target.partition("/")
        kind, _, name = rest.partition("/")
        before, after = None if change.old_rule else change.old, None if change.new_rule else change.new
        self._record(
            "limit_change",
            LimitChangeRecord,
            int(datetime.fromisoformat(change.at).timestamp()),
            change_id=change.id,
            action=change.action,
            kind=kind,
            name=name if what == "limits" else "",
            rate_before_per_s=_rate(before),
            rate_after_per_s=_rate(after),
            fair_by_before=(before or {}).get("fair_by"),
            fair_by_after=(after or {}).get("fair_by"),
            by=change.by,
            reason=change.reason,
        )

    def _add_heartbeat(self, until_s: int, rules: RuleSet, snapshot: Snapshot, *, ends: bool) -> None:
        before, self._bypassed = self._bypassed, _bypassed(snapshot)
        other, self._other = self._other, 0
        (run, n), self.killed = self.killed or ("", 0), None
        self._record(
            "heartbeat",
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
            fleet=self._fleet,
        )

    def _limit_of(self, rules: RuleSet, resource: Resource) -> dict[str, Any]:
        if resource.name == OTHER:
            return {}
        return self._fields_of(rules.match(resource), limiting=rules.limiting(resource))

    def _fields_of(self, rule: Rule, *, limiting: bool) -> dict[str, Any]:
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
            "max_delay_s": rule.max_delay_s if rule.action == "delay" else DEFAULT_MAX_DELAY_S,
            "fleet": self._fleet if rule.fleet else "",
        }
        return {name: value for name, value in fields.items() if value != _LIMIT_DEFAULTS[name]}


def _part_of(at_s: int) -> int:
    return at_s - at_s % PART_S


def _recorded(rules: RuleSet) -> Iterator[Rule]:
    for rule in rules.rules:
        is_other_built_in = rule.source == BUILT_IN and rule.pattern != DEFAULT_PATTERN
        if not (rule.shared or rule.kind in SCOPES or is_other_built_in):
            yield rule


_LIMIT_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(LimitFields)}


def _bypassed(snapshot: Snapshot) -> dict[str, int]:
    return {f"{handler}/{reason}": count for (handler, reason), count in snapshot.bypassed.items()}


def _rate(limit: Mapping[str, Any] | None) -> float | None:
    rate = (limit or {}).get("rate")
    return float(rate) if isinstance(rate, int | float) else None
