"""Held requests in a connection's driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Charge, Hold, Refuse, Request, Side, Ticket, Verdicts
from proxy.deciding.pipeline import Handler, HandlerConfig, HandlerPlugin
from proxy.net.peer import CHECK_S, KEEP_OPEN_INTERVAL_S, MAX_CHECKS, PeerState
from proxy.net.shutdown import KEPT_S, MAX_SILENT_CHECKS
from proxy.net.sockets import ReadAhead
from proxy.protocols.base import Buffer, Close, Protocol, Session, SessionContext

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Peer, Rig, StartRig

BUSY = Refuse(Resource("line_topic", "hold"), "some rule", 7)


class Holder(Handler):
    """Holds requests to topics that begin with ``hold``, until the test resolves them."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.dropped: list[int] = []
        self.charges: list[Charge] = []
        self.at_once: Callable[[Ticket], None] = lambda _: None
        self.may_decide = trio.Event()
        self.may_decide.set()

    async def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        await self.may_decide.wait()
        self.charges += batch.charges
        return {
            index: self._hold(request.resources[0])
            for index, request in enumerate(batch.requests)
            if request.resources[0].name.startswith("hold")
        }

    def _hold(self, resource: Resource) -> Hold:
        number = len(self.tickets)
        self.tickets.append(Ticket(lambda: self.dropped.append(number)))
        self.at_once(self.tickets[number])
        return Hold(resource, "some rule", self.tickets[number])


@pytest.fixture
def holder() -> Holder:
    return Holder()


@pytest.fixture
def handlers(holder: Holder) -> list[HandlerConfig]:
    return [HandlerConfig(HandlerPlugin("holder", dict, lambda options, services: holder), {}, deadline_ms=60_000)]


@pytest.fixture
async def rig(start_rig: StartRig, handlers: list[HandlerConfig]) -> Rig:
    return await start_rig(handlers=handlers)


async def send_held(client: Peer, broker: Peer, *names: str) -> None:
    await client.send(b"".join(name.encode() + b" 1\n" for name in names) + b"free 1\n")
    assert await broker.receive_line() == b"free 1\n"


class TestResolving:
    async def test_later_requests_pass_a_held_one_and_releases_are_written_at_once(
        self, rig: Rig, holder: Holder
    ) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "hold", "hold2")
        for ticket, line in zip(holder.tickets, (b"hold 1\n", b"hold2 1\n"), strict=True):
            ticket.resolve(None)
            assert await broker.receive_line() == line
        assert await rig.requests("hold") == {"pass": 1}

    async def test_a_refusal_is_written_at_once(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "hold")
        holder.tickets[0].resolve(BUSY)
        assert await client.receive_line() == b"BUSY hold 7\n"
        assert broker.pending() == b""
        assert await rig.requests("hold") == {"refuse": 1}

    async def test_released_bytes_wait_behind_those_on_their_way(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "hold")
        line = b"free " + b"x" * 1018 + b"\n"
        sent = await client.send_until_stalled(line)
        holder.tickets[0].resolve(None)
        await wait_all_tasks_blocked()
        whole = (sent // len(line)) * line
        received = await broker.receive(len(whole) + len(b"hold 1\n"))
        assert received.replace(b"hold 1\n", b"", 1) == whole
        assert received[: received.index(b"hold")].endswith(b"\n")


class TestDropping:
    async def test_the_end_of_the_clients_stream_drops_its_requests(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "hold", "hold", "hold")
        client.end()
        assert await broker.receive_to_end() == b""
        assert holder.dropped == [2, 1, 0]
        assert await rig.requests("hold") == {"drop": 3}
        holder.tickets[0].resolve(None)
        await broker.send(b"answer\n")
        assert await client.receive_line() == b"answer\n"

    async def test_the_end_of_the_brokers_stream_drops_only_its_own(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "hold")
        await broker.send(b"push hold2 1\nanswer\n")
        assert await client.receive_line() == b"answer\n"
        broker.end()
        assert await client.receive_to_end() == b""
        assert holder.dropped == [1]
        holder.tickets[0].resolve(None)
        assert await broker.receive_line() == b"hold 1\n"

    @pytest.mark.parametrize("how", ["client", "broker", "operator", "stop"])
    async def test_whatever_ends_the_connection_drops_its_requests(self, rig: Rig, holder: Holder, how: str) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "hold")
        match how:
            case "client":
                client.reset()
                broker.end()
            case "broker":
                broker.reset()
                client.end()
            case "operator":
                assert await rig.path.close_connection(rig.connections[0].info.id, "a test")
            case _:
                rig.scope.cancel()
        while rig.connections:
            await wait_all_tasks_blocked()
        assert holder.dropped == [0]
        assert (await rig.requests("hold")) == {"drop": 1}
        holder.tickets[0].resolve(None)
        await wait_all_tasks_blocked()

    async def test_requests_whose_client_left_before_the_decision_are_given_up(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "free")
        assert await broker.receive_line() == b"free 1\n"
        holder.may_decide = trio.Event()
        await client.send(b"hold 1\n")
        await wait_all_tasks_blocked()
        client.reset()
        assert await rig.path.close_connection(rig.connections[0].info.id, "a test")
        await wait_all_tasks_blocked()
        holder.may_decide.set()
        await wait_all_tasks_blocked()
        assert rig.connections == []
        assert [ticket.dropped for ticket in holder.tickets] == [True] * len(holder.tickets)


