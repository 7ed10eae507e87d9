"""A mapping that never changes, and of which one with a few changes is made without copying all of it.

Thousands of rules stay when one is edited, many times a second. So a map is a large dictionary, which it shares
with the maps that it came from, and a small one of what is different from that; when the small one has grown, both
become a large one again.
"""

# ruff: noqa: SLF001 - sets and maps of one lineage share what they are made of

from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST_CHANGES: Final = 256
"""Changes kept apart: copied with each edit, while all is copied only once in so many."""


class SharedMap(Generic[K, V]):
    """A mapping that never changes; None is no value.

    Args:
        items: what is in it; taken over, and not to be changed any more.
    """

    __slots__ = ("_changes", "_length", "_shared")

    def __init__(self, items: dict[K, V]) -> None:
        self._shared = items
        #: None is what is there no more.
        self._changes: dict[K, V | None] = {}
        self._length = len(items)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        changes = self._changes
        if changes and key in changes:
            return changes[key]
        return self._shared.get(key)

    def __contains__(self, key: K) -> bool:
        """Say whether there is such a key."""
        return self.get(key) is not None

    def __len__(self) -> int:
        """Return how many keys there are."""
        return self._length

    def __iter__(self) -> Iterator[K]:
        """Yield all keys."""
        return (key for key, _ in self.items())

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield all keys with their values; the changed ones last."""
        changes = self._changes
        yield from (
            (item for item in self._shared.items() if item[0] not in changes) if changes else self._shared.items()
        )
        for key, value in changes.items():
            if value is not None:
                yield key, value

    def edited(self, put: dict[K, V], drop: Iterable[K] = ()) -> "SharedMap[K, V]":
        """Return a map with other values for some keys, and without others; what is put is not dropped."""
        changes: dict[K, V | None] = self._changes | dict.fromkeys(drop) | put
        other: SharedMap[K, V] = SharedMap(self._shared)
        other._changes = changes
        other._length = self._length
        for key, value in changes.items():
            other._length += (value is not None) - (self.get(key) is not None)
        return SharedMap(dict(other.items())) if len(changes) > MOST_CHANGES else other

    def differing(self, other: "SharedMap[K, V]") -> Iterator[K]:
        """Yield the keys whose values are not the very same in another map; quickly, if it shares most of them."""
        alike = self._shared is other._shared
        keys = self._changes.keys() | other._changes.keys() if alike else {*self, *other}
        return (key for key in keys if self.get(key) is not other.get(key))
