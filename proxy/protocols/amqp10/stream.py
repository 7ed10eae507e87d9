"""One direction of a connection: cuts what a peer sends into frames, and writes what becomes of them in their order.

A chunk is read by ``feed``, which makes pieces of it, and written by ``write`` once it is decided. In between nothing of
it is written, and numbers that are counted as frames go on (credit, transfer-ids, delivery-ids) do not change: a frame
is rewritten with the numbers of the moment at which it goes on.

Frames of up to MOST_WHOLE_BYTES are taken whole. Of longer ones the performative is, and the payload streams.

Frames of our own go between two frames of the peer they seem to come from, never into one.

**Plain frames** go on as they came, whatever is decided about the chunk, and are most of all frames: empty ones,
transfers of links on which nothing is decided for each delivery, in sessions where none was swallowed, and dispositions
of such sessions. A run of them, one behind the other, is one ``Run``: its bytes, and its sums by link. ``Stream._scan``
is the one place where a run may be taken by compiled code, see ``Scanner``; in Python it grows frame by frame.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from proxy.deciding.batch import Side
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.wire import Frame, Malformed, Performative
from proxy.protocols.base import NO_BOUND, Buffer, Close

if TYPE_CHECKING:
    from proxy.protocols.amqp10.conversation import Conversation
    from proxy.protocols.amqp10.links import Link

#: A frame that is no longer is taken whole.
MOST_WHOLE_BYTES: Final = 64 * 1024
#: After so many frames that were read one by one the rest of a chunk is left for later: some milliseconds.
MOST_FRAMES: Final = 512
#: A chunk of so few frames takes so little that larger ones keep nobody waiting; one of more than the other takes long.
_FEW_FRAMES: Final = 64
_MANY_FRAMES: Final = 127
#: A frame's beginning that is longer is not read once more with the next chunk.
_MOST_TAKEN_BACK_BYTES: Final = 4096
_HEADER_BYTES: Final = wire.HEADER_BYTES
_AMQP: Final = b"AMQP"

Ranges = Sequence[tuple[int, int]]
"""Delivery-ids, from the first to the last of each range, both included."""


class Scanned(msgspec.Struct, gc=False):
    """A run of plain frames as a Scanner returns it.

    Attributes:
        stop: where it ends in the buffer; it began where the scan did.
        frames: how many, empty ones and dispositions among them.
        transfers: by link, each once: the link, its deliveries, their frames' bytes, and the delivery-ids of those that
            are not settled. Each delivery is one transfer.
        settled: by disposition that settles: of which session, whether its receiver says so, and which deliveries.
    """

    stop: int
    frames: int
    transfers: "Sequence[tuple[Link, int, int, Ranges]]"
    settled: "Sequence[tuple[Conversation, bool, int, int]]"


class Scanner(Protocol):
    """Takes runs of plain frames of one peer's stream. Numbers of channels and handles are that peer's.

    Plain to it are only whole frames of AMQP with a header of 8 bytes: empty ones; transfers with a delivery-id, where
    ``more``, ``resume`` and ``aborted`` are false or left out, on links it was told of; and dispositions in sessions it
    was told of. Descriptors and lists in other than the usual forms (``00 53``; ``c0``, ``d0``, ``45``), and fields
    that are not of their types, end a run. Nothing raises for what a peer sends.
    """

    def know_link(self, channel: int, handle: int, link: "Link") -> None:
        """Take transfers of a link from now on."""

    def forget_link(self, channel: int, handle: int) -> None:
        """Take transfers of a link no more; also of one that it was never told of."""

    def know_session(self, channel: int, session: "Conversation") -> None:
        """Take dispositions of a session from now on."""

    def forget_session(self, channel: int) -> None:
        """Take none any more; its links are forgotten one by one."""

    def scan(self, buffer: Buffer, at: int) -> Scanned | None:
        """Return the run that begins at a frame's first byte; None if that frame is not plain, or not all there."""


class Step(ABC):
    """What becomes of a piece of a chunk, once it is written.

    Attributes:
        session: whose frames wait for each other; None is nobody's.
        side: who sent it.
    """

    __slots__ = ("session", "side")

    session: "Conversation | None"
    side: Side

    @abstractmethod
    def apply(self) -> bytes | None:
        """Count what goes on; return the bytes in its place, none if it is swallowed, or None: as it came."""


class Piece(msgspec.Struct, gc=False):
    """Some bytes in their order.

    Attributes:
        buffer: where they are.
        start: from where.
        stop: to where.
        step: what becomes of them.
        is_last: they end a frame.
    """

    buffer: Buffer
    start: int
    stop: int
    step: Step
    is_last: bool = True


class Run(Step):
    """Plain frames, one behind the other.

    Attributes:
        came: deliveries that are complete, by link.
        transfers: frames of transfers, by session.
    """

    __slots__ = ("came", "transfers")

    def __init__(self, side: Side) -> None:
        self.session = None
        self.side = side
        self.came: dict[Link, int] = {}
        self.transfers: dict[Conversation, int] = {}

    def apply(self) -> bytes | None:
        """Count the deliveries."""
        for session, count in self.transfers.items():
            session.halves[self.side].next_id += count
        for link, count in self.came.items():
            link.credit.came(count)
        return None
