from functools import partial

import pytest
import structlog
import trio

from admin.config.sources import Flags, load
from admin.run import sidecar
from admin.run.composition import compose
from admin.run.supervisor import Supervisor


class Task:
    """Fails this many times, then runs."""

    def __init__(self, failures: int, *, before_start: bool = False) -> None:
        self.failures, self.before_start = failures, before_start
        self.begun: list[float] = []

    async def __call__(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.begun.append(trio.current_time())
        if not self.before_start:
            task_status.started()
        await trio.sleep(10)
        if len(self.begun) <= self.failures:
            raise RuntimeError("broken")
        await trio.sleep_forever()


async def test_failed_task_restarts_with_backoff(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    supervisor, task = Supervisor(), Task(3)
    with structlog.testing.capture_logs() as logged:
        await nursery.start(supervisor.keep, "board", task)
        await trio.sleep(100)
    begun = [round(each - task.begun[0]) for each in task.begun]
    assert begun == [0, 11, 23, 37]
    assert [entry["task"] for entry in logged] == ["board"] * 3
    assert supervisor.warnings() == ["board: failed and was restarted, 3 times; see the log"]


async def test_a_task_that_never_started_ends_the_start(autojump_clock: trio.testing.MockClock) -> None:
    supervisor = Supervisor()
    with pytest.RaisesGroup(RuntimeError):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.keep, "board", Task(1, before_start=True))
    assert supervisor.warnings() == []


async def test_a_fault_on_the_admin_side_leaves_the_listeners_up(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = trio.Event()

    async def fail(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        failed.set()
        raise RuntimeError("broken")

    monkeypatch.setattr("admin.stats.live_stats.LiveStats._follow_changes", fail)
    listen = ("--admin", "127.0.0.1:0")
    # Without a broker it would not listen.
    (broker,) = await nursery.start(partial(trio.serve_tcp, trio.aclose_forcefully, 0, host="127.0.0.1"))
    address = f"127.0.0.1:{broker.socket.getsockname()[1]}"
    flags = Flags(listen=["127.0.0.1:0"], broker=[address], values={("admin", "listen"): listen})
    with structlog.testing.capture_logs() as logged:
        running = await nursery.start(sidecar.run, compose(load(None, {}, flags)))
        await failed.wait()
        await trio.testing.wait_all_tasks_blocked()
        host, port = running.listen["127.0.0.1:0"].rsplit(":", 1)
        await (await trio.open_tcp_stream(host, int(port))).aclose()
    assert [entry["task"] for entry in logged if entry["log_level"] == "error"] == ["board"]
