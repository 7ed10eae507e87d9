"""The state of one channel, its two lanes, and the lines in which contents wait."""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple

from limiter.rules.resource import Resource
from proxy.deciding.batch import Request
from proxy.flow.credit import Stage
from proxy.protocols.amqp.names import Target
from proxy.protocols.amqp091.confirms import Confirms
from proxy.spool.queue import Queue
from proxy.spool.segments import Piece

# A content's verdict.
GRANTED: Final = 0
HELD: Final = 1
LATER: Final = 2  # undecided: asked once the contents before it in its line are gone
ASKED: Final = 3
REFUSED: Final = 4

# The fate of a content's bytes.
NEW: Final = 0  # undecided: its frames so far have not been forwarded
PASSING: Final = 1
WAITING: Final = 2  # copied
DROPPED: Final = 3

MAX_UNANSWERED: Final = 1 << 16  # unanswered requests of a client per channel
MAX_CONSUMERS: Final = 10_000  # consumers per channel, including those whose end the broker has not confirmed
MAX_SETTLED: Final = 1 << 14  # runs of settled deliveries that are remembered per channel
GENERATED: Final = b"amq.gen-"  # the prefix of queue names that the broker generates

OBJECT_BYTES: Final = 1024  # memory that a waiting object takes in addition to its bytes
MAX_OF_LINE: Final = 64  # contents of one line that are asked about in one batch


class Tags:
    """The delivery tags that the broker still expects to be settled, of those after ``before``.

    Unknown deliveries count as settled, so that none is acknowledged by mistake.
    """

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


class Method(NamedTuple):
    """A method that must not overtake waiting methods, or, if it is a ``barrier``, waiting contents either."""

    lane: "Lane"
    frame: bytes
    barrier: bool

    def size_bytes(self) -> int:
        return len(self.frame) + OBJECT_BYTES


_NO_TARGET: Final = Target(b"", b"", ())


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
    data: Piece = b""  # its bytes so far, while it waits or is gathered
    request: Request | None = None  # while it is held
    spools: bool = False  # contents behind it are spooled
    aside: bool = False  # its bytes are in the spool, at the head of its line's queue
    gathers: bool = False  # its frames are gathered: until the header has arrived, or until the end if it is ``whole``
    whole: bool = False  # it is forwarded as a whole
    since_ns: int = 0  # when it began to wait
    expires_ns: int = 0  # when its TTL ends; 0 until it is known

    def waiting_bytes(self) -> int:
        return len(self.data) + OBJECT_BYTES


class Line:
    """Contents of one lane with the same key, of which the first waits.

    A line that spools is, from its first content to its last::

        contents   in memory: held, asked about, or to be asked about next
        queue      in the spool: complete contents, undecided
        rest       in memory: what cannot be spooled yet, for example an incomplete content, and what is behind it

    A large content is asked about while it lies in the spool, perhaps on disk. Then it is the last of ``contents``, and
    the first in the spool: it is ``aside``.
    """

    def __init__(self, lane: "Lane", key: int, stage: Stage) -> None:
        self.lane = lane
        self.key = key
        self.stage = stage
        # In order. Some may be GRANTED or REFUSED and wait only for those before them.
        self.contents: deque[Content] = deque()
        self.queue: Queue | None = None
        self.rest: deque[Content] = deque()
        self.most = MAX_OF_LINE  # how many to ask about at once
        self.spools = False  # what arrives is spooled undecided
        self.is_refusable = False  # the spooled contents can be refused
        self.like: Content | None = None  # one that was spooled, without its bytes
        self.purged = 0  # how many entries are to leave the spool without being asked about

    @property
    def aside(self) -> int:
        """How many are in the spool only."""
        return 0 if self.queue is None else self.queue.count - (self.front() is not None)

    def front(self) -> Content | None:
        """Return the content that is aside."""
        contents = self.contents
        return contents[-1] if contents and contents[-1].aside else None

    def append(self, content: Content) -> None:
        if self.rest or self.aside or (self.spools and self.contents):
            self.rest.append(content)
        else:
            self.contents.append(content)

    def first(self) -> Content:
        """Return one of its contents, perhaps without its bytes."""
        content = self.contents[0] if self.contents else self.like
        assert content is not None  # noqa: S101 - it has some
        return content

    def in_memory(self) -> Sequence[Content]:
        return (*self.contents, *self.rest)

    def advance(self) -> bool:
        """Move contents to the front if there are any in memory. Say whether there are."""
        if not self.contents and not self.aside:
            self.contents, self.rest = self.rest, self.contents
        return bool(self.contents)

    def forget(self, content: Content) -> None:
        """Remove one of ``contents`` from the spool."""
        if content.aside and self.queue is not None:
            content.aside = False
            self.queue.pop()

    def close(self) -> None:
        self.contents.clear()
        self.rest.clear()
        if self.queue is not None:
            self.queue.close()


class Lane:
    """One channel in one direction."""

    __slots__ = ("after", "channel", "content", "lines", "ready", "shut", "writing")

    def __init__(self, channel: "Channel") -> None:
        self.channel = channel
        self.content: Content | None = None  # the content whose frames are arriving; it may be done
        # The content written last. Until it is done, only the rest of it may be written in this channel.
        self.writing: Content | None = None
        # The channel is not open at the broker yet, or not again: nothing that waits may be forwarded.
        self.shut = False
        self.lines: dict[int, Line] = {}  # waiting contents by key; none is empty
        self.after: deque[Content | Method] = deque()  # methods that wait, and what arrived behind them
        # Copies and frames of Sluice's own, to be written at the next boundary.
        self.ready: deque[Content | bytes] = deque()

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
            del lane.channel
