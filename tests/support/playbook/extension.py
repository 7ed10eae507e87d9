"""The compiled scan, and ways to ask it about one header or one stretch of frames."""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from proxy.protocols.rocketmq.forbidden import is_internal
from proxy.protocols.rocketmq.scanning import make_table
from proxy.protocols.rocketmq.wire.codes import MAX_FRAME_BYTES, SYS_FLAGS_SPECIAL
from proxy.protocols.rocketmq.wire.header import STRICT, Header

try:
    import sluice_scan
except ImportError as error:
    raise ImportError("the compiled scan is not installed: make scan") from error

MOST_OWED: Final = 1000
MOST_KEYS: Final = 100


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
    """The extension with a table of its own, so that it has read nothing yet.

    Attributes:
        table: as Sluice makes it.
        owed: what the scanners note in.
        scanner: one of them.
    """

    def __init__(self) -> None:
        self.table: sluice_scan.Table = make_table(sluice_scan)
        self.owed = self.opaques()
        self.scanner = self.new_scanner()

    def opaques(self, most: int = MOST_OWED, numbers: Iterable[int] = ()) -> sluice_scan.Opaques:
        """Make a set of opaques."""
        opaques = sluice_scan.Opaques(most)
        for number in numbers:
            opaques.add(number)
        return opaques

    def new_scanner(self, most_keys: int = MOST_KEYS, most_runs: int = MOST_KEYS) -> sluice_scan.Scanner:
        """Make another scanner with the same table and set."""
        return sluice_scan.Scanner(self.table, self.owed, most_keys, most_runs)

    def scan(
        self, chunk: bytes | bytearray | memoryview, position: int = 0, max_length: int = MAX_FRAME_BYTES - 4
    ) -> sluice_scan.Segment:
        """Scan with the one scanner."""
        return self.scanner.scan(chunk, position, max_length)

    def read(self, header: bytes, header_type: int) -> Reading | None:
        """Read one header; None if it is not plain."""
        word = (header_type << 24) | len(header)
        chunk = struct.pack(">iI", 4 + len(header), word) + header
        segment = self.new_scanner().scan(chunk, 0, MAX_FRAME_BYTES - 4)
        if not len(segment):
            assert (segment.stop, segment.runs, segment.new) == (0, [], [])
            return None
        (key,) = segment.new
        run, start, stop, code, opaque, flag = segment.frame(0)
        oneway = flag >> 1 & 1
        assert segment.runs == [(0, range(1), len(chunk), oneway)]
        assert (run, start, stop) == (0, 0, len(chunk))
        return Reading(*key, code, opaque, flag)
