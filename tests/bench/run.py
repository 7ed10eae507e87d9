"""The benchmark of Sluice: every peer in one run, on one machine, round by round in turn.

README.md in this folder explains the measurements.
"""

import argparse
import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asking
import goals
import guava
import machine
import peers
import report
import rows
from asking import Asker
from peers import BenchError, Peer, Place, Running
from report import Table
from rows import Row
from sidecars import SIDECARS

PEERS = (*peers.RELAYS, *SIDECARS)
RESULTS = peers.BENCH / "results"
# Connections of a relay need two descriptors each, and it has others.
OTHER_FILES = 600


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    names = list(dict.fromkeys(name for peer in PEERS for name in (peer.group, peer.name) if name))
    row_names = [row.name for row in (*rows.ROWS, *rows.ON_REQUEST)]
    parser.add_argument("--quick", action="store_true", help="2 short rounds, a few minutes in all; for a first look")
    parser.add_argument("--rounds", type=positive_int, help="measurements of each peer in each row (default 5)")
    parser.add_argument("--seconds", type=positive, help="length of one measurement (default 1)")
    parser.add_argument("--warmup", type=positive, help="seconds before each measurement (default 0.25)")
    parser.add_argument("--row", action="append", choices=row_names, metavar="ROW", help="only this row; repeatable")
    parser.add_argument("--peer", action="append", choices=names, metavar="PEER", help="only this peer; repeatable")
    parser.add_argument("--without", action="append", choices=names, default=[], metavar="PEER", help="leave it out")
    parser.add_argument("--size", type=positive_int, help="bytes of a frame, in the rows named")
    parser.add_argument("--header", choices=["json", "binary"], help="in the rows named")
    parser.add_argument("--topics", type=positive_int, help="topics that take turns, in the rows named")
    parser.add_argument("--connections", type=positive_int, help="in the rows named")
    parser.add_argument("--rate", type=positive, help="requests per second of rtt-open (default 2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results here (default: in results/)")
    parser.add_argument("--base-port", type=int, default=21000, help="first of 40 ports on 127.0.0.1 (default 21000)")
    given = parser.parse_args(arguments)
    changed = [given.size, given.header, given.topics, given.connections, given.rate]
    if any(changed) and not given.row:
        parser.error("--size, --header, --topics, --connections and --rate change rows that are named by --row")
    rounds, seconds, warmup = (2, 0.3, 0.1) if given.quick else (5, 1.0, 0.25)
    given.rounds = given.rounds or rounds
    given.seconds = given.seconds or seconds
    given.warmup = given.warmup or warmup
    return given


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def chosen_rows(given: argparse.Namespace) -> list[Row]:
    """Return the requested rows, as changed on the command line and as this machine allows."""
    room = (peers.open_files() - OTHER_FILES) // 2
    found = []
    for row in rows.named(given.row):
        changes = {
            "frame_bytes": given.size,
            "header": given.header,
            "topics": given.topics,
            "connections": given.connections,
            "rate_per_s": given.rate if row.kind == rows.RTT and row.rate_per_s else None,
        }
        # The load generator checks the values.
        changed: Row = dataclasses.replace(row, **{key: value for key, value in changes.items() if value})
        if changed.connections > room:
            print(
                f"{row.name}: {room:,} connections, not {changed.connections:,}: "
                f"a process may have {peers.open_files():,} files open here (ulimit -Hn)",
                flush=True,
            )
            changed = dataclasses.replace(changed, connections=room)
        found.append(changed)
    return found


