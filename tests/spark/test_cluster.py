"""A real cluster makes the same tables and recommendations as one process, started either way."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from equal_tables import count, unequal
from harness.sidecar import run_sluice
from log_truth import make
from spark_cluster import PATIENCE_S, SETTINGS, SPARK_HOME, Cluster, running_cluster

from admin.analytics import tables

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Logs:
    """Logs of four sidecars in a tree, and the report of one process."""

    folder: Path
    out: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder = tmp_path_factory.mktemp("cluster-logs")
    make(folder / "logs")
    answer = run_sluice("report", "logs", "--out", "out", "--master", "local[2]", cwd=folder, timeout_s=PATIENCE_S)
    assert answer.returncode == 0, answer.stderr
    return Logs(folder / "logs", folder / "out")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, as executors get it: Spark takes a zip file for what it is by its name."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}; missing hatchling comes with `make setup`"
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "sluice.zip")


@pytest.fixture
def python_without_sluice(tmp_path: Path) -> Path:
    """Write a Python that has what Sluice depends on, but not Sluice: as on the machines of a cluster."""
    script = tmp_path / "python"
    packages = sysconfig.get_path("purelib")
    # Packages that are found by PYTHONPATH alone have no .pth files read, and so none that leads here.
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{packages}"\nexec {Path(sys.executable).resolve()} "$@"\n'
    )
    script.chmod(0o755)
    return script


def run(cluster: Cluster, command: Sequence[str], cwd: Path) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=cwd,
        env=cluster.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def settings(flag: str, *more: str) -> list[str]:
    return [word for setting in (*SETTINGS, *more) for word in (flag, setting)]


def recommendations(out: Path) -> Any:
    found = json.loads((out / "recommendations.json").read_bytes())
    return sorted(found["recommendations"], key=lambda each: (each["instance"], each["kind"], each["name"]))


def assert_same(logs: Logs, out: Path) -> None:
    assert unequal(logs.out, out) == {}
    assert count(out, tables.STORMS) > 0
    assert recommendations(out) == recommendations(logs.out)


def test_report_on_a_cluster_says_the_same(cluster: Cluster, logs: Logs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [str(Path(sys.executable).with_name("sluice")), "report", str(logs.folder), "--out", str(out)]
    conf = settings("--conf", f"spark.pyspark.python={sys.executable}")
    run(cluster, [*command, "--master", cluster.url, *conf], tmp_path)
    assert_same(logs, out)
    ran = [each for each in cluster.state()["completedapps"] if each["name"] == "sluice report"]
    assert [each["cores"] for each in ran] == [2]


def test_submitted_job_says_the_same_though_executors_have_only_the_package(
    cluster: Cluster, logs: Logs, package: Path, python_without_sluice: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url, "--driver-memory", "1g"]
    python = f"spark.pyspark.python={python_without_sluice}"
    command = [*submit, *settings("--conf", python), "--py-files", str(package), str(ROOT / "deploy/spark/report.py")]
    run(cluster, [*command, str(logs.folder), "--out", str(out)], tmp_path)
    assert_same(logs, out)
    assert (out / "report.html").stat().st_size


_SETTINGS_OF_A_REPORT = """
import sys
from admin.analytics.spark import SparkOptions, open_session

given = (("spark.sql.adaptive.enabled", "true"), ("spark.sql.mine", "yes"))
with open_session(SparkOptions(conf=given, log_bytes=0)) as session:
    for name in sys.argv[1:]:
        print(f"{name}={session.conf.get(name, None)}")
"""


def test_what_spark_submit_was_told_is_not_overridden(tmp_path: Path) -> None:
    script = tmp_path / "settings.py"
    script.write_text(_SETTINGS_OF_A_REPORT)
    told = {"spark.sql.shuffle.partitions": "7", "spark.sql.parquet.compression.codec": "snappy"}
    expected = told | {
        "spark.app.name": "mine", "spark.sql.adaptive.enabled": "true", "spark.sql.mine": "yes",
        # Ours, as nobody said anything.
        "spark.sql.codegen.wholeStage": "false", "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }  # fmt: skip
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]", "--name", "mine"]
    conf = [word for name, value in told.items() for word in ("--conf", f"{name}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*submit, *conf, str(script), *expected], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == expected
