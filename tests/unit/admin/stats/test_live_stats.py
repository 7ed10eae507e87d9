"""The board over a data path made by hand."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from admin.common.clock import Clock
from admin.config.sources import Flags, load
from admin.edits.model import Author, SetLimit, SetSwitch
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.run.composition import compose
from admin.stats import ConnectionQuery, LiveStats, Query
from admin.stats.health import Health
from admin.stats.rows import NS_PER_S, part_in_order
from proxy.stats.snapshot import (
    ClientDescription,
    ConnectionState,
    LinkState,
    ResourceCounts,
    ResourceState,
    RuleCounts,
    Usage,
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
    """Both clocks, which go on when they are told to."""

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
        "open": False,
        "wait_us": 0,
        "last_refused_ns": None,
        "last_wait_us": 0,
    }
    return ResourceState(**(given | how))


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def desk(data_path: Any, write: Any, nursery: Any) -> EditService:
    desk = EditService(compose(load(write(CONFIG), {}, Flags())).rulebook, Store(None))
    await nursery.start(desk.run, data_path)
    return desk


@pytest.fixture
def board(data_path: Any, desk: EditService, time: Time) -> LiveStats:
    return LiveStats(data_path, desk, Health(data_path), time.clock())


async def shown(board: LiveStats, **how: Any) -> list[str]:
    return [row.name for row in (await board.query(Query(kind="topic", limit=500, **how))).rows]


async def one(board: LiveStats, name: str) -> Any:
    (row,) = [row for row in (await board.query(Query(search=name, limit=500))).rows if row.name == name]
    return row


async def sampled(
    board: LiveStats, time: Time, data_path: Any, states: Sequence[ResourceState], after_s: float = 1
) -> None:
    time.forward(after_s)
    data_path.resources_now = list(states)
    await board.sample()


async def test_rates_are_means_of_the_last_ten_seconds(board: LiveStats, time: Time, data_path: Any) -> None:
    await sampled(board, time, data_path, [state("orders", 1000, 10)])
    assert (await one(board, "orders")).live.messages_per_s.passed == 0
    await sampled(board, time, data_path, [state("orders", 1300, 20)], after_s=1.25)
    live = (await one(board, "orders")).live
    assert (live.messages_per_s.passed, live.messages_per_s.refused) == (240, 8)
    await sampled(board, time, data_path, [state("orders", 1300, 20)], after_s=8.75)
    assert (await one(board, "orders")).live.messages_per_s.passed == 30
    await sampled(board, time, data_path, [], after_s=1.25)
    assert (await one(board, "orders")).live.messages_per_s.passed == 0


async def test_rate_and_used_share_of_a_limit_that_refuses_in_turns_agree(
    board: LiveStats, time: Time, data_path: Any
) -> None:
    """With a breaker, 200/s is a burst of 400 every other second: what a second shows says nothing of the rate."""
    await sampled(board, time, data_path, [state("flood"), *(state(f"quiet-{number}") for number in range(3))])
    for second in range(1, 26):
        passed = 400 * ((second + 1) // 2)
        quiet = [state(f"quiet-{number}", 150 * second) for number in range(3)]
        await sampled(board, time, data_path, [state("flood", passed, 1000 * second, used=1.0), *quiet])
        live = (await one(board, "flood")).live
        if second >= 10:
            assert (live.messages_per_s.passed, live.messages_per_s.refused, live.used_ratio) == (200, 1000, 1.0)
            assert (await shown(board, sort="passed", order="desc"))[0] == "flood"
            assert (await shown(board, sort="passed"))[-1] == "flood"


async def test_what_was_refused_in_the_window_stays_limited_to_its_end(
    board: LiveStats, time: Time, data_path: Any
) -> None:
    await sampled(board, time, data_path, [state("a", 5)])
    await sampled(board, time, data_path, [state("a", 5, 3, used=1.0, last_refused_ns=time.ns + NS_PER_S)])
    for _ in range(9):
        await sampled(board, time, data_path, [state("a", 5, 3, used=1.0, last_refused_ns=time.ns)])
        live = (await one(board, "a")).live
        assert (live.limited, live.messages_per_s.refused > 0) == (True, True)


async def test_what_comes_new_has_come_in_the_window(board: LiveStats, time: Time, data_path: Any) -> None:
    await board.sample()
    await sampled(board, time, data_path, [state("new", 50)])
    row = await one(board, "new")
    assert (row.live.messages_per_s.passed, row.own, row.limit_text) == (50, False, "unlimited")


async def test_what_was_never_asked_for_has_no_figures(board: LiveStats) -> None:
    row = await one(board, "orders")
    assert (row.live, row.history, row.own) == (None, None, True)


async def test_a_limit_is_near_and_limited(board: LiveStats, time: Time, data_path: Any) -> None:
    waiting = state("a", used=1.0, open=True, wait_us=2_500_000, last_refused_ns=time.ns + NS_PER_S, last_wait_us=7)
    await sampled(board, time, data_path, [waiting, state("b", used=0.8), state("c", used=0.79)])
    live = (await one(board, "a")).live
    assert (live.limited, live.near, live.open, live.wait_s, live.last_wait_s) == (True, True, True, 2.5, 7e-6)
    assert live.last_refused_at == "2026-01-02T03:04:06.000Z"
    assert await shown(board, filter="limited") == ["a"]
    assert await shown(board, filter="near") == ["a", "b"]
    totals = (await board.query(Query())).totals
    assert (totals.limited, totals.near, totals.overridden) == (1, 2, 0)
    await sampled(board, time, data_path, [], after_s=4)
    live = (await one(board, "a")).live
    assert (live.limited, live.open, live.wait_s) == (True, False, 0)
    await sampled(board, time, data_path, [], after_s=7)
    await sampled(board, time, data_path, [], after_s=7)
    assert await shown(board, filter="limited") == []


async def test_what_is_held_is_limited(board: LiveStats, time: Time, data_path: Any) -> None:
    await sampled(board, time, data_path, [state("a", last_held_ns=time.ns + NS_PER_S), state("b")])
    assert await shown(board, filter="limited") == ["a"]
    assert (await one(board, "a")).live.last_refused_at is None


async def test_what_a_shadow_rule_would_refuse_has_passed(board: LiveStats, time: Time, data_path: Any) -> None:
    await board.sample()
    await sampled(board, time, data_path, [state("a", 10, shadowed=5), state("b", 10)])
    row = await one(board, "a")
    assert (row.live.messages_per_s.passed, row.live.messages_per_s.shadowed) == (15, 5)
    assert (row.live.limited, row.live.would_refuse) == (False, True)
    assert await shown(board, filter="shadowed") == ["a"]
    assert await shown(board, filter="limited") == []
    assert (await shown(board, sort="passed", order="desc"))[:2] == ["a", "b"]
    page = await board.query(Query())
    assert (page.totals.shadowed, page.totals.limited) == (1, 0)
    await sampled(board, time, data_path, [state("a", 20, shadowed=5)], after_s=4)
    assert (await one(board, "a")).live.would_refuse
    assert (await one(board, "a")).history.passed == (5,)
    await sampled(board, time, data_path, [state("a", 40, shadowed=5)], after_s=10)
    assert not (await one(board, "a")).live.would_refuse


async def test_of_all_traffic_together_what_would_be_refused_has_passed(
    board: LiveStats, time: Time, data_path: Any
) -> None:
    await sampled(board, time, data_path, [])
    counts = (await data_path.totals()).messages
    assert counts["shadow"] > 0
    passed, refused, shadowed, *_ = board.traffic.messages
    assert (passed, refused, shadowed) == (counts["pass"] + counts["shadow"], counts["refuse"], counts["shadow"])


async def test_a_scope_with_a_shadow_rule_would_refuse(board: LiveStats, time: Time, data_path: Any) -> None:
    scope = state("10.0.0.1", kind="client", counts=None, last_shadowed_ns=time.ns + NS_PER_S)
    await sampled(board, time, data_path, [scope])
    live = (await one(board, "10.0.0.1")).live
    assert (live.limited, live.would_refuse, live.messages_per_s) == (False, True, None)


async def test_a_refusal_by_another_rule_is_named(board: LiveStats, time: Time, data_path: Any) -> None:
    how = {"last_refused_ns": time.ns + NS_PER_S, "last_wait_us": 2_000_000}
    by_total = state("log-1", last_refused_rule="total:topic:log-*", **how)
    await sampled(board, time, data_path, [by_total, state("orders", last_refused_rule="topic:orders", **how)])
    live = (await one(board, "log-1")).live
    assert (live.refused_by, live.limited, live.open, live.last_wait_s) == ("total:topic:log-*", True, False, 2)
    assert live.last_refused_at == "2026-01-02T03:04:06.000Z"
    assert (await one(board, "orders")).live.refused_by is None
    assert await shown(board, filter="limited") == ["log-1", "orders"]


def total(refused: int, rule: str = "total:topic:*", **how: Any) -> ResourceState:
    counts: dict[Any, int] = {"refuse": refused, "hold": 0, "shadow": 0}
    rule_counts = RuleCounts(requests=dict(counts), messages=dict(counts)) if refused else None
    return state("topic:*", kind="total", counts=None, rule=rule, rule_counts=rule_counts, **how)


async def test_a_total_tells_what_its_rule_did(board: LiveStats, time: Time, data_path: Any) -> None:
    await sampled(board, time, data_path, [total(7), state("a", 1)])
    assert (await one(board, "a")).live.rule_messages_per_s is None
    live = (await one(board, "topic:*")).live
    assert (live.messages_per_s, live.rule_messages_per_s.refused) == (None, 0)
    await sampled(board, time, data_path, [total(9), state("a", 1)], after_s=0.5)
    assert (await one(board, "topic:*")).live.rule_messages_per_s.refused == 4
    await sampled(board, time, data_path, [total(9), state("a", 1)], after_s=0.5)
    assert (await one(board, "topic:*")).live.rule_messages_per_s.refused == 2
    rows = (await board.query(Query(sort="refused", order="desc"))).rows
    assert rows[0].name == "topic:*"
    # Another rule of the total has other counts.
    await sampled(board, time, data_path, [total(100, "total:topic:* 22:00-06:00 UTC")])
    assert (await one(board, "topic:*")).live.rule_messages_per_s.refused == 0
    await sampled(board, time, data_path, [])
    assert (await one(board, "topic:*")).live.rule_messages_per_s.refused == 0


@pytest.mark.parametrize("before", [[], [total(0)]])
async def test_the_first_refusal_of_a_total_counts(
    board: LiveStats, time: Time, data_path: Any, before: list[ResourceState]
) -> None:
    await sampled(board, time, data_path, before)
    await sampled(board, time, data_path, [total(3)])
    live = (await one(board, "topic:*")).live
    assert (live.messages_per_s, live.requests_per_s, live.rule_messages_per_s.refused) == (None, None, 3)


async def test_usage_fades_after_a_minute_of_nothing(board: LiveStats, time: Time, data_path: Any) -> None:
    await sampled(board, time, data_path, [state("a", used=0.9)])
    for _ in range(6):
        await sampled(board, time, data_path, [], after_s=15)
    live = (await one(board, "a")).live
    assert (live.used, live.used_ratio, live.near) == ({}, 0, False)


async def test_age_of_the_oldest_waiting_message_is_that_at_the_sample(
    board: LiveStats, time: Time, data_path: Any
) -> None:
    await sampled(board, time, data_path, [state("a", waits_since_ns=time.ns)], after_s=0)
    assert (await one(board, "a")).live.oldest_wait_s == 0
    await sampled(board, time, data_path, data_path.resources_now, after_s=90)
    assert (await one(board, "a")).live.oldest_wait_s == 90
    await sampled(board, time, data_path, [state("a")])
    assert (await one(board, "a")).live.oldest_wait_s is None


async def test_history_has_a_point_every_five_seconds(board: LiveStats, time: Time, data_path: Any) -> None:
    await board.sample()
    for second in range(1, 16):
        await sampled(board, time, data_path, [state("orders", 100 * second, 10 * second)])
    history = (await one(board, "orders")).history
    assert (history.step_s, history.passed, history.refused) == (5, (100, 100, 100), (10, 10, 10))
    assert (await board.query(Query(history=False))).rows[0].history is None


async def test_counts_of_a_history_are_those_of_the_counters_however_late_it_is_read(
    board: LiveStats, time: Time, data_path: Any
) -> None:
    await board.sample()
    ends, counted = [0, 0, 0], {}
    for second, late_s in enumerate((0.0, 0.37, 0.0, 1.9, 0.21) * 8):
        ends = [count + more for count, more in zip(ends, (997, 3 * second, 7), strict=True)]
        passed, refused, dropped = ends
        counted = {"pass": passed - 20, "bypass": 8, "exempt": 12, "refuse": refused, "drop": dropped}
        messages = dict.fromkeys(VERDICTS, 0) | counted
        counts = ResourceCounts(requests=messages, messages=messages)
        await sampled(board, time, data_path, [state("orders", counts=counts)], after_s=1 + late_s)
    await sampled(board, time, data_path, data_path.resources_now, after_s=5)
    row = await one(board, "orders")
    history = row.history
    assert any(seconds > 5.5 for seconds in history.seconds)
    begun_s = sum(history.seconds)
    assert history.until == board.clock.iso_of(1000 * NS_PER_S + round(begun_s * NS_PER_S))
    for rates, total in zip((history.passed, history.refused, history.dropped), history.totals, strict=True):
        assert sum(round(rate * seconds) for rate, seconds in zip(rates, history.seconds, strict=True)) == total
    assert history.totals == tuple(ends)
    live = row.live.messages_total
    assert (live.passed, live.bypassed, live.exempt, live.dropped) == (ends[0] - 20, 8, 12, ends[2])


async def test_limit_of_a_history_is_that_of_its_time(
    board: LiveStats, time: Time, data_path: Any, desk: EditService
) -> None:
    await board.sample()
    await sampled(board, time, data_path, [state("orders", 1)], after_s=5)
    await desk.change([SetLimit(kind="topic", name="orders", limit={"rate": 50})], Author("alice"))
    await sampled(board, time, data_path, [state("orders", 2)], after_s=5)
    await desk.change([SetSwitch(kind="topic", limiting=False)], Author("alice"))
    await sampled(board, time, data_path, [state("orders", 3)], after_s=5)
    assert (await one(board, "orders")).history.limit == (500, 50, None)


async def test_a_history_is_bounded_and_oldest_first(board: LiveStats, time: Time, data_path: Any) -> None:
    await board.sample()
    total = 0
    for point in range(1, 71):
        total += 5 * point
        await sampled(board, time, data_path, [state("orders", total)], after_s=5)
    assert (await one(board, "orders")).history.passed == tuple(range(11, 71))


async def test_an_edit_shows_at_once(board: LiveStats, desk: EditService) -> None:
    assert await shown(board, filter="overridden") == []
    await desk.change([SetLimit(kind="topic", name="fresh", limit={"rate": 5})], Author("alice"))
    assert await shown(board, filter="overridden") == ["fresh"]
    page = await board.query(Query(sort="edited", order="desc"))
    assert page.rows[0].name == "fresh"
    assert page.etag == desk.etag


async def test_rows_without_a_rule_follow_the_rules(
    board: LiveStats, time: Time, data_path: Any, desk: EditService
) -> None:
    await sampled(board, time, data_path, [state("a")])
    assert (await one(board, "a")).limit_text == "unlimited"
    await desk.change([SetLimit(kind="topic", name="*", limit={"rate": 5})], Author("alice"))
    assert (await one(board, "a")).limit_text == "5/s"


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
    board: LiveStats, time: Time, data_path: Any, sort: Any, orders: tuple[list[str], list[str]]
) -> None:
    await board.sample()
    states = [state("B", used=0.9), state("a", 5, 3, used=0.1), state("c", 9, used=0.1)]
    await sampled(board, time, data_path, states)
    mine = {"a", "B", "c", "orders"}
    down, up = orders
    assert [name for name in await shown(board, sort=sort, order="desc") if name in mine] == down
    assert [name for name in await shown(board, sort=sort) if name in mine] == up


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_of_equal_ones_those_that_were_asked_for_come_first(
    board: LiveStats, time: Time, data_path: Any, order: Any
) -> None:
    await sampled(board, time, data_path, [state("unused-but-known"), state("zzz")])
    names = await shown(board, sort="refused", order=order)
    assert names.index("zzz") < names.index("orders")


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_of_equal_ones_sluices_own_come_last(board: LiveStats, time: Time, data_path: Any, order: Any) -> None:
    await sampled(board, time, data_path, [state("RMQ_SYS_*"), state("zzz")])
    names = await shown(board, sort="refused", order=order)
    assert names[:2] == ["zzz", "orders"]
    assert {"RMQ_SYS_*", "*_REPLY_TOPIC"} <= set(names[2:])
    await sampled(board, time, data_path, [state("RMQ_SYS_*", 3), state("zzz", 3)])
    names = await shown(board, sort="refused", order=order)
    assert names[:2] == ["RMQ_SYS_*", "zzz"]


@pytest.mark.parametrize("sort", ["kind", "rule", "shadowed", "bypassed", "wait", "last_refused", "edited", "expires"])
async def test_pages_of_one_order_do_not_overlap(board: LiveStats, time: Time, data_path: Any, sort: Any) -> None:
    await sampled(board, time, data_path, [state(f"t{number:04}") for number in range(1200)])
    names: list[str] = []
    for offset in range(0, 1400, 200):
        page = await board.query(Query(search="t0", kind="topic", sort=sort, offset=offset, limit=200))
        names += [row.name for row in page.rows]
    assert page.total == len(names) == len(set(names)) == 1000


async def test_search_is_in_any_case(board: LiveStats, time: Time, data_path: Any) -> None:
    await sampled(board, time, data_path, [state("Straße-A"), state("other")])
    assert await shown(board, search="STRASSE-a") == ["Straße-A"]


async def test_names_beyond_the_cap_are_shown_without_a_limit(board: LiveStats, time: Time, data_path: Any) -> None:
    await sampled(board, time, data_path, [state("gone", kind="no_such_kind")])
    row = await one(board, "gone")
    assert (row.limit, row.limit_text) == ({}, "")


async def test_a_full_board_takes_no_new_names(
    board: LiveStats, time: Time, data_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.stats.live_stats.MAX_ROWS", 10)
    await sampled(board, time, data_path, [state(f"t{number}") for number in range(100)])
    assert (await board.query(Query())).totals.rows == 10
    # Long after, there is room again, and what comes back is no burst.
    for _ in range(6):
        await sampled(board, time, data_path, [], after_s=1000)
    await sampled(board, time, data_path, [state("back", 1_000_000)])
    assert (await one(board, "back")).live.messages_per_s.passed == 0


async def test_totals_and_bypassed_are_of_the_last_minute(board: LiveStats, time: Time, data_path: Any) -> None:

    await board.sample()
    for _ in range(3):
        time.forward(60)
        now = data_path.snapshot_now
        bypassed = {("rate_limit", "late"): now.bypassed["rate_limit", "late"] + 120}
        data_path.snapshot_now = msgspec.structs.replace(now, bypassed=bypassed)
        await board.sample()
    assert board.traffic.bypassed(data_path.snapshot_now).per_s_last_60s == 2


def connection(number: int, time: Time, **how: Any) -> ConnectionState:
    given: dict[str, Any] = {
        "id": number,
        "listener": "main",
        "peer": f"10.0.0.{number}:4000",
        "client": ClientDescription(),
        "exempt": False,
        "opened_ns": time.ns,
        "bytes_total": {"client": 0, "broker": 0},
        "requests_total": 0,
        "refused_total": 0,
        "in_flight": 0,
    }
    return ConnectionState(**(given | how))


async def test_connections_have_rates_after_two_samples(board: LiveStats, time: Time, data_path: Any) -> None:
    data_path.connections_now = (connection(1, time), connection(2, time))
    page = await board.connections.page(ConnectionQuery())
    assert [row.requests_per_s for row in page.rows] == [None, None]
    opened = time.ns
    time.forward(5)
    data_path.connections_now = (
        connection(1, time, opened_ns=opened, requests_total=50, bytes_total={"client": 500, "broker": 5}),
        connection(3, time),
    )
    page = await board.connections.page(ConnectionQuery(sort="requests", order="desc"))
    assert [(row.id, row.requests_per_s) for row in page.rows] == [(1, 10), (3, None)]
    assert (page.rows[0].bytes_per_s, page.rows[0].age_s) == ({"client": 100, "broker": 1}, 5)
    assert page.rows[0].opened_at == "2026-01-02T03:04:05.000Z"
    board.connections.forget(1)
    assert [row.id for row in (await board.connections.page(ConnectionQuery())).rows] == [3]


async def test_connections_are_found_by_their_links(board: LiveStats, time: Time, data_path: Any) -> None:
    link = LinkState("Orders-Out", 0, True, "queue:orders", 20, 150, 48_210, 0, 1250)
    data_path.connections_now = (connection(1, time, links=(link,), more_links=4), connection(2, time))
    for search in ("orders-out", "queue:"):
        (row,) = (await board.connections.page(ConnectionQuery(search=search))).rows
        assert (row.id, row.links, row.more_links) == (1, (link,), 4)


def test_orders_are_stable() -> None:
    items = [(number % 3, number) for number in range(400)]
    for descending in (False, True):
        expected = sorted(items, key=lambda item: item[0], reverse=descending)
        for offset, limit in ((0, 401), (128, 5), (400, 5)):
            part = part_in_order(items, lambda item: item[0], offset, limit, descending=descending)
            assert part == expected[offset : offset + limit]
    assert part_in_order(items, None, 0, 1, descending=True) == items[-1:]


async def test_all_who_ask_the_same_share_a_page_until_something_changes(
    board: LiveStats, desk: EditService, time: Time, data_path: Any
) -> None:
    data_path.resources_now = [state("a", 1)]
    page = await board.query(Query(search="a"))
    assert await board.query(Query(search="a")) is page
    assert await board.query(Query(search="b")) is not page
    await desk.change([SetLimit(kind="topic", name="a", limit={"rate": 5})], Author("ann", ""))
    edited = await board.query(Query(search="a"))
    assert edited.rows[0].limit["rate"] == 5
    time.forward(2)
    assert await board.query(Query(search="a")) is not edited


async def test_many_who_come_at_once_cost_one_sample(board: LiveStats, data_path: Any) -> None:
    looks = 0
    resources = data_path.resources

    def counted(since_ns: int = 0) -> Any:
        nonlocal looks
        looks += 1
        return resources(since_ns)

    data_path.resources = counted
    async with trio.open_nursery() as asking:
        for _ in range(5):
            asking.start_soon(board.fresh)
    assert looks == 1


async def test_a_sample_looks_back_over_the_window_and_at_times_a_minute(
    board: LiveStats, time: Time, data_path: Any
) -> None:
    looked_s: list[float] = []
    resources = data_path.resources

    def noted(since_ns: int = 0) -> Any:
        looked_s.append((time.ns - since_ns) / NS_PER_S)
        return resources(since_ns)

    data_path.resources = noted
    for _ in range(12):
        await board.sample()
        time.forward(1)
    assert looked_s[1:10] == [12] * 9
    assert looked_s[10:] == [61, 12]
