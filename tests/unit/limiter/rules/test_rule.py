from typing import Any

import pytest

from limiter.rules.errors import RuleError
from limiter.rules.rule import MAX_FAIR_KEYS, Rule


def test_rule_has_a_name_for_logs_and_integers_for_the_bucket() -> None:
    rule = Rule("topic", "orders", 500.5, burst_s=2, break_s=0.25, max_delay_s=0.5, warm_up_s=0)

    assert (rule.name, rule.target) == ("topic:orders", "topic:orders")
    assert rule.rate_upermits_per_s == 500_500_000
    assert rule.capacity_upermits == 1_001_000_000
    assert (rule.burst_ns, rule.break_ns, rule.max_delay_ns) == (2_000_000_000, 250_000_000, 500_000_000)
    assert rule.break_in_force_s == 0.25


# --- the second dimension


@pytest.mark.parametrize(
    ("values", "what", "attribute"),
    [
        ({"bytes_per_s": -1}, "invalid bytes_per_s -1", "bytes_per_s"),
        ({"bytes_per_s": 1e10}, "invalid bytes_per_s 10000000000.0", "bytes_per_s"),
        ({"bytes_per_s": 5, "bytes_burst_s": 4000}, "invalid bytes_burst_s 4000", "bytes_burst_s"),
        ({"bytes_per_s": 5, "bytes_burst_s": 0}, "bytes_per_s 5 with bytes_burst_s 0 is too low", "bytes_per_s"),
        (
            {"bytes_per_s": 5, "bytes_burst_s": 0.5, "break_s": 1},
            "break_s 1 is longer than bytes_burst_s 0.5",
            "break_s",
        ),
    ],
)
def test_faults_of_the_bytes_name_their_own_attributes(values: Any, what: str, attribute: str) -> None:
    with pytest.raises(RuleError, match=f"topic:a: {what}") as error:
        Rule("topic", "a", 5, **values)

    assert error.value.attribute == attribute
    assert "messages" not in error.value.allowed


# --- the breaker


@pytest.mark.parametrize(
    ("values", "break_s"),
    [
        ({}, 1),
        ({"burst_s": 5}, 1),
        ({"burst_s": 0.2}, 0.2),
        ({"shared": True}, 0),
        ({"kind": "client"}, 0),
        ({"kind": "producer_group"}, 0),
        ({"kind": "listener"}, 0),
        ({"action": "delay"}, 0),
        ({"warm_up_s": 5}, 0),
        ({"action": "shadow"}, 1),
        ({"kind": "listener", "break_s": 0.5}, 0.5),
        ({"shared": True, "break_s": 0.5}, 0.5),
        ({"action": "delay", "break_s": 0}, 0),
    ],
)
def test_the_default_break_applies_only_where_it_is_harmless(values: dict[str, Any], break_s: float) -> None:
    rule = Rule(**({"kind": "topic", "pattern": "*", "rate_per_s": 100} | values))

    assert rule.break_in_force_s == break_s


def test_break_longer_than_the_burst_is_refused_unless_allowed() -> None:
    with pytest.raises(RuleError, match=r"break_s 2 is longer than burst_s 1.0.*allow_under_limit") as error:
        Rule("topic", "orders", 100, break_s=2)

    assert error.value.attribute == "break_s"
    assert Rule("topic", "orders", 100, break_s=2, allow_under_limit=True).break_ns == 2_000_000_000


@pytest.mark.parametrize(("values", "why"), [({"action": "delay"}, 'action "delay"'), ({"warm_up_s": 1}, "warm_up_s")])
def test_a_break_without_a_breaker_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=f"break_s 1 cannot be combined with {why}, which has no breaker"):
        Rule("topic", "orders", 100, break_s=1, **values)


# --- invalid values


@pytest.mark.parametrize(("rate_per_s", "burst_s"), [(1e-7, 1.0), (0.001, 0.0001), (100, 0)])
def test_rate_that_could_never_store_anything_is_refused(rate_per_s: float, burst_s: float) -> None:
    with pytest.raises(RuleError, match=r"with burst_s .* is too low"):
        Rule("topic", "orders", rate_per_s, burst_s=burst_s, break_s=0)


