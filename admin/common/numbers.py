"""Formats figures for people, without units."""

import math
from typing import Final

MAX_TIMESTAMP_S: Final = 253_402_214_400
"""The last day of the year 9999, the maximum of datetime."""
#: Written with an exponent outside of these.
_MAX: Final = 1e15
_MIN: Final = 1e-9


def number(value: float, decimals: int = 3, *, grouped: bool = False) -> str:
    """Format a figure without needless decimals. Only 0 is written as 0.

    ``decimals`` is their maximum, or that of significant digits below 1. ``grouped``: with commas between thousands.
    """
    size = abs(value)
    if not math.isfinite(value) or size >= _MAX or 0 < size < _MIN:
        return f"{value:g}"
    if 0 < size < 1:
        decimals = max(decimals, max(1, decimals) - 1 - math.floor(math.log10(size)))
    text = f"{value:{',' if grouped else ''}.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def limit(rate: float) -> str:
    """Limits are in millionths."""
    return number(rate, 6)


def measured(value: float) -> str:
    return number(round(value, 3))


def per_second(rate: float) -> str:
    """A measured rate is known to a tenth at most."""
    return number(rate, 1)


def percent(share: float) -> str:
    """Only an exact 0 or 1 is written as 0% or 100%."""
    if share <= 0:
        return "0%"
    if share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{share * 100:.1f}".removesuffix(".0") + "%"


def span(seconds: float) -> str:
    """Format a duration in one or two units."""
    whole = round(seconds)
    for unit, size, smaller, small in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def short_span(seconds: float) -> str:
    """Format a duration, with tenths below a minute."""
    return span(seconds) if seconds >= 60 else f"{seconds:.1f} s"
