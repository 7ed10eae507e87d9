"""A report by Spark Connect: a server of its own, to which the command has nothing but a connection."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from equal_tables import count, unequal
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.sidecar import run_sluice
from small_log import SmallLog
from spark_cluster import PATIENCE_S, SPARK_HOME

from admin.analytics import tables
from admin.analytics.inputs import find
from admin.analytics.lines import Wanted
from admin.analytics.options import Options
from admin.analytics.report import Tools, find_instances, make_tables, recommend

pytestmark = pytest.mark.long

_LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start what comes with the package, and return its address."""
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    settings = {
        "spark.connect.grpc.binding.address": _LOOPBACK, "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": _LOOPBACK, "spark.ui.enabled": "false", "spark.local.dir": str(folder),
    }  # fmt: skip
    command = [
        *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    ]
    environment = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": _LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    with ManagedProcess("Spark Connect", command, log=folder / "server.log", env=environment, cwd=folder) as process:
        process.wait_for_line("Spark Connect server started at", timeout_s=PATIENCE_S)
        yield f"sc://{_LOOPBACK}:{port}"


def test_a_report_by_spark_connect_says_the_same(server: str, tools: Callable[[Path], Tools], tmp_path: Path) -> None:
    SmallLog().write(tmp_path / "logs" / "a.jsonl")
    (tmp_path / "logs" / "bad.jsonl").write_text("no record\n")
    out = tmp_path / "out"
    answer = run_sluice(
        "report", "logs", "--out", "out", "--json", "--capacity", "40", "--master", server, cwd=tmp_path,
        timeout_s=PATIENCE_S,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert (found["inputs"]["bad_lines"], found["totals"]["storms"]) == (1, 2)
    assert (out / "report.html").stat().st_size

    here, options = tools(tmp_path / "here"), Options(capacity_per_s=40.0)
    make_tables(here, find([str(tmp_path / "logs")]), options, Wanted())
    recommended = recommend(here, options, find_instances(here, options))
    assert unequal(tmp_path / "here", out) == {}
    assert count(out, tables.STORMS) == 2
    said = json.loads((out / "recommendations.json").read_bytes())["recommendations"]
    assert [each["evidence"] for each in said] == [each.evidence for each in recommended.all()]
