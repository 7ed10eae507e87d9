"""From measurements to medians, ratios, tables and JSON; starts nothing, measures nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Measurement = dict[str, Any]

HAPROXY = "haproxy"
TRIO_RELAY = "trio-relay"
DIRECT = "direct"


@dataclass(frozen=True)
class Row:
    """One question put to every peer.

    Attributes:
        name: as given on the command line.
        kind: "throughput" or "rtt".
        connections: how many carry the load.
        frame_bytes: size of every frame.
        header: "json" or "binary".
        topics: how many take turns.
        rate_per_s: of an open loop; None in an rtt row means one request at a time.
    """

    name: str
    kind: str
    connections: int
    frame_bytes: int
    header: str
    topics: int
    rate_per_s: float | None = None

    @property
    def title(self) -> str:
        """Say in words what the row measures."""
        frames = f"{self.frame_bytes}-byte frames, {self.header} header, topics: {self.topics}"
        connections = f"{self.connections} connection{'s' if self.connections > 1 else ''}"
        if self.kind == "throughput":
            return f"throughput, {connections}, {frames}"
        pace = f"open loop at {self.rate_per_s:g}/s" if self.rate_per_s else "one request at a time"
        return f"round trip, {pace}, {connections}, {frames}"


@dataclass
class Table:
    """The measurements of one row: peer -> one per round, in the order of the rounds."""

    row: Row
    rounds: dict[str, list[Measurement]] = field(default_factory=dict)

    def add(self, peer: str, measurement: Measurement) -> None:
        """Note one measurement."""
        self.rounds.setdefault(peer, []).append(measurement)

    def median(self, peer: str, figure: str) -> float | None:
        """Return the median of one figure, or None if the peer has none."""
        values = [m[figure] for m in self.rounds.get(peer, ()) if m[figure] is not None]
        return median(values) if values else None

    def spread(self, peer: str, figure: str) -> float | None:
        """Return (largest - smallest) / median."""
        values = [m[figure] for m in self.rounds[peer] if m[figure] is not None]
        middle = median(values) if values else 0
        return (max(values) - min(values)) / middle if middle else None

    def against(self, peer: str, other: str, compare: Callable[[Measurement, Measurement], float]) -> float | None:
        """Return the median over the rounds of a comparison inside one round, so that drift cancels out."""
        pairs = zip(self.rounds.get(peer, ()), self.rounds.get(other, ()), strict=False)
        values = [compare(mine, theirs) for mine, theirs in pairs]
        return median(values) if values else None

    def ratio(self, peer: str, figure: str) -> float | None:
        """Return the figure against HAProxy's."""
        if not self.median(HAPROXY, figure):
            return None
        return self.against(peer, HAPROXY, lambda mine, theirs: mine[figure] / theirs[figure])

    def over_trio_relay_us(self, peer: str) -> float | None:
        """Return CPU microseconds per frame on top of the raw trio relay."""
        if not peer.startswith("sluice") or self.median(peer, "cpu_us_per_frame") is None:
            return None
        figure = "cpu_us_per_frame"
        return self.against(peer, TRIO_RELAY, lambda mine, theirs: mine[figure] - theirs[figure])

    def added_p50_us(self, peer: str) -> float | None:
        """Return what the peer adds to the median of a direct round trip."""
        if peer == DIRECT:
            return None
        return self.against(peer, DIRECT, lambda mine, theirs: mine["p50_us"] - theirs["p50_us"])

    def added_against_haproxy(self, peer: str) -> float | None:
        """Return what the peer adds to a direct round trip, against what HAProxy adds."""
        mine, theirs = self.added_p50_us(peer), self.added_p50_us(HAPROXY)
        return mine / theirs if mine is not None and theirs else None

    def summary(self, peer: str) -> dict[str, float | None]:
        """Return every figure of one line of the table, by name."""
        if self.row.kind == "throughput":
            return {
                "mb_per_s": self.median(peer, "mb_per_s"),
                "decided_per_s": self.median(peer, "decided_per_s"),
                "against_haproxy": self.ratio(peer, "decided_per_s"),
                "cpu_us_per_frame": self.median(peer, "cpu_us_per_frame"),
                "over_trio_relay_us": self.over_trio_relay_us(peer),
                "cpu_share": self.median(peer, "cpu_share"),
                "waited_share": self.median(peer, "waited_share"),
                "spread": self.spread(peer, "decided_per_s"),
            }
        return {
            "p50_us": self.median(peer, "p50_us"),
            "p99_us": self.median(peer, "p99_us"),
            "p999_us": self.median(peer, "p999_us"),
            "p50_against_haproxy": self.ratio(peer, "p50_us"),
            "p99_against_haproxy": self.ratio(peer, "p99_us"),
            "added_p50_us": self.added_p50_us(peer),
            "added_against_haproxy": self.added_against_haproxy(peer),
            "spread": self.spread(peer, "p50_us"),
        }

    def text(self) -> str:
        """Return the table as a person reads it."""
        columns = THROUGHPUT_COLUMNS if self.row.kind == "throughput" else RTT_COLUMNS
        summaries = {peer: self.summary(peer) for peer in self.rounds}
        lines = [["peer", *(title for _, title, _ in columns)]]
        for peer, figures in summaries.items():
            cells = (("-" if figures[key] is None else format(figures[key], style)) for key, _, style in columns)
            lines.append([peer, *cells])
        rounds = max((len(each) for each in self.rounds.values()), default=0)
        return f"{self.row.title} (median of {rounds})\n{aligned(lines)}"

    def as_json(self) -> dict[str, Any]:
        """Return the table with every single measurement."""
        peers = {peer: {"median": self.summary(peer), "rounds": each} for peer, each in self.rounds.items()}
        return {"name": self.row.name, "title": self.row.title, "peers": peers}


# Key of the summary, heading, format.
THROUGHPUT_COLUMNS = (
    ("mb_per_s", "MB/s", ",.0f"),
    ("decided_per_s", "frames/s", ",.0f"),
    ("against_haproxy", "x HAProxy", ".2f"),
    ("cpu_us_per_frame", "CPU us/frame", ".2f"),
    ("over_trio_relay_us", "over trio relay", "+.2f"),
    ("cpu_share", "core used", ".0%"),
    ("waited_share", "waited", ".0%"),
    ("spread", "spread", ".0%"),
)
RTT_COLUMNS = (
    ("p50_us", "p50 us", ",.1f"),
    ("p99_us", "p99 us", ",.1f"),
    ("p999_us", "p99.9 us", ",.1f"),
    ("p50_against_haproxy", "p50 x HAProxy", ".2f"),
    ("p99_against_haproxy", "p99 x HAProxy", ".2f"),
    ("added_p50_us", "p50 added us", "+.1f"),
    ("added_against_haproxy", "added x HAProxy", ".2f"),
    ("spread", "spread", ".0%"),
)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lay out cells in columns, the first to the left and the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def faults(peer: str, measurement: Measurement) -> list[str]:
    """Say what makes a measurement worthless: bytes lost, limiting skipped, refusals where none belong."""
    found = []
    if measurement["lost"]:
        found.append(f"{measurement['lost']} frames unaccounted for")
    if measurement.get("broken"):
        found.append(f"{measurement['broken']} connections broken inside a frame")
    for reason, count in measurement["bypassed"].items():
        found.append(f"{count} requests bypassed the limiter: {reason}")
    if peer == "sluice-refused":
        if measurement["arrived"]:
            found.append(f"{measurement['arrived']} frames passed although all are refused")
    elif measurement["busy"]:
        found.append(f"{measurement['busy']} requests refused although none should be")
    return found
