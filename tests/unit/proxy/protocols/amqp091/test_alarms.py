"""Alarms of Sluice and of the broker: blocked clients, unread clients, and other traffic."""

from random import Random

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver, hold
from hypothesis import example, given
from hypothesis import strategies as st

LOW = "Sluice is low on memory"
PUBLISH = b"".join(frames.publish(1, "", "orders", b"some text"))
DELIVERY = b"".join(frames.deliver(1, 1, b"x" * 100))


def publisher(**greeting: object) -> Driver:
    driver = Driver().open([1, 2], **greeting)
    driver.give(CLIENT, PUBLISH)
    return driver.forget()


def told(driver: Driver) -> list[str | None]:
    said = [message for message in driver.to_client() if message.method in {(10, 60), (10, 61)}]
    return [each.arguments[1:].decode() if each.method == (10, 60) else None for each in said]


def test_a_publishing_client_is_notified_and_not_read_until_the_alarm_ends() -> None:
    driver = publisher()
    driver.alarm(LOW)
    assert driver.written[CLIENT] == frames.blocked(LOW)
    assert driver.session.paused(CLIENT)
    assert not driver.session.paused(BROKER)
    assert driver.stage.state(0) == "blocked"
    driver.forget().give(CLIENT, PUBLISH)
    assert not driver.written[BROKER]
    driver.alarm("")
    assert driver.written[CLIENT] == frames.unblocked()
    assert driver.written[BROKER] == PUBLISH
    assert driver.stage.state(0) != "blocked"


def test_a_client_that_only_consumes_continues() -> None:
    driver = Driver().open([1])
    driver.alarm(LOW)
    driver.give(CLIENT, frames.consume(1, "orders", "c"))
    driver.give(BROKER, frames.consume_ok(1, "c") + DELIVERY)
    driver.give(CLIENT, frames.ack(1, 1))
    assert driver.written[CLIENT] == frames.consume_ok(1, "c") + DELIVERY
    assert bytes(driver.written[BROKER]).endswith(frames.ack(1, 1))
    assert driver.stage.state(0) == "running"


def test_waiting_publishes_of_a_blocked_client_continue() -> None:
    driver = Driver(hold).open([1])
    driver.give(CLIENT, PUBLISH + PUBLISH)
    driver.alarm(LOW)
    driver.forget().settle()
    assert driver.written[BROKER] == PUBLISH + PUBLISH
    driver.give(BROKER, DELIVERY)
    assert driver.written[CLIENT] == DELIVERY


@pytest.mark.parametrize("value", [b"t\0", b"S" + frames.long("yes"), b"V"])
def test_a_client_without_notifications_is_also_not_read(value: bytes) -> None:
    driver = publisher(hears_blocked=value)
    driver.alarm(LOW)
    driver.give(CLIENT, PUBLISH)
    driver.alarm("")
    assert not driver.written[CLIENT]
    assert driver.written[BROKER] == PUBLISH


def test_an_exempt_client_continues() -> None:
    driver = Driver(exempt=True).open([1])
    driver.give(CLIENT, PUBLISH)
    driver.alarm(LOW)
    driver.give(CLIENT, PUBLISH)
    assert driver.written[BROKER] == PUBLISH + PUBLISH
    assert not driver.written[CLIENT]


def test_a_broker_gets_heartbeats_while_its_client_is_not_read() -> None:
    driver = publisher(heartbeat_s=10)
    driver.alarm(LOW)
    for step in range(4):
        driver.forget()
        driver.now_ns += 5_000_000_000
        driver.tick()
        # At first it has just received a publish.
        assert driver.written[BROKER] == (frames.frame(8, 0, b"") if step else b"")


def test_a_publish_that_has_begun_is_read_to_its_end() -> None:
    for cut in range(1, len(PUBLISH)):
        driver = publisher()
        driver.give(CLIENT, PUBLISH[:cut])
        driver.alarm(LOW)
        assert not driver.session.paused(CLIENT)
        driver.give(CLIENT, PUBLISH[cut:] + frames.declare(2) + PUBLISH)
        assert driver.written[BROKER] == PUBLISH
        assert driver.unread[CLIENT] == frames.declare(2) + PUBLISH
        assert driver.session.between_frames(CLIENT)
        driver.alarm("")
        assert driver.written[BROKER] == PUBLISH + frames.declare(2) + PUBLISH


@given(st.integers(0, 2**32), st.integers(1, 40))
@example(0, 1)
def test_last_blocked_notification_is_current(seed: int, longest: int) -> None:
    random = Random(seed)
    driver = publisher()
    ours, theirs = "", ""
    for _ in range(20):
        dice = random.random()
        if dice < 0.3:
            ours = random.choice(("", LOW, f"{LOW} & disk"))
            driver.alarm(ours)
        elif dice < 0.6:
            theirs = random.choice(("", "low on disk"))
            driver.give(BROKER, frames.blocked(theirs) if theirs else frames.unblocked(), random, longest)
        else:
            driver.give(BROKER, DELIVERY, random, longest)
        heard = told(driver)
        if ours or theirs:
            assert heard[-1] in {ours, theirs} - {""}
        else:
            # RabbitMQ itself may send it twice.
            assert not heard or heard[-1] is None
        assert driver.session.paused(CLIENT) is bool(ours)
        assert (driver.writer.state(0) == "blocked") is bool(theirs)


def test_nothing_is_sent_after_a_close() -> None:
    for last in ("client", "broker", "farewell", "drain"):
        driver = publisher()
        driver.alarm(LOW)
        if last == "client":
            driver = publisher()
            driver.give(CLIENT, frames.close(0))
            driver.alarm(LOW)
            assert not driver.session.paused(CLIENT)
            assert not driver.written[CLIENT]
        elif last == "broker":
            driver.give(BROKER, frames.close(0, 320))
        elif last == "farewell":
            driver.session.start_close("bye", 0)
        else:
            assert driver.session.close_client("bye", 0)
        driver.take()
        driver.forget().alarm("")
        assert not driver.written[CLIENT], last


def test_drain_closes_a_blocked_client_at_once() -> None:
    driver = Driver(hold).open([1])
    driver.give(CLIENT, PUBLISH)
    driver.alarm(LOW)
    assert driver.session.close_client("Sluice is shutting down", 0)
    driver.take()
    assert [message.method for message in driver.to_client()] == [(10, 60), (10, 50)]
    driver.settle()
    assert driver.session.in_flight() == 0
    assert driver.session.between_frames(CLIENT)
    driver.session.start_close("Sluice is shutting down", 0)
    driver.take()
    assert [message.method for message in driver.to_broker()][-1] == (10, 50)