class TestDrain:
    async def test_waits_for_held_requests_and_their_answers(
        self, rig: Rig, holder: Holder, nursery: trio.Nursery
    ) -> None:
        client, broker = await rig.connect()
        await send_held(client, broker, "hold")
        await broker.send(b"answer\n")
        assert await client.receive_line() == b"answer\n"
        nursery.start_soon(rig.path.drain, 10)
        await wait_all_tasks_blocked()
        assert len(rig.connections) == 1
        holder.tickets[0].resolve(None)
        assert await broker.receive_line() == b"hold 1\n"
        await broker.send(b"answer\n")
        assert await client.receive_to_end() == b"answer\n"
        client.end()
        broker.end()
        await rig.until_closed("drained")


class Holding(Session):
    """Every byte is a request, charged to ``hold``. The test decides how it is resolved."""

    def __init__(self, context: SessionContext, on_resolved: Callable[[Holding, Request], None]) -> None:
        self.context = context
        self.out: dict[Side, list[Buffer]] = {side: [] for side in Side}
        self.on_resolved = on_resolved

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        if side is Side.BROKER:
            self.out[Side.CLIENT].append(chunk)
            return Batch(self.context.connection, side, (), (self.charge(),))
        requests = [Request((Resource("line_topic", "hold"),), 1, 1, "", "answered", None, byte) for byte in chunk]
        return Batch(self.context.connection, side, requests)

    def charge(self) -> Charge:
        return Charge((Resource("line_topic", "hold"),), 3)

    def decided(self, batch: Batch, now_ns: int) -> None:
        pass

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        self.on_resolved(self, request)

    def end(self, side: Side, now_ns: int) -> None:
        pass

    def take(self, side: Side) -> Sequence[Buffer]:
        out, self.out[side] = self.out[side], []
        return out

    def backlog_bytes(self, side: Side) -> int:
        return 0

    def in_flight(self) -> int:
        return 0

    def between_frames(self, side: Side) -> bool:
        return True


StartHolding = Callable[[Callable[[Holding, Request], None]], Any]


@pytest.fixture
def start(start_rig: StartRig, lines: Protocol, handlers: list[HandlerConfig]) -> StartHolding:
    async def start_holding(on_resolved: Callable[[Holding, Request], None]) -> Rig:
        protocol = replace(lines, name="own", open_session=lambda context: Holding(context, on_resolved))
        return await start_rig(protocol=protocol, handlers=handlers)

    return start_holding


