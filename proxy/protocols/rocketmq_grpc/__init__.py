"""RocketMQ 5 over gRPC, the protocol of RocketMQ's Proxy. Rules for ``rocketmq`` also apply here.

gRPC has no producer groups. When a transaction ends, the Proxy uses its topic instead, and so does Sluice.
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
