"""Options of RocketMQ over gRPC: a listener's ``options`` table."""

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
    """Options of a listener for RocketMQ's Proxy.

    Attributes:
        advertise: host and port at which clients reach this listener. They replace the Proxy's address in routes. By
            default, Sluice uses the address to which each client says that it connected, which can be wrong behind NAT.
        tls: what to do if a client begins a TLS handshake and the listener does not terminate TLS. ``refuse`` closes
            the connection. ``pass`` relays the encrypted connection without applying limits. Clients then get the
            Proxy's own address.
    """

    advertise: Annotated[str, Meta(extra={"check": _read_advertise})] = ""
    tls: Tls = "refuse"


def lint(options: RocketMQGrpcOptions, listeners: Sequence[ListenerAddresses]) -> Iterable[tuple[str, str]]:
    """Yield reasons why clients would bypass Sluice."""
    advertised = read_address(options.advertise)
    if advertised is not None and any(advertised in each.brokers for each in listeners):
        yield (
            "advertise",
            "is the Proxy's own address, so clients bypass Sluice; set the address at which they reach this listener",
        )
