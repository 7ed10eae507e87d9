"""Makes the records of one run, each with its number, as lines, and gathers lines for who writes them.

Pure: what happened goes in, encoded lines come out, one small step for each; when they are written, and where, is
others' business.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from admin.config.rulebook import BUILT_IN
from admin.edits.model import Change
from admin.rejection_log.aggregate import Aggregate, Traffic
from admin.rejection_log.records import (
    VERSION,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitFields,
    LimitRecord,
    Record,
    RejectionRecord,
    TrafficRecord,
)
from limiter.counting.rejections import OTHER, Rejection
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.resource import SCOPES, Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

_encoder: Final = msgspec.json.Encoder()

#: Where the unlimited rule comes from that stands for having none.
_NOBODY: Final = "default"


LimitInForce = dict[str, Any]
"""The fields of ``records.LimitFields`` from ``rule`` on that are not as by default; none is no limit."""
_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(LimitFields)}


class LimitsInForce:
    """The limits of one rule set at one moment, as records have them.

    Args:
        rules: as they hold at that moment.
    """

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._made: dict[tuple[int, bool], tuple[Rule, LimitInForce]] = {}

    def of(self, resource: Resource) -> LimitInForce:
        """Return the limit of a resource; what is beyond a bound has none of its own."""
        if resource.name == OTHER:
            return {}
        return self._of_rule(self._rules.match(resource), limiting=self._rules.limiting(resource))

    def of_rules(self) -> Iterator[tuple[Rule, LimitInForce]]:
        """Yield the rules for resources, each with its limit; of those built in only the defaults of kinds."""
        for rule in self._rules.rules:
            if rule.shared or rule.kind in SCOPES or (rule.source == BUILT_IN and rule.pattern != DEFAULT_PATTERN):
                continue
            limiting = self._rules.enabled and rule.kind not in self._rules.off_kinds
            yield rule, self._of_rule(rule, limiting=limiting)

    def _of_rule(self, rule: Rule, *, limiting: bool) -> LimitInForce:
        made = self._made.get((id(rule), limiting))
        if made is None:
            fields = {
                "rule": "" if rule.source == _NOBODY and not rule.limits else rule.name,
                "rate_per_s": rule.rate_per_s,
                "burst_s": rule.burst_s,
                "break_s": rule.break_in_force_s if rule.limits else 0.0,
                "count": rule.count,
                "bytes_per_s": rule.bytes_per_s,
                "bytes_burst_s": rule.bytes_burst_s,
                "action": rule.action if limiting else "off",
                "fair_by": rule.fair_by,
            }
            # The rule is kept, too: another one must not get its id.
            made = rule, {name: value for name, value in fields.items() if value != _DEFAULTS[name]}
            self._made[id(rule), limiting] = made
        return made[1]


class Composer:
    """Numbers the records of a run and writes each as a line.

    Args:
        instance: name of the sidecar.
        run: of the process.
        last_n: the number of the last record there is.

    Attributes:
        instance: as given.
        run: as given.
        n: the number of the last record.
    """

    def __init__(self, instance: str, run: str, last_n: int = 0) -> None:
        self.instance, self.run, self.n = instance, run, last_n

    def _line(self, record: type[Record], at_s: int, **fields: Any) -> bytes:
        self.n += 1
        return line_of(record(v=VERSION, instance=self.instance, run=self.run, n=self.n, at_s=at_s, **fields))

    def rejection(self, at_s: int, rejection: Rejection) -> bytes:
        """Write what a rule did in the second that begins then."""
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

    def traffic(self, at_s: int, resource: Resource, traffic: Traffic, limit: LimitInForce) -> bytes:
        """Write what became of a resource's requests in the minute that begins then."""
        second, admitted, refused, requests, size_bytes, repeated = traffic.seconds()
        again = {"repeated": traffic.repeated, "second_repeated": repeated} if traffic.repeated.requests else {}
        return self._line(
            TrafficRecord,
            at_s,
            kind=resource.kind,
            name=resource.name,
            **limit,
            **traffic.amounts(),
            **again,
            identified=traffic.identified,
            busy_answers=traffic.busy_answers,
            languages=traffic.languages,
            clients=len(traffic.clients),
            more_clients=traffic.more_clients,
            second=second,
            second_admitted=admitted,
            second_refused=refused,
            second_requests=requests,
            second_bytes=size_bytes,
        )

    def limit(self, at_s: int, rule: Rule, limit: LimitInForce) -> bytes:
        """Write how a rule stands."""
        return self._line(LimitRecord, at_s, kind=rule.kind, name=rule.key.pattern, **{**limit, "rule": rule.name})

    def limit_change(self, change: Change) -> bytes:
        """Write what a live change of a limit or a switch did."""
        assert change.action != "purge"  # noqa: S101 - that changes neither
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

    def heartbeat(
        self,
        minute: Aggregate,
        *,
        version: str,
        limiting: bool,
        connections: int = 0,
        bypassed_requests: Mapping[str, int] | None = None,
        lost_records: int = 0,
    ) -> bytes:
        """Write that the sidecar lived in a minute; it comes behind the traffic of that minute."""
        return self._line(
            HeartbeatRecord,
            minute.at_s,
            version=version,
            seconds=max(1, minute.seconds),
            limiting=limiting,
            connections=connections,
            bypassed_requests=dict(bypassed_requests or {}),
            other=minute.other,
            lost_records=lost_records,
        )


def _rate(limit: Mapping[str, Any] | None) -> float | None:
    rate = (limit or {}).get("rate")
    return float(rate) if isinstance(rate, int | float) else None


def line_of(record: msgspec.Struct) -> bytes:
    """Write something as a line of JSON; what UTF-8 cannot hold becomes question marks."""
    try:
        return _encoder.encode(record) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(_clean(msgspec.to_builtins(record))) + b"\n"


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list | tuple) else value


PIECE_BYTES: Final = 256 * 1024
"""What is written at a time, and dropped at a time when there is no room."""


# What the recorder hands to who writes: whole lines in pieces, for the log file and for the write-ahead file.
class Piece(NamedTuple):
    """Whole lines that are written together or not at all.

    Attributes:
        data: the lines.
        records: how many of each type.
    """

    data: bytearray
    records: Counter[str]


class Lines:
    """Whole lines, in pieces, and how many records of each type are in a piece.

    Args:
        piece_bytes: a new piece is begun after so many.
    """

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self.pieces: list[Piece] = []
        self._piece_bytes = piece_bytes

    def add(self, line: bytes, type_: str = "") -> None:
        """Add a line, or some that belong together."""
        if not self.pieces or len(self.pieces[-1][0]) >= self._piece_bytes:
            self.pieces.append(Piece(bytearray(), Counter()))
        data, records = self.pieces[-1]
        data += line
        records[type_] += 1


class Batch(msgspec.Struct, kw_only=True):
    """What is to be written at once.

    Attributes:
        run: whose records they are.
        records: for the log file.
        begin: the first line of a new write-ahead file: what the one there is about is among the records; None goes on
            with it.
        write_ahead: for the write-ahead file.
        last: nothing comes after it, and what the write-ahead file is about is among the records: once they are written
            it is not needed.
    """

    run: str
    records: Lines = msgspec.field(default_factory=Lines)
    begin: bytes | None = None
    write_ahead: Lines = msgspec.field(default_factory=Lines)
    last: bool = False
