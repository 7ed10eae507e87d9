import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from admin.common.errors import SettingsError, StartError
from admin.config.sources import Flags, load
from admin.rejection_log.files import LogFiles
from admin.run import sidecar
from admin.run.composition import compose
from limiter.compiled import VERSION
from proxy.deciding.pipeline import PipelineError
from proxy.protocols.rocketmq.wire.codes import RequestCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode
from proxy.stats.question import Question

SLUICE = str(Path(sys.executable).with_name("sluice"))
SEND = encode(RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=1, fields={"a": "group", "b": "orders"}))


def flags(broker: str = "127.0.0.1:1", *, admin: str = "127.0.0.1:0", log_dir: str = "off") -> Flags:
    return Flags(
        listen=["127.0.0.1:0"],
        broker=[broker],
        limits=["topic:orders=5/s"],
        values={("admin", "listen"): ("--admin", admin), ("rejection_log", "dir"): ("", log_dir)},
    )


async def test_everything_listens_once_it_has_started(nursery: trio.Nursery, silent_broker: str) -> None:
    running = await nursery.start(sidecar.run, compose(load(None, {}, flags(silent_broker))))
    ((listener, address),) = running.listen.items()
    assert listener == "127.0.0.1:0"
    for place in (address, str(running.admin)):
        host, port = place.rsplit(":", 1)
        await (await trio.open_tcp_stream(host, int(port))).aclose()
    (limit,) = (await running.data_path.explain(Question("topic", "orders"))).limits
    assert limit.limit.rate_per_s == 5


async def test_a_spool_is_opened_and_one_that_another_has_is_an_error(nursery: trio.Nursery, tmp_path: Path) -> None:
    environ = {"SLUICE_SPOOL_DIR": str(tmp_path / "spool"), "SLUICE_STATE_DIR": "off"}
    plan = compose(load(None, environ, flags()))
    running = await nursery.start(sidecar.run, plan)
    assert await running.data_path.spool() is not None
    with pytest.raises(ExceptionGroup) as caught:
        await sidecar.run(plan)
    assert caught.group_contains(StartError, match=r"^spool\.dir: the spool folder .*spool is in use by another")


async def test_without_a_state_directory_there_is_no_spool_and_a_warning_for_limits_that_need_one(
    nursery: trio.Nursery, write: Callable[[str], str]
) -> None:
    limit = '[[limits]]\nkind = "topic"\nname = "a"\nrate = 5\naction = "delay"\nmax_delay_s = 1\nspool = true\n'
    plan = compose(load(write(limit), {"SLUICE_STATE_DIR": "off"}, flags()))
    running = await nursery.start(sidecar.run, plan)
    assert await running.data_path.spool() is None
    with structlog.testing.capture_logs() as logged:
        await running.announce()
    why = "there is no state directory; set spool.dir"
    warned = [line["event"] for line in logged if line["log_level"] == "warning"]
    assert f"topic:a: spool = true, but there is no spool ({why}), so requests wait in memory" in warned
    (up,) = (line for line in logged if line["event"] == "sluice is up")
    assert up["compiled_extension"] == VERSION
    assert (up["state_dir"], up["spool"], up["limits"], up["live_edits"]) == ("off", f"off ({why})", 2, 0)


