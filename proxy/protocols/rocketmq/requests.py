"""Client to broker: cuts chunks into frames, and chunks with refusals into what remains.

Every frame's header is read. A request is decided when its header is complete; of a body that is still to
come, the verdict covers the rest: it streams through, is swallowed, or is added to the copy of a request that is
held (``held``). Besides those only a header that has not come completely is held back, as a copy: at most
MAX_HEADER_BYTES (256 KiB) and the 8 bytes before it per connection.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from limiter.resource import Resource
from proxy.batch import Batch, Charge, Refuse, Request
from proxy.protocols.base import NO_BOUND, Buffer, Close, WireCounters
from proxy.protocols.rocketmq import codes
from proxy.protocols.rocketmq.about import AboutClient
from proxy.protocols.rocketmq.batch_body import MIN_MESSAGE_BYTES, BatchComing, BatchCounter
from proxy.protocols.rocketmq.beginning import Beginning
from proxy.protocols.rocketmq.cutting import NOTHING_REFUSED, Cut, Refused, answer_each, cut
from proxy.protocols.rocketmq.frame import MAX_HEADER_BYTES, Frame, header_bytes_of, prefix_at, stopped_frames
from proxy.protocols.rocketmq.gathered import Charged, Gathered
from proxy.protocols.rocketmq.header import STRICT, UNPARSABLE, UNPARSED, Header, classify
from proxy.protocols.rocketmq.held import HeldFrame, Holding
from proxy.protocols.rocketmq.names import Names
from proxy.protocols.rocketmq.owed import Owed
from proxy.protocols.rocketmq.scanning import FEW_STEPS, MAX_RUNS, Scanner, Segment

#: What is read at once of a client that is on trial, beyond the frame in hand: a trial in one read, as a rule.
TRIAL_READ_BYTES: Final = 64 * 1024
#: The trial with which a connection begins lasts for so many strict headers, and every header that was not strict
#: makes it longer by as many. So mixing the two buys no large reads either.
TRIAL_FRAMES: Final = 16

UNPARSABLE_RESOURCES: Final = (Resource(codes.KIND_TOPIC, "_unparsable"),)
"""What a request is charged to whose header nobody here can read.

