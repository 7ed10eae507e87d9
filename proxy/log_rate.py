"""One log line a second for each thing that can happen very often; the rest is counted in the next line.

What clients can cause thousands of times a second must not be able to fill a disk. Nothing is lost: counters
have every one of them.
"""

from collections.abc import Hashable


class LogRate:
    """Decides whether a line may be written now."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, int]] = {}

    def take(self, key: Hashable, now_s: float, times: int = 1) -> int | None:
        """Ask for one line about ``key``; keys must be few.

        Args:
            key: what the line is about, e.g. a listener and a reason.
            now_s: any clock in seconds that does not run backwards.
            times: how often it happened; the line stands for the first of them.

        Returns:
            None when the line must not be written, otherwise how many before it were not.
        """
        written_s, held_back = self._seen.get(key, (float("-inf"), 0))
        if now_s - written_s < 1:
            self._seen[key] = (written_s, held_back + times)
            return None
        self._seen[key] = (now_s, times - 1)
        return held_back
