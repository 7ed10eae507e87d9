"""The rejection log of a real process: kills, full and missing folders, two processes in one folder, and the answers
that clients got.
"""

import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, sends
from harness.process import ManagedProcess
from harness.sidecar import Metrics, Route, Sluice, StartSluice, run_sluice, sluice_command

from proxy.protocols.rocketmq.wire.codes import ResponseCode

pytestmark = pytest.mark.long

KILLS = 4
_AT_A_TIME = 20
_FILE = """
[[limits]]
kind = "topic"
name = "orders"
rate = 50

[rejection_log]
{more}
"""


class Answer(NamedTuple):
    at_s: float
    refused: bool


class Flood:
    """A client that sends and reads as fast as it can, on a thread, until it is stopped or its connection ends."""

    def __init__(self, address: str, group: str = "producers", topic: str = "orders") -> None:
        self.answers: list[Answer] = []
        self.sent = 0
        self._stop = threading.Event()
        self._client = FrameClient(address)
        self._group, self._topic = group, topic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError), self._client:
            while not self._stop.is_set():
                self.sent += _AT_A_TIME
                self._client.write(*sends(_AT_A_TIME, self._topic, group=self._group))
                for _ in range(_AT_A_TIME):
                    (answer,) = self._client.read()
                    self.answers.append(Answer(time.time(), answer.code == ResponseCode.SYSTEM_BUSY))

    def stop(self) -> None:
        """Stop once everything that was sent is answered."""
        self._stop.set()
        self._thread.join()

    def ended(self) -> None:
        self._thread.join()

    def count(self, *, refused: bool, until_s: float = float("inf")) -> int:
        return sum(each.refused is refused and each.at_s < until_s for each in self.answers)


class Log(NamedTuple):
    path: Path

    def records(self, *types: str) -> list[dict[str, Any]]:
        """Return the records, each once, without a last line that a kill cut off."""
        found = []
        for path in sorted(self.path.glob("*.jsonl")):
            whole, _, _ = path.read_bytes().rpartition(b"\n")
            found += [json.loads(line) for line in whole.splitlines()]
        ids = [(record["run"], record["n"]) for record in found]
        assert len(ids) == len(set(ids))
        return [record for record in found if not types or record["type"] in types]

    def total(self, outcome: str) -> int:
        return sum(record.get(outcome, [0])[0] for record in self.records("traffic"))

    def rejected(self) -> int:
        return sum(record["requests"] for record in self.records("rejection"))


@pytest.fixture
def route(broker: EmbeddedBroker) -> Route:
    return broker.route()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


Start = Callable[..., Sluice]


