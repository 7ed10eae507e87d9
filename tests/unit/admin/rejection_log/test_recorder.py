import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from admin.live.model import Change
from admin.rejection_log.figures import families
from admin.rejection_log.files import Bounds
from admin.rejection_log.folder import Folder
from admin.rejection_log.recorder import Recorder, instance_of
from limiter.rejections import TrafficSecond
from limiter.rule import Rule
from limiter.rules import RuleSet

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
def recorder(data_path: Any, live: Any, folder: Folder, wall: Wall) -> Recorder:
    return Recorder(data_path, live, folder, instance="a", bounds=BOUNDS, max_resources=10, wall_s=wall)


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
    assert recorder.other_runs == 4


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
    assert recorder.clock_steps == 2


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
        patch.setattr(recorder.files, "hand_in", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await step(second(MINUTE))
    # As the supervisor begins it again.
    await recorder._begin()
    await step(second(MINUTE + 1))
    await recorder.finish()
    assert found.totals() == {"admitted": 4, "refused": 2, "rejected": 2}


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


async def test_a_disk_that_does_not_answer_holds_up_the_end_only_for_a_while(
    recorder: Recorder, step: Any, second: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    answer = threading.Event()
    monkeypatch.setattr(recorder.files, "write", answer.wait)
    monkeypatch.setattr(recorder.files, "_busy_since_s", -100.0)
    assert "the disk has not answered for" in (recorder.error or "")
    with structlog.testing.capture_logs() as logged:
        await recorder.finish()
    answer.set()
    assert [entry["event"] for entry in logged] == [
        "the last of the rejection log was not written: the disk does not answer"
    ]


async def test_a_slow_disk_is_waited_for_while_the_grace_lasts(
    recorder: Recorder, step: Any, second: Any, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await recorder._begin()
    await step(second(MINUTE))
    answer = threading.Event()
    monkeypatch.setattr(recorder.files, "write", answer.wait)
    recorder.grace_ends_s = trio.current_time() + 60
    with structlog.testing.capture_logs() as logged:
        await recorder.finish()
    answer.set()
    assert [entry["waited_s"] for entry in logged] == [60.0]


async def test_it_wakes_when_a_second_is_over(
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
    with pytest.raises(BaseExceptionGroup):
        await recorder.run()
    assert slept == [pytest.approx(0.77), pytest.approx(1.0), pytest.approx(1.0)]


async def test_what_goes_wrong_is_said_and_counted(recorder: Recorder, step: Any, second: Any, folder: Folder) -> None:
    await recorder._begin()
    recorder.up = True
    assert recorder.warnings() == []
    values = {family.metric.name: "".join(family.texts) for family in families(recorder)}
    assert values["sluice_rejection_log_up"] == "sluice_rejection_log_up 1.0\n"
    recorder.files.error = "x"
    assert recorder.warnings() == ["rejection log is not written: x"]
    values = {family.metric.name: "".join(family.texts) for family in families(recorder)}
    assert values["sluice_rejection_log_up"] == "sluice_rejection_log_up 0.0\n"
    assert 'sluice_rejection_log_records_total{type="rejection"} 0.0\n' in values["sluice_rejection_log_records"]
    (alone,) = families(None)
    assert "".join(alone.texts) == "sluice_rejection_log_up 0.0\n"


def test_an_instance_is_called_after_host_and_port_unless_it_has_a_name() -> None:
    assert instance_of(None, "broker-a", "[::]:10911") == "broker-a:10911"
    assert instance_of("x", "broker-a", "[::]:10911") == "x"
