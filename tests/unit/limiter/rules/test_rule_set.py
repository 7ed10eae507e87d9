from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.rules.errors import RuleError
from limiter.rules.limit_text import parse_limit
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours

DAY = read_hours("09:00-18:00", (), "UTC")
NOON = read_hours("12:00-13:00", (), "UTC")
NIGHT = read_hours("22:00-06:00", (), "UTC")


def topic(name: str) -> Resource:
    return Resource("topic", name)


def limits(*texts: str, source: str = "flag") -> tuple[Rule, ...]:
    return tuple(
        parse_limit(text, lambda kind, pattern, rate_per_s: Rule(kind, pattern, rate_per_s, source=source))
        for text in texts
    )


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-06-01 {clock}").replace(tzinfo=UTC)


# --- which rule wins


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "topic:orders"),
        ("orders-eu-1", "topic:orders-eu-*"),
        ("orders-1", "topic:orders-*"),
        ("x", "topic:*"),
    ],
)
def test_exact_name_wins_over_pattern_over_default(name: str, expected: str) -> None:
    rules = RuleSet(limits("topic:*=1/s", "topic:orders-*=2/s", "topic:orders-eu-*=3/s", "topic:orders=4/s"))

    # Asked twice: found, and remembered.
    assert [rules.match(topic(name)).name for _ in range(2)] == [expected] * 2


def test_clients_are_matched_by_network_and_all_else_by_glob() -> None:
    rules = RuleSet(limits("client:10.0.0.0/8=1/s", "client:10.1.0.0/16=2/s", "listener:10.*=3/s"))

    assert rules.match(Resource("client", "10.1.2.3")).rate_per_s == 2
    assert rules.match(Resource("client", "10.2.2.3")).rate_per_s == 1
    assert rules.limit(Resource("client", "::ffff:10.1.2.3")) is None
    assert rules.match(Resource("listener", "10.x")).rate_per_s == 3


def test_unlimited_and_switched_off_rules_hide_what_is_less_specific() -> None:
    off = Rule("topic", "off-*", 5, action="off")
    rules = RuleSet((*limits("topic:*=1/s", "topic:RMQ_SYS_*=unlimited"), off))

    assert rules.limit(topic("RMQ_SYS_TRACE")) is None
    assert rules.match(topic("off-1")) is off
    assert rules.limit(topic("off-1")) is None
    assert rules.limit(topic("other")) is not None


def test_global_switch_turns_every_limit_off() -> None:
    rules = RuleSet(limits("topic:orders=0/s", "client:*=1/s"), enabled=False)

    assert rules.limit(topic("orders")) is None
    assert rules.match(topic("orders")).rate_per_s == 0
    assert not rules.limits_kind("topic")
    assert rules.scopes == frozenset()


def test_each_dimension_has_its_own_limit() -> None:
    both = Rule("topic", "both", 5, bytes_per_s=1000)
    rules = RuleSet((both, *limits("topic:*=1/s")))

    assert rules.limit(topic("both")) is both
    assert rules.limit(topic("both"), "bytes") is both.bytes_rule
    assert rules.limit(topic("other"), "bytes") is None


def test_kinds_and_scopes_that_are_limited_are_known() -> None:
    rules = RuleSet(
        (
            *limits("topic:a=1/s", "client:*=unlimited"),
            Rule("listener", "*", 5, action="off"),
            Rule("producer_group", "*", 5, shared=True),
            Rule("subscription", "*", None, bytes_per_s=5),
        )
    )

    kinds = ("topic", "client", "listener", "producer_group", "subscription", "queue")
    assert [kind for kind in kinds if rules.limits_kind(kind)] == ["topic", "producer_group", "subscription"]
    assert rules.scopes == {"producer_group"}


# --- totals


def test_total_and_a_limit_for_each_hold_beside_each_other() -> None:
    each, total = Rule("topic", "a*", 5), Rule("topic", "a*", 50, shared=True)
    rules = RuleSet((total, each))

    for _ in range(2):
        assert rules.match(topic("a1")) is each
        assert rules.match_total(topic("a1")) is total
        assert rules.match_total(topic("b1")) is None
        assert rules.match_total(Resource("queue", "a1")) is None


