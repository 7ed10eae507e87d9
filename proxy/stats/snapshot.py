"""The data path at one moment: counters, listeners, connections, resources. Plain data.

Structs of which there are thousands have no cycles, so the garbage collector skips them (``gc=False``).
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from limiter.counting.rejections import Outcome, RejectionVerdict
from limiter.rules.rule import Dimension
from limiter.waiting.holding import BoundName
from proxy.flow.credit import Kind, State
from proxy.stats.flow import AlarmState, SpoolPlace, SpoolState, StageState
from proxy.stats.metric import Metric, Samples

RequestVerdict = Literal["pass", "refuse", "bypass", "shadow", "exempt", "drop"]
"""What became of a request, as the metrics call it."""
RuleVerdict = RejectionVerdict


class Ending(NamedTuple):
    """An outcome of a request, with its words everywhere.

    Attributes:
        verdict: in the metrics.
        outcome: in the rejection log.
        column: on the page and in the API, as ``admin.wire.Verdicts`` has it.
        reached: it went to the broker.
        always_shown: a resource has this metric even while it is 0.
    """

    verdict: RequestVerdict
    outcome: Outcome
    column: str
    reached: bool
    always_shown: bool


ENDINGS: Final = (
    Ending("pass", "admitted", "passed", reached=True, always_shown=True),
    Ending("refuse", "refused", "refused", reached=False, always_shown=True),
    # A handler was skipped.
    Ending("bypass", "bypassed", "bypassed", reached=True, always_shown=True),
    # A shadow rule would have refused it.
    Ending("shadow", "shadowed", "shadowed", reached=True, always_shown=False),
    # Its client is exempt.
    Ending("exempt", "exempt", "exempt", reached=True, always_shown=False),
    # It was held, and then its client left.
    Ending("drop", "dropped", "dropped", reached=False, always_shown=False),
)
Direction = Literal["client", "broker"]

BUCKETS_S: Final = (
    *(50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the buckets that durations are counted in, in seconds."""
Origin = Literal["configuration", "edit", "built-in"]
"""Where a limit comes from: what an operator wrote before the start, what one changed since, or Sluice itself."""

MAX_RESOURCES_SHOWN: Final = 20
"""Of one connection."""
MAX_LINKS_SHOWN: Final = 50
"""Likewise."""


class ResourceCounts(msgspec.Struct, gc=False):
    """What became of one resource's requests since the start; counts never fall.

    Attributes:
        requests: by verdict.
        messages: by verdict; a batch counts as the messages it holds.
    """

    requests: dict[RequestVerdict, int]
    messages: dict[RequestVerdict, int]


class RuleCounts(msgspec.Struct, gc=False):
    """What one rule did to requests since the start; counts never fall.

    Attributes:
        requests: by verdict.
        messages: by verdict; a batch counts as the messages it holds.
    """

    requests: dict[RuleVerdict, int]
    messages: dict[RuleVerdict, int]


class LaneDepth(msgspec.Struct, frozen=True):
    """How much waits on one handler's lanes.

    Attributes:
        queued: batches waiting, all lanes together.
        capacity: batches that could wait, all lanes together.
        late_lanes: lanes that are bypassed until a probe returns in time.
    """

    queued: int
    capacity: int
    late_lanes: int


class ListenerState(msgspec.Struct, frozen=True):
    """One listener and the broker address behind it.

    Attributes:
        name: as configured.
        listen: ``address:port`` it is bound to.
        broker: ``address:port`` it connects to.
        connections: open now.
        listening: clients can connect; not while the broker does not take connections, nor in a drain.
        error: what was wrong when the broker was last tried; None if it took the connection.
        backup: which of its backups that broker is, from 1 on; 0 is none of them.
        backups: how many it has.
        passed_over: the brokers before that one, each with what was wrong when it was last tried.
    """

    name: str
    listen: str
    broker: str
    connections: int
    listening: bool
    error: str | None = None
    backup: int = 0
    backups: int = 0
    passed_over: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True, gc=False):
    """How much of a limit was used of late: 1.0 is all that it admits in the long run; a burst can be more.

    Attributes:
        last_1s: in the last complete second.
        last_10s: in the last ten.
        last_60s: in the last sixty.
    """

    last_1s: float
    last_10s: float
    last_60s: float


