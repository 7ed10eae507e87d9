from __future__ import annotations

import pytest
from fleet_bucket import FleetRedis

from limiter.buckets.fleet import FleetLimiter
from limiter.deciding.limits import Caller, Limits
from limiter.fleet.member import Member, WhenAway
from limiter.rules.errors import RuleError
from limiter.rules.resource import Resource
from limiter.rules.rule import NS_PER_S, Rule
from limiter.rules.rule_set import RuleSet

ORDERS = Resource("topic", "orders")
RULE = Rule("topic", "orders", 100, fleet=True)
MS = 1_000_000


def joined(member: Member, redis: FleetRedis, now_ns: int = 0) -> FleetLimiter:
    limiter = FleetLimiter(ORDERS, RULE, now_ns)
    member.join("messages", limiter, now_ns)
    talk(member, redis, now_ns)
    return limiter


def talk(member: Member, redis: FleetRedis, now_ns: int) -> int:
    calls = member.ask(now_ns)
    for call in calls:
        member.take(now_ns, call, redis.call(1e15 + now_ns / 1e3, call.keys, call.args))
    return len(calls)


def fail(member: Member, now_ns: int) -> None:
    for call in member.ask(now_ns):
        member.failed(now_ns + NS_PER_S, call)


def admitted(limiter: FleetLimiter, now_ns: int, requests: int) -> int:
    return limiter.acquire(now_ns, (1,) * requests).admitted


