from __future__ import annotations

import pytest
from fleet_bucket import FleetRedis

from limiter.buckets.fleet import FleetLimiter
from limiter.deciding.limits import Caller, Limits
from limiter.fleet.member import MAX_NAMES_PER_ROUND, Member, WhenAway
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
    member.ask(now_ns)
    member.failed(now_ns + NS_PER_S)


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
    state = limiter.state(500 * MS)
    assert (state.stored_permits, state.wait_us) == (limiter.lease.advance, 0)
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
    assert not member.state()
    assert limiter.idle_at_ns() is not None
    (bucket,) = [fields for key, fields in redis.hashes.items() if key.endswith("orders")]
    assert list(bucket) == [""]
    assert bucket[""][1] == 50


def test_a_name_that_pays_its_debt_while_idle_is_given_back() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = FleetLimiter(ORDERS, Rule("topic", "orders", 1, max_debt_s=100, fleet=True), 0)
    member.join("messages", limiter, 0)
    assert not admitted(limiter, 0, 1)
    for now_ns in range(0, 80 * NS_PER_S, 100 * MS):
        talk(member, redis, now_ns)
        if now_ns == 200 * MS:
            assert limiter.acquire(now_ns, (70,)).admitted
    assert limiter.idle_at_ns() is not None
    (bucket,) = [fields for key, fields in redis.hashes.items() if key.endswith("orders")]
    assert list(bucket) == [""]


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_permit_of_a_small_limit_is_kept_for_a_minute_if_no_member_waits(others_wait: bool) -> None:  # noqa: FBT001
    redis, member, other = FleetRedis(), Member("f", "a"), Member("f", "b")
    limiters = []
    for each in (member, other):
        limiters.append(limiter := FleetLimiter(ORDERS, Rule("topic", "orders", 1, fleet=True), 0))
        each.join("messages", limiter, 0)
        talk(each, redis, 0)
    assert admitted(limiters[0], 200 * MS, 1) == 0
    times = range(200 * MS, 55 * NS_PER_S, 100 * MS)
    for now_ns in times:
        talk(member, redis, now_ns)
        talk(other, redis, now_ns)
        if others_wait:
            admitted(limiters[1], now_ns, 1)
    assert limiters[0].lease.held == (0 if others_wait else 1)


def test_lost_grants_are_restored_by_the_next_call() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    admitted(limiter, 20 * MS, 1000)
    (call,) = member.ask(20 * MS)
    redis.call(1e15 + 20_000, call.keys, call.args)
    member.failed(30 * MS)
    (bucket,) = [fields for key, fields in redis.hashes.items() if key.endswith("orders")]
    before, recorded = bucket[""][1], bucket["a"][1]
    (call,) = member.ask(300 * MS)
    granted = redis.call(1e15 + 20_000, call.keys, call.args)[4]
    assert bucket[""][1] + granted == before + recorded - call.args[8]


@pytest.mark.parametrize(("when_away", "expected"), [("last", 100), ("equal", 100), ("unlimited", 1000), ("refuse", 0)])
def test_without_redis_a_member_decides_alone(when_away: WhenAway, expected: int) -> None:
    member, redis = Member("f", "a", when_away=when_away), FleetRedis()
    limiter = joined(member, redis)
    admitted(limiter, 20 * MS, 1000)
    talk(member, redis, 20 * MS)
    admitted(limiter, 21 * MS, 1000)
    fail(member, 300 * MS)
    assert member.away_since_ns == 20 * MS
    admitted(limiter, 1300 * MS, 1000)
    assert admitted(limiter, 2300 * MS, 1000) == pytest.approx(expected, abs=1)
    talk(member, redis, 2400 * MS)
    assert member.away_since_ns is None
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
    talk(member, FleetRedis(), NS_PER_S)
    keys = {lease.key for lease in member.state() if lease.share}
    assert keys == {"messages:topic:a1", "messages:_overflow topic:a*", "messages:_overflow topic:b*"}


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


