import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.errors import RuleError
from limiter.limit_text import parse_limit
from limiter.resource import Resource
from limiter.rule import MAX_RATE_PER_S, Rule
from limiter.rules import RuleSet, layer_rules


def topic(name: str) -> Resource:
    return Resource("topic", name)


def limits(*texts: str, source: str = "flag") -> tuple[Rule, ...]:
    return tuple(parse_limit(text, source=source) for text in texts)


# --- one rule


def test_rule_has_a_name_for_logs_and_integers_for_the_bucket() -> None:
    rule = Rule("topic", "orders", 500.5, burst_s=2, break_s=0.25)

    assert rule.name == "topic:orders"
    assert rule.rate_upermits_per_s == 500_500_000
    assert rule.capacity_upermits == 1_001_000_000
    assert (rule.burst_ns, rule.break_ns) == (2_000_000_000, 250_000_000)


def test_largest_numbers_fit_64_bits() -> None:
    assert Rule("topic", "orders", MAX_RATE_PER_S, burst_s=3600).capacity_upermits < 2**63


@pytest.mark.parametrize(
    ("rate_per_s", "enabled", "does"), [(1.0, True, True), (0, True, True), (None, True, False), (1.0, False, False)]
)
def test_rule_limits_if_it_is_on_and_not_unlimited(*, rate_per_s: float | None, enabled: bool, does: bool) -> None:
    assert Rule("topic", "orders", rate_per_s, enabled=enabled).limits is does


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1, -0.001, 1e9 + 1, True, "5"])
def test_rate_that_is_no_number_of_permits_is_refused(rate: Any) -> None:
    with pytest.raises(RuleError, match="topic:orders: rate_per_s") as error:
        Rule("topic", "orders", rate)

    assert "unlimited" in error.value.allowed


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 3601, None, False])
@pytest.mark.parametrize("field", ["burst_s", "break_s"])
def test_time_out_of_range_is_refused(field: str, value: Any) -> None:
    with pytest.raises(RuleError, match=f"topic:orders: {field} .*; allowed: 0 to 3600 seconds"):
        Rule("topic", "orders", 1, allow_under_limit=True, **{field: value})


def test_break_longer_than_the_burst_is_refused_unless_allowed() -> None:
    with pytest.raises(RuleError, match=r"break_s 2 is longer than burst_s 1.0.*allow_under_limit"):
        Rule("topic", "orders", 100, break_s=2)

    assert Rule("topic", "orders", 100, break_s=2, allow_under_limit=True).break_ns == 2_000_000_000


@pytest.mark.parametrize(("rate_per_s", "burst_s"), [(1e-7, 1.0), (0.001, 0.0001), (100, 0)])
def test_rate_that_could_never_store_anything_is_refused(rate_per_s: float, burst_s: float) -> None:
    with pytest.raises(RuleError, match="stores nothing"):
        Rule("topic", "orders", rate_per_s, burst_s=burst_s, break_s=0)


@pytest.mark.parametrize("kind", ["", "Topic", "a b", "topic:", "1st"])
def test_kind_that_is_no_word_is_refused(kind: str) -> None:
    with pytest.raises(RuleError, match="rule kind"):
        Rule(kind, "orders", 1)


@pytest.mark.parametrize("pattern", ["", "a\nb", "a[b", "[", "[]", "[!]", "a*[x"])
def test_pattern_that_cannot_be_is_refused(pattern: str) -> None:
    with pytest.raises(RuleError, match="rule pattern"):
        Rule("topic", pattern, 1)


@pytest.mark.parametrize(
    ("pattern", "exact_name"),
    [
        ("orders", "orders"),
        ("%RETRY%x", "%RETRY%x"),
        ("a[*]b", "a*b"),
        ("[[]x]", "[x]"),
        ("[]]", "]"),
        ("a*", None),
        ("a?", None),
        ("a[bc]", None),
        ("a[!b]", None),
    ],
)
def test_pattern_is_an_exact_name_if_it_can_match_only_one(pattern: str, exact_name: str | None) -> None:
    assert Rule("topic", pattern, 1).exact_name == exact_name


@given(st.text(alphabet="ab*?[]!-^&~|.\\", min_size=1, max_size=8), st.text(alphabet="ab*[]!-^.\\", max_size=5))
def test_any_pattern_either_is_refused_or_matches_as_fnmatch_does(pattern: str, name: str) -> None:
    try:
        rule = Rule("topic", pattern, 1)
    except RuleError:
        return

    assert (RuleSet((rule,)).limit(topic(name)) is rule) == fnmatch.fnmatchcase(name, pattern)


# --- the text form


