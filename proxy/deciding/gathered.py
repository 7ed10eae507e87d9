"""The requests of one chunk in the order of the wire: scanned in columns, or read one by one.

Scanned frames become objects only if somebody looks at a single request.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from proxy.deciding.batch import Admit, Columns, Count, Group, Request, Verdicts, group_of

if TYPE_CHECKING:
    from sluice_native import Publishes

S = TypeVar("S", bound="Publishes")


class Scanned(Generic[S]):
    """A segment of scanned frames in a chunk, at least one; ``first`` requests come before it."""

    __slots__ = ("first", "segment", "stop")

    def __init__(self, segment: S, first: int) -> None:
        self.segment = segment
        self.first = first
        self.stop = first + len(segment)  # how many requests there are up to its end

    @abstractmethod
    def requests(self) -> Iterator[Request]: ...

    @abstractmethod
    def group(self, run: int) -> Group:
        """Return the requests of one run; two runs may be one group."""

    @abstractmethod
    def answered(self, indexes: Sequence[int]) -> int:
        """Return how many of some requests, by their places in the segment, expect an answer."""

    @property
    def refusable(self) -> bool:
        return True

    def of_run(self, run: int) -> tuple[Sequence[int], int]:
        """Return the indexes of a run's requests, and the sum of their sizes."""
        first = self.first
        indexes, size_bytes = self.segment.run(run)
        if not first:
            return indexes, size_bytes
        if isinstance(indexes, range):
            return range(indexes.start + first, indexes.stop + first), size_bytes
        return [index + first for index in indexes], size_bytes

    def within(self, indexes: Sequence[int], done: int) -> tuple[Sequence[int], int]:
        """Return which of some requests, in ascending order, lie in this segment, and how many are done with them."""
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


class Gathered(Columns, Generic[S]):
    """The requests of one chunk."""

    __slots__ = ("_count", "_made", "_parts", "left", "scanned")

    def __init__(self) -> None:
        self._parts: list[Request | Scanned[S]] = []
        self._count = 0
        # Groups that were given out to be decided.
        self.scanned = self.left = 0
        # All of them as objects, once somebody has asked.
        self._made: list[list[Request]] = []

    def append(self, request: Request) -> None:
        self._parts.append(request)
        self._count += 1

    def extend(self, scanned: Scanned[S]) -> None:
        self._parts.append(scanned)
        self._count = scanned.stop
        self.scanned += len(scanned.segment)

    def simplest(self) -> Sequence[Request]:
        """Return a list if all were read by themselves, else columns."""
        return self if self.scanned else self._parts  # type: ignore[return-value] # nothing but requests then

    @property
    def parts(self) -> Sequence[Request | Scanned[S]]:
        return self._parts

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Request: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Request]: ...

    def __getitem__(self, index: int | slice) -> Request | Sequence[Request]:
        if not self._made:
            # A handler on a thread and the loop must see the same objects.
            made = ((part,) if isinstance(part, Request) else part.requests() for part in self._parts)
            self._made.append(list(chain.from_iterable(made)))
        return self._made[0][index]

    def groups(self) -> Sequence[Group]:
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
        index = 0
        # Requests that are left may wait, and others behind them. No two runs of one scan have the same order key.
        ordered = False
        for part in self._parts:
            if isinstance(part, Request):
                ordered = ordered or part.order_key is not None
                yield _alone(part, index)
                index += 1
                continue
            segment, run, all_are_left = part.segment, 0, ordered
            while True:
                if not all_are_left:
                    run = admit(segment, run)
                if run >= segment.runs:
                    break
                self.left += 1
                group = part.group(run)
                ordered = ordered or group.order_key is not None
                yield group
                run += 1
            index = part.stop

    def uncounted(self, count: Count, verdicts: Verdicts) -> Iterator[Group]:
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

    @property
    def refusable(self) -> bool:
        return all(
            part.refusal != "impossible" if isinstance(part, Request) else part.refusable for part in self._parts
        )

    def sizes(self, indexes: Sequence[int]) -> Sequence[int]:
        sizes: list[int] = []
        index = done = 0
        for part in self._parts:
            if isinstance(part, Request):
                if done < len(indexes) and indexes[done] == index:
                    sizes.append(0 if part.by_answer else part.size_bytes)
                    done += 1
                index += 1
            else:
                inside, done = part.within(indexes, done)
                sizes += part.segment.sizes(inside)
                index = part.stop
        return sizes

    def answered(self, indexes: Sequence[int]) -> int:
        count = len(indexes)
        index = done = 0
        for part in self._parts:
            if isinstance(part, Request):
                if done < len(indexes) and indexes[done] == index:
                    count -= part.refusal != "answered"
                    done += 1
                index += 1
            else:
                inside, done = part.within(indexes, done)
                count -= len(inside) - part.answered(inside)
                index = part.stop
        return count


def _alone(request: Request, index: int) -> Group:
    size_bytes = 0 if request.by_answer else request.size_bytes
    return group_of(request, range(index, index + 1), (request.messages,), size_bytes)
