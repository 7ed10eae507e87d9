"""Client addresses, and a limit on the rate of new connections."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from limiter.buckets.bucket import Bucket
from limiter.rules.rule import UPERMITS_PER_PERMIT

Network = IPv4Network | IPv6Network


@lru_cache(maxsize=4096)
def client_address(host: str) -> str:
    """Normalize an IP address, and convert IPv4-mapped IPv6 to IPv4. Raises ValueError if it is invalid."""
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def in_networks(address: str, networks: Iterable[Network]) -> bool:
    parsed: IPv4Address | IPv6Address | None = None
    for network in networks:
        parsed = parsed or ip_address(address)
        if parsed in network:
            return True
    return False


def client_of(address: str) -> str:
    """Return the IPv4 address or IPv6 /64 network that counts as one client."""
    if ":" not in address:
        return address
    return str(IPv6Address(int(IPv6Address(address)) >> 64 << 64))


class ConnectionRate:
    """Limits the rate of new connections. A burst may contain one second's worth of connections."""

    def __init__(self, connections_per_s: float, now_ns: int) -> None:
        rate = round(connections_per_s * UPERMITS_PER_PERMIT)
        self._bucket = Bucket(rate, rate, now_ns)

    def take(self, now_ns: int) -> bool:
        if self._bucket.refill(now_ns) <= 0:
            return False
        self._bucket.spend(1)
        return True
