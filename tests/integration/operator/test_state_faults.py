"""Live edits of a real process across kills, restarts and faults of its state directory, under traffic."""

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from harness.api import ask, rate
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send, stored
from harness.ports import free_port
from harness.sidecar import Route, Sluice, run_sluice

# The rejection log would create a missing folder again.
FILE = '[rejection_log]\ndir = "off"\n[[limits]]\nkind = "topic"\nname = "orders"\nrate = 5\n'
KILLS = 10

Start = Callable[..., Sluice]


@pytest.fixture
def route(broker: EmbeddedBroker) -> Route:
    return broker.route()


@pytest.fixture
def start(tmp_path: Path, route: Route) -> Start:
    """Starts sidecars one after another with one state directory."""

    def run(*arguments: str) -> Sluice:
        return Sluice(tmp_path, (route,), config=FILE, arguments=arguments, covered=False)

    return run


def passes(route: Route) -> bool:
    with FrameClient(route.listen) as client:
        return stored(client.ask(send("quiet"))) == 1


def put(sluice: Sluice, name: str, new_rate: float, **more: object) -> int:
    return ask(sluice, "PUT", f"limits/topic/{name}", {"rate": new_rate, **more})[0]


def audited(sluice: Sluice, limit: int = 200) -> list[int]:
    return [each["id"] for each in ask(sluice, "GET", f"audit?limit={limit}")[1]["changes"]]


@pytest.mark.long
def test_ten_kills_while_it_is_edited_lose_no_acknowledged_edit_and_leave_no_gap(start: Start) -> None:
    acknowledged, tried = 0, 0
    for seed in range(KILLS + 1):
        with start() as sluice:
            found = rate(sluice, "edited")
            # The edit in progress may have been saved without an answer.
            assert found in ({acknowledged, tried} if tried else {"unlimited"})
            last = audited(sluice, 1)[0] if tried else 0
            assert audited(sluice) == list(range(last, max(last - 200, 0), -1))
            tried = acknowledged = 0 if found == "unlimited" else int(found)
            assert last == acknowledged
            if seed == KILLS:
                return
            # Kill after a number of edits and a fraction of one edit's duration, so that the machine's load does not
            # matter.
            process = sluice.process
            for _ in range(5 + seed):
                tried += 1
                assert put(sluice, "edited", tried) == 200
                acknowledged = tried
            killer = subprocess.Popen(["sh", "-c", f"sleep 0.0{seed}; kill -9 {process.pid}"])
            with suppress(OSError):
                while True:
                    tried += 1
                    if put(sluice, "edited", tried) == 200:
                        acknowledged = tried
            killer.wait()


def test_edits_and_switches_survive_a_restart_unless_expired(start: Start) -> None:
    with start() as sluice:
        assert put(sluice, "orders", 8, ttl_s=0.2) == 200
        assert put(sluice, "long", 9, ttl_s=3600) == 200
        assert ask(sluice, "PUT", "switches/retry_group", {"limiting": False, "reason": "r"})[0] == 200
        sluice.process.kill()
    with start() as sluice:
        assert (rate(sluice), rate(sluice, "long")) == (5, 9)
        (off,) = [each for each in ask(sluice, "GET", "switches")[1]["switches"] if not each["limiting"]]
        assert off["kind"] == "retry_group"
        actions = [each["action"] for each in ask(sluice, "GET", "audit")[1]["changes"]]
        assert sorted(actions) == ["expire", "set", "set", "set"]


def test_a_damaged_file_is_quarantined_and_the_configured_limits_apply(start: Start, tmp_path: Path) -> None:
    with start() as sluice:
        assert put(sluice, "orders", 7) == 200
    file = tmp_path / "state" / "state.db"
    damaged = b"x" * len(file.read_bytes())
    file.write_bytes(damaged)
    with start() as sluice:
        assert rate(sluice) == 5
        (aside,) = ask(sluice, "GET", "state")[1]["persistence"]["set_aside"]
        assert Path(aside).read_bytes() == damaged
        assert aside in "".join(sluice.process.lines)
        assert put(sluice, "orders", 8) == 200


