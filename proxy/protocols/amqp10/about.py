"""Who the client is, and what it and the broker agree on."""

from typing import Final

from proxy.deciding.batch import Side
from proxy.protocols.amqp.about import Identity
from proxy.protocols.amqp.names import DEFAULT_VHOST
from proxy.protocols.amqp10.address import vhost_of
from proxy.protocols.amqp10.wire import Opened

_RABBITMQ: Final = b"RabbitMQ"


class AboutClient(Identity):
    """One client and the opens of both peers.

    Attributes:
        opened: each peer's open.
        closed_by: which peer has closed the connection: the client once the broker has agreed, the broker at once.
    """

    __slots__ = ("_closing", "closed_by", "opened")

    def __init__(self) -> None:
        super().__init__(DEFAULT_VHOST)
        self.opened: dict[Side, Opened] = {}
        self.closed_by: Side | None = None
        self._closing: Side | None = None

    def open(self, side: Side, opened: Opened) -> None:
        """Take the open of either peer."""
        self.opened[side] = opened
        if side is Side.CLIENT:
            self.introduce(opened.container, opened.properties)
        if self.is_open and not self.is_plain:
            self.vhost = vhost_of(self.opened[Side.CLIENT].hostname)

    @property
    def is_open(self) -> bool:
        """Whether both peers have opened the connection."""
        return len(self.opened) == len(Side)

    @property
    def is_plain(self) -> bool:
        """Whether the broker is not RabbitMQ: it has no vhosts, and addresses are names of queues."""
        return self.opened[Side.BROKER].properties.get(b"product") != _RABBITMQ

    def close(self, side: Side) -> None:
        """Take the close of either peer."""
        if self._closing is None:
            self._closing = side
        if self.closed_by is None and (side is Side.BROKER or self._closing is Side.BROKER):
            self.closed_by = self._closing
