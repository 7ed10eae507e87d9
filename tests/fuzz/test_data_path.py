"""The whole data path over loopback sockets: recorded connections pass unchanged, and invalid ones disturb no other."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
from playbook import frames
from playbook.captures import CAPTURES, Capture
from playbook.trial import random_pieces

from limiter.rules.limit_text import parse_limit
from limiter.rules.rule_set import RuleSet
from proxy.datapath.datapath import DataPathConfig, LocalDataPath
from proxy.deciding.pipeline import HandlerConfig
from proxy.deciding.rate_limit import PLUGIN, RateLimitOptions
from proxy.net.server import ListenerConfig
from proxy.net.tls import BrokerTls, ClientTls
from proxy.protocols.rocketmq import PROTOCOL
from proxy.protocols.rocketmq.options import RocketMQOptions

HIGH = ("topic:*=1000000/s", "retry_group:*=1000000/s")
# Long enough for any machine. Only a hang reaches it.
HANG_S = 120

Serve = Callable[[trio.SocketStream], Awaitable[None]]


@asynccontextmanager
async def data_path(
    serve: Serve, *, client_tls: ClientTls | None = None, broker_tls: BrokerTls | None = None
) -> AsyncIterator[LocalDataPath]:
    """Run a data path with high limits in front of a broker with this handler."""

    async def serve_client(stream: trio.SocketStream) -> None:
        # Probes send nothing.
        if await stream.socket.recv(1, socket.MSG_PEEK):
            await serve(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve_client, 0, host="127.0.0.1"))
        broker = listeners[0].socket.getsockname()
        listener = ListenerConfig(
            *("main", PROTOCOL, RocketMQOptions(), ("127.0.0.1", 0), broker),
            client_tls=client_tls,
            broker_tls=broker_tls,
        )
        rule_set = RuleSet(tuple(map(parse_limit, HIGH)))
        config = DataPathConfig((listener,), (HandlerConfig(PLUGIN, RateLimitOptions()),), rule_set)
        path = LocalDataPath(config)
        await nursery.start(path.run)
        yield path
        nursery.cancel_scope.cancel()


async def connect(path: LocalDataPath) -> trio.SocketStream:
    return await trio.open_tcp_stream(*path.server.bound("main"))


async def converse(stream: trio.abc.HalfCloseableStream, said: bytes, seed: int, longest: int) -> bytes:
    """Send data in pieces and end the stream. Return the other end's data until its end."""
    heard = bytearray()

    async def speak() -> None:
        for piece in random_pieces(said, Random(seed), longest):
            await stream.send_all(piece)
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        async for chunk in stream:
            heard += chunk
    return bytes(heard)


@pytest.mark.parametrize("longest", [20, 500, 20_000])
@pytest.mark.parametrize("capture", CAPTURES, ids=str)
async def test_recorded_connection_passes_byte_for_byte(capture: Capture, longest: int) -> None:
    to_broker: list[bytes] = []
    served = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        to_broker.append(await converse(stream, capture.to_client, 1, longest))
        served.set()

    with trio.fail_after(HANG_S):
        async with data_path(serve) as path, await connect(path) as client:
            to_client = await converse(client, capture.to_broker, 2, longest)
            await served.wait()
            snapshot = await path.snapshot()
    assert to_client == capture.to_client
    assert to_broker == [capture.to_broker]
    assert snapshot.bytes_total == {"client": len(capture.to_broker), "broker": len(capture.to_client)}
    assert snapshot.frames_total == {
        "client": len(list(frames.split(capture.to_broker))),
        "broker": len(list(frames.split(capture.to_client))),
    }
    assert not any(snapshot.bypassed.values())
    assert snapshot.undecodable_total == {}


async def answer_all(stream: trio.SocketStream) -> None:
    """Answer every request like a broker, and close at an invalid frame, as a real one does."""
    held = bytearray()
    try:
        async for chunk in stream:
            held += chunk
            while len(held) >= 8:
                length, word = int.from_bytes(held[:4], signed=True), int.from_bytes(held[4:8])
                if not 4 + (word & 0xFFFFFF) <= length < 16_777_213:
                    return
                if len(held) < 4 + length:
                    break
                await _answer(stream, bytes(held[: 4 + length]))
                del held[: 4 + length]
    except trio.BrokenResourceError:
        return


async def _answer(stream: trio.SocketStream, whole: bytes) -> None:
    try:
        header = frames.read_header(whole)
        opaque = header["opaque"]
    except (ValueError, KeyError, AssertionError):
        opaque = 0
    await stream.send_all(frames.answer(opaque if isinstance(opaque, int) else 0))


async def test_good_connection_is_not_disturbed_by_bad_ones(factor: int) -> None:
    random = Random(42)

    async def misbehave(path: LocalDataPath) -> None:
        for _ in range(60 * factor):
            data = bytearray(b"".join(frames.split(random.choice(CAPTURES).to_broker))[: random.randint(1, 5_000)])
            for _ in range(random.randint(1, 10)):
                data[random.randrange(len(data))] = random.randrange(256)
            stream = await connect(path)
            try:
                for piece in random_pieces(bytes(data), random, random.choice((10, 100, 5_000))):
                    await stream.send_all(piece)
                if random.random() < 0.5:
                    await stream.send_eof()
                    await stream.receive_some()
            except trio.BrokenResourceError:
                pass  # closed by the other side, correctly
            finally:
                await trio.aclose_forcefully(stream)

    async def behave(path: LocalDataPath) -> None:
        async with await connect(path) as stream:
            received = bytearray()
            for opaque in range(300 * factor):
                await stream.send_all(frames.send("orders", opaque, body=b"x" * random.randint(0, 3_000)))
                expected = frames.answer(opaque)
                while len(received) < len(expected):
                    received += await stream.receive_some()
                assert received == expected
                received.clear()

    with trio.fail_after(HANG_S * factor):
        async with data_path(answer_all) as path:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(misbehave, path)
                nursery.start_soon(behave, path)
            snapshot = await path.snapshot()
    reasons = {reason for _, reason in snapshot.closed_total}
    assert "bad_frame" in reasons
    assert "internal_error" not in reasons
    orders = snapshot.resources["topic", "orders"]
    assert orders.requests["pass"] == 300 * factor
    assert not any(snapshot.bypassed.values())
