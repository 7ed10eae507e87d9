"""AMQP 0.9.1 as RabbitMQ implements it: limits on queues, exchanges, routing keys and deliveries to consumers."""

from operator import attrgetter

from proxy.protocols.amqp.kinds import amqp_protocol, kinds
from proxy.protocols.amqp091.after_consume import Hub, confirm_states
from proxy.protocols.amqp091.session import AMQP091Options, AMQP091Session

PROTOCOL = amqp_protocol(
    name="amqp091",
    kinds=kinds(
        "reject",
        "a publish without confirms or in a transaction cannot be refused; it waits regardless of the rule's action",
        after_consume=True,
    ),
    open_session=AMQP091Session,
    options=AMQP091Options,
    open_hub=Hub,
    held_bytes=attrgetter("held_bytes"),
    confirm_states=confirm_states,
)
