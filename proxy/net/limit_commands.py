"""Keeps the commands that clients send to Sluice itself, until the admin side answers them."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final, NamedTuple

import trio

from proxy.common.admission import client_of
from proxy.control import LimitCommand, LimitCommandReply
from proxy.deciding.batch import ConnectionInfo
from proxy.protocols.base import CommandRequest, CommandStatus

MAX_OPEN: Final = 256
"""Maximum number of unanswered commands."""
MAX_OPEN_OF_CLIENT: Final = 16
"""Maximum number of unanswered commands per client address, or per /64 for IPv6."""
_NO_CONNECTIONS: Final = LimitCommandReply(error="Sluice is shutting down; try again later")


class _Open(NamedTuple):
    info: ConnectionInfo
    ask: CommandRequest
    answer: Callable[[CommandRequest, LimitCommandReply], None]


class LimitCommands:
    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._open_of: Counter[str] = Counter()
        self._waiting: dict[int, LimitCommand] = {}
        self._asked = trio.lowlevel.ParkingLot()
        self._taken = False
        self._last_id = 0

    @property
    def open(self) -> int:
        return len(self._open)

    def ask(
        self, info: ConnectionInfo, ask: CommandRequest, answer: Callable[[CommandRequest, LimitCommandReply], None]
    ) -> CommandStatus:
        """Queue a command. ``answer`` is called with the reply, unless ``forget`` is called first."""
        if not self._taken:
            return "nobody"
        client = client_of(info.address)
        if len(self._open) >= MAX_OPEN or self._open_of[client] >= MAX_OPEN_OF_CLIENT:
            return "full"
        self._open_of[client] += 1
        self._last_id += 1
        self._open[self._last_id] = _Open(info, ask, answer)
        self._waiting[self._last_id] = LimitCommand(
            self._last_id, info.listener, info.peer, ask.verb, ask.kind, ask.name, ask.rate_per_s
        )
        self._asked.unpark_all()
        return "taken"

    def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        asked = self._close(command_id)
        if asked is not None:
            asked.answer(asked.ask, reply)

    def forget(self, connection_id: int) -> None:
        for command_id in [each for each, asked in self._open.items() if asked.info.id == connection_id]:
            self._close(command_id)

    def _close(self, command_id: int) -> _Open | None:
        self._waiting.pop(command_id, None)
        asked = self._open.pop(command_id, None)
        if asked is not None:
            client = client_of(asked.info.address)
            self._open_of[client] -= 1
            if not self._open_of[client]:
                del self._open_of[client]
        return asked

    @asynccontextmanager
    async def take(self) -> AsyncIterator[AsyncIterator[LimitCommand]]:
        """Receive commands. On exit, unanswered commands fail. Raises RuntimeError if there already is a receiver."""
        if self._taken:
            raise RuntimeError("limit commands already have a receiver")
        self._taken = True
        try:
            async with aclosing(self._commands()) as commands:
                yield commands
        finally:
            self._taken = False
            for command_id in list(self._open):
                self.reply(command_id, _NO_CONNECTIONS)

    async def _commands(self) -> AsyncGenerator[LimitCommand, None]:
        while True:
            while not self._waiting:
                await self._asked.park()
            yield self._waiting.pop(next(iter(self._waiting)))
