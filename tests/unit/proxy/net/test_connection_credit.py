"""Requests for credit, and batches without requests, in a connection's driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.schedule import read_hours
from proxy.deciding.batch import Batch, Charge, Grant, Hold, Paid, Refuse, Request, Side
from proxy.deciding.pipeline import HandlerConfig
from proxy.deciding.rate_limit import PLUGIN as RATE_LIMIT
from proxy.deciding.rate_limit import RateLimitOptions
from proxy.protocols.base import Buffer, Protocol, Session, SessionContext, Terms

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import Peer, Rig, StartRig

KIND = "line_topic"
HOST = "127.0.0.1"


class Crediting(Session):
    """A line is ``WORD TOPIC NUMBER``. Its sender gets the outcome."""

    ticks = True

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.out: dict[Side, list[Buffer]] = {side: [] for side in Side}
        self.open: list[Request] = []
        self.batches: list[Batch] = []

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        requests, charges, paid = [], [], []
        for line in bytes(chunk).splitlines():
            word, topic, number = line.decode().split()
            resources, count = (Resource(KIND, topic),), int(number)
            if word == "credit":
                requests.append(self.request(resources, count, side))
            elif word == "back":
                charges.append(Charge(resources, -count, counts=False, asks="delaying"))
            elif word == "paid":
                paid.append(Paid(resources, count, count, 10 * count))
            else:
                back = Charge(resources, -count, counts=False, asks="delaying")
                self.batches.append(
                    Batch(self.context.connection, side, (), (back,), (Paid(resources, count, count, 10 * count),))
                )
                self.context.wake()
        return Batch(self.context.connection, side, requests, charges, paid) if requests or charges or paid else None

    def request(self, resources: tuple[Resource, ...], count: int, side: Side) -> Request:
        return Request(resources, 1, 10, "", "impossible", None, side, most=count, asks="delaying")

    def decided(self, batch: Batch, now_ns: int) -> None:
        for index, request in enumerate(batch.requests):
            verdict = batch.verdicts.get(index)
            if isinstance(verdict, Hold):
                self.open.append(request)
            else:
                self.granted(request, verdict.messages if isinstance(verdict, Grant) else request.most)
        for each in batch.paid:
            self.out[batch.side].append(b"counted %d\n" % each.messages)

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        assert refuse is None
        self.open.remove(request)
        self.granted(request, request.messages)

    def granted(self, request: Request, messages: int) -> None:
        side = request.handle
        assert isinstance(side, Side)
        self.out[side].append(b"granted %d\n" % messages)
        if messages < request.most:
            again = self.request(request.resources, request.most - messages, side)
            self.batches.append(Batch(self.context.connection, side, (again,)))
            self.context.wake()

    def next_tick_ns(self) -> int | None:
        return 0 if self.batches else None

    def tick(self, now_ns: int) -> Batch | None:
        return self.batches.pop(0) if self.batches else None

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


@pytest.fixture
def crediting(lines: Protocol) -> Protocol:
    return replace(lines, open_session=Crediting, half_closes=False)


def delay(name: str, rate_per_s: float, **more: Any) -> Rule:
    return Rule(KIND, name, rate_per_s, action="delay", **more)


@pytest.fixture
async def rig(start_rig: StartRig, crediting: Protocol) -> Rig:
    return await start_rig(protocol=crediting, rules=[delay("d", 4), delay("never", 0)])


def session_of(rig: Rig) -> Crediting:
    (connection,) = rig.connections
    assert isinstance(connection.session, Crediting)
    return connection.session


async def stored(rig: Rig) -> float:
    state = rig.path._limits.state(Resource(KIND, "d"), rig.path._now_ns())
    assert state is not None
    return state.stored_permits


@pytest.mark.parametrize("side", list(Side))
class TestBothSides:
    async def peer(self, rig: Rig, side: Side) -> Peer:
        client, broker = await rig.connect()
        return client if side is Side.CLIENT else broker

    async def test_credit_is_granted_at_once_and_then_as_permits_come(
        self, rig: Rig, side: Side, mock_clock: MockClock
    ) -> None:
        peer = await self.peer(rig, side)
        await peer.send(b"credit d 6\n")
        assert await peer.receive_line() == b"granted 4\n"
        await rig.settle()
        assert (await rig.snapshot()).held.requests == 1
        assert (await rig.snapshot()).held.bytes == 0
        for _ in range(2):
            mock_clock.jump(0.25)
            assert await peer.receive_line() == b"granted 1\n"
            await rig.settle()
        snapshot = await rig.snapshot()
        assert snapshot.held.requests == 0
        assert await rig.requests("d") == {}
        assert snapshot.rules[f"{KIND}:d"].requests["hold"] == 2
        assert snapshot.rules[f"{KIND}:d"].messages["hold"] == 2

    async def test_messages_on_credit_are_counted_without_a_request(self, rig: Rig, side: Side) -> None:
        peer = await self.peer(rig, side)
        await peer.send(b"paid d 3\n")
        assert await peer.receive_line() == b"counted 3\n"
        assert await rig.requests("d") == {"pass": 3}

    async def test_returned_permits_are_available_to_others(self, rig: Rig, side: Side) -> None:
        peer = await self.peer(rig, side)
        await peer.send(b"credit d 4\n")
        assert await peer.receive_line() == b"granted 4\n"
        await peer.send(b"back d 3\n")
        await rig.settle()
        assert await stored(rig) == 3

    async def test_departed_client_no_longer_waits(self, rig: Rig, side: Side) -> None:
        peer = await self.peer(rig, side)
        await peer.send(b"credit never 4\n")
        await rig.settle()
        assert (await rig.snapshot()).held.requests == 1
        peer.end()
        await rig.until(lambda: not rig.path._limits.held.requests)
        snapshot = await rig.snapshot()
        assert snapshot.held.requests == 0
        assert snapshot.rules[f"{KIND}:never"].requests["hold"] == 1


async def test_limiter_that_fails_grants_everything(
    start_rig: StartRig, crediting: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_rig(protocol=crediting, rules=[delay("d", 4)])
    client, _ = await rig.connect()

    def failing(*_: object) -> None:
        raise ValueError("a test")

    monkeypatch.setattr(Limits, "grant", failing)
    await client.send(b"credit d 100\npaid d 2\nback d 7\n")
    assert await client.receive_line() == b"granted 100\n"
    assert await client.receive_line() == b"counted 2\n"
    snapshot = await rig.snapshot()
    assert snapshot.bypassed == {("rate_limit", "error"): 3}
    assert await rig.requests("d") == {"bypass": 2}


@pytest.mark.parametrize("lane", ["task", "inline"])
async def test_lanes_take_batches_without_requests(start_rig: StartRig, crediting: Protocol, lane: Any) -> None:
    handlers = [HandlerConfig(RATE_LIMIT, RateLimitOptions(), lane=lane)]
    rig = await start_rig(protocol=crediting, rules=[delay("d", 4)], handlers=handlers)
    client, _ = await rig.connect()
    await client.send(b"credit d 4\n")
    assert await client.receive_line() == b"granted 4\n"
    await client.send(b"soon d 2\n")
    assert await client.receive_line() == b"counted 2\n"
    assert await stored(rig) == 2


class TestTerms:
    async def test_sessions_get_the_terms_of_the_rules_and_their_changes(self, rig: Rig) -> None:
        await rig.connect()
        context = session_of(rig).context
        resources = (Resource(KIND, "d"),)

        def says() -> Terms:
            return context.terms(context.connection, resources, False)

        assert says().delays
        versions = [context.rules_version()]
        for enabled in (False, True):
            await rig.path.apply(rig.path._rule_set.replace(enabled=enabled))
            versions.append(context.rules_version())
            assert says().delays is enabled
        assert len(set(versions)) == 3

    async def test_the_clock_changes_them(
        self, start_rig: StartRig, crediting: Protocol, mock_clock: MockClock
    ) -> None:
        begin = datetime(2026, 1, 5, 8, tzinfo=UTC)
        rig = await start_rig(
            protocol=crediting,
            rules=[delay("d", 4, hours=read_hours("09:00-18:00", (), "UTC"))],
            wall_clock=lambda: begin + timedelta(seconds=trio.current_time()),
        )
        await rig.connect()
        context = session_of(rig).context
        version = context.rules_version()
        assert not context.terms(context.connection, (Resource(KIND, "d"),), False).delays
        mock_clock.jump(3600)
        await wait_all_tasks_blocked()
        assert context.rules_version() != version
        assert context.terms(context.connection, (Resource(KIND, "d"),), False).delays
