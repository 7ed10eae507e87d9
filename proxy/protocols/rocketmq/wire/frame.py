"""Frames: what their headers say, and those that come in pieces."""

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

# How a header was read (``Header.reading``).
STRICT: Final = 0
LENIENT: Final = 1
UNPARSED: Final = 2

# Replaces bytes that are not UTF-8. Decoders differ in how many they put, so a resource's name with one is not read;
# the broker refuses such names.
REPLACEMENT: Final = "\ufffd"


class HalfSend(NamedTuple):
    """The send of a half message: the group that may end it, and the topic where it is stored then."""

    group: str
    topic: str


class Header(msgspec.Struct, gc=False):
    """What deciding about a frame needs of its header."""

    # Of a limitable request, else empty: a response, another request, or one that the broker refuses for lack of a
    # topic or group.
    kind: str
    name: str  # bare name of the resource (no ``%RETRY%``), meaningful only where ``kind`` is not empty
    code: int  # request code, or response code where ``flag`` has FLAG_RESPONSE
    opaque: int
    flag: int
    producer_group: str = ""  # of a send, else empty; cut after 255 characters
    is_batch: bool = False  # the broker reads the body as a batch (see ``batch_body``)
    version: int = 0
    language: str = ""  # the client's language, or empty where the broker reads none
    reading: int = STRICT  # STRICT, LENIENT or UNPARSED; nothing else is known of an unparsed header
    sys_flag: int = 0
    half: HalfSend | None = None  # what the send of a half message begins; filled in later


UNPARSABLE: Final = Header("", "", 0, 0, 0, reading=UNPARSED)
"""An unreadable header. Shared: do not write to it."""


def subscription_name(consumer_group: str, topic: str) -> str:
    return f"{consumer_group}{SUBSCRIPTION_MARK}{topic}"


def read_sys_flag(value: str | int | None) -> int:
    """Return the number that the broker reads; SYS_FLAG_INNER_BATCH, the strictest, if it is not one."""
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
    """Fill in what a limitable request is charged to, from its key fields; return ``header``.

    A send to ``%RETRY%<group>`` and a send-back (36) of that group are the same resource: clients use one when the
    other is refused. A batch is what Java's parseBoolean calls true: C++ writes ``"1"``, and the broker stores a single
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
"""The two words that every frame begins with: its length, and type and length of the header."""
HEADER_LENGTH: Final = 0xFFFFFF
"""Masks the length of the header in the second word."""
_HIGHEST_WORD: Final = codes.HEADER_BINARY << 24 | HEADER_LENGTH


# A longer header is neither gathered nor read. It is mostly the message's properties, of which the broker takes 32 KiB:
# six times that in JSON if every character is escaped.
MAX_HEADER_BYTES: Final = 256 * 1024


def header_bytes_of(length: int, word: int, max_length: int) -> int:
    """Return the header's length in a client's frame that begins with these two words.

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


# The beginning of a header may be read again with the next chunk up to this length; nearly all headers are shorter.
_READ_AGAIN_BYTES: Final = 2048


class Begun(NamedTuple):
    """A frame whose header is complete now, or too long to be gathered."""

    come: bytes  # the two words, and the header unless it is too long
    header_type: int
    header_bytes: int
    frame_bytes: int
    position: int  # in the chunk, where what follows those bytes begins

    @property
    def header(self) -> bytes | None:
        return self.come[PREFIX_BYTES:] if len(self.come) == PREFIX_BYTES + self.header_bytes else None

    @property
    def left_bytes(self) -> int:
        return self.frame_bytes - len(self.come)


class PartialFrame:
    """Gathers the beginning of one frame after another, until its header is complete."""

    def __init__(self, max_header_bytes: int, header_bytes_of: Callable[[int, int], int]) -> None:
        self.pieces = bytearray()  # empty between frames
        self._max_header_bytes = max_header_bytes
        self._header_bytes_of = header_bytes_of

    def missing_bytes(self) -> int:
        have = len(self.pieces)
        if have < PREFIX_BYTES:
            return PREFIX_BYTES - have
        word: int = prefix_at(self.pieces)[1]
        return PREFIX_BYTES + (word & HEADER_LENGTH) - have

    def readable_again(self) -> int:
        """Return the length of what is gathered; 0 if it is too long to be read again."""
        have = len(self.pieces)
        return have if have <= _READ_AGAIN_BYTES else 0

    def go_on(self, chunk: memoryview) -> Begun | None:
        """Gather the chunk's part of the header; a complete one is returned and forgotten.

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
