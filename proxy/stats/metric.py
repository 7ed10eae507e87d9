"""The description of a metric, written beside the field that holds its values.

A scrape and the reference are made from ``Annotated[int, Metric("sluice_evicted_total", "What it counts.")]``.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

Samples = Iterable[tuple[tuple[str, ...], Iterable[tuple[str, float]]]]
"""The values of all labels but the last, and for each value of the last one the metric's value there."""


class Metric(NamedTuple):
    """One metric: a counter if its name ends with ``_total``, a histogram if the field holds Durations, else a gauge.

    Attributes:
        name: as its samples have it.
        help: what it is.
        labels: their names, in alphabetical order.
        samples: makes samples of the field's value; None is for a plain number, and for numbers by the value of the
            label, or by a tuple of the values of the labels.
        source: where the data path keeps the value, such as ``limits.evicted_total``; empty if it is worked out.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    samples: Callable[[Any], Samples] | None = None
    source: str = ""


@cache
def described(struct: type[msgspec.Struct]) -> tuple[tuple[str, Metric], ...]:
    """Return the metrics of a struct, each with the name of its field."""
    hints = get_type_hints(struct, include_extras=True)
    return tuple(
        (field, metric)
        for field in struct.__struct_fields__
        for metric in getattr(hints[field], "__metadata__", ())
        if isinstance(metric, Metric)
    )


def samples_of(metric: Metric, value: Any) -> Samples:
    """Return the samples of a metric, given what its field holds; not of a histogram."""
    if metric.samples is not None:
        return metric.samples(value)
    if not metric.labels:
        return [((), [("", value)])]
    return _by_label(value.items())


def _by_label(items: Iterable[tuple[str | tuple[str, ...], float]]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in items:
        *head, last = (key,) if isinstance(key, str) else key
        yield tuple(head), ((last, value),)
