"""The lines of the rejection log: one JSON object each, self-contained, with a schema version.

Writer and readers use these types, and the Spark schema is tested against them. Times are whole seconds since 1970 UTC.
``null`` fields and zeros may be left out.

Every record has ``instance``, ``run`` and a number ``n`` that counts up by one within a run. Two records with the same
``run`` and ``n`` are the same record, so a copied file changes no result. A record that could not be written uses up a
number, so a gap shows a loss. Refusals are written every second, traffic and a heartbeat every ten seconds. A killed
process loses its unwritten records: its run has no heartbeat with ``ends``, and the first heartbeat of the instance's
next run names it (``killed_run``) with its last number (``killed_n``). Within a version, fields may be added. A change
of meaning needs a new version.
"""

import json
from typing import Annotated, Final, Literal

import msgspec

from admin.common.numbers import MAX_TIMESTAMP_S
from limiter.counting.rejections import Amount, Count, RejectionVerdict
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, MAX_RATE_PER_S, MAX_TIME_S, Action, FairBy
from limiter.rules.rule import Count as Counts

VERSION: Final = 1
"""Version of the schema."""
MINUTE_S: Final = 60
_MAX: Final = 2**63 - 1
"""The tables of a report have 64 bits. A greater number in one line must not end the report."""
_Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_S)]
_Rate = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE_PER_S)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S)]
"""Same bounds as in rules, because a report turns them back into rules."""
_Offset = Annotated[int, msgspec.Meta(ge=0, lt=60)]
_Seconds = Annotated[tuple[Count, ...], msgspec.Meta(max_length=60)]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """The fields of all records.

    Attributes:
        v: version of the schema.
        instance: name of the sidecar. The same after a restart.
        run: random name of one process.
        n: counts up by one within the run, from 1.
        at_s: start of the record's period.
    """

    v: int
    instance: str
    run: str
    n: Annotated[int, msgspec.Meta(ge=1, le=_MAX)]
    at_s: _Moment


class RejectionRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="rejection", gc=False):
    """Actions of one rule on one client's requests for one resource in the second ``at_s``.

    Several records of the same key and second add up.

    Attributes:
        kind: kind of the resource.
        name: name of the resource.
        client: address of the client.
        user: login of the client. Empty if the protocol has none.
        product: name and version that the client states. Empty if the protocol has none.
        producer_group: producer group of the requests. May be empty.
        rule: name of the rule.
        verdict: action of the rule.
        requests: number of requests.
        messages: number of messages in them.
        bytes: their size on the wire.
        wait_max_us: the longest wait stated, in microseconds.
        fleet: name of the fleet whose members share the resource's own limit. Empty for a limit of this sidecar alone.
    """

    kind: str
    name: str
    client: str
    user: str = ""
    product: str = ""
    producer_group: str = ""
    rule: str
    verdict: RejectionVerdict
    requests: Count
    messages: Count
    bytes: Count
    wait_max_us: Count = 0
    fleet: str = ""


