"""The requests of one chunk in the order of the wire: those that a scan took in columns, and others one by one.

What was scanned becomes objects only if somebody looks at a single request.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from limiter.deciding.asking import permits_each
from limiter.rules.resource import Resource
from proxy.deciding.batch import Columns, Group, Request
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.frame import Frame
from proxy.protocols.rocketmq.wire.header import Header

if TYPE_CHECKING:
    from sluice_scan import Segment

_ONEWAY: Final = codes.FLAG_ONEWAY


class Charged(NamedTuple):
    """What a scanned send is charged to.

    Attributes:
        resources: its own.
        producer_group: may be empty.
    """

    resources: tuple[Resource, ...]
    producer_group: str


class Scanned:
    """A segment, and what its runs are charged to.

    Args:
        segment: at least one frame.
        charged: for each of its runs.
        first: how many requests come before it.

    Attributes:
        segment: as given.
        first: as given.
        stop: how many requests there are up to its end.
    """

    __slots__ = ("charged", "first", "segment", "stop")

    def __init__(self, segment: "Segment", charged: Sequence[Charged], first: int) -> None:
        self.segment = segment
        self.charged = charged
        self.first = first
        self.stop = first + len(segment)

    def requests(self) -> Iterator[Request]:
        """Make the requests."""
        for index in range(len(self.segment)):
            run, start, stop, code, opaque, flag = self.segment.frame(index)
            resources, producer_group = self.charged[run]
            kind, name = resources[0]
            header = Header(kind, name, code, opaque, flag, producer_group)
            frame = Frame(start, stop, header)
            yield Request(resources, 1, stop - start, producer_group, flag & _ONEWAY != 0, None, frame)

    def groups(self) -> Iterator[Group]:
        """Put them in groups; two runs may be one group."""
        first = self.first
        for (_, indexes, size_bytes, _), (resources, producer_group) in zip(
            self.segment.runs, self.charged, strict=True
        ):
            if not first:
                at = indexes
            elif isinstance(indexes, range):
                at = range(indexes.start + first, indexes.stop + first)
            else:
                at = [index + first for index in indexes]
            yield Group(resources, producer_group, False, at, permits_each(len(at)), size_bytes)

    def within(self, indexes: Sequence[int], done: int) -> tuple[Sequence[int], int]:
        """Return which of some requests are of this segment, by their places in it, and how many are done then.

        Args:
            indexes: of requests, ascending.
            done: how many of them come before this segment.
        """
        first = self.first
        stop = bisect_left(indexes, self.stop, done)
        inside = indexes if stop - done == len(indexes) else indexes[done:stop]
        if not inside:
            return (), stop
        if not first:
            return inside, stop
        if isinstance(inside, range):
            return range(inside.start - first, inside.stop - first), stop
        return [index - first for index in inside], stop


class Gathered(Columns):
    """The requests of one chunk.

    Attributes:
        scanned: how many of them a scan took.
    """

    __slots__ = ("_count", "_parts", "_requests", "scanned")

    def __init__(self) -> None:
        self._parts: list[Request | Scanned] = []
        self._count = 0
        self.scanned = 0
        self._requests: list[Request] | None = None

    def append(self, request: Request) -> None:
        """Add a request that was read by itself."""
        self._parts.append(request)
        self._count += 1

    @property
    def last(self) -> Request:
        """Return the request that was added last, which was read by itself."""
        last = self._parts[-1]
        assert isinstance(last, Request)  # noqa: S101 - as the caller knows
        return last

    def extend(self, segment: "Segment", charged: Sequence[Charged]) -> None:
        """Add what a scan took, at least one frame."""
        scanned = Scanned(segment, charged, self._count)
        self._parts.append(scanned)
        self._count = scanned.stop
        self.scanned += len(segment)

    def simplest(self) -> Sequence[Request]:
        """Return them as a list if all were read by themselves, else as columns."""
        return self if self.scanned else self._parts  # type: ignore[return-value] # nothing but requests then

    @property
    def parts(self) -> Sequence[Request | Scanned]:
        """Return what was added, in order."""
        return self._parts

    def __len__(self) -> int:
        """Return how many requests there are."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> Request: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...

    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        """Return one request, or some. The first time all are made."""
        requests = self._requests
        if requests is None:
            requests = self._requests = list(
                chain.from_iterable((part,) if isinstance(part, Request) else part.requests() for part in self._parts)
            )
        return requests[index]

    def groups(self) -> Sequence[Group]:
        """Return them in groups."""
        parts = self._parts
        if len(parts) == 1 and isinstance(parts[0], Scanned):
            only = list(parts[0].groups())
            return only if len(only) == 1 else _merged(only)
        groups: list[Group] = []
        index = 0
        for part in parts:
            if isinstance(part, Request):
                groups.append(
                    Group(
                        part.resources,
                        part.producer_group,
                        part.consumes,
                        range(index, index + 1),
                        (part.messages,),
                        0 if part.consumes else part.size_bytes,
                    )
                )
                index += 1
            else:
                groups += part.groups()
                index = part.stop
        return _merged(groups)

    def sizes(self, indexes: Sequence[int]) -> Sequence[int]:
        """Return the bytes that some requests cost, in the order of their indexes, which ascend."""
        sizes: list[int] = []
        index = done = 0
        for part in self._parts:
            if isinstance(part, Request):
                if done < len(indexes) and indexes[done] == index:
                    sizes.append(0 if part.consumes else part.size_bytes)
                    done += 1
                index += 1
            else:
                inside, done = part.within(indexes, done)
                sizes += part.segment.sizes(inside)
                index = part.stop
        return sizes

    def answered(self, indexes: Sequence[int]) -> int:
        """Return how many of some requests, whose indexes ascend, expect an answer."""
        count = len(indexes)
        index = done = 0
        for part in self._parts:
            if isinstance(part, Request):
                if done < len(indexes) and indexes[done] == index:
                    count -= part.oneway
                    done += 1
                index += 1
            else:
                inside, done = part.within(indexes, done)
                if any(run[3] for run in part.segment.runs):
                    frame = part.segment.frame
                    count -= sum([frame(at)[5] & _ONEWAY != 0 for at in inside])
                index = part.stop
        return count


