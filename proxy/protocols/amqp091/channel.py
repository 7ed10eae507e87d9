"""One channel: what both of its streams know, and of each stream what is in hand, what waits and what may go on.

This is state and how long things are; what happens to it is in ``stream``.
"""

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from limiter.rules.resource import Resource
from proxy.deciding.batch import Request
from proxy.protocols.amqp091.after_consume import Deliveries, Waiting
from proxy.protocols.amqp091.confirms import Confirms
from proxy.spool.segments import Piece

if TYPE_CHECKING:
    from proxy.protocols.amqp091.lines import Line

# What was decided of a content.
GRANTED: Final = 0
HELD: Final = 1
#: Not decided: it is asked when those of its line that are before it have gone.
LATER: Final = 2
ASKED: Final = 3
REFUSED: Final = 4

# What becomes of a content's bytes.
#: Not known: its beginning is in the chunk in hand, or its header is still to come.
NEW: Final = 0
PASSING: Final = 1
#: They are copied.
WAITING: Final = 2
DROPPED: Final = 3

# Which methods wait in their lane.
#: For other methods that wait.
BEHIND: Final = 0
#: And for all contents that wait.
BARRIER: Final = 1

#: How many requests of a client on one channel the broker may still have to answer that are remembered.
MAX_UNANSWERED: Final = 1 << 16
#: How many consumers of one channel are told apart, those included of whose end the broker says nothing.
MAX_CONSUMERS: Final = 10_000
#: How many runs of settled deliveries of one channel are remembered: more than it has deliveries that are not settled.
MAX_SETTLED: Final = 1 << 14
#: How the names of queues begin that a broker makes: the name of one that nobody was told.
UNTOLD: Final = b"amq.gen-"

#: What an object that waits takes in memory, besides its bytes.
OBJECT_BYTES: Final = 1024


class Tags:
    """The numbers of a channel's deliveries: which of them the broker still expects to be settled.

    A delivery that nothing is known of counts as settled, so that it is never acknowledged by mistake.

    Args:
        before: the number of the last delivery that nothing is known of.

    Attributes:
        latest: the number of the last delivery that was read.
    """

    __slots__ = ("_firsts", "_known_from", "_lasts", "_upto", "latest")

    def __init__(self, before: int) -> None:
        self.latest = self._upto = before
        self._known_from = before + 1
        #: Beyond ``_upto``, up to which all are settled: where runs of settled ones begin and end, in order.
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def settle(self, tag: int, *, multiple: bool = False) -> None:
        """Note that a delivery is settled, or with ``multiple`` all up to it."""
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
        """Say whether a delivery that was read is not settled."""
        return self._upto < tag <= self.latest and self.last_open(tag) == tag

    def is_known(self, tag: int) -> bool:
        """Say whether it is certain what ``is_open`` says."""
        return not 0 < tag < self._known_from

    def last_open(self, upto: int) -> int:
        """Return the last delivery up to one that is not settled, or 0."""
        at = bisect_right(self._firsts, upto)
        if at and upto <= self._lasts[at - 1]:
            upto = self._firsts[at - 1] - 1
        return upto if upto > self._upto else 0


class Method:
    """The owner of methods that may have to wait.

    Attributes:
        lane: where they belong.
        waits: BEHIND or BARRIER.
    """

    __slots__ = ("lane", "waits")

    def __init__(self, lane: "Lane", waits: int) -> None:
        self.lane = lane
        self.waits = waits


class Content:
    """A method with content: what is published, delivered or returned.

    Attributes:
        lane: where it belongs.
        left_bytes: of its body that are still to come; -1 until its header has come.
        done: all of it has come.
        verdict: what was decided of it.
        fate: what becomes of its bytes.
        resources: what it is charged to; empty if it is not limited.
        size_bytes: with method, header and the framing of all.
        key: those of one lane with the same one never overtake each other; None overtakes all.
        number: of a publish with confirms, as the client counts; otherwise 0.
        data: what has come of it so far, if it waits or its header is still to come.
        request: while it is held.
        spools: what comes behind it is to be put aside.
        since_ns: when it began to wait; 0 if it does not.
        expires_ns: when it is of no use any more, once that is known; 0 before.
        aside: its bytes are in the spool, at the head of its line's queue.
        gathers: it goes on as a whole, and is asked about when all of it has come; until then that is its ``data``.
        marked: what goes instead of its bytes; empty if they do.
    """

    __slots__ = (
        "aside",
        "data",
        "done",
        "expires_ns",
        "fate",
        "gathers",
        "key",
        "lane",
        "left_bytes",
        "marked",
        "number",
        "request",
        "resources",
        "since_ns",
        "size_bytes",
        "spools",
        "verdict",
    )

    def __init__(self, lane: "Lane") -> None:
        self.lane = lane
        self.left_bytes = -1
        self.done = False
        self.verdict = GRANTED
        self.fate = NEW
        self.resources: tuple[Resource, ...] = ()
        self.size_bytes = 0
        self.key: int | None = None
        self.number = 0
        self.data: Piece = b""
        self.request: Request | None = None
        self.spools = self.aside = self.gathers = False
        self.marked = b""
        self.since_ns = self.expires_ns = 0

    def waiting_bytes(self) -> int:
        """Return what it takes while it waits."""
        return len(self.data) + OBJECT_BYTES