A client's own topic of this name shares the limit: who can send to it could as well send what nobody can read.
"""

#: Frames that make a scan worth while, which looks at the whole chunk; and those read one by one at most after others.
_WORTH_WHILE: Final = 8
_MAX_PAUSE: Final = 63
#: A header that needs the slow readings counts as many steps as would take as long: they take up to 1.8 ms per KiB,
#: strict ones less than 0.1 ms.
_SLOW_BYTES_A_STEP: Final = 4
#: After so many steps the rest of the chunk is left for later, so that others wait some milliseconds at most.
_MOST_STEPS: Final = MAX_RUNS
_PREFIX_BYTES: Final = codes.PREFIX_BYTES
_ONEWAY: Final = codes.FLAG_ONEWAY
_SUBSCRIPTION: Final = codes.KIND_SUBSCRIPTION
_HEARD: Final = codes.HEARD
_HEART_BEAT: Final = codes.RequestCode.HEART_BEAT.value
_UNREGISTER: Final = codes.RequestCode.UNREGISTER_CLIENT.value


class RequestStream:
    """The client's stream of one connection.

    Args:
        counters: where undecodable headers are counted.
        owed: where requests that expect an answer are noted.
        max_frame_bytes: the longest frame allowed, its length word included.
        limits_kind: says whether resources of a kind are limited at all.
        take: takes a request for Sluice itself, if it does: header as read, its bytes and its type.
        scanner: takes plain frames; None has each read by itself.
        scan_from_bytes: the smallest chunk that is scanned.

    Attributes:
        about: what the client said of itself.
        frames: whole headers seen so far.
        close: set when the last chunk ended in something that is no frame; what came before it still goes on.
        held: the requests that are held.
        left_bytes: at the end of the last chunk that are to come again.
        names: what the client asked for.
    """

    def __init__(
        self,
        counters: WireCounters,
        owed: Owed,
        max_frame_bytes: int,
        limits_kind: Callable[[str], bool],
        take: Callable[[Header, bytes, int], bool],
        *,
        scanner: Scanner | None = None,
        scan_from_bytes: int = 0,
    ) -> None:
        self.about = AboutClient()
        self.frames = 0
        self.close: Close | None = None
        self.held = Holding()
        self.names = Names()
        self._take = take
        self._limits_kind = limits_kind
        self._counters = counters
        self._owed = owed
        self._max_length = max_frame_bytes - 4
        self._header_bytes_of = partial(header_bytes_of, max_length=self._max_length)
        self._resources = self.names.known
        self._scanner = scanner
        self._scan_from_bytes = scan_from_bytes
        self._fast = False
        #: How much of the end of the last chunk was not looked at.
        self.left_bytes = 0
        #: What the scanner's keys are charged to, by their numbers.
        self._charged: list[Charged] = []
        self._beginning = Beginning(MAX_HEADER_BYTES, self._header_bytes_of)
        #: What is still to come of a frame whose verdict is known, and whether to swallow it. Of a frame that is
        #: neither swallowed nor held, the beginning has gone on.
        self._body_left = 0
        self._swallow = False
        #: What has gone on ends inside a frame, so that nothing else may follow before that frame's end.
        self._open = False
        #: Strict headers still to come until reads may be large.
        self._trial = TRIAL_FRAMES
        self._counting: BatchComing | None = None
        # About the chunk in hand: what goes on of it lies in [from, to), after the lead, which is the
        # completed header that earlier chunks began. The frame that was open ends at _open_until.
        self._chunk = memoryview(b"")
        self._from = self._to = self._open_until = 0
        self._lead = b""
        self._led: Frame | None = None
        #: Those of its frames that Sluice answers itself.
        self._own: list[Frame] = []

    def between_frames(self) -> bool:
        """Return whether nothing is in hand: no part of a frame, and no chunk that waits for its verdicts."""
        return not self._beginning.pieces and not self._body_left and not self._chunk and not self.left_bytes

    def missing_bytes(self) -> int:
        """Return how many bytes are certain to belong to the frame in hand, or to the next one's prefix."""
        return self._body_left or self._beginning.missing_bytes()

    def most_bytes(self) -> int:
        """Return how many bytes to read next at most: little beyond the frame in hand while on trial."""
        return self.missing_bytes() + TRIAL_READ_BYTES if self._trial else NO_BOUND

    def reads_fast(self) -> bool:
        """Say whether the last chunk was read in few steps, by compiled code."""
        return self._fast

    def held_back(self) -> int:
        """Return the length of the header's beginning in hand; 0 if it is too long to be read once more."""
        return self._beginning.readable_again()

    def take_back(self) -> bytes:
        """Hand out the header's beginning in hand, as ``held_back`` says."""
        return self._beginning.take() if self.held_back() else b""

    def feed(self, chunk: memoryview) -> tuple[Gathered, list[Charge]]:
        """Read the frames of one chunk; ``pass_on`` must follow before the next chunk.

        After many steps its end is left, ``left_bytes``, which must be the next chunk.

        Returns:
            The limitable requests whose headers are complete, and what finished batches still owe.
        """
        self._chunk = chunk
        self._lead, self._led = b"", None
        self.left_bytes = 0
        requests = Gathered()
        charges: list[Charge] = []
        size, max_length = len(chunk), self._max_length
        subscriptions = self._limits_kind(_SUBSCRIPTION)
        position = self._continue_body(chunk, charges) if self._body_left else 0
        self._from = 0 if self._open else position
        self._open_until = position
        try:
            if self._beginning.pieces:
                position = self._continue_head(chunk, requests, subscriptions)
            # A client that is on trial is read frame by frame: that is what gets to know it.
            scanner = None if size < self._scan_from_bytes else self._scanner
            leave = pause = steps = 0
            while size - position >= _PREFIX_BYTES:
                if steps >= _MOST_STEPS:
                    self.left_bytes = size - position
                    break
                if scanner is not None and not leave and not self._trial:
                    segment = scanner.scan(chunk, position, max_length)
                    # After each scan that hardly took any twice as many frames are read one by one before the next.
                    leave = pause = 0 if len(segment) >= _WORTH_WHILE else min(2 * pause + 1, _MAX_PAUSE)
                    if segment:
                        self._take_segment(segment, requests)
                        position = segment.stop
                        steps += len(segment.runs)
                        continue
                leave -= leave > 0
                length, word = prefix_at(chunk, position)
                header_bytes = self._header_bytes_of(length, word)
                header_at = position + _PREFIX_BYTES
                body_at = header_at + header_bytes
                if header_bytes > MAX_HEADER_BYTES:
                    header = UNPARSABLE
                elif body_at <= size:
                    header = classify(chunk[header_at:body_at].tobytes(), word >> 24, subscriptions)
                else:
                    break
                stop = position + 4 + length
                self._take_frame(Frame(position, stop, header), 4 + length, body_at, requests)
                position = stop
                steps += 1 if header.reading == STRICT else 1 + header_bytes // _SLOW_BYTES_A_STEP
        except Close as close:
            self.close = close
            self._beginning.pieces.clear()
            self._to = min(position, size)
        else:
            self._to = min(position, size)
            if not self.left_bytes:
                self._beginning.pieces += chunk[self._to :]
            self._fast = steps <= FEW_STEPS and not self._scan_from_bytes
        return requests, charges

    def _take_segment(self, segment: Segment, requests: Gathered) -> None:
        """Note the frames of one scan."""
        charged = self._charged
        if not segment.first_new:
            charged.clear()
        for kind, name, producer_group in segment.new:
            resources = self._resources[kind].get(name) or self.names.remember(kind, name)
            charged.append(Charged(resources, producer_group))
        self.frames += len(segment)
        left = segment.stop - len(self._chunk)
        if left > 0:
            self._body_left = left
            self._swallow = False
        requests.extend(segment, [charged[number] for number, _, _, _ in segment.runs])

    def _continue_body(self, chunk: memoryview, charges: list[Charge]) -> int:
        """Step over what this chunk holds of an earlier frame's body; returns where it ends."""
        end = min(self._body_left, len(chunk))
        self._body_left -= end
        held = self.held.coming
        if held is not None:
            self.held.gather(held, chunk[:end])
        if self._counting is not None:
            self._counting.counter.feed(chunk[:end])
        if self.about.listening:
            self.about.hear(chunk[:end], more=self._body_left > 0)
        if not self._body_left:
            self.held.coming = None
            counting, self._counting = self._counting, None
            late = counting.late() if counting is not None else None
            if late is not None and held is not None:
                held.late = late
            elif late is not None:
                charges.append(late)
        return end

    def _continue_head(self, chunk: memoryview, requests: Gathered, subscriptions: bool) -> int:  # noqa: FBT001 - once a frame
        """Complete the header that earlier chunks began, if this one does.

        Returns:
            Where its frame ends, which may be beyond the chunk; the chunk's end while it is incomplete.
        """
        self._from = len(chunk)
        begun = self._beginning.go_on(chunk)
        if begun is None:
            return len(chunk)
        self._lead = begun.prefix_and_header
        self._from = begun.position
        raw = begun.header
        header = UNPARSABLE if raw is None else classify(raw, begun.header_type, subscriptions)
        frame = self._led = Frame(begun.position, begun.stop, header)
        self._take_frame(frame, begun.frame_bytes, begun.body_at, requests)
        return frame.stop

    def _take_frame(self, frame: Frame, frame_bytes: int, body_at: int, requests: Gathered) -> None:
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
            self.about.meet(header)
        elif self._trial:
            self._trial -= 1
            self.about.meet(header)
        oneway = header.flag & _ONEWAY != 0
        kind = header.kind
        if kind:
            resources = self._resources[kind].get(header.name) or self.names.remember(kind, header.name)
            if kind == _SUBSCRIPTION:
                if not oneway:
                    self._owed.add(header.opaque, header.code, resources)
                requests.append(Request(resources, 0, frame_bytes, "", oneway, None, frame, consumes=True))
                return
            if not oneway:
                self._owed.add(header.opaque, header.code, resources)
        elif header.reading == UNPARSED:
            resources = UNPARSABLE_RESOURCES
        else:
            if header.code in _HEARD and not header.flag & codes.FLAG_RESPONSE and self._listen(frame, body_at):
                self._own.append(frame)
                return
            if not header.flag & (codes.FLAG_RESPONSE | _ONEWAY):
                self._owed.add(header.opaque, header.code, ())
            return
        request = Request(resources, 1, frame_bytes, header.producer_group, oneway, None, frame)
        requests.append(request)
        unparsed = header.reading == UNPARSED
        if unparsed and body_at > len(self._chunk):
            request.messages = max(1, (frame.stop - body_at) // MIN_MESSAGE_BYTES)
        elif unparsed or header.is_batch:
            counter = BatchCounter(doubtful_bytes=frame.stop - body_at if unparsed else 0)
            counter.feed(self._chunk[body_at : frame.stop])
            request.messages = max(1, counter.count)
            if left > 0:
                self._counting = BatchComing(counter, request)

    def _count_undecodable(self, header: Header) -> None:
        read_by = "none" if header.reading == UNPARSED else "lenient"
        counts = self._counters.undecodable
        counts[read_by] = counts.get(read_by, 0) + 1

    def _listen(self, frame: Frame, body_at: int) -> bool:
        """Look closer at a request that says who the client is, or is for Sluice; returns whether Sluice answers it."""
        header, chunk = frame.header, self._chunk
        if header.code == _HEART_BEAT:
            if self.about.wanted:
                self.about.heartbeat(frame.stop - body_at, chunk[body_at : frame.stop])
            return False
        if frame is self._led:
            raw, header_type = self._lead[_PREFIX_BYTES:], self._lead[4]
        else:
            raw, header_type = chunk[frame.start + _PREFIX_BYTES : body_at].tobytes(), chunk[frame.start + 4]
        if header.code == _UNREGISTER:
            if self.about.wanted:
                self.about.sign_off(raw, header_type)
            return False
        return self._take(header, raw, header_type)

    def pass_on(self, batch: Batch | None, out: list[Buffer]) -> Refused:
        """Queue what the verdicts leave of the chunk, in the largest possible slices; return what was refused."""
        chunk, start = self._chunk, self._from
        if self.held.waiting and not (self._body_left and self._open_until == len(chunk)):
            out.append(chunk[start : self._open_until])
            start = self._open_until
            self.held.release_waiting(out)
        refused, coming, first = NOTHING_REFUSED, None, None
        if self._own or (batch is not None and batch.verdicts):
            done = None
            if batch is not None and not self._own and isinstance(batch.requests, Gathered):
                done = cut(batch.requests, batch.verdicts, start, self._settle)
            if done is None:
                done, coming = self._stop_each(batch, start)
            slices, start, first, refused = done
            if self._lead and first is not self._led:
                out.append(self._lead)
            out += [chunk[begin:end] for begin, end in slices]
        elif self._lead:
            out.append(self._lead)
        if start <= len(chunk):
            if self._to > start:
                out.append(chunk[start : self._to])
        elif coming is not None:
            self.held.coming = coming
        else:
            self._swallow_rest()
        self._open = self._body_left > 0 and not self._swallow and self.held.coming is None
        self._chunk = memoryview(b"")
        self._lead, self._led = b"", None
        return refused

    def _stop_each(self, batch: Batch | None, start: int) -> tuple[Cut, HeldFrame | None]:
        """Take out of the chunk, frame by frame, what does not go on with it; the last one comes too, if it is held."""
        stopped = stopped_frames(batch, self._own)
        self._own = []
        slices: list[tuple[int, int]] = []
        refused: list[tuple[Header, Refuse]] = []
        held: HeldFrame | None = None
        for frame, request, refuse in stopped:
            if frame.start > start:
                slices.append((start, frame.start))
            start = frame.stop
            held = None
            if request is None:
                continue
            self._settle(frame.header)
            if refuse is not None:
                refused.append((frame.header, refuse))
            else:
                lead = self._lead if frame is self._led else b""
                held = request.handle = self.held.hold(frame.header, lead, self._chunk[frame.start : frame.stop])
        first = stopped[0][0] if stopped else None
        return Cut(slices, start, first, answer_each(refused) if refused else NOTHING_REFUSED), held

    def release(self, request: Request, held: HeldFrame, out: list[Buffer]) -> Charge | None:
        """Let a held request go on: behind all that has gone on, but never inside a frame.

        Returns:
            What it turned out to cost beyond what it was decided by.
        """
        header = held.header
        if header.reading != UNPARSED and not header.flag & _ONEWAY:
            self._owed.add(header.opaque, header.code, request.resources)
        if held is self.held.coming:
            self._open = True  # by what is queued here; the rest of the body streams through
            self.held.release(held, out)
        else:
            self.held.release(held, None if self._open else out)
        return held.late

    def give_up(self, held: HeldFrame) -> None:
        """Forget a held request that was refused, and what is still to come of it."""
        if held is self.held.coming:
            self._swallow_rest()
        self.held.drop(held)

    def _swallow_rest(self) -> None:
        self._swallow = True
        self._counting = None

    def _settle(self, header: Header) -> None:
        """Take a request that does not go on, or not yet, out of what the broker owes."""
        if header.reading != UNPARSED and not header.flag & _ONEWAY:
            self._owed.settle(header.opaque)

    def end(self, out: list[Buffer]) -> None:
        """Queue what was held back of an unfinished header, at the end of the stream; what is held is dropped."""
        self.held.end()
        if self._beginning.pieces:
            out.append(self._beginning.take())