def chosen_peers(given: argparse.Namespace, of: Sequence[Row]) -> tuple[list[Peer], dict[str, str]]:
    """Return the requested and possible peers, and the reasons why others are left out."""
    chosen, left_out = [], {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        for peer in PEERS:
            if any(peer.answers_to(name) for name in given.without):
                continue
            if given.peer and not any(peer.answers_to(name) for name in given.peer):
                continue
            if not any(peer.answers_to(name) for row in of for name in row.peers):
                continue
            peer.check()
            reason = peer.left_out(Path(scratch)) if peer.left_out else None
            if reason is None:
                chosen.append(peer)
            else:
                left_out[peer.name] = reason
    return chosen, left_out


@dataclasses.dataclass
class Run:
    """One run of the bench: its options and results."""

    given: argparse.Namespace
    peers: list[Peer]
    scratch: Path
    tables: list[Table] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    took_s: dict[str, float] = dataclasses.field(default_factory=dict)

    def taking_part(self, *of: Row) -> list[Peer]:
        return [peer for peer in self.peers if any(peer.answers_to(name) for row in of for name in row.peers)]

    def measure(self, chosen: Sequence[Row]) -> None:
        sharing = [row for row in chosen if row.kind not in (rows.MEMORY, rows.DECISIONS)]
        self._together([row for row in sharing if row.swallow and not row.last])
        self._together([row for row in sharing if not row.swallow and row.protocol == rows.ROCKETMQ])
        for row in chosen:
            if row.kind == rows.MEMORY:
                self._memory(row)
            elif row.kind == rows.DECISIONS:
                self._decisions(row)
        self._together([row for row in sharing if row.protocol == rows.AMQP])
        for credit in (None, rows.PLENTY_OF_CREDIT):
            self._together([row for row in sharing if row.protocol == rows.AMQP10 and row.credit == credit])
        self._together([row for row in sharing if row.last])

    def _together(self, together: Sequence[Row]) -> None:
        """Measure rows with one process of each peer. They have the same sink."""
        taking_part = self.taking_part(*together)
        if not taking_part:
            return
        with self._started(taking_part, together[0]) as (running, asker):
            for row in together:
                began_s = time.monotonic()
                table = Table(row)
                asked = [each for each in running if each.peer in self.taking_part(row)]
                for number in range(1, self.given.rounds + 1):
                    for each in asked:
                        progress(f"{row.name}, round {number} of {self.given.rounds}: {each.peer.name}")
                        self._ask(table, number, each, asker, running)
                self._done(table, began_s)

    def _ask(self, table: Table, number: int, each: Running, asker: Asker, running: Sequence[Running]) -> None:
        row, name = table.row, each.peer.name
        if row.kind != rows.LOADED:
            self._note(table, number, name, asker.measure(row, each, known=number > 1))
            return
        saturation = goals.saturations(self.tables).get(name, 0.0)
        # Peers that decide nothing are only compared at their own saturation.
        haproxy = next((other for other in running if other.peer is peers.HAPROXY and each.peer.limited), None)
        mine, *theirs = asker.measure_loaded(row, each, saturation, haproxy)
        self._note(table, number, name, mine)
        for measurement in theirs:
            faults = report.faults(rows.HAPROXY, measurement)
            self.wrong += [f"haproxy at the load of {name}, {row.name}, round {number}: {fault}" for fault in faults]

    def _memory(self, row: Row) -> None:
        """Measure memory, each time in a fresh process, because memory that has grown does not grow again."""
        began_s = time.monotonic()
        table = Table(row)
        for number in range(1, self.given.rounds + 1):
            for peer in self.taking_part(row):
                progress(f"{row.name}, round {number} of {self.given.rounds}: {peer.name}")
                with self._started([peer], row) as ((each,), asker):
                    # Imports and the like do not belong to a connection.
                    asker.measure(dataclasses.replace(row, connections=1), each)
                    self._note(table, number, peer.name, asker.measure(row, each))
        self._done(table, began_s)

    def _decisions(self, row: Row) -> None:
        progress(row.name)
        began_s = time.monotonic()
        table = Table(row)
        found = asking.decisions(self.given.rounds, min(self.given.seconds, 0.5), peers.PROXY_CORE, self.scratch)
        for line, measurements in found.items():
            for measurement in measurements:
                table.add(line, measurement)
        self._done(table, began_s)

    def _note(self, table: Table, number: int, name: str, measurement: report.Measurement) -> None:
        table.add(name, measurement)
        faults = report.faults(name, measurement)
        self.wrong += [f"{name}, {table.row.name}, round {number}: {fault}" for fault in faults]

    def _done(self, table: Table, began_s: float) -> None:
        progress("")
        self.took_s[table.row.name] = round(time.monotonic() - began_s, 1)
        self.tables.append(table)
        print(table.text(), end="\n\n", flush=True)

    @contextlib.contextmanager
    def _started(self, chosen: Sequence[Peer], row: Row) -> Iterator[tuple[list[Running], Asker]]:
        """Start the sink of a row, and every peer in front of it."""
        base_port = self.given.base_port
        broker, control = base_port, base_port + 1
        with contextlib.ExitStack() as stack:
            # Each process starts without an earlier state.
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.scratch)))
            stack.enter_context(
                peers.sink(
                    broker,
                    control,
                    swallow=row.swallow,
                    scratch=scratch,
                    protocol=row.protocol,
                    credit=row.credit,
                )
            )
            running = []
            for number, peer in enumerate(chosen, start=1):
                place = Place(
                    base_port + 2 * number, base_port + 2 * number + 1, broker, scratch / peer.name, row.protocol
                )
                running.append(stack.enter_context(peers.started(peer, place)))
            yield running, Asker(control, self.given.seconds, self.given.warmup)


