"""Prometheus metrics, made from a Snapshot at scrape time; the data path itself keeps only plain integers.

Every metric is defined here and nowhere else: name, labels, meaning. The number of resource labels is bounded by
the data path (``bounds.max_resource_labels``); what is beyond it arrives under the resource ``_other``.
"""

import platform
from collections.abc import Iterable, Iterator
from typing import Final

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from admin.logs import dropped_lines
from admin.version import sluice_version
from proxy.control import DataPath, RuleVerdict, Snapshot

_ALWAYS_SHOWN: Final = frozenset({"pass", "refuse", "bypass"})
"""Verdicts that every resource shows; the others only where there were any."""

_Sample = tuple[tuple[str, ...], float]
"""The values of a family's labels, and its value there."""


class SnapshotCollector(Collector):
    """The metrics of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        snapshot = self._snapshot
        yield from _resources(snapshot)
        yield from _rules(snapshot)
        yield from _connections(snapshot)
        yield from _wire(snapshot)
        yield from _executor(snapshot)
        yield from _limiters(snapshot)
        yield _counter(
            "sluice_log_lines_dropped",
            "Log lines lost because their reader was too slow or gone.",
            (),
            [((), dropped_lines())],
        )
        yield InfoMetricFamily(
            "sluice_build", "What is running.", {"version": sluice_version(), "python": platform.python_version()}
        )


def _printable(label: str) -> str:
    """Return a label that UTF-8 can hold: names come from clients, and one bad name must not cost the whole scrape."""
    return label.encode(errors="replace").decode()


def _counter(name: str, help_text: str, labels: tuple[str, ...], samples: Iterable[_Sample]) -> Metric:
    return _filled(CounterMetricFamily(name, help_text, labels=labels), samples)


def _gauge(name: str, help_text: str, labels: tuple[str, ...], samples: Iterable[_Sample]) -> Metric:
    return _filled(GaugeMetricFamily(name, help_text, labels=labels), samples)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Iterable[_Sample]) -> Metric:
    for values, count in samples:
        family.add_metric([_printable(value) for value in values], count)
    return family


def _resources(snapshot: Snapshot) -> Iterator[Metric]:
    labels = ("kind", "resource", "verdict")
    yield _counter(
        "sluice_requests",
        "Limitable requests by what became of them: pass, refuse, bypass (passed because a handler was skipped), "
        "shadow (passed though a shadow rule would have refused it), exempt (passed because its client is), "
        "drop (its client left while it was held).",
        labels,
        (
            ((kind, name, verdict), count)
            for (kind, name), counts in snapshot.resources.items()
            for verdict, count in counts.requests.items()
            if count or verdict in _ALWAYS_SHOWN
        ),
    )
    yield _counter(
        "sluice_messages",
        "As sluice_requests_total, in messages: a batch counts as what it holds, consumption when it is answered.",
        labels,
        (
            ((kind, name, verdict), count)
            for (kind, name), counts in snapshot.resources.items()
            for verdict, count in counts.messages.items()
            if count or verdict in _ALWAYS_SHOWN
        ),
    )
    yield _counter(
        "sluice_bypassed",
        "Requests that went on without a handler's verdict: its lanes were full, late, or it failed.",
        ("handler", "reason"),
        snapshot.bypassed.items(),
    )


def _rules(snapshot: Snapshot) -> Iterator[Metric]:
    # Three families and not one with a label: a request that was held and then refused is in two of them.
    families: tuple[tuple[RuleVerdict, str, str], ...] = (
        ("refuse", "sluice_rule_refused", "Requests that a rule refused, those it had held at first included."),
        ("shadow", "sluice_rule_shadowed", "Requests that a shadow rule would have refused."),
        ("hold", "sluice_rule_held", "Requests that a rule held, whatever became of them then."),
    )
    for verdict, name, help_text in families:
        yield _counter(
            name, help_text, ("rule",), (((rule,), counts.requests[verdict]) for rule, counts in snapshot.rules.items())
        )
    yield _gauge("sluice_held_requests", "Requests held now.", (), [((), snapshot.held_requests)])
    yield _gauge("sluice_held_bytes", "Size of the requests held now.", (), [((), snapshot.held_bytes)])
    yield _counter(
        "sluice_hold_refused",
        "Requests refused, and not held, because of the bound on what is held.",
        ("bound",),
        (((bound,), count) for bound, count in snapshot.hold_refused.items()),
    )
    yield _gauge(
        "sluice_limit_used_ratio",
        "Share of a limit that was used in the window; 1 is the whole limit. Only of limits used in the last minute.",
        ("kind", "resource", "dimension", "window"),
        (
            ((*limit, window), used)
            for limit, usage in snapshot.usage.items()
            for window, used in (("1s", usage.last_1s), ("10s", usage.last_10s), ("60s", usage.last_60s))
        ),
    )


def _connections(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge(
        "sluice_connections",
        "Client connections open now.",
        ("listener",),
        (((listener.name,), listener.connections) for listener in snapshot.listeners),
    )
    yield _counter("sluice_connections_opened", "Client connections accepted.", (), [((), snapshot.connections_total)])
    yield _counter(
        "sluice_connections_closed",
        "Client connections that ended, by reason; those closed as soon as they were accepted included.",
        ("reason",),
        (((reason,), count) for reason, count in snapshot.closed_total.items()),
    )


def _wire(snapshot: Snapshot) -> Iterator[Metric]:
    yield _counter(
        "sluice_frames",
        "Whole frames of the protocol, by the peer they came from.",
        ("direction",),
        (((direction,), count) for direction, count in snapshot.frames_total.items()),
    )
    yield _counter(
        "sluice_bytes",
        "Bytes read, by the peer they came from.",
        ("direction",),
        (((direction,), count) for direction, count in snapshot.bytes_total.items()),
    )
    yield _counter(
        "sluice_undecodable",
        "Headers that the strict parser refused, by the parser that read them after all (none: no parser did).",
        ("parser",),
        (((parser,), count) for parser, count in snapshot.undecodable_total.items()),
    )


def _executor(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge(
        "sluice_executor_depth",
        "Batches waiting on a handler's lanes.",
        ("handler",),
        (((handler,), depth.queued) for handler, depth in snapshot.lanes.items()),
    )
    yield _gauge(
        "sluice_executor_capacity",
        "Batches that may wait on a handler's lanes before they bypass it.",
        ("handler",),
        (((handler,), depth.capacity) for handler, depth in snapshot.lanes.items()),
    )
    yield _gauge(
        "sluice_executor_late_lanes",
        "Lanes of a handler that are bypassed until a probe returns in time.",
        ("handler",),
        (((handler,), depth.late_lanes) for handler, depth in snapshot.lanes.items()),
    )


def _limiters(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge("sluice_live_limiters", "Limiters in memory now.", (), [((), snapshot.live_limiters)])
    yield _counter(
        "sluice_limiters_evicted", "Idle limiters given up for new names.", (), [((), snapshot.evicted_total)]
    )
    yield _counter(
        "sluice_limiters_overflowed",
        "Decisions made by a rule's shared limiter because there was no room for one more.",
        (),
        [((), snapshot.overflowed_total)],
    )
    yield _gauge("sluice_rule_set_version", "Version of the rule set in force.", (), [((), snapshot.rule_set_version)])
    yield _gauge(
        "sluice_limiting", "1 while limiting is on, 0 while everything passes.", (), [((), int(snapshot.limiting))]
    )
    yield _gauge("sluice_draining", "1 while no new connections are accepted.", (), [((), int(snapshot.draining))])


async def scrape(data_path: DataPath, accept: str) -> tuple[bytes, str]:
    """Take a snapshot and write it down.

    Writing takes a thread: with a thousand resources it computes for tens of milliseconds, which the data path
    must not wait for.

    Args:
        data_path: whose counters.
        accept: the request's Accept header; chooses between OpenMetrics and Prometheus' text format.

    Returns:
        The body and its content type.
    """
    snapshot = await data_path.snapshot()
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    return await trio.to_thread.run_sync(encode, registry), content_type
