"""From measurements to medians, ratios, tables and JSON, without starting or measuring anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rows import (
    ACCEPT,
    ANSWERED,
    CONFIRMS,
    DECISIONS,
    DIRECT,
    FLOOD,
    HAPROXY,
    LOADED,
    MEMORY,
    PUBLISHES,
    QUIET,
    REFUSED,
    RTT,
    TRANSFERS,
    TRIO_RELAY,
    Row,
)

Measurement = dict[str, Any]
Compare = Callable[[Measurement, Measurement], float | None]

GUAVA = "guava tryAcquire()"

# The main figure of a line: its spread is shown, and it is compared.
MAIN = {
    FLOOD: "decided_per_s",
    ANSWERED: "decided_per_s",
    RTT: "p50_us",
    LOADED: "p99_us",
    ACCEPT: "connections_per_s",
    QUIET: "p99_x_alone",
    MEMORY: "busy_kib",
    DECISIONS: "decisions_per_s",
    PUBLISHES: "decided_per_s",
    CONFIRMS: "decided_per_s",
    TRANSFERS: "decided_per_s",
}

# Other figures that are compared with HAProxy's.
LIKEWISE = {"p99_x_haproxy": "p99_us", "quiet_p50_x_haproxy": "p50_x_alone", "quiet_p99_x_haproxy": "p99_x_alone"}


@dataclass
class Table:
    """The measurements of one row: peer -> one per round, in order."""

    row: Row
    rounds: dict[str, list[Measurement]] = field(default_factory=dict)

    def add(self, peer: str, measurement: Measurement) -> None:
        self.rounds.setdefault(peer, []).append(measurement)

    def series(self, peer: str, figure: str) -> list[float]:
        """Return one figure of each round, as measured or relative to another peer within the round."""
        main = MAIN[self.row.kind]
        if figure == "against_haproxy":
            return self._compared(peer, HAPROXY, lambda mine, theirs: ratio(mine[main], theirs[main]))
        if figure == "against_guava":
            return self._compared(peer, GUAVA, lambda mine, theirs: ratio(mine[main], theirs[main]))
        if figure == "over_trio_relay_us":
            if not peer.startswith("sluice"):
                return []
            key = "cpu_us_per_frame"
            return self._compared(peer, TRIO_RELAY, lambda mine, theirs: mine[key] - theirs[key])
        if figure == "against_relay":
            return self._compared(peer, TRIO_RELAY, lambda mine, theirs: ratio(mine[main], theirs[main]))
        if figure.endswith("_x_haproxy"):
            key = LIKEWISE[figure]
            return self._compared(peer, HAPROXY, lambda mine, theirs: ratio(mine[key], theirs[key]))
        if figure == "added_p50_us":
            if peer == DIRECT:
                return []
            return self._compared(peer, DIRECT, lambda mine, theirs: mine["p50_us"] - theirs["p50_us"])
        if figure == "added_against_haproxy":
            pairs = zip(self.series(peer, "added_p50_us"), self.series(HAPROXY, "added_p50_us"), strict=False)
            return [mine / theirs for mine, theirs in pairs if theirs > 0]
        return [m[figure] for m in self.rounds.get(peer, ()) if m.get(figure) is not None]

    def _compared(self, peer: str, other: str, compare: Compare) -> list[float]:
        # Inside one round, so that drift of the machine cancels out.
        pairs = zip(self.rounds.get(peer, ()), self.rounds.get(other, ()), strict=False)
        values = [compare(mine, theirs) for mine, theirs in pairs if None not in (mine, theirs)]
        return [value for value in values if value is not None]

    def median(self, peer: str, figure: str) -> float | None:
        """Return the median of one figure, or None."""
        values = self.series(peer, figure)
        return median(values) if values else None

    def spread(self, peer: str) -> float | None:
        """Return (largest - smallest) / median of the row's main figure."""
        values = self.series(peer, MAIN[self.row.kind])
        middle = median(values) if values else 0
        return (max(values) - min(values)) / middle if middle else None

    def summary(self, peer: str) -> dict[str, float | None]:
        figures = {key: self.median(peer, key) for key, _, _ in COLUMNS[self.row.kind]}
        return figures | {"spread": self.spread(peer)}

    def text(self) -> str:
        columns = (*COLUMNS[self.row.kind], ("spread", "spread", ".0%"))
        lines = [["peer", *(heading for _, heading, _ in columns)]]
        for peer in self.rounds:
            figures = self.summary(peer)
            lines.append([peer, *(cell(figures[key], style) for key, _, style in columns)])
        rounds = max((len(each) for each in self.rounds.values()), default=0)
        return f"{self.row.name}: {self.row.title} (median of {rounds})\n{aligned(lines)}"

    def as_json(self) -> dict[str, Any]:
        peers = {peer: {"median": self.summary(peer), "rounds": each} for peer, each in self.rounds.items()}
        return {"name": self.row.name, "kind": self.row.kind, "title": self.row.title, "peers": peers}


