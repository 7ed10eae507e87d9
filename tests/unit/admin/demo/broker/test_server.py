"""The broker on trio: connections and timers."""

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing

from admin.demo.broker import Loopback, LoopbackConfig, serve_broker
from admin.demo.broker.channel import Role
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

_ANY_PORT = LoopbackConfig(broker_port=0, name_server_port=0)
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


async def _receive(stream: trio.abc.ReceiveStream) -> RemotingCommand:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        chunk = await stream.receive_some()
        assert chunk, "the broker closed the connection"
        data += chunk
    return decode(data)


async def _call(stream: trio.abc.Stream, command: RemotingCommand) -> RemotingCommand:
    await stream.send_all(encode(command))
    return await _receive(stream)


@pytest.fixture
async def loopback(nursery: trio.Nursery) -> AsyncIterator[Loopback]:
    """A running broker on free ports."""
    yield await nursery.start(partial(serve_broker, _ANY_PORT, wall_clock_ms=lambda: 1_700_000_000_000))
    nursery.cancel_scope.cancel()


def _in_memory(loopback: Loopback, nursery: trio.Nursery) -> trio.abc.Stream:
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(loopback.serve_stream, theirs)
    return ours


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
        assert loopback.stored_by_topic() == {"orders": 1}


async def test_held_pull_is_answered_by_the_next_message(loopback: Loopback, nursery: trio.Nursery) -> None:
    consumer, producer = _in_memory(loopback, nursery), _in_memory(loopback, nursery)
    other_queue = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=1, fields={"b": "orders", "e": "1"})
    await _call(producer, other_queue)
    await consumer.send_all(encode(_PULL))
    await _call(producer, _SEND)
    answer = await _receive(consumer)
    assert (answer.opaque, answer.code) == (8, ResponseCode.SUCCESS)


async def test_held_pull_ends_after_the_time_it_asked_for(
    autojump_clock: trio.testing.MockClock, loopback: Loopback, nursery: trio.Nursery
) -> None:
    stream = _in_memory(loopback, nursery)
    loopback.broker.create_topic("orders")
    start = trio.current_time()
    answer = await _call(stream, _PULL)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert trio.current_time() - start == pytest.approx(15)


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET / HTTP/1.1\r\n\r\n"])
async def test_connection_that_speaks_something_else_is_closed_after_its_answers(
    loopback: Loopback, nursery: trio.Nursery, data: bytes
) -> None:
    stream, other = _in_memory(loopback, nursery), _in_memory(loopback, nursery)
    await stream.send_all(encode(_SEND) + data)
    answer = await _receive(stream)
    assert answer.code == ResponseCode.SUCCESS
    assert await stream.receive_some() == b""
    assert (await _call(other, _SEND)).code == ResponseCode.SUCCESS


async def test_client_that_only_stops_sending_still_gets_its_answers(loopback: Loopback) -> None:
    stream = await _connect(loopback.broker_address)
    async with stream:
        await stream.send_all(encode(_SEND) * 100)
        await stream.send_eof()
        received = b"".join([chunk async for chunk in stream])
    assert received.count(b'"opaque":7') == 100


async def test_client_that_does_not_read_is_not_read_either(
    autojump_clock: trio.testing.MockClock, loopback: Loopback, nursery: trio.Nursery
) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    nursery.start_soon(loopback.serve_stream, theirs)
    big = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=7, fields={"b": "o", "e": "0"}, body=bytes(200_000))
    await _call(ours, big)
    pull = RemotingCommand(code=11, opaque=8, fields={**_PULL.fields, "topic": "o"})
    sent = 0
    with trio.move_on_after(1) as scope:
        while True:
            await ours.send_all(encode(pull))
            sent += 1
    assert scope.cancelled_caught
    assert sent < 200


async def test_client_that_does_not_read_what_is_pushed_is_not_read_either(
    autojump_clock: trio.testing.MockClock, loopback: Loopback, nursery: trio.Nursery
) -> None:
    ours, theirs = trio.testing.lockstep_stream_pair()
    nursery.start_soon(loopback.serve_stream, theirs)
    producer = _in_memory(loopback, nursery)
    big = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, opaque=7, fields={"b": "o", "e": "0"}, body=bytes(200_000))
    loopback.broker.create_topic("o")
    pull = RemotingCommand(code=11, opaque=8, fields={**_PULL.fields, "topic": "o"})
    await ours.send_all(encode(pull))
    while not loopback.broker.held_pulls:
        await trio.lowlevel.checkpoint()
    await _call(producer, big)
    sent = 0
    with trio.move_on_after(1):
        while True:
            await ours.send_all(encode(pull))
            sent += 1
    assert 0 < sent < 200
    answered = 0
    with trio.move_on_after(1):
        while True:
            answered += (await ours.receive_some(1 << 24)).count(b'"opaque":8')
    assert answered >= sent


async def test_address_that_is_taken_is_named(loopback: Loopback) -> None:
    port = int(loopback.name_server_address.rsplit(":", 1)[1])
    config = LoopbackConfig(broker_port=0, name_server_port=port)
    with pytest.raises(OSError, match=f"name server 127.0.0.1:{port}: "):
        await serve_broker(config)


async def test_connection_that_breaks_leaves_nothing_behind(loopback: Loopback, nursery: trio.Nursery) -> None:
    stream = _in_memory(loopback, nursery)
    await _call(stream, _SEND)
    pull = RemotingCommand(code=11, opaque=8, fields={**_PULL.fields, "queueOffset": "1"})
    await stream.send_all(encode(pull))
    while not loopback.broker.held_pulls:
        await trio.lowlevel.checkpoint()
    await trio.aclose_forcefully(stream)
    while loopback.broker.held_pulls:
        await trio.lowlevel.checkpoint()


async def test_name_server_in_memory_is_asked_for_by_its_role(loopback: Loopback, nursery: trio.Nursery) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(loopback.serve_stream, theirs, Role.NAME_SERVER)
    answer = await _call(ours, RemotingCommand(code=RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1))
    assert answer.code == ResponseCode.SUCCESS
