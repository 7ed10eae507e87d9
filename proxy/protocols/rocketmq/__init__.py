"""RocketMQ's remoting protocol: JSON and binary headers, limits per topic, retrying consumer group and subscription."""

from limiter.rule import Rule
from proxy.protocols.base import Kind, Protocol
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.requests import UNPARSABLE_RESOURCES
from proxy.protocols.rocketmq.rule_check import check_rule
from proxy.protocols.rocketmq.scans import scan_named
from proxy.protocols.rocketmq.session import RocketMQSession

#: Replies to who waits for one, and what the brokers of a cluster tell each other and record.
_EXEMPT = ("*_REPLY_TOPIC", "RMQ_SYS_*")
#: What clients wait for the answer to a send or a send-back by default; of the usual ones none waits less.
_SEND_TIMEOUT_S = 3.0

PROTOCOL = Protocol(
    name="rocketmq",
    kinds=(
        Kind(codes.KIND_TOPIC, "what is sent to a topic", rate_per_s=2000, patience_s=_SEND_TIMEOUT_S),
        Kind(
            codes.KIND_RETRY_GROUP,
            "what the consumers of a group send back; the group's bare name, without %RETRY%",
            rate_per_s=100,
            action="delay",
            patience_s=_SEND_TIMEOUT_S,
        ),
        Kind(
            codes.KIND_SUBSCRIPTION,
            "what a consumer group is given of a topic; GROUP@TOPIC",
            action="delay",
            max_delay_s=10.0,
            consumes=True,
        ),
    ),
    default_rules=tuple(Rule(codes.KIND_TOPIC, name, None, exempt=True, source="built-in") for name in _EXEMPT),
    open_session=RocketMQSession,
    options=RocketMQOptions,
    stand_ins=UNPARSABLE_RESOURCES,
    check_rule=check_rule,
    reads_by=lambda options: str(scan_named(options.scan)),
)
"""The entry point ``rocketmq``."""
