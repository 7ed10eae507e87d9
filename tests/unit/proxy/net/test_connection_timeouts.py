"""How long a client may keep a connection waiting."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from proxy.net.server import ListenerConfig
from proxy.net.timeouts import MIN_FRAME_BYTES_PER_S

if TYPE_CHECKING:
    from proxy.protocols.base import Protocol
    from tests.unit.proxy.conftest import Rig, ScriptedBroker, StartRig

HOST = "127.0.0.1"
PERIOD_S = 30.0
ENOUGH = int(PERIOD_S * MIN_FRAME_BYTES_PER_S)

StartTimed = Callable[..., Awaitable["Rig"]]


@pytest.fixture
def start_timed(start_rig: StartRig, lines: Protocol, broker: ScriptedBroker) -> StartTimed:
    async def start(**timeouts: float) -> Rig:
        options = lines.options(longest_bytes=10 * ENOUGH)
        config = ListenerConfig(
            *("main", lines, options, (HOST, 0), broker.address),
            **({"frame_timeout_s": PERIOD_S, "handshake_timeout_s": 10.0} | timeouts),  # type: ignore[arg-type]
        )
        return await start_rig(listeners=(config,))

    return start


async def jump(clock: MockClock, seconds: float) -> None:
    """Let time pass, second by second, so that every timer fires separately."""
    for _ in range(round(seconds)):
        clock.jump(1)
        await wait_all_tasks_blocked()


class TestHandshake:
    async def test_a_silent_client_is_closed(
        self, start_timed: StartTimed, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig = await start_timed()
        client, _ = await rig.connect()
        await jump(mock_clock, 9)
        assert rig.closed == {}
        await jump(mock_clock, 1)
        assert await client.receive_to_end() == b""
        await jump(mock_clock, 2)
        assert rig.closed == {"handshake_timeout": 1}
        assert log[-1]["detail"] == "the client sent no data within 10 s"

    async def test_a_client_that_has_sent_may_be_silent(self, start_timed: StartTimed, mock_clock: MockClock) -> None:
        rig = await start_timed()
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        await jump(mock_clock, 10 * PERIOD_S)
        assert rig.closed == {}


class TestFrame:
    async def begin(self, rig: Rig) -> Any:
        client, broker = await rig.connect()
        await client.send(b"free 1\nfree ")
        await broker.receive_line()
        return client

    async def test_that_comes_byte_by_byte_ends_the_connection(
        self, start_timed: StartTimed, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig = await start_timed()
        client = await self.begin(rig)
        # The toy protocol's frames have no known end. Other protocols report the same number each time.
        rig.connections[0].session.missing_bytes = lambda side: 1000 - rig.connections[0].bytes_read[side]
        for _ in range(100):
            if rig.closed:
                break
            await client.send(b"x")
            await jump(mock_clock, 1)
        assert rig.closed == {"frame_timeout": 1}
        assert re.fullmatch(
            r"only \d\d bytes of an unfinished frame arrived in 30 s; \d+ bytes are still missing", log[-1]["detail"]
        )

    async def test_that_stops_ends_the_connection(self, start_timed: StartTimed, mock_clock: MockClock) -> None:
        rig = await start_timed()
        await self.begin(rig)
        await jump(mock_clock, 10 + 2 * PERIOD_S - 1)
        assert rig.closed == {}
        await jump(mock_clock, 3)
        assert rig.closed == {"frame_timeout": 1}

    async def test_may_take_its_time_if_it_comes(self, start_timed: StartTimed, mock_clock: MockClock) -> None:
        rig = await start_timed()
        client = await self.begin(rig)
        rig.connections[0].session.missing_bytes = lambda side: 9 * ENOUGH - rig.connections[0].bytes_read[side]
        for _ in range(8):
            await client.send(bytes(ENOUGH))
            await jump(mock_clock, PERIOD_S)
        assert rig.closed == {}

    async def test_is_not_waited_for_while_the_client_is_not_read(
        self, start_timed: StartTimed, mock_clock: MockClock
    ) -> None:
        rig = await start_timed()
        await self.begin(rig)
        rig.connections[0].session.paused = lambda side: True
        await jump(mock_clock, 10 * PERIOD_S)
        assert rig.closed == {}


class TestIdleness:
    async def test_idle_connection_is_closed(
        self, start_timed: StartTimed, mock_clock: MockClock, log: list[Any]
    ) -> None:
        rig = await start_timed(idle_timeout_s=40)
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        for _ in range(5):
            # Data from either side counts.
            await jump(mock_clock, 30)
            await broker.send(b"hello\n")
            await client.receive_line()
        assert rig.closed == {}
        await jump(mock_clock, 52)
        assert rig.closed == {"idle_timeout": 1}
        assert log[-1]["detail"] == "neither peer sent any data for 40 s"

    async def test_idleness_does_not_count_while_requests_are_in_flight(
        self, start_timed: StartTimed, mock_clock: MockClock
    ) -> None:
        rig = await start_timed(idle_timeout_s=40)
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        in_flight = [1]
        rig.connections[0].session.in_flight = lambda: in_flight[0]
        await jump(mock_clock, 300)
        assert rig.closed == {}
        in_flight[0] = 0
        await jump(mock_clock, 12)
        assert rig.closed == {"idle_timeout": 1}

    async def test_idle_timeout_is_off_by_default(self, start_timed: StartTimed, mock_clock: MockClock) -> None:
        rig = await start_timed()
        client, broker = await rig.connect()
        await client.send(b"free 1\n")
        await broker.receive_line()
        await jump(mock_clock, 1000)
        assert rig.closed == {}
