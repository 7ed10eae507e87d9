"""Keeps copies of held requests until they are forwarded or dropped."""

from collections.abc import Sequence

import msgspec

from proxy.common.buffers import Gathering
from proxy.deciding.batch import Request
from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY
from proxy.protocols.rocketmq.wire.header import Header
from proxy.spool.segments import Piece


class HeldFrame(msgspec.Struct):
    header: Header
    data: bytearray
    request: Request | None = None  # set if the request must be spooled when its frame is complete
    is_held: bool = True
    since_ns: int = 0
    room: Gathering | None = None
    dropped: bool = False


class Holding:
    def __init__(self) -> None:
        self.count = 0
        self.oneways = 0
        self.size_bytes = 0
        self.coming: HeldFrame | None = None
        # Frames released while another frame is being forwarded. They are written after it.
        self.waiting: list[Piece] = []

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self.waiting))

    def hold(self, header: Header, data: bytes) -> HeldFrame:
        held = HeldFrame(header, bytearray(data))
        self.count += 1
        self.oneways += header.flag & FLAG_ONEWAY != 0
        self.size_bytes += len(held.data)
        return held

    def gather(self, held: HeldFrame, piece: memoryview) -> None:
        held.data += piece
        self.size_bytes += len(piece)

    def release(self, held: HeldFrame, out: list[Buffer] | None) -> None:
        """Move a held frame to ``out``, or to ``waiting`` if ``out`` is None."""
        data = self._remove(held)
        if out is None:
            self.waiting.append(data)
        else:
            self._queue(data, out)

    def clear(self, held: HeldFrame) -> None:
        self.size_bytes -= len(held.data)
        held.data.clear()

    def take(self, held: HeldFrame) -> bytes:
        data = bytes(self._remove(held))
        self.size_bytes -= len(data)
        return data

    def wait(self, data: Sequence[Piece]) -> None:
        self.waiting += data
        self.size_bytes += sum(map(len, data))

    def release_waiting(self, out: list[Buffer]) -> None:
        for data in self.waiting:
            self._queue(data, out)
        self.waiting.clear()

    def drop(self, held: HeldFrame) -> None:
        held.dropped = True
        self.size_bytes -= len(self._remove(held))

    def _remove(self, held: HeldFrame) -> bytearray:
        self.count -= 1
        self.oneways -= held.header.flag & FLAG_ONEWAY != 0
        data, held.data = held.data, bytearray()
        if held is self.coming:
            self.coming = None
        return data

    def _queue(self, data: Piece, out: list[Buffer]) -> None:
        self.size_bytes -= len(data)
        out.append(memoryview(data))

    def end(self) -> None:
        self.count = self.oneways = self.size_bytes = 0
        self.coming = None
        self.waiting.clear()
