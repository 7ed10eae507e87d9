"""Rewrites broker addresses in a name server's answers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from proxy.protocols.base import ListenerAddresses
from proxy.protocols.rocketmq.wire.codes import VIP_PORT_OFFSET

Address = tuple[str, int]
"""Host and port. The host is an IP address as ``ipaddress`` formats it, or a lower-case name."""

_MAX_PORT: Final = 65535
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
# A host name that needs no escaping in JSON.
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")


def read_address(text: str) -> Address | None:
    """Parse ``host:port``. IPv6 addresses may lack brackets, because RocketMQ omits them."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if _HOST.fullmatch(host) is None or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _MAX_PORT:
        return None
    return _one_spelling(host), int(port)


def _one_spelling(host: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _write_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Addresses(tuple[tuple[Address, Address], ...]):
    """Pairs of a broker's registered address and the address that clients get instead."""

    __slots__ = ()

    def __str__(self) -> str:
        pairs = (f'"{_write_address(*given)}" = "{_write_address(*told)}"' for given, told in self)
        return f"{{ {', '.join(pairs)} }}" if self else "{}"


NO_ADDRESSES: Final = Addresses()


def _read_addresses(value: object) -> Addresses:
    if isinstance(value, Addresses):
        return value
    allowed = 'must be a table of addresses, like { "10.0.0.5:10911" = "sluice.example.com:10911" }'
    if not isinstance(value, Mapping):
        raise ValueError(allowed)  # noqa: TRY004 - what is wrong with a value is a ValueError
    pairs = []
    for pair in value.items():
        given, told = (read_address(each) if isinstance(each, str) else None for each in pair)
        if given is None or told is None:
            wrong = pair[0] if given is None else pair[1]
            raise ValueError(f"{wrong!r} is not a valid address; the value {allowed}")
        pairs.append((given, told))
    return Addresses(pairs)


def _read_host(value: str) -> str:
    host = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    try:
        ip_address(host)
    except ValueError:
        if host and (":" in host or _HOST.fullmatch(host) is None):
            raise ValueError('must be a host name or an IP address without a port, like "sluice.example.com"') from None
    return host


AddressTable = Annotated[Addresses, Meta(extra={"read": _read_addresses})]
Host = Annotated[str, Meta(extra={"check": _read_host})]
"""May be empty."""


def advertised_addresses(
    addresses: Addresses, advertise: str, fronts: Iterable[ListenerAddresses], connected: str
) -> dict[Address, bytes]:
    """Return the replacement for each registered broker address.

    If ``advertise`` is empty, a listener on a wildcard address is announced at ``connected``, the address to which the
    client connected.
    """
    told: dict[Address, bytes] = {}
    for front in fronts:
        host, port = front.listen
        if advertise or host in _WILDCARDS:
            host = advertise or connected
        for broker_host, broker_port in front.brokers:
            told.setdefault((_one_spelling(broker_host), broker_port), _write_address(host, port).encode())
    told.update((given, _write_address(*instead).encode()) for given, instead in addresses)
    return told


def without_vip(fronts: Sequence[ListenerAddresses]) -> list[Address]:
    """Return the addresses of listeners whose VIP port has no listener. Old Java clients connect to that port."""
    brokers = {front.brokers[0] for front in fronts}
    found = []
    for front in fronts:
        host, port = front.listen
        broker_host, broker_port = front.brokers[0]
        is_vip = (broker_host, broker_port - VIP_PORT_OFFSET) in brokers
        vip = {(each, port + VIP_PORT_OFFSET) for each in (host, *_WILDCARDS)}
        if port and not is_vip and vip.isdisjoint(other.listen for other in fronts):
            found.append(front.listen)
    return found


# The name server does not quote keys in answers to older clients. Addresses contain no backslash, so a string ends at
# the next quote. Each pattern takes linear time.
_ENTRY: Final = rb'\s*+(?:"-?[0-9]++"|-?[0-9]++)\s*+:\s*+"[^"\\]*+"\s*+'
_KEY: Final = re.compile(rb'"brokerAddrs?+"\s*+:')
_MAP_OR_ONE: Final = re.compile(
    rb'"brokerAddr(?:s"\s*+:\s*+(?:null|\{(?:%(entry)b(?:,%(entry)b)*+|\s*+)\})|"\s*+:\s*+(?:null|"[^"\\]*+"))'
    % {b"entry": _ENTRY}
)
_VALUE: Final = re.compile(rb':\s*+"([^"\\]*+)"')
_OBJECT: Final = re.compile(rb"\s*+\{.*\}\s*+", re.DOTALL)


class Rewritten(NamedTuple):
    body: bytes
    replaced: int
    left: int


def rewrite(body: bytes, told: Mapping[Address, bytes]) -> Rewritten | None:
    """Replace the broker addresses in a body. Return None if one of them cannot be read.

    In routes and cluster information, ``brokerAddrs`` maps broker ids to addresses. In lists of topics, ``brokerAddr``
    is a single address.
    """
    if _OBJECT.fullmatch(body) is None:
        return None
    maps = list(_MAP_OR_ONE.finditer(body))
    if len(maps) != sum(1 for _ in _KEY.finditer(body)):
        return None
    pieces: list[bytes] = []
    at = replaced = left = 0
    for found in maps:
        for value in _VALUE.finditer(body, found.start(), found.end()):
            address = read_address(value[1].decode(errors="replace"))
            instead = None if address is None else told.get(address)
            if instead is None:
                left += 1
                continue
            replaced += 1
            start, end = value.span(1)
            pieces += (body[at:start], instead)
            at = end
    return Rewritten(b"".join((*pieces, body[at:])), replaced, left)