def test_of_several_totals_the_most_specific_holds() -> None:
    rules = RuleSet(tuple(Rule("client", text, 5, shared=True) for text in ("*", "10.0.0.0/8", "10.1.0.0/16")))

    def total(address: str) -> str:
        found = rules.match_total(Resource("client", address))
        assert found is not None
        return found.target

    assert [total(address) for address in ("10.1.0.1", "10.2.0.1", "::1")] == [
        "client:10.1.0.0/16",
        "client:10.0.0.0/8",
        "client:*",
    ]


# --- matches that are remembered


@given(st.lists(st.text(alphabet="ab", max_size=3), max_size=40))
def test_what_is_remembered_is_what_would_be_found(names: list[str]) -> None:
    rules = (*limits("topic:ab=1/s", "topic:a*=2/s", "topic:*b=3/s"), Rule("topic", "b*", 4, shared=True))
    asked = RuleSet(rules)

    for name in names:
        fresh = RuleSet(rules)
        assert str(asked.match(topic(name))) == str(fresh.match(topic(name)))
        assert asked.match_total(topic(name)) is fresh.match_total(topic(name))


def test_memory_is_bounded_whatever_names_clients_make_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limiter.rules.patterns._MAX_REMEMBERED", 10)
    rules = RuleSet((*limits("topic:orders=1/s", "topic:*=2/s"), Rule("topic", "*", 4, shared=True)))

    for number in range(100):
        assert rules.match(topic(f"made-up-{number}")).rate_per_s == 2
        assert rules.match_total(topic(f"made-up-{number}")) is not None
        matchers = (rules._patterns.each["topic"], rules._patterns.totals["topic"])
        assert max(len(matcher._remembered) for matcher in matchers) <= 10
    assert rules.match(topic("orders")).rate_per_s == 1
    assert rules.match(Resource("total", "topic:*")).rate_per_s == 4


# --- rules with hours


def test_rule_with_hours_is_not_there_while_it_does_not_hold() -> None:
    by_day, always = Rule("topic", "orders", 1, hours=DAY), Rule("topic", "*", 2)
    rules = RuleSet((by_day, always))

    assert rules.match(topic("orders")) is always
    assert rules.at(at("12:00")).match(topic("orders")) is by_day
    assert rules.at(at("18:00")).match(topic("orders")) is always
    assert rules.at(at("12:00")).in_force == (by_day, always)
    assert rules.at(at("20:00")).in_force == (always,)


@pytest.mark.parametrize("pattern", ["orders", "o*", "*"])
@pytest.mark.parametrize("shared", [False, True])
def test_while_it_holds_it_wins_over_one_of_the_same_pattern_without(*, pattern: str, shared: bool) -> None:
    if shared and pattern == "orders":
        pattern = "ord*"
    always = Rule("topic", pattern, 1, shared=shared)
    by_day = Rule("topic", pattern, 2, shared=shared, hours=DAY)
    by_night = Rule("topic", pattern, 3, shared=shared, hours=NIGHT)
    rules = RuleSet((always, by_day, by_night))

    def holds(clock: str) -> Rule | None:
        now = rules.at(at(clock))
        if not shared:
            return now.match(topic("orders"))
        total = now.match_total(topic("orders"))
        assert total is now.match(Resource("total", f"topic:{pattern}"))
        return total

    assert [holds(clock) for clock in ("12:00", "20:00", "23:00")] == [by_day, always, by_night]


def test_of_two_for_one_pattern_that_hold_at_once_the_first_wins() -> None:
    by_day, at_noon = Rule("topic", "*", 1, hours=DAY), Rule("topic", "*", 2, hours=NOON)

    assert RuleSet((by_day, at_noon)).at(at("12:30")).match(topic("a")) is by_day
    assert RuleSet((at_noon, by_day)).at(at("12:30")).match(topic("a")) is at_noon


