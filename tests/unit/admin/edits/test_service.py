from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from admin.config.rule_fields import RuleReader
from admin.config.rulebook import Rulebook
from admin.edits.model import (
    ActiveEdit,
    Author,
    Change,
    ConflictError,
    Edit,
    InvalidError,
    MissingError,
    PatchLimit,
    PreconditionError,
    SetLimit,
    SetSwitch,
    StoreError,
    UnsetLimit,
    UnsetSwitch,
)
from admin.edits.service import EditService
from admin.edits.store import Store
from limiter.rules.resource import Resource

OpenEdits = Callable[..., AbstractAsyncContextManager[EditService]]
ALICE, BOB = Author("alice", "10.0.0.1:5"), Author("bob")
FILE = '[[limits]]\nkind = "topic"\nname = "orders"\nrate = 5\nburst_s = 3\n'


def put(name: str = "orders", rate: Any = 9, kind: str = "topic", **more: Any) -> SetLimit:
    limit = {"rate": rate, **more.pop("limit", {})}
    return SetLimit(kind=kind, name=name, limit=limit, **more)


def rate(edits: EditService, name: str = "orders", kind: str = "topic") -> float | None:
    return edits.rule_set.match(Resource(kind, name)).rate_per_s


# --- limits


async def test_an_edit_holds_once_it_is_answered_and_replaces_the_whole_limit(
    open_edits: OpenEdits, applied: Any
) -> None:
    async with open_edits(FILE) as edits:
        (change,) = await edits.change([put(reason="why")], ALICE)
        assert (applied.rule_sets[-1].match(Resource("topic", "orders")).rate_per_s, rate(edits)) == (9, 9)
        assert (change.id, change.by, change.address, change.reason) == (1, "alice", "10.0.0.1:5", "why")
        assert change.old is not None
        assert change.new is not None
        assert (change.old["rate"], change.old["burst_s"]) == (5, 3)
        assert (change.new["rate"], change.new["burst_s"]) == (9, 1)
        entry = edits.limit("topic", "orders")
        assert entry.configured is not None
        assert (entry.limit["rate"], entry.configured.limit["rate"], entry.source) == (9, 5, "live edit 1")
        assert entry.configured.source.endswith("sluice.toml:1")


def patch(name: str = "orders", kind: str = "topic", *, limit: dict[str, Any], **more: Any) -> PatchLimit:
    return PatchLimit(kind=kind, name=name, limit=limit, **more)


RICH = FILE + 'bytes_per_s = 1000\nfair_by = "client"\nbusy_code = 215\n'


async def test_a_patch_changes_its_fields_and_keeps_the_rest(open_edits: OpenEdits) -> None:
    async with open_edits(RICH) as edits:
        await edits.change([patch(limit={"rate": 900})], ALICE)
        limit = edits.limit("topic", "orders").limit
        assert (limit["rate"], limit["burst_s"], limit["bytes_per_s"], limit["fair_by"], limit["busy_code"]) == (
            *(900, 3),
            *(1000, "client", 215),
        )
        await edits.change([patch(limit={"bytes_per_s": None, "burst_s": 2})], ALICE)
        limit = edits.limit("topic", "orders").limit
        assert (limit["rate"], limit["burst_s"], limit["bytes_per_s"], limit["fair_by"]) == (900, 2, None, "client")


@pytest.mark.parametrize(
    ("kind", "name", "action", "max_delay_s"),
    [
        ("topic", "pay", "reject", 2),
        ("retry_group", "g", "delay", 2),
        ("subscription", "g@t", "delay", 10),
        ("client", "10.0.0.1", "reject", 2),
        ("total", "subscription:g@*", "delay", 10),
    ],
)
async def test_a_patch_without_a_matching_rule_equals_a_put(
    open_edits: OpenEdits, kind: str, name: str, action: str, max_delay_s: float
) -> None:
    async with open_edits(FILE) as edits:
        await edits.change([patch(name, kind, limit={"rate": 9})], ALICE)
        patched = edits.limit(kind, name).limit
        await edits.change([UnsetLimit(kind=kind, name=name)], ALICE)
        await edits.change([put(name, 9, kind)], ALICE)
        assert patched == edits.limit(kind, name).limit
        assert (patched["rate"], patched["action"], patched["max_delay_s"]) == (9, action, max_delay_s)