class LimitFields(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The active limit of a resource.

    Attributes:
        kind: kind of the resource.
        name: name of the resource, or in a ``limit`` record the rule's pattern.
        rule: name of the rule that limits it. Empty without one.
        rate_per_s: permits per second. None: unlimited.
        burst_s: seconds of permits that can be stored.
        break_s: active time of the breaker.
        count: unit of a permit.
        bytes_per_s: bytes per second. None: unlimited.
        bytes_burst_s: seconds of bytes that can be stored.
        action: action above the limit. ``off`` also while limiting is switched off.
        fair_by: callers that get fair shares of it. None makes no difference between callers.
        max_delay_s: how long action ``delay`` holds a request at most.
        fleet: name of the fleet whose members share the limit. Empty for a limit of this sidecar alone.
    """

    kind: str
    name: str
    rule: str = ""
    rate_per_s: _Rate | None = None
    burst_s: _Time = 1.0
    break_s: _Time = 0.0
    count: Counts = "messages"
    bytes_per_s: _Rate | None = None
    bytes_burst_s: _Time = 1.0
    action: Action = "reject"
    fair_by: FairBy | None = None
    max_delay_s: _Time = DEFAULT_MAX_DELAY_S
    fleet: str = ""


class TrafficRecord(LimitFields, frozen=True, kw_only=True, omit_defaults=True, tag="traffic", gc=False):
    """One resource's requests in a part of the minute that begins at ``at_s``, and the limit at the part's end.

    Several records of the same resource and minute add up, except for ``clients``, of which the largest counts. The
    limit is that of the record with the latest second, and then with the greatest ``n``. The outcomes, from
    ``admitted`` to ``dropped``, are ``[requests, messages, bytes]``.

    Attributes:
        repeated: repeats of requests refused a moment before. Each is also among the others.
        identified: refused and dropped requests with a message id, whose repeats would be recognised.
        busy_answers: refusals that were answered.
        languages: ``[requests, refused requests]`` by the language that clients name.
        clients: distinct client addresses since the minute began. A lower bound if ``more_clients``.
        more_clients: there were more clients than are counted.
        second: offsets into the minute, 0 to 59, ascending, of the seconds with requests.
        second_admitted: messages that reached the broker, by second.
        second_refused: messages that were refused or dropped, by second.
        second_requests: requests, by second.
        second_bytes: bytes of the requests, by second.
        second_repeated: repeated messages, by second. Left out if all are 0.
    """

    admitted: Amount = Amount()
    refused: Amount = Amount()
    held: Amount = Amount()
    shadowed: Amount = Amount()
    bypassed: Amount = Amount()
    exempt: Amount = Amount()
    dropped: Amount = Amount()
    repeated: Amount = Amount()
    identified: Count = 0
    busy_answers: Count = 0
    languages: dict[str, tuple[Count, Count]] = {}
    clients: Count = 0
    more_clients: bool = False
    second: Annotated[tuple[_Offset, ...], msgspec.Meta(max_length=60)] = ()
    second_admitted: _Seconds = ()
    second_refused: _Seconds = ()
    second_requests: _Seconds = ()
    second_bytes: _Seconds = ()
    second_repeated: _Seconds = ()


class LimitRecord(LimitFields, frozen=True, kw_only=True, omit_defaults=True, tag="limit", gc=False):
    """One rule for resources. Written for each rule at the start of a run, and once a day.

    It shows unused limits. Scopes and totals have no such record, and of the built-in rules only the defaults of kinds
    do.
    """


class LimitChangeRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="limit_change", gc=False):
    """One live change of a limit or a switch, as in the audit trail.

    Attributes:
        change_id: number of the change in the audit trail.
        action: kind of the change.
        kind: kind of the limit, ``total``, or ``all``. Empty for a reload.
        name: name or pattern. Empty for a switch.
        rate_before_per_s: rate before the change. None: unlimited, or no limit.
        rate_after_per_s: rate after the change. None: unlimited, or no limit.
        fair_by_before: callers with fair shares of the limit before. None without fair shares.
        fair_by_after: callers with fair shares of it afterwards. None without fair shares.
        by: the author.
        reason: reason given by the author.
    """

    change_id: Annotated[int, msgspec.Meta(ge=-_MAX, le=_MAX)]
    action: Literal["set", "unset", "expire", "revert", "reload", "reset"]
    kind: str = ""
    name: str = ""
    rate_before_per_s: _Rate | None = None
    rate_after_per_s: _Rate | None = None
    fair_by_before: FairBy | None = None
    fair_by_after: FairBy | None = None
    by: str = ""
    reason: str = ""


class HeartbeatRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="heartbeat", gc=False):
    """The sidecar was running in the seconds from ``at_s`` on, and their traffic is written.

    Attributes:
        version: version of Sluice.
        seconds: number of seconds, 1 to 60.
        limiting: limiting was on at their end.
        connections: connections open at their end.
        bypassed_requests: requests bypassed in this time, by ``handler/reason``.
        other: runs of requests counted under ``_other`` in this time, because a bound was reached.
        lost_records: records of this run that could not be written so far.
        ends: the process shut down cleanly, and this is its last record of traffic.
        killed_run: previous run, if it was killed. Only in the first heartbeat.
        killed_n: number of the last record of ``killed_run``.
        fleet: name of its fleet. Empty outside a fleet.
    """

    version: str
    seconds: Annotated[int, msgspec.Meta(ge=0, le=60)]
    limiting: bool = True
    connections: Count = 0
    bypassed_requests: dict[str, Count] = {}
    other: Count = 0
    lost_records: Count = 0
    ends: bool = False
    killed_run: str = ""
    killed_n: Annotated[int, msgspec.Meta(ge=0, le=_MAX)] = 0
    fleet: str = ""


AnyRecord = RejectionRecord | TrafficRecord | LimitRecord | LimitChangeRecord | HeartbeatRecord

_encoder: Final = msgspec.json.Encoder()


def minute_of(at_s: int) -> int:
    """Return the start of the minute of a time, both in seconds since 1970."""
    return at_s - at_s % MINUTE_S


def line_of(record: msgspec.Struct) -> bytes:
    """Format a record as a line of JSON. Characters that UTF-8 cannot encode become question marks."""
    try:
        return _encoder.encode(record) + b"\n"
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(record), ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace") + b"\n"
