"""The beginning of a frame whose header comes in pieces: a copy of it, until the header is whole."""

from collections.abc import Callable
from typing import Final, NamedTuple

from proxy.protocols.rocketmq.codes import PREFIX_BYTES
from proxy.protocols.rocketmq.frame import HEADER_LENGTH, prefix_at

#: The beginning of a header of up to so many bytes may be read again with the next chunk; nearly all whole headers
#: are shorter.
_READ_AGAIN_BYTES: Final = 2048


class Begun(NamedTuple):
    """A frame whose header is whole now, or longer than what is gathered of one.

    Attributes:
        prefix_and_header: the bytes; the header is empty if it is too long.
        header_type: the header's.
        frame_bytes: length of the frame on the wire.
        position: in the chunk, where what follows those bytes begins.
        body_at: where the body does: there, too, or behind the header that was not gathered.
        stop: where the frame ends; this and ``body_at`` may be beyond the chunk.
    """

    prefix_and_header: bytes
    header_type: int
    frame_bytes: int
    position: int
    body_at: int
    stop: int

    @property
    def header(self) -> bytes | None:
        """The header alone; None if it was not gathered."""
        return self.prefix_and_header[PREFIX_BYTES:] if self.body_at == self.position else None


class Beginning:
    """Gathers the beginning of one frame after another.

    Args:
        max_header_bytes: a longer header is not gathered; the two words before it are.
        header_bytes_of: returns the length of the header in a frame that begins with two words: that of the frame,
            and type and length of the header. Raises Close if no frame begins so.

    Attributes:
        pieces: what is in hand; empty between frames.
    """

    __slots__ = ("_header_bytes_of", "_max_header_bytes", "pieces")

    def __init__(self, max_header_bytes: int, header_bytes_of: Callable[[int, int], int]) -> None:
        self.pieces = bytearray()
        self._max_header_bytes = max_header_bytes
        self._header_bytes_of = header_bytes_of

    def missing_bytes(self) -> int:
        """Return how many bytes are certain to belong to the header in hand, or to the words before it."""
        have = len(self.pieces)
        if have < PREFIX_BYTES:
            return PREFIX_BYTES - have
        word: int = prefix_at(self.pieces)[1]
        return PREFIX_BYTES + (word & HEADER_LENGTH) - have

    def readable_again(self) -> int:
        """Return the length of what is in hand; 0 if it is too long to be read once more."""
        have = len(self.pieces)
        return have if have <= _READ_AGAIN_BYTES else 0

    def go_on(self, chunk: memoryview) -> Begun | None:
        """Gather what the chunk holds of the header; nothing is in hand once it is whole.

        Returns:
            None while it is incomplete: then all of the chunk belongs to it.

        Raises:
            Close: the two words begin no frame.
        """
        pieces, size = self.pieces, len(chunk)
        position = min(max(0, PREFIX_BYTES - len(pieces)), size)
        pieces += chunk[:position]
        if len(pieces) < PREFIX_BYTES:
            return None
        length, word = prefix_at(pieces)
        header_bytes = self._header_bytes_of(length, word)
        skipped = header_bytes if header_bytes > self._max_header_bytes else 0
        wanted = PREFIX_BYTES + header_bytes - skipped
        step = min(wanted - len(pieces), size - position)
        pieces += chunk[position : position + step]
        if len(pieces) < wanted:
            return None
        position += step
        stop = position + 4 + length - wanted
        return Begun(self.take(), word >> 24, 4 + length, position, position + skipped, stop)

    def take(self) -> bytes:
        """Return what is in hand, which is in hand no longer."""
        pieces = bytes(self.pieces)
        self.pieces.clear()
        return pieces
