import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from log_traffic import taken

from admin.edits.model import Change, StoreError
from admin.rejection_log.composer import Composer
from admin.rejection_log.files import Bounds, LogFiles
from admin.rejection_log.recorder import Recorder, families, instance_of
from limiter.counting.rejections import TrafficSecond
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

MINUTE = 1_700_000_040
BOUNDS = Bounds(10_000_000, 1e9, 100_000_000)


class Live:
    """The active limits, for a recorder."""

    def __init__(self) -> None:
        self.rule_set = RuleSet((Rule("topic", "orders", 5), Rule("topic", "*", 9)))
        self.last_id = 2
        self.readable = True

    async def audit(self, *, before: int, limit: int) -> tuple[Change, ...]:
        await trio.lowlevel.checkpoint()
        if not self.readable:
            raise StoreError("the audit trail cannot be read")
        return tuple(change_of(number) for number in range(before - 1, 0, -1))[:limit]


def change_of(number: int) -> Change:
    target = "limits/topic/orders"
    return Change(id=number, at="2026-11-21T12:00:00Z", by="a", address="", action="set", target=target)


class Wall:
    def __init__(self) -> None:
        self.now_s = float(MINUTE)

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def live() -> Live:
    return Live()


@pytest.fixture
def make(data_path: Any, live: Any, found: Any, wall: Wall) -> Callable[..., Recorder]:
    def make_recorder(**more: Any) -> Recorder:
        return Recorder(data_path, live, found.path, instance="a", bounds=BOUNDS, max_resources=10, wall_s=wall, **more)

    return make_recorder


@pytest.fixture
def recorder(make: Callable[..., Recorder]) -> Recorder:
    return make()


@pytest.fixture
def step(recorder: Recorder, wall: Wall, data_path: Any) -> Callable[..., Awaitable[None]]:
    """Let a second pass. At its end, the data path returns some seconds."""

    async def one_second(*seconds: TrafficSecond) -> None:
        wall.now_s += 1
        data_path.traffic.extend(seconds)
        await recorder._step()

    return one_second


async def test_refusals_are_written_each_second_and_traffic_every_ten(
    recorder: Recorder, step: Any, found: Any, wall: Wall
) -> None:
    await recorder._begin()
    await step(taken(MINUTE))
    await step(taken(MINUTE + 1, refused=3))
    assert found.totals() == (0, 0, 4)
    wall.now_s = MINUTE + 9
    await step()
    assert found.totals() == (4, 4, 4)
    assert [record["type"] for record in found.records()] == [
        *("limit", "limit", "rejection", "rejection", "traffic", "heartbeat")
    ]


async def test_the_end_writes_the_second_under_way_too(
    recorder: Recorder, step: Any, found: Any, data_path: Any
) -> None:
    await recorder._begin()
    await step(taken(MINUTE))
    data_path.unfinished.append(taken(MINUTE + 1))
    await recorder.finish()
    assert found.totals() == (4, 2, 2)
    assert found.records()[-1]["ends"] is True


@pytest.mark.parametrize("takes_over", [False, True])
async def test_a_run_that_was_killed_is_named_but_not_one_that_still_ends(
    make: Callable[..., Recorder], found: Any, *, takes_over: bool
) -> None:
    killed, now = make(), make(takes_over=takes_over)
    await killed._begin()
    await killed._step()
    await now._begin()
    await now.finish()
    (heartbeat,) = found.records("heartbeat")
    last_n = len(found.records()) - len([each for each in found.records() if each["run"] == now.files.run])
    expected = (None, None) if takes_over else (killed.files.run, last_n)
    assert (heartbeat.get("killed_run"), heartbeat.get("killed_n")) == expected


async def test_before_it_has_begun_the_end_writes_nothing(recorder: Recorder, found: Any) -> None:
    await recorder.finish()
    assert found.names() == []


