"""Reports on a cluster, by Spark Connect, and in an object store have the same tables as one of a single process."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark
import pytest
from duck_tables import TABLES, unequal
from harness.paths import PARTS, required
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.sidecar import run_sluice
from small_log import write_blank_log

if TYPE_CHECKING:
    from conftest import Case

pytestmark = pytest.mark.long

ROOT: Final = Path(__file__).resolve().parents[2]
SPARK_HOME: Final = Path(pyspark.__file__).parent
LOOPBACK: Final = "127.0.0.1"
TIMEOUT_S: Final = 580.0


@dataclass(frozen=True)
class Here:
    """The known logs, the same made large, and the report of one process."""

    case: "Case"
    large: Path

    def assert_same(self, out: Path) -> None:
        assert unequal(self.case.out, out) == {}
        there = json.loads((out / "recommendations.json").read_bytes())["recommendations"]
        assert there == self.case.recommendations != []


def _report(folder: Path, *arguments: str) -> Any:
    answer = run_sluice("report", *arguments, "--json", cwd=folder, timeout_s=TIMEOUT_S)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def here(case: "Case", tmp_path_factory: pytest.TempPathFactory) -> Here:
    large = tmp_path_factory.mktemp("large")
    (large / "logs").symlink_to(case.logs)
    # From 10 MB on, workers read lines and make advice.
    write_blank_log(large)
    return Here(case, large)


# A cluster.


@dataclass(frozen=True)
class Cluster:
    """A running standalone cluster: its address, and the requirements of a job."""

    url: str
    environment: dict[str, str]

    def run(self, command: Sequence[str], cwd: Path, *conf: str) -> None:
        given = [word for setting in (*_CLUSTER, *conf) for word in ("--conf", setting)]
        done = subprocess.run(
            [*command[:2], *given, *command[2:]], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            cwd=cwd, env=os.environ | self.environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]


_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CLUSTER: Final = (
    "spark.executor.memory=640m", "spark.cores.max=2", "spark.executor.cores=1", f"spark.driver.host={LOOPBACK}",
    f"spark.driver.bindAddress={LOOPBACK}", "spark.sql.shuffle.partitions=4",
    f"spark.driver.extraJavaOptions={_JAVA}", f"spark.executor.extraJavaOptions={_JAVA}",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a master and two workers with a core each, and wait until they know each other."""
    folder = tmp_path_factory.mktemp("cluster")
    environment = {
        "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOOPBACK, "SPARK_PUBLIC_DNS": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false", "SPARK_CONF_DIR": str(folder),
    }  # fmt: skip
    (folder / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
        "appender.out.name = out\nappender.out.target = SYSTEM_ERR\nappender.out.layout.type = PatternLayout\n"
        "appender.out.layout.pattern = %p %c{1}: %m%n%ex\n"
    )

    def start(role: str, port: int, *arguments: str) -> ManagedProcess:
        places = ("--host", LOOPBACK, "--port", str(port), "--webui-port", str(free_port()))
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *places]
        log = folder / f"{role}-{port}.log"
        return stack.enter_context(ManagedProcess(role, [*command, *arguments], log=log, env=environment))

    # The workers end before the master, which would wait for them.
    with ExitStack() as stack:
        port = free_port()
        url = f"spark://{LOOPBACK}:{port}"
        master = start("Master", port)
        master.wait_for_line("New state: ALIVE", timeout_s=TIMEOUT_S)
        for number in range(2):
            own = free_port()
            start("Worker", own, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / str(number)), url)
            master.wait_for_line(f"Registering worker {LOOPBACK}:{own}", timeout_s=TIMEOUT_S)
        yield Cluster(url, environment)
        # A job had both workers.
        assert (folder / f"Master-{port}.log").read_text().count("Launching executor") >= 2


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as executors get it: Spark recognizes a zip file by its name."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}; missing hatchling comes with `make setup`"
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "sluice.zip")


@pytest.fixture(scope="module")
def python_without_sluice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Python with Sluice's dependencies, but without Sluice, as on the machines of a cluster."""
    script = tmp_path_factory.mktemp("python") / "python"
    packages = sysconfig.get_path("purelib")
    # Packages found by PYTHONPATH alone have no .pth files read, so none leads here.
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{packages}"\nexec {Path(sys.executable).resolve()} "$@"\n'
    )
    script.chmod(0o755)
    return script


def test_a_cluster(cluster: Cluster, here: Here, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("sluice")), "report", str(here.large), "--out", "out"]
    cluster.run([*command, "--master", cluster.url], tmp_path, f"spark.pyspark.python={sys.executable}")
    here.assert_same(tmp_path / "out")


