import pytest

from limiter.rules.errors import RuleError
from limiter.rules.limit_text import parse_limit
from limiter.rules.rule import Rule
from limiter.rules.rule_set import layer_rules
from limiter.rules.schedule import read_hours

DAY = read_hours("09:00-18:00", (), "UTC")


def limits(*texts: str, source: str = "flag") -> tuple[Rule, ...]:
    return tuple(
        parse_limit(text, lambda kind, pattern, rate_per_s: Rule(kind, pattern, rate_per_s, source=source))
        for text in texts
    )


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


def test_stronger_rule_with_hours_leaves_the_weaker_one_for_other_times() -> None:
    always, by_day, stronger = Rule("topic", "a", 1), Rule("topic", "a", 2, hours=DAY), Rule("topic", "a", 3, hours=DAY)

    assert layer_rules((always, by_day), (stronger,)) == (stronger, always)


def test_layer_with_two_rules_of_one_kind_and_pattern_is_refused() -> None:
    with pytest.raises(RuleError, match="duplicate rule for topic:a"):
        layer_rules(limits("topic:a=1/s", "topic:a=1/s"), limits("topic:a=2/s"))
