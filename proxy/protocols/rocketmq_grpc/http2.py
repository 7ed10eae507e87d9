"""HTTP/2 (RFC 9113) for a relay that leaves most frames as they are: frames, header blocks, windows, gRPC's messages.

The windows of a connection
===========================
An ``Outlet`` is one direction: frames to a *receiver*, most of which come from a *sender*. Only DATA counts. Three
numbers of bytes are enough, whatever is held, swallowed, written by Sluice itself or made longer:

- ``window``: what the receiver takes now.
- ``credit``: what the sender may send now, as it knows.
- ``waiting``: DATA that is here and will be forwarded, or may be.

========================== ============================================================================================
event                      then
========================== ============================================================================================
the sender's DATA arrives  ``credit -= n, waiting += n``; with a credit below zero the sender has broken the rules
DATA goes on               ``window -= n, waiting -= n``; only if n <= window, else it waits, and all DATA behind it
it is swallowed, or held   ``waiting -= n``
held DATA is released      ``waiting += n``, as for DATA that Sluice makes itself; then it goes on
the receiver's update of n ``window += n``
the sender is granted      ``max(0, window - waiting - credit)``, at once after an update, else once it is worth a frame
========================== ============================================================================================

Invariants, for every order of these:

1. ``window >= 0``: no receiver's window is overdrawn.
2. ``credit >= 0``, or the connection ends: so what waits for a window is bounded by what was granted.
3. Once granted, ``credit >= window - waiting``: the sender has never less than the receiver would take, whatever is
   held, so no call waits for the window of another one that is held.
4. ``credit`` is more than that by ``ahead``, which grows only by released DATA and by Sluice's own, and shrinks with
   every update and every byte swallowed. So it is zero again once the receiver has read everything, after any number
   of refusals.

Windows of single streams are the two peers' own, since nothing is granted for them. Only for a stream whose answer is
rewritten is there another one on either side.
"""

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, Generic, Protocol, TypeVar, cast

from hpack import Decoder, HPACKDecodingError, HPACKError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman

from proxy.protocols.base import Buffer, Close

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Types of frames.
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
# Flags.
END_STREAM: Final = 0x01
ACK: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
HAS_PRIORITY: Final = 0x20
# Settings.
HEADER_TABLE_SIZE: Final = 1
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
# Error codes.
NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
FRAME_SIZE_ERROR: Final = 6
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

FRAME_HEADER_BYTES: Final = 9
PING_BYTES: Final = FRAME_HEADER_BYTES + 8
#: The longest frame that every peer takes, and the window of a connection and of each stream, until it says more.
DEFAULT_FRAME_BYTES: Final = 16_384
DEFAULT_WINDOW: Final = 65_535
MAX_FRAME_BYTES: Final = (1 << 24) - 1
MAX_WINDOW: Final = (1 << 31) - 1
STREAM_IDS: Final = (1 << 31) - 1
#: Of a header block with the headers of its frames; and of what it says, where gRPC's libraries take 8 KiB.
MAX_BLOCK_BYTES: Final = 64 * 1024
MAX_HEADER_LIST_BYTES: Final = 16 * 1024
#: Frames of one chunk that are read before other connections have their turn.
_MAX_STEPS: Final = 256
#: A sender with less credit than this is granted more at once, else once that is as much.
_GRANT_BYTES: Final = 16_384
#: Frames that wait for a window: each costs more memory than the few bytes that it may have.
_MAX_QUEUED: Final = 65_536
_CACHED_BLOCKS: Final = 64

_head = Struct(">IBI")
_read_head = _head.unpack_from
_word = Struct(">I")
_setting = Struct(">HI")
_message_prefix = Struct(">BI")
MESSAGE_PREFIX_BYTES: Final = _message_prefix.size