def _throughput(one: str, many: str) -> tuple[tuple[str, str, str], ...]:
    return (
        ("mb_per_s", "MB/s", ",.0f"),
        ("decided_per_s", f"{many}/s", ",.0f"),
        ("against_haproxy", "x HAProxy", ".2f"),
        ("cpu_us_per_frame", f"CPU us/{one}", ".2f"),
        ("over_trio_relay_us", "over relay", "+.2f"),
        ("cpu_share", "core used", ".0%"),
        ("waited_share", "waited", ".0%"),
    )


# By kind of row: key of the summary, heading, format.
COLUMNS = {
    FLOOD: _throughput("frame", "frames"),
    ANSWERED: _throughput("frame", "frames"),
    PUBLISHES: _throughput("publish", "publishes"),
    CONFIRMS: _throughput("publish", "publishes"),
    TRANSFERS: _throughput("transfer", "transfers"),
    RTT: (
        ("p50_us", "p50 us", ",.1f"),
        ("p99_us", "p99 us", ",.1f"),
        ("p999_us", "p99.9 us", ",.1f"),
        ("against_haproxy", "p50 x HAProxy", ".2f"),
        ("p99_x_haproxy", "p99 x HAProxy", ".2f"),
        ("added_p50_us", "p50 added us", "+.1f"),
        ("added_against_haproxy", "added x HAProxy", ".2f"),
    ),
    LOADED: (
        ("rate_per_s", "requests/s", ",.0f"),
        ("p50_us", "p50 us", ",.0f"),
        ("p99_us", "p99 us", ",.0f"),
        ("p999_us", "p99.9 us", ",.0f"),
        ("late_p99_us", "load late p99", ",.0f"),
        ("haproxy_p50_us", "HAProxy there: p50", ",.0f"),
        ("haproxy_p99_us", "p99", ",.0f"),
        ("p99_against_haproxy", "p99 x HAProxy", ".2f"),
    ),
    ACCEPT: (
        ("connections_per_s", "connections/s", ",.0f"),
        ("against_haproxy", "x HAProxy", ".2f"),
        ("p50_us", "p50 us", ",.0f"),
        ("p99_us", "p99 us", ",.0f"),
        ("cpu_us_per_connection", "CPU us each", ",.0f"),
        ("cpu_share", "core used", ".0%"),
    ),
    QUIET: (
        ("alone_p50_us", "alone: p50 us", ",.0f"),
        ("alone_p99_us", "p99 us", ",.0f"),
        ("p50_us", "beside: p50 us", ",.0f"),
        ("p99_us", "p99 us", ",.0f"),
        ("p50_x_alone", "p50 x alone", ".1f"),
        ("p99_x_alone", "p99 x alone", ".1f"),
        ("quiet_p50_x_haproxy", "p50's x HAProxy's", ".2f"),
        ("quiet_p99_x_haproxy", "p99's x HAProxy's", ".2f"),
        ("decided_per_s", "flood: frames/s", ",.0f"),
        ("cpu_share", "core used", ".0%"),
    ),
    MEMORY: (
        ("fresh_mb", "without any, MB", ",.1f"),
        ("idle_kib", "KiB each, idle", ",.1f"),
        ("busy_kib", "KiB each, busy", ",.1f"),
    ),
    DECISIONS: (
        ("decisions_per_s", "decisions/s", ",.0f"),
        ("ns_per_decision", "ns each", ",.1f"),
        ("against_guava", "x Guava", ".2f"),
    ),
}


def ratio(mine: float | None, theirs: float | None) -> float | None:
    """Return mine / theirs, or None if one is missing."""
    return mine / theirs if mine is not None and theirs else None


def cell(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Align cells in columns, the first to the left and the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def faults(peer: str, measurement: Measurement) -> list[str]:
    """Return faults of a measurement: lost bytes, skipped limiting, unexpected refusals."""
    found = []
    if measurement["lost"]:
        found.append(f"{measurement['lost']} frames unaccounted for")
    if measurement.get("unanswered"):
        found.append(f"{measurement['unanswered']} answers did not arrive")
    if measurement.get("broken"):
        found.append(f"{measurement['broken']} connections broken inside a frame")
    if measurement.get("quiet_busy"):
        found.append(f"{measurement['quiet_busy']} requests of the quiet client refused")
    for reason, count in measurement["bypassed"].items():
        found.append(f"{count} requests bypassed the limiter: {reason}")
    if peer.startswith(REFUSED):
        if measurement["arrived"]:
            found.append(f"{measurement['arrived']} frames passed although all are refused")
    elif measurement["busy"]:
        found.append(f"{measurement['busy']} requests refused although none should be")
    return found
