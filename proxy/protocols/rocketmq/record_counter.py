"""Bodies of answers to pulls and pops: how many messages one brings, counted while it streams through.

Such a body is the stored records one behind the other, each beginning with its i32 totalSize. Nothing of it is
copied or held, but for the beginning of a size that a piece ended in. Records themselves are read by the embedded
broker alone.
"""

import struct
from typing import Final

_size_at = struct.Struct(">i").unpack_from
_SIZE_BYTES: Final = 4
#: A record with neither topic nor body nor properties, its hosts being IPv4. A shorter one is nonsense.
MIN_RECORD_BYTES: Final = 91
_ALL_THE_REST: Final = 1 << 62


class RecordCounter:
    """Counts the records of one body, however it is cut into pieces.

    A size that is nonsense counts as one record that takes all the rest; so does one that is longer than the rest.

    Attributes:
        count: records begun so far, by those whose size has come.
    """

    __slots__ = ("_part", "_skip", "count")

    def __init__(self) -> None:
        self.count = 0
        #: Bytes still to come of the record in hand.
        self._skip = 0
        #: The beginning of a size.
        self._part = b""

    def feed(self, data: memoryview) -> None:
        """Take the next piece of the body."""
        size = len(data)
        at = self._skip
        if self._part:
            wanted = _SIZE_BYTES - len(self._part)
            part = self._part + bytes(data[:wanted])
            if size < wanted:
                self._part = part
                return
            self._part = b""
            self.count += 1
            at = wanted - _SIZE_BYTES + _length(part, 0)
        last = size - _SIZE_BYTES
        while at <= last:
            self.count += 1
            at += _length(data, at)
        if at < size:
            self._part = bytes(data[at:])
        self._skip = max(0, at - size)


def _length(data: bytes | memoryview, at: int) -> int:
    """Return how many bytes a record takes by its size."""
    record_bytes: int = _size_at(data, at)[0]
    return record_bytes if record_bytes >= MIN_RECORD_BYTES else _ALL_THE_REST


def count_records(body: bytes) -> int:
    """Return how many records a complete body holds, as RecordCounter counts."""
    counter = RecordCounter()
    counter.feed(memoryview(body))
    return counter.count
