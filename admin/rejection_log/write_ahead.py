"""What is kept of the running minute in case the process is killed: its traffic, second by second, as lines.

The write-ahead file of a run lies beside its log file and is begun anew with each minute. First comes a header, then
for each second its traffic, and last a line that commits it: what no such line follows was torn off by a crash. Nothing
here reads or writes files.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from admin.rejection_log.aggregate import Aggregate, minute_of
from admin.rejection_log.composing import LimitInForce
from admin.rejection_log.records import LimitFields
from limiter.counting.rejections import Amount, Outcome, ResourceSecond
from limiter.rules.resource import Resource

VERSION: Final = 2


class Header(msgspec.Struct, frozen=True, array_like=True, tag="begin", gc=False):
    """The first line.

    Attributes:
        v: version of these lines.
        instance: as in the records.
        run: as in the records.
        sluice: version of Sluice.
        minute_s: when the minute begins.
        n: the last number in use; the records of this minute have greater ones.
        max_resources: the bound on what is told apart.
    """

    v: int
    instance: str
    run: str
    sluice: str
    minute_s: int
    n: int
    max_resources: int


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="traffic", gc=False):
    """The traffic of one resource in a second, as ``ResourceSecond`` has it, and the limit that was in force.

    Attributes:
        clients: those only that are new in the minute.
    """

    kind: str
    name: str
    limit: LimitInForce
    at_s: int
    outcomes: dict[Outcome, Amount]
    busy_answers: int
    languages: dict[str, tuple[int, int]]
    clients: tuple[str, ...]
    more_clients: bool
    repeated: Amount = Amount()
    identified: int = 0


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit", gc=False):
    """All before it is whole.

    Attributes:
        covered: the seconds of the minute that were recorded, a bit for each, the first one lowest.
        n: the last number in use.
        file: number of the log file that is written now, or comes next.
        other: of the minute.
        limiting: limiting is on.
        lost_records: of the run.
    """

    covered: int
    n: int
    file: int
    other: int
    limiting: bool
    lost_records: int


_Limit: Final = msgspec.defstruct(
    "_Limit",
    [
        (field.name, field.type, field.default)
        for field in msgspec.structs.fields(LimitFields)
        if field.default is not msgspec.NODEFAULT
    ],
    omit_defaults=True,
)
"""The fields of ``LimitInForce``."""
_decoder: Final = msgspec.json.Decoder(Header | Seen | Commit)


class Left(msgspec.Struct):
    """What a write-ahead file held.

    Attributes:
        header: its first line.
        minute: the traffic of the seconds that are whole.
        limits: of the resources in it.
        last: the last line that committed something.
    """

    header: Header
    minute: Aggregate
    limits: dict[Resource, LimitInForce]
    last: Commit


def read(lines: Iterable[bytes]) -> Iterator[Left | None]:
    """Read the lines; yields None after each of them, for who wants a pause, and last what they came to, if anything.

    What cannot be read ends it: a crash tore it off, and what stands behind it cannot be trusted.
    """
    left: Left | None = None
    pending: list[Seen] = []
    committed = False
    for line in lines:
        try:
            entry = _decoder.decode(line)
            if isinstance(entry, Seen):
                entry = msgspec.structs.replace(entry, limit=_known(entry.limit))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            break
        match entry:
            case Header():
                if left is not None or entry.v != VERSION:
                    break
                left = Left(entry, Aggregate(entry.minute_s, entry.max_resources), {}, _nothing(entry))
            case Seen():
                pending.append(entry)
            case Commit():
                if left is None:
                    break
                for seen in pending:
                    _add(left, seen)
                    yield None
                pending.clear()
                left.last, committed = entry, True
        yield None
    if left is not None and committed:
        left.minute.covered, left.minute.other = left.last.covered, left.last.other
        yield left


def _add(left: Left, seen: Seen) -> None:
    if minute_of(seen.at_s) != left.minute.at_s:
        return
    resource = Resource(seen.kind, seen.name)
    left.limits[resource] = seen.limit
    second = ResourceSecond(
        resource,
        seen.outcomes,
        seen.busy_answers,
        seen.languages,
        seen.clients,
        seen.more_clients,
        seen.repeated,
        seen.identified,
    )
    left.minute.add(seen.at_s, second)


def _known(limit: LimitInForce) -> LimitInForce:
    """Return what of a limit records have, as they have it: another version of Sluice may have written others.

    Raises:
        msgspec.ValidationError: a value is none that a record can have.
    """
    known: LimitInForce = msgspec.to_builtins(msgspec.convert(limit, _Limit))
    return known


def _nothing(header: Header) -> Commit:
    return Commit(0, header.n, 0, 0, limiting=True, lost_records=0)
