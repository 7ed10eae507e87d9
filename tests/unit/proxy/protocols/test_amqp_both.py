"""Both versions on one port: a connection's choice, and that none of its first bytes is lost."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from amqp_playbook import frames

from proxy.deciding.batch import ConnectionInfo, Side
from proxy.protocols.amqp091 import PROTOCOL as AMQP091
from proxy.protocols.amqp091.session import AMQP091Session
from proxy.protocols.amqp10 import PROTOCOL as AMQP10
from proxy.protocols.amqp10.session import AMQP10Session
from proxy.protocols.amqp10.wire import AMQP_HEADER, SASL_HEADER
from proxy.protocols.amqp_both import PROTOCOL, AMQPOptions, AMQPSession
from proxy.protocols.base import Close, Session, SessionContext, WireCounters

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import StartRig

CLIENT, BROKER = Side.CLIENT, Side.BROKER
AMQP091_HEADER = b"AMQP\x00\x00\x09\x01"


class Connection:
    """A session as the driver has it, with a method for its writers from the start."""

    def __init__(self, **options: Any) -> None:
        self.woken = 0
        self.session: Session = PROTOCOL.open_session(
            SessionContext(
                connection=ConnectionInfo(1, "main", "default", "127.0.0.1:5", "127.0.0.1"),
                counters=WireCounters(),
                wake=self.wake,
                wants_responses=False,
                limits_kind=lambda _: True,
                options=AMQPOptions(**options),
                hub=PROTOCOL.open_hub(),
            )
        )
        self._take = self.session.take

    def wake(self) -> None:
        self.woken += 1

    def give(self, *pieces: bytes, side: Side = CLIENT) -> None:
        for piece in pieces:
            self.session.receive(side, memoryview(piece), 0)

    def written(self, side: Side) -> bytes:
        return b"".join(self._take(side))


@pytest.mark.parametrize("header", [SASL_HEADER, AMQP_HEADER])
@pytest.mark.parametrize("cut", range(1, 9))
def test_a_header_of_1_0_makes_it_a_session_of_1_0_wherever_it_is_cut(header: bytes, cut: int) -> None:
    connection = Connection()
    connection.give(*filter(None, (header[:cut], header[cut:])))
    assert type(connection.session) is AMQP10Session
    assert connection.written(BROKER) == header
    assert connection.woken


def test_a_greeting_of_0_9_1_passes_in_any_chunks() -> None:
    greeting = frames.greeting()
    for longest in (1, 2, 7, 8, 20, len(greeting)):
        connection = Connection()
        connection.give(*(greeting[at : at + longest] for at in range(0, len(greeting), longest)))
        assert type(connection.session) is AMQP091Session
        assert connection.written(BROKER) == greeting
        assert connection.woken


def test_unknown_header_is_treated_as_0_9_1() -> None:
    for tls in ("refuse", "pass"):
        connection = Connection(tls=tls)
        if tls == "refuse":
            with pytest.raises(Close, match="TLS"):
                connection.give(b"\x16\x03\x01")
        else:
            connection.give(b"\x16\x03\x01", b"more")
            assert connection.written(BROKER) == b"\x16\x03\x01more"
    connection = Connection()
    connection.give(b"AMQP\x02\x01\x00\x00")
    assert connection.written(BROKER) == b"AMQP\x02\x01\x00\x00"
    with pytest.raises(Close, match="other_protocol"):
        connection.give(AMQP091_HEADER, side=BROKER)
    assert connection.written(CLIENT) == AMQP091_HEADER


def test_a_broker_that_sends_first_is_read() -> None:
    connection = Connection()
    connection.give(SASL_HEADER[:5])
    with pytest.raises(Close, match="other_protocol"):
        connection.give(AMQP091_HEADER, side=BROKER)
    assert connection.written(CLIENT) == AMQP091_HEADER


@pytest.mark.parametrize("header", [SASL_HEADER, AMQP091_HEADER])
def test_an_alarm_from_before_the_beginning_is_not_forgotten(header: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    for version in (AMQP10Session, AMQP091Session):
        monkeypatch.setattr(version, "alarm", lambda _, reason, now_ns: told.append((reason, now_ns)))
    connection = Connection()
    connection.session.alarm("memory runs short", 5)
    connection.session.receive(CLIENT, memoryview(header), 7)
    assert told == [("memory runs short", 7)]


def test_its_options_and_kinds_are_those_of_both() -> None:
    own = {each.name: each.default for each in fields(AMQPOptions)}
    for protocol in (AMQP10, AMQP091):
        assert own.items() >= {each.name: each.default for each in fields(protocol.options)}.items()
        assert [kind.name for kind in PROTOCOL.kinds] == [kind.name for kind in protocol.kinds]
        assert (PROTOCOL.default_rules, PROTOCOL.scopes) == (protocol.default_rules, protocol.scopes)
    assert {kind.action for kind in AMQP10.kinds} == {"delay"}
    assert [kind.action for kind in PROTOCOL.kinds] == [kind.action for kind in AMQP091.kinds]
    assert [kind.credit_waits for kind in PROTOCOL.kinds] == ["AMQP 1.0", "AMQP 1.0", "AMQP 1.0", ""]
    assert AMQPSession.ticks is False


async def test_clients_of_both_versions_are_served_at_once(start_rig: StartRig) -> None:
    rig = await start_rig("queue:orders=5/s", protocol=PROTOCOL)
    for header in (AMQP091_HEADER, SASL_HEADER):
        client, broker = await rig.connect()
        await client.send(header[:3])
        await client.send(header[3:])
        assert await broker.receive(8) == header
    connections = rig.connections
    assert [type(connection.session) for connection in connections] == [AMQP091Session, AMQP10Session]
    # Both have timers, from the header on.
    assert all(connection._woken is not None for connection in connections)
