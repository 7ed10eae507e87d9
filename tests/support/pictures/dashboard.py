"""The first panels of the Grafana dashboard, drawn from their own queries: what they show, not how Grafana shows it."""

import json
import math
import re
import urllib.parse
import urllib.request
from html import escape
from pathlib import Path
from typing import Any, Final

from pictures.charts import Chart, Series

DASHBOARD: Final = Path(__file__).resolve().parents[3] / "deploy" / "grafana" / "sluice.json"
#: Rows of panels that end above this fit into one picture.
_SHOWN_ROWS: Final = 31
_COLUMNS: Final = 24
_WIDTH: Final = 1000
_GAP: Final = 8
_PADDING: Final = 10
_CHART_HEIGHT: Final = 150
_STEP_S: Final = 1
_TIMEOUT_S: Final = 60.0
_NOTE: Final = (
    "Drawn from the queries of deploy/grafana/sluice.json, asked of a Prometheus during the flood; not Grafana."
)
#: Grafana's own order of colours, and what the dashboard calls by name.
_COLOURS: Final = ("#73BF69", "#F2CC0C", "#5794F2", "#FF9830", "#B877D9", "#8AB8FF", "#FF7383", "#37872D")
_NAMED: Final = {"green": "#56A64B", "red": "#E02F44", "orange": "#FF780A", "yellow": "#F2CC0C", "blue": "#3274D9"}
_NAMED_MORE: Final = {"purple": "#A352CC", "gray": "#8E8E8E", "grey": "#8E8E8E", "text": "#8E8E8E"}
_SHADES: Final = re.compile(r"^(?:super-light|light|semi-dark|dark)-")


class Source:
    """A Prometheus, asked as Grafana asks."""

    def __init__(self, address: str, from_s: float, until_s: float, rate_interval: str) -> None:
        self.from_s, self.until_s = from_s, until_s
        self._address, self._rate_interval = address, rate_interval

    def over_time(self, query: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return each series that a query finds: labels, and seconds since the first moment with values."""
        found = self._ask("query_range", query=query, start=self.from_s, end=self.until_s, step=_STEP_S)
        return [
            (each["metric"], [(at_s - self.from_s, float(value)) for at_s, value in each["values"]]) for each in found
        ]

    def at(self, query: str, at_s: float) -> float:
        """Return the one value of a query at a moment; nan if there is none."""
        found = self._ask("query", query=query, time=at_s)
        return float(found[0]["value"][1]) if found else math.nan

    def _ask(self, what: str, query: str, **how: float) -> Any:
        for name, value in {
            "$__rate_interval": self._rate_interval,
            "$job": ".*",
            "$instance": ".*",
            "$kind": ".*",
            "$top": "10",
        }.items():
            query = query.replace(name, value)
        question = urllib.parse.urlencode({"query": query, **how})
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{what}?{question}", timeout=_TIMEOUT_S) as answer:
            return json.load(answer)["data"]["result"]


def draw(source: Source, looked_at_s: float) -> str:
    """Return the picture as a page."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    cells = []
    for panel in panels:
        place = panel["gridPos"]
        if place["y"] + place["h"] > _SHOWN_ROWS:
            continue
        if panel["type"] == "row":
            body, kind = "", "row"
        elif panel["type"] == "stat":
            body, kind = _stat(panel, source, looked_at_s), "stat"
        else:
            body, kind = _timeseries(panel, source), "panel"
        title = f"<h3>{escape(panel['title'])}</h3>"
        cells.append(f'<section class="{kind}" style="grid-column:span {place["w"]}">{title}{body}</section>')
    return f'<div class="dashboard">{"".join(cells)}</div><p class="note">{_NOTE}</p>'


def _stat(panel: Any, source: Source, at_s: float) -> str:
    value = source.at(panel["targets"][0]["expr"], at_s)
    defaults = panel["fieldConfig"]["defaults"]
    text, colour = _value(value, defaults.get("unit", "short")), _NAMED["green"]
    for mapping in defaults.get("mappings", []):
        text = mapping.get("options", {}).get(f"{value:g}", {}).get("text", text)
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            colour = _colour(step["color"])
    return f'<b style="color:{colour}">{escape(text)}</b>'


def _timeseries(panel: Any, source: Source) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    fixed = {
        override["matcher"]["options"]: _colour(each["value"]["fixedColor"])
        for override in panel["fieldConfig"]["overrides"]
        for each in override["properties"]
        if each["id"] == "color"
    }
    custom = defaults.get("custom", {})
    series = []
    for target in panel["targets"]:
        for labels, points in source.over_time(target["expr"]):
            name = re.sub(r"\{\{(\w+)\}\}", lambda found, of=labels: of.get(found[1], ""), target["legendFormat"])  # type: ignore[misc]  # a default is no argument
            series.append((name, points))
    width = (_WIDTH - _GAP * (_COLUMNS - 1)) * panel["gridPos"]["w"] // _COLUMNS
    width += _GAP * (panel["gridPos"]["w"] - 1) - 2 * _PADDING
    unit = defaults.get("unit", "short")
    chart = Chart(
        width=width,
        height=_CHART_HEIGHT,
        span_s=(0, source.until_s - source.from_s),
        value=lambda value: _value(value, unit),
        stacked=custom.get("stacking", {}).get("mode") == "normal",
        fill=custom.get("fillOpacity", 0) / 100,
    )
    return chart.draw(
        [
            Series(name, fixed.get(name, _COLOURS[number % len(_COLOURS)]), points)
            for number, (name, points) in enumerate(series)
        ]
    )


def _colour(name: str) -> str:
    return ({**_NAMED, **_NAMED_MORE}).get(_SHADES.sub("", name), name)


def _value(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.0%}"
    scaled, letter = value, ""
    for letter_, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            scaled, letter = value / size, letter_
            break
    text = f"{scaled:.3g}"
    suffix = {"reqps": " req/s", "cps": " c/s", "Bps": "B/s", "bytes": "B"}.get(unit, "")
    return (
        f"{text} {letter}{suffix.strip()}" if unit in {"Bps", "bytes"} else f"{text}{letter and ' ' + letter}{suffix}"
    )
