"""The scan: what is read of a chunk in one go, as both of its implementations do it.

One call takes all *plain* frames from some place on: single sends and send-backs whose headers can be read beyond any
doubt. The first frame that is not plain ends it and is read by ``header``, with all the care that takes, so that a scan
never has to be lenient. What it took is in columns: no object is made for a frame that nobody looks at.

``python_scan`` is always there. The package ``sluice_scan`` (folder ``scan``) is the same as compiled code.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from proxy.protocols.base import Buffer

#: Keys remembered by a scanner. What is kept by name is kept for each connection.
MAX_KEYS: Final = 1024
#: A scan ends when it has taken frames of so many keys.
MAX_RUNS: Final = 256
#: Steps, in either direction, are frames looked at one by one, and keys of a scan: each takes some microseconds. Up to
#: so many in a chunk, much may be read at once.
FEW_STEPS: Final = 64

Key = tuple[str, str, str]
"""What a send is charged to: kind and name of the resource, and the producer group, which may be empty."""

Run = tuple[int, Sequence[int], int, int]
"""The frames of one key: its number, their indexes in the segment, ascending; their bytes, and how many are oneway."""


class Opaques(Protocol):
    """The numbers of sends that have no answer yet, as many as there is room for.

    Attributes:
        ambiguous: a number was put in that was there already, or for which there was no room.
    """

    @property
    def ambiguous(self) -> bool: ...  # noqa: D102 - as above

    def __len__(self) -> int:
        """Return how many there are."""

    def __contains__(self, opaque: int, /) -> bool:
        """Say whether one is there."""

    def add(self, opaque: int, /) -> None:
        """Put one in, if there is room."""

    def discard(self, opaque: int, /) -> bool:
        """Take one out; say whether it was there."""

    def settle(self, chunk: Buffer, position: int, /) -> tuple[int, int]:
        """Step over answers of the broker to sends that are in the set, and take these out.

        Returns:
            The offset of the first frame not stepped over, which may be beyond the chunk, and how many were.
        """


class Segment(Protocol):
    """The plain frames that one call took, one behind the other; it holds nothing of the chunk.

    Attributes:
        stop: offset of the first frame that was not taken; beyond the chunk if more of the last one is to come.
        runs: what was taken, by key, in the order of first appearance.
        first_new: the number of the first key that is new; 0 if all numbers before are forgotten.
        new: the keys met for the first time, in the order of their numbers.
    """

    @property
    def stop(self) -> int: ...  # noqa: D102 - as above

    @property
    def runs(self) -> list[Run]: ...  # noqa: D102

    @property
    def first_new(self) -> int: ...  # noqa: D102

    @property
    def new(self) -> list[Key]: ...  # noqa: D102

    def __len__(self) -> int:
        """Return how many frames were taken."""

    def frame(self, index: int, /) -> tuple[int, int, int, int, int, int]:
        """Return one frame: the number of its run in ``runs``, start, stop, request code, opaque and flag."""

    def sizes(self, indexes: Sequence[int], /) -> list[int]:
        """Return the bytes that some frames are on the wire."""

    def kept(self, refused: Sequence[int], start: int, end: int, /) -> list[tuple[int, int]]:
        """Return the slices of ``[start, end)`` that are left without these frames: none empty, none that touch."""

    def refuse(self, refused: Sequence[int], head: bytes, tail: bytes, /) -> tuple[bytes, int]:
        """Take refused frames out of what is owed, and make the answers to those that are not oneway.

        Args:
            refused: ascending indexes.
            head: the header of an answer before its opaque.
            tail: and behind it.

        Returns:
            The answers, whole frames one behind the other, and how many they are.
        """


class Scanner(Protocol):
    """Scans the stream of one client."""

    def scan(self, chunk: Buffer, position: int, max_length: int, /) -> Segment:
        """Take the plain frames from ``position`` on whose headers are complete, and note them as owed.

        It ends after frames of MAX_RUNS keys.

        Args:
            chunk: from the client.
            position: where a frame begins.
            max_length: the highest length word allowed.
        """