async def test_a_patch_that_switches_the_spool_keeps_the_longest_delay_if_it_was_given(open_edits: OpenEdits) -> None:
    async with open_edits(FILE) as edits:

        async def after(**fields: Any) -> tuple[Any, Any]:
            await edits.change([patch("pay", limit=fields)], ALICE)
            limit = edits.limit("topic", "pay").limit
            return limit["spool"], limit["max_delay_s"]

        assert await after(rate=9, action="delay", max_delay_s=30) == (None, 30)
        assert await after(spool=True) == (True, 30)
        assert await after(spool=True, max_delay_s=60) == (True, 60)
        assert await after(spool=True, rate=10) == (True, 60)
        assert await after(spool=False) == (False, 60)
        assert await after(spool=None, max_delay_s=None) == (None, 2)


async def test_a_patch_keeps_the_end_of_the_edit_unless_it_has_one(open_edits: OpenEdits, clock: Any) -> None:
    async with open_edits(FILE) as edits:
        (first,) = await edits.change([put(ttl_s=60)], ALICE)
        clock.advance(20)
        (kept,) = await edits.change([patch(limit={"rate": 10})], ALICE)
        assert kept.expires_at == first.expires_at
        (longer,) = await edits.change([patch(limit={}, ttl_s=60)], ALICE)
        assert longer.expires_at > (kept.expires_at or "")
        (for_good,) = await edits.change([patch(limit={}, ttl_s=None)], ALICE)
        assert (for_good.expires_at, for_good.before and for_good.before.expires_at) == (None, longer.expires_at)
        assert rate(edits) == 10


WIDE = '[[limits]]\nkind = "topic"\nname = "ord*"\nrate = 50\n[defaults.topic]\nrate = 70\n'


def sides(change: Change) -> list[tuple[Any, str]]:
    """Return the rates before a change and since, each with the rule it is inherited from."""
    return [((change.old or {}).get("rate"), change.old_rule), ((change.new or {}).get("rate"), change.new_rule)]


async def test_a_change_names_the_earlier_limit_and_its_rule(open_edits: OpenEdits) -> None:
    ord_, rest, own = (50, "topic:ord*"), (70, "topic:*"), (9, "")
    async with open_edits(WIDE) as edits:
        changes = await edits.change([put(), put("other"), put("*"), put("topic:a*", kind="total")], ALICE)
        assert [sides(each)[0] for each in changes] == [ord_, rest, (70, ""), (None, "")]
        assert [sides(each)[1] for each in changes] == [own] * 4
        (again,) = await edits.change([put(rate=1)], ALICE)
        assert sides(again) == [own, (1, "")]
        unset = UnsetLimit(kind="topic", name="orders")
        # Edits of one batch refer to the state after it.
        together = await edits.change([unset, put("orde*", 8)], ALICE, dry_run=True)
        assert [sides(each) for each in together] == [[(1, ""), (8, "topic:orde*")], [ord_, (8, "")]]
        (done,) = await edits.change([unset], ALICE)
        assert sides(done) == sides((await edits.audit())[0]) == [(1, ""), ord_]


async def test_an_edit_alone_leaves_the_built_in_rates_of_everything_else(open_edits: OpenEdits) -> None:
    async with open_edits() as edits:
        await edits.change([put()], ALICE)
        assert (rate(edits), rate(edits, "other"), rate(edits, "g", "retry_group")) == (9, 2000, 100)
        await edits.change([put("*", "unlimited")], ALICE)
        assert (rate(edits), rate(edits, "other"), rate(edits, "g", "retry_group")) == (9, None, 100)


