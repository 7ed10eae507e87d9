"""The scan of the compiled part: all plain frames of a chunk in one call.

It takes exactly what the session would call plain; sessions and links tell it when they become plain or cease to be.
Without it, or with the option ``python``, every frame is read by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from limiter.compiled import COMPILED
from proxy.deciding.batch import Side
from proxy.protocols.amqp10.message import COPIES
from proxy.protocols.amqp10.parts import LinkPart, Piece, SessionPart, Step
from proxy.protocols.base import Buffer

MAX_RUNS: Final = 512  # bounds the time of one scan: results are listed by link and by range
_HIGHEST: Final = (1 << 32) - 1  # behind it, numbers of deliveries go on from 0

Ranges = Sequence[tuple[int, int]]
"""Ranges of delivery-ids, both ends included."""


class Flowed(msgspec.Struct, gc=False):
    """A scanned flow."""

    channel: int
    start: int  # where its frame begins in the buffer
    stop: int
    numbers: Sequence[int | None]  # its first eight fields
    drains: bool  # the ninth


class Scanned(Step):
    """A run of plain frames, and the flows behind it.

    Args:
        side: who sent them.
        stop: where it ends in the buffer.
        frames: how many, with empty ones, dispositions and flows.
        links: by link: its deliveries, and the bytes of their frames.
        sessions: by session: its transfers, the last delivery-id, and the unsettled ones, ascending. Each transfer
        is one delivery.
        disposed: by disposition: session, whether it is the receiver's, whether it settles, and which deliveries.
        flows: behind everything else in the run.
    """

    __slots__ = ("disposed", "flows", "frames", "links", "sessions", "stop")

    def __init__(  # noqa: PLR0917 - as compiled code returns them
        self,
        side: Side,
        stop: int,
        frames: int,
        links: Sequence[tuple[LinkPart, int, int]],
        sessions: Sequence[tuple[SessionPart[Any], int, int, Ranges]],
        disposed: Sequence[tuple[SessionPart[Any], bool, bool, int, int]],
        flows: Sequence[Flowed],
    ) -> None:
        self.session = None
        self.side = side
        self.stop = stop
        self.frames = frames
        self.links = links
        self.sessions = sessions
        self.disposed = disposed
        self.flows = flows

    def apply(self, piece: Piece) -> bytes | None:
        del piece
        side = self.side
        for session, transfers, last, unsettled in self.sessions:
            half = session.halves[side]
            half.transfers.came(transfers)
            if side is Side.CLIENT:
                for first, last_of_range in unsettled:
                    half.ids.came(first, (last_of_range - first + 1) & _HIGHEST)
                if unsettled:
                    session.time(unsettled[-1][1])
                if not unsettled or unsettled[-1][1] != last:
                    half.ids.reached(last)
        for link, deliveries, _ in self.links:
            link.came(deliveries)
        for session, receiver, settles, first, last in self.disposed:
            # The broker's deliveries are not counted.
            if settles and receiver is (side is Side.BROKER):
                session.halves[Side.CLIENT].settle(first, last, receiver=receiver)
        return None


class NativeScanner:
    """Takes runs of plain frames of one peer, with that peer's channels and handles."""

    def __init__(self, side: Side) -> None:
        assert COMPILED is not None  # noqa: S101 - as who made this knows
        self.side = side
        self.changed: dict[SessionPart[Any], None] = {}  # sessions to ask whether they are plain
        self.frames = COMPILED.Links(COPIES)
        self._links: dict[tuple[int, int], LinkPart] = {}
        self._sessions: dict[int, SessionPart[Any]] = {}

    def take_flows(self) -> None:
        self.frames.takes_flows = True

    def bound_frames(self, most_frame_bytes: int) -> None:
        self.frames.most_frame_bytes = most_frame_bytes

    def know_link(
        self, channel: int, handle: int, link: LinkPart, *, most_bytes: int | None, copies: bool, decides: bool
    ) -> None:
        """Take transfers of a link from now on, of which none is under way.

        Transfers longer than ``most_bytes`` are not plain, nor are messages that may name ``copies``. Of a link that
        ``decides`` the compiled part takes them only while the connection is lent.
        """
        self._links[channel, handle] = link
        self.frames.mark(channel, handle, most_bytes, copies, decides)

    def forget_link(self, channel: int, handle: int) -> None:
        if self._links.pop((channel, handle), None) is not None:
            self.frames.unmark(channel, handle)

    def know_session(self, channel: int, session: SessionPart[Any]) -> None:
        self._sessions[channel] = session
        self.frames.begin(channel)

    def leave_session(self, channel: int) -> None:
        self.frames.leave(channel)

    def forget_session(self, channel: int, handles: Iterable[int]) -> None:
        self.frames.end(channel)
        self._sessions.pop(channel, None)
        for handle in handles:
            self._links.pop((channel, handle), None)

    def forget(self) -> None:
        self.changed.clear()
        self._links.clear()
        self._sessions.clear()

    def ask_changed(self) -> None:
        """Ask the sessions that have changed whether they are plain."""
        changed, self.changed = self.changed, {}
        for session in changed:
            known = session.plain_channel(self.side)
            if known is not None:
                channel, plain = known
                if plain:
                    self.know_session(channel, session)
                else:
                    self.leave_session(channel)

    def scan(self, buffer: Buffer, at: int) -> Scanned | None:
        """Return the run that begins at a frame's first byte; None if that frame is not plain, or incomplete."""
        if self.changed:
            self.ask_changed()
        stop, frames, moved, begun, disposed, flows = self.frames.scan(buffer, at, MAX_RUNS)
        if not frames:
            return None
        links, sessions = self._links, self._sessions
        return Scanned(
            self.side,
            stop,
            frames,
            [(links[channel, handle], deliveries, size_bytes) for channel, handle, deliveries, size_bytes in moved]
            if moved
            else (),
            [
                (sessions[channel], ((last - first) & _HIGHEST) + 1, last, unsettled)
                for channel, first, last, unsettled in begun
            ]
            if begun
            else (),
            [
                (sessions[channel], receiver, settles, first, last)
                for channel, receiver, settles, first, last in disposed
            ]
            if disposed
            else (),
            [Flowed(*flow) for flow in flows] if flows else (),
        )


def renumber(
    buffer: Buffer,
    start: int,
    stop: int,
    sessions: Sequence[tuple[int, int | None, int, int | None, int]],
    most_bytes: int,
) -> tuple[int, bytes]:
    """Write plain frames with other delivery-ids, as ``sluice_native.renumber`` does."""
    assert COMPILED is not None  # noqa: S101 - else nobody has taken them
    at, written = COMPILED.renumber(buffer, start, stop, sessions, most_bytes)
    return at, written


def reflow(buffer: Buffer, start: int, stop: int, changes: Mapping[int, bytes]) -> bytes:
    """Write a flow with other fields, as ``sluice_native.reflow`` does."""
    assert COMPILED is not None  # noqa: S101 - else nobody has taken it
    written: bytes = COMPILED.reflow(buffer, start, stop, list(changes.items()))
    return written
