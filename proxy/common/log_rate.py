"""One log line a second for each frequent event; the next line says how many were left out.

Events that clients can cause thousands of times a second must not fill a disk. Counters have all of them.
"""

from collections.abc import Hashable
from typing import Final

_WINDOW_S: Final = 1.0


class LogRate:
    """Decides whether a line may be written now: ``lines_per_s`` at most of all keys together.

    When more keys than that have something to log, they take turns.
    """

    def __init__(self, lines_per_s: int | None = None) -> None:
        self._seen: dict[Hashable, tuple[float, int]] = {}
        self._lines_per_s = lines_per_s
        self._window_began_s = float("-inf")
        self._asked: set[Hashable] = set()
        self._written = 0
        self._interval_s = _WINDOW_S

    def take(self, key: Hashable, now_s: float, times: int = 1) -> int | None:
        """Ask for one line about ``key``; keys must be few.

        Returns:
            None when the line must not be written, otherwise how many before it were not.
        """
        written_s, held_back = self._seen.get(key, (float("-inf"), 0))
        if not self._room(key, now_s) or now_s - written_s < self._interval_s:
            self._seen[key] = (written_s, held_back + times)
            return None
        self._seen[key] = (now_s, times - 1)
        self._written += 1
        return held_back

    def _room(self, key: Hashable, now_s: float) -> bool:
        if self._lines_per_s is None:
            return True
        if now_s - self._window_began_s >= _WINDOW_S:
            # As many keys as asked in the last window take turns in the next ones.
            self._interval_s = max(_WINDOW_S, len(self._asked) / self._lines_per_s)
            self._asked.clear()
            self._window_began_s, self._written = now_s, 0
        self._asked.add(key)
        return self._written < self._lines_per_s
