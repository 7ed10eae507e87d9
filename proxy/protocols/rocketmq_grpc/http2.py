"""HTTP/2 (RFC 9113) for a relay that leaves most frames as they are: frames, header blocks, windows, gRPC's messages.

The windows of a connection
===========================
An ``Outlet`` is one direction: frames to a *receiver*, most of which come from a *sender*. Only DATA counts. Three
numbers of bytes are enough, whatever is held, discarded, lengthened or written by Sluice itself:

- ``window``: what the receiver accepts now.
- ``credit``: what the sender may send now, as it has been told.
- ``waiting``: DATA that has arrived and may still be forwarded.

========================== ============================================================================================
event                      then
========================== ============================================================================================
the sender's DATA arrives  ``credit -= n, waiting += n``; a credit below zero is a protocol error of the sender
DATA is forwarded          ``window -= n, waiting -= n``; only if n <= window, else it and all DATA behind it wait
it is discarded or held    ``waiting -= n``
held DATA is released      ``waiting += n``, as for DATA of Sluice itself. Then it is forwarded
the receiver's update of n ``window += n``
the sender is granted      ``max(0, window - waiting - credit)``: at once after an update, else once it is worth a frame
========================== ============================================================================================

Invariants, for every order of these:

1. ``window >= 0``: no receiver's window is overdrawn.
2. ``credit >= 0``, or the connection ends. So DATA that waits for a window is bounded by the credit granted.
3. After a grant, ``credit >= window - waiting``: the sender never has less than the receiver would accept, whatever is
   held. So no call waits for the window of a held call.
4. The excess of ``credit`` over that grows only by released DATA and by DATA of Sluice itself. It shrinks with every
   update and every byte discarded. So it is zero again once the receiver has read everything, after any number of
   refusals.

Stream windows are between the two peers: Sluice grants nothing for them. Only a stream whose answer is rewritten has a
window of its own on each side.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, Protocol, cast

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
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
FRAME_SIZE_ERROR: Final = 6
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

FRAME_HEADER_BYTES: Final = 9
PING_BYTES: Final = FRAME_HEADER_BYTES + 8
#: Defaults until a peer announces more: the longest frame, and the window of a connection and of each stream.
DEFAULT_FRAME_BYTES: Final = 16_384
DEFAULT_WINDOW: Final = 65_535
MAX_FRAME_BYTES: Final = (1 << 24) - 1
MAX_WINDOW: Final = (1 << 31) - 1
STREAM_IDS: Final = (1 << 31) - 1
#: Limits for a header block with its frame headers, and for its decoded fields (gRPC's libraries accept 8 KiB).
MAX_BLOCK_BYTES: Final = 64 * 1024
MAX_HEADER_LIST_BYTES: Final = 16 * 1024
#: Frames of one chunk to read before other connections get their turn.
_MAX_STEPS: Final = 256
#: A sender with less credit than this is granted more at once, else once that is as much.
_GRANT_BYTES: Final = 16_384
#: Limit for frames that wait for a window. Small ones cost much more memory than their bytes.
_MAX_QUEUED: Final = 65_536
#: SETTINGS that wait for an acknowledgement.
_MAX_PENDING_SETTINGS: Final = 100

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
    """Return a header block in frames of the default size, which every peer accepts."""
    pieces = [block[at : at + DEFAULT_FRAME_BYTES] for at in range(0, len(block), DEFAULT_FRAME_BYTES)] or [b""]
    last = len(pieces) - 1
    return b"".join(
        frame_of(
            CONTINUATION if at else HEADERS, (0 if at else flags) | (END_HEADERS if at == last else 0), stream, each
        )
        for at, each in enumerate(pieces)
    )


def data_of(stream: int, data: bytes, *, ends: bool = False) -> list[tuple[bytes, int]]:
    """Return DATA in frames of the default size, each with its bytes of DATA."""
    pieces = [data[at : at + DEFAULT_FRAME_BYTES] for at in range(0, len(data), DEFAULT_FRAME_BYTES)] or [b""]
    frames = [(frame_of(DATA, 0, stream, piece), len(piece)) for piece in pieces]
    if ends:
        frames[-1] = frame_of(DATA, END_STREAM, stream, pieces[-1]), len(pieces[-1])
    return frames


def word_of(frame: Buffer) -> int:
    """Return the number in a WINDOW_UPDATE or RST_STREAM, without the reserved bit."""
    if len(frame) != FRAME_HEADER_BYTES + _word.size:
        raise Close(
            "bad_frame", f"a frame of type {frame[3]} has {len(frame) - FRAME_HEADER_BYTES} bytes in place of 4"
        )
    word: int = _word.unpack_from(frame, FRAME_HEADER_BYTES)[0]
    return word & MAX_WINDOW


def last_stream_of(frame: Buffer) -> int:
    """Return the last stream that the sender of a GOAWAY has accepted."""
    if len(frame) < FRAME_HEADER_BYTES + 2 * _word.size:
        raise Close("bad_frame", f"a GOAWAY of {len(frame) - FRAME_HEADER_BYTES} bytes")
    word: int = _word.unpack_from(frame, FRAME_HEADER_BYTES)[0]
    return word & STREAM_IDS


def settings_of(frame: Buffer) -> dict[int, int]:
    """Return the last value of each setting in a frame."""
    payload = frame[FRAME_HEADER_BYTES:]
    if len(payload) % _setting.size:
        raise Close("bad_frame", f"a SETTINGS frame of {len(payload)} bytes")
    return dict(_setting.iter_unpack(payload))


def content_of(frame: Buffer, flags: int) -> Buffer:
    """Return the content of a DATA or HEADERS frame, without padding and priority."""
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
    """Splits one peer's stream into frames. A header block and its CONTINUATIONs count as one.

    Attributes:
        count: frames so far.
        max_bytes: the longest payload that the other peer accepts.
        left_bytes: bytes at the end of the last chunk that were not read yet.
    """

    __slots__ = ("_block", "_peer", "_tail", "count", "left_bytes", "max_bytes")

    def __init__(self, peer: str) -> None:
        self.count = self.left_bytes = 0
        self.max_bytes = DEFAULT_FRAME_BYTES
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
        """Return how many bytes are missing of the current frame, or of its header."""
        have = len(self._tail)
        if have < FRAME_HEADER_BYTES:
            return FRAME_HEADER_BYTES - have
        word: int = _read_head(self._tail)[0]
        return self._checked(word) - have

    def _checked(self, word: int) -> int:
        """Return the size of a whole frame."""
        length = word >> 8
        if length > self.max_bytes or (word & 0xFF != DATA and length > MAX_BLOCK_BYTES):
            raise Close("frame_too_long", f"the {self._peer} sent a frame of {length} bytes")
        return FRAME_HEADER_BYTES + length

    def read(self, chunk: memoryview) -> Iterator[Frame]:
        """Yield each complete frame, as a part of the chunk or a copy."""
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
#: Bytes that are each a complete indexed field.
_INDEXED: Final = bytes(range(0x81, 0xFF))
#: Sets the size of a dynamic table to 0.
NO_TABLE: Final = b"\x20"


def _byte(block: bytes, at: int) -> int:
    """Return the second byte of a number if it is the last one. Otherwise raise IndexError."""
    return block[at] if block[at] < 0x80 else block[len(block)]


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string in a block, and where it ends. Raise IndexError if it is long or truncated."""
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
    """A fast path for fields as most clients encode them. The library decodes all others."""

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


