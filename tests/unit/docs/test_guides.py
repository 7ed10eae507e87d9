"""The guides' examples run: code, tests, configuration, command, and all of it in a data path."""

import importlib
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from playbook.frames import send
from trio.testing import MockClock

from admin.cli import main
from admin.config.sources import Flags, load
from admin.run.composition import compose
from proxy.datapath.datapath import LocalDataPath

GUIDES = {"write-a-handler.md": "size_guard", "add-a-protocol.md": "pub_lines"}
DOCS = Path(__file__).parents[3] / "docs"
COMMAND = re.compile(r"^```\n(sluice .*?)\n```$", re.MULTILINE)
Start = Callable[[], Awaitable[tuple[trio.SocketStream, trio.SocketStream]]]


@pytest.mark.parametrize(("guide", "module"), GUIDES.items())
def test_the_tests_of_a_guide_pass(guide: str, module: str, install: Any) -> None:
    install(guide)
    tests = importlib.import_module(f"test_{module}")
    found = [each for name, each in vars(tests).items() if name.startswith("test_")]
    assert found
    for test in found:
        test()


@pytest.mark.parametrize("guide", GUIDES)
def test_the_command_of_a_guide_finds_the_package(
    guide: str, install: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(guide)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    (command,) = COMMAND.findall((DOCS / guide).read_text(encoding="utf-8"))
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert "topic:orders" in (out := capsys.readouterr().out) or "queue:orders" in out


@pytest.fixture
async def start(nursery: trio.Nursery, mock_clock: MockClock) -> AsyncIterator[Start]:
    """Start the guide's ``sluice.toml`` on free ports, with a client and the broker's end of its connection."""
    scope = trio.CancelScope()

    async def begin() -> tuple[trio.SocketStream, trio.SocketStream]:
        (broker,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        config = compose(load("sluice.toml", {}, Flags())).data_path_config()
        (listener,) = config.listeners
        listener = replace(listener, listen=("127.0.0.1", 0), broker=broker.socket.getsockname())
        # The clock does not move, so that nothing is late.
        path = LocalDataPath(replace(config, listeners=(listener,)), lambda: round(mock_clock.current_time() * 1e9))

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await path.run(task_status=task_status)

        await nursery.start(run)
        client = await trio.open_tcp_stream(*path.server.bound(listener.name))
        # The first one only probes the broker.
        await (await broker.accept()).aclose()
        async with broker:
            return client, await broker.accept()

    yield begin
    scope.cancel()


async def receive(stream: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.receive_some(size - len(data))
    return data


async def test_the_handler_refuses_in_a_data_path(install: Any, start: Start) -> None:
    install("write-a-handler.md")
    client, broker = await start()
    small, large = send("orders", 1), send("orders", 2, body=b"x" * 1000)
    async with client, broker:
        await client.send_all(large + small)
        assert await receive(broker, len(small)) == small
        assert b"rule size_guard" in await client.receive_some()


async def test_the_protocol_is_limited_in_a_data_path(install: Any, start: Start) -> None:
    install("add-a-protocol.md")
    client, broker = await start()
    async with client, broker:
        await client.send_all(b"PUB 1 orders a\nPUB 2 orders b\nPUB 3 orders c\nPUB 4 mail d\n")
        passed = b"PUB 1 orders a\nPUB 2 orders b\nPUB 4 mail d\n"
        assert await receive(broker, len(passed)) == passed
        assert (await client.receive_some()).startswith(b"BUSY 3 ")
        await broker.send_all(b"OK 1\nOK 2\n")
        assert await receive(client, 10) == b"OK 1\nOK 2\n"
