"""The demo's clients: small RocketMQ producers that send at a steady rate, whatever the answers.

One connection per topic. They do not slow down when refused, as a runaway would not, and they count every
answer by what it says. No retries, no routes, no name server: not a client to copy.
"""

from collections.abc import Callable
from typing import Final

import trio

from admin.config.addresses import Endpoint
from admin.demo.frames import cut
from admin.demo.ledger import Counts, TopicLoad
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

#: Messages that are due are written together this often.
_TICK_S: Final = 0.02
_MADE_UP_FOR_S: Final = 0.5
_READ_BYTES: Final = 64 * 1024
_BODY: Final = b"sluice demo " * 8
_VERSION: Final = 513


class Producer:
    """One topic's client.

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

    async def run(self, endpoint: Endpoint) -> None:
        """Connect and send until ``stop``, then read until every request has its answer.

        Should the connection end before that, ``lost`` says why.
        """
        try:
            async with await trio.open_tcp_stream(*endpoint) as stream, trio.open_nursery() as nursery:
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

    async def _send(self, stream: trio.SocketStream) -> None:
        started_s = trio.current_time()
        sent = 0
        while not self._stopping.is_set():
            # What a stall has kept it from sending for longer than this is left out: at once it would be a flood.
            started_s = max(started_s, trio.current_time() - _MADE_UP_FOR_S - sent / self._load.rate_per_s)
            due = int((trio.current_time() - started_s) * self._load.rate_per_s) - sent
            if due > 0:
                await stream.send_all(b"".join(self._frame(sent + number) for number in range(1, due + 1)))
                sent += due
                self._counts.sent += due
            with trio.move_on_after(_TICK_S):
                await self._stopping.wait()

    def _frame(self, opaque: int) -> bytes:
        self._waiting[opaque] = trio.current_time()
        return encode(
            RemotingCommand(
                code=RequestCode.SEND_MESSAGE_V2,
                language="PYTHON",
                version=_VERSION,
                opaque=opaque,
                flag=0,
                remark=None,
                fields={
                    "a": "sluice-demo",
                    "b": self._load.topic,
                    "c": "TBW102",
                    "d": "4",
                    "e": str(opaque % 4),
                    "f": "0",
                    "g": "0",
                    "h": "0",
                    "i": "",
                    "j": "0",
                    "k": "false",
                    "l": "16",
                    "m": "false",
                },
                body=_BODY,
            )
        )

    async def _read(self, stream: trio.SocketStream) -> None:
        data = bytearray()
        while chunk := await stream.receive_some(_READ_BYTES):
            data += chunk
            for answer in cut(data):
                self._count(answer)
            if not self._waiting:
                self._answered.set()
        raise trio.BrokenResourceError

    def _count(self, answer: RemotingCommand) -> None:
        sent_s = self._waiting.pop(answer.opaque, None)
        if sent_s is None:
            # An answer to nothing, or a second one: never counted as a success.
            self._counts.stray += 1
            return
        if self._observe is not None:
            self._observe(trio.current_time() - sent_s)
        if answer.code == ResponseCode.SUCCESS:
            self._counts.passed += 1
        elif answer.code == ResponseCode.SYSTEM_BUSY and "RateLimit" in (answer.remark or ""):
            self._counts.refused += 1
        else:
            self._counts.failed += 1
