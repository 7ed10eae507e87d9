"""Wrong command lines of `sluice`, and its end."""

import signal
import socket
import subprocess
from pathlib import Path

import pytest
from harness.ports import free_port
from harness.sidecar import Route, StartSluice, run_sluice

pytestmark = pytest.mark.integration


def _refused_to_run(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line on standard error of a run that ended at once."""
    assert done.returncode not in (0, None), done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_broken_configuration_is_one_line_that_names_file_and_place(tmp_path: Path) -> None:
    config = tmp_path / "sluice.toml"
    config.write_text("no_such_key = 1\n", encoding="utf-8")

    line = _refused_to_run(run_sluice("run", "--config", str(config), cwd=tmp_path))

    assert str(config) in line
    assert "no_such_key" in line


def test_occupied_port_is_one_line_that_names_it(tmp_path: Path, unreachable: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = {
            "--admin": f"127.0.0.1:{free_port()}",
            "--broker": unreachable,
            "--listen": f"127.0.0.1:{taken.getsockname()[1]}",
        }
        flags = [word for flag, address in addresses.items() for word in (flag, address)]

        line = _refused_to_run(run_sluice("run", "--protocol", "rocketmq", *flags, cwd=tmp_path))

    assert addresses["--listen"] in line


def test_with_an_unreachable_broker_it_is_healthy_but_not_ready_and_names_it(
    start_sluice: StartSluice, listen: str, unreachable: str
) -> None:
    with start_sluice(routes=(Route(listen, unreachable),), ready=False) as sluice:
        health, _ = sluice.get("/healthz")
        readiness, reason = sluice.get("/readyz")

    assert (health, readiness) == (200, 503)
    assert unreachable in reason
    assert "Traceback" not in sluice.process.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_orderly(
    start_sluice: StartSluice, listen: str, unreachable: str, number: signal.Signals
) -> None:
    sluice = start_sluice(routes=(Route(listen, unreachable),), ready=False)

    sluice.process.signal(number)

    assert sluice.process.wait(timeout_s=60) == 0
    assert "Traceback" not in sluice.process.log.read_text(encoding="utf-8")


def test_demo_ends_by_itself_with_a_summary_of_each_topic(tmp_path: Path) -> None:
    done = run_sluice("demo", "--seconds", "2", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    for word in ("sent", "passed", "refused"):
        assert word in done.stdout.lower()
