"""Links through Sluice look to a client of AMQP 1.0 as they do directly, except for the time when credit comes."""

import contextlib
import hashlib
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from harness.amqp_one import (
    ACCEPTED,
    HEADER,
    REJECTED,
    SASL_HEADER,
    AmqpOneClient,
    AmqpOneError,
    Described,
    Receiver,
    body_of,
    message,
    say,
)
from harness.one_broker import OneBroker
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_LIMITS = """
[[limits]]
kind = "queue"
name = "limited-*"
rate = 200
burst_s = 0.05

[[limits]]
kind = "queue"
name = "closed-*"
rate = 0

[[limits]]
kind = "queue"
name = "refused-*"
rate = 0
action = "reject"

[[limits]]
kind = "delivery"
name = "slow-*"
rate = 20
burst_s = 0.05
"""


@pytest.fixture(scope="module")
def broker(one_broker: OneBroker) -> OneBroker:
    return one_broker


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, broker: OneBroker) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", broker.address)
    return start_sluice(routes=(route,), protocol="amqp10", config=_LIMITS)


@pytest.fixture
def client(sluice: Sluice) -> Iterator[AmqpOneClient]:
    with AmqpOneClient(sluice.routes[0].listen) as connected:
        yield connected


def _fill(broker: OneBroker, address: str, count: int) -> None:
    broker.take_all(address)
    with AmqpOneClient(broker.address) as direct:
        sender = direct.attach_sender(address)
        numbers = [sender.send(message(b"%d " % number)) for number in range(count)]
        for number in numbers:
            assert sender.outcome(number).descriptor == ACCEPTED


def _numbers(bodies: list[bytes]) -> list[int]:
    return [int(body.split(b" ", 1)[0]) for body in bodies]


def _drained(receiver: Receiver, credit: int, expected: int) -> tuple[list[int], int]:
    """Give credit and drain it. Return the messages, and the advance of the delivery-count when the credit is gone."""
    before = receiver.count
    receiver.flow(credit, drain=True)
    came = _numbers([body_of(receiver.receive()) for _ in range(expected)])
    if expected < credit:
        receiver.count = receiver.drained()["delivery_count"]
    return came, receiver.count - before & 0xFFFF_FFFF


@pytest.mark.parametrize("name", ["slow-drain", "fast-drain"])
@pytest.mark.parametrize("there", [0, 3, 10, 12])
def test_a_drain_ends_as_directly_with_any_used_credit(
    name: str, there: int, broker: OneBroker, client: AmqpOneClient
) -> None:
    credit, address = 10, broker.queue(f"{name}-{there}")
    _fill(broker, address, there)
    receiver = client.attach_receiver(address)

    came, by = _drained(receiver, credit, min(there, credit))

    assert came == list(range(min(there, credit)))
    assert by == credit
    # The link continues from there.
    with AmqpOneClient(broker.address) as direct:
        sender = direct.attach_sender(address)
        sender.outcome(sender.send(message(b"99 ")))
    receiver.flow(credit)
    wanted = [*range(min(there, credit), there), 99]
    assert _numbers([body_of(receiver.receive()) for _ in wanted]) == wanted
    receiver.detach()


# Artemis does not answer it.
@pytest.mark.rabbitmq4
@pytest.mark.parametrize("name", ["slow-echo", "fast-echo"])
def test_flow_with_echo_is_answered_with_the_credit_that_the_client_gave(
    name: str, rabbitmq4: RabbitMQ, start_sluice: StartSluice, listen: str
) -> None:
    broker = OneBroker(rabbitmq4)
    with (
        start_sluice(routes=(Route(listen, broker.address),), protocol="amqp10", config=_LIMITS) as sluice,
        AmqpOneClient(sluice.routes[0].listen) as client,
    ):
        receiver = client.attach_receiver(broker.queue(name))
        receiver.flow(7, echo=True)
        flow = client.expect("flow", handle=receiver.theirs, link_credit=7)
    assert flow.get("delivery_count", 0) == receiver.count


