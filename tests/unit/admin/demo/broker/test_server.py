"""The broker on trio: connections, and the end of long polls."""

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from admin.demo.broker import Loopback, serve_broker
from admin.demo.frames import cut
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

_SEND = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=7, fields={"b": "orders", "e": "0"}, body=b"body")
_PULL = RemotingCommand(
    code=RequestCode.PULL_MESSAGE,
    opaque=8,
    fields={
        "consumerGroup": "readers",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
    },
)


async def _call(stream: trio.SocketStream, command: RemotingCommand | None) -> RemotingCommand:
    if command is not None:
        await stream.send_all(encode(command))
    data = bytearray()
    async for chunk in stream:
        data += chunk
        if found := list(cut(data)):
            (answer,) = found
            return answer
    raise AssertionError("the broker closed the connection")


@pytest.fixture
async def loopback(nursery: trio.Nursery) -> AsyncIterator[Loopback]:
    """A running broker on free ports."""
    yield await nursery.start(serve_broker)
    nursery.cancel_scope.cancel()


async def _connect(address: str) -> trio.SocketStream:
    host, port = address.rsplit(":", 1)
    return await trio.open_tcp_stream(host, int(port))


async def test_both_servers_answer_on_their_ports(loopback: Loopback) -> None:
    broker = await _connect(loopback.broker_address)
    name_server = await _connect(loopback.name_server_address)
    async with broker, name_server:
        answer = await _call(broker, _SEND)
        assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 7)
        ask = RemotingCommand(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=1, version=513, fields={"topic": "orders"}
        )
        assert loopback.broker_address.encode() in (await _call(name_server, ask)).body
        assert loopback.stored("orders") == 1
        assert loopback.broker.stored_by_topic() == {"orders": 1}


async def test_held_pull_is_answered_by_the_next_message(loopback: Loopback) -> None:
    consumer, producer = [await _connect(loopback.broker_address) for _ in range(2)]
    async with consumer, producer:
        loopback.broker.create_topic("orders")
        # In pieces: a chunk that brings no answer must not make the broker forget to write later ones.
        data = encode(_PULL)
        await consumer.send_all(data[:9])
        await trio.testing.wait_all_tasks_blocked(0.01)
        await consumer.send_all(data[9:])
        while not loopback.broker.held_pulls:
            await trio.lowlevel.checkpoint()
        await _call(producer, _SEND)
        answer = await _call(consumer, None)
        assert (answer.opaque, answer.code) == (8, ResponseCode.SUCCESS)


async def test_held_pull_ends_after_the_time_it_asked_for(loopback: Loopback) -> None:
    loopback.broker.create_topic("orders")
    soon = RemotingCommand(code=11, opaque=8, fields={**_PULL.fields, "suspendTimeoutMillis": "150"})
    stream = await _connect(loopback.broker_address)
    async with stream:
        start = trio.current_time()
        assert (await _call(stream, soon)).code == ResponseCode.PULL_NOT_FOUND
        assert trio.current_time() - start >= 0.15


async def test_connection_that_speaks_something_else_is_closed_after_its_answers(loopback: Loopback) -> None:
    stream = await _connect(loopback.broker_address)
    async with stream:
        await stream.send_all(encode(_SEND) + b"GET / HTTP/1.1\r\n\r\n")
        received = bytearray(b"".join([chunk async for chunk in stream]))
        assert [answer.code for answer in cut(received)] == [ResponseCode.SUCCESS]


async def test_client_that_only_stops_sending_still_gets_its_answers(loopback: Loopback) -> None:
    stream = await _connect(loopback.broker_address)
    async with stream:
        await stream.send_all(encode(_SEND) * 100)
        await stream.send_eof()
        received = b"".join([chunk async for chunk in stream])
    assert received.count(b'"opaque":7') == 100


async def test_connection_that_breaks_leaves_nothing_behind(loopback: Loopback) -> None:
    loopback.broker.create_topic("orders")
    stream = await _connect(loopback.broker_address)
    await stream.send_all(encode(_PULL))
    while not loopback.broker.held_pulls:
        await trio.lowlevel.checkpoint()
    await trio.aclose_forcefully(stream)
    while loopback.broker.held_pulls:
        await trio.lowlevel.checkpoint()
