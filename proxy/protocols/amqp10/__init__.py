"""AMQP 1.0, as RabbitMQ 4 and ActiveMQ Artemis speak it: limits by the credit of links."""

from proxy.protocols.amqp.kinds import EXEMPT, KINDS_MEANT, SCOPES, check_rule, kinds
from proxy.protocols.amqp10.credit import Hub
from proxy.protocols.amqp10.options import AMQP10Options
from proxy.protocols.amqp10.session import AMQP10Session
from proxy.protocols.base import Protocol
from proxy.protocols.options import read_by

PROTOCOL = Protocol(
    name="amqp10",
    kinds=kinds(
        "delay", "a settled message cannot be refused: it waits for credit, whatever the action", by_credit=True
    ),
    default_rules=EXEMPT,
    open_session=AMQP10Session,
    open_hub=Hub,
    options=AMQP10Options,
    check_rule=check_rule,
    reads_by=lambda options: read_by(options.scan),
    half_closes=False,
    scopes=SCOPES,
    certificate_logins=True,
    kinds_meant=KINDS_MEANT,
)
"""The entry point ``amqp10``."""
