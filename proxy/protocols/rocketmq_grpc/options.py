"""The typed configuration of RocketMQ over gRPC, a listener's ``options`` table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from proxy.protocols.base import ListenerAddresses
from proxy.protocols.options import Tls
from proxy.protocols.rocketmq.routes import read_address


def _read_advertise(value: str) -> str:
    if value and read_address(value) is None:
        raise ValueError('must be a host and a port, like "sluice.example.com:8081"')
    return value


@dataclass(frozen=True, slots=True)
class RocketMQGrpcOptions:
    """What can be set for a listener in front of RocketMQ's Proxy.

    Attributes:
        advertise: host and port at which clients reach this listener, which they are told in place of the Proxy's. By
            default it is the address that each client says it has used, which is right unless an address translation
            gives it another one.
        tls: for clients that begin with a TLS handshake, where that does not end at the listener: ``refuse`` closes the
            connection, ``pass`` relays it unread, without limits and with the Proxy's own address in routes.
    """

    advertise: Annotated[str, Meta(extra={"check": _read_advertise})] = ""
    tls: Tls = "refuse"


def doubts(options: RocketMQGrpcOptions, listeners: Sequence[ListenerAddresses]) -> Iterable[str]:
    """Yield what sends clients past Sluice."""
    advertised = read_address(options.advertise)
    if advertised is not None and any(advertised in each.brokers for each in listeners):
        yield f"sends clients to {options.advertise}, which is the Proxy itself, so they go past Sluice"
