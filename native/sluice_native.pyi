"""The compiled part of Sluice: reads the frames of a RocketMQ chunk, decides what plain limits admit, and counts.

A frame is *plain* if its header is one send or send-back, JSON or binary, whose meaning is beyond doubt. Nothing else
is read here: whatever is not plain ends a scan. A limit is *plain* if it is a bucket and a breaker, and refuses. What a
chunk asks for is decided here as far as all its limits are plain and admit all of it; the rest is left to Python, which
decides by the same state.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, final

from typing_extensions import Buffer, disjoint_base

from limiter.buckets.limiter import Limiter
from limiter.counting import row
from limiter.deciding.limits import PlainDefault, PlainLimit
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

__all__ = [
    "INTERFACE",
    "Callers",
    "Cell",
    "Entry",
    "Opaques",
    "Resources",
    "Row",
    "Scanner",
    "Second",
    "Segment",
    "Table",
]

INTERFACE: Final[int]
"""Another number whenever what is offered, or what it means, changes."""

@disjoint_base
class Cell:
    """The state of a bucket and its breaker: ``limiter.buckets.cell.PythonCell``, in 64 bits for each figure.

    What is set to more than these hold becomes the nearest that they do.
    """

    rate_upermits_per_s: int
    capacity_upermits: int
    stored_upermits: int
    forgiven_upermits: int
    max_debt_upermits: int
    at_ns: int
    open_next_free_ns: int | None
    asked_ns: int
    retired: bool
    def __new__(cls, *_args: object, **_kwargs: object) -> Self: ...
    def refill(self, now_ns: int) -> int: ...
    def admits(self, now_ns: int, before: int, permits: int) -> bool: ...
    def spend(self, permits: int) -> None: ...

@final
class Second:
    """As ``limiter.counting.row.PythonSecond``."""

    number: int
    @property
    def began(self) -> int: ...
    @property
    def entries(self) -> list[Entry]: ...
    def __new__(cls, number: int) -> Self: ...

@final
class Entry:
    """As ``limiter.counting.row.PythonEntry``."""

    @property
    def resource(self) -> Resource: ...
    @property
    def told(self) -> int: ...
    @property
    def more(self) -> bool: ...
    def amounts(self) -> list[tuple[int, int, int]]: ...
    def asked(self) -> list[tuple[Any, int, int]]: ...

@final
class Row:
    """As ``limiter.counting.row.PythonRow``."""

    seen_ns: int
    retired: bool
    @property
    def shared(self) -> bool: ...
    @property
    def resource(self) -> Resource: ...
    @property
    def spent_in(self) -> int: ...
    def __new__(cls, resource: Resource, *, shared: bool = False) -> Self: ...
    def add(
        self,
        second: Second,
        now_ns: int,
        sender: object,
        outcome: int,
        requests: int,
        messages: int,
        size_bytes: int,
        told: int = 0,
    ) -> None: ...
    def totals(self) -> list[tuple[int, int, int]]: ...
    def fold(self, amounts: Sequence[tuple[int, int, int]]) -> None: ...
    def spend(self, second: Second, dimension: int, permits: int) -> None: ...
    def used(self, number: int, dimension: int) -> list[int] | None: ...

_PlainLimits: TypeAlias = Sequence[PlainLimit] | None
"""Limits that are asked together; None: they are not plain."""

# `Cell`, `Row` and `Second` are known to Python by the names of its own classes, whose place they take.

@final
class Resources:
    """What requests are for, by kind and name, with the limits and the row of each.

    Limits are asked for again when a cell or a row of theirs is retired, or ``swap`` was called; the row that a name is
    counted in, when it is retired. After ten seconds every such row is asked for again, and so are what Python kept for
    itself and limits with a row that is shared.

    Most names have no rule of their own, and nobody ever looks at their limiters: these are begun here, and taken over
    by Python when it has to do with them.

    Args:
        resource_type: makes a resource of its kind and name.
        limits_of: the limits of what a request is for, its scopes aside.
        default_of: of a kind, what limits each name without a rule of its own, if that is plain and nothing else does.
        row_of: the row that a resource is counted in, at a time.
        most: names that are remembered; beyond it some are forgotten whose limiters were not begun here.
        own: what has a rule of its own.
        live: by dimension, what has a limiter in Python.
        shared: by dimension, what names share for which there is no room, by the bare names of the rules.

    Attributes:
        kinds: of which something was asked for.
        begun: by dimension, how many limiters live here.
        evicted_total: limiters evicted to make room for others.
    """

    @property
    def kinds(self) -> list[str]: ...
    @property
    def begun(self) -> tuple[int, int]: ...
    def set_most_begun(self, dimension: int, most: int) -> None:
        """Say how many limiters may live here."""
    @property
    def evicted_total(self) -> int: ...
    def __new__(
        cls,
        resource_type: type[Resource],
        limits_of: Callable[[tuple[Resource, ...]], _PlainLimits],
        default_of: Callable[[str], PlainDefault | None],
        row_of: Callable[[Resource, int], row.Row],
        most: int,
        own: dict[Resource, Rule],
        live: Sequence[dict[Resource, Limiter]],
        shared: Sequence[dict[str, Limiter]],
    ) -> Self: ...
    def swap(self, own: dict[Resource, Rule], defaults: dict[str, PlainDefault | None]) -> None:
        """Go by other rules from now on: what has a rule of its own, and the defaults of all ``kinds``.

        What gets or loses a rule of its own was taken over before.
        """
    def take(self, kind: str, name: str, dimension: int) -> tuple[Rule, int, Cell] | None:
        """Hand out the limiter of a name, if it was begun here: it is no longer kept.

        Returns:
            Its rule, the number of the swap up to which that was in force, and its state.
        """
    def names_begun(self, dimension: int, before: int, most: int) -> list[tuple[int, str, str]]:
        """Return number, kind and name of so many limiters that were begun here, the newest first.

        Some may have been taken since.

        Args:
            dimension: what is limited: 0 is messages or requests, 1 bytes.
            before: only those with lower numbers.
            most: how many.
        """
    def make_room(self, dimension: int, now_ns: int) -> list[tuple[str, str]]:
        """Look at a few limiters, and evict one that nobody could tell from a new one, if there is no room.

        Returns:
            Kind and name of those whose rules are no longer in force: they cannot be judged before they are taken.
        """
    def __len__(self) -> int: ...

@final
class Callers:
    """The limits of one client at one listener; ``limits_of`` is asked for those of a producer group's requests."""

    def __new__(cls, limits_of: Callable[[str], _PlainLimits]) -> Self: ...

