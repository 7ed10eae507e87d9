"""RocketMQ's remoting protocol: JSON and binary headers, limits per topic, retrying consumer group and subscription."""

from limiter.rule import Rule
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.requests import UNPARSABLE_RESOURCES
from proxy.protocols.rocketmq.rule_check import check_rule
from proxy.protocols.rocketmq.session import RocketMQSession

_NEVER_LIMITED = ("*_REPLY_TOPIC", "RMQ_SYS_*")

PROTOCOL = Protocol(
    name="rocketmq",
    kinds=(
        Kind(codes.KIND_TOPIC, "what is sent to a topic", rate_per_s=2000),
        Kind(
            codes.KIND_RETRY_GROUP,
            "what the consumers of a group send back; the group's bare name, without %RETRY%",
            rate_per_s=100,
            action="delay",
        ),
        Kind(
            codes.KIND_SUBSCRIPTION,
            "what a consumer group is given of a topic; GROUP@TOPIC",
            action="delay",
            max_delay_s=10.0,
            consumes=True,
        ),
    ),
    default_rules=tuple(Rule(codes.KIND_TOPIC, name, None, source="built-in") for name in _NEVER_LIMITED),
    open_session=RocketMQSession,
    options=RocketMQOptions,
    stand_ins=UNPARSABLE_RESOURCES,
    check_rule=check_rule,
)
"""The entry point ``rocketmq``."""