def test_credit_comes_at_the_rate_and_never_goes_back(broker: OneBroker, client: AmqpOneClient) -> None:
    address, seconds = broker.queue("limited-raw"), 3.0
    sender = client.attach_sender(address)
    begun, sent = time.monotonic(), 0

    while time.monotonic() < begun + seconds:
        sender.wait_for_credit()
        sender.send(message(b"%d " % sent))
        sent += 1

    limits = [
        came.get("delivery_count", 0) + came.get("link_credit", 0)
        for came in client.history
        if came.name == "flow" and came.get("handle") == sender.theirs
    ]
    assert limits == sorted(limits)
    assert 0.9 * 200 * seconds <= sent <= 1.1 * 200 * seconds + 10
    sender.detach()
    assert _numbers(broker.take_all(address)) == list(range(sent))


def test_closed_queue_gives_no_credit_and_costs_its_session_nothing(broker: OneBroker, client: AmqpOneClient) -> None:
    closed = client.attach_sender(broker.queue("closed-raw"))
    address = broker.queue("beside-closed")
    beside = client.attach_sender(address)

    numbers = [beside.send(message(b"%d " % number)) for number in range(300)]

    assert {beside.outcome(number).descriptor for number in numbers} == {ACCEPTED}
    assert not [
        came
        for came in client.history
        if came.name == "flow" and came.get("handle") == closed.theirs and came.get("link_credit", 0)
    ]
    closed.detach()
    assert len(broker.take_all(address)) == 300


@pytest.mark.parametrize("name", ["limited-aborted", "free-aborted"])
def test_aborted_deliveries_have_the_same_effect_as_directly(name: str, broker: OneBroker, sluice: Sluice) -> None:
    address = broker.queue(name)

    def stored(where: str) -> list[bytes]:
        numbers = []
        with AmqpOneClient(where) as client:
            sender = client.attach_sender(address)
            for number in range(60):
                aborted = number % 3 == 1
                body = (b"%d " % number).ljust(1200, b".")
                delivery = sender.send(message(body), frame_bytes=512, aborted=aborted)
                if not aborted:
                    numbers.append(delivery)
            assert {sender.outcome(number).descriptor for number in numbers} == {ACCEPTED}
        return broker.take_all(address)

    # RabbitMQ 4.0 stores the earlier frames.
    directly = stored(broker.address)
    assert {0, 2, 3} <= set(_numbers(directly))
    assert stored(sluice.routes[0].listen) == directly


@pytest.mark.parametrize("name", ["limited-again", "free-again"])
def test_a_link_attached_again_continues(name: str, broker: OneBroker, client: AmqpOneClient) -> None:
    address = broker.queue(name)
    for turn in range(4):
        sender = client.attach_sender(address, name=f"again-{name}")
        numbers = [sender.send(message(b"%d " % (20 * turn + number))) for number in range(20)]
        assert {sender.outcome(number).descriptor for number in numbers} == {ACCEPTED}
        sender.detach()
    assert _numbers(broker.take_all(address)) == list(range(80))


def test_refused_deliveries_are_swallowed_and_the_numbers_continue(broker: OneBroker, client: AmqpOneClient) -> None:
    address, refusing = broker.queue("beside-refused"), broker.queue("refused-raw")
    sender, refused = client.attach_sender(address), client.attach_sender(refusing)
    numbers, wrong = [], []

    for number in range(400):
        numbers.append(sender.send(message(b"%d " % number)))
        body = (b"%d " % number).ljust(1500 if number % 2 else 10, b".")
        wrong.append(refused.send(message(body), frame_bytes=512))

    assert {sender.outcome(number).descriptor for number in numbers} == {ACCEPTED}
    told = [refused.outcome(number) for number in wrong]
    assert {state.descriptor for state in told} == {REJECTED}
    error = told[0].value[0]
    assert isinstance(error, Described)
    assert error.value[0] == "amqp:resource-limit-exceeded"
    assert "SYSTEM_BUSY" in error.value[1]
    # Each is mentioned once, and nothing else is.
    answered = [
        number
        for came in client.history
        if came.name == "disposition" and came.get("settled")
        for number in range(came["first"], came.get("last", came["first"]) + 1)
    ]
    assert sorted(answered) == sorted([*numbers, *wrong])
    sender.detach()
    refused.detach()
    assert _numbers(broker.take_all(address)) == list(range(400))
    assert broker.take_all(refusing) == []


