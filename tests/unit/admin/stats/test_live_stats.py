"""Live statistics of a fake data path."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from admin.config.sources import Flags, load
from admin.edits.model import Author, SetLimit, SetSwitch
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.run.composition import compose
from admin.stats import ConnectionQuery, LiveStats, Query
from admin.stats.health import Health
from admin.stats.rows import NS_PER_S, part_in_order
from limiter.counting.accounts import Usage
from proxy.common.clock import Clock
from proxy.stats.snapshot import (
    ClientDescription,
    ConnectionState,
    ResourceCounts,
    ResourceState,
    RuleCounts,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
VERDICTS = ("pass", "refuse", "bypass", "shadow", "exempt", "drop")
CONFIG = """
[[listeners]]
listen = "127.0.0.1:0"
broker = "127.0.0.1:10911"

[[limits]]
kind = "topic"
name = "orders"
rate = 500
"""


class Time:
    """Both clocks, which the test advances."""

    def __init__(self) -> None:
        self.ns = 1000 * NS_PER_S

    def clock(self) -> Clock:
        return Clock(lambda: self.ns, lambda: START + timedelta(microseconds=(self.ns - 1000 * NS_PER_S) / 1000))

    def forward(self, seconds: float) -> None:
        self.ns += round(seconds * NS_PER_S)


def state(
    name: str, passed: int = 0, refused: int = 0, used: float = 0.0, shadowed: int = 0, **how: Any
) -> ResourceState:
    counts = dict.fromkeys(VERDICTS, 0) | {"pass": passed, "refuse": refused, "shadow": shadowed}
    given: dict[str, Any] = {
        "kind": "topic",
        "name": name,
        "counts": ResourceCounts(requests=dict(counts), messages=dict(counts)),
        "usage": {"messages": Usage(used, used, used)},
        "stored_permits": 0.0,
    }
    return ResourceState(**(given | how))


class World:
    """Live statistics of a fake data path, with a stopped clock."""

    def __init__(self, data_path: Any, desk: EditService) -> None:
        self.data_path, self.desk, self.time = data_path, desk, Time()
        self.board = LiveStats(data_path, desk, Health(data_path), self.time.clock())

    async def sample(self, states: Sequence[ResourceState], after_s: float = 1) -> None:
        self.time.forward(after_s)
        self.data_path.resources_now = list(states)
        await self.board.sample()

    async def shown(self, **how: Any) -> list[str]:
        return [row.name for row in (await self.board.query(Query(kind="topic", limit=500, **how))).rows]

    async def one(self, name: str) -> Any:
        (row,) = [row for row in (await self.board.query(Query(search=name, limit=500))).rows if row.name == name]
        return row


@pytest.fixture
async def world(data_path: Any, write: Any, nursery: Any) -> World:
    desk = EditService(compose(load(write(CONFIG), {}, Flags())).rulebook, Store(None))
    await nursery.start(desk.run, data_path)
    return World(data_path, desk)


async def test_rates_are_means_of_the_last_ten_seconds(world: World) -> None:
    await world.sample([state("orders", 1000, 10)])
    assert (await world.one("orders")).live.messages_per_s.passed == 0
    await world.sample([state("orders", 1300, 20)], after_s=1.25)
    live = (await world.one("orders")).live
    assert (live.messages_per_s.passed, live.messages_per_s.refused) == (240, 8)
    await world.sample([state("orders", 1300, 20)], after_s=8.75)
    assert (await world.one("orders")).live.messages_per_s.passed == 30
    await world.sample([], after_s=1.25)
    assert (await world.one("orders")).live.messages_per_s.passed == 0


async def test_new_row_counts_from_zero_in_the_window(world: World) -> None:
    await world.board.sample()
    await world.sample([state("new", 50)])
    row = await world.one("new")
    assert (row.live.messages_per_s.passed, row.own, row.limit_text) == (50, False, "unlimited")


async def test_a_limit_is_near_and_limited(world: World) -> None:
    waiting = state(
        "a", used=1.0, open=True, wait_us=2_500_000, last_refused_ns=world.time.ns + NS_PER_S, last_wait_us=7
    )
    await world.sample([waiting, state("b", used=0.8), state("c", used=0.79)])
    live = (await world.one("a")).live
    assert (live.limited, live.near, live.open, live.wait_s, live.last_wait_s) == (True, True, True, 2.5, 7e-6)
    assert live.last_refused_at == "2026-01-02T03:04:06.000Z"
    assert await world.shown(filter="limited") == ["a"]
    assert await world.shown(filter="near") == ["a", "b"]
    totals = (await world.board.query(Query())).totals
    assert (totals["limited"], totals["near"], totals["edited"]) == (1, 2, 0)
    await world.sample([], after_s=4)
    live = (await world.one("a")).live
    assert (live.limited, live.open, live.wait_s) == (True, False, 0)
    await world.sample([], after_s=7)
    await world.sample([], after_s=7)
    assert await world.shown(filter="limited") == []


async def test_held_messages_count_as_limited(world: World) -> None:
    await world.sample([state("a", last_held_ns=world.time.ns + NS_PER_S), state("b")])
    assert await world.shown(filter="limited") == ["a"]
    assert (await world.one("a")).live.last_refused_at is None


async def test_shadow_refusals_count_as_passed(world: World) -> None:
    await world.board.sample()
    await world.sample([state("a", 10, shadowed=5), state("b", 10)])
    row = await world.one("a")
    assert (row.live.messages_per_s.passed, row.live.messages_per_s.shadowed) == (15, 5)
    assert (row.live.limited, row.live.would_refuse) == (False, True)
    assert await world.shown(filter="shadowed") == ["a"]
    assert await world.shown(filter="limited") == []
    assert (await world.shown(sort="passed", order="desc"))[:2] == ["a", "b"]
    page = await world.board.query(Query())
    assert (page.totals["shadowed"], page.totals["limited"]) == (1, 0)
    await world.sample([state("a", 20, shadowed=5)], after_s=4)
    assert (await world.one("a")).live.would_refuse
    assert (await world.one("a")).history.passed == (5,)
    await world.sample([state("a", 40, shadowed=5)], after_s=10)
    assert not (await world.one("a")).live.would_refuse


async def test_all_traffic_together_has_a_history_and_rates(world: World) -> None:
    await world.board.sample()
    counts = world.data_path.snapshot_now.resources["topic", "orders"]
    more = ResourceCounts(counts.requests, counts.messages | {"pass": 170, "shadow": 74})
    resources = world.data_path.snapshot_now.resources | {("topic", "orders"): more}
    world.data_path.snapshot_now = msgspec.structs.replace(world.data_path.snapshot_now, resources=resources)
    await world.sample([], after_s=5)
    messages, _ = world.board.total.counted()
    # Messages over a shadow rule passed.
    assert (messages.passed, messages.refused, messages.shadowed) == (246, 48, 74)
    assert (world.board.rates().messages_per_s.passed, world.board.rates().messages_per_s.shadowed) == (4, 2)
    assert world.board.total.all_history(world.board.steps).passed == (4,)


async def test_a_scope_with_a_shadow_rule_would_refuse(world: World) -> None:
    scope = state("10.0.0.1", kind="client", counts=None, last_shadowed_ns=world.time.ns + NS_PER_S)
    await world.sample([scope])
    live = (await world.one("10.0.0.1")).live
    assert (live.limited, live.would_refuse, live.messages_per_s) == (False, True, None)


async def test_a_refusal_by_another_rule_is_named(world: World) -> None:
    how = {"last_refused_ns": world.time.ns + NS_PER_S, "last_wait_us": 2_000_000}
    by_total = state("log-1", last_refused_rule="total:topic:log-*", **how)
    await world.sample([by_total, state("orders", last_refused_rule="topic:orders", **how)])
    live = (await world.one("log-1")).live
    assert (live.refused_by, live.limited, live.open, live.last_wait_s) == ("total:topic:log-*", True, False, 2)
    assert live.last_refused_at == "2026-01-02T03:04:06.000Z"
    assert (await world.one("orders")).live.refused_by is None
    assert await world.shown(filter="limited") == ["log-1", "orders"]


def total(refused: int, rule: str = "total:topic:*", **how: Any) -> ResourceState:
    counts: dict[Any, int] = {"refuse": refused, "hold": 0, "shadow": 0}
    rule_counts = RuleCounts(requests=dict(counts), messages=dict(counts)) if refused else None
    return state("topic:*", kind="total", counts=None, rule=rule, rule_counts=rule_counts, **how)


async def test_a_total_reports_its_rules_actions(world: World) -> None:
    await world.sample([total(7), state("a", 1)])
    live = (await world.one("topic:*")).live
    assert (live.messages_per_s, live.requests_per_s, live.passed_per_s, live.refused_per_s) == (None, None, None, 0)
    await world.sample([total(9), state("a", 1)], after_s=0.5)
    assert (await world.one("topic:*")).live.refused_per_s == 4
    rows = (await world.board.query(Query(sort="refused", order="desc"))).rows
    assert rows[0].name == "topic:*"
    # Another rule of the total has other counts.
    await world.sample([total(100, "total:topic:* 22:00-06:00 UTC")])
    assert (await world.one("topic:*")).live.refused_per_s == 0


@pytest.mark.parametrize("before", [[], [total(0)]])
async def test_the_first_refusal_of_a_total_counts(world: World, before: list[ResourceState]) -> None:
    await world.sample(before)
    await world.sample([total(3)])
    assert (await world.one("topic:*")).live.refused_per_s == 3


async def test_usage_fades_after_a_minute_of_nothing(world: World) -> None:
    await world.sample([state("a", used=0.9)])
    for _ in range(6):
        await world.sample([], after_s=15)
    live = (await world.one("a")).live
    assert (live.used, live.used_ratio, live.near) == ({}, 0, False)


async def test_age_of_the_oldest_waiting_message_is_that_at_the_sample(world: World) -> None:
    await world.sample([state("a", waits_since_ns=world.time.ns)], after_s=0)
    assert (await world.one("a")).live.oldest_wait_s == 0
    await world.sample(world.data_path.resources_now, after_s=90)
    assert (await world.one("a")).live.oldest_wait_s == 90
    await world.sample([state("a")])
    assert (await world.one("a")).live.oldest_wait_s is None


async def test_a_historys_counts_are_those_of_the_counters_even_if_read_late(world: World) -> None:
    await world.board.sample()
    ends, counted = [0, 0, 0], {}
    for second, late_s in enumerate((0.0, 0.37, 0.0, 1.9, 0.21) * 8):
        ends = [count + more for count, more in zip(ends, (997, 3 * second, 7), strict=True)]
        passed, refused, dropped = ends
        counted = {"pass": passed - 20, "bypass": 8, "exempt": 12, "refuse": refused, "drop": dropped}
        messages = dict.fromkeys(VERDICTS, 0) | counted
        counts = ResourceCounts(requests=messages, messages=messages)
        await world.sample([state("orders", counts=counts)], after_s=1 + late_s)
    await world.sample(world.data_path.resources_now, after_s=5)
    row = await world.one("orders")
    history = row.history
    assert any(seconds > 5.5 for seconds in history.seconds)
    begun_s = sum(history.seconds)
    assert history.until == world.board.clock.iso_of(1000 * NS_PER_S + round(begun_s * NS_PER_S))
    for rates, total in zip((history.passed, history.refused, history.dropped), history.totals, strict=True):
        assert sum(round(rate * seconds) for rate, seconds in zip(rates, history.seconds, strict=True)) == total
    assert history.totals == tuple(ends)
    live = row.live.messages_total
    assert (live.passed, live.bypassed, live.exempt, live.dropped) == (ends[0] - 20, 8, 12, ends[2])


async def test_limit_of_a_history_is_that_of_its_time(world: World) -> None:
    await world.board.sample()
    await world.sample([state("orders", 1)], after_s=5)
    await world.desk.change([SetLimit(kind="topic", name="orders", limit={"rate": 50})], Author("alice"))
    await world.sample([state("orders", 2)], after_s=5)
    await world.desk.change([SetSwitch(kind="topic", limiting=False)], Author("alice"))
    await world.sample([state("orders", 3)], after_s=5)
    assert (await world.one("orders")).history.limit == (500, 50, None)


async def test_a_history_is_bounded_and_oldest_first(world: World) -> None:
    await world.board.sample()
    total = 0
    for point in range(1, 71):
        total += 5 * point
        await world.sample([state("orders", total)], after_s=5)
    assert (await world.one("orders")).history.passed == tuple(range(11, 71))


async def test_an_edit_shows_at_once(world: World) -> None:
    assert await world.shown(filter="edited") == []
    await world.desk.change([SetLimit(kind="topic", name="fresh", limit={"rate": 5})], Author("alice"))
    assert await world.shown(filter="edited") == ["fresh"]
    page = await world.board.query(Query(sort="edited", order="desc"))
    assert page.rows[0].name == "fresh"
    assert page.etag == world.desk.etag


@pytest.mark.parametrize(
    ("sort", "orders"),
    [
        ("name", (["orders", "c", "B", "a"], ["a", "B", "c", "orders"])),
        ("passed", (["c", "a", "B", "orders"], ["B", "orders", "a", "c"])),
        ("refused", (["a", "B", "c", "orders"], ["B", "c", "orders", "a"])),
        ("used", (["B", "a", "c", "orders"], ["orders", "a", "c", "B"])),
        ("limit", (["a", "B", "c", "orders"], ["orders", "a", "B", "c"])),
    ],
)
async def test_every_column_sorts_and_equal_ones_keep_their_names_in_order(
    world: World, sort: Any, orders: tuple[list[str], list[str]]
) -> None:
    await world.board.sample()
    states = [state("B", used=0.9), state("a", 5, 3, used=0.1), state("c", 9, used=0.1)]
    await world.sample(states)
    mine = {"a", "B", "c", "orders"}
    down, up = orders
    assert [name for name in await world.shown(sort=sort, order="desc") if name in mine] == down
    assert [name for name in await world.shown(sort=sort) if name in mine] == up
    assert await world.shown(search="b", sort=sort, history=False) == ["B"]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_internal_names_sort_last(world: World, order: Any) -> None:
    await world.sample([state("RMQ_SYS_*"), state("zzz")])
    names = await world.shown(sort="refused", order=order)
    assert names[:2] == ["zzz", "orders"]
    assert {"RMQ_SYS_*", "*_REPLY_TOPIC"} <= set(names[2:])
    await world.sample([state("RMQ_SYS_*", 3), state("zzz", 3)])
    names = await world.shown(sort="refused", order=order)
    assert names[:2] == ["RMQ_SYS_*", "zzz"]


@pytest.mark.parametrize("sort", ["kind", "rule", "shadowed", "bypassed", "wait", "last_refused", "edited", "expires"])
async def test_pages_of_one_order_do_not_overlap(world: World, sort: Any) -> None:
    await world.sample([state(f"t{number:04}") for number in range(1200)])
    names: list[str] = []
    for offset in range(0, 1400, 200):
        page = await world.board.query(Query(search="t0", kind="topic", sort=sort, offset=offset, limit=200))
        names += [row.name for row in page.rows]
    assert page.total == len(names) == len(set(names)) == 1000


async def test_forgotten_names_are_removed_and_restart_from_zero(world: World) -> None:
    await world.sample([state(f"t-{number}", 1000) for number in range(100)])
    assert len(await world.shown(search="t-")) == 100
    await world.sample([state("t-7", 1000)], after_s=700)
    assert await world.shown(search="t-") == ["t-7"]
    await world.sample([state("t-7", 1000), state("t-8", 5)])
    assert (await world.one("t-8")).live.messages_per_s.passed > 0
    # It was forgotten and has come back since the last sample.
    await world.sample([state("t-7", 3)])
    assert (await world.one("t-7")).live.messages_per_s.passed == 0
    assert (await world.one("t-7")).live.messages_total.passed == 3


async def test_totals_and_bypassed_are_of_the_last_minute(world: World) -> None:

    await world.board.sample()
    for _ in range(3):
        world.time.forward(60)
        now = world.data_path.snapshot_now
        bypassed = {("rate_limit", "late"): now.bypassed["rate_limit", "late"] + 120}
        world.data_path.snapshot_now = msgspec.structs.replace(now, bypassed=bypassed)
        await world.board.sample()
    assert world.board.bypassed(world.data_path.snapshot_now).per_s_last_60s == 2


def connection(number: int, **how: Any) -> ConnectionState:
    given: dict[str, Any] = {
        "id": number,
        "listener": "main",
        "peer": f"10.0.0.{number}:4000",
        "client": ClientDescription(),
        "bytes_total": {"client": 0, "broker": 0},
        "requests_total": 0,
        "refused_total": 0,
        "in_flight": 0,
    }
    return ConnectionState(**(given | how))


async def test_connections_have_rates_after_two_samples(world: World) -> None:
    world.data_path.connections_now = (connection(1), connection(2))
    page = await world.board.connections.page(ConnectionQuery())
    assert [row.requests_per_s for row in page.rows] == [None, None]
    world.time.forward(5)
    world.data_path.connections_now = (
        connection(1, requests_total=50, bytes_total={"client": 500, "broker": 5}),
        connection(3),
    )
    page = await world.board.connections.page(ConnectionQuery(sort="requests", order="desc"))
    assert [(row.id, row.requests_per_s) for row in page.rows] == [(1, 10), (3, None)]
    assert page.rows[0].bytes_per_s == {"client": 100, "broker": 1}
    world.board.connections.forget(1)
    assert [row.id for row in (await world.board.connections.page(ConnectionQuery())).rows] == [3]


def test_orders_are_stable() -> None:
    items = [(number % 3, number) for number in range(400)]
    for descending in (False, True):
        expected = sorted(items, key=lambda item: item[0], reverse=descending)
        for offset, limit in ((0, 401), (128, 5), (400, 5)):
            part = part_in_order(items, lambda item: item[0], offset, limit, descending=descending)
            assert part == expected[offset : offset + limit]
    assert part_in_order(items, None, 0, 1, descending=True) == items[-1:]


async def test_equal_queries_share_a_page_until_a_change(world: World) -> None:
    world.data_path.resources_now = [state("a", 1)]
    page = await world.board.query(Query(search="a"))
    assert await world.board.query(Query(search="a")) is page
    assert await world.board.query(Query(search="b")) is not page
    await world.desk.change([SetLimit(kind="topic", name="a", limit={"rate": 5})], Author("ann", ""))
    edited = await world.board.query(Query(search="a"))
    assert edited.rows[0].limit["rate"] == 5
    world.time.forward(2)
    assert await world.board.query(Query(search="a")) is not edited


async def test_concurrent_queries_cost_one_sample(world: World) -> None:
    looks = 0
    resources = world.data_path.resources

    def counted(since_ns: int = 0) -> Any:
        nonlocal looks
        looks += 1
        return resources(since_ns)

    world.data_path.resources = counted
    async with trio.open_nursery() as asking:
        for _ in range(5):
            asking.start_soon(world.board.fresh)
    assert looks == 1


async def test_a_sample_looks_back_over_the_window_and_at_times_a_minute(world: World) -> None:
    looked_s: list[float] = []
    resources = world.data_path.resources

    def noted(since_ns: int = 0) -> Any:
        looked_s.append((world.time.ns - since_ns) / NS_PER_S)
        return resources(since_ns)

    world.data_path.resources = noted
    for _ in range(12):
        await world.board.sample()
        world.time.forward(1)
    assert looked_s[1:10] == [12] * 9
    assert looked_s[10:] == [61, 12]
