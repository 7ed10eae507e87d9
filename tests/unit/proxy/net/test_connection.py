from __future__ import annotations

import errno
import gc
import socket
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from playbook import frames
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.resource import Resource
from proxy.common.buffers import CHUNK_BYTES
from proxy.control import LimitCommandReply
from proxy.deciding.batch import (
    NO_VERDICTS,
    Batch,
    Charge,
    ConnectionInfo,
    Hold,
    Refuse,
    Request,
    Response,
    Side,
    Ticket,
    Verdicts,
)
from proxy.deciding.pipeline import Handler, HandlerConfig, HandlerPlugin, Pipeline
from proxy.deciding.rate_limit import RateLimit
from proxy.net.connection import OUTBOX_BYTES
from proxy.net.peer import CHECK_S
from proxy.net.server import ListenerConfig
from proxy.net.shutdown import CLOSE_TIMEOUT_S, HALF_CLOSED_S
from proxy.net.sockets import Wire, format_address
from proxy.protocols.amqp091 import PROTOCOL as AMQP091
from proxy.protocols.amqp10 import PROTOCOL as AMQP10
from proxy.protocols.base import Buffer, Close, CommandRequest, Description, Protocol, Session, SessionContext
from proxy.protocols.rocketmq import PROTOCOL as ROCKETMQ
from proxy.protocols.rocketmq.name_server import PROTOCOL as ROCKETMQ_NAMESRV
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN, ClientDescription

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Rig, ScriptedBroker, StartRig

FREE_KIB = b"free " + b"x" * 1018 + b"\n"
"""An unlimited request of 1 KiB."""


def handler(decide: Callable[[Batch, int], Any], *, sees: list[Response] | None = None) -> HandlerConfig:
    class Scripted(Handler):
        sees_responses = sees is not None

        def on_requests(self, batch: Batch, now_ns: int) -> Any:
            return decide(batch, now_ns)

        def on_responses(self, connection: ConnectionInfo, responses: Sequence[Response]) -> None:
            assert sees is not None
            sees.extend(responses)

    return HandlerConfig(HandlerPlugin("scripted", dict, lambda options, services: Scripted()), {})


class PlainSession(Session):
    """Forwards every chunk. Tests override the rest."""

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.out: dict[Side, list[Buffer]] = {side: [] for side in Side}
        self.in_flight_requests = 0

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        self.out[side.other].append(chunk)
        return None

    def decided(self, batch: Batch, now_ns: int) -> None:
        pass

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        pass

    def end(self, side: Side, now_ns: int) -> None:
        pass

    def take(self, side: Side) -> Sequence[Buffer]:
        out, self.out[side] = self.out[side], []
        return out

    def backlog_bytes(self, side: Side) -> int:
        return 0

    def in_flight(self) -> int:
        return self.in_flight_requests

    def between_frames(self, side: Side) -> bool:
        return True

    def batch(self, side: Side = Side.CLIENT) -> Batch:
        request = Request((Resource("line_topic", "own"),), 1, 1, "", "answered", None, None)
        return Batch(self.context.connection, side, [request])


