"""The goals of the data path, compared with the tables of a run, and the growth of cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from report import Table, aligned
from rows import ANSWERED, FLEET, GROWTH, LIMITED, REFUSED, SATURATION, TRIO_RELAY

SCANS = ("python", "compiled")
BATCHED = "sluice, batches of a full read"
"""The line that decides like the data path under load."""
_MINE = f"{LIMITED}-{{scan}}"


@dataclass(frozen=True)
class Goal:
    title: str
    row: str
    figure: str
    wanted: Mapping[str, float | None]
    at_most: bool = True
    line: str = _MINE
    of: str = ""

    def held_against(self, tables: Mapping[str, Table]) -> "list[Held]":
        """Return the result of each scan."""
        found = []
        for scan, bound in self.wanted.items():
            values = self._values(tables, scan)
            if not values:
                met: Met = "not measured"
            elif bound is None:
                met = "reported"
            else:
                reached = median(values) <= bound if self.at_most else median(values) >= bound
                met = "met" if reached else "NOT met"
            found.append(Held(self, scan, bound, values, met))
        return found

    def _values(self, tables: Mapping[str, Table], scan: str) -> list[float]:
        mine = self._series(tables.get(self.row), self.line, scan)
        if not self.of:
            return mine
        pairs = zip(mine, self._series(tables.get(self.row), self.of, scan), strict=False)
        return [value / other for value, other in pairs if other]

    def _series(self, table: Table | None, line: str, scan: str) -> list[float]:
        return table.series(line.format(scan=scan), self.figure) if table else []


Met = Literal["met", "NOT met", "reported", "not measured"]


@dataclass(frozen=True)
class Held:
    """A goal compared with a run."""

    goal: Goal
    scan: str
    bound: float | None
    values: list[float]
    met: Met

    def cells(self) -> list[str]:
        sign = "<=" if self.goal.at_most else ">="
        wanted = "report" if self.bound is None else f"{sign} {self.bound:g}"
        if not self.values:
            return [self.goal.title, self.scan, wanted, "-", "-", self.met]
        spread = f"{min(self.values):.2f} to {max(self.values):.2f}"
        return [self.goal.title, self.scan, wanted, f"{median(self.values):.2f}", spread, self.met]

    def as_json(self) -> dict[str, Any]:
        return {
            "goal": self.goal.title,
            "row": self.goal.row,
            "scan": self.scan,
            "at_most" if self.goal.at_most else "at_least": self.bound,
            "measured": median(self.values) if self.values else None,
            "rounds": self.values,
            "met": self.met,
        }


def _compiled(bound: float) -> dict[str, float | None]:
    return {"python": None, "compiled": bound}


def _by_haproxy(row: str, at_least: float) -> Goal:
    return Goal(f"{row} x HAProxy", row, "against_haproxy", _compiled(at_least), at_most=False)


GOALS = (
    _by_haproxy("throughput-64", 1.1),
    _by_haproxy("throughput-1000", 1.0),
    _by_haproxy("topics-1000", 0.9),
    _by_haproxy("topics-1000000", 0.5),
    _by_haproxy(SATURATION, 0.9),
    _by_haproxy("accept", 0.5),
    _by_haproxy("publishes-128", 1.0),
    _by_haproxy("confirms-128", 0.7),
    _by_haproxy("transfers-128", 0.7),
    Goal(
        "everything refused: answers/s x own frames/s that pass",
        "throughput-64",
        "decided_per_s",
        _compiled(0.9),
        at_most=False,
        line=f"{REFUSED}-{{scan}}",
        of=_MINE,
    ),
    Goal(
        "a fleet's limit x a plain one",
        "throughput-64",
        "against_haproxy",
        _compiled(0.9),
        at_most=False,
        line=f"{FLEET}-{{scan}}",
        of=_MINE,
    ),
    Goal("p50 x HAProxy, one request at a time", "rtt-low", "against_haproxy", _compiled(1.3)),
    Goal("p99 x HAProxy, one request at a time", "rtt-low", "p99_x_haproxy", _compiled(1.5)),
    Goal("p99 x HAProxy at half of own saturation", "rtt-50", "p99_against_haproxy", _compiled(1.5)),
    Goal("quiet client: by what a flood stretches its p50, x HAProxy", "quiet", "quiet_p50_x_haproxy", _compiled(0.3)),
    Goal("quiet client: by what a flood stretches its p99, x HAProxy", "quiet", "quiet_p99_x_haproxy", _compiled(0.3)),
    Goal(
        "decisions/s x Guava, one bucket, batched as the data path does",
        "decisions",
        "against_guava",
        {"python": 1.0},
        at_most=False,
        line=BATCHED,
    ),
)


def held_against(tables: Sequence[Table]) -> list[Held]:
    by_row = {table.row.name: table for table in tables}
    return [held for goal in GOALS for held in goal.held_against(by_row)]


def goals_text(found: Sequence[Held]) -> str:
    """Return the goals as text, without reported ones that were not measured."""
    heading = ["goal", "scan", "wanted", "measured", "rounds", ""]
    shown = (held.cells() for held in found if held.values or held.bound is not None)
    return f"goals\n{aligned([heading, *shown])}"


def growth(tables: Sequence[Table]) -> dict[str, list[dict[str, Any]]]:
    """Return the cost of a frame by the growing quantity, one entry per measured row."""
    by_row = {table.row.name: table for table in tables}
    found: dict[str, list[dict[str, Any]]] = {}
    for what, names in GROWTH.items():
        for table in (by_row[name] for name in names if name in by_row):
            peers = [peer for peer in table.rounds if peer.startswith((LIMITED, TRIO_RELAY))]
            costs = {peer: table.median(peer, "cpu_us_per_frame") for peer in peers}
            over = {peer: table.median(peer, "over_trio_relay_us") for peer in peers if peer != TRIO_RELAY}
            count = table.row.connections if table.row.kind == ANSWERED else table.row.topics
            found.setdefault(what, []).append({what: count, "cpu_us_per_frame": costs, "over_trio_relay_us": over})
    return found


def growth_text(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the growth of a frame's cost as text, or an empty text without a comparison."""
    tables = []
    for what, entries in found.items():
        if len(entries) < 2:
            continue
        peers = list(dict.fromkeys(peer for entry in entries for peer in entry["cpu_us_per_frame"]))
        lines = [[what, *peers, *(f"{peer}, over relay" for peer in peers if peer != TRIO_RELAY)]]
        for entry in entries:
            figures = [entry["cpu_us_per_frame"].get(peer) for peer in peers]
            figures += [entry["over_trio_relay_us"].get(peer) for peer in peers if peer != TRIO_RELAY]
            cells = ["-" if figure is None else f"{figure:.2f}" for figure in figures]
            lines.append([f"{entry[what]:,}", *cells])
        tables.append(f"growth: CPU us per frame by {what}\n{aligned(lines)}")
    return "\n\n".join(tables)


def saturations(tables: Sequence[Table]) -> dict[str, float]:
    """Return the peers' saturations in answers a second."""
    found: dict[str, float] = {}
    for table in tables:
        if table.row.name == SATURATION:
            each = {peer: table.median(peer, "decided_per_s") for peer in table.rounds}
            found = {peer: rate for peer, rate in each.items() if rate}
    return found
