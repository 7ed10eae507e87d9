"""Snapshots of the data path, as plain data.

Structs that may have thousands of instances are hidden from the garbage collector (``gc=False``), because they cannot
form cycles.
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
    """A possible outcome of a request."""

    verdict: RequestVerdict  # name in metrics
    outcome: Outcome  # name in the rejection log
    column: str  # field in ``Verdicts``
    reached: bool  # whether the request was sent to the broker
    always_shown: bool  # whether it is exported for every resource, even if it is 0


ENDINGS: Final = (
    Ending("pass", "admitted", "passed", reached=True, always_shown=True),
    Ending("refuse", "refused", "refused", reached=False, always_shown=True),
    Ending("shadow", "shadowed", "shadowed", reached=True, always_shown=False),
    Ending("bypass", "bypassed", "bypassed", reached=True, always_shown=True),
    Ending("exempt", "exempt", "exempt", reached=True, always_shown=False),
    Ending("drop", "dropped", "dropped", reached=False, always_shown=False),
)


class Verdicts(msgspec.Struct, frozen=True):
    """The number of requests with each outcome, in total or per second.

    Attributes:
        passed: requests within the limits, including those in ``shadowed``.
        refused: requests refused because of a limit.
        shadowed: requests that passed although a shadow rule would have refused them.
        bypassed: requests that passed because a handler was skipped.
        exempt: requests that passed because their client is exempt.
        dropped: requests whose client disconnected while they were held.
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

MAX_RESOURCES_SHOWN: Final = 20  # per connection
MAX_LINKS_SHOWN: Final = 50  # per connection
MAX_ADAPTIVE_NAMES: Final = 100  # per adaptive limit
MAX_FLEET_LIMITS: Final = 100  # per process


class ResourceCounts(msgspec.Struct, gc=False):
    """Totals for one resource since the process started."""

    requests: dict[RequestVerdict, int]
    messages: dict[RequestVerdict, int]


class RuleCounts(msgspec.Struct, gc=False):
    """Totals for one rule since the process started."""

    requests: dict[RuleVerdict, int]
    messages: dict[RuleVerdict, int]


class LaneState(msgspec.Struct, frozen=True):
    """The state of one handler's lanes."""

    handler: str
    queued: Annotated[int, Metric("sluice_executor_depth", "Batches waiting on a handler's lanes.", ("handler",))]
    capacity: Annotated[
        int,
        Metric(
            "sluice_executor_capacity",
            "Maximum number of batches waiting on a handler's lanes. Further batches bypass the handler.",
            ("handler",),
        ),
    ]
    late_lanes: Annotated[
        int,
        Metric(
            "sluice_executor_late_lanes",
            "A handler's lanes that are bypassed until a probe returns in time.",
            ("handler",),
        ),
    ]


