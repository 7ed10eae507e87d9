"""HTTP/2 (RFC 9113) for a relay that forwards most frames unchanged: frames, header blocks, windows, gRPC messages.

An ``Outlet`` writes frames to a *receiver*. Most of them come from a *sender*, but Sluice may hold, discard or lengthen
DATA, or write its own. Three counts of DATA bytes are enough for this:

- ``window``: bytes that the receiver accepts now.
- ``credit``: bytes that the sender may send now.
- ``waiting``: bytes that have arrived and may still be forwarded.

========================== ============================================================================================
event                      then
========================== ============================================================================================
the sender's DATA arrives  ``credit -= n, waiting += n``
DATA is forwarded          ``window -= n, waiting -= n`` if n <= window. Otherwise, it and all frames behind it wait
DATA is discarded or held  ``waiting -= n``
held DATA is released      ``waiting += n``, then it is forwarded. The same applies to DATA that Sluice writes
the receiver grants n      ``window += n``
Sluice grants n            ``n = max(0, window - waiting - credit)``, after a grant to Sluice or if n is worth a frame
========================== ============================================================================================

In any order of events, ``window >= 0``, so the receiver's window is never exceeded. If ``credit`` becomes negative,
Sluice closes the connection, so the credit granted bounds the waiting DATA. After a grant to the sender,
``credit >= window - waiting``, so a held call does not use up the window of other calls. The excess of ``credit`` grows
only if DATA is released or Sluice writes DATA. It is zero when the receiver has read everything.

Sluice does not grant windows for individual streams, except if it rewrites the answer (``calls.RouteAnswer``).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, cast

from hpack import Decoder, HPACKDecodingError, HPACKError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman

from proxy.protocols.base import Buffer, Close

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
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
END_STREAM: Final = 0x01
ACK: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
HAS_PRIORITY: Final = 0x20
HEADER_TABLE_SIZE: Final = 1
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
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
#: The maximum frame size, and the window of a connection and of each stream, until a peer announces more.
DEFAULT_FRAME_BYTES: Final = 16_384
DEFAULT_WINDOW: Final = 65_535
MAX_FRAME_BYTES: Final = (1 << 24) - 1
MAX_WINDOW: Final = (1 << 31) - 1
STREAM_IDS: Final = (1 << 31) - 1
#: Maximum size of a header block with frame headers, and of its decoded fields. gRPC libraries accept 8 KiB.
MAX_BLOCK_BYTES: Final = 64 * 1024
MAX_HEADER_LIST_BYTES: Final = 16 * 1024
#: Maximum number of frames read from a chunk before other connections get their turn. Bytes that are slow to read count
#: as additional frames.
_MAX_STEPS: Final = 256
HEADER_BYTES_PER_STEP: Final = 128
DATA_BYTES_PER_STEP: Final = 512
#: A grant is at least this large, or at least as large as the sender's remaining credit.
_GRANT_BYTES: Final = 16_384
#: Maximum number of frames that wait for a window. Small frames need much more memory than their size.
_MAX_QUEUED: Final = 65_536
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
    if len(block) <= DEFAULT_FRAME_BYTES:
        return frame_of(HEADERS, flags | END_HEADERS, stream, block)
    pieces = [block[at : at + DEFAULT_FRAME_BYTES] for at in range(0, len(block), DEFAULT_FRAME_BYTES)]
    frames = [frame_of(HEADERS, flags, stream, pieces[0])]
    frames += [frame_of(CONTINUATION, 0, stream, piece) for piece in pieces[1:-1]]
    return b"".join((*frames, frame_of(CONTINUATION, END_HEADERS, stream, pieces[-1])))


def data_of(stream: int, data: bytes, *, ends: bool) -> list[tuple[bytes, int]]:
    """Split DATA into frames of the default size. Return each frame with its number of DATA bytes."""
    most = DEFAULT_FRAME_BYTES
    last = max(0, len(data) - 1) // most * most
    frames = [(frame_of(DATA, 0, stream, data[at : at + most]), most) for at in range(0, last, most)]
    frames.append((frame_of(DATA, END_STREAM if ends else 0, stream, data[last:]), len(data) - last))
    return frames


def word_of(frame: Buffer) -> int:
    """Return the first number in a WINDOW_UPDATE, RST_STREAM or GOAWAY, without the reserved bit."""
    has, wanted = len(frame) - FRAME_HEADER_BYTES, _word.size
    if has < 2 * wanted if frame[3] == GOAWAY else has != wanted:
        raise Close("bad_frame", f"received a frame of type {frame[3]} with an invalid length of {has} bytes")
    word: int = _word.unpack_from(frame, FRAME_HEADER_BYTES)[0]
    return word & MAX_WINDOW


def settings_of(frame: Buffer) -> dict[int, int]:
    payload = frame[FRAME_HEADER_BYTES:]
    if len(payload) % _setting.size:
        raise Close(
            "bad_frame",
            f"received a SETTINGS frame of {len(payload)} bytes, which is not a multiple of {_setting.size}",
        )
    return dict(_setting.iter_unpack(payload))


def content_of(frame: Buffer, flags: int) -> Buffer:
    """Return the content of a DATA or HEADERS frame, without padding and priority fields."""
    start, stop = FRAME_HEADER_BYTES, len(frame)
    if flags & PADDED:
        stop -= frame[start] if start < stop else 0
        start += 1
    if frame[3] == HEADERS and flags & HAS_PRIORITY:
        start += 5
    if start > stop:
        raise Close("bad_frame", "received a frame with more padding than payload")
    return frame[start:stop]


def block_of(frames: Buffer, flags: int) -> bytes:
    at = FRAME_HEADER_BYTES + (_read_head(frames)[0] >> 8)
    if at == len(frames):
        return bytes(content_of(frames, flags))
    block = bytearray(content_of(frames[:at], flags))
    while at < len(frames):
        stop = at + FRAME_HEADER_BYTES + (_read_head(frames, at)[0] >> 8)
        block += frames[at + FRAME_HEADER_BYTES : stop]
        at = stop
    return bytes(block)


Frame = tuple[int, int, int, Buffer]
"""A frame: type, flags, stream, and all its bytes."""


class Frames:
    """Splits one peer's stream into frames. A HEADERS frame and its CONTINUATIONs count as one.

    Attributes:
        max_bytes: the longest payload that the other peer accepts.
        steps: how many more frames may be read from the chunk.
    """

    __slots__ = ("_block", "_peer", "_tail", "count", "left_bytes", "max_bytes", "steps")

    def __init__(self, peer: str) -> None:
        self.count = self.left_bytes = self.steps = 0
        self.max_bytes = DEFAULT_FRAME_BYTES
        self._peer = peer
        self._tail = bytearray()
        self._block = bytearray()

    @property
    def is_between(self) -> bool:
        return not (self._tail or self._block or self.left_bytes)

    @property
    def incomplete_bytes(self) -> int:
        return len(self._tail) + len(self._block)

    def missing_bytes(self) -> int:
        """Return how many bytes of the current frame, or of its header, are missing."""
        have = len(self._tail)
        if have < FRAME_HEADER_BYTES:
            return FRAME_HEADER_BYTES - have
        return self._frame_bytes(_read_head(self._tail)[0]) - have

    def _frame_bytes(self, word: int) -> int:
        length = word >> 8
        if length > self.max_bytes or (word & 0xFF != DATA and length > MAX_BLOCK_BYTES):
            raise Close("frame_too_long", f"the {self._peer} sent a frame of {length} bytes, which is too long")
        return FRAME_HEADER_BYTES + length

    def read(self, chunk: memoryview) -> Iterator[Frame]:
        """Yield each complete frame, as a slice of the chunk or a copy."""
        block = self._block
        for (word, flags, number), frame in self._split(chunk):
            kind, stream = word & 0xFF, number & STREAM_IDS
            self.count += 1
            if not block and kind != CONTINUATION:
                if kind != HEADERS or flags & END_HEADERS:
                    yield kind, flags, stream, frame
                else:
                    block += frame
                continue
            if not block or kind != CONTINUATION or stream != _read_head(block)[2] & STREAM_IDS:
                raise Close("bad_frame", f"the {self._peer} sent an unexpected frame of type {kind}")
            block += frame
            if len(block) > MAX_BLOCK_BYTES:
                what = f"the {self._peer} sent a header block that exceeds {MAX_BLOCK_BYTES} bytes"
                raise Close("headers_too_long", what)
            if flags & END_HEADERS:
                whole = bytes(block)
                block.clear()
                yield HEADERS, whole[4], stream, whole

    def _split(self, chunk: memoryview) -> Iterator[tuple[tuple[int, int, int], Buffer]]:
        at, size, tail = 0, len(chunk), self._tail
        self.left_bytes, self.steps = 0, _MAX_STEPS
        while tail and at < size:
            missing = self.missing_bytes()
            tail += chunk[at : at + missing]
            at = min(at + missing, size)
            if not self.missing_bytes():
                frame = bytes(tail)
                tail.clear()
                yield _read_head(frame), frame
        while self.steps > 0:
            if size - at < FRAME_HEADER_BYTES:
                break
            head = _read_head(chunk, at)
            self.steps -= 1
            stop = at + self._frame_bytes(head[0])
            if stop > size:
                break
            yield head, chunk[at:stop]
            at = stop
        else:
            self.left_bytes = size - at
            return
        tail += chunk[at:]


Headers = Sequence[tuple[bytes, bytes]]
#: Bytes that are complete indexed fields by themselves.
_INDEXED: Final = bytes(range(0x81, 0xFF))
#: A table size update to 0, which empties the dynamic table.
NO_TABLE: Final = b"\x20"


def _byte(block: bytes, at: int) -> int:
    """Return the only continuation byte of an HPACK integer. Raises IndexError unless there is exactly one."""
    return block[at] if block[at] < 0x80 else block[len(block)]


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string and the offset at which it ends. Raises IndexError if the string is long or truncated."""
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
    """Decodes fields in the usual encodings, twice as fast as the hpack library. The library decodes all others."""

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
            raise HPACKDecodingError("a table size update after a header field")
        return headers + cast("list[tuple[bytes, bytes]]", self.decode(rest, raw=True))


