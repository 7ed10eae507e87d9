"""What of one peer's stream waits, and why, and when it goes on.

1. Contents with the same key of one lane keep their order. While one is held those behind it wait in its ``Line``; as
   soon as it is resolved, what is not decided yet is asked, in a batch of its own: ``ask``.
2. A BARRIER method waits until all lines of its lane are empty, and BEHIND methods and contents wait behind it, in
   ``Lane.after``.
3. What may go on is ``Lane.ready`` until the stream that is written stands where it can be: not inside a frame, and not
   inside a content of the same channel. Frames of our own wait there, too.
"""

from collections.abc import Callable, Sequence
from typing import Final

from proxy.deciding.batch import Batch, Hold, Refuse, Request, Shadow, Verdict
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
    Line,
    Method,
)
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.reading import Reading, Shared
from proxy.protocols.base import Buffer

#: What is asked at once, of one line and in all.
MOST_OF_LINE: Final = 64
MOST_ASKED: Final = 256
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
        waiting: contents and methods that wait.
        again_ns: when to call ``ask`` though nobody was woken, or None.
    """

    def __init__(self, memory: Memory, shared: Shared) -> None:
        super().__init__()
        self.out: list[Buffer] = []
        self.own_bytes = 0
        self.refused = 0
        self.waiting = 0
        self.again_ns: int | None = None
        self._memory = memory
        self._shared = shared
        self._give_up: Callable[[Sequence[Request]], None] = shared.give_up
        #: Lanes where something is ready, and lines that begin with what is not decided.
        self._ready: dict[Lane, None] = {}
        self._askable: dict[Line, None] = {}

    # --- What the two directions do differently ---------------------------------------------------

    def _goes_on(self, content: Content) -> None:
        """Note that a content begins to be written."""

    def _refuse(self, content: Content) -> None:
        """Answer a content that is refused."""

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
        else:
            content.verdict = LATER

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
            line = lane.lines[key] = Line(lane, key)
        line.queue.append(content)
        if len(line.queue) == 1 and content.verdict == LATER:
            self._let_ask(line)

    def asks(self) -> bool:
        """Say whether there is something to ask about."""
        return bool(self._askable)

    def _let_ask(self, line: Line) -> None:
        if not self._askable:
            self._shared.wake()
        self._askable[line] = None

    def _waits_no_more(self, content: Content) -> bytearray | bytes:
        """Give back what a content takes that waits; return its bytes."""
        self.waiting -= 1
        self._memory.give_back(content.waiting_bytes())
        data, content.data = content.data, b""
        content.request = None
        return data

    # --- Deciding later ---------------------------------------------------------------------------

    def ask(self) -> list[Request]:
        """Return requests for contents that were not decided yet and that nothing is before any more."""
        self.again_ns = None
        requests: list[Request] = []
        for line in list(self._askable):
            asked = 0
            for content in line.queue:
                if content.verdict == LATER:
                    if asked >= MOST_OF_LINE or len(requests) >= MOST_ASKED:
                        break
                    asked += 1
                    content.verdict = ASKED
                    requests.append(self._make_request(content))
                elif content.verdict in {HELD, ASKED}:
                    break
            if len(requests) >= MOST_ASKED:
                break
            del self._askable[line]
        return requests

    def asked(self, batch: Batch, now_ns: int) -> None:
        """Take the verdicts on what ``ask`` returned."""
        lines: dict[Line, None] = {}
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
            if content.verdict == REFUSED:
                self._waits_no_more(content)
                self._drop(content)
            if line is not None:
                lines[line] = None
        if given_up:
            self._give_up(given_up)
        for line in lines:
            head = line.queue[0]
            if head.verdict == LATER and head.key is not None:
                # Nothing is before it; whoever says so knows why, and is asked again soon.
                self._askable[line] = None
                self.again_ns = now_ns + _AGAIN_NS
            else:
                self._advance(line)
        if self._askable and self.again_ns is None:
            self._shared.wake()
        self.flush()

    def resolved(self, request: Request, refuse: Refuse | None) -> None:
        """Let a held content go on, or refuse it."""
        content = request.handle
        if not isinstance(content, Content) or content.request is not request:
            return
        content.request = None
        if refuse is None:
            content.verdict = GRANTED
        else:
            content.verdict = REFUSED
            self._waits_no_more(content)
            self._drop(content)
        line = None if content.key is None else content.lane.lines.get(content.key)
        if line is not None:
            self._advance(line)
        self.flush()

    def _advance(self, line: Line) -> None:
        """Let go on what nothing of the line is before any more."""
        queue, lane = line.queue, line.lane
        while queue:
            head = queue[0]
            if head.verdict == GRANTED:
                self._let_go(lane, head)
            elif head.verdict != REFUSED:
                break
            queue.popleft()
        if queue:
            if queue[0].verdict == LATER:
                self._let_ask(line)
            return
        if lane.lines.get(line.key) is line:
            del lane.lines[line.key]
        self._askable.pop(line, None)
        self._advance_after(lane)

    def _advance_after(self, lane: Lane) -> None:
        """Let go on what waited for the lines to be empty, up to the next that does."""
        after = lane.after
        while after:
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
        """Queue what is ready and can be written."""
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
            self.out.append(memoryview(data))
            lane.writing = item
            self._goes_on(item)
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
        for line in lane.lines.values():
            self._askable.pop(line, None)
            for content in line.queue:
                self._forget(content, held)
            line.queue.clear()
        lane.lines.clear()
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
            waiting = [content for line in lane.lines.values() for content in line.queue]
            waiting += [item for item in (*lane.after, *lane.ready) if isinstance(item, Content)]
            held: list[Request] = []
            for content in waiting:
                if not content.done or (refusable and content.number):
                    self._forget(content, held)
            if held:
                self._give_up(held)
            for line in list(lane.lines.values()):
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