def first_opaque(requests: Sequence[Request]) -> int | None:
    """Return the number of a chunk's first request, without making objects of all; None if it cannot be read."""
    first = requests.parts[0] if isinstance(requests, Gathered) else requests[0]
    if isinstance(first, Scanned):
        return first.segment.frame(0)[4]
    header = getattr(first.handle, "header", None)
    return None if header is None else header.opaque


def _merged(groups: Iterable[Group]) -> Sequence[Group]:
    """Make one of groups that are decided alike."""
    alike: dict[tuple[tuple[Resource, ...], str, bool], list[Group]] = {}
    for group in groups:
        alike.setdefault((group.resources, group.producer_group, group.consumes), []).append(group)
    return [some[0] if len(some) == 1 else _joined(some) for some in alike.values()]


def _joined(groups: Sequence[Group]) -> Group:
    first, last = groups[0], groups[-1]
    messages: Sequence[int] = [*chain.from_iterable(group.messages for group in groups)]
    indexes: Sequence[int]
    in_order = all(one.indexes[-1] < two.indexes[0] for one, two in pairwise(groups))
    if in_order and last.indexes[-1] - first.indexes[0] + 1 == len(messages):
        # The usual case: the frame that an earlier chunk began, and those that were scanned behind it.
        indexes = range(first.indexes[0], last.indexes[-1] + 1)
    elif in_order:
        indexes = [*chain.from_iterable(group.indexes for group in groups)]
    else:
        order = sorted(zip(chain.from_iterable(group.indexes for group in groups), messages, strict=True))
        indexes, messages = [index for index, _ in order], [cost for _, cost in order]
    size_bytes = sum([group.size_bytes or 0 for group in groups])
    return Group(first.resources, first.producer_group, first.consumes, indexes, messages, size_bytes)
