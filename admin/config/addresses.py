"""TCP addresses as operators write them, ``host:port``, and whether two of them are the same. Nothing is looked up.

``reaches`` is about connecting: ``localhost`` is this machine in either family. ``collides`` is about listening:
127.0.0.1 and ::1 differ, and port 0 is always free.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple

DEFAULT_ADMIN: Final = "127.0.0.1:9870"

WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})
"""Hosts that mean every address of this machine."""


class Endpoint(NamedTuple):
    """A TCP address, written ``host:port`` (``[::1]:port`` for IPv6)."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the spelling that ``parse_endpoint`` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(value: object) -> Endpoint:
    """Read ``host:port``.

    Raises:
        ValueError: with what is allowed.
    """
    if isinstance(value, Endpoint):
        return value
    problem = ValueError('must be "host:port", for example "127.0.0.1:10911" or "[::1]:10911"')
    if not isinstance(value, str):
        raise problem
    if "://" in value:
        raise ValueError('must be "host:port", not a URL, for example "127.0.0.1:10911"')
    host, colon, port_text = value.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('must have brackets around an IPv6 address, for example "[::1]:10911"')
    if not colon or not host or any(char.isspace() or char in "[]/" for char in host):
        raise problem
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError("must end in a port from 0 to 65535")
    return Endpoint(host, int(port_text))


_LOCALHOST: Final = "localhost"
_IPV4_LOOPBACK: Final = "127.0.0.1"
_IPV6_LOOPBACK: Final = "::1"
_IPV6: Final = 6


def reaches(broker: Endpoint, listen: Endpoint) -> bool:
    """Return whether a connection to ``broker`` would arrive at ``listen``."""
    if broker.port != listen.port:
        return False
    hosts = {_canonical(broker.host), _canonical(listen.host)}
    if hosts & WILDCARDS:
        return all(host in WILDCARDS or _is_loopback(host) for host in hosts)
    return len({_IPV4_LOOPBACK if host in {_LOCALHOST, _IPV6_LOOPBACK} else host for host in hosts}) == 1


def collides(first: Endpoint, second: Endpoint) -> bool:
    """Return whether it is impossible to listen on both."""
    if first.port != second.port or first.port == 0:
        return False
    one, other = _canonical(first.host), _canonical(second.host)
    return one == other or _covers(one, other) or _covers(other, one)


def leaves_ipv4(listen: Endpoint, others: Iterable[Endpoint]) -> bool:
    """Return whether a listener on ``[::]`` must leave IPv4 to another address with its port."""
    same_port = (each.host for each in others if each.port == listen.port and each.port)
    return any(_version(_canonical(host)) != _IPV6 for host in same_port)


def _covers(wide: str, narrow: str) -> bool:
    if wide == "*":
        return True
    if wide == _LOCALHOST:
        return narrow in {_IPV4_LOOPBACK, _IPV6_LOOPBACK}
    if wide == "0.0.0.0":
        return narrow == _LOCALHOST or _version(narrow) == 4
    return wide == "::" and (narrow == _LOCALHOST or _version(narrow) == 6)


def _canonical(host: str) -> str:
    """Normalize a host."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _is_loopback(host: str) -> bool:
    return host == _LOCALHOST or (_version(host) is not None and ipaddress.ip_address(host).is_loopback)


def _version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None
