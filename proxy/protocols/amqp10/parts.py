"""What the modules of this package know of each other: pieces and steps of a stream, and a session as seen from below.

``Conversation`` is the session, ``Link`` the link and ``Stream`` the outlet. They are described here, so that links,
scans and streams need not import what is built on them.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from proxy.deciding.batch import Side
from proxy.protocols.amqp10.renumbering import Renumbering, Transfers
from proxy.protocols.base import Buffer


class Step(ABC):
    """What becomes of a piece of a chunk, once it is written.

    Attributes:
        session: its frames wait for each other; None belongs to no session.
        side: the peer that sent it.
    """

    __slots__ = ("session", "side")

    session: "SessionPart[Any] | None"
    side: Side

    @property
    def is_blocked(self) -> bool:
        """Whether it is not decided yet."""
        return False

    @abstractmethod
    def apply(self, piece: "Piece") -> bytes | None:
        """Count what is forwarded; return the bytes in its place, none if it is swallowed, or None to keep it."""


class Piece(msgspec.Struct, gc=False):
    """Bytes ``start`` to ``stop`` of a buffer, and what becomes of them; ``is_last`` if they end a frame."""

    buffer: Buffer
    start: int
    stop: int
    step: Step
    is_last: bool = True


class Outlet(Protocol):
    """Where frames of our own are written, as if one peer had sent them."""

    side: Side

    def insert(self, frame: bytes) -> None:
        """Write a frame, as soon as it is not within another."""


class LinkPart(ABC):
    """A link, for what counts its deliveries."""

    __slots__ = ()

    @abstractmethod
    def begins(self, deliveries: int) -> None:
        """Note that deliveries begin, before they are forwarded."""

    @abstractmethod
    def completed(self, deliveries: int, size_bytes: int) -> None:
        """Note that whole deliveries were read."""

    @abstractmethod
    def came(self, deliveries: int) -> None:
        """Note that deliveries are forwarded."""


class HalfPart:
    """What one peer has of a session: its numbers, and what is kept back.

    Attributes:
        channel: its number; None before it has begun.
        transfers: that it sends.
        ids: of the deliveries that it sends.
        kept: pieces behind a delivery that is not decided.
    """

    __slots__ = ("channel", "ids", "kept", "transfers")

    def __init__(self) -> None:
        self.channel: int | None = None
        self.transfers = Transfers()
        self.ids = Renumbering()
        self.kept: deque[Piece] = deque()

    def settle(self, first: int, last: int, *, receiver: bool) -> None:
        """Settle some of its deliveries, by their numbers as the peer that settles them counts."""
        ids = self.ids
        if receiver and not ids.plain:
            for each in ids.back_ranges(first, last):
                ids.settled(*each)
        else:
            ids.settled(first, last)


LinkT_contra = TypeVar("LinkT_contra", bound=LinkPart, contravariant=True)


class SessionPart(ABC, Generic[LinkT_contra]):
    """A session, for the links, streams and scans below it.

    Attributes:
        halves: what each peer has of it.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        halves: Mapping[Side, HalfPart]

    @property
    @abstractmethod
    def counts_alike(self) -> bool:
        """Whether both peers count deliveries alike: none was ever swallowed."""

    @property
    @abstractmethod
    def orphaned_ns(self) -> int:
        """Until when deliveries of links that have ended are waited for."""

    @abstractmethod
    def abandon(self, now_ns: int) -> None:
        """Wait no longer for deliveries whose time is over."""

    @abstractmethod
    def changed(self) -> None:
        """Note that it may have become plain, or may no longer be."""

    @abstractmethod
    def decide_now(self) -> None:
        """Decide all deliveries by what is known of them, as no more can be kept."""

    @abstractmethod
    def keep(self, piece: Piece) -> None:
        """Keep a piece back, as a copy."""

    @abstractmethod
    def look_at_window(self, side: Side) -> None:
        """Have deliveries decided of which no more can come before what is kept back is forwarded."""

    @abstractmethod
    def plain_channel(self, side: Side) -> tuple[int, bool] | None:
        """Return a peer's channel, if it is open, and whether scans may take its transfers and dispositions."""

    @abstractmethod
    def time(self, number: int) -> None:
        """Time a delivery of the client that is forwarded unsettled, unless another is being timed."""

    @abstractmethod
    def tell(self, link: LinkT_contra, outlet: Outlet) -> None:
        """Tell the sender of a link of its credit; the outlet is the receiver's."""

    @abstractmethod
    def tell_rejected(self, number: int, why: str, outlet: Outlet) -> None:
        """Tell the sender of a swallowed delivery that it is rejected; the outlet is the receiver's."""

    @abstractmethod
    def turn(self, link: LinkT_contra) -> None:
        """Have a link decide on each delivery, or no longer."""

    @abstractmethod
    def tell_window(self, outlet: Outlet) -> bool:
        """Tell the sender how much of its window was swallowed, if it could not send without that.

        Returns:
            Whether it knows of all now. The outlet is the receiver's.
        """