def frame_of(kind: int, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    return _head.pack(len(payload) << 8 | kind, flags, stream) + payload


def window_update(stream: int, size: int) -> bytes:
    return frame_of(WINDOW_UPDATE, 0, stream, _word.pack(size))


def rst_stream(stream: int, code: int) -> bytes:
    return frame_of(RST_STREAM, 0, stream, _word.pack(code))


def goaway(last_stream: int, code: int, detail: str) -> bytes:
    return frame_of(GOAWAY, 0, 0, _word.pack(last_stream) + _word.pack(code) + detail.encode()[:1024])


def headers_of(flags: int, stream: int, block: bytes) -> bytes:
    """Return a header block in as many frames as every peer takes."""
    pieces = [block[at : at + DEFAULT_FRAME_BYTES] for at in range(0, len(block), DEFAULT_FRAME_BYTES)] or [b""]
    last = len(pieces) - 1
    return b"".join(
        frame_of(
            CONTINUATION if at else HEADERS, (0 if at else flags) | (END_HEADERS if at == last else 0), stream, each
        )
        for at, each in enumerate(pieces)
    )


def data_of(stream: int, data: bytes, *, ends: bool = False) -> list[tuple[bytes, int]]:
    """Return DATA in frames that every peer takes, with the bytes in each."""
    pieces = [data[at : at + DEFAULT_FRAME_BYTES] for at in range(0, len(data), DEFAULT_FRAME_BYTES)] or [b""]
    frames = [(frame_of(DATA, 0, stream, piece), len(piece)) for piece in pieces]
    if ends:
        frames[-1] = frame_of(DATA, END_STREAM, stream, pieces[-1]), len(pieces[-1])
    return frames


def word_of(frame: Buffer) -> int:
    """Return the number in a WINDOW_UPDATE or RST_STREAM; the reserved bit does not count."""
    if len(frame) != FRAME_HEADER_BYTES + _word.size:
        raise Close(
            "bad_frame", f"a frame of type {frame[3]} has {len(frame) - FRAME_HEADER_BYTES} bytes in place of 4"
        )
    word: int = _word.unpack_from(frame, FRAME_HEADER_BYTES)[0]
    return word & MAX_WINDOW


def settings_of(frame: Buffer) -> dict[int, int]:
    """Return the last value of each setting in a frame."""
    payload = frame[FRAME_HEADER_BYTES:]
    if len(payload) % _setting.size:
        raise Close("bad_frame", f"a SETTINGS frame of {len(payload)} bytes")
    return dict(_setting.iter_unpack(payload))


def content_of(frame: Buffer, flags: int) -> Buffer:
    """Return what a DATA frame, or the first frame of a header block, brings, without padding and priority."""
    start, stop = FRAME_HEADER_BYTES, len(frame)
    if flags & PADDED:
        stop -= frame[start] if start < stop else 0
        start += 1
    if frame[3] == HEADERS and flags & HAS_PRIORITY:
        start += 5
    if start > stop:
        raise Close("bad_frame", "a frame has more padding than bytes")
    return frame[start:stop]


def block_of(frames: Buffer, flags: int) -> bytes:
    """Return the header block in a HEADERS frame and its CONTINUATIONs."""
    word: int = _read_head(frames)[0]
    at = FRAME_HEADER_BYTES + (word >> 8)
    if at == len(frames):
        return bytes(content_of(frames, flags))
    pieces = [content_of(frames[:at], flags)]
    while at < len(frames):
        word = _read_head(frames, at)[0]
        stop = at + FRAME_HEADER_BYTES + (word >> 8)
        pieces.append(frames[at + FRAME_HEADER_BYTES : stop])
        at = stop
    return b"".join(pieces)


Frame = tuple[int, int, int, Buffer]
"""Type, flags and stream of a frame, and all its bytes."""


class Frames:
    """Cuts one peer's stream into frames; a header block comes with its CONTINUATIONs as one.

    Attributes:
        count: frames so far.
        most_bytes: what the other peer takes as the payload of a frame.
        left_bytes: at the end of the last chunk, which were not read.
    """

    __slots__ = ("_block", "_peer", "_tail", "count", "left_bytes", "most_bytes")

    def __init__(self, peer: str) -> None:
        self.count = self.left_bytes = 0
        self.most_bytes = DEFAULT_FRAME_BYTES
        self._peer = peer
        self._tail = bytearray()
        # The beginning of a header block.
        self._block = bytearray()

    @property
    def is_between(self) -> bool:
        return not (self._tail or self._block or self.left_bytes)

    @property
    def tail_bytes(self) -> int:
        return len(self._tail)

    def missing_bytes(self) -> int:
        """Return how many bytes to read for the header, or for the rest, of the frame in hand."""
        have = len(self._tail)
        if have < FRAME_HEADER_BYTES:
            return FRAME_HEADER_BYTES - have
        word: int = _read_head(self._tail)[0]
        return self._checked(word) - have

    def _checked(self, word: int) -> int:
        """Return the size of a whole frame."""
        length = word >> 8
        if length > self.most_bytes or (word & 0xFF != DATA and length > MAX_BLOCK_BYTES):
            raise Close("frame_too_long", f"the {self._peer} sent a frame of {length} bytes")
        return FRAME_HEADER_BYTES + length

    def read(self, chunk: memoryview) -> Iterator[Frame]:
        """Yield each whole frame: a part of the chunk, or a copy."""
        at, size, tail = 0, len(chunk), self._tail
        self.left_bytes = 0
        while tail and at < size:
            missing = self.missing_bytes()
            tail += chunk[at : at + missing]
            at = min(at + missing, size)
            if not self.missing_bytes():
                frame = bytes(tail)
                tail.clear()
                word, flags, stream = _read_head(frame)
                yield from self._whole(word & 0xFF, flags, stream & STREAM_IDS, frame)
        steps = 0
        while size - at >= FRAME_HEADER_BYTES:
            word, flags, stream = _read_head(chunk, at)
            stop = at + self._checked(word)
            if stop > size:
                break
            if steps == _MAX_STEPS:
                self.left_bytes = size - at
                return
            steps += 1
            kind = word & 0xFF
            frame_ = chunk[at:stop]
            at = stop
            if not self._block and (kind in _SIMPLE or (kind == HEADERS and flags & END_HEADERS)):
                self.count += 1
                yield kind, flags, stream & STREAM_IDS, frame_
            else:
                yield from self._whole(kind, flags, stream & STREAM_IDS, frame_)
        tail += chunk[at:]

    def _whole(self, kind: int, flags: int, stream: int, frame: Buffer) -> Iterator[Frame]:
        self.count += 1
        block = self._block
        if not block and kind != CONTINUATION:
            if kind != HEADERS or flags & END_HEADERS:
                yield kind, flags, stream, frame
            else:
                block += frame
            return
        if not block or kind != CONTINUATION or stream != _read_head(block)[2] & STREAM_IDS:
            raise Close("bad_frame", f"the {self._peer} sent a frame of type {kind} where it does not belong")
        block += frame
        if len(block) > MAX_BLOCK_BYTES:
            raise Close(
                "headers_too_long", f"the {self._peer} sent a header block of more than {MAX_BLOCK_BYTES} bytes"
            )
        if flags & END_HEADERS:
            whole = bytes(block)
            block.clear()
            yield HEADERS, whole[4], stream, whole


_SIMPLE: Final = frozenset({DATA, WINDOW_UPDATE, RST_STREAM, SETTINGS, PING})

Headers = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")
#: Bytes of which each is a whole indexed field.
_INDEXED: Final = bytes(range(0x81, 0xFF))
#: Sets the size of a dynamic table to 0.
NO_TABLE: Final = b"\x20"


def _byte(block: bytes, at: int) -> int:
    """Return the second and last byte of a number; IndexError if it is longer."""
    return block[at] if block[at] < 0x80 else block[len(block)]


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string in a block, and where it ends; IndexError if it is long, or cut."""
    first = block[at]
    length = first & 0x7F
    at += 1
    if length == 0x7F:
        length += _byte(block, at)
        at += 1
    text = block[at : at + length]
    if len(text) < length:
        raise IndexError
    return decode_huffman(text) if first & 0x80 else text, at + length


class _Decoder(Decoder):
    """Reads fields as clients mostly write them several times as fast; the library reads all others."""

    def read(self, block: bytes) -> list[tuple[bytes, bytes]]:
        table = self.header_table
        entries, known, known_count = table.dynamic_entries, table.STATIC_TABLE, table.STATIC_TABLE_LENGTH
        headers: list[tuple[bytes, bytes]] = []
        at, size, list_bytes = 0, len(block), 0
        with suppress(IndexError):
            while at < size:
                byte = block[at]
                adds, is_indexed = byte & 0xC0 == 0x40, byte >= 0x80
                most = 0x7F if is_indexed else 0x3F if adds else 0x0F
                index, stop = byte & most, at + 1
                if 0x20 <= byte < 0x40 or byte == 0x80:
                    break
                if index == most:
                    index, stop = index + _byte(block, stop), stop + 1
                name = value = b""
                if index:
                    name, value = known[index - 1] if index <= known_count else entries[index - known_count - 1]
                else:
                    name, stop = _text(block, stop)
                if not is_indexed:
                    value, stop = _text(block, stop)
                    if adds:
                        table.add(name, value)
                at = stop
                headers.append((name, value))
                list_bytes += 32 + len(name) + len(value)
                if list_bytes > self.max_header_list_size:
                    raise OversizedHeaderListError
        rest = block[at:]
        if headers and rest[:1] and 0x20 <= rest[0] < 0x40:
            raise HPACKDecodingError("a change of the table's size behind a field")
        return headers + cast("list[tuple[bytes, bytes]]", self.decode(rest, raw=True))


class HeaderBlocks(Generic[T]):
    """Follows the table of one peer's header blocks.

    Args:
        understand: makes the result of a block; called once for a block that is repeated and changes no table.
    """

    __slots__ = ("_decoder", "_known", "_peer", "_table_sizes", "_understand")

    def __init__(self, peer: str, understand: Callable[[Headers], T]) -> None:
        self._peer = peer
        self._understand = understand
        self._decoder = _Decoder(MAX_HEADER_LIST_BYTES)
        self._known: dict[bytes, T] = {}
        # What the other peer allows with settings that this one has not acknowledged.
        self._table_sizes: deque[int | None] = deque()

    def allow(self, table_bytes: int | None) -> None:
        """Note the other peer's settings: how long the table may be, if they say so. ``acknowledged`` follows."""
        self._table_sizes.append(table_bytes)
        if table_bytes is not None and table_bytes > self._decoder.max_allowed_table_size:
            self._decoder.max_allowed_table_size = table_bytes

    def acknowledged(self) -> None:
        """Note this peer's acknowledgement: from now on its table must not be longer."""
        table_bytes = self._table_sizes.popleft() if self._table_sizes else None
        if table_bytes is not None:
            allowed = [each for each in self._table_sizes if each is not None]
            self._decoder.max_allowed_table_size = max([table_bytes, *allowed])

    @property
    def to_signal(self) -> bytes:
        """What a block must begin with that comes before this peer's next one; mostly nothing.

        The first block after an acknowledgement shortens a table that has become too long (RFC 7541, 4.2).
        """
        allowed_bytes = self._decoder.max_allowed_table_size
        return _number(0x20, 5, allowed_bytes) if self._decoder.header_table.maxsize > allowed_bytes else b""

    def read(self, block: bytes) -> tuple[T, bool]:
        """Return the result of a block, and whether it has changed the table."""
        known = self._known.get(block)
        if known is not None:
            return known, False
        table = self._decoder.header_table
        before = table.maxsize, len(table.dynamic_entries), next(iter(table.dynamic_entries), None)
        try:
            headers = self._decoder.read(block)
        except (HPACKError, ValueError) as error:
            # Without its text, which has bytes of the block, such as a signature.
            why = type(error).__name__
            raise Close("bad_headers", f"the {self._peer} sent a header block that cannot be read: {why}") from None
        result = self._understand(headers)
        entries = table.dynamic_entries
        if before[:2] == (table.maxsize, len(entries)) and before[2] is next(iter(entries), None):
            if len(self._known) < _CACHED_BLOCKS and len(block) <= 1024:
                self._known[block] = result
            return result, False
        self._known.clear()
        return result, True


def is_indexed(block: bytes) -> bool:
    """Say whether a block has nothing but indexed fields of one byte each, so that it changes no table."""
    return not block.translate(None, _INDEXED)


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field that no table is needed for, and that changes none."""
    return b"\x00" + _string(name) + _string(value)


def literals(headers: Headers) -> bytes:
    """Return a header block that needs no table."""
    return b"".join(literal(name, value) for name, value in headers)


def _string(text: bytes) -> bytes:
    return _number(0, 7, len(text)) + text


def _number(pattern: int, bits: int, value: int) -> bytes:
    """Return a number behind a pattern of bits (RFC 7541, 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((pattern | value,))
    out = bytearray((pattern | most,))
    value -= most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class StreamWindow(Protocol):
    """A stream with a window of its own, for an Outlet that looks after that."""

    granted: int  # by WINDOW_UPDATEs
    sent: int
    is_over: bool  # nothing of it waits for its window any more


class Outlet:
    """What is written to one peer; the module's docstring explains the windows.

    Attributes:
        is_open: frames may be written. Until then all wait.
        initial: the window of each new stream.
        out, out_bytes: what may be written.
        queued_bytes: of frames that wait for a window.
    """

    __slots__ = ("_queue", "credit", "initial", "is_open", "out", "out_bytes", "queued_bytes", "waiting", "window")

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.initial = self.window = self.credit = DEFAULT_WINDOW
        self.waiting = self.out_bytes = self.queued_bytes = 0
        self.out: list[Buffer] = []
        self._queue: deque[tuple[Buffer, int, StreamWindow | None]] = deque()

    def arrive(self, size: int, sender: str) -> None:
        """Take note of the sender's DATA."""
        self.credit -= size
        self.waiting += size
        if self.credit < 0:
            raise Close("window_overdrawn", f"the {sender} sent more than the window of the connection allows")

    def retire(self, size: int) -> None:
        """Take note that DATA is swallowed, or held, so that the sender gets its window back."""
        self.waiting -= size

    def own(self, size: int) -> None:
        """Take note of DATA that is made here, or was held."""
        self.waiting += size

    def write(self, frame: Buffer) -> None:
        """Write a frame ahead of what waits."""
        self.out.append(frame)
        self.out_bytes += len(frame)

    def put(self, frame: Buffer, size: int = 0, stream: StreamWindow | None = None) -> None:
        """Write a frame behind those that wait; of ``size`` bytes of DATA, for which ``arrive`` or ``own`` was called.

        ``stream`` has a window that counts as well.
        """
        if (
            self._queue
            or not self.is_open
            or size > self.window
            or (stream is not None and not self._fits(size, stream))
        ):
            for each, part in _parts(frame, size):
                self._queue.append((each, part, stream))
                self.queued_bytes += len(each)
            if len(self._queue) > _MAX_QUEUED:
                raise Close("window_overdrawn", f"more than {_MAX_QUEUED} frames wait for a window")
            self.flush()
            return
        self._send(frame, size, stream)

    def flush(self) -> None:
        """Write what no longer has to wait."""
        queue = self._queue
        while queue and self.is_open:
            frame, size, stream = queue[0]
            if size > self.window or (stream is not None and not self._fits(size, stream)):
                return
            queue.popleft()
            self.queued_bytes -= len(frame)
            self._send(frame, size, stream)

    def _send(self, frame: Buffer, size: int, stream: StreamWindow | None) -> None:
        self.window -= size
        self.waiting -= size
        if stream is not None:
            stream.sent += size
        self.out.append(frame)
        self.out_bytes += len(frame)

    def _fits(self, size: int, stream: StreamWindow) -> bool:
        return stream.is_over or size <= self.initial + stream.granted - stream.sent

    def update(self, size: int) -> int:
        """Take the receiver's WINDOW_UPDATE for the connection; return what of it the sender gets."""
        self.window += size
        if self.window > MAX_WINDOW:
            raise Close("window_overdrawn", f"a window of more than {MAX_WINDOW} bytes")
        grant = self.grant(least=1)
        self.flush()
        return grant

    def grant(self, least: int = _GRANT_BYTES) -> int:
        """Return what the sender is granted now: 0 if it is less than that, and the sender has enough."""
        grant = self.window - self.waiting - self.credit
        if grant <= 0 or grant < min(self.credit, least):
            return 0
        self.credit += grant
        return grant

    def drop(self, is_of: Callable[[Buffer], bool]) -> None:
        """Drop DATA that waits; what was behind it may go on."""
        queue, self._queue = self._queue, deque()
        for entry in queue:
            if is_of(entry[0]):
                self.queued_bytes -= len(entry[0])
                self.waiting -= entry[1]
            else:
                self._queue.append(entry)
        self.flush()

    def take(self) -> list[Buffer]:
        out, self.out, self.out_bytes = self.out, [], 0
        return out


def _parts(frame: Buffer, size: int) -> list[tuple[bytes, int]]:
    """Return copies of a frame that has to wait: long DATA in frames that fit into any window that is not used up."""
    whole = bytes(frame)
    if size <= DEFAULT_FRAME_BYTES or whole[4] & PADDED or size + FRAME_HEADER_BYTES != len(whole):
        return [(whole, size)]
    return data_of(_read_head(whole)[2], whole[FRAME_HEADER_BYTES:], ends=whole[4] & END_STREAM != 0)


class Messages:
    """Cuts the DATA of a stream into gRPC's messages.

    Args:
        most_bytes: of each message that is kept.
    """

    __slots__ = ("_have", "_left", "_most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._have = bytearray()
        # Bytes of the message that are still to come, beyond those kept.
        self._left = 0

    def feed(self, content: Buffer) -> list[tuple[int, int, bytes]]:
        """Return flag, length and bytes, or the first of them, of each message that is complete now."""
        have, at, size = self._have, 0, len(content)
        if not have and MESSAGE_PREFIX_BYTES <= size <= self._most_bytes:
            flag, length = prefix_of(content)
            if length == size - MESSAGE_PREFIX_BYTES:
                return [(flag, length, bytes(content[MESSAGE_PREFIX_BYTES:]))]
        found: list[tuple[int, int, bytes]] = []
        while at < size:
            if len(have) < MESSAGE_PREFIX_BYTES:
                step = MESSAGE_PREFIX_BYTES - len(have)
                have += content[at : at + step]
                at += step
                if len(have) < MESSAGE_PREFIX_BYTES:
                    break
                self._left = self._length()
            step = min(self._left, size - at)
            have += content[at : at + min(step, self._most_bytes + MESSAGE_PREFIX_BYTES - len(have))]
            self._left -= step
            at += step
            if not self._left:
                found.append((have[0], self._length(), bytes(have[MESSAGE_PREFIX_BYTES:])))
                have.clear()
        return found

    def _length(self) -> int:
        length: int = _message_prefix.unpack_from(self._have)[1]
        return length


def message_of(flag: int, message: bytes) -> bytes:
    """Return a message with what gRPC puts before it."""
    return _message_prefix.pack(flag, len(message)) + message


def prefix_of(content: Buffer | bytearray) -> tuple[int, int]:
    """Return the flag and the length that begin a message."""
    flag, length = _message_prefix.unpack_from(content)
    return flag, length


_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}


def decompressed(message: Buffer, encoding: bytes, most_bytes: int) -> bytes:
    """Return a compressed message.

    Raises:
        ValueError: it is compressed in another way, broken, or longer than ``most_bytes``.
    """
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise ValueError("an unknown compression")
    reader = zlib.decompressobj(bits)
    try:
        data = reader.decompress(message, most_bytes)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not reader.eof:
        raise ValueError(f"more than {most_bytes} bytes, or cut")
    return data