class ListenerState(msgspec.Struct, frozen=True):
    """One listener and the health of its broker.

    Attributes:
        listen: ``address:port`` that the listener is bound to.
        broker: ``address:port`` of the broker in use.
        listening: whether clients can connect. False while the broker is unreachable, and during a drain.
        reachable: whether the last connection attempt to the broker succeeded.
        error: why that attempt failed. None if it succeeded.
        backups: number of configured backup brokers.
        passed_over: brokers with a higher priority, each with the reason why it is not used.
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
            "Number of the backup that the listener's clients are connected to, starting at 1. 0 if they are connected "
            "to the primary broker.",
            ("listener",),
        ),
    ] = 0
    backups: int = 0
    passed_over: tuple[str, ...] = ()


class AlarmState(msgspec.Struct, frozen=True):
    """An alarm. While it is raised, publishers are blocked.

    Attributes:
        scarce: the resource that is running low.
        stands: whether the alarm is raised. A failure of the spool's disk also raises the disk alarm, but blocks only
            clients whose messages are spooled.
        since: when the alarm was raised. None if it is not raised.
        text: the problem, and when the alarm will be cleared. Empty if it is not raised.
        bytes_now: memory in use, or free disk space. None if unknown.
        bytes_limit: threshold for ``bytes_now``. None if unknown.
        status: the state and figures in words.
    """

    scarce: Scarce
    stands: Annotated[
        bool,
        Metric(
            "sluice_alarm",
            "1 while publishers are blocked because memory or space on the spool's disk is low. Without a spool, there "
            "is no disk alarm.",
            ("scarce",),
        ),
    ] = False
    since: str | None = None
    total: Annotated[
        int, Metric("sluice_alarms_total", "How often an alarm has been raised since the process started.", ("scarce",))
    ] = 0
    stood_s: Annotated[
        float,
        Metric("sluice_alarm_seconds_total", "Total time during which an alarm was raised, in seconds.", ("scarce",)),
    ] = 0.0
    text: str = ""
    bytes_now: int | None = None
    bytes_limit: int | None = None
    status: str = ""


class Held(msgspec.Struct, frozen=True):
    """Requests that are currently held."""

    requests: Annotated[
        int,
        Metric(
            "sluice_held_requests",
            "Requests that are currently held, including those waiting for credit.",
            source="tally.held_requests",
        ),
    ] = 0
    bytes: Annotated[
        int,
        Metric(
            "sluice_held_bytes",
            "Total size of the requests currently held, in bytes. Requests waiting for credit count as 0.",
            source="tally.held_bytes",
        ),
    ] = 0
    refused: Annotated[
        Mapping[BoundName, int],
        Metric(
            "sluice_hold_refused_total",
            "Requests refused instead of held because a bound on held requests was reached.",
            ("bound",),
            source="limits.refused_by_bound",
        ),
    ] = {}


class Limiters(msgspec.Struct, frozen=True):
    """How many limiters are in memory, and how often there was no room for more."""

    live: Annotated[int, Metric("sluice_live_limiters", "Limiters in memory.", source="limits.live")] = 0
    evicted_total: Annotated[
        int,
        Metric(
            "sluice_limiters_evicted_total",
            "Idle limiters evicted to make room for new names.",
            source="limits.evicted_total",
        ),
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
    """A histogram of durations since the process started."""

    counts: tuple[int, ...] = (0,) * (len(BUCKETS_S) + 1)  # per bucket, not cumulative
    sum_s: float = 0.0


class LimitInForce(msgspec.Struct, frozen=True, gc=False):
    per_s: float  # messages, requests or bytes per second. Infinity if unlimited
    origin: Origin


class ConfirmState(msgspec.Struct, frozen=True, gc=False):
    """How messages to one destination with an ``after_consume`` rule are confirmed.

    Attributes:
        mode: which side confirms new messages.
        reason: why the broker confirms them, in one word. Empty if consumers confirm them.
        oldest_ms: age of the oldest unconfirmed message, in milliseconds.
        window: maximum number of unconfirmed messages.
        after_consume_total: messages confirmed by their consumers.
        broker_total: messages forwarded unchanged for the broker to confirm.
        persisted_total: messages not consumed in time and published again for the broker to confirm.
        nacked_total: messages not consumed in time and refused.
        by: ``mode`` and ``reason`` in words.
    """

    kind: str
    name: str
    mode: Annotated[
        Literal["after_consume", "broker"],
        Metric(
            "sluice_confirms_after_consume",
            "1 while consumers confirm the messages published to a destination. 0 while the broker confirms them "
            "despite an after_consume rule, for example because consumers do not acknowledge or cannot keep up.",
            ("kind", "resource"),
            value=lambda mode: mode == "after_consume",
        ),
    ]
    reason: str
    pending: Annotated[
        int,
        Metric(
            "sluice_confirms_pending",
            "Messages waiting to be confirmed by their consumers.",
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
    """The state of an adaptive limit during one second.

    Attributes:
        unix_ms: end of the second, in milliseconds since 1970.
        limit_per_s: the limit in messages per second. None if the broker was not overloaded.
        latency_s: p90 of the broker's response time to messages, in seconds. None if unknown.
        passed_per_s: messages within the limit.
        refused_per_s: messages over the limit. With the action ``shadow``, they passed nevertheless.
    """

    unix_ms: int
    limit_per_s: float | None
    latency_s: float | None
    passed_per_s: float
    refused_per_s: float


class AdaptiveName(msgspec.Struct, frozen=True, gc=False):
    """One of the names that share an adaptive limit.

    Attributes:
        name: the name with its kind, such as ``topic:orders``.
        asks_per_s: messages per second that clients send.
        passes_per_s: messages per second that pass.
        may_per_s: the name's share of the limit, in messages per second. None if no limit applies now.
        weight: the share relative to a name with weight 1.
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
        limit_per_s: the limit in messages per second. None while the broker is not overloaded.
        floor_per_s: lower bound for the limit, in messages per second.
        ceiling_per_s: upper bound for the limit, in messages per second. None if unbounded.
        action: what happens to messages over the limit.
        latency_s: recent p90 of the broker's response time to messages, in seconds. None if unknown.
        usual_latency_s: usual value of ``latency_s``.
        reason: why the limit last changed. Empty if it never changed.
        names: up to MAX_ADAPTIVE_NAMES names, starting with the highest demand.
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
        seen_s_ago: seconds since the process last contacted Redis, by Redis's clock.
        is_this: whether this process sent the response.
    """

    member: str
    seen_s_ago: float
    is_this: bool


class FleetLimit(msgspec.Struct, frozen=True, gc=False):
    """A limit shared by a fleet, as this member applies it.

    Attributes:
        kind: kind of the resource or scope, or ``total``.
        dimension: ``messages`` or ``bytes``.
        rate_per_s: rate for all members together.
        share: this member's share of the demand, from 0 to 1. 0 if it does not use the limit.
        permits: permits fetched but not spent yet. Negative if in debt. 0 while this member decides alone.
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
    """The fleet, as seen by this process.

    Attributes:
        url: the Redis URL, without secrets.
        when_away: behaviour while Redis is unreachable: ``last``, ``equal``, ``unlimited`` or ``refuse``.
        size: number of members at the last contact with Redis, including this one.
        last_contact_s_ago: seconds since the last contact with Redis. None if there was none.
        away_s: how long Redis has been unreachable, in seconds. None while it is reachable.
        error: why Redis is unreachable, and what to do. Empty while it is reachable.
        round_trips: round trips to Redis since the process started, including failed ones.
        failures: round trips to Redis that failed or timed out since the process started.
        disagreements: sentences about limits for which members have had different values for 5 s.
        limits: at most MAX_FLEET_LIMITS limits with ``fleet = true``, starting with the largest demand.
    """

    name: str
    member: str
    url: str
    when_away: str
    size: Annotated[
        int, Metric("sluice_fleet_members", "Members of the fleet at the last contact with Redis, including this one.")
    ]
    members: tuple[FleetMember, ...] = ()
    last_contact_s_ago: float | None = None
    away_s: Annotated[
        float | None,
        Metric(
            "sluice_fleet_away",
            "1 while Redis is unreachable and this member applies the fleet's limits on its own.",
            value=lambda away_s: away_s is not None,
        ),
    ] = None
    error: str = ""
    round_trips: Annotated[
        int, Metric("sluice_fleet_round_trips_total", "Round trips to Redis for the fleet, including failed ones.")
    ] = 0
    failures: Annotated[
        int,
        Metric("sluice_fleet_failures_total", "Round trips to Redis for the fleet that failed or timed out."),
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
    """All counters, in the order of ``/metrics``.

    Resources, rules and limits beyond the label cap are counted under ``_other``.

    Attributes:
        usage: usage of limits in the last minute, by (kind, name, dimension). Contains all limits with a rule for
            exactly this name, and the most used of the others.
        limits: active limits by (kind, name or pattern, dimension). Patterns come first.
        spool: None if there is no spool, and in a partial snapshot.
    """

    resources: Annotated[
        Mapping[tuple[str, str], ResourceCounts],
        Metric(
            "sluice_requests_total",
            "Requests that can be limited, by verdict: pass, refuse, bypass (passed because a handler was skipped), "
            "shadow (passed although a shadow rule would have refused it), exempt (passed because its client is "
            "exempt), drop (its client disconnected while it was held). Requests are counted when they are decided. If "
            "a connection breaks, the broker may not have received the last ones.",
            _RESOURCE_LABELS,
            lambda resources: ((resource, _shown(counts.requests)) for resource, counts in resources.items()),
        ),
        Metric(
            "sluice_messages_total",
            "Messages in the requests that sluice_requests_total counts. All messages in a batch are counted. Consumed "
            "messages are counted when the broker responds.",
            _RESOURCE_LABELS,
            lambda resources: ((resource, _shown(counts.messages)) for resource, counts in resources.items()),
        ),
    ] = {}
    repeated_requests: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_repeated_requests_total",
            "Requests that retry a message refused less than a minute before, whatever their own verdict. Only "
            "RocketMQ sends and send-backs are counted, and only from clients that keep a message's id.",
            ("kind",),
            source="tally.repeated_requests",
        ),
    ] = {}
    bypassed: Annotated[
        Mapping[tuple[str, str], int],
        Metric(
            "sluice_bypassed_total",
            "Requests forwarded without a handler's verdict because its lanes were full or late, or it failed.",
            ("handler", "reason"),
        ),
    ] = {}
    # These are separate metrics, because a request that is held and then refused counts in two of them.
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
            "How long a resource's oldest message has been waiting, in memory or in the spool. Absent while no message "
            "is waiting. AMQP 1.0 senders waiting for credit do not count.",
            ("kind", "resource"),
        ),
    ] = {}
    usage: Annotated[
        Mapping[tuple[str, str, Dimension], Usage],
        Metric(
            "sluice_limit_used_ratio",
            "Fraction of a limit that was used in the window. 1 means all of it. Limits that were not used in the last "
            "minute are left out.",
            ("dimension", "kind", "resource", "window"),
            _usage_samples,
        ),
    ] = {}
    limits: Annotated[
        Mapping[tuple[str, str, Dimension], LimitInForce],
        Metric(
            "sluice_limit_per_second",
            "Active limits, by the pattern of their rules, even while limiting is off. +Inf means unlimited. The "
            "dimension messages stands for requests if the rule counts requests. The origin is configuration, edit or "
            "built-in. Rules that are exempt or off have no value.",
            ("dimension", "kind", "origin", "resource"),
            _limit_samples,
        ),
    ] = {}
    adaptive: Annotated[
        tuple[AdaptiveState, ...],
        Metric(
            "sluice_adaptive_limit",
            "Current adaptive limit of a listener, in messages per second. Absent while the broker is not overloaded.",
            ("listener",),
            _adaptive("limit_per_s"),
        ),
        Metric(
            "sluice_adaptive_latency_seconds",
            "Recent p90 of the time from a message to the broker's answer or confirm, for listeners with an adaptive "
            "limit. Absent while unknown.",
            ("listener",),
            _adaptive("latency_s"),
        ),
        Metric(
            "sluice_adaptive_usual_latency_seconds",
            "Usual value of sluice_adaptive_latency_seconds. The adaptive limit compares the two.",
            ("listener",),
            _adaptive("usual_latency_s"),
        ),
    ] = ()
    adaptive_faults: Annotated[
        int,
        Metric(
            "sluice_adaptive_faults_total",
            "Errors in the control of adaptive limits. After an error, the listener has no adaptive limit for a while.",
            source="adapting.faults",
        ),
    ] = 0
    fleet: FleetState | None = None
    processing: Annotated[
        Durations,
        Metric(
            "sluice_processing_seconds",
            "Time that Sluice adds to a request, from reading the end of its header (or the last byte of a batch) "
            "until the request is queued for the broker or the refusal is queued for the client. Held requests are not "
            "included. Requests that arrive in one read are timed together.",
            source="timings.processing",
        ),
    ] = Durations()
    held_for: Annotated[
        Durations,
        Metric(
            "sluice_held_seconds",
            "How long requests were held before they passed or were refused. Requests whose client disconnected are "
            "not included.",
            source="timings.held",
        ),
    ] = Durations()
    round_trip: Annotated[
        Durations,
        Metric(
            "sluice_broker_round_trip_seconds",
            "Time from forwarding a request to receiving the broker's response. Only a sample is measured: one request "
            "per connection at a time, at most 100 per second, and no long polls.",
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
            "Client connections closed, by reason, including those closed immediately after they were accepted.",
            ("listener", "reason"),
            source="server.counters.closed",
        ),
    ] = {}
    lost_messages: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_lost_messages_total",
            "Messages lost when their connection closed although the client assumes that they were delivered: "
            "publishes without confirms, and oneway requests. Unread data is counted only in sluice_lost_bytes_total.",
            ("listener",),
            source="server.services.lost_messages",
        ),
    ] = {}
    lost_bytes: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_lost_bytes_total",
            "Bytes in lost messages, and bytes that were still unread when their client disconnected.",
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
            "Protocol frames, by sending peer: client or broker.",
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
            "Headers rejected by the strict parser. The label is the parser that could read them, or none.",
            ("parser",),
            source="wire_counters.undecodable",
        ),
    ] = {}
    routes_total: Annotated[
        Mapping[str, int],
        Metric(
            "sluice_routes_total",
            "Responses of name servers and RocketMQ's Proxy that contain broker addresses, by outcome: rewritten, left "
            "(some addresses were not replaced, so clients may bypass Sluice), or unread (forwarded unchanged).",
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
            "Fraction of the last second in which the event loop ran or waited for a CPU. Near 1, it has no capacity "
            "left.",
        ),
    ] = 0.0
    stages: Annotated[
        Mapping[tuple[Kind, State], int],
        Metric(
            "sluice_stages",
            "Stages that messages pass through, by state: running, flow (recently stopped because a later stage "
            "accepts no more messages), throttled (delayed by a limit), blocked (stopped by an alarm). Channels and "
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
            "Waiting connections, by the cause that `sluice flow` reports. A connection that waits for the next stage "
            "is only counted if it has waited for a fifth of roughly the last minute.",
            ("cause",),
        ),
    ] = {}
    spool: SpoolState | None = None
    confirms: Annotated[
        tuple[ConfirmState, ...],
        Metric(
            "sluice_confirms_total",
            "Messages published with confirms under an after_consume rule, by outcome: after_consume (confirmed by "
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
    """A client's description of itself. Unknown fields are empty.

    Attributes:
        id: client id, as sent to the broker.
        language: programming language, as the protocol spells it.
        version: version of the client or its protocol.
        product: name of the client's library or program.
    """

    id: str = ""
    language: str = ""
    version: str = ""
    product: str = ""
    user: str = ""


class LinkState(msgspec.Struct, frozen=True):
    """One link of a connection. It carries messages in one direction, limited by the receiver's credit.

    Attributes:
        session: the client's channel.
        sends: whether the client sends on this link. If not, it receives.
        resource: the limited resource, as ``kind:name``. Empty if each message has its own, or nothing is limited.
        credit: number of messages that may be sent now.
        withheld: number of messages that the receiver would accept beyond ``credit``.
        used: messages forwarded.
        waits_ms: how long the link has been waiting for credit, in milliseconds. 0 if it is not waiting.
        address: address of the broker's node. Empty if each message has its own, or there is none.
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
    """One open connection. Rates are available after two samples.

    Attributes:
        id: identifies the connection in a request to close it. Ids are not reused while the process runs.
        peer: the client's ``address:port``.
        exempt: whether the client is exempt from limits.
        age_s: seconds since the connection was opened.
        bytes_total: bytes read, by sending peer.
        bytes_per_s: bytes read per second, by sending peer.
        requests_total: frames from the client. An AMQP 0.9.1 publish has three, and a RocketMQ request has one.
        requests_per_s: frames from the client per second.
        in_flight: requests that have been forwarded but not yet answered.
        resources: resources that the client sent to or received from, as ``kind:name``.
        channels: the channels and resources, and the writer, whose stage is not ``running``.
        spooled: number of the connection's messages in the spool.
        links: links, starting with those that are waiting.
        tls: TLS version between the client and Sluice, e.g. ``TLSv1.3``. Empty if the client does not use TLS.
        certificate: name in the client's TLS certificate. Empty if there is none.
        broker: the broker's ``address:port``. Empty if the listener has no backups.
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
    """State of one resource, scope or total. Times are monotonic, or None if the event never happened."""

    kind: str
    name: str  # ``_other`` for names beyond the label cap
    counts: ResourceCounts | None  # None for scopes and totals, whose requests are counted for the resource
    usage: Mapping[Dimension, Usage] = {}  # in the last minute
    stored_permits: float | None = None  # for the message limit, negative for a debt. None without a limiter
    open: bool = False  # whether its breaker refuses everything. Always False for a shadow rule
    wait_us: int = 0  # time until a request would be admitted. 0 for a shadow rule
    last_refused_ns: int | None = None  # by any rule
    last_wait_us: int = 0  # waiting time in the last refusal
    last_refused_rule: str = ""
    last_held_ns: int | None = None
    last_shadowed_ns: int | None = None  # by its own rule
    rule: str = ""  # for scopes and totals, the rule that applies only to them
    rule_counts: RuleCounts | None = None  # counts for ``rule``, unless they are counted under ``_other``
    state: State = "running"  # the most severe state of its queues
    spooled: int = 0
    waits_since_ns: int | None = None  # when the oldest held or spooled message began to wait
