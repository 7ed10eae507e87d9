"""Small charts over time as SVG: stacked areas or lines, a scale, a legend below. Light colors only."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final

INK: Final = "#24292f"
MUTED: Final = "#5b6570"
_GRID: Final = "#e3e7ea"
_SHADE: Final = "#f3ece4"
_LEFT: Final = 52
_CHARACTER: Final = 6.3
"""Mean width of a label's character, and the gap before the scale."""
_LABEL_GAP: Final = 6
_RIGHT: Final = 16
_TOP: Final = 8
_BOTTOM: Final = 22
_MAX_TICKS: Final = 5


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    width: int
    height: int
    span_s: tuple[float, float]
    value: Callable[[float], str]
    stacked: bool = False
    most: float = 0.0
    shaded_s: tuple[float, float] | None = None
    left: int = _LEFT

    def draw(self, series: Sequence[Series]) -> str:
        """Return the SVG, and its legend."""
        drawn = self._stack(series) if self.stacked else [(each, each.points, None) for each in series]
        values = [y for _, points, _ in drawn for _, y in points if not math.isnan(y)]
        ticks = _ticks(max([*values, self.most], default=0.0))
        top = ticks[-1]
        needed = math.ceil(max(len(self.value(tick)) for tick in ticks) * _CHARACTER) + _LABEL_GAP
        if needed > self.left:
            return replace(self, left=needed).draw(series)
        parts = [f'<svg width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}">']
        if self.shaded_s is not None:
            left, right = (self._x(max(self.span_s[0], min(self.span_s[1], at_s))) for at_s in self.shaded_s)
            parts.append(
                f'<rect x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" '
                f'height="{self.height - _TOP - _BOTTOM}" fill="{_SHADE}"/>'
            )
        for tick in ticks:
            y = self._y(tick, top)
            parts.append(f'<path d="M{self.left} {y:.1f}H{self.width - _RIGHT}" stroke="{_GRID}"/>')
            parts.append(_text(self.left - _LABEL_GAP, y + 4, self.value(tick), "end"))
        parts += self._seconds()
        # From the back, so that the lowest of a stack is drawn last.
        parts += [self._one(each, points, below, top) for each, points, below in reversed(drawn)]
        parts.append("</svg>")
        return "".join(parts) + legend(series)

    def _stack(
        self, series: Sequence[Series]
    ) -> list[tuple[Series, Sequence[tuple[float, float]], Sequence[tuple[float, float]] | None]]:
        sums: dict[float, float] = {}
        stacked: list[tuple[Series, Sequence[tuple[float, float]], Sequence[tuple[float, float]] | None]] = []
        for each in series:
            if each.dashed:
                stacked.append((each, each.points, None))
                continue
            below = [(at_s, sums.get(at_s, 0.0)) for at_s, _ in each.points]
            for at_s, y in each.points:
                sums[at_s] = sums.get(at_s, 0.0) + (0.0 if math.isnan(y) else y)
            stacked.append((each, [(at_s, sums[at_s]) for at_s, _ in each.points], below))
        return stacked

    def _one(
        self,
        series: Series,
        points: Sequence[tuple[float, float]],
        below: Sequence[tuple[float, float]] | None,
        top: float,
    ) -> str:
        line = self._path(points, top)
        style = f'fill="none" stroke="{series.colour}" stroke-width="1.6" stroke-linejoin="round"'
        if series.dashed:
            return f'<path d="{line}" {style} stroke-dasharray="5 4"/>'
        if below is not None and points:
            area = f"{line}L{self._path(list(reversed(below)), top)[1:]}Z"
            return f'<path d="{area}" fill="{series.colour}" fill-opacity="0.85"/>'
        return f'<path d="{line}" {style}/>'

    def _path(self, points: Sequence[tuple[float, float]], top: float) -> str:
        parts, pen = [], "M"
        for at_s, y in points:
            if math.isnan(y):
                pen = "M"
                continue
            parts.append(f"{pen}{self._x(at_s):.1f} {self._y(y, top):.1f}")
            pen = "L"
        return "".join(parts)

    def _seconds(self) -> list[str]:
        first, last = self.span_s
        step = next(step for step in (5, 10, 15, 20, 30, 60, 120, 300) if (last - first) / step <= self.width / 70)
        return [
            _text(self._x(at_s), self.height - 5, f"{at_s} s", "middle")
            for at_s in range(math.ceil(first / step) * step, int(last) + 1, step)
        ]

    def _x(self, at_s: float) -> float:
        first, last = self.span_s
        return self.left + (at_s - first) / (last - first) * (self.width - self.left - _RIGHT)

    def _y(self, value: float, top: float) -> float:
        return self.height - _BOTTOM - value / top * (self.height - _TOP - _BOTTOM)


def legend(series: Sequence[Series]) -> str:
    """Return the legend as a line of HTML."""
    entries = "".join(
        f'<span><i class="{"line" if each.dashed else ""}" style="background:{each.colour}"></i>{escape(each.name)}'
        "</span>"
        for each in series
        if each.name
    )
    return f'<div class="legend">{entries}</div>'


def _ticks(most: float) -> list[float]:
    """Return round values from 0 to above the largest one."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / (_MAX_TICKS - 1)
    unit = 10 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" fill="{MUTED}">{escape(text)}</text>'