class Lane:
    """One channel in one direction.

    Attributes:
        channel: whose it is.
        content: whose frames are coming; it may be done.
        writing: what was written last; if it is not done, nothing of this channel may be written but the rest of it.
        lines: of contents that wait, by their keys; none is empty.
        after: methods that wait until all lines are empty, as their bytes and BEHIND or BARRIER, and what came after.
        ready: what may be written as soon as the stream stands where it can be: copies, and frames of our own.
        shut: its channel is not open at the broker yet, or not again: nothing that waits may go on.
        behind: the owner of methods that wait for others only.
        barrier: the owner of methods that wait for all that waits.
    """

    __slots__ = ("after", "barrier", "behind", "channel", "content", "lines", "ready", "shut", "writing")

    def __init__(self, channel: "Channel") -> None:
        self.channel = channel
        self.content: Content | None = None
        self.writing: Content | None = None
        self.shut = False
        self.lines: dict[int, Line] = {}
        self.after: deque[Content | tuple[bytes, int]] = deque()
        self.ready: deque[Content | bytes] = deque()
        self.behind = Method(self, BEHIND)
        self.barrier = Method(self, BARRIER)

    def stirs(self) -> bool:
        """Say whether something waits that what comes may have to wait for."""
        return bool(self.lines) or bool(self.after)


class Channel:
    """One open channel.

    Deliveries name a consumer and not its queue, which is found by what the broker answers, in its order: the client's
    own methods may run ahead of it. So the end of a consumer is always answered, and its begin if the broker makes the
    tag; what the client did not want to hear it does not hear.

    A delivery of an unknown consumer, which no broker should send, is charged to the queue that was consumed last; what
    comes from a queue that the broker has named without telling to ``amq.gen-``, as its name would begin.

    Attributes:
        number: its number.
        to_broker: its lane from the client.
        to_client: its lane from the broker.
        confirms: once the client has asked for them.
        dead: one side has closed it and the other not agreed yet.
        transacts: what is published goes on only once it is committed.
        committing: how many commits of the client's are not answered. RabbitMQ closes the connection for any method
            that comes while it commits.
        consumed: the queues of its consumers, by their tags.
        following: the queues of those to come with a tag of ``consumed`` whose consumer has not ended yet, as
            far as the broker has said; until then what comes is charged to both.
        consuming: the queues of its consumers that the broker has not agreed to yet, in order, whether the client
            wants to hear of it, and whether they acknowledge nothing; at most MAX_UNANSWERED, as of the next two.
        cancelling: how many ends of a consumer, by its tag, the client does not want to hear of.
        getting: the queues it has asked for a message, in order, and whether without having to acknowledge it.
        tags: the numbers of its deliveries, once they may matter.
        recovering: the client's requests to give all deliveries back that the broker has not answered, and whether the
            client expects the answer.
        recovered: the number of the last delivery that was given back so.
        declared: the queue that the client has declared last; empty if the broker is to name it.
        named: the last name that a broker has made.
        latest: the queue that was consumed last.
        closes: the client wants it closed.
        doomed: the broker is about to close it, as the client has settled a delivery that it may not.
        left: the client takes it for closed. At the broker it is open until all has gone on that is held of it, and the
            client hears nothing of that.
        successor: the channel of this number that the client has opened since then.
        declaring: of each declaration that the broker is to answer, in order, its frame if the queue is exclusive.
        runs_ahead_until_ns: until then its publishes go on as they come, as the client waits for no single confirm.
        waiting: publishes that wait for consumers, by the client's numbers.
        deliveries: what its consumers were given of such publishes.
        takers: its consumers by their tags, those with one tag in order: their queue's name, and whether they
            acknowledge nothing.
    """

    __slots__ = (
        "cancelling",
        "closes",
        "committing",
        "confirms",
        "consumed",
        "consuming",
        "dead",
        "declared",
        "declaring",
        "deliveries",
        "doomed",
        "following",
        "getting",
        "latest",
        "left",
        "named",
        "number",
        "recovered",
        "recovering",
        "runs_ahead_until_ns",
        "successor",
        "tags",
        "takers",
        "to_broker",
        "to_client",
        "transacts",
        "waiting",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.to_broker = Lane(self)
        self.to_client = Lane(self)
        self.confirms: Confirms | None = None
        self.dead = self.transacts = self.closes = self.doomed = self.left = False
        self.successor: Channel | None = None
        self.consumed: dict[bytes, bytes] = {}
        self.following: dict[bytes, bytes] = {}
        self.consuming: deque[tuple[bytes, bool, bool]] = deque()
        self.cancelling: dict[bytes, int] = {}
        self.getting: deque[tuple[bytes, bool]] = deque()
        self.tags: Tags | None = None
        self.recovering: deque[bool] = deque()
        self.recovered = 0
        self.declaring: deque[bytes] = deque()
        self.declared = self.named = self.latest = b""
        self.runs_ahead_until_ns = self.committing = 0
        self.waiting: dict[int, Waiting] = {}
        self.deliveries = Deliveries()
        self.takers: dict[bytes, list[tuple[str, bool]]] = {}

    def resolve(self, queue: bytes) -> bytes:
        """Return the queue that the broker takes for a name, which is empty if it was to make one."""
        return queue or self.named or UNTOLD

    def part(self) -> None:
        """Forget what knows this channel; nothing of it is used any more."""
        for lane in (self.to_broker, self.to_client):
            lane.content = lane.writing = None
            del lane.behind, lane.barrier, lane.channel
