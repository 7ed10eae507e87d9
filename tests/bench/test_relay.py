"""The bare relay carries everything to its end, and what breaks ends its own connection alone."""

import socket
import struct
from collections.abc import AsyncIterator

import pytest
import trio
from relay import BUFFER_BYTES, Relay

# More than both directions' buffers hold, the kernel's included.
MUCH = 16 * BUFFER_BYTES


class Between:
    """A relay that runs, and its broker's listening socket."""

    def __init__(self, address: tuple[str, int], broker: trio.SocketListener) -> None:
        self.address = address
        self.broker = broker

    async def pair(self) -> tuple[trio.SocketStream, trio.SocketStream]:
        """Connect; return the client's end and the broker's."""
        client = await trio.open_tcp_stream(*self.address)
        return client, await self.broker.accept()


@pytest.fixture
async def between() -> AsyncIterator[Between]:
    (broker,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        relay = Relay(listening, broker.socket.getsockname())
        async with broker, trio.open_nursery() as nursery:
            nursery.start_soon(relay.run)
            yield Between(listening.getsockname(), broker)
            await trio.testing.wait_all_tasks_blocked()
            left = len(relay.ends)
            nursery.cancel_scope.cancel()
        assert left == 0, "both sockets of a connection that has ended are closed"
        relay.epoll.close()


async def read_all(stream: trio.SocketStream) -> bytes:
    return b"".join([chunk async for chunk in stream])


async def test_a_direction_that_has_ended_leaves_the_other(between: Between) -> None:
    client, broker = await between.pair()
    async with client, broker:
        await client.send_all(b"question")
        await client.send_eof()
        assert await read_all(broker) == b"question"
        await broker.send_all(b"answer")
        await broker.send_eof()
        assert await read_all(client) == b"answer"


async def test_who_reads_late_gets_everything_both_ways(between: Between) -> None:
    sent = bytes(range(256)) * (MUCH // 256)
    client, broker = await between.pair()

    async def send(stream: trio.SocketStream) -> None:
        await stream.send_all(sent)
        await stream.send_eof()

    async with client, broker, trio.open_nursery() as nursery:
        nursery.start_soon(send, client)
        nursery.start_soon(send, broker)
        # Both have sent what goes: the relay waits for readers.
        await trio.testing.wait_all_tasks_blocked()
        assert await read_all(broker) == sent
        assert await read_all(client) == sent


@pytest.mark.parametrize("breaks", ["client", "broker"])
async def test_a_connection_that_breaks_ends_alone(between: Between, breaks: str) -> None:
    ends = dict(zip(("client", "broker"), await between.pair(), strict=True))
    sound_client, sound_broker = await between.pair()
    broken = ends.pop(breaks)
    (left,) = ends.values()
    # Closed so, a socket sends a reset.
    broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await broken.aclose()
    async with left, sound_client, sound_broker:
        assert await read_all(left) == b""
        await sound_client.send_all(b"still there")
        assert await sound_broker.receive_some() == b"still there"


async def test_without_a_broker_the_client_is_closed(between: Between) -> None:
    await between.broker.aclose()
    async with await trio.open_tcp_stream(*between.address) as client:
        assert await read_all(client) == b""
