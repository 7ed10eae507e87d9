"""Parses and compares TCP addresses. Host names are not resolved."""

import ipaddress
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

DEFAULT_ADMIN: Final = "127.0.0.1:9870"

WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(value: object) -> Endpoint:
    """Parse ``host:port``. Raises a ValueError that shows the allowed forms."""
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
        raise ValueError('must have the IPv6 address in brackets, for example "[::1]:10911"')
    if not colon or not host or any(char.isspace() or char in "[]/" for char in host):
        raise problem
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError("must end with a port from 0 to 65535")
    return Endpoint(host, int(port_text))


class RedisAddress(NamedTuple):
    kind: Literal["server", "sentinel", "cluster"]
    is_tls: bool
    nodes: tuple[Endpoint, ...]
    service: str
    database: int


_REDIS_SCHEMES: Final[dict[str, tuple[Literal["server", "sentinel", "cluster"], bool, int]]] = {
    "redis": ("server", False, 6379),
    "rediss": ("server", True, 6379),
    "sentinel": ("sentinel", False, 26379),
    "sentinel+tls": ("sentinel", True, 26379),
    "cluster": ("cluster", False, 6379),
    "cluster+tls": ("cluster", True, 6379),
}


def parse_redis_url(url: str) -> RedisAddress:
    """Parse a Redis or Valkey URL. Raises a ValueError that shows the allowed forms."""
    examples = '"redis://127.0.0.1:6379", "sentinel://10.0.0.1,10.0.0.2/SERVICE" or "cluster://10.0.0.1,10.0.0.2"'
    scheme, _, rest = url.strip().partition("://")
    hosts, _, path = rest.partition("/")
    if "@" in hosts:
        raise ValueError("must not contain a user or password; set fleet.user and fleet.password_file instead")
    found = _REDIS_SCHEMES.get(scheme)
    if found is None or not hosts or "?" in rest:
        raise ValueError(f"must be a URL such as {examples}; for TLS, use rediss://, sentinel+tls:// or cluster+tls://")
    kind, is_tls, port = found
    nodes = tuple(
        parse_endpoint(each if ":" in each.rpartition("]")[2] else f"{each}:{port}") for each in hosts.split(",")
    )
    if kind == "server" and len(nodes) > 1:
        raise ValueError("must contain a single server; for multiple servers, use sentinel:// or cluster://")
    if kind == "sentinel" and not path:
        raise ValueError("must end with the service name, as in sentinel://HOST,HOST/SERVICE")
    if kind == "server" and path and not path.isdecimal():
        raise ValueError("must end with a database number, for example redis://127.0.0.1:6379/0")
    if kind == "cluster" and path:
        raise ValueError("must not select a database, because a Redis Cluster has only one")
    return RedisAddress(
        kind, is_tls, nodes, path if kind == "sentinel" else "", int(path or 0) if kind == "server" else 0
    )


_LOCALHOST: Final = "localhost"
_IPV4_LOOPBACK: Final = "127.0.0.1"
_IPV6_LOOPBACK: Final = "::1"


def is_loopback(host: str) -> bool:
    return host in {_LOCALHOST, _IPV6_LOOPBACK} or (host.startswith("127.") and _version(host) == 4)


def reaches(broker: Endpoint, listen: Endpoint) -> bool:
    """Return whether a connection to ``broker`` would reach ``listen``. 127.0.0.1, ::1 and localhost count as equal."""
    if broker.port != listen.port:
        return False
    hosts = {_canonical(broker.host), _canonical(listen.host)}
    if hosts & WILDCARDS:
        return all(host in WILDCARDS or is_loopback(host) for host in hosts)
    return len({_IPV4_LOOPBACK if host in {_LOCALHOST, _IPV6_LOOPBACK} else host for host in hosts}) == 1


def collides(first: Endpoint, second: Endpoint) -> bool:
    """Return whether two listening addresses conflict. 127.0.0.1 and ::1 do not conflict, and port 0 never does."""
    if first.port != second.port or first.port == 0:
        return False
    hosts = {_canonical(first.host), _canonical(second.host)}
    if _LOCALHOST in hosts:
        return all(host == _LOCALHOST or host in WILDCARDS or is_loopback(host) for host in hosts)
    versions = {_version(host) for host in hosts}
    return len(hosts) == 1 or "*" in hosts or (bool(hosts & WILDCARDS) and len(versions) == 1)


def leaves_ipv4(listen: Endpoint, others: Iterable[Endpoint]) -> bool:
    return any(each.port == listen.port != 0 and _version(_canonical(each.host)) != 6 for each in others)


def _canonical(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".")
    return str(getattr(address, "ipv4_mapped", None) or address)


def _version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None
