"""Metric descriptions, declared on the fields that hold the values.

``/metrics`` and the reference are generated from types like
``Annotated[int, Metric("sluice_evicted_total", "Help text.")]``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

Samples = Iterable[tuple[tuple[str, ...], Iterable[tuple[str, float]]]]
"""Groups of samples that differ only in the last label: the other label values, and (last value, number) pairs."""


class Metric(NamedTuple):
    """A counter if its name ends with ``_total``, a histogram if its field contains a struct, or else a gauge.

    Attributes:
        labels: label names in alphabetical order. The values are a mapping's keys. For a tuple of structs, they come
            from the field with the label's name or, if there is none, from ``name``.
        samples: converts the value to samples. None if it is a number, or a mapping of label values to numbers.
        source: where the data path keeps the value, such as ``limits.evicted_total``. Empty if it is computed.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    samples: Callable[[Any], Samples] | None = None
    source: str = ""
    value: Callable[[Any], float] = float


class _Field(NamedTuple):
    name: str
    metrics: tuple[Metric, ...]
    struct: type[msgspec.Struct] | None


@cache
def _fields(struct: type[msgspec.Struct]) -> tuple[_Field, ...]:
    hints = get_type_hints(struct, include_extras=True)
    return tuple(_field(name, hints[name]) for name in struct.__struct_fields__)


def _field(name: str, hint: Any) -> _Field:
    metrics = tuple(each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Metric))
    plain = getattr(hint, "__origin__", hint) if metrics else hint
    within = (each for each in (plain, *get_args(plain)) if isinstance(each, type) and issubclass(each, msgspec.Struct))
    return _Field(name, metrics, next(within, None))


def described(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Metric]]:
    return ((field.name, metric) for field in _fields(struct) for metric in field.metrics)


def measured(figures: msgspec.Struct) -> Iterator[tuple[Metric, Any]]:
    """Yield each metric with its samples or, for a histogram, with the field's value."""
    return _measured(type(figures), [figures])


def _measured(struct: type[msgspec.Struct], items: Sequence[msgspec.Struct]) -> Iterator[tuple[Metric, Any]]:
    for field in _fields(struct):
        for metric in field.metrics:
            if items and isinstance(value := getattr(items[0], field.name), msgspec.Struct):
                yield metric, value
            else:
                # The caller may read the samples later.
                yield metric, chain.from_iterable(map(partial(_samples, metric, field.name), items))
        if field.struct is not None:
            yield from _measured(field.struct, [each for item in items for each in _all(getattr(item, field.name))])


def _all(value: Any) -> Iterable[msgspec.Struct]:
    if isinstance(value, tuple):
        return value
    return (value,) if isinstance(value, msgspec.Struct) else ()


def _samples(metric: Metric, field: str, item: msgspec.Struct) -> Samples:
    value = getattr(item, field)
    if metric.samples is not None:
        return metric.samples(value)
    if isinstance(value, Mapping):
        return _by_key(value)
    fields = [label if hasattr(item, label) else "name" for label in metric.labels]
    *head, last = [getattr(item, each) for each in fields] or [""]
    return [(tuple(head), ((last, metric.value(value)),))]


def _by_key(values: Mapping[Any, float]) -> Samples:
    for key, value in values.items():
        *head, last = (key,) if isinstance(key, str) else key
        yield tuple(head), ((last, value),)
