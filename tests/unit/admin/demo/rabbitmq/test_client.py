"""The demo's publisher, against a broker that says what the test wants; the integration tests have a real one."""

import struct
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import pytest
import trio

from admin.common.errors import StartError
from admin.config.addresses import Endpoint
from admin.demo.ledger import Counts, TopicLoad
from admin.demo.rabbitmq.client import Publisher, declare

#: What the broker says to each method of the client that waits for an answer.
_SAYS = {
    (10, 11): (10, 30, struct.pack("!HIH", 2047, 131072, 60)),
    (10, 40): (10, 41, b"\0"),
    (20, 10): (20, 11, b"\0\0\0\0"),
    (85, 10): (85, 11, b""),
    (50, 10): (50, 11, b"\x01q" + struct.pack("!II", 7, 0)),
}
Confirm = Callable[[int], Iterable[bytes]]
StartBroker = Callable[..., Awaitable[Endpoint]]


def method(channel: int, class_: int, number: int, arguments: bytes) -> bytes:
    payload = struct.pack("!HH", class_, number) + arguments
    return struct.pack("!BHI", 1, channel, len(payload)) + payload + b"\xce"


def ack(number: int, *, multiple: bool = False) -> bytes:
    return method(1, 60, 80, struct.pack("!QB", number, multiple))


def nack(number: int, *, multiple: bool = False) -> bytes:
    return method(1, 60, 120, struct.pack("!QB", number, multiple))


@pytest.fixture
async def broker(nursery: trio.Nursery) -> StartBroker:
    """A broker that answers each publish as the test says, in pieces of a few bytes."""

    async def start(confirm: Confirm, says: dict[tuple[int, int], tuple[int, int, bytes]] | None = None) -> Endpoint:
        answers = _SAYS | (says or {})

        async def say(stream: trio.SocketStream, data: bytes) -> None:
            # A client that has all its confirms leaves, whatever more is said to it.
            with suppress(trio.BrokenResourceError):
                for at in range(0, len(data), 5):
                    await stream.send_all(data[at : at + 5])

        async def serve(stream: trio.SocketStream) -> None:
            data, published = bytearray(), 0
            while chunk := await heard_of(stream):
                data += chunk
                if data.startswith(b"AMQP"):
                    del data[:8]
                    await say(stream, method(0, 10, 10, b"\0\t" + bytes(12)))
                while len(data) >= 7 and len(data) >= (end := 8 + int.from_bytes(data[3:7], "big")):
                    frame = bytes(data[:end])
                    del data[:end]
                    heard = (frame[8], frame[10])
                    if frame[0] == 1 and heard == (60, 40):
                        published += 1
                        for each in confirm(published):
                            await say(stream, each)
                    elif frame[0] == 1 and heard in answers:
                        class_, number, arguments = answers[heard]
                        await say(stream, method(frame[2], class_, number, arguments))

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        return Endpoint(*listener.socket.getsockname())

    return start


async def heard_of(stream: trio.SocketStream) -> bytes:
    with suppress(trio.BrokenResourceError):
        return bytes(await stream.receive_some())
    return b""


async def publish(endpoint: Endpoint, until: int) -> tuple[Publisher, Counts]:
    counts = Counts()
    publisher = Publisher(TopicLoad("orders", 1000), counts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publisher.run, endpoint)
        while counts.sent < until and publisher.lost is None:
            await trio.lowlevel.checkpoint()
        publisher.stop()
    return publisher, counts


async def test_confirms_are_counted_by_what_they_say(broker: StartBroker) -> None:
    endpoint = await broker(lambda number: [nack(number) if number % 3 == 0 else ack(number)])
    publisher, counts = await publish(endpoint, 30)
    assert publisher.lost is None
    assert counts.refused == counts.sent // 3
    assert counts.passed == counts.sent - counts.refused
    assert counts.unanswered == counts.stray == 0


async def test_a_confirm_of_several_counts_for_each(broker: StartBroker) -> None:
    def confirm(number: int) -> Iterable[bytes]:
        # Beginning with the first, so that whatever is sent last has a confirm as well.
        return [ack(number)] if number < 4 else [ack(number, multiple=True)]

    _, counts = await publish(await broker(confirm), 20)
    assert (counts.passed, counts.unanswered, counts.stray) == (counts.sent, 0, 0)


async def test_a_confirm_of_nothing_is_no_success(broker: StartBroker) -> None:
    _, counts = await publish(await broker(lambda number: [ack(number), ack(number)]), 5)
    assert (counts.passed, counts.stray > 0) == (counts.sent, True)


async def test_a_queue_is_asked_for_its_messages(broker: StartBroker) -> None:
    assert await declare(await broker(lambda _: []), "orders", passive=True) == 7


async def test_a_broker_that_says_no_is_named(broker: StartBroker) -> None:
    endpoint = await broker(lambda _: [], {(50, 10): (20, 40, struct.pack("!H", 404) + b"\x09NOT_FOUND")})
    with pytest.raises(StartError, match=r"127\.0\.0\.1:\d+ does not answer: .*NOT_FOUND"):
        await declare(endpoint, "orders", passive=True)