async def test_an_edit_with_hours_takes_only_its_hours(open_edits: OpenEdits, clock: Any) -> None:
    async with open_edits(FILE) as edits:
        await edits.change([put(limit={"between": "13:00-14:00"})], ALICE)
        assert edits.limit("topic", "orders").limit["rate"] == 5
        etag, entries = edits.etag, edits.limits()
        assert edits.limits() is entries
        clock.advance(3600)
        assert edits.limit("topic", "orders").limit["rate"] == 9
        assert edits.etag != etag
        clock.advance(3600)
        assert edits.limit("topic", "orders").limit["rate"] == 5
        assert edits.etag == etag


async def test_all_spellings_of_a_name_are_one_limit(open_edits: OpenEdits) -> None:
    async with open_edits() as edits:
        await edits.change([put("[o]rders", 5)], ALICE)
        (change,) = await edits.change([put("orders", 6)], ALICE)
        assert (change.target, change.before and change.before.change_id) == ("limits/topic/orders", 1)
        await edits.change([put("a[*]b", 7)], ALICE)
        assert (rate(edits, "a*b"), edits.limit("topic", "a[*]b").exact) == (7, True)
        await edits.change([put("::ffff:10.0.0.1", 7, "client")], ALICE)
        assert edits.limit("client", "10.0.0.1").limit["rate"] == 7


async def test_of_equally_literal_patterns_the_latest_edit_wins_also_after_a_restart(
    open_edits: OpenEdits, state_dir: Path
) -> None:
    async with open_edits(directory=state_dir) as edits:
        await edits.change([put("ab*", 1)], ALICE)
        await edits.change([put("*yz", 3)], ALICE)
        assert rate(edits, "abyz") == 3
    async with open_edits(directory=state_dir) as edits:
        assert (rate(edits, "abyz"), rate(edits, "abc")) == (3, 1)


async def test_the_limit_of_a_name_without_a_rule_of_its_own_is_that_which_holds_for_it(open_edits: OpenEdits) -> None:
    async with open_edits() as edits:
        entry = edits.limit("topic", "whatever")
        assert (entry.limit["rate"], entry.rule, entry.configured, entry.edit) == (2000, "topic:*", None, None)
        assert entry not in edits.limits()
        for kind, name in (("topics", "a"), ("topic", ""), ("total", "a"), ("total", "topic:a"), ("client", "x")):
            with pytest.raises(MissingError):
                edits.limit(kind, name)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (put(limit={"break_s": 2}), "break_s"),
        (put(limit={"name": "x"}), "name"),
        (put(limit={"between": "9-10"}), "between"),
        (put("%RETRY%g"), "name"),
        (put("x" * 300), "name"),
        (put("other", 1, "listener"), "name"),
        (put(kind="topics"), "kind"),
        (patch(limit={"burst_s": -1}), "burst_s"),
        (patch(kind="topics", limit={"rate": 1}), "kind"),
        (SetSwitch(kind="topics", limiting=False), "kind"),
    ],
)
async def test_a_wrong_edit_names_its_field_and_undoes_those_with_it(
    open_edits: OpenEdits, edit: Edit, field: str
) -> None:
    async with open_edits(FILE) as edits:
        etag = edits.etag
        with pytest.raises(InvalidError) as caught:
            await edits.change([put("good", 1), edit], ALICE)
        assert {(problem.field, problem.edit) for problem in caught.value.problems} == {(field, 1)}
        assert (edits.etag, rate(edits, "good")) == (etag, None)


async def test_a_dry_run_prints_the_same_and_changes_nothing(open_edits: OpenEdits, applied: Any) -> None:
    async with open_edits(FILE) as edits:
        etag = edits.etag
        (change,) = await edits.change([put()], ALICE, dry_run=True)
        assert (change.id, change.new and change.new["rate"]) == (0, 9)
        assert (edits.etag, rate(edits), applied.rule_sets, await edits.audit()) == (etag, 5, [], ())


# --- conflicts


