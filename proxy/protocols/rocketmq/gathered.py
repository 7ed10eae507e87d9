"""The requests of one chunk: scanned frames in columns, and others one by one."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from limiter.counting.repeats import Repeats
from limiter.deciding.asking import permits_each
from proxy.deciding import gathered
from proxy.deciding.batch import Group, Look, Refusal, Request
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.frame import Frame
from proxy.protocols.rocketmq.wire.header import Header

if TYPE_CHECKING:
    from sluice_native import Segment

_ONEWAY: Final = codes.FLAG_ONEWAY
_OF_SENDS: Final = frozenset({codes.KIND_TOPIC, codes.KIND_RETRY_GROUP})


class Scanned(gathered.Scanned["Segment"]):
    """The frames that one scan took."""

    __slots__ = ()

    def requests(self) -> Iterator[Request]:
        """Make the requests."""
        segment = self.segment
        askers = [segment.asker(run) for run in range(segment.runs)]
        for index in range(len(segment)):
            run, start, stop, code, opaque, flag = segment.frame(index)
            resources, producer_group = askers[run]
            kind, name = resources[0]
            header = Header(kind, name, code, opaque, flag, producer_group)
            frame = Frame(start, stop, header)
            refusal: Refusal = "silent" if flag & _ONEWAY else "answered"
            yield Request(resources, 1, stop - start, producer_group, refusal, None, frame)

    def group(self, run: int) -> Group:
        """Return the requests of one run; two runs may be one group."""
        resources, producer_group = self.segment.asker(run)
        at, size_bytes = self.of_run(run)
        return Group(resources, producer_group, at, permits_each(len(at)), size_bytes)

    def repeats(self, indexes: Sequence[int], look: Look) -> Repeats:
        """Look which of some frames come again."""
        return Repeats(*self.segment.repeats(look.of.chunk, indexes, look.ids, look.key, look.now_ns, look.refused))

    def answered(self, indexes: Sequence[int]) -> int:
        """Return how many of some frames expect an answer."""
        return len(indexes) - self.segment.oneway(indexes)


class Gathered(gathered.Gathered["Segment"]):
    """The requests of one chunk, and what scans took."""

    __slots__ = ()

    def take(self, segment: "Segment") -> None:
        """Add what a scan took, at least one frame."""
        self.extend(Scanned(segment, len(self)))

    def sends(self) -> list[int]:
        """Return which of them bring a message: sends of all kinds and send-backs, but not the end of a transaction."""
        indexes: list[int] = []
        index = 0
        for part in self.parts:
            if isinstance(part, Request):
                if part.resources[0].kind in _OF_SENDS:
                    indexes.append(index)
                index += 1
            else:
                indexes += range(index, part.stop)
                index = part.stop
        return indexes


def first_opaque(requests: Sequence[Request]) -> int | None:
    """Return the number of a chunk's first request, without making objects of all; None if it cannot be read."""
    first = requests.parts[0] if isinstance(requests, Gathered) else requests[0]
    if not isinstance(first, Request):
        return first.segment.frame(0)[4]
    header = getattr(first.handle, "header", None)
    return None if header is None else header.opaque
