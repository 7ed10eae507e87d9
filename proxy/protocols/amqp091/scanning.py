"""The scan of the compiled part ``sluice_native``: all plain publishes of a chunk in one call.

They stay in columns while they pass or are refused and answered. All others, such as held ones and those with more body
to come, become the contents that they would be if they were read frame by frame.
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

#: A chunk with more runs of the same key and channel, or with more publishes, is decided in parts to bound the
# latency.
MAX_RUNS: Final = 256
MAX_SCANNED: Final = 16_384


class NativeConfirms(Confirms):
    """``Confirms`` for a channel that scans number, too."""

    __slots__ = ("_channel", "_channels")

    def __init__(self, channels: "Channels", channel: int) -> None:
        self._channels = channels
        self._channel = channel
        channels.select(channel)

    def number(self) -> int:
        return self._channels.publish(self._channel)

    def sent(self, number: int) -> None:
        self._channels.forward(self._channel, number)

    def outstanding(self) -> int:
        return self._channels.unconfirmed(self._channel)

    def latest(self) -> int:
        return self._channels.forwarded(self._channel)

    def is_open(self, tag: int) -> bool:
        return self._channels.is_open(self._channel, tag)

    def withhold(self) -> int:
        return self._channels.withhold(self._channel)

    def settle(self, tag: int) -> None:
        self._channels.settle_withheld(self._channel, tag)

    def release(self, tag: int) -> None:
        self._channels.release(self._channel, tag)

    def answered(self, tag: int, *, multiple: bool, refused: bool = False) -> Sequence[int] | None:
        return self._channels.answered(self._channel, tag, multiple, refused)


class Native:
    """The compiled part's view of one connection, from when its vhost is known."""

    def __init__(self, resources: "Resources", before_names: str) -> None:
        assert COMPILED is not None  # noqa: S101 - as who made this knows
        kinds = QUEUE, EXCHANGE, ROUTING_KEY
        self.channels: Channels = COMPILED.Channels(resources, kinds, before_names, DEFAULT_FRAME_MAX, MAX_NAMES)
        self.confirms = False  # some channel has asked for confirms
        self._left: dict[Lane, None] = {}  # lanes that it does not read

    def confirms_of(self, number: int) -> Confirms:
        self.confirms = True
        return NativeConfirms(self.channels, number)

    def name(self, key: bytes) -> None:
        """Let it read publishes of a key that does not wait for consumers."""
        self.channels.name(key)

    def take_all(self, number: int, *, on: bool) -> None:
        """Let it read all publishes of a channel, or only those of named keys."""
        self.channels.take_all(number, on)

    def leave(self, lane: Lane) -> None:
        """Read no publishes of a lane until it is plain again."""
        self._left[lane] = None
        self.channels.unmark(lane.channel.number)

    def forget(self, lane: Lane) -> None:
        self._left.pop(lane, None)
        self.channels.forget(lane.channel.number)

    def look_again(self, most: int) -> None:
        """Read lanes again that have become plain, unless more than ``most`` are to be checked."""
        if len(self._left) > most:
            return
        for lane in [lane for lane in self._left if self._is_plain(lane)]:
            del self._left[lane]
            self.channels.mark(lane.channel.number)

    def _is_plain(self, lane: Lane) -> bool:
        content, channel = lane.content, lane.channel
        return (content is None or content.done) and not channel.dead and not (lane.lines or lane.after or lane.ready)


class Scanned(gathered.Scanned["Publishes"]):
    """The publishes of one scan of a chunk, which began at ``start``; ``first`` requests come before it."""

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
        self.refused: Sequence[int] = ()  # if all others pass
        self.passed: Callable[[Scanned], None] | None = None  # called when the others are forwarded
        self._lanes = [lane_of(segment.channel(run)[0]) for run in range(segment.runs)]
        self._make_content = make_content
        self._make_request = make_request
        self._contents: dict[int, Content] = {}
        self._goes_on = False  # it was forwarded but for the refused publishes

    def content(self, index: int) -> Content:
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
        """Return the incomplete contents. That of a frame that ends beyond the chunk is the last."""
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
        self.segment.forward(self.refused)
        self._goes_on = True
        if self.passed is not None:
            self.passed(self)
        refused = set(self.refused)
        # Open ones may continue in the chunk or later.
        for index, content in self._contents.items():
            if index not in refused:
                content.fate = PASSING
                if content.lane.content is content:
                    content.lane.writing = content

    def pieces(self) -> list[tuple[Buffer, int, int, Content]]:
        """Return the bytes of all contents in order: buffer, from, to, content."""
        every, end = range(len(self.segment)), len(self.chunk)
        pieces = [
            (self.chunk, start, min(stop, end), self.content(index))
            for index, spans in enumerate(self.segment.spans(every))
            for start, stop in spans
        ]
        pieces.sort(key=lambda piece: piece[1])
        return pieces

    def kept(self, stop: int) -> list[tuple[int, int]]:
        """Return the spans up to ``stop`` without refused publishes."""
        return self.segment.kept(self.refused, self.start, stop)

    def refusals(self) -> Iterator[tuple[Lane, bytes, int]]:
        """Yield by lane the answers to refused publishes, and their number."""
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
        index = len(self.segment) - 1
        content = self.content(index)
        if self._goes_on and index not in self.refused:
            content.fate = PASSING
        return content

    def requests(self) -> Iterator[Request]:
        return (self._make_request(self.content(index)) for index in range(len(self.segment)))

    def group(self, run: int) -> Group:
        segment = self.segment
        resources, _ = segment.asker(run)
        at, size_bytes = self.of_run(run)
        indexes, _ = segment.run(run)
        key = self.content(indexes[0]).key
        refusable = segment.channel(run)[1]
        return Group(resources, "", at, permits_each(len(at)), size_bytes, refusable=refusable, order_key=key)

    def answered(self, indexes: Sequence[int]) -> int:
        return self.segment.numbered(indexes)

    @property
    def refusable(self) -> bool:
        return all(self.segment.channel(run)[1] for run in range(self.segment.runs))


class Gathered(gathered.Gathered["Publishes"]):
    """The requests of one chunk, scanned ones included."""

    __slots__ = ()


def last_handle(requests: Sequence[Request]) -> object:
    """Return the handle of the last request, without making objects of all."""
    if not isinstance(requests, Gathered):
        return requests[-1].handle
    last = requests.parts[-1]
    return last.last() if isinstance(last, Scanned) else last.handle if isinstance(last, Request) else None
