"""The state of one channel, its two lanes, and the lines in which contents wait."""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple, Protocol

from limiter.rules.resource import Resource
from proxy.deciding.batch import Request
from proxy.flow.credit import Stage
from proxy.protocols.amqp.names import Target
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.confirms import Confirms
from proxy.protocols.amqp091.memory import Memory
from proxy.spool.queue import Lost, Queue
from proxy.spool.segments import MAX_BYTES, Entry, Piece
from proxy.spool.spool import QueueName, Spool

# A content's verdict.
GRANTED: Final = 0
HELD: Final = 1
#: Undecided: asked once the contents before it in its line are gone.
LATER: Final = 2
ASKED: Final = 3
REFUSED: Final = 4

# The fate of a content's bytes.
#: Undecided: it began in the current chunk, or its header has not arrived.
NEW: Final = 0
PASSING: Final = 1
#: Copied.
WAITING: Final = 2
DROPPED: Final = 3

# What a method waits for in its lane.
#: Other waiting methods.
BEHIND: Final = 0
BARRIER: Final = 1  # all waiting contents and methods

MAX_UNANSWERED: Final = 1 << 16  # unanswered requests of a client per channel
MAX_CONSUMERS: Final = 10_000  # consumers per channel, including those whose end the broker has not confirmed
MAX_SETTLED: Final = 1 << 14  # runs of settled deliveries that are remembered per channel
GENERATED: Final = b"amq.gen-"  # the prefix of queue names that the broker generates

OBJECT_BYTES: Final = 1024  # memory that a waiting object takes in addition to its bytes

MAX_OF_LINE: Final = 64  # contents of one line that are asked about in one batch
MAX_ENDED: Final = 1024  # contents that leave the spool in one call to be answered
#: How much a line takes out of the spool before it is asked about. Larger contents stay there.
_WINDOW_BYTES: Final = 64 * 1024
#: In the handle of a spool entry, above the client's number: it is charged to more than its target.
_IS_COPIED: Final = 1 << 63
_NEVER_NS: Final = 1 << 63
_NS_PER_MS: Final = 1_000_000