@pytest.mark.parametrize(
    ("text", "kind", "pattern", "rate_per_s"),
    [
        ("topic:orders=500/s", "topic", "orders", 500),
        ("topic:orders=0.5/s", "topic", "orders", 0.5),
        ("topic:orders=500.5/s", "topic", "orders", 500.5),
        ("topic:*=2000/s", "topic", "*", 2000),
        ("retry_group:%RETRY%x=0/s", "retry_group", "%RETRY%x", 0),
        ("topic:orders=unlimited", "topic", "orders", None),
        ("address:queue://a:b=1/s", "address", "queue://a:b", 1),
    ],
)
def test_reads_a_limit(text: str, kind: str, pattern: str, rate_per_s: float | None) -> None:
    rule = parse_limit(text)

    assert rule == Rule(kind, pattern, rate_per_s, source="flag")
    assert str(rule) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "topic",
        "topic:orders",
        "orders=5/s",
        ":orders=5/s",
        "topic:=5/s",
        "topic:orders=",
        "topic:orders=5",
        "topic:orders=5/m",
        "topic:orders=5/h",
        "topic:orders=5 /s",
        "topic:orders=-5/s",
        "topic:orders=+5/s",
        "topic:orders=nan/s",
        "topic:orders=inf/s",
        "topic:orders=1e3/s",
        "topic:orders=.5/s",
        "topic:orders=\u0665/s",
        "topic:orders=Unlimited",
    ],
)
def test_limit_of_another_form_is_refused_with_the_text_and_the_form(text: str) -> None:
    with pytest.raises(RuleError) as error:
        parse_limit(text)

    assert repr(text) in str(error.value)
    assert "KIND:NAME-or-glob=RATE/s" in error.value.allowed
    assert "per second" in error.value.allowed


@pytest.mark.parametrize(
    ("rate", "reason"),
    [
        ("500", "the rate needs its unit: 500/s"),
        ("0.5", "the rate needs its unit: 0.5/s"),
        ("500/m", "rate '500/m' is not per second, the only unit"),
        ("500/min", "rate '500/min' is not per second, the only unit"),
        ("500/S", "rate '500/S' is not per second, the only unit"),
        ("-5/s", "rate '-5/s' is negative; 0/s refuses everything"),
        ("Unlimited", "rate 'Unlimited' is written in lower case: unlimited"),
        ("fast", "rate 'fast'"),
    ],
)
def test_rate_of_another_form_is_refused_with_its_own_reason(rate: str, reason: str) -> None:
    with pytest.raises(RuleError) as error:
        parse_limit(f"topic:orders={rate}")

    assert error.value.what == f"limit 'topic:orders={rate}': {reason}"


@pytest.mark.parametrize("name", ["a=3/s,topic:b", "a=b", "a,b", "a b", " a", "a\tb", "a\u2003b"])
def test_name_that_could_be_several_limits_is_refused_in_the_text_form_alone(name: str) -> None:
    with pytest.raises(RuleError) as error:
        parse_limit(f"topic:{name}=4/s")

    assert "can only be written in the file" in error.value.what
    assert repr(name) in error.value.what
    if name.isprintable():
        assert Rule("topic", name, 4).exact_name == name


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("topic:orders=1000000001/s", "rate_per_s 1000000001.0"),
        ("topic:orders=0.0000001/s", "stores nothing"),
        ("Topic:orders=1/s", "rule kind 'Topic'"),
        ("topic:a[b=1/s", "never closed"),
    ],
)
def test_limit_with_a_value_that_cannot_be_is_refused_with_the_text_too(text: str, what: str) -> None:
    with pytest.raises(RuleError) as error:
        parse_limit(text)

    assert repr(text) in error.value.what
    assert what in error.value.what


@given(st.text(max_size=30))
def test_no_text_raises_anything_else(text: str) -> None:
    for candidate in (text, f"topic:{text}", f"topic:x={text}", f"topic:{text}=5/s"):
        try:
            parse_limit(candidate)
        except RuleError:
            continue


@given(st.one_of(st.none(), st.just(0), st.floats(0.000001, 1e9)))
def test_text_form_is_read_back_as_the_same_rate(rate_per_s: float | None) -> None:
    rule = Rule("topic", "orders", rate_per_s)
    again = parse_limit(str(rule))

    assert (again.limits, again.rate_upermits_per_s) == (rule.limits, rule.rate_upermits_per_s)


# --- which rule wins


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "topic:orders"),
        ("orders-eu-1", "topic:orders-eu-*"),
        ("orders-us-1", "topic:orders-*"),
        ("payments-1", "topic:payments-?"),
        ("payments-12", "topic:*"),
        ("", "topic:*"),
    ],
)
def test_exact_name_wins_over_pattern_over_default(name: str, expected: str) -> None:
    rules = limits(
        "topic:*=1/s", "topic:orders-*=2/s", "topic:orders-eu-*=3/s", "topic:orders=4/s", "topic:payments-?=5/s"
    )

    assert RuleSet(rules).match(topic(name)).name == expected