class HeaderBlocks:
    """Tracks the HPACK table for the header blocks from one peer."""

    __slots__ = ("_decoder", "_peer", "_table_sizes")

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._decoder = _Decoder(MAX_HEADER_LIST_BYTES)
        # The table sizes in the other peer's SETTINGS that this peer has not acknowledged.
        self._table_sizes: deque[int | None] = deque()

    def allow(self, table_bytes: int | None) -> None:
        """Record SETTINGS from the other peer. ``table_bytes`` is None if they do not set the table size."""
        if len(self._table_sizes) >= _MAX_PENDING_SETTINGS:
            raise Close("flood", f"the {self._peer} has not acknowledged {_MAX_PENDING_SETTINGS} SETTINGS frames")
        self._table_sizes.append(table_bytes)
        if table_bytes is not None and table_bytes > self._decoder.max_allowed_table_size:
            self._decoder.max_allowed_table_size = table_bytes

    def acknowledged(self) -> None:
        table_bytes = self._table_sizes.popleft() if self._table_sizes else None
        if table_bytes is not None:
            allowed = [each for each in self._table_sizes if each is not None]
            self._decoder.max_allowed_table_size = max([table_bytes, *allowed])

    @property
    def to_signal(self) -> bytes:
        """The prefix for a header block that Sluice inserts before this peer's next one. Usually empty.

        The first block after an acknowledgement of SETTINGS must shrink a table that is too large (RFC 7541, 4.2).
        """
        allowed_bytes = self._decoder.max_allowed_table_size
        return _number(0x20, 5, allowed_bytes) if self._decoder.header_table.maxsize > allowed_bytes else b""

    def read(self, block: bytes) -> tuple[Headers, bool]:
        """Return the headers in a block, and whether the block has changed the table."""
        table = self._decoder.header_table
        before = table.maxsize, len(table.dynamic_entries), next(iter(table.dynamic_entries), None)
        try:
            headers = self._decoder.read(block)
        except (HPACKError, ValueError) as error:
            # Do not show the error's text, because it may contain part of a signature.
            why = type(error).__name__
            raise Close("bad_headers", f"the {self._peer} sent a header block that cannot be read: {why}") from None
        entries = table.dynamic_entries
        is_same = before[:2] == (table.maxsize, len(entries)) and before[2] is next(iter(entries), None)
        return headers, not is_same


