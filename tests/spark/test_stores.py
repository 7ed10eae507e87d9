"""Reports that read and write elsewhere: an object store by its own client, and HDFS, both on this machine."""

import getpass
import json
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pytest
from harness.paths import PARTS, program, required
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.sidecar import run_sluice
from log_truth import Made, Truth, count, make
from log_truth.making import DAY_S, START_S
from log_truth.reported import reported

pytestmark = pytest.mark.long

_LOOPBACK: Final = "127.0.0.1"
_PATIENCE_S: Final = 580.0
_DAYS: Final = ("2026-10-24", "2026-10-26")
"""A report of whole days: from the first up to, without, the second."""


class Store(ABC):
    """Somewhere to read from and to write to."""

    conf: tuple[str, ...]
    """What Spark must be told."""

    @abstractmethod
    def address(self, name: str) -> str:
        """Return what the command line calls it."""

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a file."""

    @abstractmethod
    def names(self, below: str) -> list[str]:
        """Return the files whose names begin so."""

    @abstractmethod
    def get(self, name: str) -> bytes:
        """Read a file."""

    def upload(self, folder: Path, name: str) -> None:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{name}/{file.relative_to(folder)}", file.read_bytes())

    def download(self, name: str, folder: Path) -> Path:
        for each in self.names(f"{name}/"):
            file = folder / each
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.get(each))
        return folder / name


def _ask(method: str, url: str, content: bytes | None = None) -> bytes:
    # The server of S3 looks at nothing but that somebody signs; what has no type it takes for a form.
    headers = {"Authorization": "AWS anybody:anything", "Content-Type": "application/octet-stream"}
    asked = urllib.request.Request(url, content, headers, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        found: bytes = answer.read()
        return found


class S3(Store):
    """A server that speaks S3, asked by Hadoop's S3A and Amazon's SDK."""

    def __init__(self, url: str) -> None:
        jars = required(PARTS / "s3a" / ".stamp", "make stores").parent / "lib"
        self._url = f"{url}/sluice"
        self.conf = (
            # Not on the class path, where some would come before others of these that Spark has.
            f"spark.jars={','.join(map(str, sorted(jars.glob('*.jar'))))}",
            f"spark.hadoop.fs.s3a.endpoint={url}",
            "spark.hadoop.fs.s3a.endpoint.region=us-east-1",
            "spark.hadoop.fs.s3a.path.style.access=true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled=false",
            "spark.hadoop.fs.s3a.access.key=anybody",
            "spark.hadoop.fs.s3a.secret.key=anything",
        )
        _ask("PUT", self._url)

    def address(self, name: str) -> str:
        return f"s3a://sluice/{name}"

    def put(self, name: str, content: bytes) -> None:
        _ask("PUT", f"{self._url}/{urllib.parse.quote(name)}", content)

    def names(self, below: str) -> list[str]:
        found, more = [], ""
        while True:
            query = urllib.parse.urlencode({"list-type": 2, "prefix": below, **({"start-after": more} if more else {})})
            listed = ET.fromstring(_ask("GET", f"{self._url}?{query}"))
            keys = [str(each.text) for each in listed.iterfind("{*}Contents/{*}Key")]
            found += keys
            if not keys:
                # Folders are objects whose names end so.
                return [each for each in found if not each.endswith("/")]
            more = keys[-1]

    def get(self, name: str) -> bytes:
        return _ask("GET", f"{self._url}/{urllib.parse.quote(name)}")


class Hdfs(Store):
    """HDFS in one process, asked by the client that Spark has; its files come and go by its web address."""

    conf = ()

    def __init__(self, port: int, web_port: int) -> None:
        self._address = f"hdfs://{_LOOPBACK}:{port}"
        self._web = f"http://{_LOOPBACK}:{web_port}/webhdfs/v1"
        self._user = urllib.parse.urlencode({"user.name": getpass.getuser()})

    def address(self, name: str) -> str:
        return f"{self._address}/{name}"

    def _do(self, method: str, name: str, operation: str) -> Any:
        return json.loads(_ask(method, f"{self._web}/{urllib.parse.quote(name)}?{self._user}&op={operation}"))

    def put(self, name: str, content: bytes) -> None:
        # The node that keeps the names says which one takes the content.
        where = self._do("PUT", name, "CREATE&overwrite=true&noredirect=true")["Location"]
        _ask("PUT", where, content)

    def names(self, below: str) -> list[str]:
        found = []
        for status in self._do("GET", below.rstrip("/"), "LISTSTATUS")["FileStatuses"]["FileStatus"]:
            name = f"{below.rstrip('/')}/{status['pathSuffix']}"
            found += self.names(name) if status["type"] == "DIRECTORY" else [name]
        return found

    def get(self, name: str) -> bytes:
        return _ask("GET", self._do("GET", name, "OPEN&noredirect=true")["Location"])


@contextmanager
def _running_s3(folder: Path) -> Iterator[Store]:
    python = required(PARTS / "s3a" / ".stamp", "make stores").parent / "server" / "bin" / "python"
    port = free_port()
    command = [str(python), "-c", "from moto.server import main; main()", "-H", _LOOPBACK, "-p", str(port)]
    with ManagedProcess("S3", command, log=folder / "s3.log") as server:
        server.wait_for_line(f"Running on http://{_LOOPBACK}:{port}", timeout_s=_PATIENCE_S)
        yield S3(f"http://{_LOOPBACK}:{port}")


@contextmanager
def _running_hdfs(folder: Path) -> Iterator[Store]:
    jars = required(PARTS / "hdfs" / ".stamp", "make stores").parent / "lib"
    port, web_port = free_port(), free_port()
    java = (
        program("java"),
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{jars}/*",
        f"-Dtest.build.data={folder}/data",
    )
    command = [
        *(*java, "org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"),
        *("-nnport", str(port), "-httpport", str(web_port)),
    ]
    with ManagedProcess("HDFS", command, log=folder / "hdfs.log", cwd=folder) as server:
        # It is said once there is a node for data, too.
        server.wait_for_line("Started MiniDFSCluster", timeout_s=_PATIENCE_S)
        yield Hdfs(port, web_port)


_STORES: Final = {"s3a": _running_s3, "hdfs": _running_hdfs}


@dataclass(frozen=True)
class Case:
    """Logs in a store, and the report of them there."""

    store: Store
    made: Made
    folder: Path
    findings: Any

    def report(self, *arguments: str) -> Any:
        return _report(self.store, self.folder, *arguments)


def _report(store: Store, folder: Path, *arguments: str) -> Any:
    conf = [word for each in store.conf for word in ("--conf", each)]
    places = (store.address("logs"), "--out", store.address("report"))
    answer = run_sluice(
        "report", *places, "--json", "--master", "local[2]", *conf, *arguments, cwd=folder, timeout_s=_PATIENCE_S
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture(scope="module", params=_STORES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp(request.param)
    made = make(folder / "logs")
    with _STORES[request.param](folder) as store:
        store.upload(made.folder, "logs")
        yield Case(store, made, folder, _report(store, folder))


def test_a_report_in_a_store_says_what_is_in_the_logs(case: Case, tmp_path: Path) -> None:
    counted = count(case.made.folder)
    said = reported(case.store.download("report", tmp_path), case.findings)
    wrong = {each.name for each in fields(Truth) if getattr(said, each.name) != getattr(counted, each.name)}
    assert wrong - {"p99_per_s"} == set()
    assert said.p99_per_s == {each: pytest.approx(value, rel=1e-12) for each, value in counted.p99_per_s.items()}
    assert case.made.truth.damaged == said.damaged
    advice = case.folder / "sluice-report" / "recommendations.json"
    assert json.loads(advice.read_bytes())["recommendations"]


def test_some_days_are_made_anew_and_others_stay(case: Case, tmp_path: Path) -> None:
    before = case.store.download("report", tmp_path / "before")
    since_s, until_s = (START_S + day * DAY_S for day in (1, 3))
    findings = case.report("--since", _DAYS[0], "--until", _DAYS[1])
    after = case.store.download("report", tmp_path / "after")
    counted = count(case.made.folder, since_s=since_s, until_s=until_s)
    # Of a storm that began before, the days that are made anew have the rest, and those that stay have all of it.
    stay = {each for each in count(case.made.folder).storms if not since_s <= each.start_s < until_s}
    assert reported(after, findings).storms == stay | counted.storms
    assert any(each.start_s < since_s < each.end_s for each in stay)
    for day in ("2026-10-23", "2026-10-27"):
        kept = {file.relative_to(before): file.read_bytes() for file in before.glob(f"*/dt={day}/*")}
        assert kept
        assert kept == {file.relative_to(after): file.read_bytes() for file in after.glob(f"*/dt={day}/*")}
    left = [name for name in case.store.names("report/") if not name.startswith("report/_scratch") or "part-" in name]
    assert not [name for name in left if "staging" in name or "_temporary" in name or "_scratch" in name]
