"""A dictionary whose items can be looked at in turn, the one that was looked at longest ago first.

An OrderedDict does that, too, but copying its values takes ten times as long, as it looks each of them up; and a plain
dict would walk over all that was ever taken from its front to find its first item.
"""

from collections import deque
from collections.abc import Hashable
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_SLACK: Final = 16


class Rotation(dict[K, V]):
    """A dictionary; what is put into it by ``place`` is looked at in turn."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        super().__init__()
        # May hold keys that are gone, and some twice; it is made anew before they are the most.
        self._order: deque[K] = deque()

    def place(self, key: K, value: V) -> None:
        """Put an item in; it is looked at after all others."""
        if key not in self:
            self._order.append(key)
        self[key] = value
        if len(self._order) > 2 * len(self) + _SLACK:
            self._order = deque(self)

    def look(self) -> tuple[K, V]:
        """Return the item that was looked at longest ago.

        Raises:
            IndexError: there is none.
        """
        while (key := self._order.popleft()) not in self:
            pass
        self._order.append(key)
        return key, self[key]
