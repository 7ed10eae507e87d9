"""Limits how often Sluice logs events that clients can trigger thousands of times a second."""

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Final

_FORGOTTEN_AFTER_S: Final = 3600.0


class LogRate:
    """Allows each key one log line per second, and all recent keys together ``lines_per_s``."""

    def __init__(self, lines_per_s: float = inf) -> None:
        #: Time of each key's last line, and number of lines suppressed since then. Oldest first.
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._lines_per_s = lines_per_s

    def take(self, key: Hashable, now_s: float, times: int = 1) -> int | None:
        """Return how many lines were suppressed since the key's last line, or None if this line must be suppressed."""
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
