"""The typed configuration of the RocketMQ protocol, a listener's ``options`` table."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Final, Literal

from annotated_types import Ge
from pydantic import AfterValidator, PlainValidator

from limiter.errors import RuleError
from limiter.patterns import read_network
from proxy.clients import Network
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.scans import ScanName, scan_named


class Networks(tuple[Network, ...]):
    """Networks of clients; none is nobody."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return them as they are written, single addresses as such."""
        return "[" + ", ".join(str(each).removesuffix(f"/{each.max_prefixlen}") for each in self) + "]"


def _read_networks(value: object) -> Networks:
    if isinstance(value, Networks):
        return value
    allowed = 'must be a list of addresses and networks, like ["10.1.2.3", "10.0.0.0/8", "2001:db8::/32"]; [] is nobody'
    if not isinstance(value, list | tuple):
        raise ValueError(allowed)  # noqa: TRY004 - only this is an error of the configuration to pydantic
    return Networks(_read_network(each, allowed) for each in value)


def _read_network(value: object, allowed: str) -> Network:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    network = None
    if isinstance(value, str):
        try:
            network = read_network(value).network
        except RuleError as error:
            raise ValueError(f'"{value}" is none of what is allowed: {error.allowed}') from None
    if network is None:
        raise ValueError(allowed)
    return network


_NOBODY: Final = Networks()
_LOOPBACK: Final = Networks((IPv4Network("127.0.0.0/8"), IPv6Network("::1/128")))


def _installed(name: ScanName) -> ScanName:
    if scan_named(name) is None:
        raise ValueError('is not here in this version: build it with "pip install ./scan", or write "auto"')
    return name


_Networks = Annotated[Networks, PlainValidator(_read_networks)]


@dataclass(frozen=True, slots=True)
class RocketMQOptions:
    """What can be set for a RocketMQ listener.

    Attributes:
        tls: what to do with a client that begins with a TLS handshake, which Sluice does not decode:
            ``refuse`` closes the connection, ``pass`` relays it unread and therefore unlimited.
        max_frame_bytes: a frame above this ends its connection, as it would at the broker; the frame's own
            length word is included. At least the words that every frame begins with.
        remote_view_from: networks of clients that may ask Sluice for the limits in force (request 9002).
        remote_update_from: networks of clients that may change limits (request 9003).
        scan: what reads plain sends: ``compiled`` is the package sluice_scan, ``python`` is always there; ``auto``
            takes the compiled one if it is installed.
    """

    tls: Literal["refuse", "pass"] = "refuse"
    max_frame_bytes: Annotated[int, Ge(codes.PREFIX_BYTES)] = codes.MAX_FRAME_BYTES
    remote_view_from: _Networks = _LOOPBACK
    remote_update_from: _Networks = _NOBODY
    scan: Annotated[ScanName, AfterValidator(_installed)] = "auto"
