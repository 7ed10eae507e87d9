"""A soak by count: 100 million frames, a million connections, ten million names, and edits of limits all along.

Sluice runs as an operator starts it, between the load generator and a broker that answers every request. The trend of
memory is printed, by least squares, in bytes for each million frames. The memory at half of the run is that of a
process with this many names. Descriptors and counters are compared with the counts of the load and the broker. Exits
with 1 if a trend is not flat or if one counter is off by one.
"""

import argparse
import contextlib
import dataclasses
import json
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from machine import cpu_s
from peers import LOAD, LOAD_CORE, PROXY_CORE, BenchError, build_load, process

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from harness.api import ask
from harness.paths import program
from harness.ports import free_port
from harness.process import ManagedProcess, ProcessFailedError
from harness.sidecar import Metrics, Route, Sluice

_HOST: Final = "127.0.0.1"
_SINK_S: Final = 24 * 3600
_FIRST_LINE_S: Final = 600.0
# Recurring topics, as in load/src/soak.rs. The first ones of them are edited, all of them within the first half,
# because the memory of an edited limit is not of interest.
_FIRST_NAME: Final = 10_000_000
_KNOWN_NAMES: Final = 1000
_EDITED_NAMES: Final = 100
_EDITED_AT_ONCE: Final = 50
_RATES: Final = (0, 1, 100, 10_000, "unlimited")
# A trend is flat if the whole run adds no more: the allocator's pages, and counts by time.
_FLAT_SHARE: Final = 0.03
_FLAT_BYTES: Final = 8 * 1024 * 1024
_FLAT_DESCRIPTORS: Final = 4
# Below this, Sluice has not seen as many names as it remembers, and a trend says nothing.
_JUDGED_FRAMES: Final = 10_000_000
_CONFIG: Final = """
[bounds]
max_live_limiters = {limiters}

[defaults.topic]
rate = 20000

[rejection_log]
max_total_bytes = 67108864
"""


@dataclass(frozen=True)
class Plan:
    frames: int = 100_000_000
    connections: int = 1_000_000
    names: int = 10_000_000
    edits: int = 20_000

    def scaled(self, scale: float) -> "Plan":
        return Plan(**{name: max(1, round(count * scale)) for name, count in dataclasses.asdict(self).items()})

    @property
    def limiters(self) -> int:
        """The maximum in memory: few enough to be reached in the first half."""
        return 2 * _KNOWN_NAMES + self.names // 1000


@dataclass(frozen=True)
class Sample:
    """Sluice's process after this many answered frames."""

    frames: int
    rss_bytes: int
    descriptors: int


@dataclass(frozen=True)
class Trend:
    """One figure by frames, in the second half of them."""

    per_million_frames: float
    mean: float
    largest: float

    @classmethod
    def of(cls, samples: list[Sample], figure: str) -> "Trend":
        later = [sample for sample in samples if sample.frames * 2 >= samples[-1].frames]
        values = [getattr(sample, figure) for sample in later]
        line = statistics.linear_regression([sample.frames / 1e6 for sample in later], values)
        return cls(line.slope, statistics.fmean(values), max(values))

    def over(self, frames: int) -> float:
        """Return the line's rise over this many frames."""
        return self.per_million_frames * frames / 1e6


