"""Rules that RocketMQ cannot follow or that can never match."""

import pytest

from limiter.rules.errors import RuleError
from limiter.rules.rule import Rule
from proxy.protocols.rocketmq import PROTOCOL
from proxy.protocols.rocketmq.options import check_rule


@pytest.mark.parametrize("busy_code", [None, 2, 215])
@pytest.mark.parametrize("kind", ["topic", "retry_group", "subscription", "listener"])
def test_a_word_for_busy_is_taken(kind: str, busy_code: int | None) -> None:
    check_rule(Rule(kind, "*", 5, busy_code=busy_code))


@pytest.mark.parametrize("busy_code", [0, 1, 10, 14, 216, -2])
@pytest.mark.parametrize("kind", ["topic", "listener"])
def test_a_number_that_clients_do_not_take_for_busy_is_not(kind: str, busy_code: int) -> None:
    with pytest.raises(RuleError, match=f"busy_code {busy_code}.*allowed: 2 or 215"):
        check_rule(Rule(kind, "*", 5, busy_code=busy_code))


@pytest.mark.parametrize(
    ("pattern", "meant"), [("%RETRY%g", "g"), ("%RETRY%g*", "g*"), ("%RETRY%", "*"), ("[%]RETRY%g", "g")]
)
@pytest.mark.parametrize("kind", ["topic", "retry_group"])
def test_a_retry_topic_is_written_as_its_group(kind: str, pattern: str, meant: str) -> None:
    with pytest.raises(RuleError) as caught:
        check_rule(Rule(kind, pattern, 5))
    assert caught.value.allowed == f"kind retry_group and the bare group, {meant}"


@pytest.mark.parametrize("pattern", ["*", "g@orders", "g@*", "*@orders", "g@%RETRY%g", "g*", "g@a@b"])
def test_a_subscription_that_can_match_is_taken(pattern: str) -> None:
    check_rule(Rule("subscription", pattern, 5))


@pytest.mark.parametrize("pattern", ["orders", "g[*]"])
def test_a_subscription_without_its_topic_is_not(pattern: str) -> None:
    with pytest.raises(RuleError, match=r"allowed: GROUP@TOPIC"):
        check_rule(Rule("subscription", pattern, 5))


def test_the_rules_that_are_built_in_are_taken() -> None:
    for rule in PROTOCOL.default_rules:
        PROTOCOL.check_rule(rule)