class TestSessions:
    async def test_close_raised_by_a_resolution_is_graceful_and_drops_the_others(
        self, start: StartHolding, holder: Holder
    ) -> None:
        def close(session: Holding, request: Request) -> None:
            session.out[Side.CLIENT].append(b"last words")
            raise Close("own_reason", "a test")

        rig = await start(close)
        client, broker = await rig.connect()
        await client.send(b"123")
        await wait_all_tasks_blocked()
        holder.tickets[1].resolve(None)
        assert await client.receive_to_end() == b"last words"
        assert await broker.receive_to_end() == b""
        assert holder.dropped == [2, 0]
        client.end()
        broker.end()
        await rig.until_closed("own_reason")

    async def test_bytes_do_not_wait_for_requests_that_are_only_charged(
        self, start: StartHolding, holder: Holder
    ) -> None:
        rig = await start(lambda session, request: None)
        client, broker = await rig.connect()
        holder.may_decide = trio.Event()
        await broker.send(b"answer")
        assert await client.receive(6) == b"answer"
        assert holder.charges == []
        holder.may_decide.set()
        await wait_all_tasks_blocked()
        assert len(holder.charges) == 1
        await broker.send(b"next")
        assert await client.receive(4) == b"next"


class Keeping(Holding):
    """Takes a byte at a time, cannot refuse any, and stops reading while ``most`` are held."""

    most = 2

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context, Keeping.on_resolved)
        self.left = 0
        self.held: list[Request] = []
        self.goodbyes: list[str] = []
        self.writes: list[Side] = []
        self.closed_by: Side | None = None
        self.waits_for_answer = False
        context.watch_writes(True)

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        if side is Side.BROKER:
            self.out[Side.CLIENT].append(chunk)
            return None
        self.left = len(chunk) - 1
        request = Request((Resource("line_topic", "hold"),), 1, 1, "", "impossible", None, bytes(chunk[:1]))
        return Batch(self.context.connection, side, [request])

    def decided(self, batch: Batch, now_ns: int) -> None:
        for index, request in enumerate(batch.requests):
            if isinstance(batch.verdicts.get(index), Hold):
                self.held.append(request)

    def on_resolved(self, request: Request) -> None:
        self.held.remove(request)
        assert isinstance(request.handle, bytes)
        self.out[Side.BROKER].append(request.handle)

    def left_bytes(self, side: Side) -> int:
        return self.left if side is Side.CLIENT else 0

    def paused(self, side: Side) -> bool:
        return side is Side.CLIENT and len(self.held) >= self.most

    def has_undelivered(self, side: Side) -> bool:
        return side is Side.CLIENT and bool(self.held)

    @property
    def closing(self) -> Side | None:
        return self.closed_by

    def start_close(self, detail: str, now_ns: int) -> None:
        self.goodbyes.append(detail)
        for side in Side:
            self.out[side].append(f"bye {side.value}".encode())

    def receive_closing(self, side: Side, chunk: memoryview) -> bool:
        return side is Side.CLIENT or not self.waits_for_answer or bytes(chunk) == b"bye"

    def written(self, side: Side, now_ns: int) -> None:
        self.writes.append(side)


class ReadToItsEnd(Keeping):
    """Reads all data of a client that has left."""

    def paused(self, side: Side) -> bool:
        return not self.client_left and super().paused(side)