class InTurns(PlainSession):
    """Reads four bytes of the client's in a turn, and acts after ``at`` of them."""

    def __init__(
        self, context: SessionContext, order: list[int], at: int = -1, do: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(context)
        self._order = order
        self._at = at
        self._do = do
        self._left = 0

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        if side is Side.CLIENT:
            self._order.append(self.context.connection.id)
            self._left = max(0, len(chunk) - 4)
            self._at -= 4
            if self._at == 0:
                self._do()
        return super().receive(side, chunk[:4] if side is Side.CLIENT else chunk, now_ns)

    def left_bytes(self, side: Side) -> int:
        return self._left if side is Side.CLIENT else 0

    def between_frames(self, side: Side) -> bool:
        return not self.left_bytes(side)


def speaking(lines: Protocol, session: Callable[[SessionContext], Session]) -> Protocol:
    return replace(lines, name="own", open_session=session)


class TestRelay:
    @pytest.mark.parametrize("ends", ["client", "broker", "fault", "operator"])
    async def test_a_session_is_closed_once_at_any_end_of_its_connection(
        self, start_rig: StartRig, lines: Protocol, ends: str
    ) -> None:
        closed: list[Session] = []

        class Sharing(PlainSession):
            def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                if ends == "fault":
                    raise Close("bad_frame", "as the test wants it")
                return super().receive(side, chunk, now_ns)

            def close(self) -> None:
                closed.append(self)

        rig = await start_rig(protocol=speaking(lines, Sharing))
        client, broker = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        if ends == "operator":
            (connection,) = rig.connections
            connection.shutdown.abort("closed_by_operator", "as the test wants it")
        else:
            (client if ends == "client" else broker).end()
            (broker if ends == "client" else client).end()
        while rig.connections:
            await trio.lowlevel.checkpoint()
        assert len(closed) == 1

    @pytest.mark.parametrize("ends", ["client", "broker", "reset", "fault", "operator", "drain"])
    async def test_a_session_settles_at_any_end_of_its_connection(
        self, start_rig: StartRig, lines: Protocol, ends: str
    ) -> None:
        charged: list[int] = []

        class Owing(PlainSession):
            def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                if ends == "fault":
                    raise RuntimeError("as the test wants it")
                return super().receive(side, chunk, now_ns)

            def settle(self, now_ns: int) -> Batch | None:
                charges = [Charge((Resource("line_topic", "own"),), -3, counts=False)]
                return Batch(self.context.connection, Side.CLIENT, (), charges)

        def charge(batch: Batch, now_ns: int) -> Verdicts:
            charged.extend(each.messages for each in batch.charges)
            return {}

        rig = await start_rig(protocol=speaking(lines, Owing), handlers=[handler(charge)])
        client, broker = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        if ends == "operator":
            (connection,) = rig.connections
            connection.shutdown.abort("closed_by_operator", "as the test wants it")
        elif ends == "drain":
            (connection,) = rig.connections
            connection.drain()
        elif ends == "reset":
            client.reset()
            broker.end()
        if ends in {"client", "broker", "drain"}:
            (broker if ends == "broker" else client).end()
            (client if ends == "broker" else broker).end()
        while rig.connections:
            await trio.lowlevel.checkpoint()
        assert charged == [-3]

    async def test_other_connections_get_their_turn_between_small_reads(
        self, start_rig: StartRig, lines: Protocol
    ) -> None:
        order: list[int] = []

        class Modest(PlainSession):
            def max_bytes(self, side: Side) -> int:
                return 1

            def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                order.append(self.context.connection.id)
                return super().receive(side, chunk, now_ns)

        rig = await start_rig(protocol=speaking(lines, Modest))
        pairs = [await rig.connect() for _ in range(2)]
        for client, _ in pairs:
            client.send_now(bytes(100))
        for _, broker in pairs:
            await broker.receive(100)
        assert all(len(set(order[turn : turn + 20])) == 2 for turn in range(0, 180, 20))

    async def test_the_rest_of_a_chunk_comes_again_after_the_others_turn(
        self, start_rig: StartRig, lines: Protocol
    ) -> None:
        order: list[int] = []
        rig = await start_rig(protocol=speaking(lines, partial(InTurns, order=order)))
        pairs = [await rig.connect() for _ in range(2)]
        for client, _ in pairs:
            client.send_now(bytes(range(100)))
        for _, broker in pairs:
            assert await broker.receive(100) == bytes(range(100))
        assert len(order) == 50
        assert all(len(set(order[turn : turn + 10])) == 2 for turn in range(0, 40, 10))

    async def test_peer_whose_chunks_take_long_is_served_after_others(
        self, start_rig: StartRig, lines: Protocol
    ) -> None:
        class Slow(PlainSession):
            is_slow = True

            def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                self.left = len(chunk) - 1 if self.is_slow and side is Side.CLIENT else 0
                return super().receive(side, chunk[: len(chunk) - self.left], now_ns)

            def left_bytes(self, side: Side) -> int:
                return self.left if side is Side.CLIENT else 0

        rig = await start_rig(protocol=speaking(lines, Slow))
        client, broker = await rig.connect()
        (connection,) = rig.connections
        for is_slow in (True, False):
            connection.session.is_slow = is_slow  # type: ignore[attr-defined] # of the class above
            await client.send(b"xx")
            await broker.receive(2)
            await broker.send(b"y")
            await client.receive(1)
            assert connection.peers[Side.CLIENT].takes_long is is_slow
            assert not connection.peers[Side.BROKER].takes_long

    async def test_a_drain_waits_for_the_rest_of_a_chunk(self, start_rig: StartRig, lines: Protocol) -> None:
        def drain() -> None:
            nursery.start_soon(rig.path.drain, 30)

        rig = await start_rig(protocol=speaking(lines, partial(InTurns, order=[], at=20, do=drain)))
        async with trio.open_nursery() as nursery:
            client, broker = await rig.connect()
            client.send_now(bytes(range(100)))
            assert await broker.receive_to_end() == bytes(range(100))
            client.end()
            broker.end()
            await rig.until_closed("drained")

    async def test_uncopied_chunks_survive_a_slow_reader(
        self, start_rig: StartRig, lines: Protocol, nursery: trio.Nursery
    ) -> None:
        """The session returns slices of the read buffer, which must not change until they are written."""
        rig = await start_rig(protocol=speaking(lines, PlainSession), buffer_budget_bytes=CHUNK_BYTES)
        data = {number: bytes([number]) * 3_000_000 for number in range(4)}
        pairs = {number: await rig.connect() for number in data}
        for number, (client, broker) in pairs.items():
            nursery.start_soon(client.send, data[number])
            nursery.start_soon(broker.send, data[number])
        for number, (client, broker) in pairs.items():
            assert await broker.receive(3_000_000) == data[number]
            assert await client.receive(3_000_000) == data[number]

    async def test_batch_may_come_from_the_broker(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        await broker.send(b"push a 1\npush a 2\npush a 3\n")
        assert await client.receive_line() == b"push a 1\n"
        assert await client.receive_line() == b"push a 2\n"
        assert (await client.receive_line()).startswith(b"BUSY a ")

    async def test_broker_answers_are_shown_to_handlers_that_ask(self, start_rig: StartRig) -> None:
        seen: list[Response] = []
        rig = await start_rig(handlers=[handler(lambda batch, now_ns: NO_VERDICTS, sees=seen)])
        client, broker = await rig.connect()
        await broker.send(b"one\nthr")
        assert await client.receive_line() == b"one\n"
        await broker.send(b"e")
        await wait_all_tasks_blocked()
        await broker.send(b"e\n")
        assert await client.receive_line() == b"three\n"
        await wait_all_tasks_blocked()
        assert [response.size_bytes for response in seen] == [4, 6]


class Bang(PlainSession):
    """Forwards data up to a ``!``, then ends the connection with a message to the client."""

    last_words = b""

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        super().receive(side, chunk, now_ns)
        if side is Side.CLIENT and chunk[-1:] == b"!":
            if self.last_words:
                self.out[Side.CLIENT].append(self.last_words)
            raise Close("bad_frame", "as the test wants it")
        return None


class TestShutdown:
    async def test_answers_arrive_though_both_peers_have_ended(self, start_rig: StartRig, lines: Protocol) -> None:
        class Telling(Bang):
            last_words = b"R" * 200_000

        rig = await start_rig(protocol=speaking(lines, Telling))
        client, broker = await rig.connect(receive_buffer=4096)
        rig.connections[0].peers[Side.CLIENT].wire._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await client.send(b"request!")
        client.end()
        await rig.settle()
        broker.end()
        await rig.settle()
        assert await client.receive_to_end() == b"R" * 200_000

    async def test_a_drain_waits_for_a_handler_that_resolves_while_it_decides(
        self, start_rig: StartRig, lines: Protocol
    ) -> None:
        ticket = Ticket(lambda: None)

        def decide(batch: Batch, now_ns: int) -> Verdicts:
            (request,) = batch.requests
            if request.handle == b"1":
                return {0: Hold(request.resources[0], "rule", ticket)}
            ticket.resolve(None)
            return NO_VERDICTS

        class Deciding(PlainSession):
            whole = False

            def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                self.whole = bytes(chunk) == b"2"
                request = Request((Resource("line_topic", "own"),), 1, 1, "", "answered", None, bytes(chunk))
                return Batch(self.context.connection, side, [request])

            def decided(self, batch: Batch, now_ns: int) -> None:
                handle = batch.requests[0].handle
                assert isinstance(handle, bytes)
                self.out[Side.BROKER].append(handle)

            def between_frames(self, side: Side) -> bool:
                return side is Side.BROKER or self.whole

        rig = await start_rig(protocol=speaking(lines, Deciding), handlers=[handler(decide)])
        client, broker = await rig.connect()
        await client.send(b"1")
        await rig.settle()
        rig.connections[0].drain()
        await client.send(b"2")
        assert await broker.receive(2) == b"12"


class TestBusyAnswers:
    async def test_do_not_wait_for_a_broker_that_does_not_read(self, rig: Rig) -> None:
        client, _ = await rig.connect()
        await client.send_until_stalled(b"zero 1\n" + FREE_KIB * 10)
        refused = (await rig.requests("zero"))["refuse"]
        assert client.pending() == b"BUSY zero 1000000\n" * refused

    async def test_are_bounded_while_the_client_does_not_read(self, start_rig: StartRig, nursery: trio.Nursery) -> None:
        name = "n" * 500
        rig = await start_rig(f"line_topic:{name}=0/s")
        client, broker = await rig.connect(receive_buffer=4096)
        line = name.encode() + b"\n"
        sent = await client.send_until_stalled(line * 1000)
        (connection,) = rig.connections
        session = connection.session
        # Over the bound by at most the answers to the last chunk.
        answers_to_a_chunk = CHUNK_BYTES // len(line) * len(f"BUSY {name} 1000000\n")
        assert OUTBOX_BYTES < session.backlog_bytes(Side.CLIENT) <= OUTBOX_BYTES + answers_to_a_chunk
        read = connection.bytes_read[Side.CLIENT]
        assert read < sent
        # The broker's direction continues.
        await broker.send(b"answer\n")

        # Once the client reads, it is read again, and gets every answer.
        nursery.start_soon(client.send, line[sent % len(line) :])
        lines = sent // len(line) + 1
        answer = f"BUSY {name} 1000000\n".encode()
        received = await client.receive(lines * len(answer) + len(b"answer\n"))
        assert received.count(answer) == lines
        assert received.replace(answer, b"") == b"answer\n"
        assert session.backlog_bytes(Side.CLIENT) == 0


class TestBackPressure:
    async def test_client_is_not_read_while_the_broker_does_not_read(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        sent = await client.send_until_stalled(FREE_KIB * 64)
        (connection,) = rig.connections
        read = connection.bytes_read[Side.CLIENT]
        assert read < sent
        # The other direction continues.
        await broker.send(b"answer\n")
        assert await client.receive_line() == b"answer\n"
        assert connection.bytes_read[Side.CLIENT] == read
        lines = sent // len(FREE_KIB)
        assert await broker.receive(lines * len(FREE_KIB)) == FREE_KIB * lines

    async def test_one_stalled_connection_holds_up_no_other(self, start_rig: StartRig) -> None:
        """Not even when the budget for read buffers is spent."""
        rig = await start_rig(buffer_budget_bytes=CHUNK_BYTES)
        stalled, _ = await rig.connect()
        await stalled.send_until_stalled(FREE_KIB * 64)
        client, broker = await rig.connect()
        await client.send(FREE_KIB * 100)
        assert await broker.receive(102400) == FREE_KIB * 100
        assert rig.path.server.services.buffers.unlent == 0

    async def test_session_may_pause_either_peer(
        self, start_rig: StartRig, lines: Protocol, mock_clock: MockClock
    ) -> None:
        class Pausing(PlainSession):
            pausing: Side | None = None

            def paused(self, side: Side) -> bool:
                return side is self.pausing

        rig = await start_rig(protocol=speaking(lines, Pausing))
        client, broker = await rig.connect()
        await client.send(b"ready")
        assert await broker.receive(5) == b"ready"
        (connection,) = rig.connections
        assert isinstance(connection.session, Pausing)
        peers = {Side.CLIENT: client, Side.BROKER: broker}
        for side in Side:
            connection.session.pausing = side
            await peers[side].send(b"held")
            await peers[side.other].send(b"goes on")
            await rig.settle()
            # An unread client is written to after a moment without further data.
            mock_clock.jump(2 * CHECK_S)
            await rig.settle()
            mock_clock.jump(2 * CHECK_S)
            assert await peers[side].receive(7) == b"goes on"
            await wait_all_tasks_blocked()
            assert peers[side.other].pending() == b""
            connection.session.pausing = None
            connection.progressed()
            assert await peers[side.other].receive(4) == b"held"


class TestEndOfStream:
    async def test_of_the_client_is_carried_through(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\nunfinished")
        client.end()
        assert await broker.receive_to_end() == b"free 1\nunfinished"
        await broker.send(b"still answered\n")
        assert await client.receive_line() == b"still answered\n"
        broker.end()
        assert await client.receive_to_end() == b""
        await rig.until_closed("client_closed")

    async def test_of_the_broker_is_carried_through(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        await broker.send(b"bye\nunfinished")
        broker.end()
        assert await client.receive_to_end() == b"bye\nunfinished"
        await client.send(b"free 1\n")
        assert await broker.receive_line() == b"free 1\n"
        client.end()
        assert await broker.receive_to_end() == b""
        await rig.until_closed("broker_closed")

    async def test_comes_after_a_slow_readers_pending_data(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        sent = await client.send_until_stalled(FREE_KIB)
        client.end()
        assert len(await broker.receive_to_end()) == sent

    async def test_waits_for_busy_answers_on_their_way(self, start_rig: StartRig) -> None:
        name = "n" * 500
        rig = await start_rig(f"line_topic:{name}=0/s")
        client, broker = await rig.connect(receive_buffer=4096)
        sent = await client.send_until_stalled(name.encode() + b"\n")
        client.end()
        answer = f"BUSY {name} 1000000\n".encode()
        assert await client.receive(sent // 501 * len(answer)) == answer * (sent // 501)
        assert await broker.receive_to_end() == (name.encode() + b"\n")[: sent % 501]
        broker.end()
        assert await client.receive_to_end() == b""

    async def test_then_silence_ends_the_connection_in_the_end(
        self, rig: Rig, mock_clock: MockClock, log: list[Any]
    ) -> None:
        client, broker = await rig.connect()
        client.end()
        assert await broker.receive_to_end() == b""
        mock_clock.jump(HALF_CLOSED_S - 1)
        await broker.send(b"not silent\n")
        assert await client.receive_line() == b"not silent\n"
        mock_clock.jump(HALF_CLOSED_S - 1)
        await wait_all_tasks_blocked()
        assert rig.connections
        mock_clock.jump(1)
        assert await client.receive_to_end() == b""
        await rig.until_closed("half_closed")

    async def test_ends_both_sides_soon_without_waiting_requests(
        self, start_rig: StartRig, lines: Protocol, mock_clock: MockClock
    ) -> None:
        rig = await start_rig(protocol=replace(lines, half_closes=False))
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        client.end()
        # The broker gets all of it, and then hangs.
        assert await broker.receive_to_end() == b"free 1\n"
        mock_clock.jump(CLOSE_TIMEOUT_S)
        assert await client.receive_to_end() == b""
        await rig.until_closed("client_closed")
        # The same with a client that does not notice the broker's end.
        client, broker = await rig.connect()
        broker.end()
        assert await client.receive_to_end() == b""
        mock_clock.jump(CLOSE_TIMEOUT_S)
        await rig.until(lambda: rig.closed["broker_closed"])

    async def test_answers_for_a_client_that_was_sent_the_end_are_dropped(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        broker.end()
        assert await client.receive_to_end() == b""
        await client.send(b"zero 1\nfree 1\n")
        assert await broker.receive_line() == b"free 1\n"
        client.end()
        await rig.until_closed("broker_closed")


class TestBrokenPeers:
    async def test_peer_that_cannot_be_sent_the_end_ends_the_connection(
        self, rig: Rig, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(self: Wire) -> None:
            raise OSError(errno.EPIPE, "Broken pipe")

        client, _ = await rig.connect()
        monkeypatch.setattr(Wire, "end", fail)
        client.end()
        await rig.settle()
        mock_clock.jump(CLOSE_TIMEOUT_S)
        assert await client.receive_to_end() == b""
        await rig.until_closed("client_closed")

    async def test_reset_of_the_client_ends_the_connection(self, rig: Rig, log: list[Any]) -> None:
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        assert await broker.receive_line() == b"free 1\n"
        client.reset()
        assert await broker.receive_to_end() == b""
        broker.end()
        await rig.until_closed("client_error")
        (entry,) = log
        assert entry["event"] == "connection closed"
        assert entry["peer"].startswith("127.0.0.1:")
        assert entry["detail"] == "client: Connection reset by peer"

    async def test_reset_of_the_broker_ends_the_connection(self, rig: Rig, log: list[Any]) -> None:
        client, broker = await rig.connect()
        broker.reset()
        assert await client.receive_to_end() == b""
        client.end()
        await rig.until_closed("broker_error")
        assert log[0]["detail"] == "broker: Connection reset by peer"

    async def test_broker_that_answers_the_end_of_a_client_by_a_reset_has_not_failed(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        client.end()
        assert await broker.receive_to_end() == b""
        broker.reset()
        await rig.until_closed("client_closed")

    @pytest.mark.parametrize("written", [0, 3])
    async def test_bytes_before_a_brokers_reset_reach_the_client(self, rig: Rig, written: int) -> None:
        client, broker = await rig.connect()
        broker.send_now(b"goodbye\n")
        broker.reset()
        for _ in range(written):
            client.send_now(b"free 1\n")
        assert await client.receive_to_end() == b"goodbye\n"
        client.end()
        await rig.until_closed("broker_error")

    async def test_peer_that_breaks_in_the_middle_of_a_long_write_ends_the_connection(
        self, rig: Rig, mock_clock: MockClock
    ) -> None:
        client, broker = await rig.connect()
        await client.send_until_stalled(FREE_KIB * 64)
        broker.reset()
        await rig.settle()
        mock_clock.jump(CLOSE_TIMEOUT_S)
        await rig.until_closed("broker_error")


class TestClosing:
    async def test_earlier_bytes_are_delivered_before_the_end(self, rig: Rig, log: list[Any]) -> None:
        client, broker = await rig.connect()
        await client.send(b"zero 1\nfree 1\nfree 2\n" + b"x" * 2000)
        assert await broker.receive_to_end() == b"free 1\nfree 2\n"
        assert await client.receive_to_end() == b"BUSY zero 1000000\n"
        client.end()
        broker.end()
        await rig.until_closed("long_line")
        closed = [(entry["reason"], entry["detail"]) for entry in log if entry["event"] == "connection closed"]
        assert closed == [("long_line", "a line of more than 1000 bytes")]

    async def test_a_sending_client_is_not_reset(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker = await rig.connect()
        await client.send(b"zero 1\n" + b"x" * 2000)
        assert await broker.receive_to_end() == b""
        for _ in range(100):
            await client.send(FREE_KIB)
            await wait_all_tasks_blocked()
        assert await client.receive_to_end() == b"BUSY zero 1000000\n"
        mock_clock.jump(CLOSE_TIMEOUT_S)
        await rig.until_closed("long_line")
        assert broker.pending() == b""

    async def test_peers_that_do_not_end_time_out(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker = await rig.connect()
        await client.send(b"x" * 2000)
        await broker.receive_to_end()
        mock_clock.jump(CLOSE_TIMEOUT_S - 0.01)
        await wait_all_tasks_blocked()
        assert rig.connections
        mock_clock.jump(0.01)
        await rig.until_closed("long_line")

    async def test_broker_is_served_although_the_client_does_not_read(
        self, start_rig: StartRig, mock_clock: MockClock
    ) -> None:
        name = "n" * 500
        rig = await start_rig(f"line_topic:{name}=0/s")
        client, broker = await rig.connect(receive_buffer=4096)
        await client.send_until_stalled(name.encode() + b"\n")
        # The client's writer is stuck. The rest of its data is read once it has read a little.
        await broker.send(b"x" * 2000)
        assert await broker.receive_to_end() == b""
        mock_clock.jump(CLOSE_TIMEOUT_S)
        await rig.until_closed("long_line")

    async def test_a_failing_peer_does_not_truncate_the_other(
        self, start_rig: StartRig, lines: Protocol, mock_clock: MockClock
    ) -> None:
        class ClosingAfterData(PlainSession):
            def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                if bytes(chunk[:3]) == b"end":
                    self.out[Side.CLIENT].append(b"x" * 20_000_000)
                    raise Close("told", "the client said so")
                return super().receive(side, chunk, now_ns)

        rig = await start_rig(protocol=speaking(lines, ClosingAfterData))
        client, broker = await rig.connect()
        await client.send(b"end")
        assert await broker.receive_to_end() == b""
        broker.reset()
        await wait_all_tasks_blocked()
        assert await client.receive_to_end() == b"x" * 20_000_000
        client.end()
        await rig.until_closed("told")

    async def test_by_an_operator_is_at_once(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        (connection,) = rig.connections
        connection.shutdown.abort("closed_by_operator", "because")
        connection.shutdown.abort("second", "the first reason counts")
        assert await client.receive_to_end() == b""
        assert await broker.receive_to_end() == b""
        await rig.until_closed("closed_by_operator")


class TestTicks:
    async def test_the_timer_is_kept_while_the_client_is_paused(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker = await rig.connect()
        await client.send(b"later 1\n")
        await wait_all_tasks_blocked()
        await client.send(b"free 1\n")
        await wait_all_tasks_blocked()
        mock_clock.jump(0.049)
        await wait_all_tasks_blocked()
        assert broker.pending() == b""
        mock_clock.jump(0.001)
        assert await broker.receive(15) == b"later 1\nfree 1\n"

    async def test_wake_up_from_outside_calls_tick(self, start_rig: StartRig, lines: Protocol) -> None:
        class Hub(Waiting):
            def tick(self, now_ns: int) -> Batch | None:
                self.out[Side.CLIENT].append(b"news")
                return None

        rig = await start_rig(protocol=speaking(lines, Hub))
        client, _ = await rig.connect()
        (connection,) = rig.connections
        assert isinstance(connection.session, Hub)
        connection.session.context.wake()
        assert await client.receive(4) == b"news"

    async def test_batch_of_a_tick_is_decided(self, start_rig: StartRig, lines: Protocol) -> None:
        class Asking(Waiting):
            def tick(self, now_ns: int) -> Batch | None:
                return self.batch()

            def decided(self, batch: Batch, now_ns: int) -> None:
                self.out[Side.BROKER].append(b"refused" if batch.verdicts else b"passed!")

        rig = await start_rig("line_topic:own=1/s", protocol=speaking(lines, Asking))
        _, broker = await rig.connect()
        (connection,) = rig.connections
        assert isinstance(connection.session, Asking)
        for expected in (b"passed!", b"refused"):
            connection.session.context.wake()
            assert await broker.receive(7) == expected
        assert await rig.requests("own") == {"pass": 1, "refuse": 1}

    async def test_close_raised_by_a_tick_is_graceful(self, start_rig: StartRig, lines: Protocol) -> None:
        class Shutdown(Waiting):
            def tick(self, now_ns: int) -> Batch | None:
                self.out[Side.CLIENT].append(b"last words")
                raise Close("timed_out", "no heartbeat")

        rig = await start_rig(protocol=speaking(lines, Shutdown))
        client, broker = await rig.connect()
        (connection,) = rig.connections
        assert isinstance(connection.session, Shutdown)
        connection.session.context.wake()
        assert await client.receive_to_end() == b"last words"
        assert await broker.receive_to_end() == b""
        connection.session.context.wake()
        client.end()
        broker.end()
        await rig.until_closed("timed_out")

    async def test_wake_up_during_shutdown_is_ignored(self, start_rig: StartRig, lines: Protocol) -> None:
        ticks: list[int] = []

        class Shutdown(Waiting):
            def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
                if bytes(chunk) == b"end":
                    raise Close("told", "the client said so")
                return super().receive(side, chunk, now_ns)

            def tick(self, now_ns: int) -> Batch | None:
                ticks.append(now_ns)
                return None

        rig = await start_rig(protocol=speaking(lines, Shutdown))
        client, broker = await rig.connect()
        (connection,) = rig.connections
        assert isinstance(connection.session, Shutdown)
        await client.send(b"end")
        assert await broker.receive_to_end() == b""
        connection.session.context.wake()
        await wait_all_tasks_blocked()
        assert ticks == []
        client.end()
        broker.end()
        await rig.until_closed("told")


class Waiting(PlainSession):
    ticks = True


class Failing(PlainSession):
    """Fails at the place that the client's first byte names."""

    ticks = True
    asked_paused = False

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        match bytes(chunk[:1]):
            case b"p":
                self.asked_paused = True
            case b"r":
                raise RuntimeError("in receive")
            case b"d":
                return self.batch()
            case b"t":
                self.context.wake()
        return super().receive(side, chunk, now_ns)

    def decided(self, batch: Batch, now_ns: int) -> None:
        raise RuntimeError("in decided")

    def tick(self, now_ns: int) -> Batch | None:
        raise RuntimeError("in tick")

    def end(self, side: Side, now_ns: int) -> None:
        raise RuntimeError("in end")

    def paused(self, side: Side) -> bool:
        if self.asked_paused:
            raise RuntimeError("in paused")
        return False


class Asking(PlainSession):
    """Answers the client's requests to Sluice, and forwards the others."""

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        if side is Side.CLIENT:
            ask = CommandRequest("update_limit", "topic", bytes(chunk).decode(), 5.0)
            match self.context.ask(ask):
                case "taken":
                    self.in_flight_requests += 1
                    return None
                case "full":
                    self.out[Side.CLIENT].append(b"full")
                    return None
        return super().receive(side, chunk, now_ns)

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        self.in_flight_requests -= 1
        if reply.error == "close":
            raise Close("told", "to end")
        self.out[Side.CLIENT].append(f"{ask.name}: {reply.error or reply.version}".encode())

    def describe(self, now_ns: int) -> Description:
        del now_ns
        names = tuple(f"topic:t{number}" for number in range(25))
        return Description(ClientDescription("c@1", "JAVA", "5.1"), 7, 2, names, 3)


class TestQuestionsToSluiceItself:
    async def test_are_answered_by_the_first_listener(self, start_rig: StartRig, lines: Protocol) -> None:
        rig = await start_rig(protocol=speaking(lines, Asking))
        client, broker = await rig.connect()
        await client.send(b"before")
        assert await broker.receive(6) == b"before"
        async with rig.path.limit_commands() as commands:
            await client.send(b"orders")
            command = await anext(commands)
            assert (command.verb, command.kind, command.name, command.rate_per_s) == (
                "update_limit",
                "topic",
                "orders",
                5,
            )
            assert (command.listener, command.peer) == ("main", format_address(client.sock.getsockname()))
            await rig.path.reply(command.id, LimitCommandReply(version=9))
            assert await client.receive(9) == b"orders: 9"

    async def test_that_are_open_keep_a_drain_waiting(
        self, start_rig: StartRig, lines: Protocol, nursery: trio.Nursery
    ) -> None:
        rig = await start_rig(protocol=speaking(lines, Asking))
        client, broker = await rig.connect()
        async with rig.path.limit_commands() as commands:
            await client.send(b"orders")
            command = await anext(commands)
            nursery.start_soon(rig.path.drain, 30)
            await wait_all_tasks_blocked()
            assert len(rig.connections) == 1
            await rig.path.reply(command.id, LimitCommandReply(error="no"))
            assert await client.receive_to_end() == b"orders: no"
            client.end()
            broker.end()
            await rig.until_closed("drained")

    async def test_of_clients_that_have_left_are_forgotten(self, start_rig: StartRig, lines: Protocol) -> None:
        rig = await start_rig(protocol=speaking(lines, Asking))
        client, broker = await rig.connect()
        async with rig.path.limit_commands() as commands:
            await client.send(b"orders")
            command = await anext(commands)
            client.end()
            assert await broker.receive_to_end() == b""
            broker.end()
            await rig.until_closed("client_closed")
            await rig.path.reply(command.id, LimitCommandReply(version=9))

    async def test_may_be_answered_by_the_end_of_the_connection(self, start_rig: StartRig, lines: Protocol) -> None:
        rig = await start_rig(protocol=speaking(lines, Asking))
        client, broker = await rig.connect()
        async with rig.path.limit_commands() as commands:
            await client.send(b"orders")
            await rig.path.reply((await anext(commands)).id, LimitCommandReply(error="close"))
            client.end()
            broker.end()
            await rig.until_closed("told")

    async def test_connection_is_described_by_its_session(self, start_rig: StartRig, lines: Protocol) -> None:
        rig = await start_rig(protocol=speaking(lines, Asking))
        await rig.connect()
        (state,) = await rig.path.connections()
        assert (state.client.id, state.client.language, state.requests_total, state.refused_total) == (
            "c@1",
            "JAVA",
            7,
            2,
        )
        assert (len(state.resources), state.more_resources, state.exempt) == (MAX_RESOURCES_SHOWN, 8, False)


class TestFaultsOfASession:
    @pytest.mark.parametrize(
        ("said", "where"),
        [(b"r", "receive"), (b"d", "decided"), (b"t", "tick"), (b"", "end"), (b"p", "paused")],
    )
    async def test_end_only_that_connection_and_are_logged_once(
        self, start_rig: StartRig, lines: Protocol, log: list[Any], said: bytes, where: str
    ) -> None:
        rig = await start_rig(protocol=speaking(lines, Failing))
        healthy, healthy_broker = await rig.connect()
        client, broker = await rig.connect()
        await client.send(said)
        if said == b"p":
            # It is asked again before the next read.
            assert await broker.receive(1) == said
        if said in {b"", b"p"}:
            client.end()
        assert (await client.receive_to_end(), await broker.receive_to_end()) in {(b"", b""), (b"", said)}
        await rig.until_closed("internal_error")
        failed = [entry for entry in log if entry["event"] == "connection failed"]
        assert len(failed) == 1
        assert failed[0]["log_level"] == "error"
        assert failed[0]["peer"].startswith("127.0.0.1:")
        assert [entry["detail"] for entry in log if entry["event"] == "connection closed"] == [
            f"RuntimeError('in {where}')"
        ]
        await healthy.send(b"still here")
        assert await healthy_broker.receive(10) == b"still here"

    async def test_in_a_loop_are_logged_at_a_bounded_rate(
        self, start_rig: StartRig, lines: Protocol, log: list[Any], mock_clock: MockClock
    ) -> None:
        rig = await start_rig(protocol=speaking(lines, Failing))
        for _ in range(3):
            client, _ = await rig.connect()
            await client.send(b"r")
            assert await client.receive_to_end() == b""
        await rig.until_closed("internal_error", 3)
        mock_clock.jump(1)
        client, _ = await rig.connect()
        await client.send(b"r")
        await rig.until_closed("internal_error", 4)
        failed = [entry for entry in log if entry["event"] == "connection failed"]
        assert [entry["not_logged"] for entry in failed] == [0, 2]


class Stopping(InTurns):
    """Waits for a handler after a ``d``, and ends the connection when that has decided."""

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        return self.batch() if bytes(chunk) == b"d" else super().receive(side, chunk, now_ns)

    def decided(self, batch: Batch, now_ns: int) -> None:
        self.out[Side.CLIENT].append(b"bye")
        raise Close("told", "to end")


class TestWaits:
    """Errors raised while a direction waits for something other than a socket, or as it continues."""

    @pytest.mark.parametrize(
        ("error", "reason"), [(RuntimeError("in a wait"), "internal_error"), (Close("told", "to end"), "told")]
    )
    @pytest.mark.parametrize("wait", ["decision", "broker_left"])
    async def test_fault_of_a_wait_ends_that_connection_only(  # noqa: PLR0917 - parameters
        self,
        start_rig: StartRig,
        lines: Protocol,
        monkeypatch: pytest.MonkeyPatch,
        wait: str,
        error: Exception,
        reason: str,
    ) -> None:
        async def fail() -> None:
            raise error

        rig = await start_rig(protocol=speaking(lines, partial(Stopping, order=[])))
        client, broker = await rig.connect()
        (connection,) = rig.connections
        healthy, healthy_broker = await rig.connect()
        with monkeypatch.context() as patched:
            if wait == "decision":
                patched.setattr(Pipeline, "decide_now", lambda self, batch: fail())
                await client.send(b"d")
            else:
                patched.setattr(connection, "broker_left", fail)
                broker.end()
            assert await broker.receive_to_end() == b""
            assert await client.receive_to_end() == b""
        if reason == "told":
            client.end()
            if wait != "broker_left":
                broker.end()
        await rig.until_closed(reason)
        await healthy.send(b"fine")
        assert await healthy_broker.receive(4) == b"fine"

    async def test_close_after_a_decision_that_was_waited_for_is_in_order(
        self, start_rig: StartRig, lines: Protocol
    ) -> None:
        async def decide(batch: Batch, now_ns: int) -> Verdicts:
            await trio.lowlevel.checkpoint()
            return NO_VERDICTS

        rig = await start_rig(protocol=speaking(lines, partial(Stopping, order=[])), handlers=[handler(decide)])
        client, broker = await rig.connect()
        await client.send(b"d")
        assert await client.receive_to_end() == b"bye"
        assert await broker.receive_to_end() == b""
        await client.send(b"dropped")
        client.end()
        broker.end()
        await rig.until_closed("told")


class TestHandlersOfAConnection:
    async def test_messages_pass_a_limiter_that_fails(
        self, start_rig: StartRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise ValueError("a test")

        monkeypatch.setattr(RateLimit, "on_requests", fail)
        rig = await start_rig()
        client, broker = await rig.connect()
        await client.send(b"zero 1\nzero 2\n")
        assert await broker.receive(14) == b"zero 1\nzero 2\n"
        assert (await rig.snapshot()).bypassed == {("rate_limit", "error"): 2}
        assert await rig.requests("zero") == {"bypass": 2}

    async def test_stuck_handler_holds_up_a_message_for_the_deadline_only(
        self, start_rig: StartRig, mock_clock: MockClock
    ) -> None:
        async def stuck(batch: Batch, now_ns: int) -> Verdicts:
            await trio.sleep_forever()
            raise AssertionError

        rig = await start_rig(handlers=[handler(stuck)])
        client, broker = await rig.connect()
        await client.send(b"a 1\n")
        await wait_all_tasks_blocked()
        mock_clock.jump(0.019)
        await wait_all_tasks_blocked()
        assert broker.pending() == b""
        mock_clock.jump(0.001)
        assert await broker.receive_line() == b"a 1\n"
        for number in range(2, 50):
            await client.send(b"a %d\n" % number)
            assert await broker.receive_line() == b"a %d\n" % number
        assert (await rig.snapshot()).bypassed["scripted", "late"] == 49
        assert await rig.requests("a") == {"bypass": 49}

    async def test_requests_never_overtake_each_other(
        self, start_rig: StartRig, nursery: trio.Nursery, mock_clock: MockClock
    ) -> None:
        async def slow_for_odd_ones(batch: Batch, now_ns: int) -> Verdicts:
            for _ in range(len(batch.requests) % 3):
                await trio.lowlevel.checkpoint()
            return NO_VERDICTS

        rig = await start_rig(handlers=[handler(slow_for_odd_ones)])
        client, broker = await rig.connect()
        sent = b"".join(b"free %d\n" % number for number in range(3000))

        async def send_in_pieces() -> None:
            for at in range(0, len(sent), 97):
                await client.send(sent[at : at + 97])
                await trio.lowlevel.checkpoint()

        nursery.start_soon(send_in_pieces)
        assert await broker.receive(len(sent)) == sent


class TestMemory:
    async def test_idle_connections_hold_no_buffer(self, rig: Rig) -> None:
        pairs = [await rig.connect() for _ in range(100)]
        for client, broker in pairs:
            await client.send(b"free 1\n")
            await broker.receive_line()
            await broker.send(b"ok\n")
            await client.receive_line()
        await wait_all_tasks_blocked()
        buffers = rig.path.server.services.buffers
        assert buffers.unlent == 64 * 1024 * 1024 // CHUNK_BYTES
        # They were read one after another, so one buffer was enough.
        assert len(buffers._free) <= 2

    @pytest.mark.parametrize(
        ("protocol", "beginning"),
        [
            pytest.param(None, b"free 1\n", id="lines"),
            pytest.param(ROCKETMQ, frames.heartbeat() + frames.send("orders"), id="rocketmq"),
            pytest.param(ROCKETMQ_NAMESRV, frames.heartbeat(), id="rocketmq-namesrv"),
            pytest.param(AMQP091, b"AMQP\0\0\x09\x01", id="amqp091"),
            pytest.param(AMQP10, b"AMQP\0\1\0\0", id="amqp10"),
        ],
    )
    async def test_ended_connections_do_not_wait_for_the_garbage_collector(
        self, start_rig: StartRig, lines: Protocol, broker: ScriptedBroker, protocol: Protocol | None, beginning: bytes
    ) -> None:
        protocol = protocol or lines
        config = ListenerConfig("main", protocol, protocol.options(), ("127.0.0.1", 0), broker.address)
        rig = await start_rig(listeners=(config,))
        sessions, connections = [], []
        gc.disable()
        try:
            for number in range(1, 6):
                client, broker_end = await rig.connect()
                await client.send(beginning)
                await broker_end.receive(len(beginning))
                sessions.append(weakref.ref(rig.connections[0].session))
                connections.append(weakref.ref(rig.connections[0]))
                client.end()
                await broker_end.receive_to_end()
                broker_end.end()
                await rig.until_closed("client_closed", number)
            assert [session() for session in sessions] == [None] * 5
            # The reactor may still refer to the last one served, and to the first one in its timers.
            assert sum(connection() is not None for connection in connections) <= 2
        finally:
            gc.enable()