@dataclass(frozen=True)
class Outcome:
    plan: Plan
    samples: list[Sample]
    load: Mapping[str, int]
    counters: Mapping[str, tuple[float, float]]
    idle: tuple[int, int]
    seconds: float
    cpu_s: float

    def faults(self) -> list[str]:
        """Return the faults."""
        found = [
            f"{what}: {ours:.0f}, not {theirs:.0f}" for what, (ours, theirs) in self.counters.items() if ours != theirs
        ]
        memory, descriptors = Trend.of(self.samples, "rss_bytes"), Trend.of(self.samples, "descriptors")
        later = self.load["sent"] // 2
        judged = self.load["sent"] >= _JUDGED_FRAMES
        if judged and memory.over(later) > max(_FLAT_BYTES, _FLAT_SHARE * memory.mean):
            found.append(f"memory grows by {memory.per_million_frames:.0f} bytes in a million frames")
        if judged and descriptors.over(later) > _FLAT_DESCRIPTORS:
            found.append(f"descriptors grow by {descriptors.per_million_frames:.2f} in a million frames")
        return found

    def told(self) -> str:
        memory, descriptors = Trend.of(self.samples, "rss_bytes"), Trend.of(self.samples, "descriptors")
        first = next(sample for sample in self.samples if sample.frames * 2 >= self.samples[-1].frames)
        mib = 1024 * 1024
        sent = self.load["sent"]
        later = sent // 2
        edits = self.counters["rule sets put in force = edits"][1]
        us = self.cpu_s / sent * 1e6
        at_ends = " -> ".join(f"{each.rss_bytes / mib:.1f}" for each in (self.samples[0], first, self.samples[-1]))
        lines = [
            str(self.plan),
            f"done: {sent:,} frames, {self.load['short'] + self.load['lasting']:,} connections,",
            f"  {self.load['names']:,} new names, {edits:,.0f} edits, {self.load['busy']:,} requests refused",
            f"{self.seconds:.0f} s, {sent / self.seconds:.0f} frames/s, {us:.2f} us of processor a frame, all in all",
            f"memory: {at_ends} MiB at first, after half, at the end; at most {memory.largest / mib:.1f}",
            f"  {memory.per_million_frames:+.0f} bytes in a million frames",
            f"  {memory.over(later) / mib:+.2f} MiB in the second half",
            f"descriptors: {self.idle[0]} before, {self.idle[1]} after; under load {descriptors.mean:.1f}",
            f"  at most {descriptors.largest:.0f}, {descriptors.per_million_frames:+.4f} in a million frames",
        ]
        lines += [f"{what}: {ours:.0f}" for what, (ours, theirs) in self.counters.items() if ours == theirs]
        lines += [f"FAULT: {fault}" for fault in self.faults()]
        return "\n".join(lines)


class _Edits:
    """Changes limits of topics in use. Some become so low that they refuse."""

    def __init__(self, sluice: Sluice) -> None:
        self.made = 0
        self._sluice = sluice
        self._random = random.Random(1)
        self._edited: list[str] = []

    def make(self) -> None:
        """Make a new one, or undo the oldest."""
        if len(self._edited) >= _EDITED_AT_ONCE:
            self._write("DELETE", self._edited.pop(0))
            return
        names = (f"bench{_FIRST_NAME + number}" for number in range(_EDITED_NAMES))
        name = self._random.choice([name for name in names if name not in self._edited])
        self._edited.append(name)
        self._write("PUT", name, {"rate": self._random.choice(_RATES)})

    def _write(self, method: str, name: str, body: object = None) -> None:
        status, answer = ask(self._sluice, method, f"limits/topic/{name}", body)
        if status != 200:
            raise BenchError(f"{method} of the limit of {name}: {status} {answer}")
        self.made += 1


class _Sink:
    """The counters of the sink, by its side channel."""

    def __init__(self, control: int) -> None:
        self._lines = socket.create_connection((_HOST, control), 10).makefile("rw", encoding="ascii")

    def counters(self) -> dict[str, int]:
        self._lines.write("?")
        self._lines.flush()
        names = ("at_ns", "frames", "bytes", "answered", "accepted", "connections", "broken")
        return dict(zip(names, map(int, self._lines.readline().split()), strict=True))


def _sample(frames: int, pid: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return Sample(frames, rss_kib * 1024, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))


