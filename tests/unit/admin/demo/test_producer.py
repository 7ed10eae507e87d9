from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio

from admin.config.settings import Endpoint
from admin.demo.ledger import Counts, TopicLoad
from admin.demo.producer import Producer
from limiter.rules.resource import Resource
from proxy.deciding.batch import Refuse
from proxy.protocols.rocketmq.refusals import busy_answer
from proxy.protocols.rocketmq.wire.codes import FLAG_RESPONSE
from proxy.protocols.rocketmq.wire.command import RemotingCommand, decode, encode

LOAD = TopicLoad("orders", 1000)
Answer = Callable[[RemotingCommand], bytes]


@pytest.fixture
async def broker(nursery: trio.Nursery) -> Callable[[Answer], Awaitable[Endpoint]]:
    """A broker with scripted answers, in pieces of a few bytes."""

    async def start(answer: Answer) -> Endpoint:
        async def serve(stream: trio.SocketStream) -> None:
            data = bytearray()
            # A client with all its answers leaves, even if more arrives.
            with suppress(trio.BrokenResourceError):
                async for chunk in stream:
                    data += chunk
                    while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                        reply = answer(decode(bytes(data[:end])))
                        for at in range(0, len(reply), 7):
                            await stream.send_all(reply[at : at + 7])
                        del data[:end]

        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        return Endpoint(*listener.socket.getsockname())

    return start


def reply(request: RemotingCommand, code: int, remark: str = "") -> bytes:
    return encode(RemotingCommand(code=code, opaque=request.opaque, flag=FLAG_RESPONSE, remark=remark))


async def run(endpoint: Endpoint, until: int) -> tuple[Producer, Counts]:
    """Send this many, then stop and wait for the answers."""
    counts = Counts()
    producer = Producer(LOAD, counts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(producer.run, endpoint)
        while counts.sent < until and producer.lost is None:
            await trio.lowlevel.checkpoint()
        producer.stop()
    return producer, counts


async def test_answers_are_counted_by_their_code(broker: Callable[[Answer], Awaitable[Endpoint]]) -> None:
    def answer(request: RemotingCommand) -> bytes:
        match request.opaque % 4:
            case 0:
                return reply(request, 0)
            case 1:
                return busy_answer(Refuse(Resource("topic", "orders"), "topic:orders", 5), request.opaque, "topic")
            case 2:
                return reply(request, 2, "[TIMEOUT_CLEAN_QUEUE]broker busy")
            case _:
                return reply(request, 17)

    producer, counts = await run(await broker(answer), 40)
    each = range(1, counts.sent + 1)
    assert counts.passed == sum(opaque % 4 == 0 for opaque in each)
    assert counts.refused == sum(opaque % 4 == 1 for opaque in each)
    assert counts.failed == counts.sent - counts.passed - counts.refused
    assert (counts.unanswered, producer.lost) == (0, None)


async def test_a_second_answer_is_never_a_success(broker: Callable[[Answer], Awaitable[Endpoint]]) -> None:
    _, counts = await run(await broker(lambda request: reply(request, 0) * 2), 10)
    assert counts.passed == counts.sent
    assert counts.stray > 0


async def test_requests_are_valid_for_a_broker(broker: Callable[[Answer], Awaitable[Endpoint]]) -> None:
    seen: list[RemotingCommand] = []

    def answer(request: RemotingCommand) -> bytes:
        seen.append(request)
        return reply(request, 0)

    await run(await broker(answer), 5)
    assert {request.fields["b"] for request in seen} == {"orders"}
    assert [request.opaque for request in seen] == list(range(1, len(seen) + 1))


async def test_a_connection_that_ends_is_reported(nursery: trio.Nursery) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.aclose()

    nursery.start_soon(trio.serve_listeners, hang_up, [listener])
    producer, _ = await run(Endpoint(*listener.socket.getsockname()), 10**9)
    assert producer.lost == "the connection was closed"


async def test_a_refused_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admin.demo.producer._CONNECT_FOR_S", 0)
    producer, counts = await run(Endpoint("127.0.0.1", 1), 10**9)
    assert producer.lost is not None
    assert counts.sent == 0
