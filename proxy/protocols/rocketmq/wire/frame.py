"""The header fields that Sluice reads, and the buffer for headers that arrive in pieces."""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from proxy.protocols.base import Close
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.codes import (
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    KIND_TRANSACTION,
    MAX_NAME_CHARS,
    PLAIN_SYS_FLAG_VALUES,
    PREFIX_BYTES,
    RETRY_PREFIX,
    SEND_BACK_FIELDS,
    SUBSCRIPTION_FIELDS,
    SUBSCRIPTION_MARK,
    SYS_FLAG_INNER_BATCH,
    TRANSACTION_FIELDS,
    KeyFields,
)

STRICT: Final = 0
LENIENT: Final = 1
UNPARSED: Final = 2

# Decoders replace invalid UTF-8 with one or more of these. The broker refuses names that contain this character.
REPLACEMENT: Final = "\ufffd"


class HalfSend(NamedTuple):
    group: str  # the producer group that may end the transaction
    topic: str  # the topic in which a commit stores the message


class Header(msgspec.Struct, gc=False):
    # Empty if the request cannot be limited, or if the broker will refuse it because its topic or group is missing.
    kind: str
    name: str  # the topic or group, without ``%RETRY%``
    code: int
    opaque: int
    flag: int
    producer_group: str = ""  # truncated to MAX_NAME_CHARS
    is_batch: bool = False  # whether the broker reads the body as a batch (``batch_body``)
    version: int = 0
    language: str = ""
    reading: int = STRICT  # if UNPARSED, the other fields are unknown
    sys_flag: int = 0
    half: HalfSend | None = None


UNPARSABLE: Final = Header("", "", 0, 0, 0, reading=UNPARSED)
"""A shared object. Do not modify it."""


def subscription_name(consumer_group: str, topic: str) -> str:
    return f"{consumer_group}{SUBSCRIPTION_MARK}{topic}"


def read_sys_flag(value: str | int | None) -> int:
    """Read a sysFlag as the broker does. If it is not a number, return SYS_FLAG_INNER_BATCH, the strictest value."""
    try:
        return int(value or 0)
    except ValueError:
        return SYS_FLAG_INNER_BATCH


def charge(
    header: Header,
    fields: KeyFields,
    value: str,
    producer_group: str | None,
    *,
    batch: str | bool | None = None,
    sys_flag: str | int | None = None,
) -> Header:
    """Set the fields of ``header`` that determine a request's resource and cost. Return ``header``.

    A send to ``%RETRY%<group>`` and a send-back from that group have the same resource, because clients use one when
    the other is refused. ``batch`` is parsed like Java's parseBoolean, because C++ clients send ``"1"`` with a single
    message.
    """
    if fields is SUBSCRIPTION_FIELDS:
        if producer_group is not None:
            header.kind, header.name = KIND_SUBSCRIPTION, subscription_name(producer_group, value)
        return header
    if fields is SEND_BACK_FIELDS:
        header.kind, header.name = KIND_RETRY_GROUP, value
    elif fields is TRANSACTION_FIELDS:
        header.kind, header.name = KIND_TRANSACTION, value
    elif value.startswith(RETRY_PREFIX):
        header.kind, header.name = KIND_RETRY_GROUP, value[len(RETRY_PREFIX) :]
    else:
        header.kind, header.name = KIND_TOPIC, value
    header.producer_group = (producer_group or "")[:MAX_NAME_CHARS]
    header.is_batch = batch != "false" and batch is not None and str(batch).lower() == "true"
    if sys_flag not in PLAIN_SYS_FLAG_VALUES:
        header.sys_flag = read_sys_flag(sys_flag)
    return header


prefix_at = Struct(">iI").unpack_from
"""Reads the first two words of a frame: its length, and the type and length of its header."""
HEADER_LENGTH: Final = 0xFFFFFF  # mask for the second word
_MAX_WORD: Final = codes.HEADER_BINARY << 24 | HEADER_LENGTH


# The broker accepts 32 KiB of properties, which JSON escapes can make six times as long.
MAX_HEADER_BYTES: Final = 256 * 1024


def header_bytes_of(length: int, word: int, max_length: int) -> int:
    """Return the length of the header in a client's frame, given the frame's first two words.

    Raises Close if the words are invalid.
    """
    header_bytes = word & HEADER_LENGTH
    if header_bytes <= length - 4 and length <= max_length and word <= _MAX_WORD:
        return header_bytes
    begins = (length & 0xFFFFFFFF).to_bytes(4, "big")
    if all(0x20 <= byte < 0x7F for byte in begins):
        detail = f"{begins.decode()!r} instead of a frame; check that it uses the listener's `protocol`"
    elif not codes.MIN_LENGTH <= length <= max_length:
        detail = f"a frame of length {length}; the length must be between {codes.MIN_LENGTH} and {max_length}"
    elif word > _MAX_WORD:
        detail = f"a header of unknown type {word >> 24}; must be {codes.HEADER_JSON} or {codes.HEADER_BINARY}"
    else:
        detail = f"a header of {header_bytes} bytes that does not fit in its frame of length {length}"
    raise Close("bad_frame", f"the client sent {detail}")


_READ_AGAIN_BYTES: Final = 2048


class Begun(NamedTuple):
    come: bytes  # the frame's first two words, followed by the header unless it is too long
    header_type: int
    header_bytes: int
    frame_bytes: int
    position: int  # offset in the chunk of the first byte after ``come``

    @property
    def header(self) -> bytes | None:
        return self.come[PREFIX_BYTES:] if len(self.come) == PREFIX_BYTES + self.header_bytes else None

    @property
    def left_bytes(self) -> int:
        return self.frame_bytes - len(self.come)


class PartialFrame:
    def __init__(self, max_header_bytes: int, header_bytes_of: Callable[[int, int], int]) -> None:
        self.pieces = bytearray()  # the part of the header that has arrived. Empty between frames
        self._max_header_bytes = max_header_bytes
        self._header_bytes_of = header_bytes_of

    def missing_bytes(self) -> int:
        have = len(self.pieces)
        if have < PREFIX_BYTES:
            return PREFIX_BYTES - have
        word: int = prefix_at(self.pieces)[1]
        return PREFIX_BYTES + (word & HEADER_LENGTH) - have

    def readable_again(self) -> int:
        """Return the number of gathered bytes, or 0 if they are too many to parse again from the start."""
        have = len(self.pieces)
        return have if have <= _READ_AGAIN_BYTES else 0

    def resume(self, chunk: memoryview) -> Begun | None:
        """Add a chunk. Return None until the header is complete or known to be too long.

        Raises Close if a length is invalid.
        """
        pieces, size = self.pieces, len(chunk)
        position = min(max(0, PREFIX_BYTES - len(pieces)), size)
        pieces += chunk[:position]
        if len(pieces) < PREFIX_BYTES:
            return None
        length, word = prefix_at(pieces)
        header_bytes = self._header_bytes_of(length, word)
        wanted = PREFIX_BYTES + (header_bytes if header_bytes <= self._max_header_bytes else 0)
        step = min(wanted - len(pieces), size - position)
        pieces += chunk[position : position + step]
        if len(pieces) < wanted:
            return None
        return Begun(self.take(), word >> 24, header_bytes, 4 + length, position + step)

    def take(self) -> bytes:
        pieces = bytes(self.pieces)
        self.pieces.clear()
        return pieces
