"""The scan of a RocketMQ chunk, compiled.

A frame is *plain* if its header is one send or send-back, JSON or binary, whose meaning is beyond doubt. Nothing else
is read here: whatever is not plain ends a scan.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Self, final

from typing_extensions import Buffer

__all__ = ["INTERFACE", "Opaques", "Scanner", "Segment", "Table"]

INTERFACE: Final[int]
"""Another number whenever what is offered, or what it means, changes."""

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

    Args:
        table: what is limitable.
        owed: where requests that expect an answer are noted.
        most_keys: when a scan begins with more keys than this, all are forgotten.
        most_runs: a scan ends when it has taken frames of so many keys.
    """

    def __new__(cls, table: Table, owed: Opaques, most_keys: int, most_runs: int) -> Self: ...
    def scan(self, chunk: Buffer, position: int, max_length: int) -> Segment:
        """Take the plain frames from ``position`` on, as long as they come one after the other.

        A frame is taken when its header is in the chunk. No bytes are an error.

        Args:
            chunk: bytes side by side; nothing of it is kept.
            position: where a frame begins.
            max_length: the highest length that a frame may name in its first word.
        """

@final
class Segment:
    """What one scan took; indexes of frames count from 0.

    Attributes:
        stop: offset of the first frame that was not taken; beyond the chunk's end if the last one's body is
            incomplete.
        runs: of each distinct key, in the order of their first frames: number of the key; indexes of its frames,
            ascending, as a range if they follow each other, else as a list; sum of their sizes in bytes; how many of
            them are oneway.
        first_new: number of the first new key; 0 also means that those before are forgotten.
        new: the keys that were met for the first time, as kind, name and producer group.
    """

    @property
    def stop(self) -> int: ...
    @property
    def runs(self) -> list[tuple[int, Sequence[int], int, int]]: ...
    @property
    def first_new(self) -> int: ...
    @property
    def new(self) -> list[tuple[str, str, str]]: ...
    def __len__(self) -> int: ...
    def frame(self, index: int) -> tuple[int, int, int, int, int, int]:
        """Return a frame's place in ``runs``, its start and stop, and its header's code, opaque and flag.

        Raises:
            IndexError: there is no such frame.
        """
    def sizes(self, indexes: Sequence[int]) -> list[int]:
        """Return the sizes of these frames in bytes.

        Raises:
            IndexError: there is no such frame.
        """
    def kept(self, refused: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
        """Return what is left of ``start`` to ``end`` without these frames, as slices of which none is empty.

        Args:
            refused: ascending indexes.
            start: offset in the chunk.
            end: offset in the chunk.

        Raises:
            IndexError: there is no such frame.
        """
    def refuse(self, refused: Sequence[int], head: bytes, tail: bytes) -> tuple[bytes, int]:
        """Take these frames out of what is owed, and write the answers to those of them that are not oneway.

        Args:
            refused: indexes.
            head: an answer's JSON header up to its opaque.
            tail: what follows the opaque.

        Returns:
            The answers, whole frames one after the other, and how many there are.

        Raises:
            IndexError: there is no such frame.
        """
