"""A session's figures of the broker's load."""

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver

PUBLISH = b"".join(frames.publish(1, "", "q", b"body"))


def signals(driver: Driver) -> tuple[int, int, int]:
    of = driver.session._context.signals
    return of.answers, of.busy, driver.session.unanswered()


def test_confirms_are_answers_and_nacks_do_not_say_that_the_broker_is_busy() -> None:
    driver = Driver().open([1], confirms=[1])
    driver.give(CLIENT, PUBLISH * 5)
    assert signals(driver) == (0, 0, 5)
    driver.give(BROKER, frames.ack(1, 2))
    assert signals(driver) == (1, 0, 4)
    driver.give(BROKER, frames.ack(1, 2) + frames.nack(1, 4, multiple=True))
    assert signals(driver) == (4, 0, 1)


def test_publishes_without_confirms_have_no_answers() -> None:
    driver = Driver().open([1])
    driver.give(CLIENT, PUBLISH)
    assert signals(driver) == (0, 0, 0)


@pytest.mark.parametrize(
    "ends", [lambda driver: driver.give(BROKER, frames.unblocked()), lambda driver: driver.session.close()]
)
def test_a_broker_that_blocks_its_client_takes_nothing(ends: object) -> None:
    driver = Driver().open([1])
    of = driver.session._context.signals
    assert not of.take(0).blocked
    driver.give(BROKER, frames.blocked("memory") * 2)
    assert of.take(0).blocked
    assert callable(ends)
    ends(driver)
    assert not of.take(0).blocked