class Durations(msgspec.Struct, frozen=True):
    """How long something took since the start; counts never fall.

    Attributes:
        counts: by bucket, not added up; the last one is of what is longer than all of BUCKETS_S.
        sum_s: of all of them.
    """

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)
    sum_s: float = 0.0


class LimitInForce(msgspec.Struct, frozen=True, gc=False):
    """One limit in force.

    Attributes:
        per_s: messages, requests or bytes per second; infinity is unlimited.
        origin: where it comes from.
    """

    per_s: float
    origin: Origin


class ConfirmState(msgspec.Struct, frozen=True, gc=False):
    """How what is published to one destination is confirmed at this moment, where a rule says by those who consume it.

    Attributes:
        kind: of the destination.
        name: of the destination, as it is limited.
        mode: who confirms what comes now.
        reason: why that is the broker, in one word; empty if it is not.
        pending: messages that wait for their consumers.
        oldest_ms: for how long the oldest of these does, in milliseconds.
        window: how many may.
        after_consume_total: messages that their consumers confirmed so far.
        broker_total: messages that went on as they came, so that the broker confirms them.
        persisted_total: messages that were not consumed in time, or could not be, and were published once more.
        nacked_total: likewise, and were refused.
        by: who confirms what comes now, and why that is the broker, in words.
    """

    kind: str
    name: str
    mode: Literal["after_consume", "broker"]
    reason: str
    pending: int
    oldest_ms: int
    window: int
    after_consume_total: int
    broker_total: int
    persisted_total: int
    nacked_total: int
    by: str = ""


_ALWAYS_SHOWN: Final = frozenset(ending.verdict for ending in ENDINGS if ending.always_shown)
_RESOURCE_LABELS: Final = ("kind", "resource", "verdict")


def _shown(counts: Mapping[RequestVerdict, int]) -> list[tuple[str, int]]:
    return [(verdict, count) for verdict, count in counts.items() if count or verdict in _ALWAYS_SHOWN]


def _of_rule(verdict: RuleVerdict) -> Callable[[Mapping[str, RuleCounts]], Samples]:
    return lambda rules: (((), ((rule, counts.requests[verdict]),)) for rule, counts in rules.items())


def _usage_samples(usage: Mapping[tuple[str, str, Dimension], Usage]) -> Samples:
    for (kind, name, dimension), used in usage.items():
        yield (dimension, kind, name), (("1s", used.last_1s), ("10s", used.last_10s), ("60s", used.last_60s))


def _limit_samples(limits: Mapping[tuple[str, str, Dimension], LimitInForce]) -> Samples:
    for (kind, name, dimension), limit in limits.items():
        yield (dimension, kind, limit.origin), ((name, limit.per_s),)


def _of_lanes(field: str) -> Callable[[Mapping[str, LaneDepth]], Samples]:
    return lambda lanes: (((), ((handler, getattr(depth, field)),)) for handler, depth in lanes.items())


def _of_listeners(field: str) -> Callable[[tuple[ListenerState, ...]], Samples]:
    return lambda listeners: (((), ((each.name, int(getattr(each, field))),)) for each in listeners)


def _of_confirms(value: Callable[[ConfirmState], float]) -> Callable[[tuple[ConfirmState, ...]], Samples]:
    return lambda confirms: (((each.kind,), ((each.name, value(each)),)) for each in confirms)


