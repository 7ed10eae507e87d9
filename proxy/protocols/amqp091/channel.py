"""The state of a channel: a lane for each direction, and the lines in which messages wait."""

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

GRANTED: Final = 0
HELD: Final = 1
LATER: Final = 2  # to be decided when it is first in its line
ASKED: Final = 3
REFUSED: Final = 4

NEW: Final = 0
PASSING: Final = 1
WAITING: Final = 2
DROPPED: Final = 3

MAX_UNANSWERED: Final = 1 << 16
MAX_CONSUMERS: Final = 10_000
MAX_SETTLED: Final = 1 << 14
GENERATED: Final = b"amq.gen-"

OBJECT_BYTES: Final = 1024
MAX_OF_LINE: Final = 64


class Tags:
    """Tracks which delivery tags above ``before`` are unsettled.

    Tags that are no longer tracked count as settled, so that they are never acked by mistake.
    """

    def __init__(self, before: int) -> None:
        self.latest = self._upto = before
        self._known_from = before + 1
        #: The first and the last tag of each run of settled tags above ``_upto``.
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
        return not 0 < tag < self._known_from

    def last_open(self, up_to: int) -> int:
        at = bisect_right(self._firsts, up_to)
        if at and up_to <= self._lasts[at - 1]:
            up_to = self._firsts[at - 1] - 1
        return up_to if up_to > self._upto else 0


class Delivery(NamedTuple):
    number: int
    queue: bytes


@dataclass(eq=False, slots=True)
class Deliveries:
    by_tag: OrderedDict[int, Delivery] = field(default_factory=OrderedDict)

    def up_to(self, tag: int, *, multiple: bool) -> list[int]:
        """Return the known tags that an ack covers. If ``multiple`` is set, tag 0 covers all of them."""
        if not multiple:
            return [tag] if tag in self.by_tag else []
        return list(takewhile(lambda each: not tag or each <= tag, self.by_tag))


class Consumer(NamedTuple):
    queue: bytes
    automatic: bool


class Method(NamedTuple):
    """A method that waits for earlier methods, and if ``barrier`` is set, also for earlier contents."""

    lane: "Lane"
    frame: bytes
    barrier: bool

    def size_bytes(self) -> int:
        return len(self.frame) + OBJECT_BYTES


_NO_TARGET: Final = Target(b"", b"", ())


@dataclass(eq=False, slots=True)
class Content:
    lane: "Lane"
    left_bytes: int = -1  # number of missing body bytes, or -1 until the header arrives
    done: bool = False
    verdict: int = GRANTED
    fate: int = NEW
    resources: tuple[Resource, ...] = ()
    size_bytes: int = 0
    key: int | None = None  # contents with the same key keep their order. A content without a key never waits
    target: Target = _NO_TARGET
    number: int = 0  # the client's publish sequence number, or 0 without confirms
    again: bool = False
    data: Piece = b""
    request: Request | None = None
    spools: bool = False  # whether contents behind it are spooled
    spooled: bool = False  # whether its bytes are at the head of the spool queue
    gathers: bool = False  # whether it collects frames: all of them if ``whole``, otherwise up to the header
    whole: bool = False
    since_ns: int = 0
    expires_ns: int = 0

    def waiting_bytes(self) -> int:
        return len(self.data) + OBJECT_BYTES


class Line:
    """A queue of waiting contents that share a lane and a key.

    They are stored in three places, oldest first::

        contents   in memory: contents that are held, being decided, or next
        queue      in the spool: complete, undecided contents
        rest       in memory: an incomplete content and everything behind it

    A large content stays in the spool while it is decided. It is then last in ``contents`` and first in ``queue``.
    """

    def __init__(self, lane: "Lane", key: int, stage: Stage) -> None:
        self.lane = lane
        self.key = key
        self.stage = stage
        self.contents: deque[Content] = deque()
        self.queue: Queue | None = None
        self.rest: deque[Content] = deque()
        self.most = MAX_OF_LINE
        self.spools = False
        self.is_refusable = False
        self.like: Content | None = None
        self.purged = 0

    @property
    def spooled(self) -> int:
        return 0 if self.queue is None else self.queue.count - (self.front() is not None)

    def front(self) -> Content | None:
        contents = self.contents
        return contents[-1] if contents and contents[-1].spooled else None

    def append(self, content: Content) -> None:
        if self.rest or self.spooled or (self.spools and self.contents):
            self.rest.append(content)
        else:
            self.contents.append(content)

    def first(self) -> Content:
        content = self.contents[0] if self.contents else self.like
        assert content is not None  # noqa: S101 - lines are never empty
        return content

    def in_memory(self) -> Sequence[Content]:
        return (*self.contents, *self.rest)

    def advance(self) -> bool:
        if not self.contents and not self.spooled:
            self.contents, self.rest = self.rest, self.contents
        return bool(self.contents)

    def forget(self, content: Content) -> None:
        if content.spooled and self.queue is not None:
            content.spooled = False
            self.queue.pop()

    def close(self) -> None:
        self.contents.clear()
        self.rest.clear()
        if self.queue is not None:
            self.queue.close()


