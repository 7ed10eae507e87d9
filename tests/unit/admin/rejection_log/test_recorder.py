import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from log_traffic import taken

from admin.edits.model import Change
from admin.rejection_log.composer import Composer
from admin.rejection_log.files import Bounds, LogFiles
from admin.rejection_log.recorder import Recorder, families, instance_of
from limiter.counting.rejections import TrafficSecond
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

MINUTE = 1_700_000_040
BOUNDS = Bounds(10_000_000, 1e9, 100_000_000)


class Live:
    """The limits in force, as far as a recorder asks."""

    def __init__(self) -> None:
        self.rule_set = RuleSet((Rule("topic", "orders", 5), Rule("topic", "*", 9)))
        self.last_id = 2
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
def make(data_path: Any, live: Any, found: Any, wall: Wall) -> Callable[..., Recorder]:
    def make_recorder(**more: Any) -> Recorder:
        return Recorder(data_path, live, found.path, instance="a", bounds=BOUNDS, max_resources=10, wall_s=wall, **more)

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


async def test_rules_are_told_again_when_that_was_lost(recorder: Recorder, step: Any, found: Any) -> None:
    await recorder._begin()
    for lost, error, count in ((False, None, 2), (True, "full", 2), (True, None, 4), (False, None, 4)):
        recorder.files.limits_lost, recorder.files.error = lost, error
        await step()
        assert len(found.records("limit")) == count


async def test_changes_are_in_the_log_and_those_that_were_missed_too(
    recorder: Recorder, live: Live, step: Any, found: Any
) -> None:
    await recorder._begin()
    # Already the first of this process may be missed, of a batch that is longer than what a follower keeps.
    for number in (5, 6, 9):
        await live.send.send(change_of(number))
    await live.send.aclose()
    await recorder._follow_changes()
    await step()
    changes = [each for each in found.records() if each["type"] == "limit_change"]
    assert [each["change_id"] for each in changes] == [3, 4, 5, 6, 7, 8, 9]


async def test_a_task_that_failed_goes_on_where_it_was(
    recorder: Recorder, step: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorder._begin()
    with monkeypatch.context() as patch:
        patch.setattr(Composer, "compose", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await step(taken(MINUTE))
    # As the supervisor begins it again.
    await recorder._begin()
    await step(taken(MINUTE + 1))
    await recorder.finish()
    assert found.totals() == (2, 1, 1)


@pytest.mark.parametrize(("method", "of"), [("take_traffic", "second"), ("snapshot", "heartbeat")])
async def test_a_data_path_that_hands_out_nothing_costs_only_that(
    recorder: Recorder, step: Any, *, found: Any, data_path: Any, monkeypatch: pytest.MonkeyPatch, method: str, of: str
) -> None:
    await recorder._begin()
    await step(taken(MINUTE))
    monkeypatch.setattr(data_path, method, lambda **_: 1 / 0)
    with structlog.testing.capture_logs() as logged:
        await recorder.finish()
    assert [entry["of"] for entry in logged] == [of]
    assert found.totals() == (2, 1, 1)
    assert recorder.warnings() == ["rejection log: 1 records could not be made; the log of the process has the reason"]


async def test_records_that_could_not_be_made_at_the_end_are_told(
    recorder: Recorder, step: Any, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorder._begin()
    await step(taken(MINUTE))
    monkeypatch.setattr(Composer, "compose", lambda *_, **__: 1 / 0)
    with structlog.testing.capture_logs() as logged:
        await recorder.finish()
    assert [entry["event"] for entry in logged] == ["the last of the rejection log could not be made"]
    assert found.totals() == (0, 0, 1)


async def test_what_was_taken_is_written_even_if_the_task_is_cancelled_then(
    recorder: Recorder, step: Any, found: Any
) -> None:
    await recorder._begin()
    with trio.CancelScope() as scope:
        scope.cancel()
        await step(taken(MINUTE))
    assert scope.cancelled_caught
    await recorder.finish()
    assert found.totals() == (2, 1, 1)


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
    recorder: Recorder, step: Any, found: Any, data_path: Any
) -> None:
    await recorder._begin()
    await step(taken(MINUTE))
    data_path.unfinished.append(taken(MINUTE + 1))
    recorder.hurry()
    await recorder.finish()
    assert found.totals() == (4, 2, 2)


async def test_a_disk_that_hangs_is_told_once_and_so_is_that_it_answers_again(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await recorder._begin()
    answer = threading.Event()
    monkeypatch.setattr(recorder.files, "write", answer.wait)
    # Its thread would take hours of this clock.
    monkeypatch.setattr(recorder, "_compose", trio.lowlevel.checkpoint)

    async def answer_after_an_hour() -> None:
        await trio.sleep(3600)
        answer.set()

    with structlog.testing.capture_logs() as logged:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_after_an_hour)
            await recorder._step()
    place = str(recorder.files.directory)
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
    assert recorder.error == f"{recorder.files.directory}: the disk has not answered for 11 s"
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
    assert recorder.warnings() == ["rejection log is not written: x"]
    shown = metrics(recorder)
    assert "sluice_rejection_log_up 0.0\n" in shown
    assert "sluice_rejection_log_disk_wait_seconds 0.0\n" in shown
    assert 'sluice_rejection_log_records_total{type="rejection"} 0.0\n' in shown
    assert 'sluice_rejection_log_lost_records_total{reason="fault"} 0.0\n' in shown
    assert metrics(None).endswith("sluice_rejection_log_up 0.0\n")


def test_an_instance_is_called_after_host_and_port_unless_it_has_a_name() -> None:
    assert instance_of(None, "broker-a", "[::]:10911") == "broker-a:10911"
    assert instance_of("x", "broker-a", "[::]:10911") == "x"
