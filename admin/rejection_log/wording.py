"""Records of the rejection log as people read them: one line each, in plain words.

Names come from clients: what would give a terminal orders is written as an escape.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Final, Literal, NamedTuple

from admin import numbers
from admin.numbers import measured
from admin.rejection_log.minute import MINUTE_S
from admin.rejection_log.records import (
    AnyRecord,
    HeartbeatRecord,
    LimitChangeRecord,
    LimitFields,
    LimitRecord,
    RejectionRecord,
    TrafficRecord,
)
from admin.tables import printable
from limiter.rejections import Amount

Tone = Literal["plain", "bad", "good", "faint"]

_US_PER_S: Final = 1_000_000
_DID: Final = {"refuse": "refused", "shadow": "shadowed", "hold": "held"}
_KB: Final = 1000


class Worded(NamedTuple):
    """A record in words.

    Attributes:
        when: on somebody's clock.
        what: one word of what it is about.
        text: the rest.
        tone: how it is to be shown.
    """

    when: str
    what: str
    text: str
    tone: Tone


def worded(record: AnyRecord, zone: tzinfo | None = None) -> Worded:
    """Put a record in words; times are those of a zone, or of this machine's."""
    moment = datetime.fromtimestamp(record.at_s, UTC).astimezone(zone)
    when = moment.strftime("%Y-%m-%d %H:%M:%S")
    match record:
        case RejectionRecord():
            tone: Tone = "bad" if record.verdict == "refuse" else "plain"
            return Worded(when, _DID[record.verdict], printable(", ".join(_rejection(record))), tone)
        case TrafficRecord():
            return Worded(when, "minute", printable(", ".join(_traffic(record))), "good")
        case LimitRecord():
            text = f"{record.kind} {record.name}: {_limit(record)}"
            return Worded(when, "limit", printable(text), "faint")
        case LimitChangeRecord():
            return Worded(when, "changed", printable(_change(record)), "plain")
        case HeartbeatRecord():
            return Worded(when, "alive", printable(", ".join(_heartbeat(record))), "faint")


def _rejection(record: RejectionRecord) -> Iterator[str]:
    by = "" if record.rule == f"{record.kind}:{record.name}" else f" by {record.rule}"
    yield f"{record.kind} {record.name}: {_counted(record.requests, 'request')}{by}"
    if record.messages != record.requests:
        yield _counted(record.messages, "message")
    yield size(record.bytes)
    yield f"from {record.client}" + (f" ({record.producer_group})" if record.producer_group else "")
    if record.wait_max_us:
        yield f"wait {measured(record.wait_max_us / _US_PER_S)} s"


def _traffic(record: TrafficRecord) -> Iterator[str]:
    outcomes: tuple[tuple[str, Amount], ...] = (
        ("admitted", record.admitted),
        ("refused", record.refused),
        ("held", record.held),
        ("shadowed", record.shadowed),
        ("bypassed", record.bypassed),
        ("exempt", record.exempt),
        ("dropped", record.dropped),
    )
    parts = [f"{amount.messages} {word}" for word, amount in outcomes if amount.requests or amount.messages]
    yield f"{record.kind} {record.name}: messages {', '.join(parts) or 'none'}"
    peak = max((sum(pair) for pair in zip(record.second_admitted, record.second_refused, strict=False)), default=0)
    if peak:
        yield f"at most {peak}/s"
    yield f"limit {_limit(record)}"
    if record.clients:
        yield _counted(record.clients, "client") + (" or more" if record.more_clients else "")


def _limit(limit: LimitFields) -> str:
    unit = " requests" if limit.count == "requests" else ""
    parts = [] if limit.rate_per_s is None else [f"{numbers.limit(limit.rate_per_s)}{unit}/s"]
    if limit.bytes_per_s is not None:
        parts.append(f"{numbers.limit(limit.bytes_per_s)} bytes/s")
    text = " + ".join(parts) or "none"
    return text if limit.action == "reject" or not parts else f"{text} ({limit.action})"


def _change(record: LimitChangeRecord) -> str:
    target = f"{record.kind} {record.name}".strip() or "configuration"
    rates = "" if not record.name else f" {_rate(record.rate_before_per_s)} -> {_rate(record.rate_after_per_s)}"
    reason = f": {record.reason}" if record.reason else ""
    return f"{target}{rates}, {record.action} by {record.by or 'nobody'}, change {record.change_id}{reason}"


def _rate(rate: float | None) -> str:
    return "none" if rate is None else f"{numbers.limit(rate)}/s"


def _heartbeat(record: HeartbeatRecord) -> Iterator[str]:
    yield f"Sluice {record.version}"
    yield _counted(record.connections, "connection")
    if not record.limiting:
        yield "limiting OFF"
    if record.seconds < MINUTE_S:
        yield f"{record.seconds} s recorded"
    for handler, requests in record.bypassed_requests.items():
        yield f"{requests} requests bypassed {handler}"
    if record.other:
        yield f"{record.other} counted under _other"
    if record.lost_records:
        yield f"{record.lost_records} records lost so far"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def size(size_bytes: int) -> str:
    """Write a number of bytes with three digits that count."""
    figure, units = float(size_bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while figure >= _KB and len(units) > 1:
        figure /= _KB
        units.pop(0)
    return f"{figure:.3g} {units[0]}" if figure < _KB else f"{figure:.0f} {units[0]}"
