import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from admin.edits.model import Change
from admin.rejection_log.files import Bounds, LogFiles
from admin.rejection_log.folder import Folder
from admin.rejection_log.ledger import Ledger
from admin.rejection_log.recorder import Recorder, families, instance_of
from admin.rejection_log.recovery import recover
from limiter.counting.rejections import TrafficSecond
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.cooperative import Pace

MINUTE = 1_700_000_040
BOUNDS = Bounds(10_000_000, 1e9, 100_000_000)


class Live:
    """The limits in force, as far as a recorder asks."""

    def __init__(self) -> None:
        self.rule_set = RuleSet((Rule("topic", "orders", 5), Rule("topic", "*", 9)))
        self.send, self._receive = trio.open_memory_channel[Change](10)

    async def changes(self) -> AsyncIterator[Change]:
        async for change in self._receive:
            yield change

    async def audit(self, *, before: int, limit: int) -> tuple[Change, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(change_of(number) for number in range(before - 1, 0, -1))[:limit]


def change_of(number: int) -> Change:
    target = "limits/topic/orders"
    return Change(id=number, at="2026-11-21T12:00:00Z", by="a", address="", action="set", target=target)


class Wall:
    """A clock that is set by the test and does not move by itself."""

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
def make(data_path: Any, live: Any, folder: Folder, wall: Wall) -> Callable[..., Recorder]:
    def make_recorder(**more: Any) -> Recorder:
        return Recorder(data_path, live, folder, instance="a", bounds=BOUNDS, max_resources=10, wall_s=wall, **more)

    return make_recorder


@pytest.fixture
def recorder(make: Callable[..., Recorder]) -> Recorder:
    return make()


@pytest.fixture
def step(recorder: Recorder, wall: Wall, data_path: Any) -> Callable[..., Awaitable[None]]:
    """Lets a second pass, at whose end the data path hands out some seconds."""

    async def one_second(*seconds: TrafficSecond) -> None:
        wall.now_s += 1
        data_path.traffic.extend(seconds)
        await recorder._step()

    return one_second


@pytest.fixture
def second(make_second: Any, make_rejection: Any) -> Callable[..., TrafficSecond]:
    def make(at_s: int, *, refused: int = 1, name: str = "orders", **more: Any) -> TrafficSecond:
        return TrafficSecond(
            at_s,
            (make_second(name, admitted=2, refused=refused),),
            (make_rejection(name, refused=refused),),
            more.pop("other", 0),
            **more,
        )

    return make


def types(found: Any) -> list[str]:
    return [record["type"] for record in found.records(".*.open")]


async def test_refusals_are_written_at_once_and_traffic_when_its_minute_is_over(
    recorder: Recorder, step: Any, second: Any, found: Any, wall: Wall
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    assert types(found) == ["limit", "limit", "rejection"]
    await step(second(MINUTE + 1, refused=3, other=4))
    assert types(found) == ["limit", "limit", "rejection", "rejection"]
    wall.now_s = MINUTE + 59
    await step()
    *_, traffic, heartbeat = found.records(".*.open")
    assert (traffic["at_s"], traffic["admitted"], traffic["refused"]) == (MINUTE, [4, 8, 400], [4, 4, 4])
    assert (traffic["second"], traffic["rate_per_s"]) == ([0, 1], 5)
    assert (heartbeat["at_s"], heartbeat["seconds"], heartbeat["other"]) == (MINUTE, 60, 4)
    # As the data path made by hand says.
    assert heartbeat["connections"] == 12
    assert [record["n"] for record in found.records(".*.open")] == list(range(1, 7))
    assert recorder.files.figures.other_runs == 4


async def test_a_minute_without_traffic_has_a_heartbeat(
    recorder: Recorder, step: Any, found: Any, wall: Wall, data_path: Any
) -> None:
    await recorder._begin()
    wall.now_s = MINUTE + 59
    await step()
    (heartbeat,) = [each for each in found.records(".*.open") if each["type"] == "heartbeat"]
    assert heartbeat["seconds"] == 60
    # What had been bypassed before is not of this minute.
    assert "bypassed_requests" not in heartbeat
    data_path.snapshot_now.bypassed["rate_limit", "late"] += 3
    try:
        wall.now_s = MINUTE + 119
        await step()
    finally:
        data_path.snapshot_now.bypassed["rate_limit", "late"] -= 3
    assert found.records(".*.open")[-1]["bypassed_requests"] == {"rate_limit/late": 3}


async def test_the_end_writes_the_second_under_way_too_and_finishes_the_file(
    recorder: Recorder, step: Any, second: Any, found: Any, data_path: Any
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    data_path.unfinished.append(second(MINUTE + 1))
    await recorder.finish()
    assert found.totals() == {"admitted": 4, "refused": 2, "rejected": 2}
    assert found.names()[0].startswith("rejections-a-")
    assert len(found.names()) == 1
    assert [record["type"] for record in found.records()][-1] == "heartbeat"


async def test_before_it_has_begun_the_end_writes_nothing(recorder: Recorder, found: Any) -> None:
    await recorder.finish()
    assert found.names() == []


async def test_a_clock_that_is_set_back_ends_the_minute_and_loses_nothing(
    recorder: Recorder, step: Any, second: Any, found: Any, wall: Wall
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    wall.now_s = MINUTE - 3601
    with structlog.testing.capture_logs() as logged:
        await step(second(MINUTE - 3601, stepped_s=-3602))
    assert [entry["by_s"] for entry in logged] == [-3602]
    wall.now_s = MINUTE
    with structlog.testing.capture_logs():
        await step(second(MINUTE, stepped_s=3600))
    await recorder.finish()
    assert found.totals() == {"admitted": 6, "refused": 3, "rejected": 3}
    assert [record["at_s"] for record in found.records() if record["type"] == "traffic"] == [
        MINUTE,
        MINUTE - 3660,
        MINUTE,
    ]
    assert recorder.files.figures.clock_steps == 2


async def test_rules_are_told_again_with_each_new_day_and_when_that_was_lost(
    recorder: Recorder, step: Any, found: Any, wall: Wall
) -> None:
    await recorder._begin()
    await step()
    assert types(found).count("limit") == 2
    wall.now_s += 86_400
    await step()
    assert types(found).count("limit") == 4
    recorder.files.limits_lost = True
    await step()
    assert types(found).count("limit") == 6
    await step()
    assert types(found).count("limit") == 6


async def test_changes_are_in_the_log_and_those_that_were_missed_too(
    recorder: Recorder, live: Live, step: Any, found: Any
) -> None:
    await recorder._begin()
    for number in (3, 4, 9):
        await live.send.send(change_of(number))
    await live.send.aclose()
    await recorder._follow_changes()
    await step()
    changes = [each for each in found.records(".*.open") if each["type"] == "limit_change"]
    assert [each["change_id"] for each in changes] == [3, 4, 5, 6, 7, 8, 9]


async def test_a_task_that_failed_goes_on_where_it_was(
    recorder: Recorder, step: Any, second: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorder._begin()
    with monkeypatch.context() as patch:
        patch.setattr(recorder.ledger, "add_limits", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await step(second(MINUTE))
    # As the supervisor begins it again.
    await recorder._begin()
    await step(second(MINUTE + 1))
    await recorder.finish()
    assert found.totals() == {"admitted": 4, "refused": 2, "rejected": 2}


async def test_a_fault_in_a_second_costs_none_of_the_others(
    recorder: Recorder, step: Any, second: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorder._begin()
    add = Ledger._add_second

    async def fail_once(self: Ledger, second: TrafficSecond, pace: Pace) -> None:
        if second.at_s == MINUTE + 1:
            raise RuntimeError("just so")
        await add(self, second, pace)

    monkeypatch.setattr(Ledger, "_add_second", fail_once)
    with structlog.testing.capture_logs() as logged:
        await step(*(second(MINUTE + offset) for offset in range(3)))
        await step(second(MINUTE + 1))
    await recorder.finish()
    assert found.totals() == {"admitted": 4, "refused": 2, "rejected": 2}
    assert [entry["error"] for entry in logged] == ["RuntimeError('just so')"]
    assert recorder.files.figures.lost == {"fault": 2}
    assert recorder.warnings() == ["rejection log: 2 records could not be made; the log of the process has the reason"]


async def test_a_data_path_that_hands_out_nothing_costs_only_that(
    recorder: Recorder, step: Any, second: Any, *, found: Any, data_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    monkeypatch.setattr(data_path, "take_traffic", lambda **_: 1 / 0)
    with structlog.testing.capture_logs() as logged:
        await recorder.finish()
    assert [entry["of"] for entry in logged] == ["second"]
    assert found.totals() == {"admitted": 2, "refused": 1, "rejected": 1}
    assert len(found.names()) == 1


async def test_what_could_not_be_made_at_the_end_stays_on_the_disk_for_the_next_start(
    recorder: Recorder, step: Any, second: Any, *, found: Any, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    await step(second(MINUTE + 1))
    monkeypatch.setattr(recorder.ledger, "add", lambda *_, **__: 1 / 0)
    with structlog.testing.capture_logs() as logged:
        await recorder.finish()
    assert [entry["event"] for entry in logged] == ["the last of the rejection log could not be made"]
    assert found.totals() == {"admitted": 0, "refused": 0, "rejected": 2}
    folder.take()
    assert recover(folder).failed == 0
    assert found.totals() == {"admitted": 4, "refused": 2, "rejected": 2}
    assert not list(found.path.glob(".rejections*"))


@pytest.mark.parametrize("stays", [False, True])
async def test_a_folder_that_another_process_took_counts_nothing_twice(
    recorder: Recorder, step: Any, second: Any, *, found: Any, folder: Folder, wall: Wall, stays: bool
) -> None:
    await recorder._begin()
    for offset in range(5):
        await step(second(MINUTE + offset))
    # Somebody removes the lock, and another sidecar starts: it finishes what looks like a killed one's.
    (folder.path / ".lock").unlink()
    other = Folder(folder.path)
    other.take()
    assert recover(other).files == 1
    with structlog.testing.capture_logs() as logged:
        if stays:
            await step(second(MINUTE + 5))
            recorder.files._retry_s -= 10
        other.release()
        for offset in range(6, 9):
            wall.now_s = MINUTE + offset
            await step(second(MINUTE + offset))
    await recorder.finish()
    assert [entry["event"] for entry in logged] == [
        "rejection log is not written; traffic goes on, and what is lost is counted",
        "rejection log is written again",
    ]
    assert "the lock was removed, and another process" in logged[0]["reason"]
    # The second in which it was noticed is lost, and counted.
    seconds = 5 + stays + 3 - 1
    assert found.totals() == {"admitted": 2 * seconds, "refused": seconds, "rejected": seconds}
    assert recorder.files.figures.lost == {"locked": 1}
    records = found.records()
    assert len({record["run"] for record in records}) == 2
    assert [record["type"] for record in records].count("limit") == 4


async def test_what_was_taken_is_written_even_if_the_task_is_cancelled_then(
    recorder: Recorder, step: Any, second: Any, found: Any
) -> None:
    await recorder._begin()
    with trio.CancelScope() as scope:
        scope.cancel()
        await step(second(MINUTE))
    assert scope.cancelled_caught
    await recorder.finish()
    assert found.totals() == {"admitted": 2, "refused": 1, "rejected": 1}


@pytest.mark.parametrize(("grace_s", "waited_s"), [(0.0, 1.0), (3.0, 3.0), (60.0, 5.0)])
async def test_a_disk_that_does_not_answer_holds_up_the_end_only_for_a_while(
    make: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    grace_s: float,
    waited_s: float,
) -> None:
    recorder = make(grace_s=grace_s)
    await recorder._begin()
    answer = threading.Event()
    monkeypatch.setattr(recorder.files, "write", answer.wait)
    with structlog.testing.capture_logs() as logged:
        await recorder.finish()
    answer.set()
    assert [(entry["event"], entry["waited_s"]) for entry in logged] == [
        ("the last of the rejection log was not written: the disk does not answer", waited_s)
    ]


@pytest.mark.parametrize(("hangs_for_s", "waited_s"), [(0.0, 1.0), (0.75, 0.2), (100.0, 0.0)])
async def test_who_is_in_a_hurry_waits_for_a_moment_and_not_for_a_disk_that_hangs_already(
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    hangs_for_s: float,
    waited_s: float,
) -> None:
    await recorder._begin()
    answer = threading.Event()
    monkeypatch.setattr(recorder.files, "write", answer.wait)
    monkeypatch.setattr(LogFiles, "waits_s", hangs_for_s)
    with structlog.testing.capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorder.finish)
            await trio.testing.wait_all_tasks_blocked()
            recorder.hurry()
    answer.set()
    assert [entry["waited_s"] for entry in logged] == [pytest.approx(waited_s, abs=0.1)]


async def test_in_a_hurry_a_disk_that_answers_takes_all(
    recorder: Recorder, step: Any, second: Any, found: Any, data_path: Any
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    data_path.unfinished.append(second(MINUTE + 1))
    recorder.hurry()
    await recorder.finish()
    assert found.totals() == {"admitted": 4, "refused": 2, "rejected": 2}


async def test_a_disk_that_hangs_is_told_once_and_so_is_that_it_answers_again(
    recorder: Recorder, step: Any, second: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await recorder._begin()
    answer = threading.Event()
    monkeypatch.setattr(recorder.files, "write", answer.wait)

    async def answer_after_an_hour() -> None:
        await trio.sleep(3600)
        answer.set()

    with structlog.testing.capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_after_an_hour)
            await step(second(MINUTE))
    place = str(recorder.directory)
    assert logged == [
        {
            "event": "rejection log: the disk has not answered for 10 s; traffic goes on",
            "log_level": "error",
            "dir": place,
        },
        {"event": "rejection log: the disk answers again", "log_level": "info", "dir": place, "after_s": 3600},
    ]


async def test_how_long_a_disk_hangs_is_a_metric_and_then_an_error(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFiles, "waits_s", 9.5)
    assert recorder.error is None
    assert "sluice_rejection_log_disk_wait_seconds 9.5\n" in metrics(recorder)
    monkeypatch.setattr(LogFiles, "waits_s", 11.0)
    assert recorder.error == f"{recorder.directory}: the disk has not answered for 11 s"
    assert "sluice_rejection_log_up 0.0\n" in metrics(recorder)


async def test_it_wakes_when_a_second_is_over(
    recorder: Recorder, data_path: Any, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds == 10:
            # Who misses the disk.
            await trio.sleep_forever()
        slept.append(seconds)
        wall.now_s += seconds
        await trio.lowlevel.checkpoint()
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(trio, "sleep", sleep)
    wall.now_s += 0.25
    with pytest.raises(BaseExceptionGroup):
        await recorder.run()
    assert slept == [pytest.approx(0.77), pytest.approx(1.0), pytest.approx(1.0)]


def metrics(recorder: Recorder | None) -> str:
    return "".join(text for family in families(recorder) for text in family.texts)


async def test_what_goes_wrong_is_said_and_counted(recorder: Recorder) -> None:
    await recorder._begin()
    recorder.up = True
    assert recorder.warnings() == []
    assert "sluice_rejection_log_up 1.0\n" in metrics(recorder)
    recorder.files.error = "x"
    recorder.files.figures.unsealed_runs = 2
    assert recorder.warnings() == [
        "rejection log is not written: x",
        "rejection log: files of 2 runs could not be finished; the log of the process has the reason",
    ]
    shown = metrics(recorder)
    assert "sluice_rejection_log_up 0.0\n" in shown
    assert "sluice_rejection_log_unsealed_runs 2.0\n" in shown
    assert "sluice_rejection_log_disk_wait_seconds 0.0\n" in shown
    assert 'sluice_rejection_log_records_total{type="rejection"} 0.0\n' in shown
    assert 'sluice_rejection_log_lost_records_total{reason="fault"} 0.0\n' in shown
    assert metrics(None).endswith("sluice_rejection_log_up 0.0\n")


def test_an_instance_is_called_after_host_and_port_unless_it_has_a_name() -> None:
    assert instance_of(None, "broker-a", "[::]:10911") == "broker-a:10911"
    assert instance_of("x", "broker-a", "[::]:10911") == "x"