@final
class Opaques:
    """The numbers of requests that have no answer yet, ``most`` of them at most; i32.

    It keeps 8 to 16 bytes for each.

    Attributes:
        ambiguous: a number was added that was there already, or for which there was no room.
    """

    def __new__(cls, most: int) -> Self: ...
    @property
    def ambiguous(self) -> bool: ...
    def add(self, opaque: int) -> None:
        """Add a number; without effect when the set is full."""
    def discard(self, opaque: int) -> bool:
        """Take a number out; returns whether it was there."""
    def __len__(self) -> int: ...
    def __contains__(self, opaque: int, /) -> bool: ...
    def settle(self, chunk: Buffer, position: int) -> tuple[int, int]:
        """Step over answers from the broker to requests that are in the set, and take these out.

        Only JSON is read. An answer is stepped over when its header is in the chunk.

        Returns:
            Offset of the first frame that is something else, beyond the chunk's end if the last answer's body is
            incomplete; and how many answers were stepped over.
        """

@final
class Table:
    """What all scanners share: which requests are limitable, and how headers were read lately.

    Args:
        limitable: by request code: kind of the resource, and the names of the fields in ``extFields`` with its name,
            with the producer group, that says whether the body is a batch, and that says what the message is.
        max_name_bytes: headers with longer names or producer groups are not plain.
        retry_prefix: a name that begins with it is that of ``retry_kind``, without it.
        retry_kind: see there.
        max_header_bytes: longer headers are not plain.
        plain_sys_flags: what a plain message may be, as it is spelled.
        internal_topics: sends to these are not plain.
        internal_prefix: nor are those to what begins with it.

    Raises:
        ValueError: there are more than 16 distinct field names.
    """

    def __new__(
        cls,
        limitable: Mapping[int, tuple[str, str, str | None, str | None, str | None]],
        max_name_bytes: int,
        retry_prefix: str,
        retry_kind: str,
        max_header_bytes: int,
        plain_sys_flags: Sequence[str],
        internal_topics: Sequence[str],
        internal_prefix: str,
    ) -> Self: ...

