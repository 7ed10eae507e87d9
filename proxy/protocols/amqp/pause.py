"""How long a connection that was lent in vain stays with Python."""


class Pause:
    """Counts chunks: one at first, and each time in a row twice as many and one, up to ``most``."""

    __slots__ = ("_chunks", "_left", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks = self._left = 0

    def begin(self, *, in_vain: bool) -> None:
        """Take note that the connection has returned."""
        self._chunks = self._left = min(2 * self._chunks + 1, self._most) if in_vain else 0

    def lasts(self) -> bool:
        """Say whether the connection is not lent after this chunk."""
        lasts = self._left > 0
        self._left -= lasts
        return lasts
