"""What the modules of this package know of each other: pieces and steps of a stream, and a session as seen from below.

``Conversation`` is the session, ``Link`` the link and ``Stream`` the outlet, which document the methods.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from proxy.deciding.batch import Side
from proxy.protocols.amqp10.renumbering import Renumbering, Transfers
from proxy.protocols.base import Buffer


class Step(ABC):
    """What becomes of a piece of a chunk that one peer, ``side``, has sent.

    The steps of a ``session`` wait for each other. None belongs to no session.
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
        """Count what is forwarded. Return the bytes in its place, empty if it is swallowed, or None to keep it."""


class Piece(msgspec.Struct, gc=False):
    """Bytes ``start`` to ``stop`` of a buffer, and what becomes of them; ``is_last`` if they end a frame."""

    buffer: Buffer
    start: int
    stop: int
    step: Step
    is_last: bool = True


class Outlet(Protocol):
    """Where frames of Sluice's own are written, as if one peer had sent them."""

    side: Side

    def insert(self, frame: bytes) -> None: ...


class LinkPart(Protocol):
    """A link, for what counts its deliveries."""

    def came(self, deliveries: int) -> None: ...


@dataclass(eq=False, slots=True)
class HalfPart:
    """What one peer has of a session: the numbers of what it sends, and what is kept back of that."""

    channel: int | None = None  # None before it has begun
    transfers: Transfers = field(default_factory=Transfers)
    ids: Renumbering = field(default_factory=Renumbering)
    kept: deque[Piece] = field(default_factory=deque)  # behind a delivery that is not decided

    def settle(self, first: int, last: int, *, receiver: bool) -> None:
        """Settle some of its deliveries, by their numbers as the peer that settles them counts."""
        ids = self.ids
        if receiver and not ids.plain:
            for each in ids.back_ranges(first, last):
                ids.settled(*each)
        else:
            ids.settled(first, last)


LinkT_contra = TypeVar("LinkT_contra", bound=LinkPart, contravariant=True)


class SessionPart(Protocol[LinkT_contra]):
    """A session, for the links and streams below it. An outlet is the receiver's."""

    @property
    def halves(self) -> Mapping[Side, HalfPart]: ...
    def decide_now(self) -> None: ...
    def keep(self, piece: Piece) -> None: ...
    def look_at_window(self, side: Side) -> None: ...
    def time(self, number: int) -> None: ...
    def tell(self, link: LinkT_contra, outlet: Outlet) -> None: ...
    def tell_rejected(self, number: int, why: str, outlet: Outlet) -> None: ...
    def turn(self, link: LinkT_contra) -> None: ...
    def tell_window(self, outlet: Outlet) -> bool: ...
