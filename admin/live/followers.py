"""Those who follow changes as they are committed."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

import trio

from admin.live.model import Change

#: So many changes can one be behind.
_BEHIND: Final = 1_024


class Follower(AsyncIterator[Change]):
    """Hands out changes as they come."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque(maxlen=_BEHIND)
        self._came = trio.Event()

    def put(self, changes: Sequence[Change]) -> None:
        """Take changes over."""
        self._changes.extend(changes)
        self._came.set()

    def __aiter__(self) -> "Follower":
        return self

    async def __anext__(self) -> Change:
        await trio.lowlevel.checkpoint()
        while not self._changes:
            self._came = trio.Event()
            await self._came.wait()
        return self._changes.popleft()