def is_indexed(block: bytes) -> bool:
    """Return whether a block consists only of one-byte indexed fields, which do not change the table."""
    return not block.translate(None, _INDEXED)


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a field without using or changing the table."""
    return b"\x00" + _number(0, 7, len(name)) + name + _number(0, 7, len(value)) + value


def literals(headers: Headers) -> bytes:
    return b"".join(literal(name, value) for name, value in headers)


def _number(pattern: int, bits: int, value: int) -> bytes:
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


class _Queued:
    __slots__ = ("frame", "size", "stream")

    def __init__(self, frame: bytes, size: int, stream: int) -> None:
        self.frame = frame
        self.size = size
        self.stream = stream


class Outlet:
    """Writes the frames to one peer. The module's docstring explains the windows.

    Attributes:
        is_open: whether frames may be written. Until then, all frames wait.
        queued_bytes: size of the frames that wait for a window.
    """

    __slots__ = (
        *("_queue", "_streams", "credit", "initial", "is_open", "out", "out_bytes", "queued_bytes", "waiting"),
        "window",
    )

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.initial = self.window = self.credit = DEFAULT_WINDOW
        self.waiting = self.out_bytes = self.queued_bytes = 0
        self.out: list[Buffer] = []
        self._queue: deque[_Queued] = deque()
        # Waiting frames that can be dropped, by stream.
        self._streams: dict[int, deque[_Queued]] = {}

    def arrive(self, size: int, sender: str) -> None:
        self.credit -= size
        self.waiting += size
        if self.credit < 0:
            raise Close("window_overdrawn", f"the {sender} sent more data than the connection window allows")

    def retire(self, size: int) -> None:
        """Stop counting DATA that is discarded or held, so that the sender gets its window back."""
        self.waiting -= size

    def add(self, size: int) -> None:
        """Count DATA that is no longer held, or that Sluice itself writes."""
        self.waiting += size

    def write(self, frame: Buffer) -> None:
        """Write a frame ahead of the waiting frames."""
        self.out.append(frame)
        self.out_bytes += len(frame)

    def put(self, frame: Buffer, size: int = 0, stream: int = 0) -> None:
        """Write one or more frames, or queue them behind frames that are already waiting.

        ``size`` is the number of DATA bytes in the new frames. The caller has already counted them. Unless ``stream``
        is 0, ``drop`` can remove the frames from the queue.
        """
        if self.is_open and not self._queue and size <= self.window:
            self._send(frame, size)
            return
        for each, part in _parts(frame, size):
            queued = _Queued(each, part, stream)
            self._queue.append(queued)
            self.queued_bytes += len(each)
            if stream:
                self._streams.setdefault(stream, deque()).append(queued)
        if len(self._queue) > _MAX_QUEUED:
            raise Close("window_overdrawn", f"more than {_MAX_QUEUED} frames are waiting for a flow-control window")
        self.flush()

    def flush(self) -> None:
        queue = self._queue
        while queue and self.is_open and queue[0].size <= self.window:
            first = queue.popleft()
            if not first.frame:
                continue
            self.queued_bytes -= len(first.frame)
            if first.stream:
                others = self._streams[first.stream]
                others.popleft()
                if not others:
                    del self._streams[first.stream]
            self._send(first.frame, first.size)

    def _send(self, frame: Buffer, size: int) -> None:
        self.window -= size
        self.waiting -= size
        self.write(frame)

    def update(self, size: int) -> int:
        """Apply the receiver's WINDOW_UPDATE for the connection. Return how many bytes to grant to the sender."""
        self.window += size
        if self.window > MAX_WINDOW:
            raise Close(
                "window_overdrawn",
                f"received a WINDOW_UPDATE frame that raises the flow-control window above {MAX_WINDOW} bytes",
            )
        grant = self.grant(least=1)
        self.flush()
        return grant

    def grant(self, least: int = _GRANT_BYTES) -> int:
        """Grant the sender more bytes. Return how many were granted.

        Grants nothing and returns 0 if the available amount is less than both ``least`` and ``credit``.
        """
        grant = self.window - self.waiting - self.credit
        if grant <= 0 or grant < min(self.credit, least):
            return 0
        self.credit += grant
        return grant

    def drop(self, stream: int) -> None:
        for queued in self._streams.pop(stream, ()):
            self.queued_bytes -= len(queued.frame)
            self.waiting -= queued.size
            queued.frame, queued.size = b"", 0
        self.flush()

    def take(self) -> list[Buffer]:
        out, self.out, self.out_bytes = self.out, [], 0
        return out


