"""Each line of the rejection log is a self-contained JSON object with a schema version.

Times are whole seconds since 1970 UTC. Fields that are ``null`` or 0 may be omitted.

Every record has an ``instance``, a ``run`` and a number ``n`` that increases by one within a run. Records with the same
``run`` and ``n`` are copies. Lost records have numbers too, so a gap reveals a loss. Refusals are written every second.
Traffic and a heartbeat are written every ten seconds. A killed process loses its unwritten records. Its run has no
heartbeat with ``ends``, and the first heartbeat of the next run contains ``killed_run`` and ``killed_n``. Within a
version, fields may be added. A change of meaning requires a new version.
"""

import json
from typing import Annotated, Final, Literal

import msgspec

from admin.common.numbers import MAX_TIMESTAMP_S
from limiter.counting.rejections import Amount, Count, RejectionVerdict
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, MAX_RATE_PER_S, MAX_TIME_S, Action, FairBy
from limiter.rules.rule import Count as Counts

VERSION: Final = 1
MINUTE_S: Final = 60
_MAX: Final = 2**63 - 1
"""The largest number that a report's tables can store."""
_Moment = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_S)]
_Rate = Annotated[float, msgspec.Meta(ge=0, le=MAX_RATE_PER_S)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_S)]
"""Bounded as in rules, because reports turn these values into rules."""
_Offset = Annotated[int, msgspec.Meta(ge=0, lt=60)]
_Seconds = Annotated[tuple[Count, ...], msgspec.Meta(max_length=60)]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """The fields of all records.

    Attributes:
        v: schema version.
        instance: name of the sidecar, which stays the same across restarts.
        run: random name of one process.
        n: number of the record within the run, starting at 1.
        at_s: start of the period that the record covers.
    """

    v: int
    instance: str
    run: str
    n: Annotated[int, msgspec.Meta(ge=1, le=_MAX)]
    at_s: _Moment


class RejectionRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="rejection", gc=False):
    """Requests of one client that a rule refused or held, or a shadow rule would have refused, within one second.

    Records that differ only in their counts must be added up.

    Attributes:
        kind: kind of the resource.
        name: name of the resource.
        client: address of the client.
        user: user name of the client, if it has one.
        product: library and version, as reported by the client.
        producer_group: producer group of the requests, if any.
        rule: name of the rule.
        verdict: decision of the rule.
        requests: number of requests.
        messages: number of messages in the requests.
        bytes: size of the requests on the wire.
        wait_max_us: longest wait announced to the client, in microseconds.
        fleet: fleet that shares the resource's limit, if any.
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
        name: name of the resource, or the rule's pattern in a ``limit`` record.
        rule: name of the rule that applies, if any.
        rate_per_s: permits per second. None if unlimited.
        burst_s: burst capacity, expressed as seconds' worth of permits at ``rate_per_s``.
        break_s: how long the breaker stays open, in seconds.
        count: unit that the limit counts.
        bytes_per_s: bytes per second. None if unlimited.
        bytes_burst_s: burst capacity, expressed as seconds' worth of bytes at ``bytes_per_s``.
        action: what to do with requests that exceed the limit. ``off`` if limiting is switched off.
        fair_by: kind of caller that gets fair shares. None if the limit has no fair shares.
        max_delay_s: how long action ``delay`` may hold a request, in seconds.
        fleet: fleet that shares the limit, if any.
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
    """A resource's requests in part of the minute that starts at ``at_s``, and its limit at the end of that part.

    To get the figures for a minute, add up its records, but use the largest value of ``clients``. Take the limit from
    the record with the latest second or, if there is more than one, from the one with the largest ``n``. The outcomes,
    from ``admitted`` to ``dropped``, are ``[requests, messages, bytes]``.

    Attributes:
        repeated: repeats of recently refused requests, which are also counted in the outcomes.
        identified: refused and dropped requests whose repeats can be recognized, because they have a message id.
        busy_answers: refusals for which the client got a response.
        languages: ``[requests, refused requests]`` by client language.
        clients: number of distinct client addresses since the start of the minute. A lower bound if ``more_clients``.
        more_clients: whether there may have been more clients.
        second: seconds with requests, as ascending offsets into the minute.
        second_admitted: messages forwarded to the broker in each second.
        second_refused: messages refused or dropped in each second.
        second_requests: requests in each second.
        second_bytes: size of the requests in each second.
        second_repeated: repeated messages in each second. Omitted if all are 0.
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
    """A rule for resources, whether or not it has been used. Recorded at the start of a run and then daily.

    Rules for scopes and totals are not recorded. Built-in rules are recorded only if they are a kind's default.
    """


class LimitChangeRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="limit_change", gc=False):
    """A change that was made to a limit or switch at run time, as in the audit trail.

    Attributes:
        change_id: id of the change in the audit trail.
        action: kind of the change.
        kind: kind of the limit, ``total``, or ``all``. Empty for a reload.
        name: name or pattern. Empty for a switch.
        rate_before_per_s: rate before the change. None if there was no limit.
        rate_after_per_s: rate after the change. None if there is no limit.
        fair_by_before: kind of caller that had fair shares before the change, if any.
        fair_by_after: kind of caller that has fair shares after the change, if any.
        by: author of the change.
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
    """Confirms that the sidecar ran for ``seconds`` from ``at_s``, and that all traffic in that time is recorded.

    Attributes:
        version: version of Sluice.
        seconds: length of the period, 1 to 60.
        limiting: whether limiting was enabled at the end.
        connections: number of open connections at the end.
        bypassed_requests: requests that bypassed a handler in that time, by ``handler/reason``.
        other: number of times that requests were counted as ``_other`` because a bound was reached.
        lost_records: number of this run's records that have been lost so far.
        ends: whether this is the last heartbeat before a clean shutdown.
        killed_run: the previous run if it was killed. Only in the first heartbeat.
        killed_n: number of the last record of ``killed_run``.
        fleet: name of the sidecar's fleet, if any.
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
    return at_s - at_s % MINUTE_S


def line_of(record: msgspec.Struct) -> bytes:
    """Encode a record as a line of JSON. Question marks replace characters that UTF-8 cannot encode."""
    try:
        return _encoder.encode(record) + b"\n"
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(record), ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace") + b"\n"
