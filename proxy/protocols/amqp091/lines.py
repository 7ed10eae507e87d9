"""What of one lane waits in order: in front in memory, and behind that in the spool, if it is put aside.

A line is, from its first content to its last::

    contents   in memory: those that are held, or asked about, or are to be asked about next
    spool      whole contents that nobody has asked about
    rest       in memory: what cannot be put into the spool yet, as more of it is to come, say, and what is behind that

Without a spool, or where nothing is to be put aside, there are contents only.

A large content is asked about while it lies in the spool, perhaps on disk. Then it is the last of ``contents``, and
the first in the spool: it is ``aside``.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from proxy.flow.credit import Stage
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.channel import ASKED, GRANTED, HELD, LATER, OBJECT_BYTES, REFUSED, WAITING, Content, Lane
from proxy.protocols.amqp091.memory import Memory
from proxy.spool.queue import Lost, Queue
from proxy.spool.segments import MAX_BYTES, Entry, Piece
from proxy.spool.spool import QueueName, Spool

#: What is asked of one line at once.
MAX_OF_LINE: Final = 64
#: What a line takes out of the spool before it is asked about; larger contents stay there.
_WINDOW_BYTES: Final = 64 * 1024
#: How many that have ended leave the spool in one go: each is answered.
MAX_ENDED: Final = 1024
#: In the handle of an entry, above the client's number: it is charged to more than where it goes.
_IS_COPIED: Final = 1 << 63
_NS_PER_MS: Final = 1_000_000
#: What never expires.
_NEVER_NS: Final = 1 << 63


class Line:
    """Contents of one lane that must not overtake each other, of which the first waits.

    Attributes:
        lane: where it belongs.
        key: theirs.
        stage: of what they are for.
        contents: in front, in order. Some may be GRANTED or REFUSED and wait for those before them only.
        most: how many to ask about at once.
        is_refusable: what is put aside can be refused.
        spools: what comes is put aside undecided.
    """

    __slots__ = ("contents", "is_refusable", "key", "lane", "most", "spools", "stage")

    def __init__(self, lane: Lane, key: int, stage: Stage) -> None:
        self.lane = lane
        self.key = key
        self.stage = stage
        self.contents: deque[Content] = deque()
        self.most = MAX_OF_LINE
        self.spools = self.is_refusable = False

    @property
    def aside(self) -> int:
        """How many contents are in the spool, without those that are in ``contents``, too."""
        return 0

    def append(self, content: Content) -> None:
        """Put a content at the end."""
        self.contents.append(content)

    def first(self) -> Content:
        """Return one of its contents, perhaps without its bytes."""
        return self.contents[0]

    def in_memory(self) -> Sequence[Content]:
        """Return all contents in memory, in order."""
        return tuple(self.contents)

    def spool(self) -> None:
        """Put aside what comes from now on."""

    def advance(self) -> bool:
        """Have something in front again, if there is something in memory; say whether there is."""
        return bool(self.contents)

    def settle(self) -> None:
        """Put aside what can be: all of what has come is there."""

    def refill(self, now_ns: int) -> int:
        """Have in front what can be asked about next; with ``GRANTED``, what goes on without.

        Returns:
            How many have left the spool to be answered; with MAX_ENDED of them there may be more.
        """
        del now_ns
        return 0

    def asked(self, *, waits: bool) -> None:
        """Note that some were asked about, and whether one of them waits on."""

    def bring(self, content: Content) -> bool:
        """Have all of a content in memory; say whether it is, or is still being read."""
        del content
        return True

    def has_expired(self, content: Content, now_ns: int) -> bool:
        """Say whether one that was to wait has done so for longer than it is worth anything."""
        del content, now_ns
        return False

    def forget(self, content: Content) -> None:
        """Forget what lies in the spool of one of ``contents``."""

    def close(self) -> None:
        """Forget everything; what was in memory has been taken care of."""
        self.contents.clear()


class Ended(NamedTuple):
    """One that leaves the spool and does not go on.

    Attributes:
        number: the client's, or 0.
        expired: its own time to live is over; otherwise it is refused, or dropped.
    """

    number: int
    expired: bool


class Owner(Protocol):
    """The client's stream, as its lines see it."""

    def name(self, content: Content) -> QueueName:
        """Return what is written beside a content and those like it."""

    def is_copied(self, content: Content) -> bool:
        """Say whether its resources are not only those of where it goes."""

    def restore(self, like: Content, copied: Piece | None) -> Content:
        """Make a content that goes where another one does.

        Args:
            like: the other one.
            copied: all of it, if its resources are in it.
        """

    def passes(self, content: Content) -> None:
        """Note that a content is too old to be asked about: it goes on."""

    def ended(self, line: "SpoolLine", ended: Sequence[Ended], size_bytes: int) -> None:
        """Answer those that have left the spool and do not go on, which are so many bytes together."""

    def lost(self, line: "SpoolLine", lost: Lost, numbers: Sequence[int], front: Content | None) -> None:
        """Take care of what was damaged on disk.

        Args:
            line: whose it is.
            lost: how many, and why.
            numbers: of those of which they are known.
            front: one of ``contents`` is among them.
        """

    def let_ask(self, line: Line) -> None:
        """Have ``refill`` called soon."""