class Tags:
    """The delivery tags that the broker still expects to be settled, of those after ``before``.

    Unknown deliveries count as settled, so that none is acknowledged by mistake.
    """

    __slots__ = ("_firsts", "_known_from", "_lasts", "_upto", "latest")

    def __init__(self, before: int) -> None:
        self.latest = self._upto = before
        self._known_from = before + 1
        #: All deliveries up to ``_upto`` are settled. Beyond it, the runs of settled ones: first and last numbers.
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def settle(self, tag: int, *, multiple: bool = False) -> None:
        firsts, lasts = self._firsts, self._lasts
        if tag <= self._upto:
            return
        if not firsts and (multiple or tag == self._upto + 1):
            self._upto = tag
            return
        at = bisect_right(firsts, tag)
        if multiple:
            self._upto = max(tag, lasts[at - 1]) if at else tag
            del firsts[:at], lasts[:at]
            at = 0
        elif at and tag <= lasts[at - 1] + 1:
            lasts[at - 1] = max(tag, lasts[at - 1])
        else:
            firsts.insert(at, tag)
            lasts.insert(at, tag)
            at += 1
        if 0 < at < len(firsts) and firsts[at] == lasts[at - 1] + 1:
            del firsts[at], lasts[at - 1]
        if firsts and firsts[0] == self._upto + 1:
            self._upto = lasts[0]
            del firsts[0], lasts[0]
        if len(firsts) > MAX_SETTLED:
            self.settle(lasts[MAX_SETTLED // 2], multiple=True)
            self._known_from = self._upto + 1

    def is_open(self, tag: int) -> bool:
        return self._upto < tag <= self.latest and self.last_open(tag) == tag

    def is_known(self, tag: int) -> bool:
        """Say whether ``is_open`` is certain."""
        return not 0 < tag < self._known_from

    def last_open(self, upto: int) -> int:
        at = bisect_right(self._firsts, upto)
        if at and upto <= self._lasts[at - 1]:
            upto = self._firsts[at - 1] - 1
        return upto if upto > self._upto else 0


class Delivery(NamedTuple):
    """A delivered message that waits for its consumers."""

    number: int  # in ``after_consume``
    queue: bytes  # where it was consumed from


@dataclass(eq=False, slots=True)
class Deliveries:
    """Unsettled deliveries of waiting messages in one channel, by delivery tag."""

    by_tag: OrderedDict[int, Delivery] = field(default_factory=OrderedDict)

    def upto(self, tag: int, *, multiple: bool) -> list[int]:
        """Return the tags that one ack or nack settles. With ``multiple``, tag 0 means all."""
        if not multiple:
            return [tag] if tag in self.by_tag else []
        return list(takewhile(lambda each: not tag or each <= tag, self.by_tag))


class Consumer(NamedTuple):
    """A consumer; ``automatic``: it does not acknowledge."""

    queue: bytes
    automatic: bool


@dataclass(eq=False, slots=True)
class Method:
    """The owner of methods that may have to wait; ``waits`` is BEHIND or BARRIER."""

    lane: "Lane"
    waits: int


_NO_TARGET: Final = Target(b"", b"", (), 0)


@dataclass(eq=False, slots=True)
class Content:
    """A method with content: a publish, a delivery or a returned message."""

    lane: "Lane"
    left_bytes: int = -1  # of its body, still to come; -1 until the header has arrived
    done: bool = False  # all of it has arrived
    verdict: int = GRANTED
    fate: int = NEW
    resources: tuple[Resource, ...] = ()  # empty if it is not limited
    size_bytes: int = 0  # with method, header and framing
    key: int | None = None  # contents of one lane with the same key keep their order; one with None overtakes all
    target: Target = _NO_TARGET  # of a publish
    number: int = 0  # the client's sequence number of a publish with confirms; otherwise 0
    again: bool = False  # it was published before
    data: Piece = b""  # its bytes so far, while it waits, is gathered or lacks its header
    request: Request | None = None  # while it is held
    spools: bool = False  # contents behind it are spooled
    aside: bool = False  # its bytes are in the spool, at the head of its line's queue
    gathers: bool = False  # it is collected and forwarded as a whole
    marked: bytes = b""  # forwarded instead of its bytes, unless empty
    since_ns: int = 0  # when it began to wait
    expires_ns: int = 0  # when its TTL ends; 0 until it is known

    def waiting_bytes(self) -> int:
        return len(self.data) + OBJECT_BYTES


class Ended(NamedTuple):
    """An entry that leaves the spool without being forwarded."""

    number: int  # the client's sequence number, or 0
    expired: bool  # its TTL is over; otherwise it is refused or dropped


class Spools(Protocol):
    """The stream of lines that spool."""

    def name(self, content: Content) -> QueueName: ...
    def restore(self, like: Content, copied: Piece | None) -> Content: ...
    def let_ask(self, line: "Line") -> None: ...
    def passes(self, content: Content) -> None: ...
    def ended(self, line: "Line", ended: Sequence[Ended], size_bytes: int) -> None: ...
    def lost(self, line: "Line", lost: Lost, numbers: Sequence[int], front: Content | None) -> None: ...


class Spooler(NamedTuple):
    """What a line spools with."""

    stream: Spools
    spool: Spool
    memory: Memory


class Line:
    """Contents of one lane with the same key, of which the first waits. A line with a ``spooler`` can spool them.

    A line that spools is, from its first content to its last::

        contents   in memory: held, asked about, or to be asked about next
        spool      complete contents, undecided
        rest       in memory: what cannot be spooled yet, for example an incomplete content, and what is behind it

    A large content is asked about while it lies in the spool, perhaps on disk. Then it is the last of ``contents``, and
    the first in the spool: it is ``aside``.
    """

    def __init__(self, lane: "Lane", key: int, stage: Stage, spooler: Spooler | None = None) -> None:
        self.lane = lane
        self.key = key
        self.stage = stage
        # In order. Some may be GRANTED or REFUSED and wait only for those before them.
        self.contents: deque[Content] = deque()
        self.most = MAX_OF_LINE  # how many to ask about at once
        self.spools = False  # what arrives is spooled undecided
        self.is_refusable = False  # the spooled contents can be refused
        self.like: Content | None = None  # one that was spooled, without its bytes
        self._spooler = spooler
        self._queue: Queue | None = None
        self._rest: deque[Content] = deque()
        self._purged = 0  # how many entries are to leave the spool without being asked about

    @property
    def aside(self) -> int:
        """How many are in the spool only."""
        return 0 if self._queue is None else self._queue.count - (self._front() is not None)

    def append(self, content: Content) -> None:
        if content.spools:
            self.spool()
        if self._rest or self.aside or (self.spools and self.contents):
            self._rest.append(content)
        else:
            self.contents.append(content)

    def first(self) -> Content:
        """Return one of its contents, perhaps without its bytes."""
        content = self.contents[0] if self.contents else self.like
        assert content is not None  # noqa: S101 - it has some
        return content

    def spool(self) -> None:
        """Spool what arrives from now on."""
        if self._spooler is not None and not self.spools:
            self.spools, self.most = True, 1

    def in_memory(self) -> Sequence[Content]:
        return (*self.contents, *self._rest)

    def advance(self) -> bool:
        """Move contents to the front if there are any in memory. Say whether there are."""
        if not self.contents and not self.aside:
            self.contents, self._rest = self._rest, self.contents
        return bool(self.contents)

    def _front(self) -> Content | None:
        contents = self.contents
        return contents[-1] if contents and contents[-1].aside else None

    def settle(self) -> None:
        """Move to the spool what can be moved."""
        spooler = self._spooler
        if not self.spools or spooler is None:
            return
        contents, rest = self.contents, self._rest
        if len(contents) == 1 and not self.aside:
            first = contents[0]
            is_large = _WINDOW_BYTES < len(first.data) <= MAX_BYTES
            if is_large and first.done and not first.aside and first.verdict in {HELD, LATER, ASKED}:
                self._put(spooler, first)
                first.aside = True
        while rest:
            content = rest[0]
            if content.verdict != REFUSED:
                if not content.done or content.verdict != LATER or len(content.data) > MAX_BYTES:
                    return
                spooler.memory.give_back(content.waiting_bytes() - len(content.data))
                self._put(spooler, content)
            rest.popleft()

    def _put(self, spooler: Spooler, content: Content) -> None:
        queue, stream = self._queue, spooler.stream
        if queue is None:
            queue = self._queue = spooler.spool.queue(
                stream.name(content).encoded(),
                lambda _: stream.let_ask(self),
                stage=self.stage,
                lost=lambda lost: self._lost(stream, lost),
            )
            self.like, self.is_refusable = content, content.number > 0
        data, content.data = content.data, b""
        spooler.memory.give_back(len(data))
        queue.append(
            (data,),
            content.number | (0 if content.resources is content.target.resources else _IS_COPIED),
            content.since_ns,
            cost_bytes=min(content.size_bytes, 0xFFFFFFFF),
            expires_ns=_expiry_ns(content, data),
            is_refusable=content.number > 0,
            is_recoverable=not content.number and not self.lane.channel.transacts,
        )

    def refill(self, now_ns: int) -> int:
        """Move to ``contents`` what can be asked about next. Return how many left the spool to be answered."""
        queue, contents, spooler = self._queue, self.contents, self._spooler
        if queue is None or spooler is None:
            return 0
        ended: list[Ended] = []
        ended_bytes = 0
        window_bytes = sum(len(content.data) for content in contents)
        while queue.count and self._front() is None and len(ended) < MAX_ENDED:
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
                entry = self._fetch(queue)  # its routing keys are needed, or it is about to be forwarded
                if entry is None:
                    break
            is_large = entry.content is None or entry.size_bytes > _WINDOW_BYTES
            content = self._restore(spooler.stream, entry)
            if ending is not None:
                content.verdict = GRANTED
                self.most = min(2 * self.most, MAX_OF_LINE)
                spooler.stream.passes(content)
            if is_large and ending is None:
                content.aside = True
            else:
                queue.pop(ending)
                content.data = _joined(entry)
                window_bytes += len(content.data)
                spooler.memory.take(len(content.data))
            spooler.memory.take(OBJECT_BYTES)
            contents.append(content)
        if ended:
            spooler.stream.ended(self, ended, ended_bytes)
        return len(ended)

    def _restore(self, stream: Spools, entry: Entry) -> Content:
        assert self.like is not None  # noqa: S101 - something was put in
        content = stream.restore(self.like, _joined(entry) if entry.handle & _IS_COPIED else None)
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
        """Have all of a content in memory; False while it is being read from disk."""
        if content.aside and self._queue is not None and self._spooler is not None:
            entry = self._fetch(self._queue)
            if entry is None:
                return False
            self._queue.pop()
            content.aside, content.data = False, _joined(entry)
            self._spooler.memory.take(len(content.data))
        return True

    def asked(self, *, waits: bool) -> None:
        """Take note of a decision about some contents, and whether one of them waits on."""
        if self.spools:
            self.most = max(1, self.most // 2) if waits else min(2 * self.most, MAX_OF_LINE)

    def has_expired(self, content: Content, now_ns: int) -> bool:
        if not self.spools:
            return False
        if not content.expires_ns:
            content.expires_ns = _expiry_ns(content, content.data) or _NEVER_NS
        return content.expires_ns <= now_ns

    def forget(self, content: Content) -> None:
        """Remove from the spool one of ``contents``."""
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

    def _lost(self, stream: Spools, lost: Lost) -> None:
        front, entry = self._front(), lost.queue.head()
        if front is not None:
            there = entry is not None and entry.handle & ~_IS_COPIED == front.number
            if there and entry is not None and entry.entered_ns == front.since_ns:
                front = None
            else:
                front.aside = False
        self._purged = max(0, self._purged - lost.entries)
        stream.lost(self, lost, [handle & ~_IS_COPIED for handle in lost.handles], front)

    def close(self) -> None:
        self.contents.clear()
        self._rest.clear()
        if self._queue is not None:
            self._queue.close()


class Lane:
    """One channel in one direction."""

    __slots__ = ("after", "barrier", "behind", "channel", "content", "lines", "ready", "shut", "writing")

    def __init__(self, channel: "Channel") -> None:
        self.channel = channel
        self.content: Content | None = None  # the content whose frames are arriving; it may be done
        # The content written last. Until it is done, only the rest of it may be written in this channel.
        self.writing: Content | None = None
        # The channel is not open at the broker yet, or not again: nothing that waits may be forwarded.
        self.shut = False
        self.lines: dict[int, Line] = {}  # waiting contents by key; none is empty
        # Methods that wait for the lines, as their bytes with BEHIND or BARRIER, and what arrived behind them.
        self.after: deque[Content | tuple[bytes, int]] = deque()
        # Copies and frames of Sluice's own, to be written at the next boundary.
        self.ready: deque[Content | bytes] = deque()
        self.behind = Method(self, BEHIND)
        self.barrier = Method(self, BARRIER)

    def line_of(self, content: Content) -> Line | None:
        return None if content.key is None else self.lines.get(content.key)

    def is_within_content(self) -> bool:
        return self.writing is not None and not self.writing.done


@dataclass(eq=False, slots=True)
class Channel:
    """One open channel.

    Deliveries name a consumer, not its queue. The queue is known from the broker's answers, in their order, since the
    client's own methods may run ahead of it. So Sluice has the broker answer every cancel, and every consume whose tag
    the broker generates, and drops the answers that the client did not ask for.
    """

    number: int
    to_broker: Lane = field(init=False)
    to_client: Lane = field(init=False)
    confirms: Confirms | None = None
    dead: bool = False  # one peer has closed it and the other has not agreed yet
    transacts: bool = False
    committing: int = 0  # unanswered commits; RabbitMQ closes the connection for a method that arrives while it commits
    # By tag. A tag that is used again before the broker has confirmed the cancel has several, in order.
    consumers: dict[bytes, list[Consumer]] = field(default_factory=dict)
    # Of each unanswered consume: the queue, whether the client wants the answer, and whether it acknowledges nothing.
    consuming: deque[tuple[bytes, bool, bool]] = field(default_factory=deque)
    cancelling: dict[bytes, int] = field(default_factory=dict)  # how many cancel-ok per tag the client does not want
    # Of each unanswered basic.get: the queue, and whether it is without acks
    getting: deque[tuple[bytes, bool]] = field(default_factory=deque)
    tags: Tags | None = None  # the delivery tags, once they matter
    # Of each unanswered basic.recover whether the client expects the answer.
    recovering: deque[bool] = field(default_factory=deque)
    recovered: int = 0  # the last tag that the broker took back for a recover
    declared: bytes = b""  # the queue that the client declared last; empty if the broker is to name it
    named: bytes = b""  # the last queue name that the broker generated
    latest: bytes = b""  # the queue consumed last
    takes_replies: bool = False  # it has had a consumer of direct replies
    closes: bool = False  # the client has sent channel.close
    doomed: bool = False  # the broker is about to close it, since the client settled an unknown delivery
    left: bool = False  # closed for the client, but open at the broker until what waits has been forwarded
    successor: "Channel | None" = None  # the channel that the client has opened since with the same number
    # Of each unanswered declare: the frame if the queue is exclusive, otherwise empty.
    declaring: deque[bytes] = field(default_factory=deque)
    # Until then publishes are forwarded as they come, since the client does not wait for single confirms.
    runs_ahead_until_ns: int = 0
    # By the client's sequence number, the number of each publish that waits for consumers.
    waiting: dict[int, int] = field(default_factory=dict)
    deliveries: Deliveries = field(default_factory=Deliveries)  # messages that wait for this channel's consumers

    def __post_init__(self) -> None:
        self.to_broker, self.to_client = Lane(self), Lane(self)

    def is_plain(self) -> bool:
        """Say whether publishes, deliveries and acks pass as they are."""
        ends = self.dead or self.closes or self.doomed or self.left or self.successor is not None
        waits = self.waiting or self.deliveries.by_tag or (self.confirms is not None and self.confirms.withholds)
        return not (ends or waits or self.transacts or self.tags is not None or self.recovering)

    def resolve(self, queue: bytes) -> bytes:
        """Return the broker's name of a queue. An empty name is the one that the broker was to generate."""
        return queue or self.named or GENERATED

    def part(self) -> None:
        for lane in (self.to_broker, self.to_client):
            lane.content = lane.writing = None
            del lane.behind, lane.barrier, lane.channel


def _expiry_ns(content: Content, data: Piece) -> int:
    """Return when a waiting content expires; 0 for never."""
    expiration_ms = wire.read_expiration(data)
    return 0 if expiration_ms is None else max(1, content.since_ns + expiration_ms * _NS_PER_MS)


def _joined(entry: Entry) -> Piece:
    assert entry.content is not None  # noqa: S101 - as the caller knows
    return entry.content[0] if len(entry.content) == 1 else b"".join(entry.content)
