"""Cuts what was refused out of a chunk, and answers it: for scanned frames run by run, not one by one."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from proxy.deciding.batch import Batch, Hold, Later, Refuse, Request, Verdicts
from proxy.deciding.gathered import Scanned
from proxy.protocols.rocketmq.gathered import Gathered
from proxy.protocols.rocketmq.replies import around_opaque, busy_answer
from proxy.protocols.rocketmq.wire.codes import FLAG_ONEWAY
from proxy.protocols.rocketmq.wire.frame import Frame
from proxy.protocols.rocketmq.wire.header import Header

if TYPE_CHECKING:
    from sluice_native import Segment


class Refused(NamedTuple):
    """What was refused of one chunk.

    Attributes:
        requests: how many.
        answers: to those that expect one; some may stand together. They come in the order of the
            wire, but for frames of one scan that were refused by different rules.
    """

    requests: int
    answers: Sequence[bytes]


NOTHING_REFUSED: Final = Refused(0, ())


class Cut(NamedTuple):
    """A chunk without what was refused of it.

    Attributes:
        slices: what goes on of it, but for the last slice.
        start: where the last slice begins; beyond the chunk if its last frame was refused and more of that is to come.
        first: the first frame that does not go on, if it was read by itself.
        refused: what was refused.
    """

    slices: list[tuple[int, int]]
    start: int
    first: Frame | None
    refused: Refused


def answer_each(refused: Sequence[tuple[Header, Refuse]]) -> Refused:
    """Make the answers to requests that were read one by one."""
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

    Args:
        batch: of one chunk, decided.
        requests: of the batch.
        start: where what goes on of the chunk begins.
        settle: takes a request that was read by itself out of what is owed; a scan does that by itself.

    Returns:
        None if something is held, or put aside: then each request is to be looked at by itself.
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
    part: "Scanned[Segment]", inside: Sequence[int], verdicts: Verdicts
) -> Iterable[tuple[Refuse, Sequence[int]]]:
    """Return which of a segment's refused frames, by their places in it, each Refuse refuses."""
    by_refuse: dict[int, tuple[Refuse, list[int]]] = {}
    for index in inside:
        verdict = verdicts[part.first + index]
        if isinstance(verdict, Refuse):
            by_refuse.setdefault(id(verdict), (verdict, []))[1].append(index)
    return by_refuse.values()
