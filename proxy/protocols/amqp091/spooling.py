"""Client to broker: publishes that wait are spooled undecided, and come back in order to be asked about.

A line with a spool is, from its first content to its last::

    contents   in memory: held, asked about, or to be asked about next
    spool      complete contents, undecided
    rest       in memory: what cannot be spooled yet, for example an incomplete content, and what is behind it

A large content is asked about while it lies in the spool, perhaps on disk. Then it is the last of ``contents``, and the
first in the spool: it is ``aside``. Contents that do not come back are answered if their client waits for that, and
counted as given up.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Request, Side
from proxy.flow.credit import Stage
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import (
    ASKED,
    DROPPED,
    GRANTED,
    HELD,
    LATER,
    MAX_OF_LINE,
    OBJECT_BYTES,
    REFUSED,
    WAITING,
    Channel,
    Content,
    Lane,
    Line,
)
from proxy.protocols.amqp091.memory import Memory
from proxy.protocols.amqp091.stream import MAX_ENDED, Owner, Shared, Stream
from proxy.protocols.base import Close
from proxy.spool.queue import Lost, Queue
from proxy.spool.segments import MAX_BYTES, Entry, Piece
from proxy.spool.spool import QueueName, Spool

#: While more than this is forwarded and not written, or answered and not read, nothing leaves the spool.
_MAX_UNWRITTEN_BYTES: Final = 1024 * 1024
#: Memory of a line without its contents, about: its stage, and its queue in the spool.
_LINE_BYTES: Final = 5 * 1024
#: How much a line takes out of the spool before it is asked about. Larger contents stay there.
_WINDOW_BYTES: Final = 64 * 1024
#: In the handle of a spool entry, above the client's number: it is charged to more than its target.
_IS_COPIED: Final = 1 << 63
_NEVER_NS: Final = 1 << 63
_NS_PER_MS: Final = 1_000_000
_NS: Final = 1_000_000_000


class Ended(NamedTuple):
    """An entry that leaves the spool without being forwarded."""

    number: int  # the client's sequence number, or 0
    expired: bool  # its TTL is over; otherwise it is refused or dropped


class SpoolingStream(Stream):
    """The client's stream, as far as it spools."""

    def __init__(self, memory: Memory, shared: Shared, owner: Owner) -> None:
        super().__init__(memory, shared, owner)
        self._spool = shared.spool
        self._most_age_ns = 0 if shared.spool is None else round(shared.spool.settings.most_age_s * _NS)
        self.old_ns: int | None = None  # when a held content reaches the maximum age
        self._has_much_unwritten = False
        #: Damage in the spool that ends the connection.
        self._damage: Close | None = None

    # --- What publishes are -----------------------------------------------------------------------

    @abstractmethod
    def name(self, content: Content) -> QueueName:
        """Return the spool's queue name for a content's line."""

    @abstractmethod
    def is_copied(self, content: Content) -> bool:
        """Say whether CC or BCC charge it to more resources than its target's."""

    @abstractmethod
    def restore(self, like: Content, copied: Piece | None) -> Content:
        """Make a content with the target of another one; ``copied`` has its bytes if it has CC or BCC."""

    @abstractmethod
    def _goes_to(self, content: Content) -> tuple[Resource, ...]:
        """Return the resources of a content's target, without CC and BCC."""

    # --- What waits -------------------------------------------------------------------------------

    def puts_aside(self) -> bool:
        """Say whether something is spooled, or would be if more of it arrived."""
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

    # --- The maximum age --------------------------------------------------------------------------

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
                self._shared.wake()

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
        self._shared.pass_on(passed)
        for line in lines:
            self._advance(line)

    def passes(self, content: Content) -> None:
        content.verdict = GRANTED
        self.charges.append(Charge(content.resources, 1, content.size_bytes))

    # --- What is not forwarded --------------------------------------------------------------------

    def ended(self, line: "SpoolLine", ended: Sequence[Ended], size_bytes: int) -> None:
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

    def _lose_aside(self, line: "SpoolLine", count: int, size_bytes: int) -> None:
        """Count undecided contents that are no longer in the spool."""
        if count and line.like is not None:
            self.waiting -= count
            content = self.restore(line.like, None)
            content.number, content.size_bytes = line.like.number, size_bytes // count
            self._shared.lose([self._make_request(content)] * count)

    def _forget_aside(self, line: Line) -> None:
        if isinstance(line, SpoolLine):
            self._lose_aside(line, *line.drop())

    def lost(self, line: "SpoolLine", lost: Lost, numbers: Sequence[int], front: Content | None) -> None:
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
            if not isinstance(line, SpoolLine) or resource not in self._goes_to(line.first()):
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