class HeaderBlocks:
    """Follows the table of one peer's header blocks."""

    __slots__ = ("_decoder", "_peer", "_table_sizes")

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._decoder = _Decoder(MAX_HEADER_LIST_BYTES)
        # Table sizes in the other peer's settings that this one has not acknowledged.
        self._table_sizes: deque[int | None] = deque()

    def allow(self, table_bytes: int | None) -> None:
        """Note the other peer's SETTINGS with the table size in it, if any. ``acknowledged`` follows."""
        if len(self._table_sizes) >= _MAX_PENDING_SETTINGS:
            raise Close("flood", f"the {self._peer} has not acknowledged {_MAX_PENDING_SETTINGS} SETTINGS")
        self._table_sizes.append(table_bytes)
        if table_bytes is not None and table_bytes > self._decoder.max_allowed_table_size:
            self._decoder.max_allowed_table_size = table_bytes

    def acknowledged(self) -> None:
        """Note this peer's acknowledgement. From now on, its table must not be longer."""
        table_bytes = self._table_sizes.popleft() if self._table_sizes else None
        if table_bytes is not None:
            allowed = [each for each in self._table_sizes if each is not None]
            self._decoder.max_allowed_table_size = max([table_bytes, *allowed])

    @property
    def to_signal(self) -> bytes:
        """The prefix of a block that is inserted before this peer's next one. Usually empty.

        The first block after an acknowledgement must shrink a table that is now too long (RFC 7541, 4.2).
        """
        allowed_bytes = self._decoder.max_allowed_table_size
        return _number(0x20, 5, allowed_bytes) if self._decoder.header_table.maxsize > allowed_bytes else b""

    def read(self, block: bytes) -> tuple[Headers, bool]:
        """Return the headers in a block, and whether it has changed the table."""
        table = self._decoder.header_table
        before = table.maxsize, len(table.dynamic_entries), next(iter(table.dynamic_entries), None)
        try:
            headers = self._decoder.read(block)
        except (HPACKError, ValueError) as error:
            # Not the error's text: it has bytes of the block, perhaps of a signature.
            why = type(error).__name__
            raise Close("bad_headers", f"the {self._peer} sent a header block that cannot be read: {why}") from None
        entries = table.dynamic_entries
        is_same = before[:2] == (table.maxsize, len(entries)) and before[2] is next(iter(entries), None)
        return headers, not is_same


