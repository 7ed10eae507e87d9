"""Frames of the client's stream: where one lies in its chunk, which of them do not go on, and what is no frame."""

from struct import Struct
from typing import Final

import msgspec

from proxy.batch import Batch, Hold, Refuse, Request
from proxy.protocols.base import Close
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.reading import Header

prefix_at = Struct(">iI").unpack_from
"""Length, and type and length of the header: the two words that every frame begins with."""
HEADER_LENGTH: Final = 0xFFFFFF
"""Masks the length of the header in a frame's second word."""
_HIGHEST_WORD: Final = codes.HEADER_BINARY << 24 | HEADER_LENGTH


#: A header above this is not gathered: it passes as unparsable. Nearly all of a header are the message's
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


Stopped = tuple[Frame, Request | None, Refuse | None]
"""A frame that does not go on with its chunk: its request, unless Sluice answers it itself, and the refusal."""


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
            if isinstance(request.handle, Frame) and isinstance(verdict, Refuse | Hold):
                stopped.append((request.handle, request, verdict if isinstance(verdict, Refuse) else None))
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
    if not codes.MIN_LENGTH <= length <= max_length:
        detail = f"a frame of length {length}, where {codes.MIN_LENGTH} to {max_length} are allowed"
    elif word > _HIGHEST_WORD:
        detail = f"a header of type {word >> 24}, where {codes.HEADER_JSON} and {codes.HEADER_BINARY} are known"
    else:
        detail = f"a header of {header_bytes} bytes in a frame of length {length}"
    raise Close("bad_frame", f"the client sent {detail}")