async def test_of_two_writers_with_the_same_etag_the_second_gets_the_firsts_change(open_edits: OpenEdits) -> None:
    async with open_edits(FILE) as edits:
        etag = edits.limit("topic", "orders").etag
        await edits.change([put(rate=1, if_match=etag)], ALICE)
        with pytest.raises(
            PreconditionError, match=r"alice changed it at 2026-11-21T12:00:00.000Z, change 1"
        ) as caught:
            await edits.change([put(rate=2, if_match=etag)], BOB)
        assert caught.value.etag == edits.limit("topic", "orders").etag
        await edits.change([put(rate=3, if_match=caught.value.etag)], BOB)
        assert rate(edits) == 3


async def test_if_match_star_wants_an_edit_and_if_none_match_wants_none(open_edits: OpenEdits) -> None:
    async with open_edits(FILE) as edits:
        with pytest.raises(PreconditionError):
            await edits.change([put(if_match="*")], ALICE)
        await edits.change([put(if_none_match=True)], ALICE)
        await edits.change([put(if_match="*")], ALICE)
        with pytest.raises(PreconditionError, match="already has an edit"):
            await edits.change([put(if_none_match=True)], ALICE)


# --- edits with an end


async def test_an_edit_that_expires_reverts_to_the_configuration_whatever_it_replaced(
    open_edits: OpenEdits, clock: Any, autojump_clock: object
) -> None:
    async with open_edits(FILE) as edits:
        await edits.change([put(rate=7)], ALICE)
        await edits.change([put(rate=8, ttl_s=10)], ALICE)
        (change,) = await edits.change([put(rate=9, ttl_s=60)], ALICE)
        assert (change.expires_at, rate(edits)) == ("2026-11-21T12:01:00.000Z", 9)
        with edits.changes() as changes:
            clock.advance(60)
            expired = await changes.receive()
        assert (expired.action, expired.by, expired.old and expired.old["rate"]) == ("expire", "sluice", 9)
        assert (rate(edits), edits.limit("topic", "orders").edit) == (5, None)


async def test_a_volatile_edit_that_expires_uncovers_the_stored_one(
    open_edits: OpenEdits, clock: Any, state_dir: Path
) -> None:
    async with open_edits(FILE, directory=state_dir) as edits:
        await edits.change([put(rate=7)], ALICE)
        await edits.change([put(rate=8, ttl_s=10)], ALICE, volatile=True)
        clock.advance(11)
        await edits.change([put("other", 1)], ALICE)
        assert rate(edits) == 7


async def test_edit_that_expired_while_down_is_never_active_and_is_reported(
    open_edits: OpenEdits, clock: Any, applied: Any, state_dir: Path
) -> None:
    async with open_edits(FILE, directory=state_dir) as edits:
        await edits.change([put(rate=7), put(rate=8, ttl_s=10), put("x", 1, ttl_s=10)], ALICE)
        await edits.change([SetSwitch(kind="all", limiting=False, ttl_s=10)], ALICE)
    clock.advance(10)
    async with open_edits(FILE, directory=state_dir) as edits:
        assert (rate(edits), rate(edits, "x"), edits.rule_set.enabled) == (5, None, True)
        await trio.testing.wait_all_tasks_blocked(0.05)
        told = await edits.audit(by="sluice")
        assert sorted(change.target for change in told) == ["limits/topic/orders", "limits/topic/x", "switches/all"]
        assert all(each.enabled for each in applied.rule_sets)
    async with open_edits(FILE, directory=state_dir) as edits:
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(await edits.audit(by="sluice")) == 3


# --- switches


# --- undoing


async def test_reverting_a_changed_limit_is_a_conflict_unless_forced(open_edits: OpenEdits) -> None:
    async with open_edits(FILE) as edits:
        await edits.change([put(rate=7)], ALICE)
        await edits.change([put(rate=8)], ALICE)
        await edits.change([put("other", 1)], ALICE)
        with pytest.raises(ConflictError, match="change 2 has since changed limits/topic/orders"):
            await edits.revert(1, BOB)
        dry = await edits.revert(1, BOB, force=True, dry_run=True)
        assert (dry.id, rate(edits)) == (0, 8)
        await edits.revert(1, BOB, force=True)
        assert rate(edits) == 5