def test_of_equally_literal_patterns_the_first_wins() -> None:
    forward = RuleSet(limits("topic:a*=1/s", "topic:*a=2/s"))
    backward = RuleSet(limits("topic:*a=2/s", "topic:a*=1/s"))

    assert forward.match(topic("aba")).name == "topic:a*"
    assert backward.match(topic("aba")).name == "topic:*a"


def test_sets_count_as_no_literal_unless_they_are_an_escape() -> None:
    rules = RuleSet(limits("topic:[abc]b*=1/s", "topic:[*][*]*=2/s"))

    assert rules.match(topic("**b")).name == "topic:[*][*]*"


def test_rules_can_be_listed_as_they_are_tried() -> None:
    rules = RuleSet(limits("topic:*=1/s", "topic:a*=2/s", "topic:*ab*=3/s", "topic:z=4/s"))

    assert [rule.pattern for rule in rules.in_match_order] == ["z", "*ab*", "a*", "*"]


def test_matching_knows_upper_from_lower_case_and_one_kind_from_another() -> None:
    rules = RuleSet(limits("topic:Orders=1/s", "topic:P*=1/s"))

    assert rules.limit(topic("orders")) is None
    assert rules.limit(topic("payments")) is None
    assert rules.limit(Resource("retry_group", "Orders")) is None


def test_kind_without_a_default_is_unlimited() -> None:
    rules = RuleSet(limits("topic:orders=1/s"))

    assert str(rules.match(Resource("queue", "x"))) == "queue:*=unlimited"
    assert rules.limit(topic("other")) is None


def test_unlimited_and_switched_off_rules_hide_what_is_less_specific() -> None:
    off = Rule("topic", "off-*", 5, enabled=False)
    rules = RuleSet((*limits("topic:*=1/s", "topic:RMQ_SYS_*=unlimited"), off))

    assert rules.limit(topic("RMQ_SYS_TRACE")) is None
    assert rules.match(topic("off-1")) is off
    assert rules.limit(topic("off-1")) is None
    assert rules.limit(topic("other")) is not None


def test_global_switch_turns_every_limit_off() -> None:
    rules = RuleSet(limits("topic:orders=0/s"), enabled=False)

    assert rules.limit(topic("orders")) is None
    assert rules.match(topic("orders")).rate_per_s == 0


def test_many_wildcards_do_not_make_a_made_up_name_expensive() -> None:
    rules = RuleSet(limits("topic:" + "a*" * 30 + "b=1/s"))

    assert rules.limit(topic("a" * 4000)) is None


# --- sets of rules


def test_two_rules_of_one_kind_and_pattern_are_refused_by_name() -> None:
    with pytest.raises(RuleError) as error:
        RuleSet((*limits("topic:a=1/s", source="file:x"), *limits("topic:a=2/s")))

    assert "topic:a=1/s (file:x)" in error.value.what
    assert "topic:a=2/s (flag)" in error.value.what


def test_escaped_name_is_the_same_name() -> None:
    with pytest.raises(RuleError, match="two rules"):
        RuleSet(limits("topic:ab=1/s", "topic:a[b]=2/s"))


def test_pattern_that_spells_an_escaped_name_is_another_rule() -> None:
    rules = RuleSet(limits("topic:a*=1/s", "topic:a[*]=2/s"))

    assert [rules.match(topic(name)).rate_per_s for name in ("a*", "ab")] == [2, 1]


def test_replace_makes_the_next_version_and_leaves_the_old_one() -> None:
    first = RuleSet(limits("topic:a=1/s"))
    second = first.replace(rules=limits("topic:a=2/s"))
    third = second.replace(enabled=False)

    assert [rules.version for rules in (first, second, third)] == [1, 2, 3]
    assert [rules.match(topic("a")).rate_per_s for rules in (first, second, third)] == [1, 2, 2]
    assert (second.enabled, third.enabled) == (True, False)


def test_rule_set_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        RuleSet().enabled = False  # type: ignore[misc]  # that it is read-only is what is tested


def test_later_layer_overrides_and_goes_first() -> None:
    built_in = limits("topic:*=2000/s", "retry_group:*=100/s", source="built-in")
    file = limits("topic:a*=1/s", "topic:*a=2/s", "topic:*=10/s", source="file:x")
    flags = limits("topic:*=20/s", "topic:*b*=3/s")

    layered = layer_rules(built_in, file, flags)

    assert [f"{rule} {rule.source}" for rule in layered] == [
        "topic:*=20/s flag",
        "topic:*b*=3/s flag",
        "topic:a*=1/s file:x",
        "topic:*a=2/s file:x",
        "retry_group:*=100/s built-in",
    ]


def test_layer_with_two_rules_of_one_kind_and_pattern_is_refused() -> None:
    with pytest.raises(RuleError, match="two rules for topic:a"):
        layer_rules(limits("topic:a=1/s", "topic:a=1/s"), limits("topic:a=2/s"))
