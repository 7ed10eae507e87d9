"""What a client says of itself, and what it and the broker agree on.

Who it is decides nothing but the scopes ``user`` and ``vhost``; the broker checks it.
"""

from typing import Final

from limiter.rules.resource import USER, VHOST, Resource
from proxy.deciding.batch import Side
from proxy.protocols.amqp.names import DEFAULT_VHOST, encoded
from proxy.protocols.amqp10.address import vhost_of
from proxy.protocols.amqp10.wire import Opened
from proxy.stats.snapshot import ClientDescription

_MOST_CHARS: Final = 64


class AboutClient:
    """One client, and what both peers have opened.

    Attributes:
        user: as it signs in; empty if the mechanism does not say.
        vhost: where it goes.
        language: what it is written in, without a version; empty until it says so.
        product: its library or program with the version; likewise.
        opened: what each peer has said in its open.
        closed_by: which peer has closed the connection: the client once the broker has agreed; the broker as soon as it
            says so.
    """

    __slots__ = (
        "_closing",
        "_container",
        "_library",
        "_version",
        "closed_by",
        "language",
        "opened",
        "product",
        "user",
        "vhost",
    )

    def __init__(self) -> None:
        self.user = b""
        self.vhost = DEFAULT_VHOST
        self.opened: dict[Side, Opened] = {}
        self.closed_by: Side | None = None
        self._closing: Side | None = None
        self._container = self._library = self._version = self.language = self.product = ""

    def open(self, side: Side, opened: Opened) -> None:
        """Take the open of either peer."""
        self.opened[side] = opened
        if side is Side.BROKER:
            return
        self.vhost = vhost_of(opened.hostname)
        said = opened.properties
        self._container = _text(opened.container)
        self._library = _text(said.get(b"product", b""))
        self._version = _text(said.get(b"version", b""))
        self.product = f"{self._library} {self._version}".strip()
        self.language = _text(said.get(b"platform", b"")).partition(" ")[0]

    def close(self, side: Side) -> None:
        """Take the close of either peer."""
        if self._closing is None:
            self._closing = side
        if self.closed_by is None and (side is Side.BROKER or self._closing is Side.BROKER):
            self.closed_by = self._closing

    def scopes(self) -> tuple[Resource, ...]:
        """Return the scopes that its requests belong to."""
        vhost = Resource(VHOST, "/" if self.vhost == DEFAULT_VHOST else encoded(self.vhost))
        return (Resource(USER, encoded(self.user)), vhost) if self.user else (vhost,)

    def describe(self) -> ClientDescription:
        """Return what is known."""
        return ClientDescription(self._container, self.language, self._version, self._library, _text(self.user))


def _text(said: bytes) -> str:
    """Make text of what a client says, short enough and printable."""
    text = said[: 4 * _MOST_CHARS].decode(errors="replace")
    return "".join(each if each.isprintable() else "?" for each in text)[:_MOST_CHARS]