def test_a_second_process_on_the_same_directory_does_not_start(start: Start, tmp_path: Path) -> None:
    with start():
        second = run_sluice(
            *("run", "--listen", f"127.0.0.1:{free_port()}", "--broker", "127.0.0.1:1", "--admin", "off"),
            *("--state-dir", str(tmp_path / "state")),
            cwd=tmp_path,
        )
    assert second.returncode == 1
    assert second.stderr.startswith(f"sluice: state directory {tmp_path / 'state'} is in use by another process")


def test_a_full_disk_refuses_edits_with_a_reason_until_there_is_room(
    start: Start, small_disk: Path, route: Route
) -> None:
    with start("--state-dir", str(small_disk)) as sluice:
        assert put(sluice, "orders", 7) == 200
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        # First use up the rest of the file's last pages.
        for number in range(100):
            status, problem = ask(sluice, "PUT", f"limits/topic/t{number}", {"rate": 1, "reason": "x" * 500})
            if status != 200:
                break
        assert status == 507
        assert "no space left" in problem["detail"]
        assert "volatile=1" in problem["detail"]
        assert ask(sluice, "PUT", "limits/topic/orders?volatile=1", {"rate": 9})[0] == 200
        assert rate(sluice) == 9
        assert passes(route)
        filler.unlink()
        assert put(sluice, "later", 3) == 200
        sluice.process.kill()
    with start("--state-dir", str(small_disk)) as sluice:
        assert (rate(sluice), rate(sluice, "later"), rate(sluice, f"t{number}")) == (7, 3, "unlimited")
        last = audited(sluice, 1)[0]
        assert audited(sluice) == list(range(last, 0, -1))


def test_a_read_only_disk_is_named_at_the_start(small_disk: Path, route: Route, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    second = run_sluice(
        *("run", "--listen", route.listen, "--broker", route.broker, "--admin", "off"),
        *("--state-dir", str(small_disk)),
        cwd=tmp_path,
    )
    assert second.returncode == 1
    assert f"state directory {small_disk}: lock: the file system is read-only" in second.stderr


def test_a_state_directory_that_becomes_read_only_refuses_edits_until_it_is_not(
    start: Start, tmp_path: Path, route: Route
) -> None:
    state = tmp_path / "state"
    with start() as sluice:
        assert put(sluice, "orders", 7) == 200
        subprocess.run(["mount", "--bind", str(state), str(state)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(state)], check=True)
            status, problem = ask(sluice, "PUT", "limits/topic/orders", {"rate": 8})
            assert (status, rate(sluice)) == (507, 7)
            assert "the edit could not be saved: it is not writable" in problem["detail"]
            assert ask(sluice, "PUT", "switches/all?volatile=1", {"limiting": False})[0] == 200
            assert ask(sluice, "POST", "audit/2/revert", {})[0] == 200
            assert passes(route)
        finally:
            subprocess.run(["umount", "--lazy", str(state)], check=True)
        assert put(sluice, "orders", 9) == 200
        sluice.process.kill()
    with start() as sluice:
        assert (rate(sluice), audited(sluice)) == (9, [4, 3, 2, 1])


def test_a_state_directory_that_is_removed_refuses_edits_until_it_is_back(
    start: Start, tmp_path: Path, route: Route
) -> None:
    with start() as sluice:
        assert put(sluice, "orders", 7) == 200
        away = (tmp_path / "state").rename(tmp_path / "away")
        status, problem = ask(sluice, "PUT", "limits/topic/orders", {"rate": 8})
        assert status == 507
        assert "it was moved or deleted; restore it, or restart Sluice" in problem["detail"]
        assert rate(sluice) == 7
        assert passes(route)
        away.rename(tmp_path / "state")
        assert put(sluice, "orders", 9) == 200
