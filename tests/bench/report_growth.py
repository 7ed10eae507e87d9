"""How a report grows with the log: its tables and all of it, next to DuckDB, which makes the same tables, in
one run.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "support"))
MILLION = 1_000_000
MIB = 1024 * 1024


@dataclass(frozen=True)
class Measured:
    """One run of one engine."""

    start_s: float
    wall_s: float
    cpu_s: float
    peak_mib: float
    records: int
    parts: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Spark's tables of a report next to DuckDB's, as the log grows.")
    parser.add_argument("--records", default="1,3,10", help="millions of records, with commas")
    parser.add_argument("--shape", default="stormy", choices=("steady", "stormy", "skewed"), help="of the traffic")
    parser.add_argument("--driver-memory", default="1g", help="heap of Spark's Java process")
    parser.add_argument("--engines", default=",".join(_ENGINES), help="which, with commas")
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE for Spark")
    parser.add_argument("--dir", type=Path, help="for logs and tables; kept if it is given")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--logs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        print(json.dumps(asdict(_ENGINES[given.worker](given.logs, given.dir, given.driver_memory, given.conf))))
        return 0
    folder = given.dir or Path(tempfile.mkdtemp(prefix="report-growth-"))
    try:
        _compare(given, folder)
    finally:
        if given.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _compare(given: argparse.Namespace, folder: Path) -> None:
    from log_maker import SHAPES, make  # noqa: PLC0415 - workers do not need it

    engines = given.engines.split(",")
    found: dict[str, list[Measured]] = {engine: [] for engine in engines}
    for millions in (float(word) for word in given.records.split(",")):
        logs = folder / f"{given.shape}-{millions:g}"
        began = time.monotonic()
        if not (logs / ".made").exists():
            shutil.rmtree(logs, ignore_errors=True)
            make(logs, SHAPES[given.shape], int(millions * MILLION))
            (logs / ".made").touch()
        size = sum(file.stat().st_size for file in logs.glob("*.jsonl"))
        print(
            f"{millions:g} M {given.shape}: {size / 1e9:.2f} GB, made in {time.monotonic() - began:.0f} s", flush=True
        )
        for engine in engines:
            measured = _run(engine, logs, folder, given)
            found[engine].append(measured)
            parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in measured.parts.items())
            print(
                f"  {engine:7} {measured.wall_s:7.1f} s, {measured.cpu_s:7.1f} CPU s, {measured.peak_mib:6.0f} MiB"
                f" (ready after {measured.start_s:.1f} s) {measured.records:,} records: {parts}",
                flush=True,
            )
        for engine in engines:
            if engine != "duckdb" and "duckdb" in engines:
                one, other = found["duckdb"][-1], found[engine][-1]
                ratios = f"{other.wall_s / one.wall_s:.1f} (CPU {other.cpu_s / one.cpu_s:.1f})"
                print(f"  {engine} to duckdb: {ratios}", flush=True)
    for engine, runs in found.items():
        if len(runs) > 1:
            print(f"exponent of {engine}: {_exponent(runs):.2f}")


def _exponent(runs: list[Measured]) -> float:
    """Return the slope of log processor time over log records, by least squares."""
    points = [(math.log(run.records), math.log(run.cpu_s)) for run in runs]
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


def _run(engine: str, logs: Path, folder: Path, given: argparse.Namespace) -> Measured:
    out = folder / f"out-{engine}"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, str(HERE), "--worker", engine, "--logs", str(logs), "--dir", str(out)]
    command += ["--driver-memory", given.driver_memory, *(f"--conf={word}" for word in given.conf)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, cwd=HERE.parents[2])
    shutil.rmtree(out, ignore_errors=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _cpu_s(pids: list[int]) -> float:
    """Return the processor time of processes and of their children that have ended."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak_mib(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total / MIB


def _duckdb(logs: Path, out: Path, _memory: str, _conf: list[str]) -> Measured:
    began = time.monotonic()
    import duck_tables  # noqa: PLC0415 - its start is not what is measured; as below
    import duckdb  # noqa: PLC0415

    out.mkdir(parents=True)
    pids = [os.getpid()]
    with duckdb.connect(out / "scratch.duckdb") as duck:
        duck.execute(f"SET threads = 2; SET memory_limit = '2GiB'; SET temp_directory = '{out / 'spill'}'")
        duck.execute("SET preserve_insertion_order = false")
        ready = last = time.monotonic()
        cpu = _cpu_s(pids)
        parts: dict[str, float] = {}

        def lap(name: str) -> None:
            nonlocal last
            parts[name] = round(time.monotonic() - last, 1)
            last = time.monotonic()

        duck_tables.load(duck, sorted(logs.glob("*.jsonl")))
        lap("read")
        duck_tables.write(duck, out, lap)
        wall, cpu = time.monotonic() - ready, _cpu_s(pids) - cpu
        row = duck.execute("SELECT count(*) FROM records").fetchone()
    return Measured(ready - began, wall, cpu, _peak_mib(pids), 0 if row is None else int(row[0]), parts)


def _tables(logs: Path, out: Path, memory: str, conf: list[str]) -> Measured:
    """Make the tables as a report does."""
    from report_cost import below  # noqa: PLC0415 - its start is not what is measured; as below

    from admin.analytics import report  # noqa: PLC0415
    from admin.analytics.inputs import find  # noqa: PLC0415
    from admin.analytics.lines import Wanted  # noqa: PLC0415
    from admin.analytics.options import Options  # noqa: PLC0415
    from admin.analytics.retries import default_attempts  # noqa: PLC0415
    from admin.analytics.spark import FEW_BYTES, SparkOptions, open_session, read_conf  # noqa: PLC0415
    from admin.analytics.tables import Store  # noqa: PLC0415

    def pids() -> list[int]:
        return [os.getpid(), *below(os.getpid())]

    began = time.monotonic()
    found = find([str(logs)])
    size_bytes = found.unpacked_bytes
    brief = size_bytes < FEW_BYTES
    how = SparkOptions(master="local[2]", driver_memory=memory, conf=read_conf(tuple(conf)), brief=brief)
    with open_session(how) as session:
        session.range(1).count()
        store = Store(session, str(out))
        ready, cpu = time.monotonic(), _cpu_s(pids())
        with store.scratch() as scratch:
            tools = report.Tools(session, store, scratch, report.tasks_of(size_bytes, 2), lambda _what: None)
            its = report.make_tables(tools, found, Options(attempts=default_attempts()), Wanted())
        wall, cpu = time.monotonic() - ready, _cpu_s(pids()) - cpu
        return Measured(ready - began, wall, cpu, _peak_mib(pids()), its.records, {})


def _report(logs: Path, out: Path, memory: str, conf: list[str]) -> Measured:
    """Run the command, and take the floor off: what a Spark costs that does next to nothing."""
    import report_cost  # noqa: PLC0415 - it lies beside this

    report_cost.adopt_orphans()
    folder = out.with_name("report")
    folder.mkdir(parents=True, exist_ok=True)
    floor = report_cost.floor(folder)
    cost = report_cost.report(logs, folder, [f"spark.driver.memory={memory}", *conf])
    shutil.rmtree(folder)
    parts = {"jobs": float(cost.jobs), "tasks, CPU s": round(cost.tasks_s + cost.python_workers_s, 1)}
    return Measured(
        floor.wall_s, cost.wall_s - floor.wall_s, cost.cpu_s - floor.cpu_s, cost.peak_mib, cost.records, parts
    )


_ENGINES: Final = {"duckdb": _duckdb, "tables": _tables, "report": _report}


if __name__ == "__main__":
    sys.exit(main())
