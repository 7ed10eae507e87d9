"""Frames of the client's stream: where one lies in its chunk, and the beginning of one that comes in pieces.

Which of them do not go on, and what is no frame, is told here, too.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from proxy.deciding.batch import Batch, Hold, Later, Refuse, Request
from proxy.protocols.base import Close
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import PREFIX_BYTES
from proxy.protocols.rocketmq.wire.reading import Header

prefix_at = Struct(">iI").unpack_from
"""Length, and type and length of the header: the two words that every frame begins with."""
HEADER_LENGTH: Final = 0xFFFFFF
"""Masks the length of the header in a frame's second word."""
_HIGHEST_WORD: Final = codes.HEADER_BINARY << 24 | HEADER_LENGTH


#: A header above this is not gathered and cannot be read. Nearly all of a header are the message's
#: properties, of which the broker takes 32 KiB: six times that in JSON if every character is escaped.
MAX_HEADER_BYTES: Final = 256 * 1024


class Frame(msgspec.Struct, gc=False):
    """The handle of a request: where its bytes are in the chunk, and what its answer needs.

    A request that is held gets another, a HeldFrame.

    Attributes:
        start: offset in the chunk of what of the frame came with it.
        stop: offset of its end; beyond the chunk when more is to come.
        header: as read.
    """

    start: int
    stop: int
    header: Header


Stopped = tuple[Frame, Request | None, Refuse | Hold | Later | None]
"""A frame that does not go on with its chunk: its request and the verdict, unless Sluice answers it itself."""


def stopped_frames(batch: Batch | None, own: list[Frame]) -> list[Stopped]:
    """Return the frames that do not go on with their chunk, in the order of the wire.

    Args:
        batch: the requests of the chunk with their verdicts, if it held any.
        own: frames that Sluice answers itself, in the order of the wire.
    """
    stopped: list[Stopped] = []
    if batch is not None and batch.verdicts:
        for index, verdict in sorted(batch.verdicts.items()):
            request = batch.requests[index]
            if isinstance(request.handle, Frame) and isinstance(verdict, Refuse | Hold | Later):
                stopped.append((request.handle, request, verdict))
    if own:
        stopped += [(frame, None, None) for frame in own]
        # Of a frame that earlier chunks began nothing need be left in this one: the next may start where it does.
        stopped.sort(key=lambda each: (each[0].start, each[0].stop))
    return stopped


def header_bytes_of(length: int, word: int, max_length: int) -> int:
    """Return the length of the header in a client's frame that begins with these two words.

    Args:
        length: of the frame, without this word.
        word: type and length of the header.
        max_length: the longest frame allowed.

    Raises:
        Close: no frame begins so.
    """
    header_bytes = word & HEADER_LENGTH
    if header_bytes <= length - 4 and length <= max_length and word <= _HIGHEST_WORD:
        return header_bytes
    begins = (length & 0xFFFFFFFF).to_bytes(4, "big")
    if all(0x20 <= byte < 0x7F for byte in begins):
        detail = f"{begins.decode()!r} where a frame begins: is `protocol` the one that it speaks?"
    elif not codes.MIN_LENGTH <= length <= max_length:
        detail = f"a frame of length {length}, where {codes.MIN_LENGTH} to {max_length} are allowed"
    elif word > _HIGHEST_WORD:
        detail = f"a header of type {word >> 24}, where {codes.HEADER_JSON} and {codes.HEADER_BINARY} are known"
    else:
        detail = f"a header of {header_bytes} bytes in a frame of length {length}"
    raise Close("bad_frame", f"the client sent {detail}")


#: The beginning of a header of up to so many bytes may be read again with the next chunk; nearly all whole headers
#: are shorter.
_READ_AGAIN_BYTES: Final = 2048


# The beginning of a frame that comes in pieces: a copy of it, until its header is whole, or all of it.
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


class PartialFrame:
    """Gathers the beginning of one frame after another.

    Args:
        max_header_bytes: a longer header is not gathered; the two words before it are.
        header_bytes_of: returns the length of the header in a frame that begins with two words: that of the frame,
            and type and length of the header. Raises Close if no frame begins so.

    Attributes:
        pieces: what is in hand; empty between frames.
        whole_bytes: length of the frame in hand, if all of it is to be gathered; else 0.
    """

    __slots__ = ("_header_bytes_of", "_max_header_bytes", "pieces", "whole_bytes")

    def __init__(self, max_header_bytes: int, header_bytes_of: Callable[[int, int], int]) -> None:
        self.pieces = bytearray()
        self.whole_bytes = 0
        self._max_header_bytes = max_header_bytes
        self._header_bytes_of = header_bytes_of

    def missing_bytes(self) -> int:
        """Return how many bytes are certain to belong to what is gathered of the frame in hand."""
        have = len(self.pieces)
        if self.whole_bytes:
            return self.whole_bytes - have
        if have < PREFIX_BYTES:
            return PREFIX_BYTES - have
        word: int = prefix_at(self.pieces)[1]
        return PREFIX_BYTES + (word & HEADER_LENGTH) - have

    def readable_again(self) -> int:
        """Return the length of what is in hand; 0 if it is too long to be read once more."""
        have = len(self.pieces)
        return have if have <= _READ_AGAIN_BYTES and not self.whole_bytes else 0

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

    def gather(self, chunk: memoryview, position: int) -> int:
        """Gather what the chunk holds, from ``position`` on, of a frame of ``whole_bytes``; returns where that ends."""
        step = min(self.whole_bytes - len(self.pieces), len(chunk) - position)
        self.pieces += chunk[position : position + step]
        return position + step

    def forget_body(self) -> None:
        """Forget what was gathered of the body of a whole frame, which is shorter by so much from now on."""
        word: int = prefix_at(self.pieces)[1]
        body_at = PREFIX_BYTES + (word & HEADER_LENGTH)
        self.whole_bytes -= len(self.pieces) - body_at
        del self.pieces[body_at:]

    def take(self) -> bytes:
        """Return what is in hand, which is in hand no longer."""
        pieces = bytes(self.pieces)
        self.pieces.clear()
        self.whole_bytes = 0
        return pieces
