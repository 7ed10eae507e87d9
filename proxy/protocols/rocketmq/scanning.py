"""Frames in columns: the scan that reads them, the requests of a chunk, and the chunk without refused ones.

The scan of the compiled part, ``sluice_native`` (folder ``native``), reads all plain frames of a chunk in one call.
*Plain* frames are single sends and send-backs whose headers are beyond doubt. The first other frame ends a scan and is
read by ``header``, so a scan is never lenient. No object is made for a frame unless something looks at it.
``sluice_native.pyi`` describes its types. Without it, or with ``scan = "python"``, ``header`` reads every frame.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limiter.compiled import COMPILED
from limiter.counting.repeats import Repeats
from limiter.deciding.asking import permits_each
from proxy.deciding import gathered
from proxy.deciding.batch import Batch, Group, Hold, Later, Look, Refusal, Refuse, Request, Verdicts
from proxy.protocols.options import ScanName
from proxy.protocols.rocketmq.answers import LONG_POLLS, MAX_PENDING
from proxy.protocols.rocketmq.refusals import INTERNAL_PREFIX, INTERNAL_TOPICS, around_opaque, busy_answer
from proxy.protocols.rocketmq.wire.codes import (
    FLAG_ONEWAY,
    HEARD,
    KIND_RETRY_GROUP,
    KIND_TOPIC,
    LIMITABLE,
    MAX_NAME_CHARS,
    PLAIN_SYS_FLAGS,
    RETRY_PREFIX,
    SEND_BACK_FIELDS,
    SENDS,
    RequestCode,
)
from proxy.protocols.rocketmq.wire.frame import MAX_HEADER_BYTES, Frame
from proxy.protocols.rocketmq.wire.header import Header

if TYPE_CHECKING:
    from sluice_native import Opaques, Resources, Scanner, Segment

# Keys (resource and producer group) remembered per connection.
MAX_KEYS: Final = 1024
# A chunk with frames of more keys is decided in parts.
MAX_RUNS: Final = 256


class Scan(NamedTuple):
    """What the compiled part reads with."""

    opaques: "Callable[[], Opaques]"  # makes the set of requests owed on one connection
    # Makes the scanner of one connection, which adds to that set, and finds the resources of requests.
    scanner: "Callable[[Opaques, Resources], Scanner]"


def make_table(module: Any) -> Any:
    limitable = {
        code: (KIND_RETRY_GROUP if fields is SEND_BACK_FIELDS else KIND_TOPIC, *fields)
        for code, fields in SENDS.items()
    }
    return module.Table(
        limitable,
        MAX_NAME_CHARS,
        RETRY_PREFIX,
        KIND_RETRY_GROUP,
        MAX_HEADER_BYTES,
        PLAIN_SYS_FLAGS,
        sorted(INTERNAL_TOPICS),
        INTERNAL_PREFIX,
        sorted({*LIMITABLE, *HEARD, RequestCode.CHECK_TRANSACTION_STATE.value}),
        sorted(LONG_POLLS),
    )


def _scan(module: ModuleType) -> Scan:
    table = make_table(module)
    return Scan(
        lambda: module.Opaques(MAX_PENDING), lambda owed, resources: module.Scanner(table, owed, resources, MAX_KEYS)
    )


SCAN: Final = None if COMPILED is None else _scan(COMPILED)
"""None if the compiled part of this version is not installed."""


def scan_named(name: ScanName) -> Scan | None:
    """Return the scan that the options name; None reads frame by frame."""
    return None if name == "python" else SCAN


_OF_SENDS: Final = frozenset({KIND_TOPIC, KIND_RETRY_GROUP})


class Scanned(gathered.Scanned["Segment"]):
    """The frames that one scan took."""

    __slots__ = ()

    def requests(self) -> Iterator[Request]:
        segment = self.segment
        askers = [segment.asker(run) for run in range(segment.runs)]
        for index in range(len(segment)):
            run, start, stop, code, opaque, flag = segment.frame(index)
            resources, producer_group = askers[run]
            kind, name = resources[0]
            header = Header(kind, name, code, opaque, flag, producer_group)
            frame = Frame(start, stop, header)
            refusal: Refusal = "silent" if flag & FLAG_ONEWAY else "answered"
            yield Request(resources, 1, stop - start, producer_group, refusal, None, frame)

    def group(self, run: int) -> Group:
        resources, producer_group = self.segment.asker(run)
        at, size_bytes = self.of_run(run)
        return Group(resources, producer_group, at, permits_each(len(at)), size_bytes)

    def repeats(self, indexes: Sequence[int], look: Look) -> Repeats:
        return Repeats(*self.segment.repeats(look.of.chunk, indexes, look.ids, look.key, look.now_ns, look.refused))

    def answered(self, indexes: Sequence[int]) -> int:
        return len(indexes) - self.segment.oneway(indexes)


class Gathered(gathered.Gathered["Segment"]):
    """The requests of one chunk, and what scans took."""

    __slots__ = ()

    def take(self, segment: "Segment") -> None:
        self.extend(Scanned(segment, len(self)))

    def sends(self) -> list[int]:
        """Return the indices of sends and send-backs; the end of a transaction brings no message."""
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


class Refused(NamedTuple):
    """The refused requests of one chunk, and the answers to those that expect one, possibly several in one piece.

    In the order of the wire, except for frames of one scan that different rules refused.
    """

    requests: int
    answers: Sequence[bytes]


NOTHING_REFUSED: Final = Refused(0, ())


class Cut(NamedTuple):
    """A chunk without its refused requests."""

    slices: list[tuple[int, int]]  # the parts that are forwarded, without the last one
    start: int  # where the last part begins; beyond the chunk if its last frame was refused and is not complete
    first: Frame | None  # the first frame that is not forwarded, if it was read by itself
    refused: Refused


def answer_each(refused: Sequence[tuple[Header, Refuse]]) -> Refused:
    return Refused(
        len(refused),
        [
            busy_answer(refuse, header.opaque, header.kind)
            for header, refuse in refused
            if not header.flag & FLAG_ONEWAY
        ],
    )


def cut(batch: Batch, requests: Gathered, start: int, settle: Callable[[Header], None]) -> Cut | None:
    """Cut the refused requests out of ``[start, …)`` and answer them.

    ``settle`` takes a request that was read by itself out of what is owed; a scan does that itself.

    Returns:
        None if something is held or spooled: then each request is handled by itself.
    """
    verdicts, distinct = batch.verdicts, batch.distinct
    if any(isinstance(verdict, Hold | Later) for verdict in distinct):
        return None
    refuses = [verdict for verdict in distinct if isinstance(verdict, Refuse)]
    if len(refuses) == len(distinct):
        refused = sorted(verdicts)
    else:
        refused = sorted(index for index, verdict in verdicts.items() if isinstance(verdict, Refuse))
    only = refuses[0] if len(refuses) == 1 else None
    slices: list[tuple[int, int]] = []
    answers: list[bytes] = []
    first: Frame | None = None
    index = done = 0
    for part in requests.parts:
        if isinstance(part, Request):
            verdict, frame = verdicts.get(index), part.handle
            index += 1
            if not isinstance(verdict, Refuse):
                continue
            done += 1
            if not isinstance(frame, Frame):
                continue
            first = first or frame
            if frame.start > start:
                slices.append((start, frame.start))
            start = frame.stop
            settle(frame.header)
            answers += answer_each([(frame.header, verdict)]).answers
            continue
        index = part.stop
        inside, done = part.within(refused, done)
        if not inside:
            continue
        stop = part.segment.stop
        left = part.segment.kept(inside, start, stop)
        start = stop
        if left and left[-1][1] == stop:
            start = left.pop()[0]
        slices += left
        of_each = _by_refuse_within(part, inside, verdicts) if only is None else [(only, inside)]
        for refuse, indexes in of_each:
            data, _ = part.segment.refuse(indexes, *around_opaque(refuse))
            if data:
                answers.append(data)
    return Cut(slices, start, first, Refused(len(refused), answers))


def _by_refuse_within(
    part: "gathered.Scanned[Segment]", inside: Sequence[int], verdicts: Verdicts
) -> Iterable[tuple[Refuse, Sequence[int]]]:
    by_refuse: dict[int, tuple[Refuse, list[int]]] = {}
    for index in inside:
        verdict = verdicts[part.first + index]
        if isinstance(verdict, Refuse):
            by_refuse.setdefault(id(verdict), (verdict, []))[1].append(index)
    return by_refuse.values()
