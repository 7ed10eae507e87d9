"""The compiled part, and ways to ask it about one header or one stretch of frames."""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from limiter.deciding.limits import Limits
from limiter.rules.rule_set import RuleSet
from proxy.protocols.rocketmq.refusals import is_internal
from proxy.protocols.rocketmq.scanning import make_table
from proxy.protocols.rocketmq.wire.codes import MAX_FRAME_BYTES, SYS_FLAGS_SPECIAL
from proxy.protocols.rocketmq.wire.header import STRICT, Header

try:
    import sluice_native
except ImportError as error:
    raise ImportError("the compiled part is not installed: make native") from error

MAX_OWED: Final = 1000
MAX_KEYS: Final = 100
MAX_RUNS: Final = 100


class Run(NamedTuple):
    """One run of a segment, with what it is for."""

    kind: str
    name: str
    producer_group: str
    indexes: list[int]
    size_bytes: int
    oneway: int


def runs_of(segment: "sluice_native.Segment") -> list[Run]:
    """Return all that a segment says of its runs."""
    found = []
    for number in range(segment.runs):
        ((kind, name),), producer_group = segment.asker(number)
        indexes, size_bytes = segment.run(number)
        found.append(Run(kind, name, producer_group, list(indexes), size_bytes, segment.oneway(indexes)))
    return found


def keys_of(segment: "sluice_native.Segment") -> list[tuple[str, str, str]]:
    """Return what the runs of a segment are for: kind, name and producer group."""
    return [run[:3] for run in runs_of(segment)]


class Reading(NamedTuple):
    """What deciding needs of a plain header."""

    kind: str
    name: str
    producer_group: str
    code: int
    opaque: int
    flag: int

    def agrees_with(self, header: Header) -> bool:
        """Say whether the reading in Python is the same, and as sure."""
        same = (header.kind, header.name, header.producer_group, header.code, header.opaque, header.flag)
        plain = not header.is_batch and not header.sys_flag & SYS_FLAGS_SPECIAL and not is_internal(header.name)
        return self == same and header.reading == STRICT and plain


class Extension:
    """The extension with a table of its own, so that it has read nothing yet."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits(RuleSet())
        self.table: sluice_native.Table = make_table(sluice_native)
        self.owed = self.opaques()
        self.scanner = self.new_scanner()

    def opaques(self, most: int = MAX_OWED, numbers: Iterable[int] = ()) -> sluice_native.Opaques:
        """Make a set of opaques."""
        opaques = sluice_native.Opaques(most)
        for number in numbers:
            opaques.add(number)
        return opaques

    def new_scanner(
        self, most_keys: int = MAX_KEYS, owed: "sluice_native.Opaques | None" = None
    ) -> sluice_native.Scanner:
        """Make another scanner with the same table, and another set if one is given."""
        assert self.limits.resources is not None
        return sluice_native.Scanner(self.table, self.owed if owed is None else owed, self.limits.resources, most_keys)

    def scan(
        self, chunk: bytes | bytearray | memoryview, position: int = 0, max_length: int = MAX_FRAME_BYTES - 4
    ) -> sluice_native.Segment:
        """Scan with the one scanner."""
        return self.scanner.scan(chunk, position, max_length, MAX_RUNS)

    def read(self, header: bytes, header_type: int) -> Reading | None:
        """Read one header; None if it is not plain."""
        word = (header_type << 24) | len(header)
        chunk = struct.pack(">iI", 4 + len(header), word) + header
        segment = self.new_scanner().scan(chunk, 0, MAX_FRAME_BYTES - 4, MAX_RUNS)
        if not len(segment):
            assert (segment.stop, segment.runs) == (0, 0)
            return None
        run, start, stop, code, opaque, flag = segment.frame(0)
        oneway = flag >> 1 & 1
        (only,) = runs_of(segment)
        assert only[3:] == ([0], len(chunk), oneway)
        assert (run, start, stop) == (0, 0, len(chunk))
        return Reading(*only[:3], code, opaque, flag)
