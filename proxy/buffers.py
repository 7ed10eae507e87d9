"""Read buffers, lent for the time between a read and the write of what was read.

An idle connection holds none. The pool is a budget: when it is spent, connections read on with small
buffers of their own, so that clients whose broker has stalled can slow nobody else down to a halt.
"""

from typing import Final

#: What one read takes as a rule. Measured on loopback, a raw relay with 64 KiB reads makes 0.7-0.9 of a one-thread
#: HAProxy's throughput and with 256 KiB reads 1.07.
CHUNK_BYTES: Final = 256 * 1024
#: What it takes of a peer that fills the former, if its session reads fast. A chunk has a cost of its own, the more so
#: as copying it drives the interpreter out of the processor's caches: measured, frames of 536 bytes cost 0.96 µs each
#: with reads of 256 KiB, 0.63 with 512 KiB, 0.54 with 1 MiB and hardly less with 2 MiB. A bare relay takes 0.51.
LARGE_CHUNK_BYTES: Final = 1024 * 1024
_USUAL_IN_LARGE: Final = LARGE_CHUNK_BYTES // CHUNK_BYTES
#: What a read takes while the budget is spent.
SMALL_CHUNK_BYTES: Final = 16 * 1024


class BufferPool:
    """Stacks of buffers, of the usual size and large, the most recently used on top: the processor's cache may have it.

    Args:
        budget_bytes: what all but small ones together may take; one of the usual size is always there.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free: list[memoryview] = []
        self._free_large: list[memoryview] = []
        #: In usual buffers; a large one takes the place of several.
        self._unmade = max(1, budget_bytes // CHUNK_BYTES)
        self.small_total = 0

    def borrow(self, *, large: bool = False) -> memoryview:
        """Take one buffer, to be given back: a small one if the budget is lent out, a large one if asked for and there.

        Where the budget is made already, free buffers of the other size make room.
        """
        if large:
            if self._free_large:
                return self._free_large.pop()
            missing = _USUAL_IN_LARGE - self._unmade
            if 0 < missing <= len(self._free):
                del self._free[:missing]
                self._unmade += missing
            if self._unmade >= _USUAL_IN_LARGE:
                return self._make(LARGE_CHUNK_BYTES)
        if self._free:
            return self._free.pop()
        if not self._unmade and self._free_large:
            del self._free_large[0]
            self._unmade += _USUAL_IN_LARGE
        if self._unmade:
            return self._make(CHUNK_BYTES)
        self.small_total += 1
        return memoryview(bytearray(SMALL_CHUNK_BYTES))

    def _make(self, size_bytes: int) -> memoryview:
        self._unmade -= size_bytes // CHUNK_BYTES
        return memoryview(bytearray(size_bytes))

    def give_back(self, buffer: memoryview) -> None:
        """Return a borrowed buffer; small ones are let go."""
        if len(buffer) == CHUNK_BYTES:
            self._free.append(buffer)
        elif len(buffer) == LARGE_CHUNK_BYTES:
            self._free_large.append(buffer)
