"""Read buffers, lent for the time between a read and the write of what was read.

An idle connection holds none. The pool is a budget: when it is spent, connections read on with small
buffers of their own, so that clients whose broker has stalled can slow nobody else down to a halt.
"""

from typing import Final

#: What one read takes at the most. Measured on loopback, a raw relay with 64 KiB reads makes
#: 0.7-0.9 of a one-thread HAProxy's throughput and with 256 KiB reads 1.07.
CHUNK_BYTES: Final = 256 * 1024
#: What a read takes while the budget is spent.
SMALL_CHUNK_BYTES: Final = 16 * 1024


class BufferPool:
    """A stack of equal buffers, the most recently used on top, where the processor's cache still has it.

    Args:
        budget_bytes: what all large buffers together may take; at least one is always there.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free: list[memoryview] = []
        self._unmade = max(1, budget_bytes // CHUNK_BYTES)
        self.small_total = 0

    def borrow(self) -> memoryview:
        """Take one buffer, a small one if the budget is spent; to be given back."""
        if self._free:
            return self._free.pop()
        if self._unmade:
            self._unmade -= 1
            return memoryview(bytearray(CHUNK_BYTES))
        self.small_total += 1
        return memoryview(bytearray(SMALL_CHUNK_BYTES))

    def give_back(self, buffer: memoryview) -> None:
        """Return a borrowed buffer; small ones are let go."""
        if len(buffer) == CHUNK_BYTES:
            self._free.append(buffer)
