"""How a data path applies adaptive limits, with a controller that the test scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import structlog
import trio
from trio.testing import MockClock

from limiter.adaptive.controller import BrokerSeen, Controller
from limiter.deciding.limits import Limits
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.datapath import adapting
from proxy.datapath.adapting import Adapting

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import StartRig

SEEN = BrokerSeen(7, 1, (1_000_000,), 3, blocked=False)


class Controls:
    limit: float | None = None
    made: ClassVar[list[Controls]] = []
    fails = False

    def __init__(self, floor_per_s: float, ceiling_per_s: float | None, now_ns: int) -> None:
        self.bounds = floor_per_s, ceiling_per_s
        self.steps: list[tuple[BrokerSeen, bool]] = []
        self.limit_per_s: float | None = None
        self.reason, self.latency_ns, self.usual_latency_ns = "", None, 12_000_000
        self.made.append(self)

    def step(self, now_ns: int, seen: BrokerSeen, is_holding: bool) -> float | None:  # noqa: FBT001
        if self.fails:
            raise RuntimeError("a fault")
        self.steps.append((seen, is_holding))
        self.limit_per_s, self.reason = self.limit, "the broker is busy"
        return self.limit


class Path:
    def __init__(self, *rules: Rule) -> None:
        self.limits = Limits(RuleSet(rules))
        self.taken = 0
        self.adapting = Adapting(
            self.limits, ["a", "b", "a"], self.take, now_ns=self.now_ns, wall_ns=lambda: 5_000_000_000 + self.now_ns()
        )

    @staticmethod
    def now_ns() -> int:
        return round(trio.current_time() * 1e9)

    def take(self) -> Mapping[str, BrokerSeen]:
        self.taken += 1
        return {"a": SEEN}

    def apply(self, *rules: Rule) -> None:
        self.limits.swap(RuleSet(rules, version=self.limits.rule_set.version + 1), self.now_ns())
        self.adapting.rules_changed()


@pytest.fixture(autouse=True)
def controls(monkeypatch: pytest.MonkeyPatch) -> type[Controls]:
    monkeypatch.setattr(adapting, "Controller", Controls)
    Controls.made, Controls.limit, Controls.fails = [], None, False
    return Controls


def rule(scope: str = "a", **fields: Any) -> Rule:
    return Rule("listener", scope, None, adaptive=True, **fields)


async def test_without_an_adaptive_rule_nothing_is_taken(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    path = Path(Rule("topic", "*", 100))
    nursery.start_soon(path.adapting.run)
    await trio.sleep(10)
    assert (path.taken, path.adapting.states()) == (0, ())
    path.apply(rule())
    await trio.sleep(1.05)
    assert path.taken == 11
    path.apply()
    await trio.sleep(10)
    assert (path.taken, path.adapting.states()) == (11, ())


async def test_each_step_has_the_signals_since_the_last(
    autojump_clock: MockClock, nursery: trio.Nursery, controls: type[Controls]
) -> None:
    path = Path(rule(floor_per_s=20, ceiling_per_s=900), rule("b"))
    nursery.start_soon(path.adapting.run)
    await trio.sleep(0.25)
    # Messages before the first step have no known time, and the broker's signals are read once.
    assert [made.steps for made in controls.made] == [
        [(SEEN, False)] * 2,
        [(BrokerSeen(0, 0, (), 0, blocked=False), False)] * 2,
    ]
    assert (path.taken, controls.made[0].bounds) == (3, (20, 900))


async def test_a_limit_and_its_moves_are_seen(
    autojump_clock: MockClock, nursery: trio.Nursery, controls: type[Controls]
) -> None:
    path = Path(rule(action="shadow"))
    limiter = path.limits.adaptive("a", 0)
    assert limiter is not None
    limiter.share("topic:orders", 0)
    controls.limit = 500
    with structlog.testing.capture_logs() as logged:
        nursery.start_soon(path.adapting.run)
        await trio.sleep(3.05)
        controls.limit = None
        await trio.sleep(1)
    of = {"listener": "a", "action": "shadow", "reason": "the broker is busy", "usual_latency_ms": 12.0}
    of |= {"not_logged": 0, "log_level": "info"}
    assert logged == [
        {"event": "adaptive limit started", "limit_per_s": 500, **of},
        {"event": "adaptive limit ended", **of},
    ]
    (state,) = path.adapting.states()
    assert (state.listener, state.limit_per_s, state.action, state.usual_latency_s) == ("a", None, "shadow", 0.012)
    assert [name.name for name in state.names] == ["topic:orders"]
    assert [point.limit_per_s for point in state.history] == [500, 500, 500, None]
    assert [point.unix_ms for point in state.history] == [6000, 7000, 8000, 9000]
    (brief,) = path.adapting.states(whole=False)
    assert (brief.names, brief.history, brief.reason) == ((), (), "the broker is busy")


async def test_a_limit_that_moves_has_a_line_every_ten_seconds(
    autojump_clock: MockClock, nursery: trio.Nursery, controls: type[Controls]
) -> None:
    path = Path(rule())
    with structlog.testing.capture_logs() as logged:
        nursery.start_soon(path.adapting.run)
        for tenth in range(205):
            controls.limit = 500 + tenth / 3
            await trio.sleep(0.1)
    told = [(each["event"].rpartition(" ")[2], each["not_logged"] > 50) for each in logged]
    assert told == [("started", False), ("changed", True), ("changed", True)]
    assert all(each["limit_per_s"] == round(each["limit_per_s"], 1) for each in logged)


async def test_a_fault_means_no_limit(
    autojump_clock: MockClock, nursery: trio.Nursery, controls: type[Controls]
) -> None:
    path = Path(rule())
    controls.limit = 500
    nursery.start_soon(path.adapting.run)
    await trio.sleep(0.15)
    limiter = path.limits.adaptive("a", 0)
    assert limiter is not None
    assert limiter.limit_per_s == 500
    controls.fails = True
    with structlog.testing.capture_logs() as logged:
        await trio.sleep(1)
    assert (limiter.limit_per_s, path.adapting.faults, len(logged)) == (None, 10, 1)
    controls.fails = False
    await trio.sleep(0.1)
    assert limiter.limit_per_s == 500


async def test_other_bounds_take_another_controller(
    autojump_clock: MockClock, nursery: trio.Nursery, controls: type[Controls]
) -> None:
    path = Path(rule())
    nursery.start_soon(path.adapting.run)
    await trio.sleep(1.05)
    path.apply(rule(floor_per_s=50))
    await trio.sleep(0.1)
    assert [made.bounds[0] for made in controls.made] == [rule().floor_per_s, 50]
    assert len(path.adapting.states()[0].history) == 1


async def test_a_data_path_reports_listeners_with_an_adaptive_limit(
    mock_clock: MockClock, start_rig: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "Controller", Controller)
    rig = await start_rig(rules=[rule("*", floor_per_s=30)])
    for _ in range(25):
        mock_clock.jump(0.1)
        await rig.settle()
    (state,) = await rig.path.adaptive()
    assert (state.floor_per_s, state.limit_per_s, len(state.history)) == (30, None, 2)
    snapshot = await rig.path.snapshot()
    assert (len(snapshot.adaptive), snapshot.adaptive_faults) == (1, 0)
