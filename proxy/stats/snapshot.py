"""The data path at one moment. Plain data.

Structs that can exist in thousands have no cycles, so the garbage collector skips them (``gc=False``).
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from limiter.counting.accounts import Usage
from limiter.counting.rejections import Outcome, RejectionVerdict
from limiter.rules.rule import Dimension
from limiter.waiting.holding import BoundName
from proxy.common.metric import Metric, Samples
from proxy.flow.alarms import Scarce
from proxy.flow.credit import Kind, StageState, State
from proxy.spool.figures import SpoolState

RequestVerdict = Literal["pass", "refuse", "bypass", "shadow", "exempt", "drop"]
RuleVerdict = RejectionVerdict


class Ending(NamedTuple):
    """An outcome of a request, with its names."""

    verdict: RequestVerdict  # in the metrics
    outcome: Outcome  # in the rejection log
    column: str  # in ``Verdicts``
    reached: bool  # it was sent to the broker
    always_shown: bool  # a resource has this metric even at 0


ENDINGS: Final = (
    Ending("pass", "admitted", "passed", reached=True, always_shown=True),
    Ending("refuse", "refused", "refused", reached=False, always_shown=True),
    Ending("shadow", "shadowed", "shadowed", reached=True, always_shown=False),
    Ending("bypass", "bypassed", "bypassed", reached=True, always_shown=True),
    Ending("exempt", "exempt", "exempt", reached=True, always_shown=False),
    Ending("drop", "dropped", "dropped", reached=False, always_shown=False),
)


class Verdicts(msgspec.Struct, frozen=True):
    """Outcomes of requests: counts, or rates per second.

    Attributes:
        passed: passed the limits, including those that a shadow rule would have refused.
        refused: refused over a limit.
        shadowed: passed although a shadow rule would have refused them.
        bypassed: passed because a handler was skipped.
        exempt: passed because the client is exempt.
        dropped: held until the client left.
    """

    passed: float = 0
    refused: float = 0
    shadowed: float = 0
    bypassed: float = 0
    exempt: float = 0
    dropped: float = 0


Direction = Literal["client", "broker"]

BUCKETS_S: Final = (
    *(50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3),
    *(1.0, 2.5, 5.0, 10.0),
)
Origin = Literal["configuration", "edit", "built-in"]

MAX_RESOURCES_SHOWN: Final = 20
"""Per connection."""
MAX_LINKS_SHOWN: Final = 50
"""Per connection."""
MAX_ADAPTIVE_NAMES: Final = 100
"""Per adaptive limit."""
MAX_FLEET_LIMITS: Final = 100
"""Per process."""


class ResourceCounts(msgspec.Struct, gc=False):
    """Counts since the start."""

    requests: dict[RequestVerdict, int]
    messages: dict[RequestVerdict, int]


class RuleCounts(msgspec.Struct, gc=False):
    """Counts since the start."""

    requests: dict[RuleVerdict, int]
    messages: dict[RuleVerdict, int]


class LaneState(msgspec.Struct, frozen=True):
    """The queues of one handler's lanes.

    Attributes:
        handler: name of the handler.
    """

    handler: str
    queued: Annotated[int, Metric("sluice_executor_depth", "Batches waiting on a handler's lanes.", ("handler",))]
    capacity: Annotated[
        int,
        Metric(
            "sluice_executor_capacity",
            "Maximum number of batches waiting on a handler's lanes. Further ones bypass the handler.",
            ("handler",),
        ),
    ]
    late_lanes: Annotated[
        int,
        Metric(
            "sluice_executor_late_lanes",
            "Lanes of a handler that are bypassed until a probe returns in time.",
            ("handler",),
        ),
    ]


class ListenerState(msgspec.Struct, frozen=True):
    """One listener, and the health of its broker.

    Attributes:
        name: configured name.
        listen: ``address:port`` it is bound to.
        broker: ``address:port`` it connects to.
        listening: whether clients can connect. False while the broker is unreachable, and during a drain.
        reachable: whether the broker accepted the last connection attempt.
        error: why it did not.
        backup: number of the backup in use, from 1. 0: the broker itself.
        backups: number of configured backups.
        passed_over: brokers before the current one, each with the reason why it is not used.
    """

    name: str
    listen: str
    broker: str
    connections: Annotated[int, Metric("sluice_connections", "Open client connections.", ("listener",))]
    listening: Annotated[
        bool,
        Metric(
            "sluice_listening",
            "1 while clients can connect. 0 while the broker is unreachable, and during a drain.",
            ("listener",),
        ),
    ] = True
    reachable: bool = True
    error: str | None = None
    backup: Annotated[
        int,
        Metric(
            "sluice_broker_backup",
            "Backup that the listener's clients are connected to, from 1. 0: they are connected to its broker.",
            ("listener",),
        ),
    ] = 0
    backups: int = 0
    passed_over: tuple[str, ...] = ()


class AlarmState(msgspec.Struct, frozen=True):
    """One alarm. While it is raised, publishers are stopped.

    Attributes:
        scarce: the scarce resource.
        stands: whether it is raised. A failing disk of the spool also raises the disk alarm, but this only stops
            clients whose messages are spooled.
        since: when it was raised. None while it is not.
        total: number of times it was raised since the start.
        stood_s: total time raised, in seconds.
        text: while raised, the problem and when the alarm ends.
        bytes_now: memory that Sluice uses, or free disk space. None if unknown.
        bytes_limit: it is raised above this amount of memory, or below this amount of disk space. None if unknown.
        status: state and figures in words.
    """

    scarce: Scarce
    stands: Annotated[
        bool,
        Metric(
            "sluice_alarm",
            "1 while publishers are stopped because memory or the spool's disk is short. The disk alarm needs a spool.",
            ("scarce",),
        ),
    ] = False
    since: str | None = None
    total: Annotated[int, Metric("sluice_alarms_total", "How often an alarm was raised.", ("scarce",))] = 0
    stood_s: Annotated[
        float, Metric("sluice_alarm_seconds_total", "Total time that an alarm was raised, in seconds.", ("scarce",))
    ] = 0.0
    text: str = ""
    bytes_now: int | None = None
    bytes_limit: int | None = None
    status: str = ""


class Held(msgspec.Struct, frozen=True):
    """Requests currently held."""

    requests: Annotated[
        int,
        Metric(
            "sluice_held_requests",
            "Requests held now, including those that wait for credit.",
            source="tally.held_requests",
        ),
    ] = 0
    bytes: Annotated[
        int,
        Metric(
            "sluice_held_bytes",
            "Size of the requests held now, in bytes. Those that wait for credit count as 0.",
            source="tally.held_bytes",
        ),
    ] = 0
    refused: Annotated[
        Mapping[BoundName, int],
        Metric(
            "sluice_hold_refused_total",
            "Requests refused instead of held, because a bound on held requests was reached.",
            ("bound",),
            source="limits.refused_by_bound",
        ),
    ] = {}


class Limiters(msgspec.Struct, frozen=True):
    """Limiters in memory."""

    live: Annotated[int, Metric("sluice_live_limiters", "Limiters in memory.", source="limits.live")] = 0
    evicted_total: Annotated[
        int,
        Metric("sluice_limiters_evicted_total", "Idle limiters evicted for new names.", source="limits.evicted_total"),
    ] = 0
    overflowed_total: Annotated[
        int,
        Metric(
            "sluice_limiters_overflowed_total",
            "Decisions made by a rule's shared limiter because there was no room for another limiter.",
            source="limits.overflowed_total",
        ),
    ] = 0


class Durations(msgspec.Struct, frozen=True):
    """Counts since the start."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)  # not cumulative
    sum_s: float = 0.0


