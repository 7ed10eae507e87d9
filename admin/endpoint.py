"""TCP addresses as operators write them, ``host:port``; the usual admin address among them.

Apart from ``admin.settings``, so that a client of the API need not load the whole configuration's types.
"""

from typing import Final, NamedTuple

DEFAULT_ADMIN: Final = "127.0.0.1:9870"

WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})
"""Hosts that stand for every address of this machine."""


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
        ValueError: with what is allowed, to be put behind the name of the place.
    """
    if isinstance(value, Endpoint):
        return value
    problem = ValueError('must be "host:port", for example "127.0.0.1:10911" or "[::1]:10911"')
    if not isinstance(value, str):
        raise problem
    if "://" in value:
        raise ValueError('must be "host:port" and no URL, for example "127.0.0.1:10911"')
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
