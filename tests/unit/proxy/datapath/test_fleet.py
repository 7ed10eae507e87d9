"""How a member's calls reach Redis, with a scripted Redis. The real one is in the integration tests."""

from __future__ import annotations

import errno
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from coredis import exceptions as errors
from fleet_bucket import FleetRedis
from trio.testing import MockClock

from limiter.deciding.limits import Caller, Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.control import FleetError
from proxy.datapath import fleet as module
from proxy.datapath.fleet import Fleet, FleetConfig, _reason
from proxy.stats.snapshot import FleetMember

CONFIG = FleetConfig(name="f", member="me", kind="server", nodes=[("h", 1)], url="redis://h:1")


def now_ns() -> int:
    return round(trio.current_time() * 1e9)


class Redis:
    """Answers like the script. ``fault`` replaces the answers to the next commands."""

    def __init__(self) -> None:
        self.bucket = FleetRedis()
        self.sent: list[list[tuple[str, list[Any]]]] = []
        self.opened = self.open = 0
        self.fault: Callable[[str], Any] | None = None
        self.knows_script = True
        self.delay_s = 0.0
        self.commands: list[tuple[str, list[str], list[Any]]] = []
        self.results: list[Any] = []
        self.log: dict[bytes, bytes] = {}
        self.limits: dict[str, bytes] = {}

    @asynccontextmanager
    async def connected(self, _config: FleetConfig, _attempt: int) -> AsyncGenerator[Redis]:
        self.opened += 1
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    @asynccontextmanager
    async def pipeline(self, **_how: bool) -> AsyncGenerator[Redis]:
        self.commands = []
        yield self
        self.sent.append([(name, args) for name, _, args in self.commands])
        await trio.sleep(self.delay_s)
        self.results = [self.answer(*command) for command in self.commands]

    def eval(self, script: str, keys: list[str], args: list[Any]) -> Any:
        assert "redis.call" in script
        if len(keys) == 1:
            return self.edits(args)
        return self.commands.append(("eval", keys, args))

    async def edits(self, args: list[Any]) -> int:
        """Append to the log of edits like ``edits.lua``, without removing."""
        await self.exchange()
        if args[0] != self.bucket.edits_version:
            return 0
        self.log = {each.encode(): value for each, value in zip(args[2::2], args[3::2], strict=True)}
        self.bucket.edits_version = self.log[b""]
        return 1

    async def exchange(self) -> None:
        await trio.sleep(self.delay_s)
        if self.fault is not None and (fault := self.fault("other")) is not None:
            raise fault

    def evalsha(self, sha: str, keys: list[str], args: list[Any]) -> None:
        assert len(sha) == 40
        self.commands.append(("evalsha", keys, args))

    def answer(self, name: str, keys: list[str], args: list[Any]) -> Any:
        if self.fault is not None and (fault := self.fault(name)) is not None:
            return fault
        self.knows_script = self.knows_script or name == "eval"
        if not self.knows_script:
            return errors.NoScriptError("No matching script.")
        return self.bucket.call(now_ns() // 1000, keys, args)

    async def hset(self, key: str, fields: dict[str, bytes]) -> None:
        await self.exchange()
        self.limits[key] = fields[""]

    async def expire(self, key: str, seconds: int) -> None:
        await self.exchange()

    async def hmget(self, key: str, names: list[str]) -> list[bytes | None]:
        await self.exchange()
        return [self.limits.get(key) for _ in names]

    async def hgetall(self, key: str) -> dict[bytes, bytes]:
        await self.exchange()
        if key == "sluice:{f}:edits":
            return self.log
        self.sent.append([("hgetall", [key])])
        members = self.bucket.hashes[key]
        return {each.encode(): struct.pack(">d", figures[0]) for each, figures in members.items() if each}


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> Redis:
    redis = Redis()
    monkeypatch.setattr(module, "_connected", redis.connected)
    return redis


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def limits_of(fleet: Fleet, names: int) -> Limits:
    limits = Limits(RuleSet([Rule("topic", "*", 100, fleet=True)]), fleet=fleet.member)
    for number in range(names):
        limits.decide(now_ns(), (Resource("topic", f"t{number}"),), Caller("c", "", "l"), [1], lambda: [1])
    return limits


async def test_it_begins_with_the_first_answer(redis: Redis, autojump_clock: MockClock) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    await fleet.begin()
    state = fleet.state()
    assert (redis.opened, redis.open) == (1, 0)
    assert state.last_contact_s_ago == 0
    assert (state.away_s, state.error, state.round_trips) == (None, "", 1)


@pytest.mark.parametrize("refuses", [True, False])
async def test_it_begins_without_redis_within_a_second(redis: Redis, autojump_clock: MockClock, refuses: bool) -> None:  # noqa: FBT001
    if refuses:
        redis.fault = lambda _: errors.ResponseError("OOM command not allowed")
    else:
        redis.delay_s = 60
    began = trio.current_time()
    fleet = Fleet(CONFIG, now_ns=now_ns)
    await fleet.begin()
    assert 0.4 <= trio.current_time() - began <= 1.1
    state = fleet.state()
    assert state.away_s is not None
    assert ("Redis is out of memory" if refuses else "no response within 0.5 s") in state.error
    assert redis.open == 0


async def test_an_unknown_script_is_sent_once_and_the_calls_keep_their_order(
    redis: Redis, autojump_clock: MockClock
) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    await fleet.begin()
    limits_of(fleet, 150)
    redis.sent, redis.knows_script = [], False
    with trio.move_on_after(0.3):
        await fleet.run()
    names = [[name for name, _ in commands] for commands in redis.sent]
    assert names[:3] == [["evalsha"] * 2, ["eval", "evalsha"], ["evalsha"] * 2]
    numbers = [args[1] for _, args in redis.sent[1]]
    assert numbers == sorted(numbers)
    assert fleet.state().failures == 0


async def test_a_late_round_trip_closes_its_client_and_the_next_has_another(
    redis: Redis, autojump_clock: MockClock
) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        await trio.sleep(0.1)
        assert (redis.opened, redis.open) == (1, 1)
        redis.delay_s = 1.2
        await trio.sleep(3)
        assert redis.opened >= 3
        assert fleet.state().away_s is not None
        redis.delay_s = 0.3
        await trio.sleep(2)
        assert fleet.state().away_s is None
        assert fleet.error == ""
        opened = redis.opened
        await trio.sleep(5)
        assert (redis.opened, redis.open) == (opened, 1)
        nursery.cancel_scope.cancel()
    assert redis.open == 0


async def test_a_call_that_fails_is_not_that_of_others(redis: Redis, autojump_clock: MockClock) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    await fleet.begin()
    limits_of(fleet, 150)
    faults = iter([None, errors.ResponseError("OOM command not allowed")])
    redis.fault = lambda _: next(faults, None)
    with trio.move_on_after(0.02):
        await fleet.run()
    assert fleet.error.startswith("Redis is out of memory")
    answered = [lease.share for lease in fleet.member._active]
    assert (answered.count(None), len(answered)) == (50, 150)
    assert fleet.member.next_ns() is not None


async def test_a_round_trip_that_is_cancelled_leaves_no_call_open(redis: Redis, autojump_clock: MockClock) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    redis.delay_s = 0.5
    with trio.move_on_after(0.1):
        await fleet.run()
    assert fleet.member.next_ns() is not None
    assert redis.open == 0


@pytest.mark.parametrize("method", ["ask", "take", "next_ns"])
async def test_a_fault_in_the_member_is_as_if_redis_were_away(
    redis: Redis, autojump_clock: MockClock, logged: list[Any], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    await fleet.begin()
    limits = limits_of(fleet, 1)

    def faulty(*_: Any) -> Any:
        raise ZeroDivisionError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        with monkeypatch.context() as patch:
            patch.setattr(fleet.member, method, faulty)
            await trio.sleep(1.4)
            assert fleet.state().failures >= 1
            assert fleet.state().away_s is not None
            decision = limits.decide(
                now_ns(), (Resource("topic", "t0"),), Caller("c", "", "l"), [1] * 50, lambda: [1] * 50
            )
            assert decision.admitted == 50
        await trio.sleep(2)
        assert (fleet.error, fleet.state().away_s) == ("", None)
        nursery.cancel_scope.cancel()
    assert "ZeroDivisionError" in str(logged)


async def test_it_logs_once_in_ten_seconds_and_when_it_is_over(
    redis: Redis, autojump_clock: MockClock, logged: list[Any]
) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    redis.fault = lambda _: errors.AuthenticationRequiredError("HELLO must be called with AUTH")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        await trio.sleep(10.8)
        redis.fault = None
        await trio.sleep(3)
        nursery.cancel_scope.cancel()
    assert [(line["log_level"], line.get("not_logged")) for line in logged] == [
        ("warning", 0),
        ("warning", 19),
        ("info", None),
        ("info", None),
    ]
    assert logged[0]["reason"] == "a password is required; set fleet.password_file or SLUICE_FLEET_PASSWORD"


async def test_a_password_that_is_asked_for_although_given_is_that_of_sentinels(
    redis: Redis, autojump_clock: MockClock
) -> None:
    fleet = Fleet(replace(CONFIG, kind="sentinel", password="x"), now_ns=now_ns)
    redis.fault = lambda _: errors.AuthenticationRequiredError("NOAUTH Authentication required.")
    with trio.move_on_after(1):
        await fleet.run()
    assert fleet.error.startswith("a Sentinel requires a password, which Sluice does not send")


async def test_members_that_join_and_leave_are_logged_once(
    redis: Redis, autojump_clock: MockClock, logged: list[Any]
) -> None:
    fleet, other = Fleet(CONFIG, now_ns=now_ns), Fleet(CONFIG, now_ns=now_ns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        await trio.sleep(2)
        with trio.move_on_after(5):
            await other.run()
        redis.bucket.flush()
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    here, there = fleet.member.member, other.member.member
    assert [(line["event"], line.get("member"), line["members"]) for line in logged] == [
        ("joined the fleet", None, [here]),
        ("joined the fleet", None, sorted([here, there])),
        ("fleet member joined", there, 2),
        ("fleet member left", there, 1),
    ]


async def test_members_with_other_limits_are_named_with_both_figures(
    redis: Redis, autojump_clock: MockClock, logged: list[Any]
) -> None:
    fleet, other = Fleet(CONFIG, now_ns=now_ns), Fleet(CONFIG, now_ns=now_ns)
    there, five = other.member.member, Rule("topic", "t0", 5, fleet=True)
    between, same = "the effective limit is between the two", "give all members the same limits"
    fleet.member.note_rules([five, Rule("topic", "local", 5)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        nursery.start_soon(other.run)
        for rules, text in (
            ([Rule("topic", "t0", 300, fleet=True)], f"rate of topic t0: 5/s here, 300/s on {there}; {between}"),
            ([Rule("topic", "t0", 5, 2, fleet=True)], f"burst of topic t0: 5 here, 10 on {there}; {between}"),
            ([], f"rate of topic t0: 5/s here, none on {there}; {same}"),
        ):
            other.member.note_rules([five])
            await trio.sleep(5)
            assert fleet.state(whole=False).disagreements == ()
            other.member.note_rules(rules)
            await trio.sleep(2)
            assert fleet.state(whole=False).disagreements == ()
            await trio.sleep(4.5)
            assert fleet.state(whole=False).disagreements == (f"members disagree about the {text}",)
            assert f"members disagree about the {text}" in [line["event"] for line in logged]
        assert redis.opened == 2
        nursery.cancel_scope.cancel()
    assert [line["event"] for line in logged].count("fleet disagreement resolved") == 4
    assert len([line for line in logged if line["log_level"] == "warning"]) == 6


async def test_operators_see_the_members_and_read_them_together(redis: Redis, autojump_clock: MockClock) -> None:
    fleet, other = Fleet(CONFIG, now_ns=now_ns), Fleet(CONFIG, now_ns=now_ns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.run)
        await trio.sleep(0.2)
        nursery.start_soon(fleet.run)
        await trio.sleep(0.1)
        limits_of(fleet, 2)
        await trio.sleep(0.1)
        redis.sent = []
        async with trio.open_nursery() as readers:
            for _ in range(5):
                readers.start_soon(fleet.read)
        state = await fleet.read()
        assert sum(commands[0][0] == "hgetall" for commands in redis.sent) == 1
        assert {each.member: each.is_this for each in state.members} == {
            fleet.member.member: True,
            other.member.member: False,
        }
        assert all(0 <= each.seen_s_ago <= 0.5 for each in state.members)
        assert [(each.kind, each.dimension, each.rate_per_s, each.share) for each in state.limits] == [
            ("topic", "messages", 100, 1)
        ] * 2
        assert (state.name, state.url, state.when_away, state.size) == ("f", "redis://h:1", "last", 2)
        nursery.cancel_scope.cancel()


async def test_operators_do_not_wait_for_long_and_see_the_last_known(redis: Redis, autojump_clock: MockClock) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        await trio.sleep(0.1)
        await fleet.read()
        redis.delay_s = 60
        await trio.sleep(3)
        began = trio.current_time()
        state = await fleet.read()
        assert trio.current_time() - began <= 1
        assert state.members == (FleetMember(fleet.member.member, pytest.approx(3.5, abs=1), is_this=True),)
        nursery.cancel_scope.cancel()


async def test_it_gives_everything_back_when_it_leaves(redis: Redis, autojump_clock: MockClock) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    await fleet.leave()
    assert redis.sent == []
    await fleet.begin()
    assert fleet.member.member in redis.bucket.hashes["sluice:{f}:members"]
    await fleet.leave()
    assert fleet.member.member not in redis.bucket.hashes["sluice:{f}:members"]


async def test_it_leaves_soon_also_if_redis_hangs(redis: Redis, autojump_clock: MockClock, logged: list[Any]) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    await fleet.begin()
    redis.delay_s, began = 60, trio.current_time()
    with trio.CancelScope() as scope:
        scope.cancel()
        await fleet.leave()
    assert trio.current_time() - began == pytest.approx(0.5)
    redis.delay_s, redis.fault = 0, lambda _: 1 / 0
    await fleet.leave()
    assert "could not return permits to the fleet on shutdown" in logged[-1]["event"]


async def test_the_size_of_the_fleet_is_known_to_a_start_without_redis(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", lambda write, _: write())
    config = replace(CONFIG, size_file=tmp_path / "fleet-size")
    for size in (1, 2, 3):
        fleet = Fleet(config, now_ns=now_ns)
        await fleet.begin()
        assert (tmp_path / "fleet-size").exists() is (size > 1)
    assert Fleet(config, now_ns=now_ns).member.members == 3
    (tmp_path / "fleet-size").write_text("x", encoding="utf-8")
    assert Fleet(config, now_ns=now_ns).member.members == 1


async def test_edits_go_over_the_same_connection_and_their_version_comes_with_the_calls(
    redis: Redis, autojump_clock: MockClock
) -> None:
    fleet, other = Fleet(CONFIG, now_ns=now_ns), Fleet(CONFIG, now_ns=now_ns)
    with pytest.raises(FleetError, match="Redis has not responded yet"):
        await fleet.read_edits()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        nursery.start_soon(other.run)
        await fleet.edits_changed(None)
        assert await fleet.read_edits() == {}
        with trio.move_on_after(5) as waiting:
            await other.edits_changed(b"")
        assert waiting.cancelled_caught
        began = trio.current_time()
        async with trio.open_nursery() as writing:
            writing.start_soon(fleet.write_edits, b"", {"1": b"x", "": b"1 me"}, [])
            await other.edits_changed(b"")
        assert trio.current_time() - began <= 0.6
        assert not await other.write_edits(b"", {"1": b"y", "": b"1 other"}, [])
        assert await other.read_edits() == {b"1": b"x", b"": b"1 me"}
        assert redis.opened == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_write_refused_by_redis_is_an_error_with_a_remedy(
    redis: Redis,
    autojump_clock: MockClock,
    hangs: bool,  # noqa: FBT001
) -> None:
    fleet = Fleet(CONFIG, now_ns=now_ns)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        await fleet.edits_changed(None)
        if hangs:
            redis.delay_s = 60
        else:
            redis.fault = lambda name: errors.AuthorizationError("no hgetall") if name == "other" else None
        began = trio.current_time()
        with pytest.raises(
            FleetError, match="no response within" if hangs else "the user lacks a permission"
        ) as caught:
            await fleet.read_edits()
        assert caught.value.sent
        assert trio.current_time() - began <= 1
        with pytest.raises(FleetError) as caught:
            await fleet.read_edits()
        assert not caught.value.sent or not hangs
        redis.delay_s, redis.fault = 0.0, None
        await trio.sleep(2)
        assert await fleet.read_edits() == {}
        nursery.cancel_scope.cancel()
    with pytest.raises(FleetError):
        await fleet.read_edits()
    assert redis.open == 0


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.AuthenticationFailureError("invalid"), "wrong user or password"),
        (
            errors.AuthorizationError("no permissions to run the 'evalsha' command"),
            "lacks a permission (no permissions",
        ),
        (
            errors.ReadOnlyError("You can't write against a read only replica."),
            "the server is a replica; use the primary",
        ),
        (errors.BusyLoadingError("Redis is loading the dataset in memory"), "still loading"),
        (errors.ResponseError("MISCONF Errors writing to the AOF file"), "refuses writes (MISCONF"),
        (errors.ResponseError("user_script:19: bad argument #2 to 'unpack'"), "choose another fleet.name"),
        (
            errors.ResponseError("The user executing the script can't run this command or subcommand"),
            "lacks a permission",
        ),
        (errors.ResponseError("DB index is out of range"), "the database does not exist"),
        (errors.ResponseError("This instance has cluster support disabled"), "does not belong to a Cluster"),
        (errors.WrongTypeError("Operation against a key"), "choose another fleet.name"),
        (errors.UnknownCommandError("unknown command `HELLO`, with args"), "older than Redis 6.0"),
        (errors.PrimaryNotFoundError("No primary found for 'x'"), "no reachable Sentinel knows"),
        (errors.ConnectionError("Connection lost while receiving response"), "requires TLS"),
        (
            caused(errors.ConnectionError("no"), ConnectionRefusedError(errno.ECONNREFUSED, "no")),
            "connection refused",
        ),
        (caused(errors.ConnectionError("no"), socket.gaierror(-2, "not known")), "host name cannot be resolved"),
        (caused(errors.ConnectionError("no"), ssl.SSLCertVerificationError("self-signed")), "set fleet.ca_file"),
        (caused(errors.ConnectionError("no"), ssl.SSLError(1, "wrong version")), "does not use TLS"),
        (ExceptionGroup("", [ExceptionGroup("", [errors.ReadOnlyError("a")])]), "the server is a replica"),
        (ExceptionGroup("", [ValueError("what\nis this")]), "what is this"),
        (ValueError(), "ValueError"),
    ],
)
def test_errors_name_the_remedy(error: Exception, reason: str) -> None:
    assert reason in _reason(error)
