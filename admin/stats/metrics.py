"""Prometheus metrics, made from a Snapshot at scrape time; the data path itself keeps only plain integers.

Every metric is defined here and nowhere else: name, labels, meaning. The number of resource labels is bounded by
the data path (``bounds.max_resource_labels``); what is beyond it arrives under the resource ``_other``. What other
parts of the admin side count they hand in with each scrape, made by ``counter`` and ``gauge``.

With ten thousand resources a scrape is some tenths of a second's work. It is done on the event loop in short
stretches: in a thread it would hold the interpreter, and the data path with it, for longer at a time.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from admin.common.tables import printable
from admin.common.version import sluice_version
from admin.config.logs import dropped_lines
from proxy.common.cooperative import Pace, turn
from proxy.control import DataPath
from proxy.stats.snapshot import BUCKETS_S, Durations, RequestVerdict, RuleVerdict, Snapshot

_ALWAYS_SHOWN: Final = frozenset({"pass", "refuse", "bypass"})
"""Verdicts that every resource shows; the others only where there were any."""

_PIECE_BYTES: Final = 64 * 1024
"""What is sent at a time: copying all of it at once would take milliseconds."""
_END: Final = b"# EOF\n"
"""What OpenMetrics ends with."""
_EXPONENT_FROM: Final = 1_000_000
"""Below this Prometheus writes numbers as Python does."""

LabeledValue = tuple[tuple[str, ...], float]
"""The values of a family's labels, and its value there."""
ManyValues = tuple[tuple[str, ...], Iterable[tuple[str, float]]]
"""The values of all labels but the last, and for each value of the last one the family's value there."""


class Family(NamedTuple):
    """One metric as it will be written, its samples made as they are needed.

    Attributes:
        metric: name, meaning and type; with those samples that the library writes.
        texts: the lines of all other samples, some at a time; they are the same in all formats.
    """

    metric: Metric
    texts: Iterable[str] = ()


def counter(name: str, help_text: str, labels: Sequence[str], values: Iterable[LabeledValue]) -> Family:
    """Make a counter.

    Args:
        name: without ``_total``, which is added.
        help_text: what it counts.
        labels: their names, in alphabetical order.
        values: the values of the labels, and how many.
    """
    return Family(
        CounterMetricFamily(name, help_text, labels=labels), _texts(f"{name}_total", labels, _one_by_one(values))
    )


def gauge(name: str, help_text: str, labels: Sequence[str], values: Iterable[LabeledValue]) -> Family:
    """Make a gauge; the arguments are those of ``counter``."""
    return Family(GaugeMetricFamily(name, help_text, labels=labels), _texts(name, labels, _one_by_one(values)))


