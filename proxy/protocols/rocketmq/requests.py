"""Client to broker: cuts chunks into frames, and chunks with refusals into what remains.

Every frame's header is read. A request is decided when its header is complete; of a body that is still to
come, the verdict covers the rest: it streams through or is swallowed, and is never gathered. Only a header
that has not come completely is held back, as a copy: at most MAX_HEADER_BYTES (256 KiB) and the 8 bytes before
it per connection.
"""

from struct import Struct
from typing import Final

import msgspec

from limiter.resource import Resource
from proxy.batch import Batch, Charge, Refuse, Request
from proxy.protocols.base import NO_BOUND, Buffer, Close, WireCounters
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.batch_body import MIN_MESSAGE_BYTES, BatchCounter
from proxy.protocols.rocketmq.header import STRICT, UNPARSABLE, UNPARSED, Header, classify
from proxy.protocols.rocketmq.owed import MAX_OWED, Owed

#: A header above this is not gathered: it passes as unparsable. Nearly all of a header are the message's
#: properties, of which the broker takes 32 KiB: six times that in JSON if every character is escaped.
MAX_HEADER_BYTES: Final = 256 * 1024
#: What is read at once of a client that is on trial, beyond the frame in hand. The slow readings take up to 1.8 ms
#: per KiB of headers, strict ones less than 0.1 ms.
TRIAL_READ_BYTES: Final = 2048
#: The trial with which a connection begins lasts for so many strict headers, and every header that was not strict
#: makes it longer by as many. So mixing the two buys no large reads either.
TRIAL_FRAMES: Final = 64
#: Names whose resources are remembered per connection and kind.
MAX_NAMES: Final = 1024

UNPARSABLE_RESOURCES: Final = (Resource(codes.KIND_TOPIC, "_unparsable"),)
"""What a request is charged to whose header nobody here can read.

A client's own topic of this name shares the limit: who can send to it could as well send what nobody can read.
"""

_prefix_at = Struct(">iI").unpack_from
_PREFIX_BYTES: Final = codes.PREFIX_BYTES
_ONEWAY: Final = codes.FLAG_ONEWAY
_HEADER_LENGTH: Final = 0xFFFFFF
_HIGHEST_WORD: Final = codes.HEADER_BINARY << 24 | _HEADER_LENGTH


class Frame(msgspec.Struct, gc=False):
    """The handle of a request: where its bytes are in the chunk, and what its answer needs.

    Attributes:
        start: offset in the chunk of what of the frame came with it.
        stop: offset of its end; beyond the chunk when more is to come.
        header: as read.
    """

    start: int
    stop: int
    header: Header