class LimitInForce(msgspec.Struct, frozen=True, gc=False):
    per_s: float  # messages, requests or bytes. Infinity: unlimited
    origin: Origin


class ConfirmState(msgspec.Struct, frozen=True, gc=False):
    """How messages to one destination are confirmed, where a rule lets consumers confirm them.

    Attributes:
        kind: kind of the destination.
        name: name of the destination, as used for limits.
        mode: the side that confirms messages arriving now.
        reason: why that is the broker, in one word. Empty if it is not.
        oldest_ms: age of the oldest waiting message, in milliseconds.
        window: maximum number of waiting messages.
        after_consume_total: messages confirmed by their consumers.
        broker_total: messages forwarded unchanged for the broker to confirm.
        persisted_total: messages published again because they were not, or could not be, consumed in time.
        nacked_total: messages refused because they were not, or could not be, consumed in time.
        by: ``mode`` and ``reason`` in words.
    """

    kind: str
    name: str
    mode: Annotated[
        Literal["after_consume", "broker"],
        Metric(
            "sluice_confirms_after_consume",
            "1 while consumers confirm messages published to a destination. 0 while the broker does despite a rule "
            "with after_consume, for example because no consumer acknowledges, or consumers do not keep up.",
            ("kind", "resource"),
            value=lambda mode: mode == "after_consume",
        ),
    ]
    reason: str
    pending: Annotated[
        int,
        Metric(
            "sluice_confirms_pending",
            "Messages waiting for their consumers to confirm them.",
            ("kind", "resource"),
        ),
    ]
    oldest_ms: int
    window: int
    after_consume_total: int
    broker_total: int
    persisted_total: int
    nacked_total: int
    by: str = ""