def test_next_change_is_the_first_of_any_rule() -> None:
    rules = RuleSet(tuple(Rule("topic", "*", 1, hours=hours) for hours in (DAY, NOON, NIGHT)))

    changes = [at("00:00")]
    for _ in range(6):
        found = rules.next_change(changes[-1])
        assert found is not None
        changes.append(found)
    assert [f"{change:%H:%M}" for change in changes[1:]] == ["06:00", "09:00", "12:00", "13:00", "18:00", "22:00"]


@given(st.integers(0, 24 * 60 - 1))
def test_between_two_changes_the_same_rules_hold(minute: int) -> None:
    rules = RuleSet(tuple(Rule("topic", "*", 1, hours=hours) for hours in (DAY, NOON, NIGHT)))
    now = at("00:00") + timedelta(minutes=minute)
    change = rules.next_change(now)

    assert change is not None
    assert rules.at(change - timedelta(microseconds=1)).in_force == rules.at(now).in_force
    assert rules.at(change).in_force != rules.at(now).in_force


# --- sets of rules


def test_rules_can_be_listed_as_they_are_tried() -> None:
    total, by_day = Rule("topic", "a*", 9, shared=True), Rule("topic", "z", 8, hours=DAY)
    rules = RuleSet((total, *limits("topic:*=1/s", "topic:a*=2/s", "topic:*ab*=3/s", "topic:z=4/s"), by_day))
    names = ["topic:z", "topic:*ab*", "topic:a*", "topic:*", "total:topic:a*", f"topic:z {DAY}"]

    assert [rule.name for rule in rules.in_match_order] == names
    assert rules.untried == (by_day,)
    by_day_now = rules.at(at("12:00")).in_match_order
    assert [rule.name for rule in by_day_now] == [f"topic:z {DAY}", *names[1:5], "topic:z"]
    assert by_day_now[0] is by_day
    assert [rule.limit_text for rule in rules.at(at("12:00")).untried] == ["4/s"]


def test_two_rules_of_one_kind_and_pattern_are_refused_by_name() -> None:
    with pytest.raises(RuleError) as error:
        RuleSet((*limits("topic:a=1/s", source="file:x"), *limits("topic:a=2/s")))

    assert "topic:a=1/s (file:x)" in error.value.what
    assert error.value.what.startswith("flag: a second rule for topic:a: topic:a=2/s, ")


def test_replace_makes_the_next_version_and_leaves_the_old_one() -> None:
    first = RuleSet(limits("topic:a=1/s"))
    first.match(topic("a"))
    second = first.replace(rules=limits("topic:a=2/s"))
    third = second.replace(enabled=False)

    assert [rules.version for rules in (first, second, third)] == [1, 2, 3]
    assert [rules.match(topic("a")).rate_per_s for rules in (first, second, third)] == [1, 2, 2]
    assert (second.enabled, third.enabled) == (True, False)


# --- switches of kinds


def test_kind_that_is_switched_off_is_not_limited_nor_are_its_totals() -> None:
    rules = RuleSet(
        (*limits("topic:*=1/s", "retry_group:*=2/s", "client:*=3/s"), Rule("topic", "a*", 4, shared=True)),
        off_kinds={"topic", "client"},
    )

    assert rules.limit(topic("a")) is None
    assert rules.limit(Resource("total", "topic:a*")) is None
    assert rules.limit(Resource("retry_group", "a")) is not None
    assert [rules.limits_kind(kind) for kind in ("topic", "retry_group", "client")] == [False, True, False]
    assert rules.scopes == frozenset()
    assert rules.match(topic("a")).rate_per_s == 1

    on = rules.replace(off_kinds=())
    assert (on.version, on.off_kinds, on.scopes) == (2, frozenset(), frozenset({"client"}))
    assert on.limit(Resource("total", "topic:a*")) is not None
    assert on.replace(enabled=False).limit(topic("a")) is None


# --- edits

