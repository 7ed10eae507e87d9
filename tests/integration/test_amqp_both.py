"""Clients of AMQP 0.9.1 and AMQP 1.0 on one port, in front of a RabbitMQ that speaks both."""

import signal

import pytest
from harness.amqp import AmqpClient
from harness.amqp_one import ACCEPTED, REJECTED, AmqpOneClient, AmqpOneError, Described, Sender, body_of, message
from harness.one_broker import OneBroker
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.rabbitmq4]

# Ten at once, and hardly another one while a test runs.
_LIMITS = """
[[limits]]
kind = "queue"
name = "shared"
rate = 0.01
burst_s = 1000
action = "reject"
break_s = 0

[[limits]]
kind = "queue"
name = "by-default"
rate = 0.01
burst_s = 1000
"""


@pytest.fixture
def sluice(start_sluice: StartSluice, rabbitmq4: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq4.address)
    return start_sluice(routes=(route,), protocol="amqp", config=_LIMITS)


def test_one_versions_publishes_are_consumed_by_the_other(sluice: Sluice, rabbitmq4: RabbitMQ) -> None:
    listen = sluice.routes[0].listen
    address = OneBroker(rabbitmq4).queue("both")
    with AmqpClient(listen) as old, AmqpOneClient(listen) as new:
        channel = old.open_channel(confirms=True)
        old.publish(channel, "both", b"from 0.9.1")
        assert not old.wait_for_confirms(channel).nacked
        receiver = new.attach_receiver(address)
        receiver.flow(1)
        assert body_of(receiver.receive()) == b"from 0.9.1"
        sender = new.attach_sender(address)
        assert sender.outcome(sender.send(message(b"from 1.0"))).descriptor == ACCEPTED
        assert b"from 1.0" in old.call(channel, "basic.get", queue="both", no_ack=True).body


def test_both_versions_share_a_limit(sluice: Sluice, rabbitmq4: RabbitMQ) -> None:
    listen = sluice.routes[0].listen
    address = OneBroker(rabbitmq4).queue("shared")
    with AmqpClient(listen) as old, AmqpOneClient(listen) as new:
        sender = new.attach_sender(address)
        channel = old.open_channel(confirms=True)
        accepted = 0
        for _ in range(10):
            outcome = sender.outcome(sender.send(message(b"x")))
            old.publish(channel, "shared", b"x")
            confirmed = old.wait_for_confirms(channel)
            accepted += outcome.descriptor == ACCEPTED
        accepted += len(confirmed.acked)
        # The burst, and one on credit.
        assert accepted in {10, 11}
        assert confirmed.nacked
        assert outcome.descriptor == REJECTED
        (error, *_) = outcome.value
        assert isinstance(error, Described)
        assert error.value[0] == "amqp:resource-limit-exceeded"
        assert "SYSTEM_BUSY" in error.value[1]
        assert "queue:shared" in error.value[1]


def test_without_an_action_each_version_has_its_own_default(sluice: Sluice, rabbitmq4: RabbitMQ) -> None:
    listen = sluice.routes[0].listen
    address = OneBroker(rabbitmq4).queue("by-default")
    with AmqpClient(listen) as old, AmqpOneClient(listen) as new:
        channel = old.open_channel(confirms=True)
        for _ in range(15):
            old.publish(channel, "by-default", b"x")
        confirmed = old.wait_for_confirms(channel)
        # On a busy machine one more passes per tenth of a second. The others are refused at once.
        assert len(confirmed.acked) + len(confirmed.nacked) == 15
        assert 10 <= len(confirmed.acked) < 15
        sender = new.attach_sender(address)
        # At most one more passes on credit. None is rejected.
        with pytest.raises(AmqpOneError, match="flow"):
            _send_all(sender, 2)


def _send_all(sender: Sender, count: int) -> None:
    for _ in range(count):
        sender.wait_for_credit(timeout_s=2)
        assert sender.outcome(sender.send(message(b"x"))).descriptor == ACCEPTED


def test_both_peers_get_a_close(sluice: Sluice) -> None:
    listen = sluice.routes[0].listen
    with AmqpClient(listen) as old, AmqpOneClient(listen) as new:
        sluice.process.signal(signal.SIGTERM)
        assert old.expect("connection.close")["reply_code"] == 320
        assert new.expect("close")["error"].value[0] == "amqp:connection:forced"