def progress(text: str) -> None:
    """Show the progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def bench(given: argparse.Namespace) -> int:
    """Run everything. Return the exit status."""
    machine.check()
    wanted = chosen_rows(given)
    chosen, left_out = chosen_peers(given, wanted)
    if not chosen and any(row.peers for row in wanted):
        raise BenchError("no peer is left to measure")
    peers.build_load()
    if any(row.kind == rows.DECISIONS for row in wanted):
        guava.build()
    where = machine.described()
    print(
        f"{where['cpu']}, {where['cores']} cores, Linux {where['kernel']}, Python {where['python']}; "
        f"{given.rounds} rounds of {given.seconds:g} s",
        *(f"left out: {name}: {reason}" for name, reason in left_out.items()),
        sep="\n",
        end="\n\n",
        flush=True,
    )
    began_s, busy_before = time.monotonic(), machine.busy_share()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        run = Run(given, chosen, Path(scratch))
        run.measure(wanted)
    busy_after, took_s = machine.busy_share(), time.monotonic() - began_s
    grown, held = goals.growth(run.tables), goals.held_against(run.tables)
    if said := goals.growth_text(grown):
        print(said, end="\n\n")
    if any(each.values for each in held):
        print(goals.goals_text(held), end="\n\n")
    if max(busy_before, busy_after) > machine.QUIET:
        print(
            f"This machine was {busy_before:.0%} busy with other work before the run and {busy_after:.0%} after it: "
            "the figures are worth little."
        )
    where |= {"busy_before": round(busy_before, 3), "busy_after": round(busy_after, 3)}
    kept = write(given, where, run, {"left_out": left_out, "growth": grown, "goals": [each.as_json() for each in held]})
    print(f"{took_s / 60:.1f} minutes; every measurement is in {kept}", flush=True)
    for fault in run.wrong:
        print(f"fault: {fault}", file=sys.stderr)
    return 1 if run.wrong else 0


def write(given: argparse.Namespace, where: dict[str, Any], run: Run, more: dict[str, Any]) -> Path:
    """Write everything as JSON. Return the path."""
    path: Path = given.json or RESULTS / time.strftime("%Y-%m-%d-%H%M%S.json")
    settings = {"rounds": given.rounds, "seconds": given.seconds, "warmup": given.warmup, "took_s": run.took_s}
    tables = [table.as_json() for table in run.tables]
    kept = {"machine": where, "settings": settings, **more, "rows": tables, "faults": run.wrong}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def main() -> int:
    """Run the bench for the command line. Every child has ended when this returns."""
    # Set explicitly: a shell's background jobs start with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return bench(options(sys.argv[1:]))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