@pytest.mark.parametrize("name", ["limited-large", "free-large"])
def test_4_mib_in_frames_of_512_bytes_arrive_unchanged(name: str, broker: OneBroker, sluice: Sluice) -> None:
    address = broker.queue(name)
    bodies = [hashlib.shake_256(b"%d" % number).digest(4 << 20) for number in range(2)]
    with AmqpOneClient(sluice.routes[0].listen, frame_bytes=512) as client:
        sender = client.attach_sender(address)
        # Messages of many frames beside small ones.
        for body in bodies:
            assert sender.outcome(sender.send(message(body), frame_bytes=512)).descriptor == ACCEPTED
            assert sender.outcome(sender.send(message(b"0 small"))).descriptor == ACCEPTED
        receiver = client.attach_receiver(address)
        receiver.flow(4)
        received = [body_of(receiver.receive()) for _ in range(4)]
        frames = [len(came.payload) for came in client.history if came.name == "transfer"]
    assert [hashlib.sha256(body).digest() for body in received] == [
        hashlib.sha256(body).digest() for large in bodies for body in (large, b"0 small")
    ]
    assert max(frames) <= 512
    assert len(frames) > 2 * (4 << 20) // 512


@pytest.mark.long
def test_heartbeats_come_while_nothing_else_does(broker: OneBroker, sluice: Sluice) -> None:
    with AmqpOneClient(sluice.routes[0].listen, idle_s=2) as client:
        sender = client.attach_sender(broker.queue("closed-beating"))
        for _ in range(60):
            with contextlib.suppress(AmqpOneError):
                sender.wait_for_credit(timeout_s=1)
            if sum(came.name == "heartbeat" for came in client.history) > 2:
                break
        assert client.end is None
        assert sum(came.name == "heartbeat" for came in client.history) > 2


def test_clients_are_told_when_their_sidecar_ends(broker: OneBroker, start_sluice: StartSluice, listen: str) -> None:
    with (
        start_sluice(routes=(Route(listen, broker.address),), protocol="amqp10", config=_LIMITS) as sluice,
        AmqpOneClient(listen) as client,
    ):
        client.attach_sender(broker.queue("closed-farewell"))
        sluice.process.signal(signal.SIGTERM)
        closed = client.expect("close")
        client.send(say(0, "close"))
        assert sluice.process.wait(timeout_s=60) == 0
    error = closed["error"]
    assert isinstance(error, Described)
    assert error.value[0] == "amqp:connection:forced"


def test_a_header_of_another_version_is_answered_with_the_supported_one(sluice: Sluice) -> None:
    host, _, port = sluice.routes[0].listen.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        told = b""
        while data := connection.recv(100):
            told += data
    assert told == SASL_HEADER


def test_a_client_without_sasl_gets_the_brokers_answer(broker: OneBroker, sluice: Sluice) -> None:
    def answer(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(HEADER)
            return connection.recv(8)

    assert answer(sluice.routes[0].listen) == answer(broker.address)


@pytest.mark.rabbitmq4
def test_an_alarm_of_the_broker_stops_everything_until_its_end(
    rabbitmq4: RabbitMQ, start_sluice: StartSluice, listen: str
) -> None:
    broker = OneBroker(rabbitmq4)
    address = broker.queue("limited-alarm")
    with (
        start_sluice(routes=(Route(listen, broker.address),), protocol="amqp10", config=_LIMITS) as sluice,
        AmqpOneClient(sluice.routes[0].listen) as client,
    ):
        sender = client.attach_sender(address)
        sender.outcome(sender.send(message(b"0 ")))
        rabbitmq4.set_memory_alarm(on=True)
        try:
            client.wait_for(
                lambda came: came.name == "flow" and came.get("incoming_window") == 0, what="a window of nothing"
            )
        finally:
            rabbitmq4.set_memory_alarm(on=False)
        begun = time.monotonic()
        numbers = [sender.send(message(b"%d " % number)) for number in range(1, 301)]
        assert {sender.outcome(number).descriptor for number in numbers} == {ACCEPTED}
        assert time.monotonic() - begun > 0.8 * 300 / 200
    assert _numbers(broker.take_all(address)) == list(range(301))
