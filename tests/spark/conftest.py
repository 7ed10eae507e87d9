"""One session for all tests with Spark, and one report of the known logs, because each takes longer than most tests."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness.sidecar import run_sluice
from log_truth import Truth, make
from pyspark.sql import SparkSession

from admin.analytics.inputs import find
from admin.analytics.job import ReportSpec, make_report
from admin.analytics.options import Options, default_attempts
from admin.analytics.out import Seen
from admin.analytics.spark import SparkOptions, open_session

Report = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """Logs, their contents, and the command's report of them."""

    logs: Path
    truth: Truth
    out: Path
    results: Any

    @property
    def recommendations(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.out / "recommendations.json").read_bytes())["recommendations"]
        return found


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A report of logs with known contents. Tests do not change either."""
    folder = tmp_path_factory.mktemp("truth")
    truth = make(folder / "logs")
    with pytest.MonkeyPatch.context() as patch:
        # Clocks are set back there in the third night. All times of the log are UTC.
        patch.setenv("TZ", "Europe/Berlin")
        arguments = ("logs", "--out", "out", "--json", "--master", "local[2]")
        answer = run_sluice("report", *arguments, cwd=folder, timeout_s=580.0)
    assert answer.returncode == 0, answer.stderr
    return Case(folder / "logs", truth, folder / "out", json.loads(answer.stdout))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two cores. Without Java or pyspark the tests fail with the command that installs it."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    with open_session(SparkOptions(master="local[2]", log=log, log_bytes=0)) as session:
        # So that rows are moved.
        session.conf.set("spark.sql.shuffle.partitions", "3")
        yield session


@pytest.fixture(scope="session")
def report(spark: SparkSession) -> Report:
    """Makes a report in this process, into a directory, and returns its results. Files that are ``gone`` were found."""

    def make(out: Path, *logs: Path, once: bool = False, gone: Iterable[Path] = (), **options: Any) -> dict[str, Any]:
        named = tuple(map(str, logs))
        here = SparkOptions(master="local[2]")
        asked = Options(**({"attempts": default_attempts()} | options))
        spec = ReportSpec(logs=named, out=str(out), html=None, options=asked, spark=here, once=once)
        found = find(named, spec.options.since_s, spec.options.until_s)
        for file in gone:
            file.unlink()
        seen = Seen.read(out, spec.options) if once else None
        return make_report(spark, spec, found, lambda _step: None, seen)

    return make