@pytest.mark.parametrize("kind", ["", "Topic", "a b", "topic:", "1st", "total"])
def test_an_invalid_kind_is_refused(kind: str) -> None:
    with pytest.raises(RuleError, match="rule kind"):
        Rule(kind, "orders", 1)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("action", "refuse", "reject, shadow, delay, off"),
        ("action", None, "reject, shadow, delay, off"),
        ("count", "bytes", "messages, requests"),
        ("fair_by", "", "client, producer_group, certificate, user, topic, queue, exchange"),
        ("weight", 0, "1 to 1000"),
        ("max_fair_keys", 0, f"1 to {MAX_FAIR_KEYS}"),
        ("max_fair_keys", MAX_FAIR_KEYS + 1, f"1 to {MAX_FAIR_KEYS}"),
        ("confirm", "consumer", "broker, after_consume"),
        ("fallback", "drop", "persist, nack"),
        ("confirm_below_bytes", 0, "1 to 1048576 bytes"),
        ("confirm_below_bytes", 1_048_577, "1 to 1048576 bytes"),
        ("confirm_queues", 0, "1 to 1000"),
        ("confirm_queues", 1001, "1 to 1000"),
        ("confirm_within_s", 0, "more than 0 and at most 3600 seconds"),
    ],
)
def test_unknown_word_is_refused_with_the_allowed_ones(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(RuleError, match=f"topic:orders: (invalid )?{field} ") as error:
        Rule("topic", "orders", 1, **{field: value})

    assert (error.value.allowed, error.value.attribute) == (allowed, field)


@pytest.mark.parametrize(("kind", "pattern"), [("topic", "orders"), ("topic", "a[*]"), ("client", "10.0.0.1/32")])
def test_total_of_one_name_is_refused(kind: str, pattern: str) -> None:
    with pytest.raises(RuleError, match="a shared rule must match more than one name"):
        Rule(kind, pattern, 1, shared=True)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"kind": "client", "fair_by": "client"}, "each client has a separate limit"),
        ({"kind": "producer_group", "fair_by": "producer_group"}, "each producer_group has a separate limit"),
        ({"kind": "topic", "fair_by": "client", "warm_up_s": 1}, "fair_by cannot be combined with warm_up_s"),
    ],
)
def test_fair_shares_where_there_are_none_to_be_had_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=why):
        Rule(pattern="*", rate_per_s=1, **values)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"kind": "topic", "rate_per_s": 1}, "exempt cannot be combined with a limit"),
        ({"kind": "topic", "rate_per_s": None, "bytes_per_s": 1}, "exempt cannot be combined with a limit"),
        ({"kind": "topic", "rate_per_s": None, "shared": True}, "not to scopes or totals"),
        ({"kind": "client", "rate_per_s": None}, "not to scopes or totals"),
    ],
)
def test_exempt_contradicts_a_limit_and_is_for_resources(values: dict[str, Any], why: str) -> None:
    with pytest.raises(RuleError, match=why) as caught:
        Rule(pattern="*", exempt=True, **values)
    assert caught.value.attribute == "exempt"


# --- keys


@pytest.mark.parametrize("values", [{"kind": "queue", "shared": True}, {"kind": "client"}])
def test_consumers_confirm_for_each_resource_only(values: dict[str, Any]) -> None:
    with pytest.raises(RuleError, match="not to scopes or totals") as error:
        Rule(pattern="*", rate_per_s=1, confirm="after_consume", **values)

    assert error.value.attribute == "confirm"


ADAPTIVE: dict[str, Any] = {"kind": "listener", "pattern": "*", "rate_per_s": None, "adaptive": True}


def test_an_adaptive_rule_limits_without_a_rate_and_is_named_so() -> None:
    rule = Rule(**ADAPTIVE, ceiling_per_s=5_000_000, fair_by="topic")
    assert (rule.limits, rule.part("messages"), rule.part("bytes"), rule.break_ns) == (True, rule, None, 0)
    assert rule.name == "adaptive listener:*"
    assert rule.limit_text == "adaptive, at least 100/s, at most 5000000/s, shared by topic"
    off = Rule(**ADAPTIVE, action="off")
    assert (off.limits, off.part("messages")) == (False, None)


@pytest.mark.parametrize(
    ("values", "allowed", "attribute"),
    [
        ({"kind": "topic", "pattern": "orders"}, "a rate or a weight for topic orders", "adaptive"),
        ({"shared": True}, "a rate for listener *", "adaptive"),
        ({"rate_per_s": 5}, "either adaptive = true with floor and ceiling, or rate_per_s", "rate_per_s"),
        ({"bytes_per_s": 5}, "either adaptive = true with floor and ceiling, or bytes_per_s", "bytes_per_s"),
        ({"action": "delay"}, "reject, shadow or off", "action"),
        ({"credit_waits": True}, "reject, shadow or off", "action"),
        ({"warm_up_s": 1}, "only one of them", "warm_up_s"),
        ({"break_s": 1}, "only one of them", "break_s"),
        ({"floor_per_s": 0}, "1 to 1000000000 messages per second", "floor_per_s"),
        ({"floor_per_s": float("nan")}, "1 to 1000000000 messages per second", "floor_per_s"),
        ({"ceiling_per_s": 50}, "from the floor to 1000000000 messages per second", "ceiling_per_s"),
        (
            {"exempt": True},
            "a kind of resource, without shared; to exempt clients, use the listener's exempt setting",
            "exempt",
        ),
    ],
)
def test_invalid_fields_of_an_adaptive_rule_are_refused(values: dict[str, Any], allowed: str, attribute: str) -> None:
    with pytest.raises(RuleError) as error:
        Rule(**ADAPTIVE | values)
    assert (error.value.allowed, error.value.attribute) == (allowed, attribute)


def test_a_ceiling_below_the_floor_is_called_so() -> None:
    with pytest.raises(RuleError, match="adaptive ceiling 100 is below the floor of 500;"):
        Rule(**ADAPTIVE, ceiling_per_s=100, floor_per_s=500)


def test_shares_by_destination_are_for_adaptive_rules() -> None:
    with pytest.raises(RuleError, match="fair_by 'topic' requires adaptive = true") as error:
        Rule("listener", "*", 5, fair_by="topic")
    assert error.value.allowed == "adaptive = true, or a separate limit for each topic instead of fair_by"