class AdaptivePoint(msgspec.Struct, frozen=True, gc=False):
    """One second of an adaptive limit.

    Attributes:
        unix_ms: end of the second, in milliseconds since 1970.
        limit_per_s: messages per second. None: there was no limit, because the broker was not short.
        latency_s: the broker's p90 from a message to its answer, in seconds. None: unknown.
        passed_per_s: messages that passed the limit.
        refused_per_s: messages over the limit. With the action ``shadow`` they passed, too.
    """

    unix_ms: int
    limit_per_s: float | None
    latency_s: float | None
    passed_per_s: float
    refused_per_s: float


class AdaptiveName(msgspec.Struct, frozen=True, gc=False):
    """One of the names that share an adaptive limit.

    Attributes:
        name: such as ``topic:orders``.
        asks_per_s: messages per second sent by clients.
        passes_per_s: messages per second that pass.
        may_per_s: its share of the limit. None: no limit applies now.
        weight: its weight. It gets this many times the share of a name with weight 1.
    """

    name: str
    asks_per_s: float
    passes_per_s: float
    may_per_s: float | None
    weight: int


class AdaptiveState(msgspec.Struct, frozen=True):
    """The adaptive limit of one listener.

    Attributes:
        listener: the listener's name, as rules match it.
        limit_per_s: messages per second that may pass now. None: no limit, because the broker is not short.
        floor_per_s: lower bound of the limit.
        ceiling_per_s: upper bound of the limit. None: unbounded.
        action: the rule's action.
        latency_s: the broker's recent p90 from a message to its answer, in seconds. None: unknown.
        usual_latency_s: usual value of ``latency_s``.
        reason: why the limit last changed. Empty if it never did.
        names: at most MAX_ADAPTIVE_NAMES, those with the highest demand first.
        history: the last ten minutes, oldest first.
    """

    listener: str
    limit_per_s: float | None
    floor_per_s: float
    ceiling_per_s: float | None
    action: str
    latency_s: float | None
    usual_latency_s: float | None
    reason: str
    names: tuple[AdaptiveName, ...] = ()
    history: tuple[AdaptivePoint, ...] = ()


class FleetMember(msgspec.Struct, frozen=True, gc=False):
    """One process of a fleet.

    Attributes:
        member: the process's name.
        seen_s_ago: seconds since its last call, by the clock of Redis.
        is_this: whether it is the process that answers.
    """

    member: str
    seen_s_ago: float
    is_this: bool


