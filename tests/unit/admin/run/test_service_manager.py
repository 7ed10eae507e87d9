"""Messages to a service manager, and the sockets it passes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from admin.run.service_manager import Manager


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    """A manager's socket instead of systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def said(sock: socket.socket) -> list[list[str]]:
    messages = []
    while True:
        try:
            messages.append(sock.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return messages


def test_service_manager_gets_the_status(notified: socket.socket) -> None:
    manager = Manager({"NOTIFY_SOCKET": notified.getsockname()})
    manager.ready("serves 127.0.0.1:1")
    manager.reloading()
    manager.stopping("drains: SIGTERM")
    ready, (reloading, since), stopping = said(notified)
    assert ready == ["READY=1", "STATUS=serves 127.0.0.1:1"]
    assert reloading == "RELOADING=1"
    assert since.startswith("MONOTONIC_USEC=")
    assert stopping == ["STOPPING=1", "STATUS=drains: SIGTERM"]


def test_an_address_in_the_abstract_name_space_is_found() -> None:
    name = f"sluice-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        Manager({"NOTIFY_SOCKET": f"@{name}"}).ready("here")
        assert sock.recv(100) == b"READY=1\nSTATUS=here"


def test_no_manager_is_fine_and_a_gone_manager_is_a_warning(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logged:
        Manager({}).ready("")
        assert logged == []
        Manager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("")
    assert [line["log_level"] for line in logged] == ["warning"]


class Turning:
    """A data path that is responsive, or hangs."""

    def __init__(self) -> None:
        self.hangs = False

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()


async def test_watchdog_is_notified_while_the_data_path_runs(
    notified: socket.socket, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    environ = {"NOTIFY_SOCKET": notified.getsockname(), "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    data_path: Any = Turning()
    nursery.start_soon(Manager(environ).watch, data_path)
    await wait_all_tasks_blocked()
    assert said(notified) == [["WATCHDOG=1"]]
    for _ in range(2):
        mock_clock.jump(10)
        await wait_all_tasks_blocked()
        assert said(notified) == [["WATCHDOG=1"]]
    data_path.hangs = True
    mock_clock.jump(60)
    await wait_all_tasks_blocked()
    assert said(notified) == []


async def test_a_watchdog_that_cannot_be_notified_is_logged_once_a_minute(
    tmp_path: Path, nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), "WATCHDOG_USEC": "30000000"}
    data_path: Any = Turning()
    with structlog.testing.capture_logs() as logged:
        nursery.start_soon(Manager(environ).watch, data_path)
        await wait_all_tasks_blocked()
        for _ in range(12):
            mock_clock.jump(10)
            await wait_all_tasks_blocked()
    assert [line["not_logged"] for line in logged] == [0, 5, 5]


_PASSED = """
import os, socket, sys
from admin.run import service_manager
os.environ["LISTEN_PID"] = sys.argv[1] or str(os.getpid())
found = service_manager.listening_sockets(os.environ)
print([sock.getsockname()[1] for sock in found], [os.get_inheritable(sock.fileno()) for sock in found])
print([name for name in os.environ if name.startswith("LISTEN_")])
"""


@pytest.mark.parametrize("pid", ["", "1"])
def test_sockets_that_were_passed_are_taken_once_and_only_by_whom_they_are_for(pid: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as second,
    ):
        shell = 'exec "$0" -c "$1" "$2" 3<&"$3" 4<&"$4" 5<&"$5"'
        descriptors = [sock.fileno() for sock in (first, datagrams, second)]
        done = subprocess.run(
            ["bash", "-c", shell, sys.executable, _PASSED, pid, *map(str, descriptors)],
            env={**os.environ, "LISTEN_FDS": "3", "LISTEN_FDNAMES": "a:b:c"},
            pass_fds=descriptors,
            capture_output=True,
            text=True,
            check=True,
        )
        ports = [] if pid else [sock.getsockname()[1] for sock in (first, second)]
    *_, taken, left = done.stdout.splitlines()
    assert (taken, left) == (f"{ports} {[False] * len(ports)}", "[]")


_PASSED_WRONGLY = """
import os, sys
from admin.common.errors import StartError
from admin.run import service_manager
try:
    service_manager.listening_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})
except StartError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("fourth", "why"),
    [("4</dev/null", "Socket operation on non-socket"), ("4<&-", "Bad file descriptor")],
    ids=["file", "closed"],
)
def test_a_passed_descriptor_other_than_a_socket_is_named(fourth: str, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        shell = f'exec "$0" -c "$1" 3<&"$2" {fourth}'
        done = subprocess.run(
            ["bash", "-c", shell, sys.executable, _PASSED_WRONGLY, str(first.fileno())],
            pass_fds=[first.fileno()],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == (
        f"LISTEN_FDS=2: descriptor 4 is not a socket ({why}); pass only sockets to Sluice, or start it"
        " without LISTEN_FDS\n"
    )