NAMES = ("a", "b", "ab", "abc", "ba")
RULES = st.builds(
    Rule,
    st.sampled_from(["topic", "client_group"]),
    st.sampled_from(["*", "a*", "*a", "?b", "b*", "a", "b", "ab"]),
    st.sampled_from([None, 0, 1, 2.5, 30]),
    hours=st.sampled_from([None, None, DAY, NOON, NIGHT]),
    action=st.sampled_from(["reject", "off"]),
    source=st.sampled_from(["x", "y"]),
) | st.builds(
    Rule, st.just("topic"), st.sampled_from(["*", "a*", "*a"]), st.sampled_from([1, 9]), shared=st.just(value=True)
)
EDITS = st.lists(
    st.tuples(st.lists(RULES, max_size=2, unique_by=lambda rule: rule.key), st.lists(RULES, max_size=2)), max_size=6
)


def rebuilt(first: tuple[Rule, ...], edits: list[tuple[list[Rule], list[Rule]]]) -> RuleSet:
    """The plain way: those put in stand first, the last before all others; what was there at first keeps its place."""
    written = {rule.key: rule for rule in first}
    base, front = dict(written), dict[object, Rule]()
    for put, drop in edits:
        for rule in drop:
            base.pop(rule.key, None)
            front.pop(rule.key, None)
        for rule in put:
            base.pop(rule.key, None)
            front.pop(rule.key, None)
            if written.get(rule.key) is rule:
                base[rule.key] = rule
            else:
                front[rule.key] = rule
    kept = [rule for rule in first if base.get(rule.key) is rule]
    return RuleSet((*reversed(front.values()), *kept))


@given(first=st.lists(RULES, max_size=8, unique_by=lambda rule: rule.key), edits=EDITS, put_back=st.integers(0, 7))
def test_edits_make_what_all_the_rules_together_make(
    first: list[Rule], edits: list[tuple[list[Rule], list[Rule]]], put_back: int
) -> None:
    if first:
        edits = [*edits, ([first[put_back % len(first)]], [])]
    versions = [RuleSet(first)]
    for put, drop in edits:
        versions.append(versions[-1].edited(put, [rule.key for rule in drop]))
    plain, edited = rebuilt(tuple(first), edits), versions[-1]
    assert edited.version == 1 + len(edits)
    assert {rule.key: rule for rule in edited.rules} == {rule.key: rule for rule in plain.rules}
    before = versions[0].at(at("11:00"))
    for clock in ("11:00", "12:30", "23:00"):
        ours, theirs = edited.at(at(clock)), plain.at(at(clock))
        resources = [Resource(kind, name) for kind in ("topic", "client_group") for name in NAMES]
        totals = [Resource("total", f"topic:{pattern}") for pattern in ("*", "a*", "*a")]
        for resource in (*resources, *totals):
            assert ours.match(resource) == theirs.match(resource)
            assert ours.match_total(resource) == theirs.match_total(resource)
            assert ours.has_own(resource) == theirs.has_own(resource) == (resource in theirs.own)
        assert ours.own.keys() == theirs.own.keys()
        assert set(ours.in_force) == set(theirs.in_force)
        assert set(ours.tried) == set(theirs.tried)
        assert [ours.limits_kind(kind) for kind in ("topic", "client_group")] == [
            theirs.limits_kind(kind) for kind in ("topic", "client_group")
        ]
        assert ours.next_change(at(clock)) == theirs.next_change(at(clock))
        came_or_went = ours.own.keys() ^ before.own.keys()
        assert ours.own_since(before) == {each: each in theirs.own for each in came_or_went}
        before = ours
    assert all(edited.rule(rule.key) == rule for rule in plain.rules)


def test_edit_stands_before_what_was_written_until_that_is_put_back() -> None:
    first, second = limits("topic:a*=1/s", "topic:*a=2/s")
    rules = RuleSet((first, second))
    edited = rules.edited(limits("topic:*a=3/s"))
    assert edited.match(topic("aa")).rate_per_s == 3
    assert edited.edited([second]).match(topic("aa")).rate_per_s == 1