def _confirms_by_way(confirms: tuple[ConfirmState, ...]) -> Samples:
    for each in confirms:
        yield (
            (each.kind, each.name),
            (
                ("after_consume", each.after_consume_total),
                ("broker", each.broker_total),
                ("persisted", each.persisted_total),
                ("nacked", each.nacked_total),
            ),
        )


def _of_alarms(value: Callable[[AlarmState], float]) -> Callable[[tuple[AlarmState, ...]], Samples]:
    return lambda alarms: (((), ((alarm.scarce, value(alarm)),)) for alarm in alarms)


def _of_spool(value: Callable[[SpoolState], float]) -> Callable[[SpoolState | None], Samples]:
    return lambda spool: [] if spool is None else [((), [("", value(spool))])]


def _by_place(value: Callable[[SpoolState], Mapping[SpoolPlace, int]]) -> Callable[[SpoolState | None], Samples]:
    return lambda spool: [] if spool is None else [((), list(value(spool).items()))]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The counters. Fields are described by their metrics, in the order of ``/metrics``; here is the rest.

    Tables by resource, rule or limit have at most as many entries as the label cap.

    Attributes:
        resources: counts by (kind, resource name); what is beyond the label cap is under the name ``_other``.
        oldest_waiting: by (kind, resource name), in seconds; the oldest of those beyond the label cap is ``_other``.
        rules: what each rule did, by its name; what is beyond the label cap is under ``_other``.
        usage: by (kind, name, dimension), of limits that were used in the last minute: all with a rule of their own,
            and of the others the most used.
        limits: in force, by (kind, name or pattern, dimension); those of patterns first.
        listeners: in the order of the configuration.
        limiting: the global switch.
        off_kinds: kinds whose limiting is switched off, in alphabetical order.
        spool: None if there is none, and if the snapshot is not whole; likewise ``stages``, ``waited_seconds``,
            ``bottlenecks`` and ``confirms`` are empty.
        confirms: of destinations whose messages consumers confirm by a rule, as far as something was published there;
            what is beyond the label cap is under ``_other``.
    """

    resources: Annotated[
        Mapping[tuple[str, str], ResourceCounts],
        Metric(
            "sluice_requests_total",
            "Limitable requests by what became of them: pass, refuse, bypass (passed because a handler was skipped), "
            "shadow (passed though a shadow rule would have refused it), exempt (passed because its client is), "
            "drop (its client left while it was held). Counted when decided: when a connection breaks, the broker may "
            "not have read the last ones.",
            _RESOURCE_LABELS,
            lambda resources: ((resource, _shown(counts.requests)) for resource, counts in resources.items()),
        ),
        Metric(
            "sluice_messages_total",
            "As sluice_requests_total, in messages: a batch counts as what it holds, consumption when it is answered.",
            _RESOURCE_LABELS,
            lambda resources: ((resource, _shown(counts.messages)) for resource, counts in resources.items()),
        ),
    ] = {}
    repeated_requests: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_repeated_requests_total",
            "Requests whose message had been refused less than a minute before and came again under the same id, "
            "however they ended. RocketMQ's sends and send-backs only, from clients that keep a message's id.",
            ("kind",),
            source="tally.repeated_requests",
        ),
    ] = {}
    bypassed: Annotated[
        Mapping[tuple[str, str], int],
        Metric(
            "sluice_bypassed_total",
            "Requests that went on without a handler's verdict: its lanes were full, late, or it failed.",
            ("handler", "reason"),
        ),
    ] = {}
    # Three metrics and not one with a label: a request that was held and then refused is in two of them.
    rules: Annotated[
        Mapping[str, RuleCounts],
        Metric(
            "sluice_rule_refused_total",
            "Requests that a rule refused, including those it had held before.",
            ("rule",),
            _of_rule("refuse"),
        ),
        Metric(
            "sluice_rule_shadowed_total",
            "Requests that a shadow rule would have refused.",
            ("rule",),
            _of_rule("shadow"),
        ),
        Metric(
            "sluice_rule_held_total",
            "Requests that a rule held, whatever happened to them afterwards.",
            ("rule",),
            _of_rule("hold"),
        ),
    ] = {}
    held_requests: Annotated[
        int,
        Metric("sluice_held_requests", "Requests held now, those for credit among them.", source="tally.held_requests"),
    ] = 0
    held_bytes: Annotated[
        int,
        Metric(
            "sluice_held_bytes", "Size of the requests held now; those for credit have none.", source="tally.held_bytes"
        ),
    ] = 0
    oldest_waiting: Annotated[
        Mapping[tuple[str, str], float],
        Metric(
            "sluice_oldest_waiting_age_seconds",
            "How long the oldest message of a resource has waited, held in memory or in the spool. Absent while none "
            "waits. AMQP 1.0 senders that wait for credit do not count.",
            ("kind", "resource"),
        ),
    ] = {}
    hold_refused: Annotated[
        Mapping[BoundName, int],
        Metric(
            "sluice_hold_refused_total",
            "Requests refused instead of held, because a bound on held requests was reached.",
            ("bound",),
            source="limits.refused_by_bound",
        ),
    ] = {}
    usage: Annotated[
        Mapping[tuple[str, str, Dimension], Usage],
        Metric(
            "sluice_limit_used_ratio",
            "Share of a limit that was used in the window; 1 is the whole limit. Only for limits used in the last "
            "minute.",
            ("dimension", "kind", "resource", "window"),
            _usage_samples,
        ),
    ] = {}
    limits: Annotated[
        Mapping[tuple[str, str, Dimension], LimitInForce],
        Metric(
            "sluice_limit_per_second",
            "Each limit in force as written, by the pattern of its rule, even while limiting is off; +Inf is "
            "unlimited. The dimension messages means requests if the rule counts these. The origin is configuration, "
            "edit or built-in. Rules that are exempt or off have no value.",
            ("dimension", "kind", "origin", "resource"),
            _limit_samples,
        ),
    ] = {}
    processing: Annotated[
        Durations,
        Metric(
            "sluice_processing_seconds",
            "Time that Sluice adds to a request: from reading the end of its header (for a batch: its last byte) to "
            "queueing it for the broker, or its refusal for the client. Held requests are not included; the requests "
            "of one read are timed together.",
            source="timings.processing",
        ),
    ] = Durations()
    held: Annotated[
        Durations,
        Metric(
            "sluice_held_seconds",
            "Time that a request was held until it passed or was refused. Requests whose client left are not included.",
            source="timings.held",
        ),
    ] = Durations()
    round_trip: Annotated[
        Durations,
        Metric(
            "sluice_broker_round_trip_seconds",
            "Time from passing a request on to the broker's answer. A sample: one request of a connection at a time, "
            "and at most 100 per second; long polls are never timed.",
            source="timings.round_trip",
        ),
    ] = Durations()
    listeners: Annotated[
        tuple[ListenerState, ...],
        Metric(
            "sluice_listening",
            "1 while clients can connect; 0 while the broker accepts no connections, and during a drain.",
            ("listener",),
            _of_listeners("listening"),
        ),
        Metric("sluice_connections", "Client connections open now.", ("listener",), _of_listeners("connections")),
        Metric(
            "sluice_broker_backup",
            "0 while clients are connected to a listener's broker; 1 or more is the number of the backup that they are "
            "connected to instead.",
            ("listener",),
            _of_listeners("backup"),
        ),
    ] = ()
    connections_total: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_connections_opened_total",
            "Client connections accepted.",
            ("listener",),
            source="server.counters.accepted",
        ),
    ] = {}
    closed_total: Annotated[
        Mapping[tuple[str, str], int],
        Metric(
            "sluice_connections_closed_total",
            "Client connections that ended, by reason, including those closed as soon as they were accepted.",
            ("listener", "reason"),
            source="server.counters.closed",
        ),
    ] = {}
    lost_messages: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_lost_messages_total",
            "Messages lost when their connection ended, though their client assumes them delivered: publishes without "
            "confirms, and oneways. Data that was not read yet is only in sluice_lost_bytes_total.",
            ("listener",),
            source="server.services.lost_messages",
        ),
    ] = {}
    lost_bytes: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_lost_bytes_total",
            "Bytes of lost messages, and bytes that clients had sent and that were not read before they left.",
            ("listener",),
            source="server.services.lost_bytes",
        ),
    ] = {}
    read_ahead_bytes: Annotated[
        int,
        Metric(
            "sluice_read_ahead_bytes",
            "Bytes read ahead into memory from paused clients, so that a write to them destroys nothing. At most "
            "16 MiB for each connection, and 128 MiB in total.",
            source="server.services.ahead.taken_bytes",
        ),
    ] = 0
    frames_total: Annotated[
        Mapping[Direction, int],
        Metric(
            "sluice_frames_total",
            "Whole frames of the protocol, by the peer that sent them: client or broker.",
            ("source",),
        ),
    ] = {}
    bytes_total: Annotated[
        Mapping[Direction, int],
        Metric("sluice_bytes_total", "Bytes read, by the peer that sent them: client or broker.", ("source",)),
    ] = {}
    undecodable_total: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_undecodable_total",
            "Headers that the strict parser refused, by the parser that read them instead (none: no parser did).",
            ("parser",),
            source="wire_counters.undecodable",
        ),
    ] = {}
    routes_total: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_routes_total",
            "Answers of name servers with brokers' addresses, by what became of them: rewritten, or left: some of the"
            " addresses were left as they are, so clients may go past Sluice; or unread: passed on unchanged.",
            ("outcome",),
            source="wire_counters.routes",
        ),
    ] = {}
    lanes: Annotated[
        Mapping[str, LaneDepth],
        Metric("sluice_executor_depth", "Batches waiting on a handler's lanes.", ("handler",), _of_lanes("queued")),
        Metric(
            "sluice_executor_capacity",
            "Batches that may wait on a handler's lanes before they bypass it.",
            ("handler",),
            _of_lanes("capacity"),
        ),
        Metric(
            "sluice_executor_late_lanes",
            "Lanes of a handler that are bypassed until a probe returns in time.",
            ("handler",),
            _of_lanes("late_lanes"),
        ),
    ] = {}
    live_limiters: Annotated[int, Metric("sluice_live_limiters", "Limiters in memory now.", source="limits.live")] = 0
    evicted_total: Annotated[
        int,
        Metric("sluice_limiters_evicted_total", "Idle limiters given up for new names.", source="limits.evicted_total"),
    ] = 0
    overflowed_total: Annotated[
        int,
        Metric(
            "sluice_limiters_overflowed_total",
            "Decisions made by a rule's shared limiter because there was no room for one more.",
            source="limits.overflowed_total",
        ),
    ] = 0
    rule_set_version: Annotated[
        int, Metric("sluice_rule_set_version", "Version of the rule set in force.", source="limits.rule_set.version")
    ] = 0
    limiting: Annotated[
        bool,
        Metric(
            "sluice_limiting", "1 while limiting is on, 0 while everything passes.", source="limits.rule_set.enabled"
        ),
    ] = True
    off_kinds: Annotated[
        tuple[str, ...],
        Metric(
            "sluice_limiting_kind",
            "0 for each kind whose limiting alone is switched off; a kind that is limited is not here.",
            ("kind",),
            lambda kinds: (((), ((kind, 0),)) for kind in kinds),
        ),
    ] = ()
    alarms: Annotated[
        tuple[AlarmState, ...],
        Metric(
            "sluice_alarm",
            "1 while publishers are stopped, since memory or the spool's disk runs short; there is a disk alarm only "
            "with a spool.",
            ("scarce",),
            _of_alarms(lambda alarm: int(alarm.stands)),
        ),
        Metric(
            "sluice_alarms_total", "How often an alarm has stood.", ("scarce",), _of_alarms(lambda alarm: alarm.total)
        ),
        Metric(
            "sluice_alarm_seconds_total",
            "For how long an alarm has stood, in seconds.",
            ("scarce",),
            _of_alarms(lambda alarm: alarm.stood_s),
        ),
    ] = ()
    busy_ratio: Annotated[
        float,
        Metric(
            "sluice_loop_busy_ratio",
            "Share of the last second in which the event loop ran, or was to run and had no processor. Near 1 it has "
            "no time to spare.",
        ),
    ] = 0.0
    stages: Annotated[
        Mapping[tuple[Kind, State], int],
        Metric(
            "sluice_stages",
            "Stages that messages go through, by how they show: running, flow (it was stopped of late since a later "
            "stage takes no more), throttled (a limit makes its messages wait), blocked (an alarm stops it). Channels "
            "and resources are there while something of them waits.",
            ("kind", "state"),
        ),
    ] = {}
    waited_seconds: Annotated[
        Mapping[State, float],
        Metric(
            "sluice_connection_state_seconds_total",
            "For how long connections were stopped by a later stage (flow), had messages wait for a limit (throttled), "
            "or were stopped by an alarm (blocked), all together, in seconds.",
            ("state",),
        ),
    ] = {}
    bottlenecks: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_bottleneck_connections",
            "Waiting connections, by the cause that `sluice flow` names. A connection that waits for the next stage "
            "counts once it has waited for a fifth of about the last minute.",
            ("cause",),
        ),
    ] = {}
    spool: Annotated[
        SpoolState | None,
        Metric("sluice_spool_queues", "Queues of the spool.", (), _of_spool(lambda spool: spool.queues)),
        Metric(
            "sluice_spool_messages",
            "Messages in the spool by where they are: alpha (in memory), beta (content on disk), gamma (index on disk, "
            "too), delta (on disk only).",
            ("place",),
            _by_place(lambda spool: spool.messages),
        ),
        Metric(
            "sluice_spool_content_bytes",
            "Size of the messages in the spool, by where they are.",
            ("place",),
            _by_place(lambda spool: spool.content_bytes),
        ),
        Metric(
            "sluice_spool_memory_bytes",
            "What the spool has in memory.",
            (),
            _of_spool(lambda spool: spool.memory_bytes),
        ),
        Metric(
            "sluice_spool_memory_limit_bytes",
            "What the spool may have in memory.",
            (),
            _of_spool(lambda spool: spool.memory_limit_bytes),
        ),
        Metric("sluice_spool_disk_bytes", "Size of the spool's files.", (), _of_spool(lambda spool: spool.disk_bytes)),
        Metric(
            "sluice_spool_disk_limit_bytes",
            "What the spool's files may take.",
            (),
            _of_spool(lambda spool: spool.disk_limit_bytes),
        ),
        Metric(
            "sluice_spool_stopped",
            "1 while nothing more is read that would be put in the spool: its memory is full, or its disk is slow.",
            (),
            _of_spool(lambda spool: int(spool.stopped)),
        ),
        Metric(
            "sluice_spool_stops_total",
            "How often nothing more was read that would have been put in the spool.",
            (),
            _of_spool(lambda spool: spool.stops_total),
        ),
        Metric("sluice_spool_in_total", "Messages put in the spool.", (), _of_spool(lambda spool: spool.in_total)),
        Metric(
            "sluice_spool_out_total",
            "Messages taken out of the spool, to be sent on or refused.",
            (),
            _of_spool(lambda spool: spool.out_total),
        ),
        Metric(
            "sluice_spool_written_total",
            "Messages of the spool written to disk.",
            (),
            _of_spool(lambda spool: spool.written_total),
        ),
        Metric(
            "sluice_spool_read_total",
            "Messages of the spool read from disk.",
            (),
            _of_spool(lambda spool: spool.read_total),
        ),
        Metric(
            "sluice_spool_lost_total",
            "Messages that were damaged or missing on the spool's disk.",
            (),
            _of_spool(lambda spool: spool.lost_total),
        ),
        Metric(
            "sluice_spool_dropped_total",
            "Messages dropped from the spool: purged, or of a connection that ended, or left by an earlier process and "
            "sent by nobody.",
            (),
            _of_spool(lambda spool: spool.dropped_total),
        ),
        Metric(
            "sluice_spool_recovered_total",
            "Messages that an earlier process left in the spool; they are not in sluice_spool_in_total. Without "
            "recover they are dropped.",
            (),
            _of_spool(lambda spool: spool.recovered_total),
        ),
        Metric(
            "sluice_spool_expired_total",
            "Messages that were not sent on, since their own time to live was over.",
            (),
            _of_spool(lambda spool: spool.expired_total),
        ),
        Metric(
            "sluice_spool_too_old_total",
            "Messages that were older than the spool keeps them: refused, or sent on at once.",
            (),
            _of_spool(lambda spool: spool.too_old_total),
        ),
    ] = None
    confirms: Annotated[
        tuple[ConfirmState, ...],
        Metric(
            "sluice_confirms_total",
            "Messages published with confirms where a rule says after_consume, by what confirms them: after_consume "
            "(their consumers), broker (they went on as they came), persisted (their consumers did not, so they were "
            "published again for the broker to confirm), nacked (likewise, and they were refused).",
            ("kind", "resource", "way"),
            _confirms_by_way,
        ),
        Metric(
            "sluice_confirms_pending",
            "Messages that wait for their consumers to confirm them.",
            ("kind", "resource"),
            _of_confirms(lambda each: each.pending),
        ),
        Metric(
            "sluice_confirms_after_consume",
            "1 while consumers confirm what is published there; 0 while the broker does, though a rule says "
            "after_consume, as there is no consumer that acknowledges, say, or they do not keep up.",
            ("kind", "resource"),
            _of_confirms(lambda each: int(each.mode == "after_consume")),
        ),
    ] = ()
    draining: Annotated[
        bool, Metric("sluice_draining", "1 while no new connections are accepted.", source="server.draining")
    ] = False


class ClientDescription(msgspec.Struct, frozen=True):
    """What a client told about itself; empty where unknown.

    Attributes:
        id: the client's id, as it names itself to the broker.
        language: what it is written in, as the protocol spells it.
        version: of the client or its protocol, as the protocol writes it.
        product: the name of the client's library or program.
        user: that it has logged in as.
    """

    id: str = ""
    language: str = ""
    version: str = ""
    product: str = ""
    user: str = ""


class LinkState(msgspec.Struct, frozen=True):
    """One link of a connection: messages one way, as many as their receiver's credit allows.

    Attributes:
        name: as its peers call it.
        session: the client's channel.
        sends: the client sends on it; else it receives.
        resource: what it is limited as, as ``kind:name``; empty if each message says that, or it is not limited at all.
        credit: messages that may come now.
        withheld: messages that the receiver would take beyond that.
        used: messages that came so far and went on.
        refused: those that came and were refused.
        waits_ms: for how long it waits for credit, in milliseconds; 0 is not at all.
        address: of the broker's node, as its peers write it; empty if each message has its own, or there is none.
    """

    name: str
    session: int
    sends: bool
    resource: str
    credit: int
    withheld: int
    used: int
    refused: int
    waits_ms: int
    address: str = ""


class ConnectionState(msgspec.Struct, frozen=True):
    """One open connection, as an operator sees it.

    Attributes:
        id: names it in ``DataPath.close_connection``; no other connection of this run ever has it.
        listener: the listener that accepted it.
        peer: the client's ``address:port``.
        client: what the client said of itself.
        exempt: nothing limits it.
        opened_ns: monotonic time of its start.
        bytes_total: bytes read, by the peer they came from.
        requests_total: frames of the client.
        refused_total: requests that were refused, held ones among them once they are.
        in_flight: forwarded requests without an answer.
        resources: what it sent to or asked for, as ``kind:name``, at most MAX_RESOURCES_SHOWN.
        more_resources: how many others there were, as far as the session remembers.
        stage: how it shows as a stage: running, in flow, throttled or blocked, how often and how long.
        channels: its writer, its channels and its resources with a queue, as far as they are not running; at most
            MAX_STAGES_SHOWN.
        spooled: messages of it that are in the spool.
        links: the links that are attached, at most MAX_LINKS_SHOWN, those that wait first.
        more_links: how many others there are.
        tls: the version of TLS that ends here, such as ``TLSv1.3``; empty without.
        certificate: the name in the certificate that the client has shown; empty without one.
        broker: the one of several that it is connected to, as ``address:port``; empty if its listener has only one.
    """

    id: int
    listener: str
    peer: str
    client: ClientDescription
    exempt: bool
    opened_ns: int
    bytes_total: Mapping[Direction, int]
    requests_total: int
    refused_total: int
    in_flight: int
    resources: tuple[str, ...] = ()
    more_resources: int = 0
    stage: StageState = StageState("connection", "")
    channels: tuple[StageState, ...] = ()
    spooled: int = 0
    links: tuple[LinkState, ...] = ()
    more_links: int = 0
    tls: str = ""
    certificate: str = ""
    broker: str = ""


class ResourceState(msgspec.Struct, frozen=True, gc=False):
    """One resource or scope that was asked for, as it is now.

    Attributes:
        kind: its kind; ``total`` for what a shared rule limits.
        name: its name; what is beyond the label cap is under ``_other``.
        counts: what became of its requests; None of scopes and totals, whose requests are counted for the resource.
        usage: how much of its limits was used of late, by dimension; a dimension that was not asked for in the last
            minute is left out.
        stored_permits: of its limit of messages; negative is a debt. None while nothing limits it, and while it is
            as if no request had come.
        open: whether its breaker refuses everything at this moment; never of a shadow rule.
        wait_us: what a request would have to wait at this moment, in microseconds; 0 is nothing, as of a shadow rule.
        last_refused_ns: monotonic time at which a request was last refused, by whichever rule; None if none was.
        last_wait_us: the wait that was stated then, in microseconds.
        last_refused_rule: the name of the rule that refused it.
        last_held_ns: monotonic time at which something was last held; None if nothing was.
        last_shadowed_ns: monotonic time at which its own rule, a shadow rule, would last have refused a request; None
            if it never would have.
        rule: of scopes and totals the name of their rule, if they have it for themselves; otherwise empty.
        rule_counts: what that rule did; None while it did nothing, and if its counts are not told apart.
        state: how its queues show as stages; of several the most far-reaching.
        spooled: messages of it that are in the spool.
        waits_since_ns: monotonic time since which the oldest message of it waits, held or in the spool; None if none
            does.
    """

    kind: str
    name: str
    counts: ResourceCounts | None
    usage: Mapping[Dimension, Usage]
    stored_permits: float | None
    open: bool
    wait_us: int
    last_refused_ns: int | None
    last_wait_us: int
    last_refused_rule: str = ""
    last_held_ns: int | None = None
    last_shadowed_ns: int | None = None
    rule: str = ""
    rule_counts: RuleCounts | None = None
    state: State = "running"
    spooled: int = 0
    waits_since_ns: int | None = None


class BrokerReach(msgspec.Struct, frozen=True):
    """Whether a listener's broker accepts connections.

    Attributes:
        listener: the listener's name.
        broker: ``address:port`` that was tried.
        error: None when it accepted, otherwise what happened.
    """

    listener: str
    broker: str
    error: str | None
