"""RocketMQ's remoting protocol.

``proxy.net.broker_watch`` relies on two observations. A Java client (5.5.0) reconnects as soon as its connection is
closed, which disrupts lite pulls and request-reply for minutes. The broker (5.3) closes connections up to 50 ms before
it stops listening.
"""

from typing import Final

from limiter.rules.resource import PRODUCER_GROUP, Resource
from limiter.rules.rule import Rule
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.options import read_by
from proxy.protocols.rocketmq.options import RocketMQOptions, check_rule
from proxy.protocols.rocketmq.refusals import INTERNAL_TOPIC, is_internal
from proxy.protocols.rocketmq.session import RocketMQSession, begin
from proxy.protocols.rocketmq.transactions import Transactions
from proxy.protocols.rocketmq.wire import codes

# Topics for replies, and for records that the brokers of a cluster exchange.
_EXEMPT = ("*_REPLY_TOPIC", "RMQ_SYS_*")
_SEND_TIMEOUT_S = 3.0  # the shortest default of common clients
_BUSY_ATTEMPTS: Final = dict.fromkeys(codes.LANGUAGES, 1) | {
    "JAVA": 3,  # only synchronous sends
    # These clients make all attempts within a millisecond.
    "CPP": 3,
    "PYTHON": 3,
}


def _always_refuses(options: RocketMQOptions, resource: Resource) -> str:
    internal = resource.kind == codes.KIND_TOPIC and is_internal(resource.name)
    return INTERNAL_TOPIC if internal and options.internal_topics == "refuse" else ""


PROTOCOL = Protocol(
    name="rocketmq",
    kinds=(
        Kind(
            codes.KIND_TOPIC,
            "messages sent to a topic",
            rate_per_s=2000,
            client_timeout_s=_SEND_TIMEOUT_S,
            in_commands=True,
        ),
        Kind(
            codes.KIND_RETRY_GROUP,
            "messages that consumers of a group send back; the name is the group, without %RETRY%",
            rate_per_s=100,
            action="delay",
            client_timeout_s=_SEND_TIMEOUT_S,
            in_commands=True,
        ),
        Kind(
            codes.KIND_TRANSACTION,
            "commits and rollbacks of a producer group's transactions; the name is the group",
            action="delay",
        ),
        Kind(
            codes.KIND_SUBSCRIPTION,
            "messages of a topic delivered to a consumer group; the name is GROUP@TOPIC",
            "GROUP@TOPIC",
            action="delay",
            max_delay_s=10.0,
            consumes=True,
        ),
    ),
    default_rules=tuple(Rule(codes.KIND_TOPIC, name, None, exempt=True, source="built-in") for name in _EXEMPT),
    open_session=RocketMQSession,
    begin=begin,
    open_hub=Transactions,
    options=RocketMQOptions,
    check_rule=check_rule,
    reads_by=lambda options: read_by(options.scan),
    always_refuses=_always_refuses,
    half_closes=False,
    extra_port_offset=codes.VIP_PORT_OFFSET,
    kind_hints=dict.fromkeys(
        ("consumer_group", "consumer", "group", "subscription_group"), (codes.KIND_SUBSCRIPTION, codes.KIND_RETRY_GROUP)
    ),
    scopes=(PRODUCER_GROUP,),
    busy_attempts=_BUSY_ATTEMPTS,
)