def is_indexed(block: bytes) -> bool:
    """Return whether a block has only indexed fields of one byte each, so that it does not change the table."""
    return not block.translate(None, _INDEXED)


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field that does not use or change the table."""
    return b"\x00" + _string(name) + _string(value)


def literals(headers: Headers) -> bytes:
    """Return a header block that does not use or change the table."""
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
    """A stream whose own window an Outlet observes."""

    granted: int  # by WINDOW_UPDATEs
    sent: int


class _Queued:
    """A frame that waits. Empty once it is dropped."""

    __slots__ = ("frame", "size", "stream", "window")

    def __init__(self, frame: bytes, size: int, stream: int, window: StreamWindow | None) -> None:
        self.frame = frame
        self.size = size
        self.stream = stream
        self.window = window


class Outlet:
    """The frames to one peer. The module's docstring explains the windows.

    Attributes:
        is_open: frames may be written. Until then, all wait.
        initial: the window of each new stream.
        out, out_bytes: frames that may be written, and their bytes.
        queued_bytes: bytes of frames that wait for a window.
    """

    __slots__ = (
        "_queue",
        "_streams",
        "credit",
        "initial",
        "is_open",
        "out",
        "out_bytes",
        "queued_bytes",
        "waiting",
        "window",
    )

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.initial = self.window = self.credit = DEFAULT_WINDOW
        self.waiting = self.out_bytes = self.queued_bytes = 0
        self.out: list[Buffer] = []
        self._queue: deque[_Queued] = deque()
        # The frames in the queue that can be dropped, by stream.
        self._streams: dict[int, deque[_Queued]] = {}

    def arrive(self, size: int, sender: str) -> None:
        """Note DATA of the sender."""
        self.credit -= size
        self.waiting += size
        if self.credit < 0:
            raise Close("window_overdrawn", f"the {sender} sent more than the window of the connection allows")

    def retire(self, size: int) -> None:
        """Note that DATA is discarded or held, so the sender gets its window back."""
        self.waiting -= size

    def add(self, size: int) -> None:
        """Note DATA that Sluice makes itself, or that was held."""
        self.waiting += size

    def write(self, frame: Buffer) -> None:
        """Write a frame ahead of those that wait."""
        self.out.append(frame)
        self.out_bytes += len(frame)

    def put(self, frame: Buffer, size: int = 0, stream: int = 0, window: StreamWindow | None = None) -> None:
        """Write a frame behind those that wait; of ``size`` bytes of DATA, for which ``arrive`` or ``add`` was called.

        Args:
            frame: one or more frames.
            size: bytes of DATA in it.
            stream: the stream with which it can be dropped; 0: it cannot.
            window: the stream's own window, if that counts as well.
        """
        if not (self._queue or not self.is_open or not self._fits(size, window)):
            self._send(frame, size, window)
            return
        for each, part in _parts(frame, size):
            queued = _Queued(each, part, stream, window)
            self._queue.append(queued)
            self.queued_bytes += len(each)
            if stream:
                self._streams.setdefault(stream, deque()).append(queued)
        if len(self._queue) > _MAX_QUEUED:
            raise Close("window_overdrawn", f"more than {_MAX_QUEUED} frames wait for a window")
        self.flush()

    def flush(self) -> None:
        """Write the frames that no longer have to wait."""
        queue = self._queue
        while queue and self.is_open:
            first = queue[0]
            if not self._fits(first.size, first.window):
                return
            queue.popleft()
            if not first.frame:
                continue
            self.queued_bytes -= len(first.frame)
            if first.stream:
                others = self._streams[first.stream]
                others.popleft()
                if not others:
                    del self._streams[first.stream]
            self._send(first.frame, first.size, first.window)

    def _send(self, frame: Buffer, size: int, window: StreamWindow | None) -> None:
        self.window -= size
        self.waiting -= size
        if window is not None:
            window.sent += size
        self.out.append(frame)
        self.out_bytes += len(frame)

    def _fits(self, size: int, window: StreamWindow | None) -> bool:
        return size <= self.window and (
            window is None or not size or size <= self.initial + window.granted - window.sent
        )

    def window_of(self, stream: int) -> StreamWindow | None:
        """Return the window for which a stream's frames wait; None if none do."""
        queued = self._streams.get(stream)
        return queued[0].window if queued else None

    def update(self, size: int) -> int:
        """Apply the receiver's WINDOW_UPDATE for the connection. Return the sender's share."""
        self.window += size
        if self.window > MAX_WINDOW:
            raise Close("window_overdrawn", f"a window of more than {MAX_WINDOW} bytes")
        grant = self.grant(least=1)
        self.flush()
        return grant

    def grant(self, least: int = _GRANT_BYTES) -> int:
        """Grant the sender window. 0: it would be less than ``least``, and the sender has enough."""
        grant = self.window - self.waiting - self.credit
        if grant <= 0 or grant < min(self.credit, least):
            return 0
        self.credit += grant
        return grant

    def drop(self, stream: int) -> None:
        """Drop a stream's frames that wait, so that those behind them may be written."""
        for queued in self._streams.pop(stream, ()):
            self.queued_bytes -= len(queued.frame)
            self.waiting -= queued.size
            queued.frame, queued.size = b"", 0
        self.flush()

    def take(self) -> list[Buffer]:
        out, self.out, self.out_bytes = self.out, [], 0
        return out


