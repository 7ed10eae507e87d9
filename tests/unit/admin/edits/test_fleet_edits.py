"""Several members of a fleet edit limits over one log."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio
from fleet_edits import FleetDataPath, Log
from trio.testing import MockClock, wait_all_tasks_blocked

from admin.edits import fleet_log
from admin.edits.fleet_log import Entry
from admin.edits.model import (
    ActiveEdit,
    Author,
    Change,
    ConflictError,
    FleetEditError,
    ForFleet,
    InvalidError,
    PatchLimit,
    PreconditionError,
    SetLimit,
    SetSwitch,
    UnsetLimit,
)
from admin.edits.service import EditService
from admin.edits.store import Store
from limiter.rules.resource import Resource
from proxy.control import FleetError

ALICE, BOB = Author("alice", "10.0.0.1:5"), Author("bob", "10.0.0.2:6")
FILE = '[[limits]]\nkind = "topic"\nname = "orders"\nrate = 5\n'
AT = "2026-11-21T11:00:00.000Z"

Join = Callable[..., AbstractAsyncContextManager[EditService]]


def put(rate: float, name: str = "orders", **more: Any) -> SetLimit:
    return SetLimit(kind="topic", name=name, limit={"rate": rate}, **more)


def rates(*members: EditService, name: str = "orders") -> list[float | None]:
    return [each.rule_set.match(Resource("topic", name)).rate_per_s for each in members]


async def told(edits: EditService) -> list[tuple[str, str, str, Any]]:
    """Return the audit trail in order: author, member, action and rate."""
    return [
        (each.by, each.member, each.action, (each.new or {}).get("rate"))
        for each in reversed(await edits.audit(limit=1000))
    ]


RUNNING: dict[EditService, Log] = {}


async def settled(log: Log) -> None:
    """Wait until all members have applied the whole log."""
    with trio.fail_after(60):
        while True:
            await wait_all_tasks_blocked()
            if all(
                (log.fault is not None or (each._fleet_log is not None and each._fleet_log.version == log.version))
                and not each.lock.locked()
                for each, its in RUNNING.items()
                if its is log
            ):
                return


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def join(log: Log, make_rulebook: Any, clock: Any) -> Join:
    """Run a member with this name."""

    @asynccontextmanager
    async def run(
        member: str, directory: Path | None = None, *, text: str = FILE, fleet: str = "f"
    ) -> AsyncIterator[EditService]:
        store = Store(directory)
        edits, data_path = EditService(make_rulebook(text), store, clock=clock), FleetDataPath(log, member, fleet)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(edits.run, data_path))
            await nursery.start(partial(edits.follow_fleet, data_path))
            RUNNING[edits] = log
            await settled(log)
            yield edits
            del RUNNING[edits]
            nursery.cancel_scope.cancel()
        store.close()

    return run


async def test_an_edit_for_the_fleet_is_done_and_audited_at_each_member(join: Join, log: Log) -> None:
    async with join("a") as a, join("b") as b:
        (change,) = await a.change([put(9, reason="why")], ALICE, fleet=True)
        assert (change.id, change.by, change.address, change.member, change.reason) == (
            *(1, "alice", "10.0.0.1:5"),
            *("a", "why"),
        )
        await settled(log)
        assert rates(a, b) == [9, 9]
        assert await told(a) == await told(b) == [("alice", "a", "set", 9)]
        edit = b.limit("topic", "orders").edit
        assert edit is not None
        assert (edit.by, edit.reason, edit.fleet) == ("alice", "why", ForFleet("f", 1, "a"))

        await b.change([UnsetLimit(kind="topic", name="orders", reason="no")], BOB, fleet=True)
        await settled(log)
        assert rates(a, b) == [5, 5]
        assert await told(a) == [("alice", "a", "set", 9), ("bob", "b", "unset", 5)]
        assert (await a.audit(limit=1))[0].reason == "no"


async def test_a_patch_a_batch_and_a_switch_are_for_the_fleet_too(join: Join, log: Log) -> None:
    async with join("a") as a, join("b") as b:
        await a.change([PatchLimit(kind="topic", name="orders", limit={"burst_s": 3})], ALICE, fleet=True)
        edits = [put(1, "x"), put(2, "x"), SetSwitch(kind="topic", limiting=False)]
        changes = await b.change(edits, BOB, fleet=True)
        assert [each.id for each in changes] == [2, 3, 4]
        await settled(log)
        assert rates(a, b, name="x") == [2, 2]
        assert [each.limit("topic", "orders").limit["burst_s"] for each in (a, b)] == [3, 3]
        assert [each.switch("topic").limiting for each in (a, b)] == [False, False]
        assert await told(a) == await told(b)


async def test_undoing_a_change_for_the_fleet_is_for_the_fleet(join: Join, log: Log) -> None:
    async with join("a") as a, join("b") as b:
        await b.change([put(7, "local")], BOB)
        await a.change([put(9)], ALICE, fleet=True)
        (change, *_) = await a.change([put(10)], ALICE, fleet=True)
        await settled(log)
        newest, _, _ = await b.audit()
        done = await b.revert(newest.id, BOB)
        assert (done.by, done.member, done.reason) == ("bob", "b", "undoes a change by alice on a")
        await settled(log)
        assert rates(a, b) == [9, 9]
        with pytest.raises(ConflictError):
            await a.revert(change.id, ALICE)
        assert (await a.revert(change.id, ALICE, dry_run=True, force=True)).id == 0
        assert rates(a, b) == [9, 9]


async def test_the_later_of_two_edits_wins_everywhere_and_in_the_audit_trail(
    join: Join, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with join("a") as a, join("b") as b, join("c") as c:
        both, waiting = trio.Event(), []
        write = FleetDataPath.write_fleet_edits

        async def late(self: FleetDataPath, *args: Any) -> bool:
            waiting.append(self)
            if len(waiting) == 2:
                both.set()
            await both.wait()
            return await write(self, *args)

        monkeypatch.setattr(FleetDataPath, "write_fleet_edits", late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(a.change, [put(9)], ALICE, fleet=True))
            nursery.start_soon(partial(b.change, [put(10)], BOB, fleet=True))
        await settled(log)
        assert len(set(rates(a, b, c))) == 1
        trails = [await each.audit() for each in (a, b, c)]
        for later, earlier in trails:
            assert rates(a) == [later.new and later.new["rate"]]
            assert later.details == (
                f"overrides the edit by {earlier.by} on {earlier.member}, which was made at the same time",
            )
            assert earlier.details == ()


async def test_a_condition_holds_also_against_other_members(join: Join, log: Log) -> None:
    async with join("a") as a, join("b") as b:
        etag = a.limit("topic", "orders").etag
        await b.change([put(9)], BOB, fleet=True)
        await settled(log)
        with pytest.raises(PreconditionError):
            await a.change([put(10, if_match=etag)], ALICE, fleet=True)
        assert rates(a, b) == [9, 9]


async def test_without_redis_nothing_is_changed_and_the_error_names_the_remedy(join: Join, log: Log) -> None:
    async with join("a") as a:
        log.fault = FleetError("connection refused; start Redis, or correct fleet.url")
        with pytest.raises(
            FleetEditError, match=r"start Redis, or correct fleet.url; nothing was changed\. To edit only this member"
        ):
            await a.change([put(9)], ALICE, fleet=True)
        log.fault = FleetError("it has not answered", sent=True)
        with pytest.raises(FleetEditError, match="it is unknown whether the edit was made"):
            await a.change([put(9)], ALICE, fleet=True)
        assert (rates(a), await a.audit()) == ([5], ())
        assert (await a.change([put(9)], ALICE, fleet=True, dry_run=True))[0].id == 0
        await a.change([put(8)], ALICE)
        assert rates(a) == [8]


async def test_settings_impossible_for_a_fleet_are_refused(join: Join, open_edits: Any) -> None:
    async with open_edits() as alone:
        with pytest.raises(InvalidError, match=r"not in a fleet.*omit fleet=1 \(--fleet\)"):
            await alone.change([put(9)], ALICE, fleet=True)
    async with join("a") as a:
        with pytest.raises(InvalidError, match="volatile"):
            await a.change([put(9)], ALICE, fleet=True, volatile=True)
        with pytest.raises(InvalidError, match="rate"):
            await a.change([put(-1)], ALICE, fleet=True)
        with pytest.raises(InvalidError, match="at most 1000 limits"):
            await a.change([put(9, f"t{each}") for each in range(1001)], ALICE, fleet=True)
        long = SetLimit(kind="topic", name="x", limit={"rate": 1, "days": ["mon"] * 5000})
        with pytest.raises(InvalidError, match="must not exceed 16384 bytes"):
            await a.change([long], ALICE, fleet=True)
        assert await a.audit() == ()


async def test_a_member_that_starts_without_redis_has_the_last_known(join: Join, log: Log, tmp_path: Path) -> None:
    async with join("a", tmp_path) as a:
        await a.change([put(9)], ALICE, fleet=True)
    log.fault = FleetError("away")
    async with join("b", tmp_path) as b:
        assert rates(b) == [9]
    log.fault = None
    async with join("c", tmp_path) as c:
        assert [each[:2] for each in await told(c)] == [("alice", "a")]


async def test_a_member_that_was_unreachable_applies_missed_edits_once(join: Join, tmp_path: Path, log: Log) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with join("a", tmp_path / "a") as a:
        async with join("b", tmp_path / "b") as b:
            await a.change([put(9)], ALICE, fleet=True)
            await settled(log)
            await b.change([put(3, "mine")], BOB)
        await a.change([put(10), put(11), put(4, "new")], ALICE, fleet=True)
        await a.change([UnsetLimit(kind="topic", name="new")], ALICE, fleet=True)
        async with join("b", tmp_path / "b") as b:
            assert rates(a, b) == [11, 11]
            assert rates(b, name="mine") == [3]
            # Only the final result.
            assert await told(b) == [("alice", "a", "set", 9), ("bob", "", "set", 3), ("alice", "a", "set", 11)]
        async with join("b", tmp_path / "b") as b:
            assert len(await told(b)) == 3


async def test_an_edit_of_one_member_stays_until_the_next_for_the_fleet(join: Join, tmp_path: Path, log: Log) -> None:
    async with join("a") as a:
        async with join("b", tmp_path) as b:
            await a.change([put(9)], ALICE, fleet=True)
            await settled(log)
            await b.change([put(3)], BOB)
        async with join("b", tmp_path) as b:
            assert rates(a, b) == [9, 3]
            await b.change([UnsetLimit(kind="topic", name="orders")], BOB)
        async with join("b", tmp_path) as b:
            assert rates(a, b) == [9, 5]
            await a.change([put(10)], ALICE, fleet=True)
            await settled(log)
            assert rates(a, b) == [10, 10]


async def test_edits_for_the_fleet_expire_at_each_member(join: Join, clock: Any, log: Log) -> None:
    async with join("a") as a, join("b") as b:
        await a.change([put(9, ttl_s=60)], ALICE, fleet=True)
        await settled(log)
        clock.advance(61)
        # Each edit reads the clock.
        await b.change([put(1, "x")], BOB, fleet=True)
        await settled(log)
        assert rates(a, b) == [5, 5]
        async with join("c") as c:
            assert rates(c) == [5]
            assert [each[3] for each in await told(c)] == [1]


async def test_an_edit_that_redis_has_lost_at_once_is_in_doubt(
    join: Join, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with join("a") as a:
        write = FleetDataPath.write_fleet_edits

        async def write_and_lose(*args: Any) -> bool:
            done = await write(*args)
            log.lose()
            return done

        monkeypatch.setattr(FleetDataPath, "write_fleet_edits", write_and_lose)
        with pytest.raises(FleetEditError, match="it is unknown whether the edit was made"):
            await a.change([put(9)], ALICE, fleet=True)


async def test_members_restore_lost_data_of_redis(join: Join, log: Log, tmp_path: Path) -> None:
    async with join("a") as a, join("b", tmp_path) as b:
        await a.change([put(9), put(8, "x")], ALICE, fleet=True)
        await settled(log)
        log.lose()
        await settled(log)
        await a.change([put(10)], ALICE, fleet=True)
        await settled(log)
        async with join("c") as c:
            assert rates(a, b, c) == [10, 10, 10]
            assert rates(a, b, c, name="x") == [8, 8, 8]
            assert ("alice", "a", "set", 8) in await told(c)
        # Nothing was applied twice.
        assert len(await told(a)) == len(await told(b)) == 3


async def test_of_a_diverging_log_all_follow_the_log(join: Join, log: Log) -> None:
    async with join("a") as a, join("b") as b:
        await a.change([put(9)], ALICE, fleet=True)
        await settled(log)
        before = dict(log.fields)
        await a.change([put(10), put(7, "x")], ALICE, fleet=True)
        await settled(log)
        # A replica without the last edits becomes the primary, and another member edits it before these notice.
        other = Entry(
            "limits/topic/orders",
            ActiveEdit(
                change_id=0, at=AT, by="c", address="", reason="", limit={"rate": 11}, fleet=ForFleet("f", 5, "c")
            ),
        )
        log.fields = before | {b"5": msgspec.json.encode(other), b"": b"5 c"}
        log.notify()
        await settled(log)
        assert rates(a, b) == [11, 11]
        assert rates(a, b, name="x") == rates(a, b, name="y")


async def test_an_undone_edit_does_not_come_back_from_a_long_unreachable_member(
    join: Join, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_log, "KEPT", 3)
    async with join("a") as a:
        async with join("b", tmp_path) as b:
            await a.change([put(9), put(8, "x")], ALICE, fleet=True)
            await settled(log)
            assert rates(b) == [9]
        await a.change([UnsetLimit(kind="topic", name="orders")], ALICE, fleet=True)
        for each in range(9):
            await a.change([put(each, "y")], ALICE, fleet=True)
        # The last three, the latest of x, and the version.
        assert len(log.fields) == 5
        async with join("b", tmp_path) as b:
            assert rates(a, b) == [5, 5]
            assert rates(a, b, name="x") == [8, 8]
    assert len(log.fields) == 5


async def test_entries_of_a_stranger_are_ignored_and_warned_of(join: Join, log: Log, logged: list[Any]) -> None:
    good = msgspec.to_builtins(
        Entry("limits/topic/x", ActiveEdit(change_id=0, at=AT, by="z", address="", reason="", limit={"rate": 4}))
    )
    path, edit = good
    bad: list[Any] = [
        "text",
        [path],
        [path, edit | {"at": "yesterday"}],
        [path, edit | {"at": "2026-11-21T11:00:00"}],
        [path, edit | {"expires_at": "2026-11-21T11:00:00"}],
        [path, edit | {"limit": 5}],
        [path, edit | {"reason": "x" * 1001}],
        [path, edit | {"by": "x" * 256}],
        [path, edit | {"limiting": True}],
        ["fleet/limits/topic/x", edit],
        ["limits/topic/", edit],
        [path, edit | {"limit": {"rate": "x" * 20_000}}],
    ]
    log.fields = {str(at).encode(): msgspec.json.encode(each) for at, each in enumerate(bad, 1)}
    log.fields |= {b"x": b"{}", b"-1": msgspec.json.encode(good), b"": b"nonsense", b"30": b"\xff[[[["}
    log.fields |= {b"20": msgspec.json.encode([path, edit | {"limit": {"rate": -1, "colour": "red"}}])}
    log.fields |= {b"21": msgspec.json.encode(["limits/planet/mars", edit]), b"22": msgspec.json.encode(good)}
    log.fields |= {b"19": msgspec.json.encode(["switches/planet", edit | {"limit": None, "limiting": False}])}
    async with join("a") as a:
        assert rates(a, name="x") == [4]
        assert len([line for line in logged if "ignored an invalid entry" in line["event"]]) == len(bad) + 3
        assert [line for line in a.warnings() if "planet" in line] != []
        (change,) = await a.change([put(9)], ALICE, fleet=True)
        assert change.new is not None
        assert rates(a) == [9]
        assert log.version == b"23 a"


async def test_edits_of_another_fleet_stay_there(join: Join, log: Log, tmp_path: Path) -> None:
    async with join("a", tmp_path) as a:
        await a.change([put(9)], ALICE, fleet=True)
    log.lose()
    async with join("a", tmp_path, fleet="g") as a:
        assert rates(a) == [9]
        assert log.fields == {}
        await a.change([put(10)], ALICE, fleet=True)
        assert log.version == b"1 a"


async def test_a_member_reads_the_log_only_when_it_has_changed(join: Join, log: Log) -> None:
    async with join("a") as a, join("b"):
        reads = log.reads
        for _ in range(5):
            log.notify()
            await settled(log)
        assert log.reads == reads
        await a.change([put(9)], ALICE, fleet=True)
        await settled(log)
        assert log.reads <= reads + 3


@pytest.mark.parametrize("seed", range(3))
async def test_many_edits_from_random_members_end_the_same_at_all(join: Join, log: Log, seed: int) -> None:
    walk = random.Random(seed)
    made: list[Change] = []

    async def edit(member: EditService, number: int) -> None:
        for _ in range(walk.randrange(4)):
            await trio.lowlevel.checkpoint()
        name = walk.choice(("orders", "x", "y"))
        if walk.random() < 0.2 and member.limit("topic", name).edit is not None:
            what: Any = UnsetLimit(kind="topic", name=name)
        else:
            what = put(number, name)
        try:
            made.extend(await member.change([what], Author(f"n{number}"), fleet=True))
        except InvalidError:
            raise
        except Exception as error:  # noqa: BLE001 - undone by another member meanwhile
            assert "has no edit" in str(error)  # noqa: PT017

    async with join("a") as a, join("b") as b, join("c") as c:
        members = (a, b, c)
        for begin in range(0, 60, 5):
            async with trio.open_nursery() as nursery:
                for number in range(begin, begin + 5):
                    nursery.start_soon(edit, walk.choice(members), number)
            if walk.random() < 0.1:
                await settled(log)
                log.lose()
        await settled(log)
        for name in ("orders", "x", "y"):
            assert len(set(rates(*members, name=name))) == 1
        trails = [[(*who, action == "set" and rate) for *who, action, rate in await told(each)] for each in members]
        assert trails[0] == trails[1] == trails[2]
        assert sorted(each[0] for each in trails[0]) == sorted(each.by for each in made)


async def test_permits_that_redis_did_not_take_back_are_returned_later(
    join: Join, log: Log, mock_clock: MockClock
) -> None:
    async with join("a") as a:
        await a.change([put(9)], ALICE, fleet=True)
        log.fail_writes = True
        log.lose()
        await log.failed.wait()
        assert log.fields == {}
        log.fail_writes = False
        await wait_all_tasks_blocked()
        mock_clock.jump(1)
        await settled(log)
        assert len(log.fields) == 2