def test_the_first_messages_of_a_name_pass_on_the_advance_and_wake_the_member() -> None:
    member, woken = Member("f", "a"), []
    member.wake = lambda: woken.append(True)  # type: ignore[method-assign]
    limiter = joined(member, FleetRedis())
    assert member.next_ns() == 200 * MS
    assert admitted(limiter, 500 * MS, 1000) == (100 // 2 - 8) // 2 + 1
    assert woken
    assert member.next_ns() == 10 * MS
    assert limiter.last_refused_ns == 500 * MS


def test_passing_on_the_advance_is_not_a_refusal() -> None:
    limiter = joined(Member("f", "a"), FleetRedis())
    assert limiter.stored_upermits == 0
    assert admitted(limiter, 500 * MS, 5) == 5
    assert limiter.state(500 * MS).last_refused_ns is None


def test_only_granted_permits_can_be_spent() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    admitted(limiter, 20 * MS, 1000)
    talk(member, redis, 20 * MS)
    assert redis.granted == 50
    assert admitted(limiter, 21 * MS, 1000) == 50


def test_an_idle_name_is_given_back_and_not_asked_for_any_more() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    admitted(limiter, 20 * MS, 5)
    for now_ns in range(20 * MS, 2 * NS_PER_S, 50 * MS):
        talk(member, redis, now_ns)
    assert not member.state().leases
    assert limiter.idle_at_ns() is not None
    (bucket,) = [fields for key, fields in redis.hashes.items() if key.endswith("orders")]
    assert list(bucket) == [""]
    assert bucket[""][1] == 50


def test_lost_grants_are_restored_by_the_next_call() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    admitted(limiter, 20 * MS, 1000)
    (call,) = member.ask(20 * MS)
    redis.call(1e15 + 20_000, call.keys, call.args)
    member.failed(30 * MS, call)
    (bucket,) = [fields for key, fields in redis.hashes.items() if key.endswith("orders")]
    before, recorded = bucket[""][1], bucket["a"][1]
    (call,) = member.ask(300 * MS)
    granted = redis.call(1e15 + 20_000, call.keys, call.args)[3]
    assert bucket[""][1] + granted == before + recorded - call.args[7]


@pytest.mark.parametrize(("when_away", "expected"), [("last", 100), ("equal", 100), ("unlimited", 1000), ("refuse", 0)])
def test_without_redis_a_member_decides_alone(when_away: WhenAway, expected: int) -> None:
    member, redis = Member("f", "a", when_away=when_away), FleetRedis()
    limiter = joined(member, redis)
    admitted(limiter, 20 * MS, 1000)
    talk(member, redis, 20 * MS)
    admitted(limiter, 21 * MS, 1000)
    fail(member, 300 * MS)
    assert member.state().away_since_ns == 20 * MS
    admitted(limiter, 1300 * MS, 1000)
    assert admitted(limiter, 2300 * MS, 1000) == pytest.approx(expected, abs=1)
    talk(member, redis, 2400 * MS)
    assert member.state().away_since_ns is None
    assert limiter.lease.held <= 0


def test_a_member_that_leaves_gives_back_all_it_holds() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    spent = admitted(limiter, 20 * MS, 5)
    talk(member, redis, 20 * MS)
    for call in member.leave(20 * MS):
        redis.call(1e15 + 20_000, call.keys, call.args)
    (bucket,) = [fields for key, fields in redis.hashes.items() if key.endswith("orders")]
    assert list(bucket) == [""]
    assert bucket[""][1] == 50 - spent
    assert list(redis.hashes["sluice:{f}:members"]) == [""]
    assert admitted(limiter, 21 * MS, 5) == 0


def test_a_bucket_pays_for_the_advance_of_a_member_that_died() -> None:
    redis, members = FleetRedis(), [Member("f", name) for name in "ab"]
    limiters = [joined(member, redis) for member in members]
    for limiter in limiters:
        admitted(limiter, 20 * MS, 1)
    for member in members:
        talk(member, redis, 20 * MS)
    (bucket,) = [fields for key, fields in redis.hashes.items() if key.endswith("orders")]
    advance = bucket["b"][5]
    assert advance > 0
    for now_ns in range(220 * MS, 4000 * MS, 200 * MS):
        admitted(limiters[0], now_ns, 1)
        before = bucket[""][1]
        talk(members[0], redis, now_ns)
        if "b" not in bucket:
            break
    assert bucket[""][1] <= before - advance + 20 + 1


def test_credit_is_afforded_by_held_permits_and_the_advance() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    advance = limiter.lease.advance
    assert limiter.affords(20 * MS, 1, 1000) == advance
    limiter.take(20 * MS, 1, advance)
    talk(member, redis, 30 * MS)
    assert limiter.affords(31 * MS, 1, 1000) == limiter.lease.held + limiter.lease.lent > 0


def test_overflow_limiters_of_two_rules_have_buckets_of_their_own() -> None:
    member = Member("f", "a")
    rules = RuleSet([Rule("topic", f"{letter}*", 100, fleet=True) for letter in "ab"])
    limits = Limits(rules, max_live=1, fleet=member)
    talk(member, FleetRedis(), 0)
    for name in ("a1", "a2", "b2"):
        limits.decide(0, (Resource("topic", name),), Caller("10.0.0.1", "", "main"), (1,), lambda: ())
    keys = {lease.key for lease in member.state().leases}
    assert keys == {"messages:topic:a1", "messages:topic:_overflow:topic:a*", "messages:topic:_overflow:topic:b*"}


def test_limits_of_a_fleet_are_local_without_one() -> None:
    limits = Limits(RuleSet([RULE]))
    decision = limits.decide(NS_PER_S, (ORDERS,), Caller("10.0.0.1", "", "main"), (1,) * 300, lambda: ())
    assert decision.admitted == 100


def test_edits_go_from_plain_to_fleet_and_back() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    talk(member, redis, 0)
    caller, plain = Caller("10.0.0.1", "", "main"), Rule("topic", "orders", 100)
    limits = Limits(RuleSet([plain]), fleet=member)
    assert limits.decide(0, (ORDERS,), caller, (1,) * 60, lambda: ()).admitted == 60
    limits.swap(RuleSet([RULE]), 1 * MS)
    assert limits.decide(2 * MS, (ORDERS,), caller, (1,) * 60, lambda: ()).admitted == 22
    talk(member, redis, 200 * MS)
    limits.swap(RuleSet([plain]), 201 * MS)
    assert limits.decide(202 * MS, (ORDERS,), caller, (1,) * 100, lambda: ()).admitted == pytest.approx(30, abs=1)
    assert limits.decide(3 * NS_PER_S, (ORDERS,), caller, (1,) * 300, lambda: ()).admitted == 100
    assert limits.state(ORDERS, 3 * NS_PER_S) is not None


@pytest.mark.parametrize("more", [{"fair_by": "client"}, {"warm_up_s": 1.0}, {"break_s": 1.0}])
def test_a_fleet_rule_has_no_shares_no_warm_up_and_no_breaker(more: dict[str, object]) -> None:
    with pytest.raises(RuleError):
        Rule("topic", "orders", 100, fleet=True, **more)  # type: ignore[arg-type]


def test_a_fleet_rule_needs_a_limit() -> None:
    with pytest.raises(RuleError):
        Rule("topic", "orders", None, fleet=True)