def _histogram(name: str, help_text: str, durations: Durations) -> Family:
    """Make a histogram of durations in seconds."""
    bounds = [*map(floatToGoString, BUCKETS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
    return Family(HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=durations.sum_s))


def _one_by_one(values: Iterable[LabeledValue]) -> Iterator[ManyValues]:
    for labels, value in values:
        yield labels[:-1], ((labels[-1] if labels else "", value),)


def _texts(name: str, labels: Sequence[str], values: Iterable[ManyValues]) -> Iterator[str]:
    """Write samples as the library would, which takes ten times as long: it finds out all of it for each sample.

    What nearly all samples of ten thousand resources have in common is worked out once for each resource.
    """
    if not labels:
        for _, ((_, value),) in values:
            yield f"{name} {_number(value)}\n"
        return
    *first, last = (f'{label}="' for label in labels)
    for head, tail in values:
        begin = name + "{" + "".join(map(_label, first, head)) + last
        yield "".join([f'{begin}{_escaped(value)}"}} {_number(figure)}\n' for value, figure in tail])


def _label(begin: str, value: str) -> str:
    return f'{begin}{_escaped(value)}",'


def _escaped(label: str) -> str:
    """Write the value of a label; names come from clients, and one bad name must not cost the whole scrape.

    What cannot be printed is an escape in the value, as everywhere else where people read names, and a backslash is
    two: a name with an escape in it is told from one with what that stands for.
    """
    if label.isalnum() and label.isascii():
        return label
    return printable(label.replace("\\", "\\\\")).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    if 0 <= value < _EXPONENT_FROM:
        return repr(float(value))
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # the library has no type for it
    return text


def families(snapshot: Snapshot) -> Iterator[Family]:
    """Yield every metric of the data path and of the process."""
    yield from _resources(snapshot)
    yield from _rules(snapshot)
    yield from _configured(snapshot)
    yield from _timings(snapshot)
    yield from _connections(snapshot)
    yield from _wire(snapshot)
    yield from _executor(snapshot)
    yield from _limiters(snapshot)
    yield counter(
        "sluice_log_lines_dropped",
        "Log lines lost because their reader was too slow or gone.",
        (),
        [((), dropped_lines())],
    )
    build = {"version": sluice_version(), "python": platform.python_version()}
    for metric in (
        InfoMetricFamily("sluice_build", "What is running.", build),
        *ProcessCollector(registry=CollectorRegistry()).collect(),
    ):
        yield Family(metric)


def _resources(snapshot: Snapshot) -> Iterator[Family]:
    labels = ("kind", "resource", "verdict")
    yield _many(
        "sluice_requests",
        "Limitable requests by what became of them: pass, refuse, bypass (passed because a handler was skipped), "
        "shadow (passed though a shadow rule would have refused it), exempt (passed because its client is), "
        "drop (its client left while it was held). Counted when decided: when a connection breaks, the broker may not "
        "have read the last ones.",
        labels,
        ((resource, _shown(counts.requests)) for resource, counts in snapshot.resources.items()),
    )
    yield _many(
        "sluice_messages",
        "As sluice_requests_total, in messages: a batch counts as what it holds, consumption when it is answered.",
        labels,
        ((resource, _shown(counts.messages)) for resource, counts in snapshot.resources.items()),
    )
    yield counter(
        "sluice_bypassed",
        "Requests that went on without a handler's verdict: its lanes were full, late, or it failed.",
        ("handler", "reason"),
        snapshot.bypassed.items(),
    )


def _many(name: str, help_text: str, labels: Sequence[str], values: Iterable[ManyValues]) -> Family:
    """Make a counter with many samples."""
    return Family(CounterMetricFamily(name, help_text, labels=labels), _texts(f"{name}_total", labels, values))


def _shown(counts: Mapping[RequestVerdict, int]) -> list[tuple[str, int]]:
    return [(verdict, count) for verdict, count in counts.items() if count or verdict in _ALWAYS_SHOWN]


def _rules(snapshot: Snapshot) -> Iterator[Family]:
    # Three families and not one with a label: a request that was held and then refused is in two of them.
    families: tuple[tuple[RuleVerdict, str, str], ...] = (
        ("refuse", "sluice_rule_refused", "Requests that a rule refused, including those it had held before."),
        ("shadow", "sluice_rule_shadowed", "Requests that a shadow rule would have refused."),
        ("hold", "sluice_rule_held", "Requests that a rule held, whatever happened to them afterwards."),
    )
    for verdict, name, help_text in families:
        yield counter(name, help_text, ("rule",), _ruled(snapshot, verdict))
    yield gauge("sluice_held_requests", "Requests held now.", (), [((), snapshot.held_requests)])
    yield gauge("sluice_held_bytes", "Size of the requests held now.", (), [((), snapshot.held_bytes)])
    yield counter(
        "sluice_hold_refused",
        "Requests refused instead of held, because a bound on held requests was reached.",
        ("bound",),
        (((bound,), count) for bound, count in snapshot.hold_refused.items()),
    )
    name, labels = "sluice_limit_used_ratio", ("dimension", "kind", "resource", "window")
    help_text = (
        "Share of a limit that was used in the window; 1 is the whole limit. Only for limits used in the last minute."
    )
    yield Family(GaugeMetricFamily(name, help_text, labels=labels), _texts(name, labels, _used(snapshot)))


def _configured(snapshot: Snapshot) -> Iterator[Family]:
    yield gauge(
        "sluice_limit_per_second",
        "Each limit in force as written, by the pattern of its rule, even while limiting is off; +Inf is unlimited. "
        "The dimension messages means requests if the rule counts these. The origin is configuration, edit or "
        "built-in. Rules that are exempt or off have no value.",
        ("dimension", "kind", "origin", "resource"),
        (
            ((dimension, kind, limit.origin, name), limit.per_s)
            for (kind, name, dimension), limit in snapshot.limits.items()
        ),
    )


def _timings(snapshot: Snapshot) -> Iterator[Family]:
    yield _histogram(
        "sluice_processing_seconds",
        "Time that Sluice adds to a request: from reading the end of its header (for a batch: its last byte) to "
        "queueing it for the broker, or its refusal for the client. Held requests are not included; the requests of "
        "one read are timed together.",
        snapshot.processing,
    )
    yield _histogram(
        "sluice_held_seconds",
        "Time that a request was held until it passed or was refused. Requests whose client left are not included.",
        snapshot.held,
    )
    yield _histogram(
        "sluice_broker_round_trip_seconds",
        "Time from passing a request on to the broker's answer. A sample: one request of a connection at a time, and "
        "at most 100 per second; long polls are never timed.",
        snapshot.round_trip,
    )


def _used(snapshot: Snapshot) -> Iterator[ManyValues]:
    for (kind, name, dimension), used in snapshot.usage.items():
        yield (dimension, kind, name), (("1s", used.last_1s), ("10s", used.last_10s), ("60s", used.last_60s))


def _ruled(snapshot: Snapshot, verdict: RuleVerdict) -> Iterator[LabeledValue]:
    for rule, counts in snapshot.rules.items():
        yield (rule,), counts.requests[verdict]


def _connections(snapshot: Snapshot) -> Iterator[Family]:
    yield gauge(
        "sluice_listening",
        "1 while clients can connect; 0 while the broker accepts no connections, and during a drain.",
        ("listener",),
        (((listener.name,), int(listener.listening)) for listener in snapshot.listeners),
    )
    yield gauge(
        "sluice_connections",
        "Client connections open now.",
        ("listener",),
        (((listener.name,), listener.connections) for listener in snapshot.listeners),
    )
    yield counter(
        "sluice_connections_opened",
        "Client connections accepted.",
        ("listener",),
        (((listener,), count) for listener, count in snapshot.connections_total.items()),
    )
    yield counter(
        "sluice_connections_closed",
        "Client connections that ended, by reason, including those closed as soon as they were accepted.",
        ("listener", "reason"),
        snapshot.closed_total.items(),
    )


def _wire(snapshot: Snapshot) -> Iterator[Family]:
    yield counter(
        "sluice_frames",
        "Whole frames of the protocol, by the peer that sent them: client or broker.",
        ("source",),
        (((source,), count) for source, count in snapshot.frames_total.items()),
    )
    yield counter(
        "sluice_bytes",
        "Bytes read, by the peer that sent them: client or broker.",
        ("source",),
        (((source,), count) for source, count in snapshot.bytes_total.items()),
    )
    yield counter(
        "sluice_undecodable",
        "Headers that the strict parser refused, by the parser that read them instead (none: no parser did).",
        ("parser",),
        (((parser,), count) for parser, count in snapshot.undecodable_total.items()),
    )


def _executor(snapshot: Snapshot) -> Iterator[Family]:
    yield gauge(
        "sluice_executor_depth",
        "Batches waiting on a handler's lanes.",
        ("handler",),
        (((handler,), depth.queued) for handler, depth in snapshot.lanes.items()),
    )
    yield gauge(
        "sluice_executor_capacity",
        "Batches that may wait on a handler's lanes before they bypass it.",
        ("handler",),
        (((handler,), depth.capacity) for handler, depth in snapshot.lanes.items()),
    )
    yield gauge(
        "sluice_executor_late_lanes",
        "Lanes of a handler that are bypassed until a probe returns in time.",
        ("handler",),
        (((handler,), depth.late_lanes) for handler, depth in snapshot.lanes.items()),
    )


def _limiters(snapshot: Snapshot) -> Iterator[Family]:
    yield gauge("sluice_live_limiters", "Limiters in memory now.", (), [((), snapshot.live_limiters)])
    yield counter(
        "sluice_limiters_evicted", "Idle limiters given up for new names.", (), [((), snapshot.evicted_total)]
    )
    yield counter(
        "sluice_limiters_overflowed",
        "Decisions made by a rule's shared limiter because there was no room for one more.",
        (),
        [((), snapshot.overflowed_total)],
    )
    yield gauge("sluice_rule_set_version", "Version of the rule set in force.", (), [((), snapshot.rule_set_version)])
    yield gauge(
        "sluice_limiting", "1 while limiting is on, 0 while everything passes.", (), [((), int(snapshot.limiting))]
    )
    yield gauge(
        "sluice_limiting_kind",
        "0 for each kind whose limiting alone is switched off; a kind that is limited is not here.",
        ("kind",),
        (((kind,), 0) for kind in snapshot.off_kinds),
    )
    yield gauge("sluice_draining", "1 while no new connections are accepted.", (), [((), int(snapshot.draining))])


class _Alone(Collector):
    """One metric, for an encoder."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def scrape(data_path: DataPath, accept: str, extra: Iterable[Family] = ()) -> tuple[list[bytes], str]:
    """Take a snapshot and write it down.

    Args:
        data_path: whose counters.
        accept: the request's Accept header; chooses between OpenMetrics and Prometheus' text format.
        extra: what else there is to tell.

    Returns:
        The body, in pieces that may be sent one after the other, and its content type.
    """
    await turn()
    snapshot = await data_path.snapshot()
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # The version asked for is none, and the library compares it with one.
        encode, content_type = choose_encoder("")
    pace, pieces, piece = Pace(rests=True), [], bytearray()
    for family in chain(families(snapshot), extra):
        piece += encode(_Alone(family.metric)).removesuffix(_END)
        for text in family.texts:
            piece += text.encode()
            if len(piece) >= _PIECE_BYTES:
                pieces.append(bytes(piece))
                piece.clear()
            await pace.keep()
        await pace.keep()
    for table in (snapshot.resources, snapshot.usage, snapshot.rules, snapshot.limits):
        await _give_up(table)
    if content_type.startswith("application/openmetrics-text"):
        piece += _END
    return [*pieces, bytes(piece)], content_type


async def _give_up(table: Mapping[Any, object]) -> None:
    """Let go of what has many thousands of entries: all at once that takes milliseconds."""
    if isinstance(table, dict):
        pace = Pace(rests=True)
        while table:
            table.popitem()
            await pace.keep()
