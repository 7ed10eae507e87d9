"""A real cluster makes the same tables and recommendations as one process, started either way."""

import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from admin.analytics.job.report import Place, make_tables, publish
from follower.tables import count, differences
from log_maker import Shape, make, soil
from pyspark.sql import SparkSession
from spark_cluster import PATIENCE_S, SETTINGS, SPARK_HOME, Cluster, running_cluster

from admin.analytics import tables
from admin.analytics.findings import Inputs
from admin.analytics.inputs import find
from admin.analytics.options import Options

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SHAPE = Shape(instances=2, resources=12, active=3, storms_per_minute=0.1, storm_s=30.0, clients=4)


@dataclass(frozen=True)
class Logs:
    """Logs of two sidecars in a tree, and the report of one process.

    Attributes:
        folder: of the logs.
        out: of the report.
    """

    folder: Path
    out: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def logs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder = tmp_path_factory.mktemp("cluster-logs")
    soil(folder / "logs", make(folder / "logs", SHAPE, 3_000, lines=1_000))
    make_tables(spark, find([str(folder / "logs")]), str(folder / "out"), Options())
    publish(spark, Place.of(str(folder / "out"), None), Options(), Inputs())
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
    assert differences(logs.out, out) == {}
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