def test_a_submitted_job_whose_executors_have_only_the_package(
    cluster: Cluster, here: Here, package: Path, python_without_sluice: Path, tmp_path: Path
) -> None:
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), f"--master={cluster.url}", "--driver-memory", "1g"]
    job = ["--py-files", str(package), str(ROOT / "deploy/spark/report.py"), str(here.large), "--out", "out"]
    cluster.run([*submit, *job], tmp_path, f"spark.pyspark.python={python_without_sluice}")
    here.assert_same(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").stat().st_size


# Spark Connect.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the server of the package, and return its address."""
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK, "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": LOOPBACK, "spark.ui.enabled": "false", "spark.local.dir": str(folder),
    }  # fmt: skip
    command = [
        *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    ]
    environment = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    with ManagedProcess("Spark Connect", command, log=folder / "server.log", env=environment, cwd=folder) as process:
        process.wait_for_line("Spark Connect server started at", timeout_s=TIMEOUT_S)
        yield f"sc://{LOOPBACK}:{port}"


@pytest.mark.parametrize("size", ["small", "large"])
def test_spark_connect(server: str, here: Here, tmp_path: Path, size: str) -> None:
    logs = here.large if size == "large" else here.case.logs
    found = _report(tmp_path, str(logs), "--out", "out", "--master", server)
    here.assert_same(tmp_path / "out")
    assert (tmp_path / "out" / "report.html").stat().st_size
    assert found["inputs"]["bad_lines"] > 0


# An object store.


class S3:
    """A bucket on this machine, used by Hadoop's own client."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/sluice"
        lib = PARTS / "s3a" / "lib"
        conf = {
            "jars": ",".join(map(str, sorted(lib.glob("*.jar")))),
            "hadoop.fs.s3a.endpoint": url,
            "hadoop.fs.s3a.endpoint.region": "us-east-1",
            "hadoop.fs.s3a.path.style.access": "true",
            "hadoop.fs.s3a.connection.ssl.enabled": "false",
            "hadoop.fs.s3a.access.key": "anybody",
            "hadoop.fs.s3a.secret.key": "anything",
        }
        self.conf = [word for name, value in conf.items() for word in ("--conf", f"spark.{name}={value}")]
        self._ask("PUT", "")

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        # The server only checks that the request is signed. Without a type, it would be a form.
        headers = {"Authorization": "AWS anybody:anything", "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(self._url + path, content, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def upload(self, folder: Path, name: str) -> None:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self._ask("PUT", "/" + urllib.parse.quote(f"{name}/{file.relative_to(folder)}"), file.read_bytes())

    def names(self, below: str) -> Iterator[str]:
        last = ""
        while True:
            query = urllib.parse.urlencode({"list-type": 2, "prefix": below, "start-after": last})
            listed = ET.fromstring(self._ask("GET", f"?{query}"))
            keys = [str(each.text) for each in listed.iterfind("{*}Contents/{*}Key")]
            if not keys:
                return
            # Names of folders end so.
            yield from (key for key in keys if not key.endswith("/"))
            last = keys[-1]

    def download(self, name: str, folder: Path) -> Path:
        for each in self.names(f"{name}/"):
            file = folder / each.removeprefix(f"{name}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self._ask("GET", "/" + urllib.parse.quote(each)))
        return folder


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    python = required(PARTS / "s3a" / ".stamp", "make stores").parent / "server" / "bin" / "python"
    port = free_port()
    command = [str(python), "-c", "from moto.server import main; main()", "-H", LOOPBACK, "-p", str(port)]
    with ManagedProcess("S3", command, log=tmp_path / "s3.log") as server:
        server.wait_for_line(f"Running on http://{LOOPBACK}:{port}", timeout_s=TIMEOUT_S)
        yield S3(f"http://{LOOPBACK}:{port}")


def test_an_object_store(s3: S3, here: Here, tmp_path: Path) -> None:
    out = here.case.out
    s3.upload(here.case.logs, "logs")
    for table in TABLES:
        s3.upload(out / table, f"out/{table}")
        # A day of the period that is not in the log, and one that must not be read or changed.
        for day in ("2026-10-20", "2026-10-29"):
            s3.upload(out / table / "dt=2026-10-27", f"out/{table}/dt={day}")
    # No storm is at the end of this day.
    period = ("--since", "2026-10-26")
    _report(tmp_path, "s3a://sluice/logs", "--out", "s3a://sluice/out", "--master", "local[2]", *s3.conf, *period)
    found = s3.download("out", tmp_path / "out")
    assert not [name for name in s3.names("out/") if "staging" in name or "_temporary" in name]
    assert (found / "minutes" / "dt=2026-10-20").exists()
    for table in TABLES:
        shutil.rmtree(found / table / "dt=2026-10-20", ignore_errors=True)
    for day in ("2026-10-23", "2026-10-24", "2026-10-25"):
        kept = {file.relative_to(out): file.read_bytes() for file in out.glob(f"*/dt={day}/*")}
        assert kept == {file.relative_to(found): file.read_bytes() for file in found.glob(f"*/dt={day}/*")} != {}
    # Advice is for the period only.
    assert unequal(out, found).keys() == {"recommendations"}
    assert json.loads((tmp_path / "sluice-report" / "recommendations.json").read_bytes())["recommendations"]