class FleetLimit(msgspec.Struct, frozen=True, gc=False):
    """A limit shared by a fleet, as this member applies it.

    Attributes:
        kind: kind of the resource or scope, or ``total``.
        name: name of the resource or scope.
        dimension: messages or bytes.
        rate_per_s: rate of all members together.
        share: this member's share of the demand, from 0 to 1. 0 if it does not use the limit.
        permits: permits fetched and not yet spent. Negative: a debt. 0 while this member decides alone.
        asks_per_s: permits per second requested by this member's clients.
    """

    kind: str
    name: str
    dimension: str
    rate_per_s: float
    share: float
    permits: float
    asks_per_s: float


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet of this process, as this process knows it.

    Attributes:
        name: the fleet's name.
        member: name of this process.
        url: URL of Redis, without secrets.
        when_away: behaviour without Redis: ``last``, ``equal``, ``unlimited`` or ``refuse``.
        size: members when Redis last answered, including this one.
        members: the members, as last read.
        last_contact_s_ago: seconds since the last answer of Redis. None if there was none yet.
        away_s: seconds that this member has decided without Redis. None: Redis answers.
        error: why Redis does not answer, with the remedy. Empty: it answers.
        round_trips: round trips to Redis since the start, including failed ones.
        failures: round trips without an answer since the start.
        disagreements: limits about which members have disagreed for 3 s, with their figures, as sentences.
        limits: the limits with ``fleet = true``, unused ones last. At most MAX_FLEET_LIMITS, with the highest demand.
    """

    name: str
    member: str
    url: str
    when_away: str
    size: Annotated[
        int, Metric("sluice_fleet_members", "Members of the fleet when Redis last answered, including this one.")
    ]
    members: tuple[FleetMember, ...] = ()
    last_contact_s_ago: float | None = None
    away_s: Annotated[
        float | None,
        Metric(
            "sluice_fleet_away",
            "1 while Redis does not answer, so that this member applies the fleet's limits alone.",
            value=lambda away_s: away_s is not None,
        ),
    ] = None
    error: str = ""
    round_trips: Annotated[
        int, Metric("sluice_fleet_round_trips_total", "Round trips to Redis for the fleet, including failed ones.")
    ] = 0
    failures: Annotated[
        int,
        Metric(
            "sluice_fleet_failures_total", "Round trips for the fleet that Redis refused or did not answer in time."
        ),
    ] = 0
    disagreements: tuple[str, ...] = ()
    limits: tuple[FleetLimit, ...] = ()


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


def _adaptive(field: str) -> Callable[[tuple[AdaptiveState, ...]], Samples]:
    return lambda states: (
        ((), ((state.listener, value),)) for state in states if (value := getattr(state, field)) is not None
    )


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The counters, in the order of ``/metrics``.

    Tables by resource, rule or limit have at most as many entries as the label cap. Further names are counted under
    ``_other``.

    Attributes:
        usage: usage of limits in the last minute, by (kind, name, dimension): all with a rule of their own, and the
            most used of the others.
        limits: active limits by (kind, name or pattern, dimension), patterns first.
        spool: None without a spool, and in a partial snapshot.
    """

    resources: Annotated[
        Mapping[tuple[str, str], ResourceCounts],
        Metric(
            "sluice_requests_total",
            "Limitable requests by verdict: pass, refuse, bypass (passed because a handler was skipped), "
            "shadow (passed although a shadow rule would have refused it), exempt (passed because its client is "
            "exempt), drop (its client left while it was held). Counted at the verdict: if a connection breaks, the "
            "broker may not have read the last ones.",
            _RESOURCE_LABELS,
            lambda resources: ((resource, _shown(counts.requests)) for resource, counts in resources.items()),
        ),
        Metric(
            "sluice_messages_total",
            "As sluice_requests_total, in messages. A batch counts as the messages it holds. Consumed messages are "
            "counted when the broker answers.",
            _RESOURCE_LABELS,
            lambda resources: ((resource, _shown(counts.messages)) for resource, counts in resources.items()),
        ),
    ] = {}
    repeated_requests: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_repeated_requests_total",
            "Requests that repeat a message refused less than a minute before, with any verdict. Only RocketMQ's sends "
            "and send-backs, from clients that keep a message's id.",
            ("kind",),
            source="tally.repeated_requests",
        ),
    ] = {}
    bypassed: Annotated[
        Mapping[tuple[str, str], int],
        Metric(
            "sluice_bypassed_total",
            "Requests forwarded without a handler's verdict, because its lanes were full or late, or it failed.",
            ("handler", "reason"),
        ),
    ] = {}
    # Three metrics instead of a label, because a request that was held and then refused is in two of them.
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
    held: Held = Held()
    oldest_waiting: Annotated[
        Mapping[tuple[str, str], float],
        Metric(
            "sluice_oldest_waiting_age_seconds",
            "How long a resource's oldest message has waited, held in memory or in the spool. Absent while no message "
            "waits. AMQP 1.0 senders that wait for credit do not count.",
            ("kind", "resource"),
        ),
    ] = {}
    usage: Annotated[
        Mapping[tuple[str, str, Dimension], Usage],
        Metric(
            "sluice_limit_used_ratio",
            "Fraction of a limit used in the window. 1 is all of it. Only for limits used in the last minute.",
            ("dimension", "kind", "resource", "window"),
            _usage_samples,
        ),
    ] = {}
    limits: Annotated[
        Mapping[tuple[str, str, Dimension], LimitInForce],
        Metric(
            "sluice_limit_per_second",
            "Active limits, by the pattern of their rules, even while limiting is off. +Inf is unlimited. The "
            "dimension messages means requests if the rule counts requests. The origin is configuration, edit or "
            "built-in. Rules that are exempt or off have no value.",
            ("dimension", "kind", "origin", "resource"),
            _limit_samples,
        ),
    ] = {}
    adaptive: Annotated[
        tuple[AdaptiveState, ...],
        Metric(
            "sluice_adaptive_limit",
            "Current adaptive limit of a listener, in messages per second. Absent while the broker needs no limit.",
            ("listener",),
            _adaptive("limit_per_s"),
        ),
        Metric(
            "sluice_adaptive_latency_seconds",
            "p90 of the time from a message to its broker's answer or confirm in the last seconds, for listeners with "
            "an adaptive limit. Absent while unknown.",
            ("listener",),
            _adaptive("latency_s"),
        ),
        Metric(
            "sluice_adaptive_usual_latency_seconds",
            "Usual value of sluice_adaptive_latency_seconds. The limit compares both.",
            ("listener",),
            _adaptive("usual_latency_s"),
        ),
    ] = ()
    adaptive_faults: Annotated[
        int,
        Metric(
            "sluice_adaptive_faults_total",
            "Faults in the control of adaptive limits. After a fault the listener has no adaptive limit for a while.",
            source="adapting.faults",
        ),
    ] = 0
    fleet: FleetState | None = None
    processing: Annotated[
        Durations,
        Metric(
            "sluice_processing_seconds",
            "Time that Sluice adds to a request: from reading the end of its header (for a batch: its last byte) to "
            "queueing it for the broker, or its refusal for the client. Held requests are not included. The requests "
            "of one read are timed together.",
            source="timings.processing",
        ),
    ] = Durations()
    held_for: Annotated[
        Durations,
        Metric(
            "sluice_held_seconds",
            "How long requests were held until they passed or were refused, without those whose client left.",
            source="timings.held",
        ),
    ] = Durations()
    round_trip: Annotated[
        Durations,
        Metric(
            "sluice_broker_round_trip_seconds",
            "Time from forwarding a request to the broker's answer. A sample: one request per connection at a time, at "
            "most 100 per second, and no long polls.",
            source="timings.round_trip",
        ),
    ] = Durations()
    listeners: tuple[ListenerState, ...] = ()
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
            "Client connections that ended, by reason, including those closed immediately after they were accepted.",
            ("listener", "reason"),
            source="server.counters.closed",
        ),
    ] = {}
    lost_messages: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_lost_messages_total",
            "Messages lost when their connection ended although their client assumes them delivered: publishes without "
            "confirms, and oneways. Unread data is counted only in sluice_lost_bytes_total.",
            ("listener",),
            source="server.services.lost_messages",
        ),
    ] = {}
    lost_bytes: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_lost_bytes_total",
            "Bytes of lost messages, and bytes that were not read before their client left.",
            ("listener",),
            source="server.services.lost_bytes",
        ),
    ] = {}
    read_ahead_bytes: Annotated[
        int,
        Metric(
            "sluice_read_ahead_bytes",
            "Bytes read ahead into memory from paused clients, so that a write to a closed connection does not discard "
            "them. At most 16 MiB per connection and 128 MiB in total.",
            source="server.services.ahead.taken_bytes",
        ),
    ] = 0
    frames_total: Annotated[
        Mapping[Direction, int],
        Metric(
            "sluice_frames_total",
            "Frames of the protocol, by sending peer: client or broker.",
            ("source",),
        ),
    ] = {}
    bytes_total: Annotated[
        Mapping[Direction, int],
        Metric("sluice_bytes_total", "Bytes read, by sending peer: client or broker.", ("source",)),
    ] = {}
    undecodable_total: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_undecodable_total",
            "Headers rejected by the strict parser, by the parser that could read them (none: no parser could).",
            ("parser",),
            source="wire_counters.undecodable",
        ),
    ] = {}
    routes_total: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_routes_total",
            "Answers of name servers and RocketMQ's Proxy with broker addresses, by outcome: rewritten, left (some "
            "addresses were not replaced, so clients may bypass Sluice), or unread (forwarded unchanged).",
            ("outcome",),
            source="wire_counters.routes",
        ),
    ] = {}
    lanes: tuple[LaneState, ...] = ()
    limiters: Limiters = Limiters()
    rule_set_version: Annotated[
        int, Metric("sluice_rule_set_version", "Version of the active rule set.", source="limits.rule_set.version")
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
            "0 for each kind whose limiting is switched off. Absent for other kinds.",
            ("kind",),
            lambda kinds: (((), ((kind, 0),)) for kind in kinds),
        ),
    ] = ()
    alarms: tuple[AlarmState, ...] = ()
    busy_ratio: Annotated[
        float,
        Metric(
            "sluice_loop_busy_ratio",
            "Fraction of the last second in which the event loop ran or waited for a CPU. Near 1 it has no capacity "
            "left.",
        ),
    ] = 0.0
    stages: Annotated[
        Mapping[tuple[Kind, State], int],
        Metric(
            "sluice_stages",
            "Stages that messages pass through, by state: running, flow (stopped recently because a later stage takes "
            "no more), throttled (a limit makes its messages wait), blocked (stopped by an alarm). Channels and "
            "resources are counted only while messages wait there.",
            ("kind", "state"),
        ),
    ] = {}
    waited_seconds: Annotated[
        Mapping[State, float],
        Metric(
            "sluice_connection_state_seconds_total",
            "Total time, in seconds, that connections were stopped by a later stage (flow), had messages waiting for a "
            "limit (throttled), or were stopped by an alarm (blocked).",
            ("state",),
        ),
    ] = {}
    bottlenecks: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_bottleneck_connections",
            "Waiting connections, by the cause that `sluice flow` names. A connection that waits for the next stage "
            "counts once it has waited for a fifth of roughly the last minute.",
            ("cause",),
        ),
    ] = {}
    spool: SpoolState | None = None
    confirms: Annotated[
        tuple[ConfirmState, ...],
        Metric(
            "sluice_confirms_total",
            "Messages published with confirms under a rule with after_consume, by outcome: after_consume (confirmed by "
            "their consumers), broker (forwarded unchanged for the broker to confirm), persisted (not consumed in time "
            "and published again for the broker to confirm), nacked (not consumed in time and refused).",
            ("kind", "resource", "way"),
            _confirms_by_way,
        ),
    ] = ()
    draining: Annotated[
        bool, Metric("sluice_draining", "1 while no new connections are accepted.", source="server.draining")
    ] = False