class Lane:
    __slots__ = ("after", "channel", "content", "lines", "ready", "shut", "writing")

    def __init__(self, channel: "Channel") -> None:
        self.channel = channel
        self.content: Content | None = None
        # Until this content is complete, no other frames may be written on its channel.
        self.writing: Content | None = None
        # Whether the channel is not open on the broker.
        self.shut = False
        self.lines: dict[int, Line] = {}
        self.after: deque[Content | Method] = deque()
        self.ready: deque[Content | bytes] = deque()

    def line_of(self, content: Content) -> Line | None:
        return None if content.key is None else self.lines.get(content.key)

    def is_within_content(self) -> bool:
        return self.writing is not None and not self.writing.done


@dataclass(eq=False, slots=True)
class Channel:
    """An open channel.

    A delivery names its consumer but not its queue. Sluice learns each consumer's queue from the order of the broker's
    answers. It therefore makes the broker answer every cancel, and every consume for which the broker generates the
    tag, and drops the answers that the client did not ask for.
    """

    number: int
    to_broker: Lane = field(init=False)
    to_client: Lane = field(init=False)
    confirms: Confirms | None = None
    dead: bool = False
    transacts: bool = False
    committing: int = 0  # number of unanswered commits. RabbitMQ accepts no methods before the answer
    # By tag. A tag that is reused before its cancel is confirmed has more than one consumer.
    consumers: dict[bytes, list[Consumer]] = field(default_factory=dict)
    # For each unanswered consume: the queue, whether the client wants the answer, and whether it uses auto-ack.
    consuming: deque[tuple[bytes, bool, bool]] = field(default_factory=deque)
    cancelling: dict[bytes, int] = field(default_factory=dict)
    # For each unanswered basic.get: the queue, and whether it uses auto-ack.
    getting: deque[tuple[bytes, bool]] = field(default_factory=deque)
    tags: Tags | None = None
    # For each unanswered basic.recover: whether the client wants the answer.
    recovering: deque[bool] = field(default_factory=deque)
    recovered: int = 0
    declared: bytes = b""  # the queue that was declared last, or empty if the broker generated its name
    named: bytes = b""
    latest: bytes = b""
    takes_replies: bool = False
    closes: bool = False
    doomed: bool = False  # whether the broker is about to close it
    left: bool = False  # whether it is closed for the client, but still open on the broker
    successor: "Channel | None" = None
    # For each unanswered declare: its frame if the queue is exclusive, otherwise empty bytes.
    declaring: deque[bytes] = field(default_factory=deque)
    # Before this time, publishes do not wait for consumers.
    runs_ahead_until_ns: int = 0
    # The ``Waiting.number`` of each publish that waits for consumers, by sequence number.
    waiting: dict[int, int] = field(default_factory=dict)
    deliveries: Deliveries = field(default_factory=Deliveries)

    def __post_init__(self) -> None:
        self.to_broker, self.to_client = Lane(self), Lane(self)

    def is_plain(self) -> bool:
        ends = self.dead or self.closes or self.doomed or self.left or self.successor is not None
        waits = self.waiting or self.deliveries.by_tag or (self.confirms is not None and self.confirms.withholds)
        return not (ends or waits or self.transacts or self.tags is not None or self.recovering)

    def resolve(self, queue: bytes) -> bytes:
        """Return ``queue``, or if it is empty, the queue whose name the broker generated last."""
        return queue or self.named or GENERATED

    def part(self) -> None:
        for lane in (self.to_broker, self.to_client):
            lane.content = lane.writing = None
            del lane.channel
