"""Prometheus metrics, made from a Snapshot at scrape time; the data path itself keeps only plain integers.

Name, labels and meaning of a metric stand beside its field, in the Snapshot for the data path. The number of resource
labels is bounded by the data path (``bounds.max_resource_labels``); what is beyond it arrives under the resource
``_other``. What other parts of the admin side count they hand in with each scrape, made by ``families_of``,
``counter`` and ``gauge``.
"""

import platform
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple

import msgspec
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
from proxy.common.threads import on_thread
from proxy.control import DataPath
from proxy.stats.metric import Samples, described, samples_of
from proxy.stats.snapshot import BUCKETS_S, Durations, Snapshot

_PIECE_BYTES: Final = 64 * 1024
"""What is sent at a time: copying all of it at once would take milliseconds."""
_END: Final = b"# EOF\n"
"""What OpenMetrics ends with."""
_EXPONENT_FROM: Final = 1_000_000
"""Below this Prometheus writes numbers as Python does."""

LabeledValue = tuple[tuple[str, ...], float]
"""The values of a family's labels, and its value there."""


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
    return _family(f"{name}_total", help_text, labels, _one_by_one(values))


def gauge(name: str, help_text: str, labels: Sequence[str], values: Iterable[LabeledValue]) -> Family:
    """Make a gauge; the arguments are those of ``counter``."""
    return _family(name, help_text, labels, _one_by_one(values))


def _family(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Family:
    make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return Family(make(name, help_text, labels=labels), _texts(name, labels, samples))


def _histogram(name: str, help_text: str, durations: Durations) -> Family:
    """Make a histogram of durations in seconds."""
    bounds = [*map(floatToGoString, BUCKETS_S), "+Inf"]
    buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
    return Family(HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=durations.sum_s))


def _one_by_one(values: Iterable[LabeledValue]) -> Samples:
    for labels, value in values:
        yield labels[:-1], ((labels[-1] if labels else "", value),)


def _texts(name: str, labels: Sequence[str], samples: Samples) -> Iterator[str]:
    """Write samples as the library would, which takes ten times as long: it finds out all of it for each sample.

    What nearly all samples of ten thousand resources have in common is worked out once for each resource.
    """
    if not labels:
        for _, ((_, value),) in samples:
            yield f"{name} {_number(value)}\n"
        return
    *first, last = (f'{label}="' for label in labels)
    for head, tail in samples:
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


def families_of(figures: msgspec.Struct) -> Iterator[Family]:
    """Yield the metrics that the fields of a struct are described as."""
    for field, metric in described(type(figures)):
        value = getattr(figures, field)
        if isinstance(value, Durations):
            yield _histogram(metric.name, metric.help, value)
        else:
            yield _family(metric.name, metric.help, metric.labels, samples_of(metric, value))


def families(snapshot: Snapshot) -> Iterator[Family]:
    """Yield every metric of the data path and of the process."""
    yield from families_of(snapshot)
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


class _Alone(Collector):
    """One metric, for an encoder."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def scrape(data_path: DataPath, accept: str, extra: Iterable[Family] = ()) -> tuple[list[bytes], str]:
    """Take a snapshot and write it down, on a thread.

    Args:
        data_path: whose counters.
        accept: the request's Accept header; chooses between OpenMetrics and Prometheus' text format.
        extra: other metrics; their samples must not change any more.

    Returns:
        The body, in pieces that may be sent one after the other, and its content type.
    """
    return await on_thread(_write, await data_path.snapshot(), accept, extra)


def _write(snapshot: Snapshot, accept: str, extra: Iterable[Family]) -> tuple[list[bytes], str]:
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # The library compares a malformed version with a number.
        encode, content_type = choose_encoder("")
    pieces, piece = [], bytearray()
    for family in chain(families(snapshot), extra):
        piece += encode(_Alone(family.metric)).removesuffix(_END)
        for text in family.texts:
            piece += text.encode()
            if len(piece) >= _PIECE_BYTES:
                pieces.append(bytes(piece))
                piece.clear()
    for table in (snapshot.resources, snapshot.usage, snapshot.rules, snapshot.limits):
        while isinstance(table, dict) and table:
            # To free ten thousand entries at once takes milliseconds, in which no other thread runs.
            table.popitem()
    if content_type.startswith("application/openmetrics-text"):
        piece += _END
    return [*pieces, bytes(piece)], content_type