@pytest.fixture
def start(tmp_path: Path, route: Route, log: Log) -> Start:
    """Starts sidecars one after another that write to one folder."""

    def start_one(**more: object) -> Sluice:
        table = {"dir": str(log.path), "instance": "broker-a", **more}
        config = _FILE.format(more="\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()))
        return Sluice(tmp_path, (route,), config=config, covered=False)

    return start_one


def _wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_after_sigterm_the_log_has_every_refusal_clients_saw(start: Start, route: Route, log: Log) -> None:
    with start() as sluice:
        floods = [Flood(route.listen, f"group-{number}") for number in range(3)]
        _wait_until(lambda: sluice.metrics().total("sluice_rejection_log_records_total", type="rejection") > 8)
        for flood in floods:
            flood.stop()
        assert sluice.stop() == 0
    admitted = sum(flood.count(refused=False) for flood in floods)
    refused = sum(flood.count(refused=True) for flood in floods)
    assert (log.total("admitted"), log.total("refused"), log.rejected()) == (admitted, refused, refused)
    by_group = {f"group-{number}": flood.count(refused=True) for number, flood in enumerate(floods)}
    found = dict.fromkeys(by_group, 0)
    for record in log.records("rejection"):
        assert (record["kind"], record["name"], record["client"]) == ("topic", "orders", "127.0.0.1")
        found[record["producer_group"]] += record["requests"]
    assert found == by_group
    assert all(each.name.startswith("rejections-") for each in log.path.iterdir())
    assert log.records("heartbeat")[-1]["ends"] is True
    numbers = [record["n"] for record in log.records()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("signals", [1, 2])
def test_a_drain_in_the_middle_of_a_flood_loses_nothing(
    start: Start, route: Route, log: Log, broker: EmbeddedBroker, signals: int
) -> None:
    stored = broker.stored("orders")
    with start() as sluice:
        flood = Flood(route.listen)
        _wait_until(lambda: sluice.metrics().total("sluice_rejection_log_records_total", type="rejection") > 1)
        for _ in range(signals):
            sluice.process.signal(signal.SIGTERM)
        flood.ended()
        assert sluice.process.wait(timeout_s=60) in {0, 128 + signal.SIGTERM}
    assert log.total("refused") >= flood.count(refused=True)
    assert log.total("refused") == log.rejected()
    assert log.total("admitted") >= broker.stored("orders") - stored >= flood.count(refused=False)
    assert log.total("admitted") + log.total("refused") <= flood.sent


def test_a_kill_loses_a_second_of_refusals_and_ten_of_traffic_and_the_next_run_reports_it(
    start: Start, route: Route, log: Log
) -> None:
    chance = random.Random(20261122)
    killed: list[tuple[str, int]] = []
    for _ in range(KILLS):
        before = log.records()
        with start() as sluice:
            sluice.wait_for_metrics(_is_up)
            flood = Flood(route.listen)
            time.sleep(chance.uniform(2, 15))
            sluice.process.kill()
            killed_s = time.time()
            flood.ended()
        known = {(record["run"], record["n"]) for record in before}
        records = [record for record in log.records() if (record["run"], record["n"]) not in known]
        (run,) = {record["run"] for record in records}
        numbers = [record["n"] for record in records]
        assert sorted(numbers) == list(range(1, max(numbers) + 1))
        killed.append((run, max(numbers)))
        assert not any(record.get("ends") for record in records)
        rejected = sum(record["requests"] for record in records if record["type"] == "rejection")
        traffic = [record for record in records if record["type"] == "traffic"]
        admitted, refused = (sum(record.get(end, [0])[0] for record in traffic) for end in ("admitted", "refused"))
        # Without the current second, and one that may not be written yet.
        assert flood.sent >= rejected >= flood.count(refused=True, until_s=killed_s - 1.5)
        assert refused >= flood.count(refused=True, until_s=killed_s - 11.5)
        assert flood.sent >= admitted + refused
        assert admitted >= flood.count(refused=False, until_s=killed_s - 11.5)
    with start() as sluice:
        sluice.wait_for_metrics(_is_up)
        assert sluice.stop() == 0
    said = {(beat["killed_run"], beat["killed_n"]) for beat in log.records("heartbeat") if "killed_run" in beat}
    # A run that was killed before its first heartbeat does not name an earlier one.
    assert killed[-1] in said <= set(killed)


def _is_up(metrics: Metrics) -> bool:
    return metrics.total("sluice_rejection_log_up") > 0


def test_a_full_disk_costs_records_and_no_traffic_and_writing_resumes(
    start: Start, route: Route, small_disk: Path
) -> None:
    log = Log(small_disk / "log")
    with (
        start(dir=str(log.path), max_total_bytes=1024 * 1024, max_file_age_s=1) as sluice,
        FrameClient(route.listen) as client,
    ):
        sluice.wait_for_metrics(_is_up)
        _fill(small_disk / "filler")
        answered = 0
        metrics = sluice.metrics()
        while not metrics.total("sluice_rejection_log_lost_records_total", reason="no_space"):
            # Many names, to use up the rest of the last page.
            answered += len(client.ask(*sends(100, "orders", group="x" * 200)))
            metrics = sluice.metrics()
        sluice.wait_for_metrics(lambda metrics: not _is_up(metrics))
        state = json.loads(sluice.get("/api/v1/state")[1])
        assert state["rejection_log"]["error"] == f"{log.path}: there is no space left on the disk"
        assert any("the rejection log cannot be written" in warning for warning in state["warnings"])
        assert len(client.ask(*sends(100, "orders"))) == 100
        (small_disk / "filler").unlink()
        sluice.wait_for_metrics(_is_up)
        client.ask(*sends(100, "orders", group="afterwards"))
        assert sluice.stop() == 0
        events = ("could not write the rejection log", "rejection log writable again")
        said = [line for line in sluice.process.lines if any(event in line for event in events)]
        assert len(said) == 2
    numbers = {record["n"] for record in log.records()}
    assert set(range(1, max(numbers))) - numbers
    assert "afterwards" in {record["producer_group"] for record in log.records("rejection")}
    assert log.records("heartbeat")[-1]["lost_records"] > 0


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_folder_that_is_removed_is_made_again(start: Start, route: Route, log: Log) -> None:
    with start() as sluice, FrameClient(route.listen) as client:
        sluice.wait_for_metrics(_is_up)
        mode = log.path.stat().st_mode
        shutil.rmtree(log.path)
        asked = sends(200, "orders")
        refused = sum(answer.code == ResponseCode.SYSTEM_BUSY for answer in client.ask(*asked))
        _wait_until(log.path.exists)
        assert log.path.stat().st_mode == mode
        assert sluice.stop() == 0
    assert refused
    assert (log.total("refused"), log.rejected()) == (refused, refused)
    assert log.total("admitted") == len(asked) - refused


def test_two_write_into_one_folder(
    start: Start, route: Route, broker: EmbeddedBroker, log: Log, start_sluice: StartSluice
) -> None:
    other = broker.route()
    config = _FILE.format(more=f'dir = "{log.path}"\ninstance = "broker-b"')
    with start() as first:
        second = start_sluice(routes=(other,), config=config, covered=False)
        refused = {}
        for instance, sluice, address in (("broker-a", first, route.listen), ("broker-b", second, other.listen)):
            sluice.wait_for_metrics(_is_up)
            with FrameClient(address) as client:
                answers = client.ask(*sends(200, "orders"))
            refused[instance] = sum(answer.code == ResponseCode.SYSTEM_BUSY for answer in answers)
        assert second.stop() == first.stop() == 0
    found = dict.fromkeys(refused, 0)
    for record in log.records("rejection"):
        found[record["instance"]] += record["requests"]
    assert found == refused


def test_tail_shows_records_as_they_are_written(start: Start, route: Route, log: Log, tmp_path: Path) -> None:
    with start() as sluice, FrameClient(route.listen) as client:
        sluice.wait_for_metrics(_is_up)
        command = sluice_command("report", "tail", "-f", str(log.path), covered=False)
        tail = ManagedProcess("tail", command, log=tmp_path / "tail.log", cwd=tmp_path)
        try:
            client.ask(*sends(200, "orders", group="shown"))
            _wait_until(lambda: any(" rejection " in line and "producer_group=shown" in line for line in tail.lines))
            assert sluice.stop() == 0
            _wait_until(lambda: any(" traffic " in line and "topic orders" in line for line in tail.lines))
            assert sum("producer_group=shown" in line for line in tail.lines) == len(log.records("rejection"))
        finally:
            tail.stop()
    ended = run_sluice("report", "tail", "-n", "1", str(log.path), cwd=tmp_path)
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 1)
    assert " heartbeat " in ended.stdout
