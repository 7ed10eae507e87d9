"""Client to broker: publishes that wait are spooled undecided, and come back in order to be asked about.

Contents that do not come back are answered if their client waits for that, and counted as given up.
"""

from collections.abc import Sequence
from typing import Final

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Request, Side
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import (
    DROPPED,
    GRANTED,
    HELD,
    LATER,
    REFUSED,
    Channel,
    Content,
    Ended,
    Lane,
    Line,
    Spooler,
)
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.stream import Owner, Shared, Stream
from proxy.protocols.base import Close
from proxy.spool.queue import Lost
from proxy.spool.segments import Piece
from proxy.spool.spool import QueueName

#: While more than this is forwarded and not written, or answered and not read, nothing leaves the spool.
_MAX_UNWRITTEN_BYTES: Final = 1024 * 1024
_LINE_BYTES: Final = 5 * 1024  # memory of a line without its contents, about: its stage, and its queue in the spool
_NS: Final = 1_000_000_000


class SpoolingStream(Stream):
    """The client's stream, as far as it spools."""

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        super().__init__(memory, shared, owner)
        spool = self._spool = shared.context.spool
        self._most_age_ns = 0 if spool is None else round(spool.settings.most_age_s * _NS)
        self.old_ns: int | None = None  # when a held content reaches the maximum age
        self._has_much_unwritten = False
        self._damage: Close | None = None  # damage in the spool that ends the connection

    def name(self, content: Content) -> QueueName:
        resource = content.target.resources[0]
        return QueueName(self._context.connection.listener, resource.kind, resource.name, self._shared.about.sender())

    def restore(self, like: Content, copied: Piece | None) -> Content:
        """Make a content with the target of another one; ``copied`` has its bytes if it has CC or BCC."""
        target = like.target
        content = Content(like.lane, target=target, key=like.key, resources=target.resources)
        if copied is not None:
            keys = wire.read_content_header(copied, *wire.content_header_at(copied))[2]
            content.resources = self._shared.names.with_copies(target, keys)
        return content

    def puts_aside(self) -> bool:
        """Say whether something is spooled, or would be if more of it arrived."""
        return any(line.spools for lane in self._lanes.values() for line in lane.lines.values())

    def _make_line(self, lane: Lane, content: Content) -> Line:
        if self._spool is None:
            return super()._make_line(lane, content)
        assert content.key is not None  # noqa: S101 - it waits for others with the same
        self._memory.take(_LINE_BYTES)
        stage = self._stages.begin(lane.channel, str(content.target.resources[0]))
        return Line(lane, content.key, stage, Spooler(self, self._spool, self._memory))

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

    def asks(self) -> bool:
        return super().asks() or (self.old_ns is not None and self._stages.now_ns >= self.old_ns)

    def ask(self) -> list[Request]:
        """Return requests, after forwarding what has reached the maximum age.

        Raises:
            Close: spooled publishes are damaged, and the client is to send them again.
        """
        if self._damage is not None:
            self.close, self.code = self._damage, wire.INTERNAL_ERROR
            raise self._damage
        if self.old_ns is not None and self._stages.now_ns >= self.old_ns:
            self._let_old_go()
        # Once for all lines, as it takes time in proportion to the waiting answers.
        unwritten_bytes = max(self._stages.unwritten_bytes, self._owner.backlog_bytes(Side.CLIENT))
        self._has_much_unwritten = unwritten_bytes > _MAX_UNWRITTEN_BYTES
        return super().ask()

    def asked(self, batch: Batch, now_ns: int) -> None:
        super().asked(batch, now_ns)
        for request in batch.requests:
            if isinstance(request.handle, Content):
                self._look_at_age(request.handle)

    def _look_at_age(self, content: Content) -> None:
        if content.verdict == HELD and content.spools and not content.number and self._most_age_ns:
            old_ns = content.since_ns + self._most_age_ns
            if self.old_ns is None or old_ns < self.old_ns:
                self.old_ns = old_ns
                self._context.wake()

    def _let_old_go(self) -> None:
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
        self._context.pass_on(passed)
        for line in lines:
            self._advance(line)

    def passes(self, content: Content) -> None:
        content.verdict = GRANTED
        self.charges.append(Charge(content.resources, 1, content.size_bytes))

    def ended(self, line: Line, ended: Sequence[Ended], size_bytes: int) -> None:
        """Answer entries that leave the spool without being forwarded."""
        for each in ended:
            self._say(line.lane.channel, each.number, expired=each.expired)
        self._lose_aside(line, len(ended), size_bytes)

    def _say(self, channel: Channel, number: int, *, expired: bool) -> None:
        """Answer a publish that is not forwarded. The broker would have acked an expired one."""
        if number and not channel.dead:
            self.refused += not expired
            self._owner.answer(channel, (wire.ack if expired else wire.nack)(channel.number, number))

    def _expire(self, line: Line, content: Content) -> None:
        self._say(line.lane.channel, content.number, expired=True)
        line.forget(content)
        self._waits_no_more(content)
        content.fate, content.verdict = DROPPED, REFUSED

    def _lose_aside(self, line: Line, count: int, size_bytes: int) -> None:
        """Count undecided contents that are no longer in the spool."""
        if count and line.like is not None:
            self.waiting -= count
            content = self.restore(line.like, None)
            content.number, content.size_bytes = line.like.number, size_bytes // count
            self._context.lose([self._make_request(content)] * count)

    def _forget_aside(self, line: Line) -> None:
        self._lose_aside(line, *line.drop())

    def lost(self, line: Line, lost: Lost, numbers: Sequence[int], front: Content | None) -> None:
        """Refuse damaged entries. If their numbers are unknown, end the connection, so that the client resends."""
        if front is not None:
            self._forget(front)
        if line.is_refusable:
            for number in numbers:
                self._say(line.lane.channel, number, expired=False)
            if len(numbers) < lost.entries:
                self._damage = Close("spool_damaged", f"{lost.entries} publishes put aside: {lost.reason}")
        self._lose_aside(line, lost.entries - (front is not None), 0)
        self.let_ask(line)

    def purge(self, resource: Resource) -> tuple[int, int]:
        refused = dropped = 0
        lines = [line for lane in self._lanes.values() for line in lane.lines.values() if line.spools]
        for line in lines:
            if resource not in line.first().target.resources:
                continue
            for content in line.in_memory():
                if content.aside or (content.done and content.verdict == LATER):
                    line.forget(content)
                    self._forget(content)
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