def test_the_stated_wait_ends_with_the_next_answer_or_with_a_whole_permit() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    talk(member, redis, 200 * MS)
    admitted(limiter, 500 * MS, 1000)
    talk(member, redis, 500 * MS)
    admitted(limiter, 501 * MS, 1000)
    next_ns = member.next_ns()
    assert next_ns is not None
    assert limiter.last_wait_us == limiter.state(501 * MS).wait_us == max(10_000, (next_ns - 501 * MS) // 1000)
    assert limiter.acquire(501 * MS, (1,)).wait_us == limiter.last_wait_us
    for now_ns in range(600 * MS, 3000 * MS, 200 * MS):
        talk(member, redis, now_ns)
    assert limiter.lease.share == 0
    limiter.refuse(3000 * MS)
    assert limiter.last_wait_us <= 500_000
    limiter.lease.share = 0.01
    limiter.lease.put()
    limiter.take(3000 * MS, 1, limiter.lease.held)
    limiter.refuse(3000 * MS)
    assert limiter.last_wait_us == 1_000_000


def test_a_busy_name_does_not_wait_for_many_new_ones() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    busy, others, passed = joined(member, redis), [], []
    for turn in range(50):
        now_ns = (turn + 1) * 100 * MS
        for number in range(MAX_NAMES_PER_ROUND if turn >= 10 else 0):
            others.append(FleetLimiter(Resource("topic", f"t{turn}-{number}"), RULE, now_ns))
            member.join("messages", others[-1], now_ns)
            admitted(others[-1], now_ns, 1)
        passed.append(admitted(busy, now_ns, 20))
        talk(member, redis, now_ns)
    # Three seconds of 100/s, give or take the burst.
    assert 270 <= sum(passed[20:]) <= 400


def test_more_names_than_a_round_has_room_for_take_turns() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    talk(member, redis, 0)
    limits = Limits(RuleSet([Rule("topic", "*", 100, fleet=True)]), fleet=member)
    names = [Resource("topic", f"t{number}") for number in range(2 * MAX_NAMES_PER_ROUND + 1)]
    for name in names:
        limits.decide(10 * MS, (name,), Caller("10.0.0.1", "", "main"), (1,) * 50, lambda: ())
    (busy,) = names[-1:]
    for turn in range(1, 6):
        now_ns = turn * 200 * MS
        limits.decide(now_ns, (busy,), Caller("10.0.0.1", "", "main"), (1,) * 50, lambda: ())
        calls = member.ask(now_ns)
        assert MAX_NAMES_PER_ROUND // 2 <= sum(len(call.leases) for call in calls) <= MAX_NAMES_PER_ROUND
        assert turn < 5 or any(key.endswith(busy.name) for call in calls for key in call.keys)
        for call in calls:
            member.take(now_ns, call, redis.call(1e15 + now_ns / 1000, call.keys, call.args))
    assert sum(1 for key in redis.hashes if ":b:" in key) == len(names)


def test_a_member_that_waits_alone_for_a_permit_keeps_waiting() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = FleetLimiter(ORDERS, Rule("topic", "orders", 0.1, burst_s=10, fleet=True), 0)
    member.join("messages", limiter, 0)
    assert not admitted(limiter, 0, 1)
    passed = 0
    for now_ns in range(0, 100 * NS_PER_S, 100 * MS):
        talk(member, redis, now_ns)
        if now_ns % (20 * NS_PER_S) == NS_PER_S:
            passed += admitted(limiter, now_ns, 1)
    assert passed == 5


@pytest.mark.parametrize(("rate", "max_debt_s", "cost"), [(10, 0, 6), (5, 1, 8), (100, 0.5, 90), (100, 10, 1100)])
def test_requests_that_are_larger_than_the_lease_pass(rate: float, max_debt_s: float, cost: int) -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = FleetLimiter(ORDERS, Rule("topic", "orders", rate, max_debt_s=max_debt_s, fleet=True), 0)
    assert cost <= limiter.rule.max_permits
    member.join("messages", limiter, 0)
    passed = 0
    for now_ns in range(0, 60 * NS_PER_S, 100 * MS):
        talk(member, redis, now_ns)
        passed += cost * limiter.acquire(now_ns, (cost,)).admitted
    assert 58 * rate <= passed <= 61 * rate + cost


def test_names_with_permits_are_requested_in_the_promised_number_of_rounds() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    talk(member, redis, 0)
    limits = Limits(RuleSet([Rule("topic", "*", 100, fleet=True)]), fleet=member)
    for number in range(2 * MAX_NAMES_PER_ROUND):
        limits.decide(10 * MS, (Resource("topic", f"t{number}"),), Caller("10.0.0.1", "", "main"), (1,), lambda: ())
    for now_ns in range(200 * MS, 1000 * MS, 200 * MS):
        talk(member, redis, now_ns)
    calls = member.ask(1000 * MS)
    assert member.turns == 2
    assert sum(len(call.leases) for call in calls) == MAX_NAMES_PER_ROUND


def test_a_name_that_is_idle_without_redis_makes_room_for_others() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    limiter = joined(member, redis)
    fail(member, 300 * MS)
    fail(member, 900 * MS)
    assert limiter.lease.is_local
    admitted(limiter, 2000 * MS, 50)
    idle_at_ns = limiter.idle_at_ns()
    assert idle_at_ns is not None
    assert 2500 * MS <= idle_at_ns < 3000 * MS


def test_unused_limits_are_shown_and_a_pattern_until_one_of_its_names_is_used() -> None:
    member, redis = Member("f", "a"), FleetRedis()
    rules = [
        Rule("topic", "a*", 9, fleet=True),
        Rule("topic", "b", 8, bytes_per_s=7, fleet=True),
        Rule("topic", "c", 6),
    ]
    limits = Limits(RuleSet(rules), fleet=member)
    talk(member, redis, 0)
    assert [(each.key, each.rate_per_s, each.share) for each in member.state()] == [
        ("messages:topic:b", 8, 0),
        ("bytes:topic:b", 7, 0),
        ("messages:topic:a*", 9, 0),
    ]
    limits.decide(0, (Resource("topic", "a1"),), Caller("10.0.0.1", "", "main"), (1,), lambda: ())
    assert [each.key for each in member.state(2)] == ["messages:topic:a1", "messages:topic:b"]
