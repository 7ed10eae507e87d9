"""One log line a second for each frequent event; the next line says how many were left out.

Events that clients can cause thousands of times a second must not fill a disk. Counters have all of them.
"""

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Final

_FORGOTTEN_AFTER_S: Final = 3600.0


class LogRate:
    """Decides whether a line may be written now: after its first one, a key has one a second at most.

    All keys together have ``lines_per_s`` at most, of which each has an equal share.
    """

    def __init__(self, lines_per_s: float = inf) -> None:
        #: When each key's last line was written, the oldest first, and how often it was left out since.
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._lines_per_s = lines_per_s

    def take(self, key: Hashable, now_s: float, times: int = 1) -> int | None:
        """Ask for one line about ``key``.

        Returns:
            None when the line must not be written, otherwise how many before it were not.
        """
        written_s, held_back = self._seen.get(key, (-inf, 0))
        pause_s = max(1.0, len(self._seen) / self._lines_per_s)
        if now_s - written_s < pause_s:
            self._seen[key] = (written_s, held_back + times)
            return None
        self._seen[key] = (now_s, times - 1)
        self._seen.move_to_end(key)
        while now_s - next(iter(self._seen.values()))[0] > max(_FORGOTTEN_AFTER_S, pause_s):
            self._seen.popitem(last=False)
        return held_back
