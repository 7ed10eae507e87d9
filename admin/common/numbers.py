"""Formats numbers and durations for display."""

import math
from typing import Final

MAX_TIMESTAMP_S: Final = 253_402_214_400
"""Start of December 31, 9999, in seconds since 1970. The datetime module does not support later years."""
#: Numbers outside the range from ``_MIN`` to ``_MAX`` are written with an exponent.
_MAX: Final = 1e15
_MIN: Final = 1e-9


def number(value: float, decimals: int = 3, *, grouped: bool = False) -> str:
    """Format a number without trailing zeros. Numbers other than 0 are never rounded to 0.

    ``decimals`` is the maximum number of decimal places, or of significant digits for numbers below 1. If ``grouped``
    is set, commas separate thousands.
    """
    size = abs(value)
    if not math.isfinite(value) or size >= _MAX or 0 < size < _MIN:
        return f"{value:g}"
    if 0 < size < 1:
        decimals = max(decimals, max(1, decimals) - 1 - math.floor(math.log10(size)))
    text = f"{value:{',' if grouped else ''}.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def limit(rate: float) -> str:
    """Format a limit with up to six decimal places, because limits have a resolution of one millionth."""
    return number(rate, 6)


def measured(value: float) -> str:
    return number(round(value, 3))


def per_second(rate: float) -> str:
    """Format a measured rate with one decimal place, because it is not more accurate than that."""
    return number(rate, 1)


def percent(share: float) -> str:
    """Format a fraction as a percentage. A value between 0 and 1 is never rounded to 0% or 100%."""
    if share <= 0:
        return "0%"
    if share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{share * 100:.1f}".removesuffix(".0") + "%"


def span(seconds: float) -> str:
    whole = round(seconds)
    for unit, size, smaller, small in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def short_span(seconds: float) -> str:
    return span(seconds) if seconds >= 60 else f"{seconds:.1f} s"
