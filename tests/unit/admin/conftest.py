"""A fake data path, and settings files, for the tests of admin."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from admin.config.settings import Endpoint
from admin.http import server
from admin.stats.health import Health
from limiter.counting.accounts import Usage
from limiter.counting.rejections import TrafficSecond
from limiter.rules.rule_set import RuleSet
from proxy.control import Cleared, DataPath, LimitCommand, LimitCommandReply
from proxy.spool.figures import SpoolState
from proxy.stats.flow import Flow, Purged
from proxy.stats.question import (
    AppliedLimit,
    Explanation,
    LimitState,
    LimitView,
    Question,
    RuleView,
    ShareView,
    UnappliedRule,
)
from proxy.stats.snapshot import (
    AdaptiveState,
    AlarmState,
    ConfirmState,
    ConnectionState,
    Durations,
    FleetState,
    Held,
    LaneState,
    Limiters,
    LimitInForce,
    ListenerState,
    ResourceCounts,
    ResourceState,
    RuleCounts,
    Snapshot,
)

SNAPSHOT = Snapshot(
    rule_set_version=7,
    limiting=True,
    draining=False,
    resources={
        ("topic", "orders"): ResourceCounts(
            requests={"pass": 10, "refuse": 3, "bypass": 1, "shadow": 4, "exempt": 0, "drop": 0},
            messages={"pass": 160, "refuse": 48, "bypass": 1, "shadow": 64, "exempt": 0, "drop": 0},
        ),
        ("retry_group", "_other"): ResourceCounts(
            requests={"pass": 2, "refuse": 0, "bypass": 0, "shadow": 0, "exempt": 0, "drop": 1},
            messages={"pass": 2, "refuse": 0, "bypass": 0, "shadow": 0, "exempt": 0, "drop": 1},
        ),
    },
    rules={
        "topic:orders": RuleCounts(
            requests={"refuse": 3, "shadow": 4, "hold": 0}, messages={"refuse": 48, "shadow": 64, "hold": 0}
        ),
        "retry_group:*": RuleCounts(
            requests={"refuse": 0, "shadow": 0, "hold": 9}, messages={"refuse": 0, "shadow": 0, "hold": 9}
        ),
    },
    held=Held(8, 4096, {"max_held": 6}),
    usage={("topic", "orders", "messages"): Usage(1.0, 0.8, 0.25)},
    bypassed={("rate_limit", "late"): 4, ("rate_limit", "full"): 5},
    listeners=(ListenerState("main", "127.0.0.2:10911", "127.0.0.1:10911", 12, listening=True),),
    connections_total={"main": 20},
    closed_total={("main", "bad_frame"): 1, ("main", "client_closed"): 7},
    frames_total={"client": 1000, "broker": 990},
    bytes_total={"client": 536_000, "broker": 99_000},
    undecodable_total={"lenient": 2, "none": 1},
    lanes=(LaneState("rate_limit", queued=6, capacity=10_000, late_lanes=1),),
    limiters=Limiters(33, 44, 55),
    limits={
        ("topic", "log-*", "messages"): LimitInForce(math.inf, "built-in"),
        ("topic", "orders", "messages"): LimitInForce(500.0, "configuration"),
        ("topic", "orders", "bytes"): LimitInForce(4_194_304.0, "edit"),
    },
    processing=Durations((3, 2, *(0,) * 15, 1), 12.5),
    alarms=(AlarmState("memory"), AlarmState("disk", total=2, stood_s=1.5)),
    busy_ratio=0.25,
    stages={("connection", "flow"): 3},
    waited_seconds={"flow": 2.5},
    bottlenecks={"disk": 3},
    spool=SpoolState(queues=1, messages={"delta": 7}, memory_limit_bytes=32, disk_limit_bytes=64, lost_total=1),
    held_for=Durations((0,) * 12 + (4,) + (0,) * 5, 1.0),
    round_trip=Durations(),
    confirms=(ConfirmState("queue", "a/b", "broker", "behind", 5, 1500, 16, 10, 20, 30, 40),),
)


class FakeDataPath(DataPath):
    """Answers as scripted, and records calls.

    ``ask`` gets the result of ``limit_commands``. ``traffic`` is returned once, and ``unfinished``, the current second,
    if it is requested. ``traffic_taken`` records those requests.
    """

    def __init__(self) -> None:
        self.snapshot_now = SNAPSHOT
        self.probes = 0
        self.asked: list[Question] = []
        self.explanation: Explanation | Exception = AssertionError("not asked for in this test")
        self.applied: list[RuleSet] = []
        self.resets: list[tuple[str, str]] = []
        self.cleared = Cleared(limiters=1, debt_messages=9950.0, open_breakers=1)
        self.resources_now: list[ResourceState] = []
        self.connections_now: tuple[ConnectionState, ...] = ()
        self.closed: list[tuple[int, str]] = []
        self.ask, self._commands = trio.open_memory_channel[LimitCommand](1000)
        self.replies: list[tuple[int, LimitCommandReply]] = []
        self.traffic: list[TrafficSecond] = []
        self.unfinished: list[TrafficSecond] = []
        self.traffic_taken: list[bool] = []
        self.flow_now = Flow()
        self.spool_now: SpoolState | None = SpoolState()
        self.purged = Purged(refused=3, dropped=1)
        self.purges: list[tuple[str, str]] = []
        self.adaptive_states: tuple[AdaptiveState, ...] = ()
        self.fleet_now: FleetState | None = None

    async def apply(self, rule_set: RuleSet) -> None:
        self.applied.append(rule_set)
        self.snapshot_now = msgspec.structs.replace(
            self.snapshot_now, rule_set_version=rule_set.version, limiting=rule_set.enabled
        )

    async def reset(self, kind: str, name: str) -> Cleared:
        self.resets.append((kind, name))
        return self.cleared

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        # Callers may modify it.
        now = self.snapshot_now
        copied = {name: dict(getattr(now, name)) if whole else {} for name in ("resources", "rules", "usage", "limits")}
        return msgspec.structs.replace(now, **copied)

    async def totals(self) -> ResourceCounts:
        totals: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
        for counts in self.snapshot_now.resources.values():
            totals[0].update(counts.requests)
            totals[1].update(counts.messages)
        return ResourceCounts(*map(dict, totals))

    def resources(self, since_ns: int = 0) -> Iterator[ResourceState]:
        return iter(self.resources_now)

    async def connections(self) -> tuple[ConnectionState, ...]:
        return self.connections_now

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        self.closed.append((connection_id, reason))
        return any(each.id == connection_id for each in self.connections_now)

    async def flow(self, max_connections: int = 100) -> Flow:
        now = self.flow_now
        more = now.more_connections + len(now.connections[max_connections:])
        return msgspec.structs.replace(now, connections=now.connections[:max_connections], more_connections=more)

    async def spool(self, max_resources: int = 100) -> SpoolState | None:
        now = self.spool_now
        return None if now is None else msgspec.structs.replace(now, resources=now.resources[:max_resources])

    async def purge(self, kind: str, name: str) -> Purged:
        if self.spool_now is None:
            raise ValueError("there is no spool")
        self.purges.append((kind, name))
        return self.purged

    async def explain(self, question: Question) -> Explanation:
        self.asked.append(question)
        if isinstance(self.explanation, Exception):
            raise self.explanation
        return self.explanation

    async def adaptive(self) -> tuple[AdaptiveState, ...]:
        return self.adaptive_states

    async def fleet(self) -> FleetState | None:
        return self.fleet_now

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        self.traffic_taken.append(unfinished)
        taken, self.traffic = self.traffic, []
        if unfinished:
            taken, self.unfinished = taken + self.unfinished, []
        return tuple(taken)

    async def probe_brokers(self) -> tuple[ListenerState, ...]:
        self.probes += 1
        return self.snapshot_now.listeners

    @asynccontextmanager
    async def limit_commands(self) -> AsyncIterator[AsyncIterator[LimitCommand]]:
        yield self._commands.clone()

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        self.replies.append((command_id, reply))

    async def drain(self, grace_s: float) -> None:
        raise AssertionError("not asked for in these tests")


@pytest.fixture
def data_path() -> FakeDataPath:
    return FakeDataPath()


EXPLANATION = Explanation(
    question=Question("topic", "orders", "10.1.2.3", "g", "default"),
    rule_set_version=7,
    limiting=True,
    exempt_on=(),
    limits=(
        AppliedLimit(
            kind="topic",
            name="orders",
            why="exact name",
            rule=RuleView("topic:orders", "sluice.toml:3", "500/s", "reject", None),
            limit=LimitView("messages", 500, 1, 1, 10, 5500, None, None, 0, None),
            state=LimitState(stored_permits=0, open=True, wait_s=0.25, last_refused_s=1.5),
            held=0,
            usage=Usage(1.0, 0.8, 0.25),
        ),
        AppliedLimit(
            kind="client",
            name="10.1.2.3",
            why="network",
            rule=RuleView(
                "client:10.0.0.0/8 09:00-18:00 UTC", "sluice.toml:9", "1048576 bytes/s", "delay", "09:00-18:00 UTC"
            ),
            limit=LimitView("bytes", 1_048_576, 2, 0, 10, 12_582_912, 1.5, None, 0, 215),
            state=LimitState(stored_permits=-2048, open=False, wait_s=0.002, last_refused_s=None),
            held=3,
            usage=None,
        ),
        AppliedLimit(
            kind="total",
            name="producer_group:g*",
            why="shared",
            rule=RuleView("total:producer_group:g*", "sluice.toml:15", "9 requests/s", "shadow", None),
            limit=LimitView("requests", 9, 1, 0, 10, 99, None, None, 10, None),
            state=None,
            held=0,
            usage=None,
        ),
        AppliedLimit(
            kind="listener",
            name="default",
            why="exact name",
            rule=RuleView("listener:default", "sluice.toml:20", "900/s", "reject", None),
            limit=LimitView("messages", 900, 1, 0, 10, 9900, None, "client", 0, None),
            state=LimitState(
                stored_permits=300,
                open=False,
                wait_s=0,
                last_refused_s=None,
                shares=(
                    ShareView("10.1.2.3", -0.5, open=False, wait_s=0.01),
                    ShareView("10.1.2.4", -0.5, open=False, wait_s=0),
                    ShareView("_other", 2.25, False, 0),
                ),
            ),
            held=0,
            usage=None,
        ),
    ),
    unapplied=(
        UnappliedRule(
            "listener",
            "default",
            "not now: 18:00-20:00 UTC",
            RuleView("listener:default", "sluice.toml:25", "5/s", "reject", "18:00-20:00 UTC"),
        ),
    ),
)


@pytest.fixture
def explanation() -> Explanation:
    """An answer with every part."""
    return EXPLANATION


@pytest.fixture
async def served(data_path: FakeDataPath, nursery: trio.Nursery) -> Endpoint:
    """A real admin address with a fake data path."""
    sock = server.bind(Endpoint("127.0.0.1", 0))
    endpoint = server.bound_endpoint(sock)
    await nursery.start(server.run, server.application(data_path, Health(data_path)), sock)
    return endpoint


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a settings file, called ``sluice.toml`` in messages."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str) -> str:
        (tmp_path / "sluice.toml").write_text(text, encoding="utf-8")
        return "sluice.toml"

    return write_text


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    directory.mkdir()
    return directory