async def test_only_edits_can_be_reverted(open_edits: OpenEdits, clock: Any, autojump_clock: object) -> None:
    async with open_edits(FILE) as edits:
        with pytest.raises(MissingError, match="change 7 does not exist"):
            await edits.revert(7, ALICE)
        await edits.change([put(ttl_s=1)], ALICE)
        clock.advance(2)
        await edits.change([put("x", 1)], ALICE)
        with pytest.raises(MissingError, match="change 2 cannot be undone"):
            await edits.revert(2, ALICE)


# --- the disk


AWAY = "it was moved or deleted; restore it, or restart Sluice"


class Disk:
    def __init__(self, directory: Path) -> None:
        self._directory, self._away = directory, directory.with_name("away")

    def breaks(self) -> None:
        self._directory.rename(self._away)

    def is_mended(self) -> None:
        self._away.rename(self._directory)


@pytest.fixture
def disk(state_dir: Path) -> Disk:
    return Disk(state_dir)


async def test_a_broken_disk_refuses_edits_but_not_volatile_ones_and_works_again_when_it_is_mended(
    open_edits: OpenEdits, state_dir: Path, disk: Disk
) -> None:
    async with open_edits(FILE, directory=state_dir) as edits:
        await edits.change([put(rate=7)], ALICE)
        etag = edits.etag
        disk.breaks()
        with structlog.testing.capture_logs() as logged:
            for _ in range(3):
                with pytest.raises(StoreError, match=r"it was moved or deleted.*volatile=1"):
                    await edits.change([put(rate=8)], ALICE)
            with pytest.raises(InvalidError):
                await edits.change([put(rate=-8)], ALICE)
        assert [entry["log_level"] for entry in logged] == ["error"]
        assert (edits.etag, rate(edits), edits.persistence.error) == (etag, 7, AWAY)
        (change,) = await edits.change([put(rate=9)], ALICE, volatile=True)
        assert (change.id, change.durable, rate(edits)) == (2, False, 9)
        assert [each.id for each in await edits.audit()] == [2, 1]
        disk.is_mended()
        (change,) = await edits.change([put("x", 1)], ALICE)
        assert (change.id, edits.persistence.error) == (3, None)
        assert [each.id for each in await edits.audit()] == [3, 2, 1]
    async with open_edits(FILE, directory=state_dir) as edits:
        assert (rate(edits), rate(edits, "x")) == (7, 1)


async def test_an_edit_unknown_to_the_configuration_is_kept_without_effect(
    open_edits: OpenEdits, state_dir: Path
) -> None:
    async with open_edits(directory=state_dir) as edits:
        await edits.change([put("default", 5, "listener"), put("x", 1)], ALICE)
    store = Store(state_dir)
    book = edits._limits.rulebook
    elsewhere = Rulebook(RuleReader(book.reader.protocols, ["vip"]), [book.configured], enabled=True)
    edits = EditService(elsewhere, store)
    (warning,) = edits.warnings()
    assert warning.startswith("the edit of listener default has no effect: name: rule listener:default")
    assert rate(edits, "x") == 1
    store.close()
    async with open_edits(directory=state_dir) as edits:
        assert edits.warnings() == []
        assert rate(edits, "default", "listener") == 5


# --- errors


async def test_a_configuration_is_applied_on_a_broken_disk_and_reported_later(
    open_edits: OpenEdits, make_rulebook: Callable[..., Rulebook], state_dir: Path, disk: Disk
) -> None:
    held: list[bool] = []
    async with open_edits(FILE, directory=state_dir) as edits:
        disk.breaks()
        await edits.put_rulebook(make_rulebook("", "topic:orders=7/s"), ALICE, ["orders"], lambda: held.append(True))
        assert (rate(edits), held) == (7, [True])
        disk.is_mended()
        await edits.change([put("other")], BOB)
        assert [(each.id, each.action) for each in await edits.audit()] == [(2, "set"), (1, "reload")]