@final
class Scanner:
    """The scan of one connection's requests.

    Requests that expect an answer are noted in ``owed``. A scan that begins with more than ``most_keys``, each a
    resource and a producer group, forgets all.
    """

    def __new__(cls, table: Table, owed: Opaques, resources: Resources, most_keys: int) -> Self: ...
    def scan(self, chunk: Buffer, position: int, max_length: int, most_runs: int) -> Segment:
        """Take the plain frames from ``position`` on, as long as they come one after the other.

        A frame is taken when its header is in the chunk, of which nothing is kept. No bytes are an error. It ends
        before a frame whose first word names more than ``max_length``, and with frames of ``most_runs`` keys.
        """
    def names(self) -> list[Resource]:
        """Return the resources of the keys that are remembered."""

@final
class Segment:
    """What one scan took, in runs: the frames of one key each, in the order of their first frames.

    Indexes of frames and numbers of runs count from 0. IndexError is raised where there is no such frame or run.

    Attributes:
        stop: offset of the first frame that was not taken; beyond the chunk's end if the last one's body is
            incomplete.
        runs: how many there are.
    """

    @property
    def stop(self) -> int: ...
    @property
    def runs(self) -> int: ...
    def __len__(self) -> int: ...
    def asker(self, run: int) -> tuple[tuple[Resource, ...], str]:
        """Return what the requests of a run are for, and their producer group."""
    def run(self, run: int) -> tuple[Sequence[int], int]:
        """Return the indexes of a run's frames, a range if they follow each other, and the sum of their sizes."""
    def admit(self, first: int, now_ns: int, second: row.Second, callers: Callers | None = None) -> int:
        """Admit all requests of run after run, from ``first`` on, as long as their limits are plain and admit them.

        Rows note in ``second`` what is spent. ``callers``: the limits of who sends; None where no scope is limited.

        Returns:
            The number of the first run that is left, of which nothing is charged; ``runs`` if none is.
        """
    def count(self, second: row.Second, now_ns: int, sender: object, outcome: int, judged: Sequence[int]) -> list[int]:
        """Add all runs but those with ``judged`` frames, ascending indexes, to their rows; return the numbers of those.

        As in ``Row.add``.
        """
    def frame(self, index: int) -> tuple[int, int, int, int, int, int]:
        """Return a frame's run, its start and stop, and its header's code, opaque and flag."""
    def oneway(self, indexes: Sequence[int]) -> int:
        """Return how many of these frames expect no answer."""
    def sizes(self, indexes: Sequence[int]) -> list[int]:
        """Return the sizes of these frames in bytes."""
    def kept(self, refused: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
        """Return what is left from ``start`` to ``end`` without these ascending frames; no slice is empty."""
    def refuse(self, refused: Sequence[int], head: bytes, tail: bytes) -> tuple[bytes, int]:
        """Take these frames out of what is owed, and write the answers to those of them that are not oneway.

        An answer's JSON header is ``head``, the opaque and ``tail``.

        Returns:
            The answers, whole frames one after the other, and how many there are.
        """
