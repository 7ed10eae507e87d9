"""Generates Prometheus metrics from a Snapshot on each scrape. The data path keeps only plain integers.

A metric's name, labels and help text are declared on the field that holds its value.
"""

import platform
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.utils import floatToGoString

from admin.common.tables import printable
from admin.common.version import sluice_version
from admin.config.logs import dropped_lines
from limiter.compiled import VERSION
from proxy.common.metric import Samples, measured
from proxy.common.threads import on_thread
from proxy.control import DataPath
from proxy.stats.snapshot import BUCKETS_S, Durations, Snapshot

_PIECE_BYTES: Final = 64 * 1024
"""Copying a response in one piece would take milliseconds."""
_EXPONENT_FROM: Final = 1_000_000
"""Below this, Prometheus formats numbers like Python."""
_OPENMETRICS: Final = "application/openmetrics-text"

LabeledValue = tuple[tuple[str, ...], float]


class Family(NamedTuple):
    """A metric family.

    Attributes:
        name: Ends with ``_total`` for a counter, and with ``_info`` for an info metric.
        labels: Label names in alphabetical order.
        lines: Samples as text, which are generated lazily. An item may contain more than one sample.
    """

    name: str
    type: str
    help: str
    labels: Sequence[str]
    lines: Iterable[str]


def counter(name: str, help_text: str, labels: Sequence[str], values: Iterable[LabeledValue]) -> Family:
    """Make a counter. ``_total`` is appended to its name. ``labels`` must be sorted."""
    return _family(f"{name}_total", help_text, labels, _one_by_one(values))


def gauge(name: str, help_text: str, labels: Sequence[str], values: Iterable[LabeledValue]) -> Family:
    return _family(name, help_text, labels, _one_by_one(values))


def _family(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Family:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Family(name, kind, help_text, labels, _lines(name, labels, samples))


def _histogram(name: str, help_text: str, durations: Durations) -> Family:
    bounds = [*map(floatToGoString, BUCKETS_S), "+Inf"]
    counts = list(accumulate(durations.counts))
    buckets = _lines(f"{name}_bucket", ("le",), [((), zip(bounds, counts, strict=True))])
    ends = [f"{name}_count {_number(counts[-1])}\n", f"{name}_sum {_number(durations.sum_s)}\n"]
    return Family(name, "histogram", help_text, (), chain(buckets, ends))


def _of_library(metric: Metric) -> Family:
    suffix = "_total" if metric.type == "counter" else ""
    samples = metric.samples
    lines = (line for each in samples for line in _lines(each.name, (), [((), [("", each.value)])]))
    return Family(metric.name + suffix, metric.type, metric.documentation, (), lines)


def _one_by_one(values: Iterable[LabeledValue]) -> Samples:
    for labels, value in values:
        yield labels[:-1], ((labels[-1] if labels else "", value),)


def _lines(name: str, labels: Sequence[str], samples: Samples) -> Iterator[str]:
    """Format samples. This is ten times faster than the library, because shared labels are formatted only once."""
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
    """Escape a label value, so that any string is valid and distinct values stay distinct."""
    if label.isalnum() and label.isascii():
        return label
    return printable(label.replace("\\", "\\\\")).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    if 0 <= value < _EXPONENT_FROM:
        return repr(float(value))
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # untyped library
    return text


def families_of(figures: msgspec.Struct) -> Iterator[Family]:
    for metric, samples in measured(figures):
        if isinstance(samples, Durations):
            yield _histogram(metric.name, metric.help, samples)
        else:
            yield _family(metric.name, metric.help, metric.labels, samples)


def families(snapshot: Snapshot) -> Iterator[Family]:
    yield from families_of(snapshot)
    yield counter(
        "sluice_log_lines_dropped",
        "Log lines dropped because their reader was too slow or gone.",
        (),
        [((), dropped_lines())],
    )
    labels = {"compiled_extension": VERSION, "python": platform.python_version(), "version": sluice_version()}
    written = ",".join(f'{name}="{value}"' for name, value in labels.items())
    build = f"sluice_build_info{{{written}}} 1.0\n"
    yield Family(
        "sluice_build_info", "info", "Version of Sluice, Python and the compiled extension.", tuple(labels), [build]
    )
    yield from map(_of_library, ProcessCollector(registry=CollectorRegistry()).collect())


async def scrape(data_path: DataPath, accept: str, extra: Iterable[Family] = ()) -> tuple[list[bytes], str]:
    """Take a snapshot and format it on a thread. Return the body in pieces, and its content type.

    ``accept`` selects OpenMetrics or the Prometheus text format. The samples in ``extra`` must not change until this
    returns.
    """
    return await on_thread(_write, await data_path.snapshot(), accept, extra)


def _write(snapshot: Snapshot, accept: str, extra: Iterable[Family]) -> tuple[list[bytes], str]:
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # The library fails if the header contains a malformed version.
        _, content_type = choose_encoder("")
    is_openmetrics = content_type.startswith(_OPENMETRICS)
    pieces, piece = [], bytearray()
    for family in chain(families(snapshot), extra):
        for text in chain([_head(family, is_openmetrics=is_openmetrics)], family.lines):
            piece += text.encode()
            if len(piece) >= _PIECE_BYTES:
                pieces.append(bytes(piece))
                piece.clear()
    for table in (snapshot.resources, snapshot.usage, snapshot.rules, snapshot.limits):
        while isinstance(table, dict) and table:
            # Freeing ten thousand entries at once would block other threads for milliseconds.
            table.popitem()
    if is_openmetrics:
        piece += b"# EOF\n"
    return [*pieces, bytes(piece)], content_type


def _head(family: Family, *, is_openmetrics: bool) -> str:
    name, kind = family.name, family.type
    if is_openmetrics:
        name = name.removesuffix("_total").removesuffix("_info")
    elif kind == "info":
        kind = "gauge"
    return f"# HELP {name} {family.help}\n# TYPE {name} {kind}\n"
