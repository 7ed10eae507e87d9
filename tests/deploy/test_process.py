"""The process under a service manager or in a container: passed sockets, PID 1, a read-only file system."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send, stored
from harness.ports import free_port
from harness.sidecar import Sluice, sluice_command

HOST: Final = "127.0.0.1"
SECRET: Final = "s3cret-that-nobody-may-see"


def tool(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing: apt-get install {package}", pytrace=False)
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    """A manager's socket instead of systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(60)
        yield sock


def until(sock: socket.socket, word: str) -> list[str]:
    """Return all lines up to and including this one."""
    lines: list[str] = []
    while word not in lines:
        lines += sock.recv(4096).decode().split("\n")
    return lines


def test_service_manager_passes_sockets_and_gets_status(
    tmp_path: Path, broker: EmbeddedBroker, notified: socket.socket
) -> None:
    route, admin = broker.route(), f"{HOST}:{free_port()}"
    activate = [tool("systemd-socket-activate", "systemd"), "--listen", route.listen, "--listen", admin]
    passed = [f"--setenv={name}" for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "PATH")]
    env = {"NOTIFY_SOCKET": notified.getsockname(), "WATCHDOG_USEC": "1500000"}
    with Sluice(
        tmp_path, (route,), admin=admin, inside=(*activate, *passed), env=env, arguments=("--log-level", "info")
    ) as sluice:
        lines = until(notified, "WATCHDOG=1")
        assert "READY=1" in lines
        assert f"STATUS=serves {route.listen}; admin http://{admin}/" in lines
        with FrameClient(route.listen) as client:
            assert stored(client.ask(send("orders"))) == 1
        sluice.process.signal(signal.SIGHUP)
        lines = until(notified, "READY=1")
        assert lines.index("RELOADING=1") < lines.index("READY=1")
        until(notified, "WATCHDOG=1")
        assert sluice.stop() == 0
        assert "STATUS=draining: SIGTERM" in until(notified, "STOPPING=1")


def start_with(sockets: list[socket.socket], *arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Start it with sockets like systemd: the first is descriptor 3."""
    descriptors = [sock.fileno() for sock in sockets]
    moves = " ".join(f"{number}<&{descriptor}" for number, descriptor in enumerate(descriptors, 3))
    # Move them away first, because a descriptor may have the target number of another one.
    script = f'export LISTEN_PID=$$ LISTEN_FDS={len(descriptors)}; exec "$@" {moves}'
    with (cwd / "log").open("a") as log:
        return subprocess.Popen(
            ["bash", "-c", script, "bash", *sluice_command("run", *arguments)],
            cwd=cwd,
            env=os.environ,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stderr=log,
        )


def test_a_restart_with_sockets_of_a_manager_refuses_no_connection(tmp_path: Path, broker: EmbeddedBroker) -> None:
    faults: list[str] = []
    answered = 0
    over = threading.Event()

    def come_and_go(address: str) -> None:
        nonlocal answered
        while not over.is_set():
            try:
                client = FrameClient(address)
            except OSError as error:
                faults.append(repr(error))
                return
            try:
                with client:
                    answered += stored(client.ask(send("orders")))
            except OSError:
                # It has just ended.
                continue

    with socket.create_server((HOST, 0), backlog=1024) as listening:
        # Above its target number.
        kept = socket.socket(fileno=os.dup2(listening.fileno(), 100, inheritable=True))
        address = f"{HOST}:{listening.getsockname()[1]}"
        arguments = ("--listen", address, "--broker", broker.address, "--admin", "off", "--state-dir", str(tmp_path))
        client = threading.Thread(target=come_and_go, args=(address,), daemon=True)
        client.start()
        for _ in range(3):
            before = answered
            process = start_with([kept], *arguments, cwd=tmp_path)
            try:
                deadline = time.monotonic() + 60
                while answered < before + 10 and time.monotonic() < deadline:
                    time.sleep(0.01)
                assert answered >= before + 10
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=60) == 0
        over.set()
        # Waiting connections are closed with the socket.
        kept.close()
    client.join(timeout=60)
    assert not faults


def test_as_the_first_process_of_a_container_it_drains_on_a_signal(tmp_path: Path, broker: EmbeddedBroker) -> None:
    inside = (tool("unshare", "util-linux"), "--pid", "--fork", "--mount-proc", "--kill-child")
    with Sluice(tmp_path, (broker.route(),), inside=inside) as sluice:
        pid = sluice.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        status = Path(f"/proc/{child}/status").read_text(encoding="ascii")
        assert re.search(r"^NSpid:.*\t1$", status, re.MULTILINE)
        # The first process of a namespace only gets signals with a handler.
        os.kill(int(child), signal.SIGTERM)
        assert sluice.process.wait(timeout_s=60) == 0
        assert "drained" in sluice.process.tail()


_READ_ONLY = """
mount --make-rprivate /
mount --bind "$1" "$1"
for place in $(awk '{print $2}' /proc/mounts | sort -u); do
    case "$place" in "$1"|/proc|/proc/*|/dev/*|/sys/*) ;; *) mount -o remount,bind,ro "$place" ;; esac
done
if touch "$2" 2>/dev/null; then echo "still writable: $2"; exit 1; fi
shift 2
exec "$@"
"""


def test_it_needs_no_capability_and_writes_to_its_state_directory_only(tmp_path: Path, broker: EmbeddedBroker) -> None:
    state = tmp_path / "state"
    state.mkdir()
    limit = "topic:orders=5/s"
    inside = (
        *(
            tool("unshare", "util-linux"),
            "--mount",
            "sh",
            "-euc",
            _READ_ONLY,
            "sh",
            str(state),
            str(tmp_path / "other"),
        ),
        *("setpriv", "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all"),
    )
    with Sluice(tmp_path, (broker.route(),), limits=(limit,), inside=inside) as sluice:
        with FrameClient(sluice.routes[0].listen) as client:
            client.ask(*[send("orders") for _ in range(20)])
        lines = "\n".join(sluice.process.lines)
        assert '"level": "error"' not in lines
        assert "read-only" not in lines
    assert "state.db" in {each.name for each in state.iterdir()}


def test_secrets_are_in_no_log(tmp_path: Path, broker: EmbeddedBroker) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ops write {SECRET}-of-a-file\n", encoding="utf-8")
    tokens.chmod(0o600)
    env = {"SLUICE_ADMIN_TOKEN": f"{SECRET}-of-a-variable", "SLUICE_ADMIN_TOKEN_FILE": str(tokens)}
    with Sluice(tmp_path, (broker.route(),), env=env, ready=False, arguments=("--log-level", "debug")) as sluice:
        for _ in range(2):
            assert sluice.get("/api/v1/state")[0] == 401
            assert sluice.get(f"/api/v1/state?token={SECRET}-in-a-path")[0] == 401
            tokens.write_text(f"ops write {SECRET}-of-a-file\nmore read {SECRET}-added\n", encoding="utf-8")
            sluice.process.signal(signal.SIGHUP)
            sluice.process.wait_for_line("configuration reloaded", timeout_s=60)
        sluice.stop()
        assert SECRET not in sluice.process.log.read_text(encoding="utf-8")
    for file in (tmp_path / "state").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
