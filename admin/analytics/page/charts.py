"""The pictures of the page, by Bokeh, as data that a script draws in the colours of the reader's theme.

A colour here is a name: the script puts that of the theme in its place. No chart is without a table beside it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bokeh.core.properties import value
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from admin.analytics import words
from admin.analytics.edits import limit_line
from admin.analytics.findings import Curve, Findings, Storm
from admin.analytics.page.markup import label
from admin.wire.recommendations import Recommendation

MOST_RECOMMENDED: Final = 15
"""Recommendations that fit one chart."""
MOST_CULPRITS: Final = 12
_MS: Final = 1000
_ROW_PX: Final = 42
_CURVE_PX: Final = 230
_ROOM: Final = 1.12
"""The axis ends this many times the highest value."""


class Palette:
    """Placeholders that ``draw.js`` replaces with the colours of the theme; nothing else uses these colours."""

    INK: Final = "#01f001"
    MUTED: Final = "#01f002"
    LINE: Final = "#01f003"
    ADMITTED: Final = "#01f004"
    REFUSE: Final = "#01f005"
    LIMIT: Final = "#01f006"
    GHOST: Final = "#01f007"
    SURFACE: Final = "#01f008"
    NAMES: Final[Mapping[str, str]] = {
        INK: "--text",
        MUTED: "--muted",
        LINE: "--line",
        ADMITTED: "--pass",
        REFUSE: "--refuse",
        LIMIT: "--limit",
        GHOST: "--ghost",
        SURFACE: "--surface",
    }


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        id: of its element.
        item: what Bokeh draws.
        height_px: of it.
        says: what is to be seen, for those who do not see it.
    """

    id: str
    item: Any
    height_px: int
    says: str


def charts_of(findings: Findings) -> dict[str, Chart]:
    """Return the charts of a page by their ids, those that have something to show."""
    charts = []
    if findings.storms:
        charts.append(_storms(findings))
    charts += [_curve(curve, f"curve-{at}") for at, curve in enumerate(findings.curves)]
    if findings.culprits:
        charts.append(_culprits(findings))
    shown = [each for each in findings.recommendations if each.recommended_rate_per_s is not None]
    if shown:
        charts.append(_recommendations(shown[:MOST_RECOMMENDED]))
    return {chart.id: chart for chart in charts}


def resource_words(findings: Findings) -> Callable[[Any], str]:
    """Return what names a resource here: with its sidecar if there are several, with its kind if that must be said."""
    several = findings.instance_count > 1

    def name(thing: Any) -> str:
        words_ = words.resource(thing.kind, thing.name)
        return f"{words_} on {thing.instance}" if several else words_

    return name


def _figure(height_px: int, **how: Any) -> Any:
    plot = figure(
        height=height_px,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=0,
        min_border_right=14,
        **how,
    )
    for axis in plot.axis:
        axis.axis_line_color = Palette.LINE
        axis.major_tick_line_color = Palette.LINE
        axis.minor_tick_line_color = None
        axis.major_label_text_color = Palette.MUTED
        axis.major_label_text_font = "system-ui, sans-serif"
        axis.major_label_text_font_size = "11px"
    plot.grid.grid_line_color = Palette.LINE
    return plot


def _finish(plot: Any, chart_id: str, says: str) -> Chart:
    return Chart(chart_id, json_item(plot, ID(chart_id)), plot.height, says)


def _hover(plot: Any, renderers: Sequence[Any], rows: Iterable[tuple[str, str]]) -> None:
    plot.add_tools(HoverTool(renderers=list(renderers), tooltips=list(rows), point_policy="follow_mouse"))


def _rows_figure(names: Sequence[str], x_range: Range1d, **how: Any) -> Any:
    """Make a figure with a row for each name, written above what it names: narrow screens have no room beside it."""
    y_range = Range1d(start=len(names) - 0.35, end=-0.75)
    plot = _figure(max(96, 34 + _ROW_PX * len(names)), x_range=x_range, y_range=y_range, **how)
    plot.yaxis.visible = False
    # Half of the first tick's label.
    plot.min_border_left = 14
    plot.ygrid.grid_line_color = None
    plot.text(
        x=x_range.start,
        y="y",
        text="text",
        source=ColumnDataSource({"y": [at - 0.30 for at in range(len(names))], "text": list(names)}),
        text_color=Palette.INK,
        text_font=value("system-ui, sans-serif"),
        text_font_size="12px",
        text_baseline="middle",
        x_offset=2,
    )
    return plot


