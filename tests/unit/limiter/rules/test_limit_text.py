import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.rules.errors import RuleError
from limiter.rules.limit_text import parse_limit
from limiter.rules.rule import Rule


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
    assert "KIND:NAME=RATE/s (messages per second)" in error.value.allowed
    assert "per second" in error.value.allowed


@pytest.mark.parametrize(
    ("rate", "reason"),
    [
        ("500", "the rate needs a unit: 500/s"),
        ("0.5", "the rate needs a unit: 0.5/s"),
        ("500/m", "rate '500/m' has an unknown unit; rates are per second"),
        ("500/min", "rate '500/min' has an unknown unit; rates are per second"),
        ("500/S", "rate '500/S' has an unknown unit; rates are per second"),
        ("-5/s", "rate '-5/s' is negative; 0/s refuses everything"),
        ("Unlimited", "rate 'Unlimited' must be in lower case: unlimited"),
        ("fast", "invalid rate 'fast'"),
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

    assert "write the limit in the configuration file" in error.value.what
    assert repr(name) in error.value.what
    if name.isprintable():
        assert Rule("topic", name, 4).exact_name == name


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
