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


# --- precedence


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

    # Twice: found, and cached.
    assert [rules.match(topic(name)).name for _ in range(2)] == [expected] * 2


def test_global_switch_turns_every_limit_off() -> None:
    rules = RuleSet(limits("topic:orders=0/s", "client:*=1/s"), enabled=False)

    assert rules.limit(topic("orders")) is None
    assert rules.match(topic("orders")).rate_per_s == 0
    assert not rules.limits_kind("topic")
    assert rules.scopes == frozenset()


# --- cached matches


@given(st.lists(st.text(alphabet="ab", max_size=3), max_size=40))
def test_remembered_match_equals_a_fresh_one(names: list[str]) -> None:
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

    assert [rule.name for rule in (*rules.tried, *rules.untried)] == names
    assert rules.untried == (by_day,)
    now = rules.at(at("12:00"))
    by_day_now = (*now.tried, *now.untried)
    assert [rule.name for rule in by_day_now] == [f"topic:z {DAY}", *names[1:5], "topic:z"]
    assert by_day_now[0] is by_day
    assert [rule.limit_text for rule in rules.at(at("12:00")).untried] == ["4/s"]


def test_two_rules_of_one_kind_and_pattern_are_refused_by_name() -> None:
    with pytest.raises(RuleError) as error:
        RuleSet((*limits("topic:a=1/s", source="file:x"), *limits("topic:a=2/s")))

    assert "topic:a=1/s (file:x)" in error.value.what
    assert error.value.what.startswith("flag: duplicate rule for topic:a: topic:a=2/s; ")


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
    """The simple way: added rules come first, the last before all others, and original ones keep their place."""
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
def test_edits_equal_a_rule_set_of_all_rules(
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


def test_edit_overrides_the_configured_rule_until_reverted() -> None:
    first, second = limits("topic:a*=1/s", "topic:*a=2/s")
    rules = RuleSet((first, second))
    edited = rules.edited(limits("topic:*a=3/s"))
    assert edited.match(topic("aa")).rate_per_s == 3
    assert edited.edited([second]).match(topic("aa")).rate_per_s == 1