async def test_reload_completes_even_if_the_caller_leaves(
    open_edits: OpenEdits, make_rulebook: Callable[..., Rulebook]
) -> None:
    held: list[bool] = []
    async with open_edits(FILE) as edits:
        async with trio.open_nursery() as nursery:
            rulebook = make_rulebook("", "topic:orders=7/s")
            nursery.start_soon(edits.put_rulebook, rulebook, ALICE, ["orders"], lambda: held.append(True))
            await trio.testing.wait_all_tasks_blocked(0)
            nursery.cancel_scope.cancel()
        await edits.change([put("other")], BOB)
        assert (rate(edits), held) == (7, [True])


async def test_edits_that_are_saved_but_not_in_force_are_named_and_apply_after_a_restart(
    open_edits: OpenEdits, applied: Any, state_dir: Path
) -> None:
    async with open_edits(directory=state_dir) as edits:
        applied.fails = True
        with structlog.testing.capture_logs() as logged, pytest.raises(RuntimeError, match="no data path"):
            await edits.change([put("orders", 7)], ALICE)
    assert [entry["changes"] for entry in logged if "changes" in entry] == [[1]]
    async with open_edits(directory=state_dir) as edits:
        assert rate(edits) == 7


# --- the log


def lines(logged: list[Any], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(line.get(key) for key in ("event", *keys)) for line in logged]


async def test_every_change_is_logged_with_author_object_before_and_after(open_edits: OpenEdits, clock: Any) -> None:
    async with open_edits(FILE) as edits:
        with structlog.testing.capture_logs() as logged:
            (change,) = await edits.change([put(reason="launch", limit={"burst_s": 2}, ttl_s=60)], ALICE)
            await edits.change([SetSwitch(kind="all", limiting=False)], BOB)
            await edits.change([UnsetSwitch(kind="all")], BOB)
            clock.advance(61)
            await edits.change([put("other")], BOB)
            await edits.revert(3, ALICE, reason="oops")
            await edits.change([put("never")], BOB, dry_run=True)
    assert lines(logged, "action", "what", "before", "after", "fields", "by", "address", "reason") == [
        ("limit changed", "set", "topic orders", "5/s", "9/s", "burst_s 3 -> 2", "alice", "10.0.0.1:5", "launch"),
        ("switch changed", "set", "switch all", "on", "off", None, "bob", None, None),
        ("switch changed", "unset", "switch all", "off", "on", None, "bob", None, None),
        (
            *("edit expired", "expire", "topic orders", "9/s", "5/s", "burst_s 2 -> 3", "sluice", None),
            f"change {change.id} has expired",
        ),
        ("limit changed", "set", "topic other", "none", "9/s", None, "bob", None, None),
        ("switch changed", "revert of 3", "switch all", "on", "off", None, "alice", "10.0.0.1:5", "oops"),
    ]
    assert (logged[0]["change"], logged[0]["until"]) == (change.id, change.expires_at)


async def test_batch_is_logged_up_to_a_bound_with_the_rest_counted(open_edits: OpenEdits) -> None:
    async with open_edits(FILE) as edits:
        with structlog.testing.capture_logs() as logged:
            await edits.change([put(f"orders-{index}") for index in range(50)], ALICE)
    assert [line["what"] for line in logged[:-1]] == [f"topic orders-{index}" for index in range(20)]
    assert {key: logged[-1][key] for key in ("not_logged", "by", "first_change", "last_change")} == {
        "not_logged": 30,
        "by": "alice",
        "first_change": 21,
        "last_change": 50,
    }


def test_a_stored_edit_of_a_place_that_cannot_be_has_no_effect_and_is_named(make_rulebook: Any) -> None:
    store = Store(None)
    edit = ActiveEdit(change_id=1, at="", by="a", address="", reason="", limit={"rate": 5})
    store.commit([], {"limits/bogus": edit}, required=True)
    (warning,) = EditService(make_rulebook(FILE), store).warnings()
    assert warning.startswith("the edit of bogus has no effect: ")
