"""RocketMQ's remoting protocol: JSON and binary headers, limits per topic and per retrying consumer group."""

from limiter.rules import Rule
from proxy.protocols.base import Protocol
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.requests import UNPARSABLE_RESOURCES
from proxy.protocols.rocketmq.session import RocketMQSession

_NEVER_LIMITED = ("*_REPLY_TOPIC", "RMQ_SYS_*")

PROTOCOL = Protocol(
    name="rocketmq",
    kinds=(codes.KIND_TOPIC, codes.KIND_RETRY_GROUP),
    default_rules=tuple(Rule(codes.KIND_TOPIC, name, None, source="built-in") for name in _NEVER_LIMITED),
    default_rates_per_s={codes.KIND_TOPIC: 2000, codes.KIND_RETRY_GROUP: 100},
    open_session=RocketMQSession,
    options=RocketMQOptions,
    stand_ins=UNPARSABLE_RESOURCES,
)
"""The entry point ``rocketmq``."""
