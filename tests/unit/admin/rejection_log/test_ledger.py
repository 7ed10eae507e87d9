"""What becomes of seconds that were taken, and that a fault costs no more than what could not be made."""

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from admin.rejection_log.aggregate import Aggregate
from admin.rejection_log.composing import Batch, Composer
from admin.rejection_log.figures import Figures
from admin.rejection_log.ledger import Ledger
from limiter.counting.rejections import TrafficSecond
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours
from proxy.common.cooperative import Pace

#: 2027-01-15 08:00:00 UTC.
MINUTE = 1_800_000_000
RUN = "0123456789ab"


class Kept:
    """A ledger and all that it handed out."""

    def __init__(self, data_path: Any, rules: RuleSet) -> None:
        self.figures = Figures()
        self.live = SimpleNamespace(rule_set=rules)
        self.ledger = Ledger(
            "a", RUN, max_resources=10, live=self.live, data_path=data_path, figures=self.figures, now_s=MINUTE  # type: ignore[arg-type]  # as far as it asks
        )  # fmt: skip
        self.batches: list[Batch] = []

    async def add(self, *seconds: TrafficSecond, now_s: float, last: bool = False) -> None:
        with structlog.testing.capture_logs() as self.logged:
            await self.ledger.add(seconds, now_s, Pace(), last=last)
        self.batches.append(self.ledger.hand_out(1))

    def records(self, *types: str) -> list[dict[str, Any]]:
        lines = b"".join(piece.data for batch in self.batches for piece in batch.records.pieces).splitlines()
        found: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]
        return [record for record in found if not types or record["type"] in types]

    def noted(self) -> bytes:
        return b"".join(piece.data for piece in self.batches[-1].write_ahead.pieces)


@pytest.fixture
def kept(data_path: Any) -> Kept:
    return Kept(data_path, RuleSet((Rule("topic", "orders", 5),)))


@pytest.fixture
def second(make_second: Any, make_rejection: Any) -> Callable[..., TrafficSecond]:
    def make(at_s: int, *names: str) -> TrafficSecond:
        names = names or ("orders",)
        traffic = tuple(make_second(name, admitted=2, refused=1) for name in names)
        return TrafficSecond(at_s, traffic, tuple(make_rejection(name) for name in names), 0)

    return make


