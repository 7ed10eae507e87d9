"""A data path made by hand, and settings files: what the admin floor's tests stand on."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from limiter.limiter import LimiterState
from limiter.resource import Resource
from limiter.rules import RuleSet
from proxy.control import (
    BrokerReach,
    ConnectionState,
    DataPath,
    Event,
    Explanation,
    LaneDepth,
    ListenerState,
    ResourceCounts,
    Snapshot,
)

SNAPSHOT = Snapshot(
    rule_set_version=7,
    limiting=True,
    draining=False,
    resources={
        ("topic", "orders"): ResourceCounts(
            requests={"pass": 10, "refuse": 3, "bypass": 1}, messages={"pass": 160, "refuse": 48, "bypass": 1}
        ),
        ("retry_group", "_other"): ResourceCounts(
            requests={"pass": 2, "refuse": 0, "bypass": 0}, messages={"pass": 2, "refuse": 0, "bypass": 0}
        ),
    },
    bypassed={("rate_limit", "late"): 4, ("rate_limit", "full"): 5},
    listeners=(ListenerState("main", "127.0.0.2:10911", "127.0.0.1:10911", 12),),
    connections_total=20,
    closed_total={"bad_frame": 1, "client_closed": 7},
    frames_total={"client": 1000, "broker": 990},
    bytes_total={"client": 536_000, "broker": 99_000},
    undecodable_total={"lenient": 2, "none": 1},
    lanes={"rate_limit": LaneDepth(queued=6, capacity=10_000, late_lanes=1)},
    live_limiters=33,
    evicted_total=44,
    overflowed_total=55,
)


class FakeDataPath(DataPath):
    """Answers with what the test put into it, and remembers how often brokers were probed."""

    def __init__(self) -> None:
        self.snapshot_now = SNAPSHOT
        self.reaches = (BrokerReach("main", "127.0.0.1:10911", None),)
        self.probes = 0

    async def apply(self, rule_set: RuleSet) -> None:
        raise AssertionError("not asked for in these tests")

    async def snapshot(self) -> Snapshot:
        return self.snapshot_now

    def limiters(self) -> AsyncIterator[LimiterState]:
        raise AssertionError("not asked for in these tests")

    async def connections(self) -> tuple[ConnectionState, ...]:
        return ()

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        return False

    async def explain(self, resource: Resource) -> Explanation:
        raise AssertionError("not asked for in these tests")

    async def probe_brokers(self) -> tuple[BrokerReach, ...]:
        self.probes += 1
        return self.reaches

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        raise AssertionError("not asked for in these tests")

    async def drain(self, grace_s: float) -> None:
        raise AssertionError("not asked for in these tests")


@pytest.fixture
def data_path() -> FakeDataPath:
    return FakeDataPath()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a settings file; its name in messages is ``sluice.toml``."""
    monkeypatch.chdir(tmp_path)

    def write_text(text: str) -> str:
        (tmp_path / "sluice.toml").write_text(text, encoding="utf-8")
        return "sluice.toml"

    return write_text
