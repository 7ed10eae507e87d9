"""One log line a second for each frequent event; the next line says how many were left out.

Events that clients can cause thousands of times a second must not fill a disk. Counters have all of them.
"""

from collections.abc import Hashable
from math import inf


class LogRate:
    """Decides whether a line may be written now: after its first one, a key has one a second at most.

    All keys together have ``lines_per_s`` at most, of which each has an equal share.
    """

    def __init__(self, lines_per_s: float = inf) -> None:
        self._seen: dict[Hashable, tuple[float, int]] = {}
        self._lines_per_s = lines_per_s

    def take(self, key: Hashable, now_s: float, times: int = 1) -> int | None:
        """Ask for one line about ``key``; keys must be few.

        Returns:
            None when the line must not be written, otherwise how many before it were not.
        """
        written_s, held_back = self._seen.get(key, (-inf, 0))
        if now_s - written_s < max(1.0, len(self._seen) / self._lines_per_s):
            self._seen[key] = (written_s, held_back + times)
            return None
        self._seen[key] = (now_s, times - 1)
        return held_back
