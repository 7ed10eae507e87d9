import pytest

from limiter.rules.errors import RuleError
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.protocols.amqp091 import PROTOCOL as AMQP091
from proxy.protocols.amqp10 import PROTOCOL as AMQP10
from proxy.protocols.amqp_both import PROTOCOL as BOTH
from proxy.protocols.base import Protocol

PROTOCOLS = pytest.mark.parametrize("protocol", [AMQP091, AMQP10, BOTH], ids=lambda protocol: protocol.name)


@PROTOCOLS
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule("routing_key", "eu.created", 5), "EXCHANGE/KEY, e.g. eu.created/"),
        (Rule("queue", "orders", 5, busy_code=2), "without busy_code"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(protocol: Protocol, rule: Rule, said: str) -> None:
    with pytest.raises(RuleError) as caught:
        protocol.check_rule(rule)
    assert said in caught.value.allowed


@PROTOCOLS
@pytest.mark.parametrize(
    ("kind", "address", "meant"),
    [
        ("queue", "/queues/orders", "queue:orders"),
        ("queue", "/queues/*", "queue:*"),
        ("delivery", "/queues/orders", "delivery:orders"),
        ("queue", "/amq/queue/orders", "queue:orders"),
        ("exchange", "/exchanges/events", "exchange:events"),
        ("exchange", "/exchanges/events/eu.created", "routing_key:events/eu.created"),
        ("routing_key", "/exchanges/events/eu.created", "routing_key:events/eu.created"),
        ("routing_key", "/topic/eu.created", "routing_key:amq.topic/eu.created"),
        ("queue", "/orders", "queue:%2Forders"),
        ("queue", "/queues/", "queue:%2Fqueues%2F"),
    ],
)
def test_an_error_about_a_rule_named_by_an_address_has_its_name(
    protocol: Protocol, kind: str, address: str, meant: str
) -> None:
    with pytest.raises(RuleError, match="is an address") as caught:
        protocol.check_rule(Rule(kind, address, 5))
    assert f"use {meant} instead" in caught.value.what


@PROTOCOLS
@pytest.mark.parametrize(
    "rule",
    [
        Rule("routing_key", "events/eu.created", 5),
        Rule("routing_key", "*", 5),
        Rule("queue", "orders", 5),
        Rule("queue", "tenant1/orders", 5),
        Rule("vhost", "/", 5),
    ],
)
def test_other_rules_are_not(protocol: Protocol, rule: Rule) -> None:
    protocol.check_rule(rule)


# A reply is published to a unique queue, and delivered by one with the same name for every client.
@PROTOCOLS
@pytest.mark.parametrize(
    ("kind", "queue"), [("queue", "amq.rabbitmq.reply-to.g1h2AA"), ("delivery", "amq.rabbitmq.reply-to")]
)
def test_replies_are_exempt_in_all_vhosts(protocol: Protocol, kind: str, queue: str) -> None:
    rules = RuleSet([*protocol.default_rules, Rule(kind, "*", 5)])
    for name in (queue, f"tenant1/{queue}"):
        assert rules.match(Resource(kind, name)).exempt
