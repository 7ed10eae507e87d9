"""Held requests: the copies of their frames, and where these may go on once they are released.

A held frame is taken out of its chunk as a copy; the part of its body that has not come yet is added as it comes.
How much may be held is for whoever holds to say: a request counts with its whole frame, so what is gathered here
stays within that. Nothing here cuts frames or knows verdicts.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.common.buffers import Gathering
from proxy.deciding.batch import Request
from proxy.protocols.base import Buffer
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY
from proxy.protocols.rocketmq.wire.header import Header
from proxy.spool.segments import Piece


class HeldFrame(msgspec.Struct):
    """The handle of a held request.

    Attributes:
        header: as read.
        data: the frame as far as it has come.
        request: what it is to be put aside as once all of it has come; None if it is not.
        aside: what a line begins with that is held, if it is that.
        since_ns: when it began to come.
        room: of what has come, while more is to come, if it is to be put aside.
    """

    header: Header
    data: bytearray
    request: Request | None = None
    aside: Any = None
    since_ns: int = 0
    room: Gathering | None = None


class Holding:
    """The held frames of one connection's client.

    Attributes:
        count: frames that are held.
        oneways: how many of them expect no answer.
        size_bytes: what their copies take, those included that wait for a boundary.
        coming: the frame in the client's hand, if it is held: the rest of its body is added to its copy.
        waiting: copies that were released while another frame streamed through; they go on at its end.
    """

    __slots__ = ("coming", "count", "oneways", "size_bytes", "waiting")

    def __init__(self) -> None:
        self.count = self.oneways = 0
        self.size_bytes = 0
        self.coming: HeldFrame | None = None
        self.waiting: list[Piece] = []

    @property
    def waiting_bytes(self) -> int:
        """What was released and may not be written yet."""
        return sum(map(len, self.waiting))

    def hold(self, header: Header, lead: bytes, piece: memoryview) -> HeldFrame:
        """Copy a frame: ``lead`` is what earlier chunks held of it, ``piece`` what this one does."""
        held = HeldFrame(header, bytearray(lead))
        held.data += piece
        self.count += 1
        self.oneways += header.flag & FLAG_ONEWAY != 0
        self.size_bytes += len(held.data)
        return held

    def gather(self, held: HeldFrame, piece: memoryview) -> None:
        """Add what has come of a held frame."""
        held.data += piece
        self.size_bytes += len(piece)

    def release(self, held: HeldFrame, out: list[Buffer] | None) -> None:
        """Queue a copy, or without ``out`` let it wait for the end of the frame that streams through."""
        data = self._let_go(held)
        if out is None:
            self.waiting.append(data)
        else:
            self._queue(data, out)

    def clear(self, held: HeldFrame) -> None:
        """Forget what has come of a frame that is still coming."""
        self.size_bytes -= len(held.data)
        held.data.clear()

    def take(self, held: HeldFrame) -> bytes:
        """Hand out a copy of which all has come, to be kept elsewhere."""
        data = bytes(self._let_go(held))
        self.size_bytes -= len(data)
        return data

    def wait(self, data: Sequence[Piece]) -> None:
        """Let something that was kept elsewhere wait for the end of the frame that streams through."""
        self.waiting += data
        self.size_bytes += sum(map(len, data))

    def release_waiting(self, out: list[Buffer]) -> None:
        """Queue what had to wait, in the order of its release."""
        for data in self.waiting:
            self._queue(data, out)
        self.waiting.clear()

    def drop(self, held: HeldFrame) -> None:
        """Free a copy that nobody wants any more."""
        self.size_bytes -= len(self._let_go(held))

    def _let_go(self, held: HeldFrame) -> bytearray:
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
        """Forget everything: whoever waited for it is gone."""
        self.count = self.oneways = self.size_bytes = 0
        self.coming = None
        self.waiting.clear()