def _parts(frame: Buffer, size: int) -> list[tuple[bytes, int]]:
    """Return copies of a frame that has to wait. Long DATA is split to fit into small windows."""
    whole = bytes(frame)
    if size <= DEFAULT_FRAME_BYTES or whole[4] & PADDED or size + FRAME_HEADER_BYTES != len(whole):
        return [(whole, size)]
    return data_of(_read_head(whole)[2], whole[FRAME_HEADER_BYTES:], ends=whole[4] & END_STREAM != 0)


class Messages:
    """Splits the DATA of a stream into gRPC messages.

    Args:
        max_bytes: how much to keep of each message.
    """

    __slots__ = ("_have", "_left", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._have = bytearray()
        # Bytes of the message that are still to come, beyond those kept.
        self._left = 0

    def feed(self, content: Buffer) -> list[tuple[int, int, bytes]]:
        """Return flag, length and the first ``max_bytes`` of each message that is now complete."""
        have, at, size = self._have, 0, len(content)
        if not have and MESSAGE_PREFIX_BYTES <= size <= self._max_bytes:
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
            have += content[at : at + min(step, self._max_bytes + MESSAGE_PREFIX_BYTES - len(have))]
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
    """Return a message with gRPC's prefix."""
    return _message_prefix.pack(flag, len(message)) + message


def prefix_of(content: Buffer | bytearray) -> tuple[int, int]:
    """Return the flag and the length in a message's prefix."""
    flag, length = _message_prefix.unpack_from(content)
    return flag, length