async def test_a_pipeline_that_cannot_be_is_an_error_of_the_settings(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise PipelineError("handler 'x' is async")

    monkeypatch.setattr(sidecar, "LocalDataPath", refuse)
    with pytest.raises(SettingsError, match="handlers: handler 'x' is async"):
        await sidecar.run(compose(load(None, {}, flags())))


def raising(number: signal.Signals) -> Callable[..., Awaitable[None]]:
    """Return a function that sends the process a signal."""

    async def announce(*_: object) -> None:
        signal.raise_signal(number)

    return announce


@pytest.mark.parametrize("number", sidecar.STOP_SIGNALS)
async def test_a_signal_ends_it_in_order(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setattr(sidecar.Sidecar, "announce", raising(number))
    with structlog.testing.capture_logs() as logged:
        assert await sidecar.run_until_signal(compose(load(None, {}, flags()))) == 0
    assert {"draining", "drained"} <= {entry["event"] for entry in logged}


@pytest.mark.parametrize("number", sidecar.STOP_SIGNALS)
async def test_a_second_signal_ends_the_wait_for_a_disk_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    answer = threading.Event()

    def hang(_: LogFiles) -> None:
        # The log is being written, as the last step.
        signal.raise_signal(number)
        answer.wait()

    monkeypatch.setattr(LogFiles, "write", hang)
    monkeypatch.setattr(LogFiles, "waits_s", 60.0)
    monkeypatch.setattr(sidecar.Sidecar, "announce", raising(signal.SIGTERM))
    plan = compose(load(None, {}, flags(log_dir=str(tmp_path))))
    with structlog.testing.capture_logs() as logged:
        assert await sidecar.run_until_signal(plan) == 128 + number
    answer.set()
    events = [entry["event"] for entry in logged]
    assert "stopping immediately" in events
    assert events[-1] == "last records of the rejection log lost because the disk did not respond"


class Sluice:
    """``sluice run`` as a process, with its log as events."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self._rest = b""

    async def event(self, name: str) -> dict[str, Any]:
        """Read the log up to an event."""
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                entry: dict[str, Any] = json.loads(line)
                self.log.append(entry)
                if entry["event"] == name:
                    return entry
                continue
            assert self.process.stderr is not None
            chunk = await self.process.stderr.receive_some(65536)
            assert chunk, f"{name!r} was never logged: {self.log} {self._rest!r}"
            self._rest += chunk


@pytest.fixture
async def silent_broker(nursery: trio.Nursery) -> str:
    """A broker that reads everything and answers nothing."""

    async def swallow(stream: trio.SocketStream) -> None:
        async for _ in stream:
            pass

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, swallow, [listener])
    return f"127.0.0.1:{listener.socket.getsockname()[1]}"


@pytest.fixture
async def start() -> AsyncIterator[Callable[[str], Awaitable[Sluice]]]:
    started: list[Sluice] = []
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}

    async def start_sluice(broker: str) -> Sluice:
        command = [SLUICE, "run", "--listen", "127.0.0.1:0", "--broker", broker, "--admin", "127.0.0.1:0"]
        process = await trio.lowlevel.open_process(
            [*command, "--log-format", "json", "--grace-s", "3600"], stderr=subprocess.PIPE, env=environ
        )
        started.append(Sluice(process))
        return started[-1]

    # A test run under nohup would pass on the ignored SIGHUP.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield start_sluice
    signal.signal(signal.SIGHUP, before)
    with trio.CancelScope(shield=True):
        for each in started:
            if each.process.returncode is None:
                each.process.kill()
            await each.process.wait()
            assert each.process.stderr is not None
            await each.process.stderr.aclose()


@pytest.fixture
async def sluice(start: Callable[[str], Awaitable[Sluice]], silent_broker: str) -> Sluice:
    return await start(silent_broker)


async def test_sighup_works_under_nohup(start: Callable[[str], Awaitable[Sluice]], silent_broker: str) -> None:
    # Like nohup. The fixture restores it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sluice = await start(silent_broker)
    await sluice.event("sluice is up")
    sluice.process.send_signal(signal.SIGHUP)
    await sluice.event("configuration reloaded")
    sluice.process.send_signal(signal.SIGTERM)
    assert await sluice.process.wait() == 0


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_is_left_ignored(monkeypatch: pytest.MonkeyPatch, *, ignored: bool) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN if ignored else signal.SIG_DFL)
    assert (signal.SIGHUP in sidecar.stop_signals()) is not ignored
    assert {signal.SIGTERM, signal.SIGINT} <= {*sidecar.stop_signals()}


async def test_while_it_drains_it_answers_that_it_is_not_ready_and_a_second_signal_ends_it(sluice: Sluice) -> None:
    listening = await sluice.event("listening")
    admin = (await sluice.event("sluice is up"))["admin"].removeprefix("http://").rstrip("/")
    async with await _connect(listening["listen"]) as client:
        await client.send_all(SEND)
        while b'sluice_frames_total{source="client"} 1.0' not in await _get(admin, "/metrics"):
            await trio.lowlevel.checkpoint()
        sluice.process.send_signal(signal.SIGTERM)
        await sluice.event("draining")
        while b'"draining":true' not in (answer := await _get(admin, "/readyz")):
            await trio.lowlevel.checkpoint()
        assert answer.startswith(b"HTTP/1.1 503")
        sluice.process.send_signal(signal.SIGTERM)
        assert await sluice.process.wait() == 128 + signal.SIGTERM
        await sluice.event("stopping immediately")


async def _connect(address: str) -> trio.SocketStream:
    host, port = address.rsplit(":", 1)
    return await trio.open_tcp_stream(host, int(port))


async def _get(address: str, path: str) -> bytes:
    async with await _connect(address) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        return b"".join([chunk async for chunk in stream])