def _parts(frame: Buffer, size: int) -> list[tuple[bytes, int]]:
    whole = bytes(frame)
    if size <= DEFAULT_FRAME_BYTES or whole[4] & PADDED or size + FRAME_HEADER_BYTES != len(whole):
        return [(whole, size)]
    return data_of(_read_head(whole)[2], whole[FRAME_HEADER_BYTES:], ends=whole[4] & END_STREAM != 0)


class Messages:
    """Splits the DATA of a stream into gRPC messages, and keeps up to ``max_bytes`` of each."""

    __slots__ = ("_have", "_left", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._have = bytearray()
        self._left = 0

    def feed(self, content: Buffer) -> list[tuple[int, int, bytes]]:
        """Return the flag, the length and up to ``max_bytes`` of each message that is now complete."""
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
                self._left = prefix_of(have)[1]
            step = min(self._left, size - at)
            have += content[at : at + min(step, self._max_bytes + MESSAGE_PREFIX_BYTES - len(have))]
            self._left -= step
            at += step
            if not self._left:
                found.append((*prefix_of(have), bytes(have[MESSAGE_PREFIX_BYTES:])))
                have.clear()
        return found


def message_of(flag: int, message: bytes) -> bytes:
    return _message_prefix.pack(flag, len(message)) + message


def prefix_of(content: Buffer | bytearray) -> tuple[int, int]:
    flag, length = _message_prefix.unpack_from(content)
    return flag, length
