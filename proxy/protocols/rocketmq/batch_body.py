"""Reads batch bodies and message properties.

Each message in a batch is ``i32 totalSize, i32 magic 0, i32 crc 0, i32 flag, i32 bodyLen, body, i16 propLen,
properties``. Each property is ``name 0x01 value 0x02``.
"""

import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from proxy.protocols.rocketmq.wire.codes import RemoteProtocolError

_HEAD: Final = struct.Struct(">iiiii")
_head_at = _HEAD.unpack_from
_HEAD_BYTES: Final = _HEAD.size
_I16: Final = struct.Struct(">h")
_i16_at = _I16.unpack_from
_i32_at = struct.Struct(">i").unpack_from
_lengths_at = struct.Struct(">i12xi").unpack_from
MIN_MESSAGE_BYTES: Final = _HEAD_BYTES + 2
MAX_PROPERTIES_BYTES: Final = 32_767
_INNER: Final = b"INNER_"
_INNERS: Final = (b"INNER_NUM\x01", b"INNER_MULTI_DISPATCH\x01", b"INNER_MULTI_QUEUE_OFFSET\x01")
_INNER_BYTES: Final = max(map(len, _INNERS))
# Searching this many bytes takes no longer than reading a message.
_MAX_SEARCHED_BYTES: Final = 512


class BatchMessage(msgspec.Struct, frozen=True):
    body: bytes
    properties: str = ""
    flag: int = 0


class BatchReader:
    """Counts the messages that the broker will find in a batch body, a limited number at a time.

    The broker usually finds the end of a message from the lengths of its body and properties
    (``MessageExtEncoder.encode``). For topics with batch queues, it uses totalSize
    (``MessageDecoder.countInnerMsgNum``). Sluice does not know a topic's type, so a batch is valid only if both methods
    find the same messages.

    Where they disagree, the broker refuses the batch if both methods fail. Otherwise, the batch is malformed, because
    negative lengths can turn a short body into any number of messages.
    """

    def __init__(self) -> None:
        self.count = 0  # 0 if the batch is malformed or the broker will refuse it
        self.effort = 0  # work done so far. Reading a message counts 1
        self.malformed = False
        # Whether a message sets a reserved property, which would bypass limits. INNER_NUM makes a batch queue grow by
        # up to 32 767. With enableMultiDispatch, the broker adds the message to all queues in INNER_MULTI_DISPATCH.
        self.sets_inner = False
        self._at = self._searched = 0

    def resume(self, body: bytes | bytearray | memoryview, most: int = sys.maxsize) -> bool:
        """Read up to about ``most`` more messages of a complete body. Return whether all have been read."""
        at, size, left = self._at, len(body), most
        with suppress(struct.error):
            while left and at < size:
                total_bytes, body_bytes = _lengths_at(body, at)
                (properties_bytes,) = _i16_at(body, at + _HEAD_BYTES + body_bytes)
                if body_bytes < 0 or properties_bytes < 0:
                    break
                if total_bytes != MIN_MESSAGE_BYTES + body_bytes + properties_bytes or total_bytes > size - at:
                    break
                at += total_bytes
                left -= 1
        self._at = at
        self.count += most - left
        parted = left > 0 and at < size
        if parted:
            self.count = 0
            self.malformed = not _is_refused(body, at)
        searched = min(at, self._searched + most * _MAX_SEARCHED_BYTES)
        # A property's name may begin in bytes that were searched earlier.
        piece = bytes(body[max(0, self._searched - _INNER_BYTES + 1) : searched])
        if _INNER in piece and any(name in piece for name in _INNERS):
            self.sets_inner = True
        self.effort += most - left + (searched - self._searched) // _MAX_SEARCHED_BYTES
        self._searched = searched
        return searched == at and (parted or at == size)


def _is_refused(body: bytes | bytearray | memoryview, at: int) -> bool:
    size = len(body)
    # With a totalSize of 0 the broker loops forever.
    if size - at >= 4 and 0 <= at + _i32_at(body, at)[0] <= size:
        return False
    if size - at < MIN_MESSAGE_BYTES:
        return True
    _, body_bytes = _lengths_at(body, at)
    properties_at = at + _HEAD_BYTES + body_bytes
    return (
        body_bytes < 0
        or properties_at > size - 2
        or not 0 <= properties_at + 2 + _i16_at(body, properties_at)[0] <= size
    )


def decode_batch(body: bytes) -> Iterator[BatchMessage]:
    """Yield the messages of a batch. Raises RemoteProtocolError if a message's lengths are inconsistent."""
    at = 0
    while at < len(body):
        try:
            total_bytes, _, _, flag, body_bytes = _head_at(body, at)
            body_at = at + _HEAD_BYTES
            if body_bytes < 0:
                raise _bad_message(at)
            (properties_bytes,) = _i16_at(body, body_at + body_bytes)
        except struct.error:
            raise _bad_message(at) from None
        properties_at = body_at + body_bytes + 2
        end = properties_at + properties_bytes
        if properties_bytes < 0 or end != at + total_bytes or end > len(body):
            raise _bad_message(at)
        properties = body[properties_at:end].decode(errors="replace")
        yield BatchMessage(body[body_at : body_at + body_bytes], properties, flag)
        at = end


def _bad_message(at: int) -> RemoteProtocolError:
    return RemoteProtocolError("bad_batch", f"the message at offset {at} in the batch has inconsistent lengths")


_NAME_END: Final = "\x01"
_VALUE_END: Final = "\x02"


def decode_properties(text: str) -> dict[str, str]:
    """Parse properties as the broker does: ignore incomplete ones, and use the last value of a repeated name."""
    properties: dict[str, str] = {}
    for item in text.split(_VALUE_END):
        name, separator, value = item.partition(_NAME_END)
        if separator:
            properties[name] = value
    return properties