def _counters(
    plan: Plan, load: Mapping[str, int], sink: Mapping[str, int], metrics: Metrics, edits: tuple[float, int]
) -> dict[str, tuple[float, float]]:
    def requests(verdict: str) -> float:
        return metrics.total("sluice_requests_total", verdict=verdict)

    decided = sum(map(requests, ("pass", "refuse", "bypass", "shadow", "exempt", "drop")))
    opened = metrics.total("sluice_connections_opened_total")
    return {
        "frames answered = sent": (load["answered"], load["sent"]),
        "new names = due with so many frames": (load["names"], load["sent"] * plan.names // plan.frames),
        "frames of clients by Sluice = sent": (metrics.total("sluice_frames_total", source="client"), load["sent"]),
        "passed + refused + bypassed + ... = frames of clients": (
            decided,
            metrics.total("sluice_frames_total", source="client"),
        ),
        "all verdicts = those": (metrics.total("sluice_requests_total"), decided),
        "passed + bypassed = frames that the broker read": (requests("pass") + requests("bypass"), sink["frames"]),
        "frames of the broker by Sluice = its answers": (
            metrics.total("sluice_frames_total", source="broker"),
            sink["answered"],
        ),
        "refused = busy answers": (requests("refuse"), load["busy"]),
        "bypassed by reason = bypassed": (metrics.total("sluice_bypassed_total"), requests("bypass")),
        "connections opened by Sluice = made": (opened, load["short"] + load["lasting"]),
        "connections closed + open = opened": (
            metrics.total("sluice_connections_closed_total") + metrics.total("sluice_connections"),
            opened,
        ),
        "connections open = none": (metrics.total("sluice_connections"), 0),
        "connections of the broker that broke = none": (sink["broken"], 0),
        "rule sets put in force = edits": edits,
        "undecodable = none": (metrics.total("sluice_undecodable_total"), 0),
    }


def _load(plan: Plan, target: int, seconds: float | None) -> list[str]:
    counts = {"frames": plan.frames, "connections": plan.connections, "names": plan.names}
    return [
        *(program("taskset"), "-c", str(LOAD_CORE), str(LOAD), "soak", "--target", f"{_HOST}:{target}"),
        *(word for name, count in counts.items() for word in (f"--{name}", str(count))),
        *(() if seconds is None else ("--seconds", str(seconds))),
    ]


def soak(plan: Plan, scratch: Path, seconds: float | None) -> Outcome:
    """Run it to its end, or for these seconds."""
    broker, listen, control = free_port(), free_port(), free_port()
    sink_command = [str(LOAD), "sink", "--listen", f"{_HOST}:{broker}", "--control", f"{_HOST}:{control}"]
    sink_command += ["--seconds", str(_SINK_S)]
    route = Route(f"{_HOST}:{listen}", f"{_HOST}:{broker}")
    core = (program("taskset"), "-c", str(PROXY_CORE))
    with (
        process("the sink", sink_command, LOAD_CORE, control, scratch / "sink.log"),
        Sluice(scratch, (route,), config=_CONFIG.format(limiters=plan.limiters), inside=core, covered=False) as sluice,
    ):
        sink, edits, pid = _Sink(control), _Edits(sluice), sluice.process.pid
        version = sluice.metrics().total("sluice_rule_set_version")
        before, samples = _sample(0, pid), [_sample(0, pid)]
        begun_s = time.monotonic()
        lines = due = 0
        with ManagedProcess("the load", _load(plan, listen, seconds), log=scratch / "load.log") as load:
            while load.running or lines < len(load.lines):
                if lines < len(load.lines):
                    lines = len(load.lines)
                    if not (line := load.lines[lines - 1]).startswith("{"):
                        raise load.failure("broke off")
                    answered = json.loads(line)["answered"]
                    samples.append(_sample(answered, pid))
                    due = plan.edits * answered // plan.frames
                elif edits.made < due:
                    edits.make()
                else:
                    # Waits for a line. An occasional look costs nothing.
                    time.sleep(0.01)
            if load.wait(timeout_s=60):
                raise load.failure("broke off")
            told = json.loads(load.lines[-1])
        took_s = time.monotonic() - begun_s
        metrics = sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_connections") == 0)
        made = (metrics.total("sluice_rule_set_version") - version, edits.made)
        counters = _counters(plan, told, sink.counters(), metrics, made)
        idle = before.descriptors, sluice.wait_for_descriptors(before.descriptors)
        return Outcome(plan, samples, told, counters, idle, took_s, cpu_s(pid))


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak.py", description=__doc__)
    for field in dataclasses.fields(Plan):
        parser.add_argument(f"--{field.name}", type=int, metavar="COUNT", help=f"default: {field.default:,} x --scale")
    parser.add_argument("--scale", type=float, default=1.0, help="of all that is not given by itself (1)")
    parser.add_argument("--seconds", type=float, help="end after so long, however much is left")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep samples and counters here")
    given = parser.parse_args()
    chosen = {name: count for name in dataclasses.asdict(Plan()) if (count := getattr(given, name)) is not None}
    plan = dataclasses.replace(Plan().scaled(given.scale), **chosen)
    try:
        build_load()
        with tempfile.TemporaryDirectory(prefix="sluice-soak-") as scratch:
            outcome = soak(plan, Path(scratch), given.seconds)
    except (BenchError, ProcessFailedError) as error:
        print(f"soak.py: {error}", file=sys.stderr)
        return 1
    print(outcome.told())
    if given.json:
        kept: dict[str, Any] = dataclasses.asdict(outcome) | {"faults": outcome.faults()}
        given.json.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return 1 if outcome.faults() else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