class TestClientThatIsNotRead:
    @pytest.fixture
    async def rig(self, start_rig: StartRig, lines: Protocol, handlers: list[HandlerConfig]) -> Rig:
        return await start_rig(protocol=replace(lines, open_session=ReadToItsEnd, half_closes=False), handlers=handlers)

    @pytest.mark.parametrize("end", ["end", "reset"])
    async def test_is_seen_to_leave(self, rig: Rig, holder: Holder, autojump_clock: MockClock, end: str) -> None:
        client, _ = await rig.connect()
        await client.send(b"1234567")
        await wait_all_tasks_blocked()
        assert len(holder.tickets) == 2
        getattr(client, end)()
        await trio.sleep(3 * KEEP_OPEN_INTERVAL_S)
        assert len(holder.tickets) == 7
        (connection,) = rig.connections
        assert connection.peers[Side.CLIENT].state is PeerState.KEEPING

    async def test_has_left_if_nothing_comes_of_it_for_too_long(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await client.send(b"123")
        await wait_all_tasks_blocked()
        (connection,) = rig.connections
        for _ in range(MAX_SILENT_CHECKS + 1):
            assert len(holder.tickets) == 2
            connection.session.context.client_silent()
            await wait_all_tasks_blocked()
        assert len(holder.tickets) == 3
        connection.session.context.client_silent()
        await wait_all_tasks_blocked()
        assert connection.peers[Side.CLIENT].state is PeerState.KEEPING
        for ticket in holder.tickets:
            ticket.resolve(None)
        assert await broker.receive_to_end() == b"123"
        broker.end()
        await rig.until_closed("client_error")
        assert await client.receive_to_end() == b""

    async def test_is_there_while_anything_comes_of_it(self, rig: Rig, holder: Holder) -> None:
        client, _ = await rig.connect()
        await client.send(b"12")
        (connection,) = rig.connections
        for _ in range(2 * MAX_SILENT_CHECKS):
            await wait_all_tasks_blocked()
            await client.send(b"+")
            connection.session.context.client_silent()
        await wait_all_tasks_blocked()
        assert len(holder.tickets) == 2


class Answering(Keeping):
    """Keeps each chunk of the broker's until the client sends a plus sign."""

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context)
        self.answers: list[bytes] = []

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        if side is Side.BROKER:
            self.answers.append(bytes(chunk))
            return None
        if bytes(chunk[:1]) != b"+":
            return super().receive(side, chunk, now_ns)
        self.left = len(chunk) - 1
        self.out[Side.CLIENT].append(self.answers.pop(0))
        return None

    def has_undelivered(self, side: Side) -> bool:
        return side is Side.BROKER and bool(self.answers)


class TestAnswersOfABrokerThatHasLeft:
    @pytest.fixture
    async def rig(self, start_rig: StartRig, lines: Protocol, handlers: list[HandlerConfig]) -> Rig:
        return await start_rig(protocol=replace(lines, open_session=Answering, half_closes=False), handlers=handlers)

    @pytest.mark.parametrize(("end", "reason"), [("end", "broker_closed"), ("reset", "broker_error")])
    async def test_reach_a_client_that_reads_on(
        self, rig: Rig, holder: Holder, autojump_clock: MockClock, end: str, reason: str
    ) -> None:
        client, broker = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        await broker.send(b"one")
        await wait_all_tasks_blocked()
        getattr(broker, end)()
        await trio.sleep(0.9)
        assert holder.dropped == [0]
        await client.send(b"+")
        assert await client.receive_to_end() == b"one"
        client.end()
        await rig.until_closed(reason)

    async def test_have_as_long_as_the_client_sends(self, rig: Rig, autojump_clock: MockClock) -> None:
        client, broker = await rig.connect()
        for answer in (b"a", b"b", b"c"):
            await broker.send(answer)
            await wait_all_tasks_blocked()
        broker.end()
        for answer in (b"a", b"b", b"c"):
            await trio.sleep(0.9)
            await client.send(b"+")
            assert await client.receive(1) == answer
        assert await client.receive_to_end() == b""
        client.end()
        await rig.until_closed("broker_closed")

    async def test_are_lost_to_a_client_that_does_not_read(self, rig: Rig, autojump_clock: MockClock) -> None:
        client, broker = await rig.connect()
        await broker.send(b"one")
        await wait_all_tasks_blocked()
        broker.end()
        await trio.sleep(2)
        assert not rig.connections
        assert await client.receive_to_end() == b""
        await rig.until_closed("broker_closed")