async def test_changes_are_in_the_log_also_if_the_audit_trail_could_not_be_read_at_first(
    recorder: Recorder, live: Live, step: Any, found: Any
) -> None:
    await recorder._begin()
    await step()
    live.last_id, live.readable = 5, False
    await step()
    live.last_id, live.readable = 6, True
    await step()
    await step()
    assert [each["change_id"] for each in found.records("limit_change")] == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("owner", "method", "lost"), [(Composer, "compose", 2), (None, "take_traffic", 1), (None, "snapshot", 2)]
)
async def test_a_fault_costs_the_records_of_one_step_and_is_logged_once(
    recorder: Recorder, step: Any, *, found: Any, data_path: Any, monkeypatch: pytest.MonkeyPatch, owner: Any,
    method: str, lost: int,
) -> None:  # fmt: skip
    await recorder._begin()
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logged:
        patch.setattr(owner or data_path, method, lambda *_, **__: 1 / 0)
        await step(taken(MINUTE + 10))
        await step(taken(MINUTE + 20))
    assert [entry["error"] for entry in logged] == ["ZeroDivisionError('division by zero')"]
    said = f"{2 * lost} records of the rejection log could not be composed; see Sluice's log for the reason"
    assert recorder.warnings() == [said]
    data_path.traffic.clear()
    await step(taken(MINUTE + 3))
    await recorder.finish()
    assert found.records("heartbeat")[-1]["lost_records"] == 2 * lost
    assert found.totals() == (2, 1, 1)


async def test_taken_records_are_written_even_if_cancelled(recorder: Recorder, step: Any, found: Any) -> None:
    await recorder._begin()
    with trio.CancelScope() as scope:
        scope.cancel()
        await step(taken(MINUTE))
    assert scope.cancelled_caught
    await recorder.finish()
    assert found.totals() == (2, 1, 1)


@pytest.mark.parametrize(("in_a_hurry", "waited_s"), [(False, 5.0), (True, 1.0)])
async def test_a_disk_that_hangs_delays_the_end_for_a_while_only(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, *,
    in_a_hurry: bool, waited_s: float,
) -> None:  # fmt: skip
    await recorder._begin()
    answer = threading.Event()
    monkeypatch.setattr(recorder.files, "write", answer.wait)
    with structlog.testing.capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.finish)
            await trio.testing.wait_all_tasks_blocked()
            if in_a_hurry:
                recorder.shorten_wait()
    answer.set()
    assert [(entry["event"], entry["waited_s"]) for entry in logged] == [
        (
            "last records of the rejection log lost because the disk did not respond",
            pytest.approx(waited_s, abs=0.1),
        )
    ]


async def test_shutdown_writes_everything_if_the_disk_answers(
    recorder: Recorder, step: Any, found: Any, data_path: Any
) -> None:
    await recorder._begin()
    await step(taken(MINUTE))
    data_path.unfinished.append(taken(MINUTE + 1))
    recorder.shorten_wait()
    await recorder.finish()
    assert found.totals() == (4, 2, 2)


async def test_how_long_a_disk_hangs_is_a_metric_and_then_an_error(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFiles, "waits_s", 9.5)
    assert recorder.error is None
    assert "sluice_rejection_log_disk_wait_seconds 9.5\n" in metrics(recorder)
    monkeypatch.setattr(LogFiles, "waits_s", 11.0)
    assert recorder.error == f"{recorder.files.directory}: the disk has not responded for 11 s"
    assert "sluice_rejection_log_up 0.0\n" in metrics(recorder)


async def test_wakes_after_each_second(
    recorder: Recorder, data_path: Any, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        wall.now_s += seconds
        await trio.lowlevel.checkpoint()
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trio, "sleep", sleep)
    wall.now_s += 0.25
    with pytest.raises(KeyboardInterrupt):
        await recorder.run()
    assert slept == [pytest.approx(0.77), pytest.approx(1.0), pytest.approx(1.0)]


def metrics(recorder: Recorder | None) -> str:
    # Like the admin address, take everything first and write later.
    return "".join(text for family in [*families(recorder)] for text in family.lines)


async def test_errors_are_logged_and_counted(recorder: Recorder) -> None:
    await recorder._begin()
    recorder.up = True
    assert recorder.warnings() == []
    assert "sluice_rejection_log_up 1.0\n" in metrics(recorder)
    recorder.files.error = "x"
    assert recorder.warnings() == ["the rejection log cannot be written: x"]
    shown = metrics(recorder)
    assert "sluice_rejection_log_up 0.0\n" in shown
    assert "sluice_rejection_log_disk_wait_seconds 0.0\n" in shown
    assert 'sluice_rejection_log_records_total{type="rejection"} 0.0\n' in shown
    assert 'sluice_rejection_log_lost_records_total{reason="fault"} 0.0\n' in shown
    assert metrics(None).endswith("sluice_rejection_log_up 0.0\n")


def test_an_instance_is_called_after_host_and_port_unless_it_has_a_name() -> None:
    assert instance_of(None, "broker-a", "[::]:10911") == "broker-a:10911"
    assert instance_of("x", "broker-a", "[::]:10911") == "x"
