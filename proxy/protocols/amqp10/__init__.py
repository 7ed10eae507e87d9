"""AMQP 1.0 as RabbitMQ 4 and ActiveMQ Artemis implement it: limits by link credit."""

from proxy.protocols.amqp.kinds import amqp_protocol, kinds
from proxy.protocols.amqp10.credit import Hub
from proxy.protocols.amqp10.session import AMQP10Options, AMQP10Session

PROTOCOL = amqp_protocol(
    name="amqp10",
    kinds=kinds(
        "delay",
        "a settled message cannot be refused; it waits for credit regardless of the rule's action",
        by_credit=True,
    ),
    open_session=AMQP10Session,
    open_hub=Hub,
    options=AMQP10Options,
)
