"""Which clients may connect: how many connections each may have, and how many a listener takes each second.

Counts and buckets only: ``server`` accepts, closes and logs.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from limiter.buckets.bucket import Bucket
from limiter.rules.rule import UPERMITS_PER_PERMIT

Network = IPv4Network | IPv6Network


@lru_cache(maxsize=4096)
def client_address(host: str) -> str:
    """Return an IP address in its one spelling: an IPv4 one that came over IPv6 as IPv4.

    Raises:
        ValueError: it is none.
    """
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def in_networks(address: str, networks: Iterable[Network]) -> bool:
    """Say whether an address, as ``client_address`` returns it, lies in one of the networks."""
    parsed: IPv4Address | IPv6Address | None = None
    for network in networks:
        parsed = parsed or ip_address(address)
        if parsed in network:
            return True
    return False


def client_of(address: str) -> str:
    """Return whose an address is, as ``client_address`` returns it: all of an IPv6 /64 is one client."""
    if ":" not in address:
        return address
    return str(IPv6Address(int(IPv6Address(address)) >> 64 << 64))


class ClientCounts:
    """How many connections each client has open; listeners of one scope count together."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of(self, scope: str, address: str) -> int:
        return self._open.get((scope, address), 0)

    def add(self, scope: str, address: str) -> None:
        self._open[scope, address] = self.of(scope, address) + 1

    def remove(self, scope: str, address: str) -> None:
        left = self._open.pop((scope, address)) - 1
        if left:
            self._open[scope, address] = left


class ConnectionRate:
    """How many new connections a listener takes: ``connections_per_s``, and at once what a second of rest has saved."""

    def __init__(self, connections_per_s: float, now_ns: int) -> None:
        rate = round(connections_per_s * UPERMITS_PER_PERMIT)
        self._bucket = Bucket(rate, rate, now_ns)

    def take(self, now_ns: int) -> bool:
        if self._bucket.refill(now_ns) <= 0:
            return False
        self._bucket.spend(1)
        return True
