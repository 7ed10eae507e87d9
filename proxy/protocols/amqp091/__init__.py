"""AMQP 0.9.1, as RabbitMQ speaks it: limits per queue, exchange, routing key, and for what consumers are given."""

from operator import attrgetter

from proxy.protocols.amqp.kinds import EXEMPT, KINDS_MEANT, SCOPES, check_rule, kinds
from proxy.protocols.amqp091.memory import Hub, confirm_states
from proxy.protocols.amqp091.options import AMQP091Options
from proxy.protocols.amqp091.session import AMQP091Session
from proxy.protocols.base import Protocol
from proxy.protocols.options import read_by

PROTOCOL = Protocol(
    name="amqp091",
    kinds=kinds(
        "reject",
        "a publish without confirms or in a transaction cannot be refused: it waits, whatever the action",
        after_consume=True,
    ),
    default_rules=EXEMPT,
    open_session=AMQP091Session,
    options=AMQP091Options,
    check_rule=check_rule,
    reads_by=lambda options: read_by(options.scan),
    half_closes=False,
    scopes=SCOPES,
    certificate_logins=True,
    open_hub=Hub,
    held_bytes=attrgetter("held_bytes"),
    confirm_states=confirm_states,
    kinds_meant=KINDS_MEANT,
)
"""The entry point ``amqp091``."""
