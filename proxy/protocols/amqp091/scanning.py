"""The scan of the compiled part, ``sluice_native`` (folder ``native``): all plain publishes of a chunk in one call.

What it takes stays in columns as long as it passes, or is refused and answered. All else becomes the contents that it
would be if it had been read frame by frame: what is held, what has more body to come, whatever somebody looks at.

Where it is not installed, or the options say ``python``, every frame is read one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from limiter.compiled import COMPILED
from limiter.deciding.asking import permits_each
from proxy.deciding import gathered
from proxy.deciding.batch import Group, Request
from proxy.protocols.amqp.names import EXCHANGE, MAX_NAMES, QUEUE, ROUTING_KEY
from proxy.protocols.amqp091.channel import DROPPED, PASSING, REFUSED, Content, Lane
from proxy.protocols.amqp091.confirms import Confirms
from proxy.protocols.amqp091.wire import DEFAULT_FRAME_MAX
from proxy.protocols.base import Buffer

if TYPE_CHECKING:
    from sluice_native import Channels, Publishes, Resources

#: A chunk with publishes of more keys and channels is decided in parts: how long that takes shows only when it is done.
MAX_RUNS: Final = 256
#: Nor is it decided whole with more publishes.
MAX_SCANNED: Final = 16_384


class NativeConfirms(Confirms):
    """As ``Confirms``, where scans number publishes, too.

    Args:
        channels: of the connection.
        channel: its number.
    """

    __slots__ = ("_channel", "_channels")

    def __init__(self, channels: "Channels", channel: int) -> None:
        self._channels = channels
        self._channel = channel
        channels.select(channel)

    def number(self) -> int:
        """Return the client's number of the next publish."""
        return self._channels.publish(self._channel)

    def sent(self, number: int) -> None:
        """Note that the publish with that number of the client's goes to the broker now."""
        self._channels.forward(self._channel, number)

    def outstanding(self) -> int:
        """Return how many have gone to the broker and are not answered."""
        return self._channels.unconfirmed(self._channel)

    def latest(self) -> int:
        """Return the broker's number of the latest that has gone to it."""
        return self._channels.forwarded(self._channel)

    def is_open(self, tag: int) -> bool:
        """Say whether nothing was said yet of the publish with that number of the broker's."""
        return self._channels.is_open(self._channel, tag)

    def withhold(self) -> int:
        """Withhold what the broker says of the latest that has gone to it, as ``Confirms`` does."""
        return self._channels.withhold(self._channel)

    def settle(self, tag: int) -> None:
        """Note that a publish that is withheld is answered."""
        self._channels.settle_withheld(self._channel, tag)

    def release(self, tag: int) -> None:
        """Withhold what the broker says of it no more."""
        self._channels.release(self._channel, tag)

    def answered(self, tag: int, *, multiple: bool, refused: bool = False) -> Sequence[int] | None:
        """Take an ack or a nack of the broker's, as ``Confirms`` does."""
        return self._channels.answered(self._channel, tag, multiple, refused)


class Native:
    """What the compiled part knows of one connection, and which of its channels it reads.

    Args:
        resources: where it finds the limits of what requests are for.

    Attributes:
        channels: once the vhost is known.
        confirms: some channel has asked for confirms.
    """

    def __init__(self, resources: "Resources") -> None:
        self._resources = resources
        self.channels: Channels | None = None
        self.confirms = False
        #: Lanes that it does not read.
        self._left: dict[Lane, None] = {}

    def enter(self, before_names: str) -> None:
        """Begin to read, now that it is known how names begin."""
        assert COMPILED is not None  # noqa: S101 - as who made this knows
        kinds = QUEUE, EXCHANGE, ROUTING_KEY
        self.channels = COMPILED.Channels(self._resources, kinds, before_names, DEFAULT_FRAME_MAX, MAX_NAMES)

    def confirms_of(self, number: int) -> Confirms:
        """Return what counts the publishes of a channel from now on."""
        self.confirms = True
        return Confirms() if self.channels is None else NativeConfirms(self.channels, number)

    def name(self, key: bytes) -> None:
        """Have it take publishes of a key, though some publishes with confirms are not for it."""
        if self.channels is not None:
            self.channels.name(key)

    def take_all(self, number: int, *, on: bool) -> None:
        """Have it take all publishes of a channel, or only those of keys that were named."""
        if self.channels is not None:
            self.channels.take_all(number, on)

    def leave(self, lane: Lane) -> None:
        """Take no publishes of a lane until it is plain again."""
        if self.channels is not None:
            self._left[lane] = None
            self.channels.unmark(lane.channel.number)

    def forget(self, lane: Lane) -> None:
        """Forget a lane whose channel is closed."""
        self._left.pop(lane, None)
        if self.channels is not None:
            self.channels.forget(lane.channel.number)

    def look_again(self, most: int) -> None:
        """Take publishes of those lanes again that are plain, if so many at most are to be looked at."""
        if self.channels is None or len(self._left) > most:
            return
        for lane in [lane for lane in self._left if self._is_plain(lane)]:
            del self._left[lane]
            self.channels.mark(lane.channel.number)

    def _is_plain(self, lane: Lane) -> bool:
        content, channel = lane.content, lane.channel
        return (content is None or content.done) and not channel.dead and not lane.stirs() and not lane.ready


