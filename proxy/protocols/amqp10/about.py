"""What a client says of itself, and what it and the broker agree on."""

from proxy.deciding.batch import Side
from proxy.protocols.amqp.about import Identity
from proxy.protocols.amqp.names import DEFAULT_VHOST
from proxy.protocols.amqp10.address import vhost_of
from proxy.protocols.amqp10.wire import Opened


class AboutClient(Identity):
    """One client, and what both peers have opened.

    Attributes:
        opened: what each peer has said in its open.
        closed_by: which peer has closed the connection: the client once the broker has agreed; the broker as soon as it
            says so.
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
        if side is Side.BROKER:
            return
        self.vhost = vhost_of(opened.hostname)
        self.introduce(opened.container, opened.properties)

    def close(self, side: Side) -> None:
        """Take the close of either peer."""
        if self._closing is None:
            self._closing = side
        if self.closed_by is None and (side is Side.BROKER or self._closing is Side.BROKER):
            self.closed_by = self._closing
