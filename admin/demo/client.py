"""A client of the demos: it sends at a steady rate, whatever the answers; how, is its protocol's.

One connection per name. It does not slow down when refused, as a runaway would not, and it counts every answer by what
it says. No retries: not a client to copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal

import trio

from admin.config.addresses import Endpoint
from admin.demo.ledger import Counts, TopicLoad

#: Messages that are due are written together this often.
_TICK_S: Final = 0.02
_MADE_UP_FOR_S: Final = 0.5
_CONNECT_FOR_S: Final = 5.0
_READ_BYTES: Final = 64 * 1024

Outcome = Literal["passed", "refused", "failed"]


class Client(ABC):
    """One name's client.

    Args:
        load: what it sends.
        counts: where it counts.
        observe: told of each answer how many seconds it took.

    Attributes:
        topic: where it sends.
        lost: why the connection ended too early; None if it did not.
    """

    def __init__(self, load: TopicLoad, counts: Counts, observe: Callable[[float], None] | None = None) -> None:
        self._load = load
        self._counts = counts
        self._observe = observe
        self._waiting: dict[int, float] = {}
        self._stopping = trio.Event()
        self._answered = trio.Event()
        self.topic = load.topic
        self.lost: str | None = None

    @abstractmethod
    def message(self, number: int) -> bytes:
        """Write a message; the number is the next one, from 1."""

    @abstractmethod
    def answers(self, data: bytearray) -> Iterable[tuple[int, Outcome]]:
        """Take whole answers off the beginning of what has come; returns the messages' numbers and what they say."""

    async def greet(self, stream: trio.SocketStream) -> None:
        """Say what comes before messages, and wait for the answers to it."""
        del stream

    async def run(self, endpoint: Endpoint) -> None:
        """Connect and send until ``stop``, then read until every request has its answer.

        Should the connection end before that, ``lost`` says why.
        """
        try:
            async with await _connect(endpoint) as stream, trio.open_nursery() as nursery:
                await self.greet(stream)
                nursery.start_soon(self._read, stream)
                await self._send(stream)
                while self._waiting:
                    self._answered = trio.Event()
                    await self._answered.wait()
                nursery.cancel_scope.cancel()
        except* OSError as group:
            self.lost = str(group.exceptions[0])
        except* trio.BrokenResourceError:
            self.lost = "the connection was closed"

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping.set()

    def waiting_up_to(self, number: int) -> list[int]:
        """Return the messages without an answer up to this one."""
        return [each for each in self._waiting if each <= number]

    async def _send(self, stream: trio.SocketStream) -> None:
        started_s = trio.current_time()
        sent = 0
        while not self._stopping.is_set():
            # What a stall has kept it from sending for longer than this is left out: at once it would be a flood.
            started_s = max(started_s, trio.current_time() - _MADE_UP_FOR_S - sent / self._load.rate_per_s)
            due = int((trio.current_time() - started_s) * self._load.rate_per_s) - sent
            if due > 0:
                numbers = range(sent + 1, sent + due + 1)
                self._waiting.update(dict.fromkeys(numbers, trio.current_time()))
                await stream.send_all(b"".join(map(self.message, numbers)))
                sent += due
                self._counts.sent += due
            with trio.move_on_after(_TICK_S):
                await self._stopping.wait()

    async def _read(self, stream: trio.SocketStream) -> None:
        data = bytearray()
        while chunk := await stream.receive_some(_READ_BYTES):
            data += chunk
            for number, outcome in self.answers(data):
                self._count(number, outcome)
            if not self._waiting:
                self._answered.set()
        raise trio.BrokenResourceError

    def _count(self, number: int, outcome: Outcome) -> None:
        sent_s = self._waiting.pop(number, None)
        if sent_s is None:
            # An answer to nothing, or a second one: never counted as a success.
            self._counts.stray += 1
            return
        if self._observe is not None:
            self._observe(trio.current_time() - sent_s)
        setattr(self._counts, outcome, getattr(self._counts, outcome) + 1)


async def _connect(endpoint: Endpoint) -> trio.SocketStream:
    """Connect, as clients do, to what may not listen for a moment: Sluice does not while its broker does not answer."""
    with trio.move_on_after(_CONNECT_FOR_S):
        while True:
            with suppress(OSError):
                return await trio.open_tcp_stream(*endpoint)
            await trio.sleep(_TICK_S)
    return await trio.open_tcp_stream(*endpoint)
