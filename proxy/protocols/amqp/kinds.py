"""The resource kinds of both AMQP versions, and a check for rules that use them."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from limiter.rules.errors import RuleError
from limiter.rules.resource import USER, VHOST
from limiter.rules.rule import Action, Rule
from proxy.protocols.amqp.names import DELIVERY, EXCHANGE, QUEUE, ROUTING_KEY
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.options import read_by

# Direct reply-to uses these pseudo-queues.
_EXEMPT: Final = tuple(
    Rule(kind, name, None, exempt=True, source="built-in")
    for kind in (QUEUE, DELIVERY)
    for name in ("amq.rabbitmq.reply-to*", "*/amq.rabbitmq.reply-to*")
)
_KIND_HINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": (QUEUE, EXCHANGE, ROUTING_KEY),
    "address": (QUEUE, EXCHANGE),
    "binding": (ROUTING_KEY,),
    "key": (ROUTING_KEY,),
    "consumer": (DELIVERY,),
}
_NAMED: Final = (QUEUE, EXCHANGE, ROUTING_KEY, DELIVERY)
_IN_VHOST: Final = "in vhosts other than /, the name begins with the vhost, as in tenant1/"


def kinds(
    action: Action, waits: str, *, credit_waits: str = "", by_credit: bool = False, after_consume: bool = False
) -> tuple[Kind, ...]:
    published = partial(Kind, action=action, credit_waits=credit_waits, waits=waits, by_credit=by_credit)
    confirmed = partial(published, after_consume=after_consume)
    return (
        confirmed(QUEUE, f"messages published directly to a queue; {_IN_VHOST}orders", queues=1),
        confirmed(EXCHANGE, f"messages published to a named exchange; {_IN_VHOST}events"),
        published(
            ROUTING_KEY,
            f"messages published to an exchange with a routing key; {_IN_VHOST}events/eu.created",
            "EXCHANGE/KEY",
        ),
        Kind(
            DELIVERY,
            f"messages that a queue delivers to consumers; {_IN_VHOST}orders",
            action="delay",
            consumes=True,
            refuses=False,
            waits="a delivery cannot be refused; it waits regardless of the rule's action",
            by_credit=by_credit,
        ),
    )


def check_rule(rule: Rule) -> None:
    """Raise RuleError if AMQP does not support the rule, or if the rule can never match."""
    if rule.busy_code is not None:
        raise RuleError(
            f"rule {rule.name}: AMQP does not support busy_code {rule.busy_code}, because its refusals have no code",
            "a limit without busy_code",
            "busy_code",
        )
    if rule.kind == QUEUE and rule.confirm_queues not in {None, 1}:
        raise RuleError(
            f"rule {rule.name}: confirm_queues is {rule.confirm_queues}, but a publish to a queue reaches only that"
            " queue",
            "1, or no confirm_queues (larger numbers require a rule of kind exchange)",
            "confirm_queues",
        )
    if rule.kind in _NAMED and rule.pattern.startswith("/"):
        raise RuleError(
            f"rule {rule.name}: {rule.pattern} is an address; use {_meant(rule)} instead",
            "a name without empty parts, in which / is written as %2F",
            "pattern",
        )
    name = rule.matches.exact_name
    if rule.kind == ROUTING_KEY and name is not None and "/" not in name:
        raise RuleError(
            f"rule {rule.name}: {name} must contain both an exchange and a routing key",
            f"EXCHANGE/KEY, e.g. {name}/* for the exchange or */{name} for the key",
            "pattern",
        )


def _meant(rule: Rule) -> str:
    _, node, *rest = rule.pattern.split("/", 2)
    name = rest[0] if rest else ""
    queue = DELIVERY if rule.kind == DELIVERY else QUEUE
    if node in ("queues", "queue") and name:
        return f"{queue}:{name}"
    if node == "amq" and name.removeprefix("queue/") not in ("", name):
        return f"{queue}:{name.removeprefix('queue/')}"
    if node in ("exchanges", "exchange") and name:
        return f"{ROUTING_KEY if '/' in name else EXCHANGE}:{name}"
    if node == "topic" and name:
        return f"{ROUTING_KEY}:amq.topic/{name}"
    return f"{rule.kind}:{rule.pattern.replace('/', '%2F')}"


amqp_protocol: Final = partial(
    Protocol,
    default_rules=_EXEMPT,
    check_rule=check_rule,
    reads_by=lambda options: read_by(options.scan),
    half_closes=False,
    scopes=(USER, VHOST),
    certificate_logins=True,
    kind_hints=_KIND_HINTS,
)