def _storms(findings: Findings) -> Chart:
    """Draw storms over time, a row for each resource; a bar shows how long, a dot how many messages."""
    name_of = resource_words(findings)
    names = list(dict.fromkeys(map(name_of, findings.storms)))
    period = findings.period
    start = min([storm.start_s for storm in findings.storms] + ([period.from_s] if period.from_s is not None else []))
    end = max([storm.end_s for storm in findings.storms] + ([period.until_s] if period.until_s is not None else []))
    margin = max(1, (end - start) // 50)
    plot = _rows_figure(
        [label(name) for name in names],
        x_axis_type="datetime",
        x_range=Range1d(start=(start - margin) * _MS, end=(end + margin) * _MS),
    )
    most = max(storm.messages for storm in findings.storms) or 1
    source = ColumnDataSource(
        {
            "y": [names.index(name_of(storm)) + 0.12 for storm in findings.storms],
            "left": [storm.start_s * _MS for storm in findings.storms],
            "right": [storm.end_s * _MS for storm in findings.storms],
            "peak": [storm.peak_at_s * _MS for storm in findings.storms],
            "size": [6 + 14 * math.sqrt(storm.messages / most) for storm in findings.storms],
            "who": [label(name_of(storm), 80) for storm in findings.storms],
            "when": [_when(storm) for storm in findings.storms],
            "refused": [words.counted(storm.messages, "message") for storm in findings.storms],
            "peak_rate": [words.rate(storm.peak_per_s) for storm in findings.storms],
        }
    )
    bars = plot.hbar(
        y="y", left="left", right="right", height=0.26, source=source, fill_color=Palette.REFUSE, fill_alpha=0.45,
        line_color=Palette.REFUSE,
    )  # fmt: skip
    dots = plot.scatter(
        x="peak",
        y="y",
        size="size",
        source=source,
        fill_color=Palette.REFUSE,
        line_color=Palette.SURFACE,
        line_width=1.5,
    )
    _hover(
        plot,
        [bars, dots],
        [("resource", "@who"), ("when", "@when"), ("refused", "@refused"), ("peak", "@peak_rate")],
    )
    worst = findings.storms[0]
    return _finish(
        plot,
        "storms-chart",
        f"Timeline of {words.counted(len(findings.storms), 'storm')} of {words.counted(len(names), 'resource')}; the "
        f"largest is of {label(name_of(worst), 80)}, {_when(worst)}. The table below has them all.",
    )


def _when(storm: Storm) -> str:
    return words.span(storm.start_s, storm.end_s) + (", may go on" if storm.is_open else "")


def _curve(curve: Curve, chart_id: str) -> Chart:
    """Draw the demand of one resource: admitted and refused in front of the busiest second, behind the limit."""
    points = curve.points
    highest = max((point.peak_per_s for point in points), default=0.0)
    line = [piece for piece in limit_line(curve) if piece.limit_per_s is not None]
    # A limit far above all demand would press the demand flat; it stands in the caption.
    seen = [piece.limit_per_s for piece in line if piece.limit_per_s is not None and piece.limit_per_s <= 2 * highest]
    top = max([highest, *seen, 1.0]) * _ROOM
    start, end = (points[0].at_s, points[-1].at_s + curve.step_s) if points else (0, curve.step_s)
    plot = _figure(
        _CURVE_PX,
        x_axis_type="datetime",
        x_range=Range1d(start=start * _MS, end=end * _MS),
        y_range=Range1d(start=0, end=top),
    )
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0" if top >= 5 else "0.0")  # a tick for each message
    plot.xgrid.grid_line_color = None
    source = ColumnDataSource(
        {
            "left": [point.at_s * _MS for point in points],
            "right": [(point.at_s + curve.step_s) * _MS for point in points],
            "admitted": [point.admitted_per_s for point in points],
            "asked": [point.admitted_per_s + point.refused_per_s for point in points],
            "admitted_text": [words.rate(point.admitted_per_s) for point in points],
            "refused_text": [words.rate(point.refused_per_s) for point in points],
            "peak": [point.peak_per_s for point in points],
            "limit_text": [words.rate(point.limit_per_s) for point in points],
            "when": [words.moment(point.at_s) for point in points],
        }
    )
    whole = plot.quad(
        left="left", right="right", bottom=0, top="peak", source=source, fill_color=Palette.GHOST, line_color=None
    )
    plot.quad(
        left="left",
        right="right",
        bottom=0,
        top="admitted",
        source=source,
        fill_color=Palette.ADMITTED,
        line_color=None,
    )
    plot.quad(
        left="left", right="right", bottom="admitted", top="asked", source=source, fill_color=Palette.REFUSE,
        line_color=None,
    )  # fmt: skip
    if seen:
        plot.segment(
            x0="from",
            x1="until",
            y0="limit",
            y1="limit",
            source=ColumnDataSource(
                {
                    "from": [piece.from_s * _MS for piece in line],
                    "until": [piece.until_s * _MS for piece in line],
                    "limit": [piece.limit_per_s for piece in line],
                }
            ),
            line_color=Palette.LIMIT,
            line_width=2,
            line_cap="square",
        )
    _hover(
        plot,
        [whole],
        [
            ("from", "@when UTC"),
            ("admitted", "@admitted_text"),
            ("refused", "@refused_text"),
            ("busiest second", "@peak{0,0}"),
            ("limit", "@limit_text"),
        ],
    )
    return _finish(
        plot,
        chart_id,
        f"Messages per second of {label(curve.name, 80)}, in steps of {words.duration(curve.step_s)}: "
        f"{words.amount(curve.admitted)} admitted and {words.amount(curve.refused)} refused in all. "
        "The table below has the figures.",
    )


def _culprits(findings: Findings) -> Chart:
    """Draw who was refused most."""
    name_of = resource_words(findings)
    shown = findings.culprits[:MOST_CULPRITS]
    names = [
        label(
            f"{'  '.join(filter(None, (each.client, each.user, each.producer_group, each.product)))} → {name_of(each)}",
            64,
        )
        for each in shown
    ]
    most = max((each.messages for each in shown), default=1) or 1
    plot = _rows_figure(names, x_range=Range1d(start=0, end=most * 1.2))
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    source = ColumnDataSource(
        {
            "y": [at + 0.12 for at in range(len(shown))],
            "messages": [each.messages for each in shown],
            "who": names,
            "text": [f"{words.percent(each.share)}" for each in shown],
            "requests": [words.amount(each.requests) for each in shown],
        }
    )
    bars = plot.hbar(
        y="y", left=0, right="messages", height=0.34, source=source, fill_color=Palette.REFUSE, fill_alpha=0.85,
        line_color=None,
    )  # fmt: skip
    plot.text(
        x="messages", y="y", text="text", source=source, x_offset=6, text_baseline="middle", text_color=Palette.INK,
        text_font=value("system-ui, sans-serif"), text_font_size="12px",
    )  # fmt: skip
    _hover(
        plot,
        [bars],
        [("who", "@who"), ("messages refused", "@messages{0,0}"), ("requests", "@requests"), ("share", "@text")],
    )
    first = shown[0]
    return _finish(
        plot,
        "culprits-chart",
        f"Messages refused, by who sent them; the most are of {label(first.client, 60)}: "
        f"{words.amount(first.messages)}. The table below has them all.",
    )


def _recommendations(shown: Sequence[Recommendation]) -> Chart:
    """Draw each limit as it is, an open circle, and as recommended, a full one."""
    names = [label(f"{each.name}   {words.change(each)}", 64) for each in shown]
    rates = [rate for each in shown for rate in (each.rate_per_s, each.recommended_rate_per_s) if rate]
    low, high = (min(rates) / 3, max(rates) * 3) if rates else (1.0, 10.0)
    plot = _rows_figure(names, x_axis_type="log", x_range=Range1d(start=low, end=high))
    # As many decimals as the smallest tick has.
    plot.xaxis.formatter = NumeralTickFormatter(format=f"0,0.[{'0' * max(1, math.ceil(-math.log10(low)))}]")
    rows = [
        {
            "y": at + 0.12,
            "now": each.rate_per_s or math.nan,
            "then": each.recommended_rate_per_s or math.nan,
            "what": label(each.name, 80),
            "change": words.change(each),
            "refused": words.refusals(each) or "not replayed",
            "confidence": each.confidence,
        }
        for at, each in enumerate(shown)
    ]
    source = ColumnDataSource({key: [row[key] for row in rows] for key in rows[0]})
    plot.segment(x0="now", x1="then", y0="y", y1="y", source=source, line_color=Palette.MUTED, line_width=2)
    old = plot.scatter(
        x="now", y="y", size=11, source=source, fill_color=Palette.SURFACE, line_color=Palette.MUTED, line_width=2
    )
    new = plot.scatter(
        x="then", y="y", size=12, source=source, fill_color=Palette.ADMITTED, line_color=Palette.ADMITTED
    )
    _hover(
        plot,
        [old, new],
        [("limit of", "@what"), ("change", "@change"), ("refused then", "@refused"), ("confidence", "@confidence")],
    )
    return _finish(
        plot,
        "recommendations-chart",
        f"The limits of {words.counted(len(shown), 'resource')} as they are and as recommended, per second. The"
        " table below has the figures.",
    )
