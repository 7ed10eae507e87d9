"""The demo's clients. They send at a steady rate, and neither slow down nor retry when refused."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal

import trio

from admin.config.addresses import Endpoint
from admin.demo.broker import VERSION, cut
from admin.demo.ledger import Counts, TopicLoad
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

_TICK_S: Final = 0.02
_MAX_CATCH_UP_S: Final = 0.5
_CONNECT_FOR_S: Final = 5.0
_READ_BYTES: Final = 64 * 1024
_BODY: Final = b"sluice demo " * 8
#: The fields of SendMessageRequestHeaderV2, except topic and queue.
_FIELDS: Final = {
    "a": "sluice-demo",
    "c": "TBW102",
    "d": "4",
    "f": "0",
    "g": "0",
    "h": "0",
    "i": "",
    "j": "0",
    "k": "false",
    "l": "16",
    "m": "false",
}

Outcome = Literal["passed", "refused", "failed"]


class Client(ABC):
    """Sends to one topic or queue. If the connection ended early, ``lost`` is the reason."""

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
        """Encode the message with this number. Numbers start at 1."""

    @abstractmethod
    def answers(self, data: bytearray) -> Iterable[tuple[int, Outcome]]:
        """Remove complete responses from ``data``, and yield the message number and outcome of each."""

    async def greet(self, stream: trio.SocketStream) -> None:
        del stream

    async def run(self, endpoint: Endpoint) -> None:
        """Connect and send until ``stop`` is called. Then wait until all requests are answered."""
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
        self._stopping.set()

    def waiting_up_to(self, number: int) -> list[int]:
        return [each for each in self._waiting if each <= number]

    async def _send(self, stream: trio.SocketStream) -> None:
        started_s = trio.current_time()
        rate, sent = self._load.rate_per_s, 0
        while not self._stopping.is_set():
            # After a long stall, skip overdue messages, because sending all of them would be a flood.
            started_s = max(started_s, trio.current_time() - _MAX_CATCH_UP_S - sent / rate)
            due = int((trio.current_time() - started_s) * rate) - sent
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
                sent_s = self._waiting.pop(number, None)
                if sent_s is None:
                    # A second response to a request never counts as a success.
                    self._counts.stray += 1
                    continue
                if self._observe is not None:
                    self._observe(trio.current_time() - sent_s)
                setattr(self._counts, outcome, getattr(self._counts, outcome) + 1)
            if not self._waiting:
                self._answered.set()
        raise trio.BrokenResourceError


class Producer(Client):
    """A RocketMQ producer that connects to the broker without a name server."""

    def message(self, number: int) -> bytes:
        fields = {**_FIELDS, "b": self.topic, "e": str(number % 4)}
        request = RemotingCommand(
            code=RequestCode.SEND_MESSAGE_V2,
            language="PYTHON",
            version=VERSION,
            opaque=number,
            fields=fields,
            body=_BODY,
        )
        return encode(request)

    def answers(self, data: bytearray) -> Iterable[tuple[int, Outcome]]:
        return [(answer.opaque, _outcome(answer)) for answer in cut(data)]


def _outcome(answer: RemotingCommand) -> Outcome:
    if answer.code == ResponseCode.SUCCESS:
        return "passed"
    return "refused" if answer.code == ResponseCode.SYSTEM_BUSY and "RateLimit" in (answer.remark or "") else "failed"


async def _connect(endpoint: Endpoint) -> trio.SocketStream:
    with trio.move_on_after(_CONNECT_FOR_S):
        while True:
            with suppress(OSError):
                return await trio.open_tcp_stream(*endpoint)
            await trio.sleep(_TICK_S)
    return await trio.open_tcp_stream(*endpoint)
