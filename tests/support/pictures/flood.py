"""A picture of one flood with and without Sluice, second by second."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pictures.charts import Chart, Series

_PASS: Final = "#2a9d8f"
_REFUSE: Final = "#e07b39"
_LIMIT: Final = "#1f3fae"
_HALF: Final = "#6c8ebf"
_MOST: Final = "#34507a"
_WIDTH: Final = 470
_HEIGHT: Final = 150


class Second(NamedTuple):
    """Outcomes per second, and the time of the answers of quiet topics, in ms."""

    at_s: float
    flooding: bool
    passed: float
    refused: float
    quiet_passed: float
    quiet_refused: float
    half_ms: float
    max_ms: float


class Run(NamedTuple):
    limit_per_s: float
    seconds: list[Second]

    @property
    def flood_s(self) -> tuple[float, float]:
        """The period of the flood."""
        times = [each.at_s for each in self.seconds if each.flooding]
        return times[0], times[-1]

    def points(self, field: str) -> list[tuple[float, float]]:
        """Return one of the figures over time."""
        return [(each.at_s, getattr(each, field)) for each in self.seconds]

    def flooded(self) -> list[Second]:
        """Return the seconds of the full flood, because a JVM starts slowly."""
        first, last = self.flood_s
        return [each for each in self.seconds if first + (last - first) / 3 < each.at_s < last]


def read(record: Path) -> Run:
    """Read the demo's output with ``--record``."""
    told = json.loads(record.read_text(encoding="utf-8"))
    seconds = []
    for before, now in zip(told["seconds"], told["seconds"][1:], strict=False):
        span_s = now["at_s"] - before["at_s"]
        passed, refused = (
            {topic: (counts[at] - before["counts"][topic][at]) / span_s for topic, counts in now["counts"].items()}
            for at in (1, 2)
        )
        flooded = told["flooded"]
        waits = sorted(wait_s * 1000 for found in now["waits_s"].values() for wait_s in found)
        seconds.append(
            Second(
                at_s=now["at_s"],
                flooding=now["flooding"],
                passed=passed[flooded],
                refused=refused[flooded],
                quiet_passed=sum(passed.values()) - passed[flooded],
                quiet_refused=sum(refused.values()) - refused[flooded],
                half_ms=_share(waits, 0.5),
                max_ms=_share(waits, 0.95),
            )
        )
    return Run(told["limit_per_s"], seconds)


def draw(alone: Run, limited: Run) -> str:
    """Return the picture as a page."""
    rows = [
        ("The flooded topic, messages a second", _flood),
        ("Five quiet topics together, messages a second", _quiet),
        ("How long their answers took", _waits),
    ]
    cells = []
    for title, chart in rows:
        drawn = chart([alone, limited])
        cells += [f"<section><h3>{title}</h3>{each}</section>" for each in drawn]
    heads = "".join(
        f"<header><h2>{name}</h2><p>{_told(run)}</p></header>"
        for name, run in (("RocketMQ alone", alone), ("RocketMQ behind Sluice", limited))
    )
    return f'<div class="two">{heads}{"".join(cells)}</div><p class="note">{_NOTE}</p>'


_NOTE: Final = (
    "Shaded: RocketMQ's benchmark producer floods one topic with 512 threads. Broker, clients and Sluice share one "
    "machine of two cores; the broker answers when the disk has it (SYNC_FLUSH). Behind Sluice the flooded topic is "
    "refused by Sluice, in requests, of which the producer makes three for a message; all else by the broker's fast "
    "failure."
)


def _told(run: Run) -> str:
    seconds = run.flooded()
    sent = sum(each.quiet_passed + each.quiet_refused for each in seconds)
    share = sum(each.quiet_refused for each in seconds) / sent
    halves = sorted(each.half_ms for each in seconds if not math.isnan(each.half_ms))
    return f"quiet topics in the flood: {share:.1%} refused, half answered within {_share(halves, 0.5):.0f} ms"


def _flood(runs: Sequence[Run]) -> list[str]:
    most = max(each.passed + each.refused for run in runs for each in run.seconds)
    return [
        _chart(run, "{:,.0f}", most, stacked=True).draw(
            [
                Series("stored", _PASS, run.points("passed")),
                Series("refused", _REFUSE, run.points("refused")),
                *_limit(run, number),
            ]
        )
        for number, run in enumerate(runs)
    ]


def _limit(run: Run, number: int) -> list[Series]:
    if number == 0:
        return []
    ends = [(run.seconds[0].at_s, run.limit_per_s), (run.seconds[-1].at_s, run.limit_per_s)]
    return [Series(f"limit, {run.limit_per_s:g}/s", _LIMIT, ends, dashed=True)]


def _quiet(runs: Sequence[Run]) -> list[str]:
    most = max(each.quiet_passed + each.quiet_refused for run in runs for each in run.seconds)
    return [
        _chart(run, "{:,.0f}", most, stacked=True).draw(
            [
                Series("stored", _PASS, run.points("quiet_passed")),
                Series("refused", _REFUSE, run.points("quiet_refused")),
            ]
        )
        for run in runs
    ]


def _waits(runs: Sequence[Run]) -> list[str]:
    most = max(each.max_ms for run in runs for each in run.seconds if not math.isnan(each.max_ms))
    return [
        _chart(run, "{:,.0f} ms", most).draw(
            [
                Series("half within", _HALF, run.points("half_ms")),
                Series("95% within", _MOST, run.points("max_ms")),
            ]
        )
        for run in runs
    ]


def _chart(run: Run, value: str, most: float, *, stacked: bool = False) -> Chart:
    return Chart(
        width=_WIDTH,
        height=_HEIGHT,
        span_s=(run.seconds[0].at_s, run.seconds[-1].at_s),
        value=value.format,
        stacked=stacked,
        most=most,
        shaded_s=run.flood_s,
    )


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else math.nan