class TestWhatCannotBeRefused:
    @pytest.fixture
    async def rig(self, start_rig: StartRig, lines: Protocol, handlers: list[HandlerConfig]) -> Rig:
        return await start_rig(protocol=replace(lines, open_session=Keeping, half_closes=False), handlers=handlers)

    async def test_a_client_is_not_read_beyond_its_sessions_pause(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await client.send(b"12345")
        await wait_all_tasks_blocked()
        for number in range(5):
            assert len(holder.tickets) == min(number + 2, 5)
            holder.tickets[number].resolve(None)
            assert await broker.receive(1) == b"%d" % (number + 1)
            await wait_all_tasks_blocked()

    async def test_messages_of_a_departed_client_are_still_forwarded(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await client.send(b"12")
        await wait_all_tasks_blocked()
        client.end()
        await broker.send(b"answers for nobody")
        await wait_all_tasks_blocked()
        assert holder.dropped == []
        for ticket in holder.tickets:
            ticket.resolve(None)
        assert await broker.receive_to_end() == b"12"
        broker.end()
        await rig.until_closed("client_closed")

    async def test_a_client_that_has_closed_the_connection_gets_its_end_at_once(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Keeping)
        session.closed_by = Side.CLIENT
        session.out[Side.CLIENT].append(b"agreed")
        session.context.end_client()
        assert await client.receive_to_end() == b"agreed"
        client.end()
        await wait_all_tasks_blocked()
        holder.tickets[0].resolve(None)
        assert await broker.receive_to_end() == b"1"
        broker.end()
        await rig.until_closed("client_closed")

    async def test_a_client_that_has_closed_the_connection_and_stays_is_not_kept_for_ever(
        self, rig: Rig, holder: Holder, autojump_clock: MockClock
    ) -> None:
        client, _ = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Keeping)
        session.context.end_client()
        await trio.sleep(KEPT_S + 1)
        assert not rig.connections
        assert holder.dropped == [0]

    async def test_the_broker_is_read_on_when_a_client_leaves_that_did_not_read(
        self, start_rig: StartRig, lines: Protocol, handlers: list[HandlerConfig], holder: Holder
    ) -> None:
        protocol = replace(lines, open_session=Keeping, half_closes=False)
        rig = await start_rig(protocol=protocol, handlers=handlers)
        client, broker = await rig.connect(receive_buffer=4096)
        await client.send(b"1")
        await wait_all_tasks_blocked()
        await broker.send_until_stalled(b"answer" * 1000)
        client.end()
        await wait_all_tasks_blocked()
        (connection,) = rig.connections
        while connection.peers[Side.BROKER].state.value != "reading":
            await trio.lowlevel.checkpoint()
        holder.tickets[0].resolve(None)
        assert await broker.receive_to_end() == b"1"

    async def test_unrefusable_request_is_not_refused_by_its_ticket(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        holder.tickets[0].resolve(BUSY)
        assert await broker.receive(1) == b"1"
        assert await rig.requests("hold") == {"pass": 1}

    async def test_undelivered_data_of_a_departed_client_expires(
        self, rig: Rig, holder: Holder, autojump_clock: MockClock
    ) -> None:
        client, broker = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        client.end()
        await trio.sleep(KEPT_S + 1)
        assert not rig.connections
        assert await broker.receive_to_end() == b""
        assert holder.dropped == [0]

    async def test_single_requests_are_given_up(self, rig: Rig, holder: Holder) -> None:
        client, broker = await rig.connect()
        await client.send(b"12")
        await wait_all_tasks_blocked()
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Keeping)
        session.context.give_up([session.held.pop(0)])
        assert holder.dropped == [0]
        holder.tickets[1].resolve(None)
        assert await broker.receive(1) == b"2"
        assert await rig.requests("hold") == {"drop": 1, "pass": 1}


class TestGoodbyes:
    @pytest.fixture
    async def rig(self, start_rig: StartRig, lines: Protocol, handlers: list[HandlerConfig]) -> Rig:
        return await start_rig(protocol=replace(lines, open_session=Keeping, half_closes=False), handlers=handlers)

    async def test_close_frames_are_sent_before_a_drain_ends(self, rig: Rig, nursery: trio.Nursery) -> None:
        client, broker = await rig.connect()
        nursery.start_soon(rig.path.drain, 10)
        assert await client.receive_to_end() == b"bye client"
        assert await broker.receive_to_end() == b"bye broker"

    async def test_are_waited_for_before_the_stream_ends(self, rig: Rig, nursery: trio.Nursery) -> None:
        client, broker = await rig.connect()
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Keeping)
        session.waits_for_answer = True
        nursery.start_soon(rig.path.drain, 10)
        assert await client.receive_to_end() == b"bye client"
        assert await broker.receive(10) == b"bye broker"
        await wait_all_tasks_blocked()
        assert not connection.peers[Side.BROKER].ended
        await broker.send(b"bye")
        assert await broker.receive_to_end() == b""

    async def test_a_reset_behind_those_of_the_protocol_is_a_normal_end(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Keeping)
        session.closed_by = Side.CLIENT
        broker.reset()
        await rig.until_closed("client_closed")
        client.end()

    async def test_session_is_notified_when_all_is_written(self, rig: Rig) -> None:
        client, broker = await rig.connect()
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Keeping)
        await broker.send(b"answer")
        assert await client.receive(6) == b"answer"
        assert session.writes == [Side.CLIENT]


