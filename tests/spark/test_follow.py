"""A stream's tables are a batch job's: whatever was killed, in whichever order files came, however often."""

import io
import json
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from follower.tables import count, differences
from harness.process import ManagedProcess
from log_maker import Shape, make, soil
from pyspark.sql import SparkSession
from rich.console import Console

from admin.analytics import tables
from admin.analytics.inputs import find
from admin.analytics.job.follow import FollowSettings, follow
from admin.analytics.job.report import make_tables
from admin.analytics.options import Options
from admin.analytics.staging import Staging

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / each) for each in (".", "tests/support", "tests/integration"))
PATIENCE_S = 540.0
DEFAULTS = Options()
SHAPE = Shape(instances=2, resources=12, active=3, storms_per_minute=0.1, storm_s=30.0, clients=4)


@dataclass(frozen=True)
class Logs:
    """Logs of three days, two of them whole, and the tables that a batch job makes of them.

    Attributes:
        files: in the order in which they are fed.
        tables: of a batch job.
        bad_lines: in all files.
    """

    files: tuple[Path, ...]
    tables: Path
    bad_lines: int


@pytest.fixture(scope="module")
def logs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder = tmp_path_factory.mktemp("follow")
    made = make(folder / "logs", SHAPE, 3_000, lines=700)
    soiled = soil(folder / "logs", made)
    inputs = make_tables(spark, find([str(folder / "logs")]), str(folder / "batch"), Options())
    assert inputs.bad_lines == soiled.bad_lines
    files = sorted(file for file in (folder / "logs").rglob("*.jsonl*") if not file.name.startswith("."))
    random.Random(7).shuffle(files)
    return Logs(tuple(files), folder / "batch", inputs.bad_lines)


@dataclass(frozen=True)
class Feed:
    """A folder that a follower looks at.

    Attributes:
        folder: of the logs.
        out: of the tables.
    """

    folder: Path
    out: Path

    def put(self, *files: Path) -> None:
        """Let files appear, whole, as the sidecar does, with times that say nothing."""
        for number, file in enumerate(files):
            place = self.folder / "tree" / f"{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            beside = place / f".{file.name}.open"
            shutil.copy(file, beside)
            when_s = 1_700_000_000 - 86_400 * int.from_bytes(file.name.encode()[-3:], "big") % 1000
            os.utime(beside, (when_s, when_s))
            beside.rename(place / file.name)

    def follow(self, *flags: str) -> ManagedProcess:
        """Start a follower."""
        return ManagedProcess(
            "follower",
            [sys.executable, "-m", "follower", str(self.folder), str(self.out), *flags],
            log=self.folder.parent / "follower.log",
            env={"PYTHONPATH": PATHS},
        )

    def java(self) -> int:
        """Return the process id of the follower's Java process."""
        return int(json.loads((self.out / "_lock").read_bytes())["pid"])


DAY_S = 1_700_092_800
"""A midnight: the beginning of 2023-11-16."""


def write(path: Path, run: str, refused: Sequence[int], beats: Sequence[int] = ()) -> Path:
    """Write a log with a refusal in each of some seconds, and heartbeats."""
    head = {"v": 1, "instance": "broker:10911", "run": run}
    rejection = {
        "type": "rejection", "kind": "topic", "name": "orders", "client": "10.0.0.1", "rule": "r", "verdict": "refuse",
        "requests": 1, "messages": 3, "bytes": 100,
    }  # fmt: skip
    records = [{**head, "at_s": at_s, **rejection} for at_s in refused]
    records += [{**head, "at_s": at_s, "type": "heartbeat", "version": "1", "seconds": 60} for at_s in beats]
    path.write_text("".join(json.dumps({**record, "n": n}) + "\n" for n, record in enumerate(records, 1)))
    return path


def storms(out: Path) -> list[tuple[int, int, bool]]:
    """Return the storms of a report, from when to when, and whether they go on."""
    query = f"SELECT start_s, end_s, is_open FROM read_parquet('{out}/storms/dt=*/*.parquet') ORDER BY start_s"
    return duckdb.sql(query).fetchall()


@pytest.fixture
def once(spark: SparkSession) -> Callable[..., list[str]]:
    """Follow what is there in this process; returns what was said of each batch."""

    def once_(feed: Feed, *files: Path, options: Options = DEFAULTS) -> list[str]:
        feed.put(*files)
        said = io.StringIO()
        settings = FollowSettings(once=True, batch_bytes=2_000_000)
        console = Console(file=said, width=300)
        logs, refreshed = [str(feed.folder)], list[bool]()
        follow(
            spark, logs, feed.out, options=options, settings=settings, refresh=lambda: refreshed.append(True),
            console=console,
        )  # fmt: skip
        assert refreshed == [True]
        return said.getvalue().splitlines()

    return once_


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    (tmp_path / "fed").mkdir()
    return Feed(tmp_path / "fed", tmp_path / "out")