class SpoolLine(Line):
    """A line that can put aside what comes.

    Args:
        owner: its stream.
        spool: where.
        memory: what copies take.

    Attributes:
        like: one that was put aside, without its bytes; None until something is.
    """

    __slots__ = ("_memory", "_owner", "_purged", "_queue", "_rest", "_spool", "like")

    def __init__(self, lane: Lane, key: int, stage: Stage, *, owner: Owner, spool: Spool, memory: Memory) -> None:
        super().__init__(lane, key, stage)
        self._owner = owner
        self._spool = spool
        self._memory = memory
        self._queue: Queue | None = None
        self._rest: deque[Content] = deque()
        self.like: Content | None = None
        #: How many of the first in the spool are to leave it without being asked about.
        self._purged = 0

    @property
    def aside(self) -> int:
        """How many contents are in the spool, without those that are in ``contents``, too."""
        return 0 if self._queue is None else self._queue.count - (self._front() is not None)

    def append(self, content: Content) -> None:
        """Put a content at the end: to be put aside, if what waits is."""
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
        """Put aside what comes from now on."""
        if not self.spools:
            self.spools, self.most = True, 1

    def in_memory(self) -> Sequence[Content]:
        """Return all contents in memory, in order."""
        return (*self.contents, *self._rest)

    def advance(self) -> bool:
        """Have something in front again, as the base class says."""
        if not self.contents and not self.aside:
            self.contents, self._rest = self._rest, self.contents
        return bool(self.contents)

    def _front(self) -> Content | None:
        """Return the one of ``contents`` that lies in the spool."""
        contents = self.contents
        return contents[-1] if contents and contents[-1].aside else None

    # --- Into the spool ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Put aside what can be: all of what has come is there."""
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
        """Have in front what can be asked about next, as the base class says."""
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
                # What it is charged to is in there; or it is about to go.
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
        """Make a content of an entry, but for its bytes."""
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
        """Return the first in the spool with its content, or have that read."""
        queue.fetch()
        entry = queue.head()
        return None if entry is None or entry.content is None else entry

    def bring(self, content: Content) -> bool:
        """Have all of a content in memory; say whether it is, or is still being read."""
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
        """Ask about more at once the next time if all goes on, and about less if one waits on."""
        if self.spools:
            self.most = max(1, self.most // 2) if waits else min(2 * self.most, MAX_OF_LINE)

    def has_expired(self, content: Content, now_ns: int) -> bool:
        """Say whether one that was to wait has done so for longer than it is worth anything."""
        if not self.spools:
            return False
        if not content.expires_ns:
            content.expires_ns = _expiry_ns(content, content.data) or _NEVER_NS
        return content.expires_ns <= now_ns

    def _ready(self, _: Queue) -> None:
        self._owner.let_ask(self)

    # --- Ends -------------------------------------------------------------------------------------

    def forget(self, content: Content) -> None:
        """Forget what lies in the spool of one of ``contents``."""
        if content.aside and self._queue is not None:
            content.aside = False
            self._queue.pop()

    def refuse(self) -> int:
        """Have all that is put aside leave with the next calls of ``refill``.

        Returns:
            How many that are; 0 while those of the last time are not gone, or whoever sends on would never have done.
        """
        if self._purged:
            return 0
        self._purged = self.aside
        return self._purged

    def drop(self) -> tuple[int, int]:
        """Drop what is put aside; return how many that were, and how many bytes. ``contents`` is not needed more."""
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
        """Forget everything, as the base class says."""
        super().close()
        self._rest.clear()
        if self._queue is not None:
            self._queue.close()


def _expiry_ns(content: Content, data: Piece) -> int:
    """Return when a content expires that waits; 0 if it never does."""
    expiration_ms = wire.read_expiration(data)
    return 0 if expiration_ms is None else max(1, content.since_ns + expiration_ms * _NS_PER_MS)


def _joined(entry: Entry) -> Piece:
    """Return the content of an entry that has one."""
    assert entry.content is not None  # noqa: S101 - as the caller knows
    return entry.content[0] if len(entry.content) == 1 else b"".join(entry.content)
