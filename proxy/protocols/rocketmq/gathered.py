"""The requests of one chunk in the order of the wire: those that a scan took in columns, and others one by one.

What was scanned becomes objects only if somebody looks at a single request.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, overload

from limiter.deciding.asking import permits_each
from proxy.deciding.batch import Admit, Columns, Count, Group, Request, Verdicts
from proxy.protocols.rocketmq.wire import codes
from proxy.protocols.rocketmq.wire.frame import Frame
from proxy.protocols.rocketmq.wire.header import Header

if TYPE_CHECKING:
    from sluice_native import Segment

_ONEWAY: Final = codes.FLAG_ONEWAY


class Scanned:
    """A segment, and where in the chunk's requests it stands.

    Args:
        segment: at least one frame.
        first: how many requests come before it.

    Attributes:
        segment: as given.
        first: as given.
        stop: how many requests there are up to its end.
    """

    __slots__ = ("first", "segment", "stop")

    def __init__(self, segment: "Segment", first: int) -> None:
        self.segment = segment
        self.first = first
        self.stop = first + len(segment)

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
            yield Request(resources, 1, stop - start, producer_group, flag & _ONEWAY != 0, None, frame)

    def group(self, run: int) -> Group:
        """Return the requests of one run; two runs may be one group."""
        first = self.first
        resources, producer_group = self.segment.asker(run)
        indexes, size_bytes = self.segment.run(run)
        if not first:
            at = indexes
        elif isinstance(indexes, range):
            at = range(indexes.start + first, indexes.stop + first)
        else:
            at = [index + first for index in indexes]
        return Group(resources, producer_group, False, at, permits_each(len(at)), size_bytes)

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
        left: groups of these that could not be decided many at a time.
    """

    __slots__ = ("_count", "_made", "_parts", "left", "scanned")

    def __init__(self) -> None:
        self._parts: list[Request | Scanned] = []
        self._count = 0
        self.scanned = self.left = 0
        #: All of them as objects, once somebody asked; the first of these.
        self._made: list[list[Request]] = []

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

    def extend(self, segment: "Segment") -> None:
        """Add what a scan took, at least one frame."""
        scanned = Scanned(segment, self._count)
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
        if not self._made:
            # A handler on a thread may ask at the same time as the loop, and all must see the same objects.
            made = ((part,) if isinstance(part, Request) else part.requests() for part in self._parts)
            self._made.append(list(chain.from_iterable(made)))
        return self._made[0][index]

    def groups(self) -> Sequence[Group]:
        """Return them in groups."""
        groups: list[Group] = []
        index = 0
        for part in self._parts:
            if isinstance(part, Request):
                groups.append(_alone(part, index))
                index += 1
            else:
                groups += map(part.group, range(part.segment.runs))
                index = part.stop
        self.left = len(groups)
        return groups

    def undecided(self, admit: Admit) -> Iterator[Group]:
        """Have ``admit`` decide what it can; return the groups that are left."""
        index = 0
        for part in self._parts:
            if isinstance(part, Request):
                yield _alone(part, index)
                index += 1
                continue
            segment, run = part.segment, 0
            while (run := admit(segment, run)) < segment.runs:
                self.left += 1
                yield part.group(run)
                run += 1
            index = part.stop

    def uncounted(self, count: Count, verdicts: Verdicts) -> Iterator[Group]:
        """Have ``count`` count what it can of those without a verdict; return the groups that are left."""
        judged = sorted(verdicts) if verdicts else ()
        index = done = 0
        for part in self._parts:
            if isinstance(part, Request):
                yield _alone(part, index)
                index += 1
                continue
            inside, done = part.within(judged, bisect_left(judged, part.first, done))
            for run in count(part.segment, inside):
                yield part.group(run)
            index = part.stop

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
                count -= part.segment.oneway(inside)
                index = part.stop
        return count


def first_opaque(requests: Sequence[Request]) -> int | None:
    """Return the number of a chunk's first request, without making objects of all; None if it cannot be read."""
    first = requests.parts[0] if isinstance(requests, Gathered) else requests[0]
    if isinstance(first, Scanned):
        return first.segment.frame(0)[4]
    header = getattr(first.handle, "header", None)
    return None if header is None else header.opaque


def _alone(request: Request, index: int) -> Group:
    """Return the group of a request that was read by itself."""
    size_bytes = 0 if request.consumes else request.size_bytes
    at, messages = range(index, index + 1), (request.messages,)
    return Group(request.resources, request.producer_group, request.consumes, at, messages, size_bytes)