def wait_for_path(process: ManagedProcess, folder: Path, pattern: str) -> None:
    """Look, again and again, until something is there; the follower must not end before."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if next(folder.glob(pattern), None) is not None:
            return
        if not process.running:
            raise process.failure("ended too early")
        pause.wait(0.01)
    raise process.failure(f"{pattern} did not appear")


# Who is killed, and when: something that a follower makes is there, and not yet complete.
MOMENTS = {
    "_records/batch=1/_temporary": "both",
    "storms/.spark-staging-*": "python",
    "coverage/.spark-staging-*": "java",
}


def test_killed_again_and_again_the_tables_are_those_of_a_batch_job(
    logs: Logs, feed: Feed, once: Callable[..., list[str]]
) -> None:
    waiting = list(logs.files)
    draw = random.Random(11)
    with ExitStack() as stack:
        for pattern, victim in MOMENTS.items():
            fed, waiting = waiting[:3], waiting[3:]
            feed.put(*fed)
            process = feed.follow()
            stack.callback(process.kill)
            if victim == "both":
                # One batch is whole before anybody dies.
                process.wait_for_line("batch 0: ", timeout_s=PATIENCE_S)
                feed.put(*waiting[:1])
                waiting = waiting[1:]
            wait_for_path(process, feed.out, pattern)
            # Anywhere from the beginning of that moment to somewhat later.
            threading.Event().wait(draw.random() * 0.3)
            java = feed.java()
            for pid in {"both": (process.pid, java), "python": (process.pid,), "java": (java,)}[victim]:
                os.kill(pid, signal.SIGKILL)
            # A Java process without its owner lives for a moment longer: the next follower has to wait for that.
            if victim != "python":
                assert process.wait(timeout_s=PATIENCE_S) != 0
    feed.put(*waiting)
    last = feed.follow()
    try:
        last.wait_for_line("batch ", timeout_s=PATIENCE_S)
        last.signal(signal.SIGTERM)
        assert last.wait(timeout_s=PATIENCE_S) == 0, last.tail()
    finally:
        last.kill()
    once(feed)
    assert differences(logs.tables, feed.out) == {}
    assert count(feed.out, tables.STORMS) > 10


def test_late_files_copies_and_another_gap_give_the_tables_of_a_batch_job(
    spark: SparkSession, feed: Feed, once: Callable[..., list[str]], tmp_path: Path
) -> None:
    early = write(tmp_path / "early.jsonl", "a", [DAY_S - 20, DAY_S - 1])
    late = write(tmp_path / "late.jsonl", "b", [DAY_S + 20, DAY_S + 60])
    between = write(tmp_path / "between.jsonl", "c", [DAY_S + 40])
    lines = once(feed, late)
    assert "batch 0: 1 file, 2 records, " in lines[0]
    assert storms(feed.out) == [(DAY_S + 20, DAY_S + 21, False), (DAY_S + 60, DAY_S + 61, True)]
    once(feed, between)
    assert storms(feed.out) == [(DAY_S + 20, DAY_S + 61, True)]
    # From here on the small files of all batches are one.
    staging = Staging(spark, feed.out)
    assert staging.compact(staging.last_committed(), least=2) == 1
    assert not list((feed.out / "_records").glob("batch=*/dt=*"))
    # The storm turns out to have begun on the day before: its own day has none any more.
    once(feed, early)
    assert storms(feed.out) == [(DAY_S - 20, DAY_S + 61, True)]
    assert [path.name for path in (feed.out / "storms").glob("dt=*")] == ["dt=2023-11-15"]
    # What is heard of the sidecar on another day closes the storm, though nothing else of its day has changed.
    after = write(tmp_path / "after.jsonl", "d", [], beats=[DAY_S + 2 * 86_400])
    once(feed, after, shutil.copy(late, tmp_path / "copy.jsonl"))
    assert storms(feed.out) == [(DAY_S - 20, DAY_S + 61, False)]
    make_tables(spark, find([str(feed.folder)]), str(tmp_path / "batch"), DEFAULTS)
    assert differences(tmp_path / "batch", feed.out) == {}
    # Nothing is new but what is asked for: all tables are made anew.
    once(feed, options=Options(storm_gap_s=10))
    assert len(storms(feed.out)) == 5
