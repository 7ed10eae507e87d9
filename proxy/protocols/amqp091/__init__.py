"""AMQP 0.9.1, as RabbitMQ speaks it: limits per queue, exchange, routing key, and for what consumers are given."""

from operator import attrgetter
from typing import Final

from limiter.rules.resource import USER, VHOST
from limiter.rules.rule import Rule
from proxy.protocols.amqp.names import DELIVERY, EXCHANGE, QUEUE, ROUTING_KEY
from proxy.protocols.amqp091.memory import Hub
from proxy.protocols.amqp091.options import AMQP091Options, check_rule
from proxy.protocols.amqp091.session import AMQP091Session
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.options import read_by

#: Replies to who waits for one, in the default vhost and in others.
_EXEMPT: Final = ("amq.rabbitmq.reply-to*", "*/amq.rabbitmq.reply-to*")
_IN_VHOST: Final = "the name of a vhost other than / stands in front, as in tenant1/"
_PUBLISHES_WAIT: Final = (
    "a publish without confirms or in a transaction cannot be refused: it waits, whatever the action"
)

PROTOCOL = Protocol(
    name="amqp091",
    kinds=(
        Kind(
            QUEUE,
            f"messages published to a queue through the default exchange; {_IN_VHOST}orders",
            waits=_PUBLISHES_WAIT,
        ),
        Kind(
            EXCHANGE,
            f"messages published to a named exchange; {_IN_VHOST}events",
            waits=_PUBLISHES_WAIT,
        ),
        Kind(
            ROUTING_KEY,
            f"messages published to an exchange with a routing key; {_IN_VHOST}events/eu.created",
            "EXCHANGE/KEY",
            waits=_PUBLISHES_WAIT,
        ),
        Kind(
            DELIVERY,
            f"messages that a queue hands to consumers; {_IN_VHOST}orders",
            action="delay",
            consumes=True,
            refuses=False,
            waits="a delivery cannot be refused: it waits, whatever the action",
        ),
    ),
    default_rules=tuple(
        Rule(kind, name, None, exempt=True, source="built-in") for kind in (QUEUE, DELIVERY) for name in _EXEMPT
    ),
    open_session=AMQP091Session,
    options=AMQP091Options,
    check_rule=check_rule,
    reads_by=lambda options: read_by(options.scan),
    half_closes=False,
    scopes=(USER, VHOST),
    open_hub=Hub,
    held_bytes=attrgetter("waiting_bytes"),
    kinds_meant={
        "topic": (QUEUE, EXCHANGE, ROUTING_KEY),
        "binding": (ROUTING_KEY,),
        "key": (ROUTING_KEY,),
        "consumer": (DELIVERY,),
    },
)
"""The entry point ``amqp091``."""