class Scanned(gathered.Scanned["Publishes"]):
    """The publishes that one scan took.

    Args:
        segment: as scanned.
        first: how many requests of the chunk come before it.
        chunk: where they are.
        start: where it begins there.
        lane_of: returns the lane from the client of a channel.
        make_content: makes the content of a publish: its lane, and exchange and routing key as they are on the wire.
        make_request: makes the request of a content.

    Attributes:
        chunk: as given.
        start: as given.
        refused: those that are, if all else passes.
        passed: told once all else has gone on, if somebody wants to hear that.
    """

    __slots__ = (
        "_contents",
        "_goes_on",
        "_lanes",
        "_make_content",
        "_make_request",
        "chunk",
        "passed",
        "refused",
        "start",
    )

    def __init__(  # noqa: PLR0917 - three things that are given together, twice
        self,
        segment: "Publishes",
        first: int,
        chunk: Buffer,
        start: int,
        lane_of: Callable[[int], Lane],
        make_content: Callable[[Lane, bytes], Content],
        make_request: Callable[[Content], Request],
    ) -> None:
        super().__init__(segment, first)
        self.chunk = chunk
        self.start = start
        self.refused: Sequence[int] = ()
        self.passed: Callable[[Scanned], None] | None = None
        self._lanes = [lane_of(segment.channel(run)[0]) for run in range(segment.runs)]
        self._make_content = make_content
        self._make_request = make_request
        self._contents: dict[int, Content] = {}
        #: It was passed on as it is, but for what was refused.
        self._goes_on = False

    def content(self, index: int) -> Content:
        """Return the content of a publish, which is complete unless ``open`` says otherwise."""
        content = self._contents.get(index)
        if content is None:
            run, number, _, size_bytes = self.segment.publish(index)
            content = self._contents[index] = self._make_content(self._lanes[run], self.segment.key(run))
            content.size_bytes = size_bytes
            content.number = number
            content.left_bytes = 0
            content.done = True
        return content

    def open(self) -> list[Content]:
        """Return the contents of which more is to come; that of a frame that ends beyond the chunk is the last."""
        segment, contents = self.segment, []
        cut = segment.cut
        for _, index, rest in segment.open():
            assert index is not None  # noqa: S101 - of earlier ones no scan knows
            content = self.content(index)
            content.left_bytes, content.done = rest, False
            contents.append(content)
        if cut is not None:
            assert cut[1] is not None  # noqa: S101 - likewise
            content = self.content(cut[1])
            content.done = False
            contents = [each for each in contents if each is not content] + [content]
        return contents

    def pass_on(self) -> None:
        """Note that all goes on that is not refused."""
        self.segment.forward(self.refused)
        self._goes_on = True
        if self.passed is not None:
            self.passed(self)
        refused = set(self.refused)
        # More of those that were open may be in the chunk, or come later.
        for index, content in self._contents.items():
            if index not in refused:
                content.fate = PASSING
                if content.lane.content is content:
                    content.lane.writing = content

    def pieces(self) -> list[tuple[Buffer, int, int, Content]]:
        """Return the bytes of all contents in order: where they are, from, to, and whose."""
        every, end = range(len(self.segment)), len(self.chunk)
        pieces = [
            (self.chunk, start, min(stop, end), self.content(index))
            for index, spans in enumerate(self.segment.spans(every))
            for start, stop in spans
        ]
        pieces.sort(key=lambda piece: piece[1])
        return pieces

    def kept(self, stop: int) -> list[tuple[int, int]]:
        """Return what is left up to ``stop`` without those that are refused."""
        return self.segment.kept(self.refused, self.start, stop)

    def refusals(self) -> Iterator[tuple[Lane, bytes, int]]:
        """Return the answers to those that are refused, by lane, and how many there are; all of one go together."""
        refused = set(self.refused)
        for index, content in self._contents.items():
            if index in refused:
                content.verdict, content.fate = REFUSED, DROPPED
        lanes = set(self._lanes)
        if len(lanes) == 1:
            yield lanes.pop(), *self.segment.refuse(self.refused)
            return
        by_lane: dict[Lane, list[int]] = {}
        for index in self.refused:
            by_lane.setdefault(self._lanes[self.segment.publish(index)[0]], []).append(index)
        for lane, indexes in by_lane.items():
            yield lane, *self.segment.refuse(indexes)

    def last(self) -> Content:
        """Return the content of the last."""
        index = len(self.segment) - 1
        content = self.content(index)
        if self._goes_on and index not in self.refused:
            content.fate = PASSING
        return content

    def requests(self) -> Iterator[Request]:
        """Make the requests."""
        return (self._make_request(self.content(index)) for index in range(len(self.segment)))

    def group(self, run: int) -> Group:
        """Return the requests of one run."""
        segment = self.segment
        resources, _ = segment.asker(run)
        at, size_bytes = self.of_run(run)
        indexes, _ = segment.run(run)
        key = self.content(indexes[0]).key
        refusable = segment.channel(run)[1]
        return Group(resources, "", at, permits_each(len(at)), size_bytes, refusable=refusable, order_key=key)

    def answered(self, indexes: Sequence[int]) -> int:
        """Return how many of some publishes are answered."""
        return self.segment.numbered(indexes)

    @property
    def refusable(self) -> bool:
        """Whether all are answered."""
        return all(self.segment.channel(run)[1] for run in range(self.segment.runs))


class Gathered(gathered.Gathered["Publishes"]):
    """The requests of one chunk, and what scans took."""

    __slots__ = ()


def last_handle(requests: Sequence[Request]) -> object:
    """Return the handle of the last of some requests, without making objects of all."""
    if not isinstance(requests, Gathered):
        return requests[-1].handle
    last = requests.parts[-1]
    return last.last() if isinstance(last, Scanned) else last.handle if isinstance(last, Request) else None
