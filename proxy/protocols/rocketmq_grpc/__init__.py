"""RocketMQ 5 over gRPC, as spoken by its Proxy. Kinds and names are those of ``rocketmq``, so one rule set serves both.

Topics have the same names in both. gRPC has no producer groups: the Proxy uses the topic instead, so Sluice does the
same for the end of a transaction. A rule's ``busy_code`` applies only to remoting. With gRPC, the code is always 42900.
"""

from dataclasses import replace
from typing import Final

from limiter.rules.resource import USER
from proxy.protocols.base import Protocol
from proxy.protocols.options import read_by
from proxy.protocols.rocketmq import PROTOCOL as REMOTING
from proxy.protocols.rocketmq_grpc.options import RocketMQGrpcOptions, lint
from proxy.protocols.rocketmq_grpc.session import RocketMQGrpcSession

_IGNORES: Final = {
    "busy_code": "refusals over gRPC always have the code 42900",
    "spool": "requests over gRPC wait in memory only, because their clients wait for the response",
}

PROTOCOL: Final = Protocol(
    name="rocketmq-grpc",
    kinds=tuple(replace(kind, ignores=_IGNORES) for kind in REMOTING.kinds),
    default_rules=REMOTING.default_rules,
    open_session=RocketMQGrpcSession,
    options=RocketMQGrpcOptions,
    check_rule=REMOTING.check_rule,
    reads_by=lambda _: read_by("python"),
    half_closes=False,
    kind_hints=REMOTING.kind_hints,
    scopes=(USER,),
    alpn=("h2",),
    lint=lint,
)
"""The entry point ``rocketmq-grpc``."""