class SpoolLine(Line):
    """A line that can spool what arrives; ``like`` is a content that was spooled, without its bytes."""

    __slots__ = ("_memory", "_owner", "_purged", "_queue", "_rest", "_spool", "like")

    def __init__(
        self, lane: Lane, key: int, stage: Stage, *, owner: SpoolingStream, spool: Spool, memory: Memory
    ) -> None:
        super().__init__(lane, key, stage)
        self._owner = owner
        self._spool = spool
        self._memory = memory
        self._queue: Queue | None = None
        self._rest: deque[Content] = deque()
        self.like: Content | None = None
        #: How many entries are to leave the spool without being asked about.
        self._purged = 0

    @property
    def aside(self) -> int:
        return 0 if self._queue is None else self._queue.count - (self._front() is not None)

    def append(self, content: Content) -> None:
        if content.spools:
            self.spool()
        if self._rest or self.aside or (self.spools and self.contents):
            self._rest.append(content)
        else:
            self.contents.append(content)

    def first(self) -> Content:
        content = self.contents[0] if self.contents else self.like
        assert content is not None  # noqa: S101 - it has some
        return content

    def spool(self) -> None:
        if not self.spools:
            self.spools, self.most = True, 1

    def in_memory(self) -> Sequence[Content]:
        return (*self.contents, *self._rest)

    def advance(self) -> bool:
        if not self.contents and not self.aside:
            self.contents, self._rest = self._rest, self.contents
        return bool(self.contents)

    def _front(self) -> Content | None:
        contents = self.contents
        return contents[-1] if contents and contents[-1].aside else None

    # --- Into the spool ---------------------------------------------------------------------------

    def settle(self) -> None:
        if not self.spools:
            return
        contents, rest = self.contents, self._rest
        if len(contents) == 1 and not self.aside:
            first = contents[0]
            is_large = _WINDOW_BYTES < len(first.data) <= MAX_BYTES
            if is_large and first.done and not first.aside and first.verdict in {HELD, LATER, ASKED}:
                self._put(first)
                first.aside = True
        while rest:
            content = rest[0]
            if content.verdict != REFUSED:
                if not content.done or content.verdict != LATER or len(content.data) > MAX_BYTES:
                    return
                self._memory.give_back(content.waiting_bytes() - len(content.data))
                self._put(content)
            rest.popleft()

    def _put(self, content: Content) -> None:
        owner, queue = self._owner, self._queue
        if queue is None:
            name = owner.name(content).encoded()
            queue = self._queue = self._spool.queue(name, self._ready, stage=self.stage, lost=self._lost)
            self.like, self.is_refusable = content, content.number > 0
        data, content.data = content.data, b""
        self._memory.give_back(len(data))
        queue.append(
            (data,),
            content.number | (_IS_COPIED if owner.is_copied(content) else 0),
            content.since_ns,
            cost_bytes=min(content.size_bytes, 0xFFFFFFFF),
            expires_ns=_expiry_ns(content, data),
            is_refusable=content.number > 0,
            is_recoverable=not content.number and not self.lane.channel.transacts,
        )

    # --- Out of it --------------------------------------------------------------------------------

    def refill(self, now_ns: int) -> int:
        queue, contents = self._queue, self.contents
        ended: list[Ended] = []
        ended_bytes = 0
        window_bytes = sum(len(content.data) for content in contents)
        while queue is not None and queue.count and self._front() is None and len(ended) < MAX_ENDED:
            waits = bool(contents) and contents[0].verdict != LATER
            is_full = waits or len(contents) >= self.most or window_bytes > _WINDOW_BYTES
            if is_full and not self._purged:
                break
            ending, entry = queue.ending(now_ns), queue.head()
            if entry is None:
                break
            if self._purged or ending == "expired" or (ending is not None and entry.is_refusable):
                if self._purged:
                    self._purged, ending = self._purged - 1, None
                queue.pop(ending)
                ended.append(Ended(entry.handle & ~_IS_COPIED, ending == "expired"))
                ended_bytes += entry.cost_bytes
                continue
            if contents and (entry.content is None or entry.size_bytes > _WINDOW_BYTES):
                break
            if entry.content is None and (entry.handle & _IS_COPIED or ending is not None):
                # Its routing keys are needed, or it is about to be forwarded.
                entry = self._fetch(queue)
                if entry is None:
                    break
            is_large = entry.content is None or entry.size_bytes > _WINDOW_BYTES
            content = self._restore(entry)
            if ending is not None:
                content.verdict = GRANTED
                self.most = min(2 * self.most, MAX_OF_LINE)
                self._owner.passes(content)
            if is_large and ending is None:
                content.aside = True
            else:
                queue.pop(ending)
                content.data = _joined(entry)
                window_bytes += len(content.data)
                self._memory.take(len(content.data))
            self._memory.take(OBJECT_BYTES)
            contents.append(content)
        if ended:
            self._owner.ended(self, ended, ended_bytes)
        return len(ended)

    def _restore(self, entry: Entry) -> Content:
        assert self.like is not None  # noqa: S101 - something was put in
        content = self._owner.restore(self.like, _joined(entry) if entry.handle & _IS_COPIED else None)
        content.left_bytes, content.done = 0, True
        content.verdict, content.fate = LATER, WAITING
        content.size_bytes = entry.cost_bytes
        content.key = self.key
        content.number = entry.handle & ~_IS_COPIED
        content.since_ns, content.expires_ns = entry.entered_ns, entry.expires_ns or _NEVER_NS
        content.spools = True
        return content

    def _fetch(self, queue: Queue) -> Entry | None:
        """Return the first entry if its content is in memory, otherwise have it read."""
        queue.fetch()
        entry = queue.head()
        return None if entry is None or entry.content is None else entry

    def bring(self, content: Content) -> bool:
        if content.aside:
            assert self._queue is not None  # noqa: S101 - it is in there
            entry = self._fetch(self._queue)
            if entry is None:
                return False
            self._queue.pop()
            content.aside, content.data = False, _joined(entry)
            self._memory.take(len(content.data))
        return True

    def asked(self, *, waits: bool) -> None:
        if self.spools:
            self.most = max(1, self.most // 2) if waits else min(2 * self.most, MAX_OF_LINE)

    def has_expired(self, content: Content, now_ns: int) -> bool:
        if not self.spools:
            return False
        if not content.expires_ns:
            content.expires_ns = _expiry_ns(content, content.data) or _NEVER_NS
        return content.expires_ns <= now_ns

    def _ready(self, _: Queue) -> None:
        self._owner.let_ask(self)

    # --- Ends -------------------------------------------------------------------------------------

    def forget(self, content: Content) -> None:
        if content.aside and self._queue is not None:
            content.aside = False
            self._queue.pop()

    def refuse(self) -> int:
        """Let all entries leave with the next calls of ``refill``. Return how many those are.

        0 while earlier ones are leaving, so that a purge ends though the client sends on.
        """
        if self._purged:
            return 0
        self._purged = self.aside
        return self._purged

    def drop(self) -> tuple[int, int]:
        """Drop all entries. Return how many there were, and their bytes."""
        queue, front, count = self._queue, self._front(), self.aside
        if queue is None:
            return 0, 0
        size_bytes = queue.content_bytes
        if front is not None:
            front.aside = False
        self._purged = 0
        queue.purge()
        return count, size_bytes

    def _lost(self, lost: Lost) -> None:
        front, entry = self._front(), lost.queue.head()
        if front is not None:
            there = entry is not None and entry.handle & ~_IS_COPIED == front.number
            if there and entry is not None and entry.entered_ns == front.since_ns:
                front = None
            else:
                front.aside = False
        self._purged = max(0, self._purged - lost.entries)
        self._owner.lost(self, lost, [handle & ~_IS_COPIED for handle in lost.handles], front)

    def close(self) -> None:
        super().close()
        self._rest.clear()
        if self._queue is not None:
            self._queue.close()


def _expiry_ns(content: Content, data: Piece) -> int:
    """Return when a waiting content expires; 0 for never."""
    expiration_ms = wire.read_expiration(data)
    return 0 if expiration_ms is None else max(1, content.since_ns + expiration_ms * _NS_PER_MS)


def _joined(entry: Entry) -> Piece:
    assert entry.content is not None  # noqa: S101 - as the caller knows
    return entry.content[0] if len(entry.content) == 1 else b"".join(entry.content)
