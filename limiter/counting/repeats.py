"""Recognizes *repeats*: messages that clients send again after a refusal, with the same id.

Ids are kept as keyed hashes in two generations. The younger generation replaces the older one after half a minute, or
when it is full.
"""

from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from limiter.compiled import COMPILED

MAX_IDS: Final = 65_536
HALF_NS: Final = 30_000_000_000
KEPT_NS: Final = 2 * HALF_NS
SOON_NS: Final = 10_000_000_000
"""Most clients retry within this time. An id that is dropped earlier counts as unidentified."""


class Repeats(NamedTuple):
    requests: int = 0
    messages: int = 0
    size_bytes: int = 0
    identified: int = 0  # requests whose repeats will be recognized

    def plus(self, more: "Repeats") -> "Repeats":
        return Repeats(*map(add, self, more))


NO_REPEATS: Final = Repeats()


class RefusedIds:
    def __init__(self, most: int = MAX_IDS) -> None:
        self._half = most // 2
        self._new: set[int] = set()
        self._old: set[int] = set()
        self._began_ns = 0
        self._unseen = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def see(self, key: int, message_id: bytes, now_ns: int, refused: bool) -> tuple[bool, bool]:  # noqa: FBT001 - called for every message
        """Check whether a message is a repeat. Remember it if it is ``refused``, otherwise forget it.

        ``key`` is a hash of the message's resource. ``now_ns`` must not decrease.

        Returns:
            Whether the message is a repeat, and whether a repeat of it will be recognized. The latter is False once for
            each id younger than ``SOON_NS`` that was dropped to make room.
        """
        number = hash((key, message_id))
        self._rotate(now_ns)
        new, old = self._new, self._old
        known = number in new
        if known and refused:
            return True, True
        if not known and number in old:
            known = True
            old.discard(number)
        if not refused:
            new.discard(number)
            return known, False
        if len(new) >= self._half:
            if now_ns - self._began_ns < SOON_NS:
                self._unseen += len(old)
            self._turn(now_ns)
        self._new.add(number)
        seen = self._unseen == 0
        if not seen:
            self._unseen -= 1
        return known, seen

    def _rotate(self, now_ns: int) -> None:
        age_ns = now_ns - self._began_ns
        if age_ns >= HALF_NS:
            self._turn(now_ns)
            self._unseen = 0
            if age_ns >= KEPT_NS:
                self._old = set()

    def _turn(self, now_ns: int) -> None:
        self._old, self._new, self._began_ns = self._new, set(), now_ns


PythonRefusedIds = RefusedIds
if not TYPE_CHECKING and COMPILED is not None:
    RefusedIds = COMPILED.RefusedIds
