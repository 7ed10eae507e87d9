"""The lines of the rejection log: one JSON object each, self-contained, with a schema version.

This is the one definition of the format: the writer encodes these, the reader for people decodes them, and the Spark
schema is tested against them. Times are whole seconds since 1970 UTC; ``null`` fields and zeros may be left out.

Every record carries ``instance`` and ``run`` and a number ``n`` that counts up by one within a run. Equal (``run``,
``n``) is the same record, so that a copied file changes no result. A record that could not be written has a number all
the same: a gap says that something was lost. What a killed process left unwritten of its last minute is written by the
next one, under the run and the numbers of the former.
A new field may be added within a version; a change of meaning takes a new one.
"""

from typing import Final, Literal

import msgspec

from limiter.rejections import Amount, RejectionVerdict
from limiter.rule import Action, Count

VERSION: Final = 1
"""Of the schema."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """What all records have.

    Attributes:
        v: version of the schema.
        instance: name of the sidecar; the same after a restart.
        run: of one process, at random.
        n: counts up by one within the run, from 1.
        at_s: what the record is of begins here.
    """

    v: int
    instance: str
    run: str
    n: int
    at_s: int


class RejectionRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="rejection", gc=False):
    """What one rule did to one client's requests for one resource in the second ``at_s``; see ``limiter.rejections``.

    There may be several of the same key and second: they add up.

    Attributes:
        kind: of the resource.
        name: of the resource.
        client: address.
        producer_group: or empty.
        rule: name of the rule.
        verdict: what it did.
        requests: how many.
        messages: in them.
        bytes: of them on the wire.
        wait_max_us: the longest wait stated, in microseconds.
    """

    kind: str
    name: str
    client: str
    producer_group: str = ""
    rule: str
    verdict: RejectionVerdict
    requests: int
    messages: int
    bytes: int
    wait_max_us: int = 0


class LimitFields(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The resource limit in force, flat.

    Attributes:
        kind: of the resource.
        name: of the resource, or the rule's pattern where the record is of a rule.
        rule: name of the rule that limits it; empty if none does.
        rate_per_s: None is unlimited.
        burst_s: seconds' worth of permits that can be stored.
        break_s: of the breaker, as it is in force.
        count: what a permit is.
        bytes_per_s: None is unlimited.
        bytes_burst_s: seconds' worth of bytes that can be stored.
        action: what happens above the limit; ``off`` too while limiting is switched off.
    """

    kind: str
    name: str
    rule: str = ""
    rate_per_s: float | None = None
    burst_s: float = 1.0
    break_s: float = 0.0
    count: Count = "messages"
    bytes_per_s: float | None = None
    bytes_burst_s: float = 1.0
    action: Action = "reject"


class TrafficRecord(LimitFields, frozen=True, kw_only=True, omit_defaults=True, tag="traffic", gc=False):
    """What became of one resource's requests in the minute that begins at ``at_s``, and the limit at its end.

    There may be several of the same resource and minute: they add up; of limits the one with the greatest ``n`` holds.

    Attributes:
        admitted: as ``Outcome``; each of these is ``[requests, messages, bytes]``.
        refused: likewise.
        held: likewise.
        shadowed: likewise.
        bypassed: likewise.
        exempt: likewise.
        dropped: likewise.
        busy_answers: refusals that a client was told of.
        languages: ``[requests, refused requests]`` by the language that clients name.
        clients: distinct client addresses, at least so many if ``more_clients``.
        more_clients: there were too many to tell apart.
        second: offsets into the minute, 0 to 59, ascending, of the seconds in which something was asked for.
        second_admitted: messages that reached the broker, by second.
        second_refused: messages that did not, refused or dropped, by second.
        second_requests: requests, by second.
        second_bytes: bytes asked for, by second.
    """

    admitted: Amount = Amount()
    refused: Amount = Amount()
    held: Amount = Amount()
    shadowed: Amount = Amount()
    bypassed: Amount = Amount()
    exempt: Amount = Amount()
    dropped: Amount = Amount()
    busy_answers: int = 0
    languages: dict[str, tuple[int, int]] = {}
    clients: int = 0
    more_clients: bool = False
    second: tuple[int, ...] = ()
    second_admitted: tuple[int, ...] = ()
    second_refused: tuple[int, ...] = ()
    second_requests: tuple[int, ...] = ()
    second_bytes: tuple[int, ...] = ()


class LimitRecord(LimitFields, frozen=True, kw_only=True, omit_defaults=True, tag="limit", gc=False):
    """One rule for resources as it stands: of each rule at the start of a run, and once a day.

    It tells which limits nobody used. Scopes and totals are not among them, and of the built-in rules only the defaults
    of kinds.
    """


class LimitChangeRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="limit_change", gc=False):
    """One live change of a limit or a switch, as in the audit trail.

    Attributes:
        change_id: of the audit trail.
        action: ``set``, ``unset``, ``expire``, ``revert``, ``reload``.
        kind: of what is limited, ``total``, or ``all``; empty for a reload.
        name: or pattern; empty for a switch.
        rate_before_per_s: None is unlimited, or no limit.
        rate_after_per_s: likewise.
        by: the author.
        reason: theirs.
    """

    change_id: int
    action: Literal["set", "unset", "expire", "revert", "reload"]
    kind: str = ""
    name: str = ""
    rate_before_per_s: float | None = None
    rate_after_per_s: float | None = None
    by: str = ""
    reason: str = ""


class HeartbeatRecord(Record, frozen=True, kw_only=True, omit_defaults=True, tag="heartbeat", gc=False):
    """The sidecar lived in the minute that begins at ``at_s``, with traffic or without.

    Attributes:
        version: of Sluice.
        seconds: of the minute that were recorded, 1 to 60.
        limiting: limiting was on at its end.
        connections: open at its end.
        bypassed_requests: in this minute, by ``handler/reason``.
        other: runs of requests counted under ``_other`` in this minute, because a bound was reached.
        lost_records: records of this run that could not be written, so far.
    """

    version: str
    seconds: int
    limiting: bool = True
    connections: int = 0
    bypassed_requests: dict[str, int] = {}
    other: int = 0
    lost_records: int = 0


AnyRecord = RejectionRecord | TrafficRecord | LimitRecord | LimitChangeRecord | HeartbeatRecord
