"""Live edits across restarts of a real process: what stands, what ends, and what happens to files that are wrong."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness.api import ask, rate
from harness.embedded import EmbeddedBroker
from harness.ports import free_port
from harness.sidecar import Route, Sluice, run_sluice

pytestmark = pytest.mark.long

FILE = '[[limits]]\nkind = "topic"\nname = "orders"\nrate = 5\n'


@pytest.fixture
def route(broker: EmbeddedBroker) -> Route:
    return broker.route()


class Process:
    """Starts sidecars one after another over one directory."""

    def __init__(self, directory: Path, route: Route) -> None:
        self.directory, self.route = directory, route

    def __call__(self, *arguments: str, config: str = FILE) -> Sluice:
        return Sluice(self.directory, (self.route,), config=config, arguments=arguments, covered=False)


@pytest.fixture
def start(tmp_path: Path, route: Route) -> Process:
    return Process(tmp_path, route)


def test_edits_and_switches_stand_after_a_restart_and_what_is_over_does_not(start: Process) -> None:
    with start() as sluice:
        assert ask(sluice, "PUT", "limits/topic/orders", {"rate": 7, "reason": "r"})[0] == 200
        assert ask(sluice, "PUT", "limits/topic/orders", {"rate": 8, "ttl_s": 0.2})[0] == 200
        assert ask(sluice, "PUT", "limits/topic/long", {"rate": 9, "ttl_s": 3600})[0] == 200
        assert ask(sluice, "PUT", "switches/retry_group", {"limiting": False, "reason": "r"})[0] == 200
        sluice.process.kill()
    with start() as sluice:
        assert (rate(sluice), rate(sluice, "long")) == (5, 9)
        (off,) = [each for each in ask(sluice, "GET", "switches")[1]["switches"] if not each["limiting"]]
        assert off["kind"] == "retry_group"
        actions = [each["action"] for each in ask(sluice, "GET", "audit")[1]["changes"]]
        assert sorted(actions) == ["expire", "set", "set", "set", "set"]
        assert ask(sluice, "DELETE", "limits/topic/long")[0] == 200
        assert rate(sluice, "long") == "unlimited"


def test_a_damaged_journal_is_set_aside_and_the_configured_limits_hold(start: Process, tmp_path: Path) -> None:
    with start() as sluice:
        ask(sluice, "PUT", "limits/topic/orders", {"rate": 7})
    journal = tmp_path / "state" / "edits.journal"
    journal.write_bytes(journal.read_bytes().replace(b'"rate":7', b'"rate":6'))
    with start() as sluice:
        assert rate(sluice) == 5
        (aside,) = ask(sluice, "GET", "state")[1]["persistence"]["set_aside"]
        assert b'"rate":6' in Path(aside).read_bytes()
        assert aside in "".join(sluice.process.lines)
        assert ask(sluice, "PUT", "limits/topic/orders", {"rate": 8})[1]["id"] == 2


def test_a_second_process_on_the_same_directory_says_so_and_does_not_start(start: Process, tmp_path: Path) -> None:
    with start():
        port = free_port("127.0.0.1")
        second = run_sluice(
            *("run", "--listen", f"127.0.0.1:{port}", "--broker", "127.0.0.1:1", "--admin", "off"),
            *("--state-dir", str(tmp_path / "state")),
            cwd=tmp_path,
        )
    assert second.returncode == 1
    assert second.stderr.startswith(f"sluice: state directory {tmp_path / 'state'}: is in use by another process")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with hardly any room."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def test_a_full_disk_refuses_edits_says_why_and_takes_them_again(start: Process, small_disk: Path) -> None:
    with start("--state-dir", str(small_disk)) as sluice:
        assert ask(sluice, "PUT", "limits/topic/orders", {"rate": 7})[0] == 200
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        # What is left of the files' last pages is used up first.
        for number in range(100):
            status, problem = ask(sluice, "PUT", f"limits/topic/t{number}", {"rate": 1, "reason": "x" * 500})
            if status != 200:
                break
        assert status == 507
        assert "no space left" in problem["detail"]
        assert "volatile=1" in problem["detail"]
        assert ask(sluice, "PUT", "limits/topic/orders?volatile=1", {"rate": 9})[0] == 200
        assert rate(sluice) == 9
        filler.unlink()
        assert ask(sluice, "PUT", "limits/topic/later", {"rate": 3})[0] == 200
        sluice.process.kill()
    with start("--state-dir", str(small_disk)) as sluice:
        assert (rate(sluice), rate(sluice, "later"), rate(sluice, f"t{number}")) == (7, 3, "unlimited")


@pytest.mark.parametrize("seed", range(4))
def test_a_sidecar_killed_while_it_is_edited_has_what_it_acknowledged(start: Process, seed: int) -> None:
    acknowledged = 0
    with start() as sluice:
        deadline = time.monotonic() + 0.3 + seed / 7
        while time.monotonic() < deadline:
            if ask(sluice, "PUT", "limits/topic/orders", {"rate": acknowledged + 1})[0] == 200:
                acknowledged += 1
        sluice.process.kill()
    with start() as sluice:
        assert rate(sluice) == acknowledged
        assert ask(sluice, "GET", "audit")[1]["changes"][0]["id"] == acknowledged