def failing_for(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def fail(*arguments: Any, **more: Any) -> Any:
        if any(name in str(argument) for argument in arguments):
            raise RuntimeError(name)
        return call(*arguments, **more)

    return fail


def admitted(records: list[dict[str, Any]]) -> dict[str, int]:
    return {record["name"]: record["admitted"][0] for record in records}


async def test_a_refusal_that_cannot_be_written_costs_itself_and_is_told_once(
    kept: Kept, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Composer, "rejection", failing_for("bad", Composer.rejection))
    await kept.add(second(MINUTE, "a", "bad", "b"), second(MINUTE + 1), now_s=MINUTE + 2)
    assert [(entry["log_level"], entry["of"], entry["error"]) for entry in kept.logged] == [
        ("error", "rejection", "RuntimeError('bad')")
    ]
    await kept.add(second(MINUTE + 2, "bad"), now_s=MINUTE + 3)
    assert kept.logged == []
    assert [record["name"] for record in kept.records("rejection")] == ["a", "b", "orders"]
    await kept.add(now_s=MINUTE + 60)
    assert admitted(kept.records("traffic")) == {"a": 2, "b": 2, "bad": 4, "orders": 2}
    assert kept.figures.lost == {"fault": 2}
    assert kept.records("heartbeat")[0]["lost_records"] == 2


async def test_traffic_that_cannot_be_added_or_written_costs_itself(
    kept: Kept, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Aggregate, "add", failing_for("bad", Aggregate.add))
        await kept.add(second(MINUTE, "a", "bad", "worse"), now_s=MINUTE + 1)
    monkeypatch.setattr(Composer, "traffic", failing_for("worse", Composer.traffic))
    await kept.add(second(MINUTE + 1, "a", "bad", "worse"), now_s=MINUTE + 60)
    assert admitted(kept.records("traffic")) == {"a": 4, "bad": 2}
    assert kept.figures.lost == {"fault": 2}
    # All that there is has been written.
    assert [record["seconds"] for record in kept.records("heartbeat")] == [60]


async def test_what_is_noted_is_needed_until_the_heartbeat_is_written(
    kept: Kept, second: Any, data_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(**_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(data_path, "snapshot", fail)
    await kept.add(second(MINUTE), now_s=MINUTE + 1, last=True)
    assert [entry["of"] for entry in kept.logged] == ["heartbeat"]
    assert (len(kept.records("traffic")), kept.batches[-1].last) == (1, False)
    monkeypatch.undo()
    await kept.add(second(MINUTE + 1), now_s=MINUTE + 1, last=True)
    assert (len(kept.records("heartbeat")), kept.batches[-1].last) == (1, True)


async def test_limits_are_looked_at_only_when_they_change(
    data_path: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RuleSet(
        (Rule("topic", "orders", 1, hours=read_hours("08:01-09:00", [], "UTC")), Rule("topic", "orders", 5))
    )
    kept = Kept(data_path, rules)
    looked: list[datetime] = []
    at = RuleSet.at

    def counted(self: RuleSet, moment: datetime) -> RuleSet:
        looked.append(moment)
        return at(self, moment)

    monkeypatch.setattr(RuleSet, "at", counted)
    for offset in range(60):
        await kept.add(second(MINUTE + offset), now_s=MINUTE + offset + 0.5)
    assert looked == [datetime.fromtimestamp(MINUTE + 0.5, UTC)]
    assert b'"name"' not in kept.noted()
    await kept.add(second(MINUTE + 60), now_s=MINUTE + 60.02)
    await kept.add(now_s=MINUTE + 119.02)
    # What is noted says the new limit.
    assert len(looked) == 2
    await kept.add(now_s=MINUTE + 120.02)
    assert [record["rate_per_s"] for record in kept.records("traffic")] == [1, 1]
    # The clock is set back to before the hours.
    await kept.add(second(MINUTE), now_s=MINUTE + 1)
    kept.live.rule_set = RuleSet((Rule("topic", "orders", 7),)).replace()
    await kept.add(second(MINUTE + 1), now_s=MINUTE + 2)
    assert len(looked) == 4
    await kept.add(now_s=MINUTE + 60)
    assert kept.records("traffic")[-1]["rate_per_s"] == 7


async def test_a_rule_set_that_cannot_be_read_leaves_the_limits_as_they_were(
    kept: Kept, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept.add(second(MINUTE), now_s=MINUTE + 1)
    kept.live.rule_set = RuleSet((Rule("topic", "orders", 7),)).replace()
    monkeypatch.setattr(RuleSet, "at", failing_for("", RuleSet.at))
    await kept.add(second(MINUTE + 1), now_s=MINUTE + 60)
    assert [entry["of"] for entry in kept.logged] == ["limit"]
    (traffic,) = kept.records("traffic")
    assert (traffic["rate_per_s"], traffic["admitted"][0]) == (5, 4)


async def test_another_run_begins_with_nothing(kept: Kept, second: Any) -> None:
    await kept.add(second(MINUTE), now_s=MINUTE + 1)
    kept.ledger.begin_run("f" * 12, MINUTE + 1)
    await kept.add(second(MINUTE + 1), now_s=MINUTE + 60)
    assert kept.batches[-1].run == "f" * 12
    rejection, traffic, heartbeat = kept.records()[1:]
    assert [record["n"] for record in (rejection, traffic, heartbeat)] == [1, 2, 3]
    assert {record["run"] for record in (rejection, traffic, heartbeat)} == {"f" * 12}
    assert (traffic["admitted"][0], heartbeat["seconds"]) == (2, 59)