class ClientDescription(msgspec.Struct, frozen=True):
    """Properties that a client reported about itself. Empty if unknown.

    Attributes:
        id: client id, as sent to the broker.
        language: programming language, in the protocol's spelling.
        version: version of the client or its protocol.
        product: name of its library or program.
        user: login.
    """

    id: str = ""
    language: str = ""
    version: str = ""
    product: str = ""
    user: str = ""


class LinkState(msgspec.Struct, frozen=True):
    """One link of a connection: messages in one direction, limited by the receiver's credit.

    Attributes:
        name: the link's name.
        session: the client's channel.
        sends: whether the client sends on it. Otherwise it receives.
        resource: the limited resource, as ``kind:name``. Empty if messages have their own, or there is none.
        credit: messages that may be sent now.
        withheld: further messages that the receiver would accept.
        used: messages received and forwarded.
        refused: messages refused.
        waits_ms: time waited for credit, in milliseconds. 0: it does not wait.
        address: the broker's node. Empty if messages have their own, or there is none.
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


class ConnectionState(msgspec.Struct, frozen=True, kw_only=True):
    """One open connection. Rates are missing until there are two samples.

    Attributes:
        id: id of the connection, for closing it. Never reused during a run.
        listener: its listener.
        peer: the client's ``address:port``.
        client: properties reported by the client.
        exempt: whether it is never limited.
        opened_at: when it was opened.
        age_s: seconds since then.
        bytes_total: bytes read, by sending peer.
        bytes_per_s: bytes read per second, by sending peer.
        requests_total: frames of the client. An AMQP 0.9.1 publish has three, a RocketMQ request one.
        requests_per_s: frames of the client per second.
        refused_total: requests refused.
        refused_per_s: refused requests per second.
        in_flight: forwarded requests without an answer yet.
        resources: resources it sent to or received from, as ``kind:name``.
        more_resources: number of further resources.
        stage: its state: ``running``, ``throttled`` by a limit, in ``flow``, or ``blocked`` by an alarm.
        channels: its channels, resources with a queue and writer to the broker that are not running.
        spooled: its messages in the spool.
        links: its links, waiting ones first.
        more_links: number of further links.
        tls: TLS version between the client and Sluice, e.g. ``TLSv1.3``. Empty without TLS.
        certificate: name in the client's TLS certificate. Empty without one.
        broker: ``address:port`` of its broker. Empty if the listener has no backups.
    """

    id: int
    listener: str
    peer: str
    client: ClientDescription
    exempt: bool = False
    opened_at: str = ""
    age_s: float = 0
    bytes_total: Mapping[Direction, int] = {}
    bytes_per_s: Mapping[Direction, float] | None = None
    requests_total: int
    requests_per_s: float | None = None
    refused_total: int
    refused_per_s: float | None = None
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


class ResourceState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Current state of one resource, scope or total in use. Times are monotonic. None: never."""

    kind: str
    name: str  # ``_other`` beyond the label cap
    counts: ResourceCounts | None  # None for scopes and totals, whose requests are counted for the resource
    usage: Mapping[Dimension, Usage] = {}  # in the last minute
    stored_permits: float | None = None  # of its message limit. Negative is a debt. None without a limiter
    open: bool = False  # its breaker refuses everything. Never for a shadow rule
    wait_us: int = 0  # of a request now. 0 for a shadow rule
    last_refused_ns: int | None = None  # by any rule
    last_wait_us: int = 0  # stated in that refusal
    last_refused_rule: str = ""
    last_held_ns: int | None = None
    last_shadowed_ns: int | None = None  # by its own rule
    rule: str = ""  # for scopes and totals, a rule for them alone
    rule_counts: RuleCounts | None = None  # of ``rule``. None also if they are counted under ``_other``
    state: State = "running"  # the most severe one of its queues
    spooled: int = 0
    waits_since_ns: int | None = None  # of its oldest message, held or in the spool
