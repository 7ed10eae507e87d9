"""What the recorder hands to who writes: whole lines in pieces, for the log file and for the scratch file."""

from collections import Counter
from typing import Final, NamedTuple

import msgspec

PIECE_BYTES: Final = 256 * 1024
"""What is written at a time, and dropped at a time when there is no room."""


class Piece(NamedTuple):
    """Whole lines that are written together or not at all.

    Attributes:
        data: the lines.
        records: how many of each type.
    """

    data: bytearray
    records: Counter[str]


class Lines:
    """Whole lines, in pieces, and how many records of each type are in a piece.

    Args:
        piece_bytes: a new piece is begun after so many.
    """

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self.pieces: list[Piece] = []
        self._piece_bytes = piece_bytes

    def add(self, line: bytes, type_: str = "") -> None:
        """Add a line, or some that belong together."""
        if not self.pieces or len(self.pieces[-1][0]) >= self._piece_bytes:
            self.pieces.append(Piece(bytearray(), Counter()))
        data, records = self.pieces[-1]
        data += line
        records[type_] += 1


class Batch(msgspec.Struct, kw_only=True):
    """What is to be written at once.

    Attributes:
        run: whose records they are.
        records: for the log file.
        begin: the first line of a new scratch file: what the one there is about is among the records; None goes on
            with it.
        scratch: for the scratch file.
        last: nothing comes after it, and what the scratch file is about is among the records: once they are written
            it is not needed.
    """

    run: str
    records: Lines = msgspec.field(default_factory=Lines)
    begin: bytes | None = None
    scratch: Lines = msgspec.field(default_factory=Lines)
    last: bool = False