class RequestStream:
    """The client's stream of one connection.

    Args:
        counters: where undecodable headers are counted.
        owed: where requests that expect an answer are noted.
        max_frame_bytes: the longest frame allowed, its length word included.

    Attributes:
        frames: whole headers seen so far.
        close: set when the last chunk ended in something that is no frame; what came before it still goes on.
    """

    def __init__(self, counters: WireCounters, owed: Owed, max_frame_bytes: int) -> None:
        self.frames = 0
        self.close: Close | None = None
        self._counters = counters
        self._owed = owed
        self._max_length = max_frame_bytes - 4
        self._resources: dict[str, dict[str, tuple[Resource, ...]]] = {
            codes.KIND_TOPIC: {},
            codes.KIND_RETRY_GROUP: {},
        }
        #: The start of a frame whose header has not come completely.
        self._head = bytearray()
        #: What is still to come of a frame whose verdict is known, and whether to swallow it.
        self._body_left = 0
        self._swallow = False
        #: Strict headers still to come until reads may be large.
        self._trial = TRIAL_FRAMES
        #: The batch whose body is still coming: its counter, its resources, and what was charged already.
        self._counting: tuple[BatchCounter, tuple[Resource, ...], int] | None = None
        # About the chunk in hand: what goes on of it lies in [from, to), after the lead, which is the
        # completed header that earlier chunks began.
        self._chunk = memoryview(b"")
        self._from = self._to = 0
        self._lead = b""
        self._led: Frame | None = None

    def between_frames(self) -> bool:
        """Return whether nothing is in hand: no part of a frame, and no chunk that waits for its verdicts."""
        return not self._head and not self._body_left and not self._chunk

    def missing_bytes(self) -> int:
        """Return how many bytes are certain to belong to the frame in hand, or to the next one's prefix."""
        if self._body_left:
            return self._body_left
        head = self._head
        if len(head) < _PREFIX_BYTES:
            return _PREFIX_BYTES - len(head)
        word: int = _prefix_at(head)[1]
        return _PREFIX_BYTES + (word & _HEADER_LENGTH) - len(head)

    def most_bytes(self) -> int:
        """Return how many bytes to read next at most: little beyond the frame in hand while on trial."""
        return self.missing_bytes() + TRIAL_READ_BYTES if self._trial else NO_BOUND

    def feed(self, chunk: memoryview) -> tuple[list[Request], list[Charge]]:
        """Read the frames of one chunk; ``pass_on`` must follow before the next chunk.

        Returns:
            The limitable requests whose headers are complete, and what finished batches still owe.
        """
        self._chunk = chunk
        self._lead, self._led = b"", None
        requests: list[Request] = []
        charges: list[Charge] = []
        size, max_length = len(chunk), self._max_length
        position = self._continue_body(chunk, charges) if self._body_left else 0
        self._from = position if self._swallow else 0
        try:
            if self._head:
                position = self._continue_head(chunk, requests)
            while size - position >= _PREFIX_BYTES:
                length, word = _prefix_at(chunk, position)
                header_bytes = word & _HEADER_LENGTH
                if header_bytes > length - 4 or length > max_length or word > _HIGHEST_WORD:
                    raise _bad_frame(length, word, max_length)
                header_at = position + _PREFIX_BYTES
                body_at = header_at + header_bytes
                if header_bytes > MAX_HEADER_BYTES:
                    header = UNPARSABLE
                elif body_at <= size:
                    header = classify(chunk[header_at:body_at].tobytes(), word >> 24)
                else:
                    break
                stop = position + 4 + length
                self._take_frame(Frame(position, stop, header), 4 + length, body_at, requests)
                position = stop
        except Close as close:
            self.close = close
            self._head.clear()
            self._to = min(position, size)
        else:
            self._to = min(position, size)
            self._head += chunk[self._to :]
        return requests, charges

    def _continue_body(self, chunk: memoryview, charges: list[Charge]) -> int:
        """Step over what this chunk holds of an earlier frame's body; returns where it ends."""
        end = min(self._body_left, len(chunk))
        self._body_left -= end
        if self._counting is not None:
            counter, resources, charged = self._counting
            counter.feed(chunk[:end])
            if not self._body_left:
                self._counting = None
                if counter.count > charged:
                    charges.append(Charge(resources, counter.count - charged))
        return end

    def _continue_head(self, chunk: memoryview, requests: list[Request]) -> int:
        """Complete the header that earlier chunks began, if this one does.

        Returns:
            Where its frame ends, which may be beyond the chunk; the chunk's end while it is incomplete.
        """
        head, size = self._head, len(chunk)
        position = min(max(0, _PREFIX_BYTES - len(head)), size)
        head += chunk[:position]
        self._from = size
        if len(head) < _PREFIX_BYTES:
            return size
        length, word = _prefix_at(head)
        header_bytes = word & _HEADER_LENGTH
        if header_bytes > length - 4 or length > self._max_length or word > _HIGHEST_WORD:
            raise _bad_frame(length, word, self._max_length)
        gathered = header_bytes <= MAX_HEADER_BYTES
        wanted = _PREFIX_BYTES + (header_bytes if gathered else 0)
        step = min(wanted - len(head), size - position)
        head += chunk[position : position + step]
        if len(head) < wanted:
            return size
        self._lead = bytes(head)
        head.clear()
        position += step
        header = classify(self._lead[_PREFIX_BYTES:], word >> 24) if gathered else UNPARSABLE
        frame = self._led = Frame(position, position + 4 + length - wanted, header)
        self._from = position
        body_at = position if gathered else position + header_bytes
        self._take_frame(frame, 4 + length, body_at, requests)
        return frame.stop

    def _take_frame(self, frame: Frame, frame_bytes: int, body_at: int, requests: list[Request]) -> None:
        """Note one frame whose header is known; a limitable one becomes a request.

        Behind a header that nobody here can read there may be a batch; a body that could be one is counted as
        one. Behind a header too long to be gathered the body counts, unseen, as the most messages it can hold.
        """
        self.frames += 1
        header = frame.header
        left = frame.stop - len(self._chunk)
        if left > 0:
            self._body_left = left
            self._swallow = False
        if header.reading != STRICT:
            self._count_undecodable(header)
            self._trial += TRIAL_FRAMES
        elif self._trial:
            self._trial -= 1
        oneway = header.flag & _ONEWAY != 0
        kind = header.kind
        if kind:
            resources = self._resources[kind].get(header.name) or self._remember(kind, header.name)
            if not oneway:
                owed = self._owed.requests
                if len(owed) < MAX_OWED:
                    owed[header.opaque] = (header.code, resources)
        elif header.reading == UNPARSED:
            resources = UNPARSABLE_RESOURCES
        else:
            if not header.flag & (codes.FLAG_RESPONSE | _ONEWAY):
                self._owed.add(header.opaque, header.code, ())
            return
        messages = 1
        unparsed = header.reading == UNPARSED
        if unparsed and body_at > len(self._chunk):
            messages = max(1, (frame.stop - body_at) // MIN_MESSAGE_BYTES)
        elif unparsed or header.is_batch:
            counter = BatchCounter(doubtful_bytes=frame.stop - body_at if unparsed else 0)
            counter.feed(self._chunk[body_at : frame.stop])
            messages = max(1, counter.count)
            if left > 0:
                self._counting = (counter, resources, messages)
        requests.append(Request(resources, messages, frame_bytes, header.producer_group, oneway, None, frame))

    def _count_undecodable(self, header: Header) -> None:
        read_by = "none" if header.reading == UNPARSED else "lenient"
        counts = self._counters.undecodable
        counts[read_by] = counts.get(read_by, 0) + 1

    def _remember(self, kind: str, name: str) -> tuple[Resource, ...]:
        """Make the resources of a name; equal names share one tuple, which makes grouping cheap."""
        known = self._resources[kind]
        if len(known) >= MAX_NAMES:
            known.clear()
        resources = known[name] = (Resource(kind, name),)
        return resources

    def pass_on(self, batch: Batch | None, out: list[Buffer]) -> list[tuple[Frame, Refuse]]:
        """Queue what the verdicts leave of the chunk, in the largest possible slices.

        Returns:
            The refused frames, in the order of the wire.
        """
        refused: list[tuple[Frame, Refuse]] = []
        if batch is not None and batch.verdicts:
            for index, verdict in sorted(batch.verdicts.items()):
                frame = batch.requests[index].handle
                if isinstance(verdict, Refuse) and isinstance(frame, Frame):
                    refused.append((frame, verdict))
        if self._lead and not (refused and refused[0][0] is self._led):
            out.append(self._lead)
        chunk, position = self._chunk, self._from
        for frame, _ in refused:
            if frame.start > position:
                out.append(chunk[position : frame.start])
            position = frame.stop
            header = frame.header
            if header.reading != UNPARSED and not header.flag & _ONEWAY:
                self._owed.settle(header.opaque)
        if position > len(chunk):
            self._swallow = True
            self._counting = None
        elif self._to > position:
            out.append(chunk[position : self._to])
        self._chunk = memoryview(b"")
        self._lead, self._led = b"", None
        return refused

    def end(self, out: list[Buffer]) -> None:
        """Queue what was held back of an unfinished header, at the end of the stream."""
        if self._head:
            out.append(bytes(self._head))
            self._head.clear()


def _bad_frame(length: int, word: int, max_length: int) -> Close:
    if not codes.MIN_LENGTH <= length <= max_length:
        detail = f"a frame of length {length}, where {codes.MIN_LENGTH} to {max_length} are allowed"
    elif word > _HIGHEST_WORD:
        detail = f"a header of type {word >> 24}, where {codes.HEADER_JSON} and {codes.HEADER_BINARY} are known"
    else:
        detail = f"a header of {word & _HEADER_LENGTH} bytes in a frame of length {length}"
    return Close("bad_frame", f"the client sent {detail}")
