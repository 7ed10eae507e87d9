"""Client to broker: what waits can be put aside in the spool, and what becomes of it there.

It comes back in order, by ``SpoolLine.refill``, and is asked about then. What does not is answered, if its client waits
for that, and counted as given up.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Request
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import DROPPED, GRANTED, HELD, LATER, REFUSED, Channel, Content, Lane
from proxy.protocols.amqp091.lines import Ended, Line, SpoolLine
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.reading import Shared
from proxy.protocols.amqp091.stream import Stream
from proxy.protocols.base import Close
from proxy.spool.queue import Lost
from proxy.spool.segments import Piece
from proxy.spool.spool import QueueName

#: With more than that let go and not written, or answered and not read, nothing more comes out of the spool.
_MAX_UNWRITTEN_BYTES: Final = 1024 * 1024
#: What a line takes in memory besides its contents, about: its stage, and its queue in the spool.
_LINE_BYTES: Final = 5 * 1024
_NS: Final = 1_000_000_000


class SpoolingStream(Stream):
    """The client's stream.

    Args:
        memory: as for every stream.
        shared: likewise.
        answer: sends a frame of our own to the client, in a channel.

    Attributes:
        unread_bytes: says how many bytes of answers the client has not read.
        old_ns: when to call ``ask`` since something will be too old to be held for longer, or None.
    """

    def __init__(self, memory: Memory, shared: Shared, answer: Callable[[Channel, bytes], None]) -> None:
        super().__init__(memory, shared)
        self._answer = answer
        self._spool = shared.spool
        self._most_age_ns = 0 if shared.spool is None else round(shared.spool.settings.most_age_s * _NS)
        self.unread_bytes: Callable[[], int] = lambda: 0
        self.old_ns: int | None = None
        self._has_much_unwritten = False
        #: Why the connection is to end.
        self._damage: Close | None = None

    def part(self) -> None:
        """Forget all contents and channels, as the base class says, and the session."""
        super().part()
        del self._answer, self.unread_bytes

    # --- What publishes are -----------------------------------------------------------------------

    @abstractmethod
    def name(self, content: Content) -> QueueName:
        """Return what is written beside a content and those like it."""

    @abstractmethod
    def is_copied(self, content: Content) -> bool:
        """Say whether its resources are not only those of where it goes."""

    @abstractmethod
    def restore(self, like: Content, copied: Piece | None) -> Content:
        """Make a content, as ``Owner`` says."""

    @abstractmethod
    def _goes_to(self, content: Content) -> tuple[Resource, ...]:
        """Return the resources of where a content goes, without those of copies."""

    # --- What waits -------------------------------------------------------------------------------

    def puts_aside(self) -> bool:
        """Say whether something is put aside, or will be if more of it comes."""
        return any(line.spools for lane in self._lanes.values() for line in lane.lines.values())

    def _make_line(self, lane: Lane, content: Content) -> Line:
        if self._spool is None:
            return super()._make_line(lane, content)
        assert content.key is not None  # noqa: S101 - it waits for others with the same
        self._memory.take(_LINE_BYTES)
        stage = self._stages.begin(lane.channel, str(self._goes_to(content)[0]))
        return SpoolLine(lane, content.key, stage, owner=self, spool=self._spool, memory=self._memory)

    def _end_line(self, line: Line) -> None:
        super()._end_line(line)
        if self._spool is not None:
            self._memory.give_back(_LINE_BYTES)

    def _join(self, content: Content) -> None:
        super()._join(content)
        assert content.key is not None  # noqa: S101 - as above
        self._stages.waits(content.lane.lines[content.key].stage, content.size_bytes)
        self._look_at_age(content)

    def _is_behind(self, line: Line) -> bool:
        if not line.spools:
            return False
        return self._has_much_unwritten or self._stages.is_behind(line.stage)

    def _go_after(self, line: Line, content: Content) -> None:
        self._stages.goes(line.stage, len(content.data))
        super()._go_after(line, content)

    # --- What is too old --------------------------------------------------------------------------

    def asks(self) -> bool:
        """Say whether there is something to ask about, or held for too long."""
        return super().asks() or (self.old_ns is not None and self._stages.now_ns >= self.old_ns)

    def ask(self) -> list[Request]:
        """Return requests, as the base class says; what is held for too long goes on first.

        Raises:
            Close: something was damaged that its client is to send again.
        """
        if self._damage is not None:
            self.close, self.code = self._damage, wire.INTERNAL_ERROR
            raise self._damage
        if self.old_ns is not None and self._stages.now_ns >= self.old_ns:
            self._let_old_go()
        # Once for all lines: it may take as long as there are answers that wait.
        unwritten_bytes = max(self._stages.unwritten_bytes, self.unread_bytes())
        self._has_much_unwritten = unwritten_bytes > _MAX_UNWRITTEN_BYTES
        return super().ask()

    def asked(self, batch: Batch, now_ns: int) -> None:
        """Take the verdicts on what ``ask`` returned."""
        super().asked(batch, now_ns)
        for request in batch.requests:
            if isinstance(request.handle, Content):
                self._look_at_age(request.handle)

    def _look_at_age(self, content: Content) -> None:
        """Take note when a content will be too old that is held for as long as it takes."""
        if content.verdict == HELD and content.spools and not content.number and self._most_age_ns:
            old_ns = content.since_ns + self._most_age_ns
            if self.old_ns is None or old_ns < self.old_ns:
                self.old_ns = old_ns
                self._shared.wake()

    def _let_old_go(self) -> None:
        """Let go on what is held and too old."""
        now_ns, self.old_ns = self._stages.now_ns, None
        passed: list[Request] = []
        lines = [line for lane in self._lanes.values() for line in lane.lines.values() if line.contents]
        for line in lines:
            content = line.contents[0]
            if content.request is not None and content.since_ns + self._most_age_ns <= now_ns and content.spools:
                if content.number:
                    continue
                passed.append(content.request)
                content.request = None
                self.passes(content)
            self._look_at_age(content)
        self._shared.pass_on(passed)
        for line in lines:
            self._advance(line)

    def passes(self, content: Content) -> None:
        """Let a content go on that is too old to be asked about, and charge it."""
        content.verdict = GRANTED
        self.charges.append(Charge(content.resources, 1, content.size_bytes))

    # --- What does not go on ----------------------------------------------------------------------

    def ended(self, line: SpoolLine, ended: Sequence[Ended], size_bytes: int) -> None:
        """Answer what has left the spool and does not go on."""
        for each in ended:
            self._say(line.lane.channel, each.number, expired=each.expired)
        self._lose_aside(line, len(ended), size_bytes)

    def _say(self, channel: Channel, number: int, *, expired: bool) -> None:
        """Answer a publish that does not go on: one that has expired the broker would have acked."""
        if number and not channel.dead:
            self.refused += not expired
            self._answer(channel, (wire.ack if expired else wire.nack)(channel.number, number))

    def _expire(self, line: Line, content: Content) -> None:
        self._say(line.lane.channel, content.number, expired=True)
        line.forget(content)
        self._waits_no_more(content)
        content.fate, content.verdict = DROPPED, REFUSED

    def _lose_aside(self, line: SpoolLine, count: int, size_bytes: int) -> None:
        """Count what was put aside, is not decided, and is not there any more."""
        if count and line.like is not None:
            self.waiting -= count
            content = self.restore(line.like, None)
            content.number, content.size_bytes = line.like.number, size_bytes // count
            self._shared.lose([self._make_request(content)] * count)

    def _forget_aside(self, line: Line) -> None:
        if isinstance(line, SpoolLine):
            self._lose_aside(line, *line.drop())

    def _forget_one(self, content: Content) -> None:
        """Be done with a content in memory, or of which the spool has the bytes, that nobody waits for any more."""
        held: list[Request] = []
        self._forget(content, held)
        self._give_up(held)

    def lost(self, line: SpoolLine, lost: Lost, numbers: Sequence[int], front: Content | None) -> None:
        """Refuse what was damaged on disk; where it is not known what it was, have its client send again."""
        if front is not None:
            self._forget_one(front)
        if line.is_refusable:
            for number in numbers:
                self._say(line.lane.channel, number, expired=False)
            if len(numbers) < lost.entries:
                self._damage = Close("spool_damaged", f"{lost.entries} publishes put aside: {lost.reason}")
        self._lose_aside(line, lost.entries - (front is not None), 0)
        self.let_ask(line)

    def purge(self, resource: Resource) -> tuple[int, int]:
        """Refuse or drop what is put aside of a resource, as ``Session.purge`` says."""
        refused = dropped = 0
        lines = [line for lane in self._lanes.values() for line in lane.lines.values() if line.spools]
        for line in lines:
            if not isinstance(line, SpoolLine) or resource not in self._goes_to(line.first()):
                continue
            for content in line.in_memory():
                if content.aside or (content.done and content.verdict == LATER):
                    line.forget(content)
                    self._forget_one(content)
                    self._say(line.lane.channel, content.number, expired=False)
                    refused += content.number > 0
                    dropped += not content.number
            self._unsettled[line] = None
            if line.is_refusable:
                refused += line.refuse()
            else:
                count, size_bytes = line.drop()
                self._lose_aside(line, count, size_bytes)
                dropped += count
            self.let_ask(line)
        return refused, dropped
