"""What of one peer's stream waits, and why, and when it goes on.

1. Contents with the same key of one lane keep their order. While one is held those behind it wait in its ``Line``, in
   memory or put aside; as soon as it is resolved, what is not decided yet is asked, in a batch of its own: ``ask``.
2. A BARRIER method waits until all lines of its lane are empty, and BEHIND methods and contents wait behind it, in
   ``Lane.after``.
3. What may go on is ``Lane.ready`` until the stream that is written stands where it can be: not inside a frame, and not
   inside a content of the same channel. Frames of our own wait there, too.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Hold, Refuse, Request, Shadow, Verdict
from proxy.protocols.amqp091.channel import (
    ASKED,
    BARRIER,
    DROPPED,
    GRANTED,
    HELD,
    LATER,
    OBJECT_BYTES,
    PASSING,
    REFUSED,
    WAITING,
    Content,
    Lane,
    Method,
)
from proxy.protocols.amqp091.lines import MAX_ENDED, Line
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.reading import Reading, Shared
from proxy.protocols.base import Buffer
from proxy.spool.segments import Piece

#: What is asked at once, of all lines.
MAX_ASKED: Final = 256
#: When to ask again what a handler does not decide though nothing is before it.
_AGAIN_NS: Final = 10_000_000


class Waiting(Reading):
    """One peer's stream, with what waits of it.

    Args:
        memory: what copies of it take.
        shared: with the other stream.

    Attributes:
        out: what may be written.
        own_bytes: what frames of our own take in ``out`` or wait to get there.
        refused: contents that were refused.
        waiting: contents and methods that wait, those that are put aside among them.
        again_ns: when to call ``ask`` though nobody was woken, or None.
        charges: what goes on without having been asked about, for the next batch.
    """

    def __init__(self, memory: Memory, shared: Shared) -> None:
        super().__init__()
        self.out: list[Buffer] = []
        self.own_bytes = 0
        self.refused = 0
        self.waiting = 0
        self.again_ns: int | None = None
        self.charges: list[Charge] = []
        self._memory = memory
        self._shared = shared
        self._give_up: Callable[[Sequence[Request]], None] = shared.give_up
        self._stages = shared.stages
        #: Lanes where something is ready; lines that begin with what is not decided; and lines that do, too, but wait
        #: until more is written.
        self._ready: dict[Lane, None] = {}
        self._askable: dict[Line, None] = {}
        self._behind: dict[Line, None] = {}
        #: Lines that may have something to be put aside.
        self._unsettled: dict[Line, None] = {}

    # --- What the two directions do differently ---------------------------------------------------

    def _goes_on(self, content: Content, frames: Piece) -> None:
        """Note that a content begins to be written; one that is gathered may be ``marked``.

        Args:
            content: the content.
            frames: its frames, if it is gathered.
        """

    def _refuse(self, content: Content) -> None:
        """Answer a content that is refused."""

    def _make_line(self, lane: Lane, content: Content) -> Line:
        """Make a line that a content is the first of."""
        assert content.key is not None  # noqa: S101 - it waits for others with the same
        return Line(lane, content.key, self._stages.begin(lane.channel, str(content.resources[0])))

    def _is_behind(self, line: Line) -> bool:
        """Say whether more has to be written before more of a line is asked about."""
        del line
        return False

    # --- What begins to wait ----------------------------------------------------------------------

    def _take_verdict(self, request: Request, verdict: Verdict) -> None:
        """Note what was decided of a request, but for what comes of it."""
        content = request.handle
        if not isinstance(content, Content) or isinstance(verdict, Shadow):
            return
        self._special = True
        if isinstance(verdict, Refuse):
            content.verdict = REFUSED
        elif isinstance(verdict, Hold):
            content.verdict = HELD
            content.request = request
            content.spools = verdict.spools
        else:
            content.verdict = LATER
            content.spools = request.refusal == "answered"

    def _drop(self, content: Content) -> None:
        """Be done with a content that does not go on."""
        content.fate = DROPPED
        if content.verdict == HELD and content.request is not None:
            request, content.request = content.request, None
            self._give_up((request,))
        elif content.verdict == REFUSED and not content.lane.channel.dead:
            self.refused += 1
            self._refuse(content)
        content.verdict = REFUSED

    def _gather(self, content: Content, buffer: Buffer, position: int, stop: int) -> None:
        """Keep what has come of a content, as the base class says."""
        self._memory.take(stop - position + (0 if content.data else OBJECT_BYTES))
        super()._gather(content, buffer, position, stop)

    def _take_lead(self, content: Content) -> Buffer:
        """Return what is kept of a content that has begun, as the base class says."""
        lead = super()._take_lead(content)
        if lead:
            self._memory.give_back(len(lead) + OBJECT_BYTES)
        return lead

    def _set_aside(self, owner: Method, methods: bytes) -> None:
        """Have methods wait for what is before them."""
        owner.lane.after.append((methods, owner.waits))
        self.waiting += 1
        self._memory.take(len(methods) + OBJECT_BYTES)

    def _set_aside_no_more(self, methods: bytes) -> None:
        self.waiting -= 1
        self._memory.give_back(len(methods) + OBJECT_BYTES)

    def _wait(self, content: Content, data: bytearray) -> None:
        """Have a content wait, of which that much has come."""
        content.data = data
        content.since_ns = self._stages.now_ns
        self.waiting += 1
        self._memory.take(content.waiting_bytes())
        lane = content.lane
        if lane.after:
            lane.after.append(content)
        else:
            self._join(content)

    def _join(self, content: Content) -> None:
        """Put a content at the end of its line."""
        lane, key = content.lane, content.key
        assert key is not None  # noqa: S101 - it waits for others with the same
        line = lane.lines.get(key)
        if line is None:
            line = lane.lines[key] = self._make_line(lane, content)
        line.append(content)
        if line.spools:
            self._unsettled[line] = None
        if line.contents and line.contents[0] is content and content.verdict == LATER:
            self.let_ask(line)

    def asks(self) -> bool:
        """Say whether there is something to ask about."""
        return bool(self._askable)

    def let_ask(self, line: Line) -> None:
        """Have a line asked about soon."""
        if not self._askable:
            self._shared.wake()
        self._askable[line] = None

    def written(self) -> None:
        """Take note that more can be written: lines that waited for it are asked about."""
        behind, self._behind = self._behind, {}
        for line in behind:
            self.let_ask(line)

    def _waits_no_more(self, content: Content) -> Piece:
        """Give back what a content takes that waits; return its bytes."""
        self.waiting -= 1
        self._memory.give_back(content.waiting_bytes())
        data, content.data = content.data, b""
        content.request = None
        return data

    def waiting_since(self) -> Iterator[tuple[Resource, int]]:
        """Yield the resource of the first content of each line, and of those behind a method, with their times."""
        for lane in self._lanes.values():
            fronts = [line.contents[0] for line in lane.lines.values() if line.contents]
            for content in (*fronts, *lane.after):
                if isinstance(content, Content) and content.resources:
                    yield content.resources[0], content.since_ns

    # --- Deciding later ---------------------------------------------------------------------------

    def ask(self) -> list[Request]:
        """Return requests for contents that were not decided yet and that nothing is before any more."""
        self.again_ns = None
        requests: list[Request] = []
        ended = 0
        for line in list(self._askable):
            if len(requests) >= MAX_ASKED or ended >= MAX_ENDED:
                break
            if line not in self._askable:
                continue
            del self._askable[line]
            if self._is_behind(line):
                self._behind[line] = None
                continue
            of_line = line.refill(self._stages.now_ns)
            ended += of_line
            is_reading = not of_line and not line.contents
            self._advance(line)
            if of_line >= MAX_ENDED:
                self.let_ask(line)
            elif is_reading:
                self._askable.pop(line, None)
            elif line.contents and line.contents[0].verdict == LATER:
                self._askable.pop(line, None)
                self._ask_of(line, requests)
        self.flush()
        return requests

    def _ask_of(self, line: Line, requests: list[Request]) -> None:
        """Add requests for the first contents of a line."""
        most = len(requests) + min(line.most, MAX_ASKED - len(requests))
        for content in line.contents:
            if content.verdict == LATER:
                if len(requests) >= most:
                    break
                content.verdict = ASKED
                requests.append(self._make_request(content))
            elif content.verdict in {HELD, ASKED}:
                break

    def asked(self, batch: Batch, now_ns: int) -> None:
        """Take the verdicts on what ``ask`` returned."""
        #: And whether one of them waits on.
        lines: dict[Line, bool] = {}
        given_up: list[Request] = []
        for index, request in enumerate(batch.requests):
            content, verdict = request.handle, batch.verdicts.get(index)
            if not isinstance(content, Content):
                continue
            if content.verdict != ASKED:
                if isinstance(verdict, Hold):
                    given_up.append(request)
                continue
            content.verdict = GRANTED
            if verdict is not None:
                self._take_verdict(request, verdict)
            line = None if content.key is None else content.lane.lines.get(content.key)
            if line is not None:
                lines[line] = lines.get(line, False) or content.verdict in {HELD, LATER}
                if content.spools and content.verdict != REFUSED:
                    line.spool()
            if content.verdict == REFUSED:
                self._leave_out(line, content)
        if given_up:
            self._give_up(given_up)
        for line, waits in lines.items():
            line.asked(waits=waits)
            head = line.contents[0] if line.contents else None
            if head is not None and head.verdict == LATER:
                # Nothing is before it; whoever says so knows why, and is asked again soon.
                self._askable[line] = None
                self.again_ns = now_ns + _AGAIN_NS
            else:
                self._advance(line)
        if self._askable and self.again_ns is None:
            self._shared.wake()
        self.flush()

    def _leave_out(self, line: Line | None, content: Content) -> None:
        """Be done with a content that has waited and is refused, or was to be."""
        if line is not None:
            line.forget(content)
        self._waits_no_more(content)
        self._drop(content)

    def resolved(self, request: Request, refuse: Refuse | None) -> None:
        """Let a held content go on, or refuse it."""
        content = request.handle
        if not isinstance(content, Content) or content.request is not request:
            return
        content.request = None
        line = None if content.key is None else content.lane.lines.get(content.key)
        if refuse is None:
            content.verdict = GRANTED
        else:
            content.verdict = REFUSED
            self._leave_out(line, content)
        if line is not None:
            self._advance(line)
        self.flush()

    def _advance(self, line: Line) -> None:
        """Let go on what nothing of the line is before any more."""
        lane = line.lane
        if lane.shut:
            return
        while line.advance():
            head = line.contents[0]
            if head.verdict == GRANTED:
                if line.has_expired(head, self._stages.now_ns):
                    self._expire(line, head)
                elif line.bring(head):
                    self._go_after(line, head)
                else:
                    return
            elif head.verdict != REFUSED:
                break
            line.contents.popleft()
        if line.contents or line.aside:
            if not line.contents or line.contents[0].verdict == LATER:
                self.let_ask(line)
            return
        if lane.lines.get(line.key) is line:
            del lane.lines[line.key]
            self._end_line(line)
        self._advance_after(lane)

    def _go_after(self, line: Line, content: Content) -> None:
        """Let a content go on that has waited in a line."""
        self._let_go(line.lane, content)

    def _expire(self, line: Line, content: Content) -> None:
        """Be done with a content that is not worth anything any more."""

    def _end_line(self, line: Line) -> None:
        """Forget a line of which nothing waits any more, and which its lane has no more."""
        for lines in (self._askable, self._behind, self._unsettled):
            lines.pop(line, None)
        line.close()
        self._stages.end(line.stage)

    def _advance_after(self, lane: Lane) -> None:
        """Let go on what waited for the lines to be empty, up to the next that does."""
        after = lane.after
        while after and not lane.shut:
            item = after[0]
            if isinstance(item, Content):
                after.popleft()
                if item.verdict == REFUSED:
                    continue
                if item.verdict == GRANTED and item.key not in lane.lines:
                    self._let_go(lane, item)
                else:
                    self._join(item)
            elif item[1] == BARRIER and lane.lines:
                break
            else:
                after.popleft()
                self._let_go(lane, item[0])
                self._set_aside_no_more(item[0])

    def _send_again(self, content: Content, frames: bytes) -> None:
        """Let a content go on, all of which is there, in front of all that waits."""
        content.left_bytes, content.done, content.fate = 0, True, WAITING
        content.data = frames
        self.waiting += 1
        self._memory.take(content.waiting_bytes())
        self._let_go(content.lane, content)

    def _let_go(self, lane: Lane, item: Content | bytes) -> None:
        lane.ready.append(item)
        self._ready[lane] = None

    # --- Writing out of order ---------------------------------------------------------------------

    def insert(self, lane: Lane | None, frame: bytes) -> bool:
        """Queue a frame of our own as soon as it can be.

        Args:
            lane: of its channel; None is channel 0.
            frame: the frame.

        Returns:
            Whether it is or will be queued; one for channel 0 only at once.
        """
        if lane is None:
            if not self.at_boundary():
                return False
            self.out.append(frame)
        else:
            self._let_go(lane, frame)
            self.flush()
        self.own_bytes += len(frame)
        return True

    def at_boundary(self) -> bool:
        """Say whether what is written stands between two frames."""
        owner = self._frame_owner
        return not self._in_hand and (owner is None or owner.fate != PASSING)

    def can_stop(self) -> bool:
        """Say whether the stream need not be read for a while: what waits can go on all the same."""
        if not self.at_boundary():
            return False
        return self._memory.is_overfull() or (self.waiting > 0 and not self._ready)

    def flush(self) -> None:
        """Queue what is ready and can be written, and put aside what can be."""
        if self._unsettled and not self._in_hand:
            for line in self._unsettled:
                line.settle()
            self._unsettled.clear()
        if not self._ready:
            return
        for lane in list(self._ready):
            if not self.at_boundary():
                return
            self._flush(lane, None)

    def _flush(self, lane: Lane, owner: Content | Method | None) -> None:
        """Queue what is ready of a lane, up to a content of which more is to come: the owner of the piece in hand."""
        if lane.writing is not None and not lane.writing.done:
            return
        ready = lane.ready
        while ready:
            item = ready.popleft()
            if not isinstance(item, Content):
                self.out.append(item)
                continue
            if item.fate != WAITING:
                continue
            data = self._waits_no_more(item)
            item.fate = PASSING
            lane.writing = item
            self._goes_on(item, data if item.gathers else b"")
            self.out.append(memoryview(item.marked or data))
            item.marked = b""
            if item is owner or not item.done:
                break
        if not ready:
            self._ready.pop(lane, None)

    # --- Ends -------------------------------------------------------------------------------------

    def give_up(self, lane: Lane, *, methods: bool = True) -> None:
        """Forget all that waits in a lane: its channel is closed.

        Args:
            lane: the lane.
            methods: forget methods, too; otherwise they go on.
        """
        held: list[Request] = []
        lines, lane.lines = lane.lines, {}
        for line in lines.values():
            for content in line.in_memory():
                self._forget(content, held)
            self._forget_aside(line)
            self._end_line(line)
        waiting = [*lane.ready, *lane.after]
        lane.after.clear()
        lane.ready.clear()
        self._ready.pop(lane, None)
        for item in waiting:
            if isinstance(item, Content):
                self._forget(item, held)
            elif isinstance(item, tuple):
                self._set_aside_no_more(item[0])
                if not methods:
                    self._let_go(lane, item[0])
            elif not methods:
                self._let_go(lane, item)
        # Of a chunk in hand contents that do not go on at once are dropped when it is decided.
        self._special = True
        if held:
            self._give_up(held)

    def give_up_all(self) -> None:
        """Forget all that waits."""
        for lane in self._lanes.values():
            self.give_up(lane)

    def open_lane(self, number: int, lane: Lane) -> None:
        """Take note of a channel that is open now."""
        self._lanes[number] = lane

    def close_lane(self, number: int) -> None:
        """Forget a channel that is closed."""
        lane = self._lanes.pop(number, None)
        if lane is not None:
            self.give_up(lane)
            if lane.content is not None:
                self._take_lead(lane.content)

    def _forget(self, content: Content, held: list[Request]) -> None:
        if content.fate != WAITING:
            return
        if content.request is not None:
            held.append(content.request)
        elif content.verdict == LATER:
            self._shared.lose((self._make_request(content),))
        self._waits_no_more(content)
        content.fate, content.verdict = DROPPED, REFUSED

    def _forget_aside(self, line: Line) -> None:
        """Forget what a line has put aside, and is still to be decided."""

    def forget_incomplete(self, *, refusable: bool) -> None:
        """Forget what waits of which no more will come, as the stream is at its end.

        Args:
            refusable: and what can be refused, as nobody hears of it.
        """
        for lane in self._lanes.values():
            writing = lane.writing
            if writing is not None and not writing.done:
                # Nothing of this channel can follow it.
                self.give_up(lane)
                continue
            waiting = [content for line in lane.lines.values() for content in line.in_memory()]
            waiting += [item for item in (*lane.after, *lane.ready) if isinstance(item, Content)]
            held: list[Request] = []
            for content in waiting:
                if not content.done or (refusable and content.number):
                    self._forget(content, held)
            if held:
                self._give_up(held)
            for line in list(lane.lines.values()):
                if refusable and line.is_refusable:
                    self._forget_aside(line)
                self._advance(line)
        if not self.at_boundary():
            self.give_up_all()
        self.flush()

    def keeps(self) -> bool:
        """Say whether something waits, or may be written in a moment."""
        return bool(self.waiting or self._ready)

    def forget_all(self) -> None:
        """Forget all that waits; the tickets have been dropped."""
        self._give_up = lambda _: None
        self.give_up_all()
        for content in list(self._begun_only):
            self._take_lead(content)

    def ready_bytes(self) -> int:
        """Return what copies take that could go on if the stream stood where they can be."""
        return sum(len(item.data) for lane in self._ready for item in lane.ready if isinstance(item, Content))

    def take(self) -> list[Buffer]:
        """Hand out what may be written."""
        out = self.out
        if out:
            self.out = []
        if self.own_bytes:
            self.own_bytes = sum(
                len(item) for lane in self._ready for item in lane.ready if not isinstance(item, Content)
            )
        return out