class Gated(Holding):
    """Forwards data, and stops reading a client while its gate is shut, as after each chunk."""

    is_open = True

    def __init__(self, context: SessionContext) -> None:
        super().__init__(context, lambda session, request: None)

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        self.out[side.other].append(chunk)
        if side is Side.CLIENT:
            self.is_open = self.passes_all
        return None

    passes_all = False

    def paused(self, side: Side) -> bool:
        return side is Side.CLIENT and not self.is_open


class TestClientsThatLeave:
    """Data that a client sent before it left reaches the broker, even if Sluice was not reading it."""

    @pytest.fixture
    async def rig(self, start_rig: StartRig, lines: Protocol) -> Rig:
        return await start_rig(protocol=replace(lines, open_session=Gated, half_closes=False))

    async def shut(self, rig: Rig) -> tuple[Peer, Peer, int]:
        """Let a client fill the kernel's buffers. Return it, the broker, and the number of bytes."""
        client, broker = await rig.connect()
        await client.send(b"1")
        assert await broker.receive(1) == b"1"
        sent = await client.send_until_stalled(bytes(range(256)) * 256)
        return client, broker, sent

    async def write_to_client(self, rig: Rig, broker: Peer, clock: MockClock) -> None:
        await broker.send(b"beat")
        await rig.settle()
        for _ in range(MAX_CHECKS):
            clock.jump(CHECK_S)
            await rig.settle()

    async def open_gate(self, rig: Rig) -> None:
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Gated)
        session.is_open = session.passes_all = True
        connection.progressed()

    async def test_a_write_destroys_nothing_of_one_that_left_unread(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker, sent = await self.shut(rig)
        client.sock.close()
        for _ in range(3):
            await self.write_to_client(rig, broker, mock_clock)
        await self.open_gate(rig)
        assert await broker.receive_to_end() == (bytes(range(256)) * (sent // 256 + 1))[:sent]
        broker.end()
        await rig.until(lambda: not rig.connections)
        assert rig.path.server.services.ahead.taken_bytes == 0
        assert (await rig.snapshot()).lost_bytes == {"main": 0}

    async def test_a_client_that_is_there_is_written_to_in_a_moment(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker, sent = await self.shut(rig)
        await self.write_to_client(rig, broker, mock_clock)
        assert await client.receive(4) == b"beat"
        (connection,) = rig.connections
        assert connection.bytes_read[Side.CLIENT] == 1
        await self.open_gate(rig)
        assert await broker.receive(sent) == (bytes(range(256)) * (sent // 256 + 1))[:sent]

    async def test_a_sending_client_is_read_ahead_up_to_a_bound_and_then_written_to_at_once(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ReadAhead, "MAX_BYTES", 100_000)
        client, broker, _ = await self.shut(rig)
        await broker.send(b"beat")
        assert await client.receive(4) == b"beat"
        ahead = rig.path.server.services.ahead
        taken_bytes = ahead.taken_bytes
        assert 100_000 <= taken_bytes < 100_000 + ReadAhead.CHUNK_BYTES
        await broker.send(b"beat")
        assert await client.receive(4) == b"beat"
        assert ahead.taken_bytes == taken_bytes
        assert (await rig.snapshot()).read_ahead_bytes == taken_bytes

    async def test_read_ahead_has_a_global_bound(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
    ) -> None:
        monkeypatch.setattr(ReadAhead, "MAX_TOTAL_BYTES", 100_000)
        pairs = [await self.shut(rig) for _ in range(2)]
        for client, broker, _ in pairs:
            await self.write_to_client(rig, broker, mock_clock)
            assert await client.receive(4) == b"beat"
        assert rig.path.server.services.ahead.taken_bytes < 100_000 + ReadAhead.CHUNK_BYTES

    @pytest.mark.parametrize("written", [False, True])
    async def test_bytes_before_a_reset_are_forwarded(self, rig: Rig, mock_clock: MockClock, *, written: bool) -> None:
        client, broker, _ = await self.shut(rig)
        (connection,) = rig.connections
        client.reset()
        came = connection.peers[Side.CLIENT].wire.unread_bytes()
        assert came > 0
        if written:
            await self.write_to_client(rig, broker, mock_clock)
        await self.open_gate(rig)
        assert len(await broker.receive_to_end()) == came
        broker.end()
        await rig.until_closed("client_error")

    async def test_one_that_is_never_written_to_is_read_a_little_so_that_its_kernel_does_not_give_up(
        self, rig: Rig, mock_clock: MockClock
    ) -> None:
        client, _, sent = await self.shut(rig)
        client.sock.close()
        ahead = rig.path.server.services.ahead
        taken = []
        while not taken or ahead.taken_bytes > taken[-1]:
            taken.append(ahead.taken_bytes)
            mock_clock.jump(KEEP_OPEN_INTERVAL_S)
            await rig.settle()
        assert taken[-1] == sent
        assert all(later - earlier <= ReadAhead.CHUNK_BYTES for earlier, later in pairwise(taken))

    async def test_a_client_is_told_of_an_alarm_once_it_is_read_ahead(self, rig: Rig, mock_clock: MockClock) -> None:
        client, broker = await rig.connect()
        (connection,) = rig.connections
        session = connection.session
        assert isinstance(session, Gated)

        def alarm(reason: str, now_ns: int) -> None:
            session.is_open = False
            session.out[Side.CLIENT].append(reason.encode())

        session.alarm = alarm  # type: ignore[method-assign] # in place of a session that tells its client
        sent = client.send_now(bytes(8 * 1024 * 1024))
        client.sock.close()
        connection.alarm("memory")
        for _ in range(MAX_CHECKS):
            mock_clock.jump(CHECK_S)
            await rig.settle()
        await self.open_gate(rig)
        assert len(await broker.receive_to_end()) == sent

    async def test_lost_bytes_are_counted_and_logged_once(
        self,
        start_rig: StartRig,
        lines: Protocol,
        handlers: list[HandlerConfig],
        autojump_clock: MockClock,
        log: list[Any],
    ) -> None:
        protocol = replace(lines, open_session=Keeping, half_closes=False)
        rig = await start_rig(protocol=protocol, handlers=handlers)
        client, _ = await rig.connect()
        await client.send(b"1")
        await wait_all_tasks_blocked()
        client.end()
        await wait_all_tasks_blocked()
        await trio.sleep(KEPT_S + 1)
        snapshot = await rig.snapshot()
        assert (snapshot.lost_messages, snapshot.lost_bytes) == ({"main": 1}, {"main": 1})
        (warning,) = (entry for entry in log if entry["log_level"] == "warning")
        assert warning["event"] == "lost messages that the client assumes were delivered"
        assert (warning["messages"], warning["bytes"], warning["unread_bytes"]) == (1, 1, 0)
