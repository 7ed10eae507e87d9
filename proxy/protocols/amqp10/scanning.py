"""The scan of the compiled part, ``sluice_native`` (folder ``native``): all plain frames of a chunk in one call.

What it takes must be what the session would call plain, had it read each frame itself: sessions and links say so when
they become plain, and when they are no longer.

Where it is not installed, or the options say ``python``, every frame is read one by one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from limiter.compiled import COMPILED
from proxy.deciding.batch import Side
from proxy.protocols.amqp10.message import COPIES
from proxy.protocols.amqp10.stream import Flowed, Scanned
from proxy.protocols.base import Buffer

if TYPE_CHECKING:
    from proxy.protocols.amqp10.conversation import Conversation
    from proxy.protocols.amqp10.links import Link

#: What a scan finds is told link by link and range by range: how long that takes shows only when it is done.
MAX_RUNS: Final = 512
#: Numbers of deliveries are counted on from 0 behind it.
_HIGHEST: Final = (1 << 32) - 1


class NativeScanner:
    """Takes runs of plain frames of one peer's stream. Numbers of channels and handles are that peer's.

    Args:
        side: the peer.

    Attributes:
        side: as given.
        changed: sessions that are to say anew whether they are plain.
    """

    def __init__(self, side: Side) -> None:
        assert COMPILED is not None  # noqa: S101 - as who made this knows
        self.side = side
        self.changed: dict[Conversation, None] = {}
        self._frames = COMPILED.Links(COPIES)
        self._links: dict[tuple[int, int], Link] = {}
        self._sessions: dict[int, Conversation] = {}

    def take_flows(self) -> None:
        """Take flows from now on."""
        self._frames.takes_flows = True

    def bound_frames(self, most_frame_bytes: int) -> None:
        """Take no longer frames from now on."""
        self._frames.most_frame_bytes = most_frame_bytes

    def know_link(self, channel: int, handle: int, link: "Link", *, most_bytes: int | None, copies: bool) -> None:
        """Take transfers of a link from now on; no delivery of it is begun.

        Args:
            channel: of its session.
            handle: its number there.
            link: what ``scan`` returns for it.
            most_bytes: longer transfers are not plain, if it is not None.
            copies: nor are messages that may name copies.
        """
        self._links[channel, handle] = link
        self._frames.mark(channel, handle, most_bytes, copies)

    def forget_link(self, channel: int, handle: int) -> None:
        """Take transfers of a link no more; also of one that it was never told of."""
        if self._links.pop((channel, handle), None) is not None:
            self._frames.unmark(channel, handle)

    def know_session(self, channel: int, session: "Conversation") -> None:
        """Take dispositions of a session from now on, and transfers of its links."""
        self._sessions[channel] = session
        self._frames.begin(channel)

    def leave_session(self, channel: int) -> None:
        """Take none of these until it is known again."""
        self._frames.leave(channel)

    def forget_session(self, channel: int, handles: Iterable[int]) -> None:
        """Forget a session and its links."""
        self._frames.end(channel)
        self._sessions.pop(channel, None)
        for handle in handles:
            self._links.pop((channel, handle), None)

    def forget(self) -> None:
        """Forget all."""
        self.changed.clear()
        self._links.clear()
        self._sessions.clear()

    def scan(self, buffer: Buffer, at: int) -> Scanned | None:
        """Return the run that begins at a frame's first byte; None if that frame is not plain, or not all there."""
        if self.changed:
            changed, self.changed = self.changed, {}
            for session in changed:
                session.show(self)
        stop, frames, moved, begun, disposed, flows = self._frames.scan(buffer, at, MAX_RUNS)
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
            [Flowed(sessions[channel], start, stop, numbers, drains) for channel, start, stop, numbers, drains in flows]
            if flows
            else (),
        )


def renumber(
    buffer: Buffer,
    start: int,
    stop: int,
    sessions: Sequence[tuple[int, int | None, int, int | None, int]],
    most_bytes: int,
) -> tuple[int, bytes]:
    """Write plain frames with other numbers of deliveries, as ``sluice_native.renumber`` does."""
    assert COMPILED is not None  # noqa: S101 - else nobody has taken them
    at, written = COMPILED.renumber(buffer, start, stop, sessions, most_bytes)
    return at, written


def reflow(buffer: Buffer, start: int, stop: int, changes: Mapping[int, bytes]) -> bytes:
    """Write a flow with other fields, as ``sluice_native.reflow`` does."""
    assert COMPILED is not None  # noqa: S101 - else nobody has taken it
    written: bytes = COMPILED.reflow(buffer, start, stop, list(changes.items()))
    return written
