"""Requeued messages when a client leaves, or closes, while its publishes are held."""

import pytest
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver, hold

from proxy.deciding.batch import Hold, Request, Ticket, Verdict


def publish(number: int, channel: int = 1, key: str = "orders", **more: object) -> bytes:
    return b"".join(frames.publish(channel, "", key, b"%d" % number, **more))


def delivery(number: int, channel: int = 1, consumer: str = "c") -> bytes:
    return b"".join(frames.deliver(channel, number, b"%d" % number, consumer))


def quiet_cancel(channel: int, consumer: str) -> bytes:
    return frames.cancel(channel, consumer, no_wait=True)


def tx(channel: int, method: int) -> bytes:
    return frames.method(channel, 90, method)


def declare(channel: int, queue: str, bits: int) -> bytes:
    return frames.declare(channel, queue, bits)


def delete(channel: int, queue: str) -> bytes:
    return frames.method(channel, 50, 40, b"\0\0" + frames.short(queue) + b"\4")


def holds(*queues: str) -> object:
    def decide(request: Request) -> Verdict | None:
        name = request.resources[0].name
        return Hold(request.resources[0], "rule", Ticket(lambda: None)) if name in queues else None

    return decide


def consuming(*channels: int, decide: object = hold, limits: tuple[str, ...] = ()) -> Driver:
    """Return a driver with a consumer "c" of "work" in some of its channels."""
    driver = Driver(decide, limits=limits).open([1, 2, 3])  # type: ignore[arg-type]  # as the driver's
    for channel in channels:
        driver.give(CLIENT, frames.subscribe(channel, "work", "c"))
        driver.give(BROKER, frames.consume_ok(channel, "c"))
    return driver.forget()


def leave(driver: Driver) -> bytes:
    """End the client's stream. Return the frames to the broker."""
    driver.forget()
    assert driver.session.has_undelivered(CLIENT)
    driver.tick()
    return bytes(driver.written[BROKER])


def resume(driver: Driver, *channels: int) -> bytes:
    """Let the broker agree to closed channels, and resolve everything held. Return the frames to the broker."""
    driver.forget()
    for channel in channels or (1,):
        driver.give(BROKER, frames.close_ok(channel))
    driver.settle()
    return bytes(driver.written[BROKER])


def test_consumers_end_at_once_and_their_deliveries_are_requeued() -> None:
    driver = consuming(1, 2)
    driver.give(CLIENT, publish(1))
    driver.give(BROKER, delivery(1) + delivery(1, 2))
    assert leave(driver) == frames.close(1) + frames.close(2) + frames.close(3)
    # Held publishes get a separate channel, open at the broker only then.
    assert resume(driver, 2, 3, 1) == frames.channel_open(1) + publish(1) + frames.close(1)
    assert not driver.session.has_undelivered(CLIENT)
    driver.forget().give(BROKER, frames.method(1, 20, 11, bytes(4)) + frames.close_ok(1))
    assert not driver.written[BROKER]


def test_released_publishes_wait_until_their_channel_is_open() -> None:
    driver = consuming(1)
    driver.give(CLIENT, publish(1) + publish(2))
    leave(driver)
    driver.forget().settle()
    assert not driver.written[BROKER]
    assert driver.session.has_undelivered(CLIENT)
    assert resume(driver) == frames.channel_open(1) + publish(1) + publish(2) + frames.close(1)


def test_deliveries_of_a_departed_client_are_requeued() -> None:
    driver = consuming(1, decide=holds("orders", "work"), limits=("delivery",))
    driver.give(BROKER, delivery(1))
    driver.give(CLIENT, publish(1))
    leave(driver)
    assert [str(each.resources[0]) for each in driver.given_up] == ["delivery:work"]
    asked = len(driver.requests)
    driver.forget().give(BROKER, delivery(2))
    assert not driver.written[CLIENT]
    assert len(driver.requests) == asked


@pytest.mark.parametrize("commits", [False, True])
def test_uncommitted_publishes_are_not_sent(commits: bool) -> None:  # noqa: FBT001 - a parameter of the test
    driver = consuming(1)
    commit = tx(1, 20) if commits else b""
    driver.give(CLIENT, tx(1, 10) + publish(1) + commit + publish(2) + frames.ack(1, 1) + publish(3, 2))
    # Earlier publishes are in the broker's transaction. If that will be committed, the channel stays open.
    assert leave(driver) == (quiet_cancel(1, "c") if commits else frames.close(1)) + frames.close(2) + frames.close(3)
    sent = list(frames.read(resume(driver, 2, 3)))
    assert [each.channel for each in sent if each.channel == 2] == [2] * 5
    first = list(frames.read(publish(1) + commit)) if commits else []
    assert [each for each in sent if each.channel == 1] == first
    if commits:
        # While the broker commits, any other method is an error.
        driver.forget().give(BROKER, tx(1, 21))
        assert driver.written[BROKER] == frames.close(1)


def test_nothing_comes_before_the_broker_has_committed() -> None:
    driver = consuming(1)
    driver.give(CLIENT, tx(1, 10) + tx(1, 20) + publish(1, 2))
    assert frames.close(1) not in leave(driver)
    driver.forget().give(BROKER, tx(1, 21))
    assert driver.written[BROKER] == frames.close(1)


def test_exclusive_queues_end_with_requests_held_for_them() -> None:
    driver = Driver(hold).open([1])
    driver.give(CLIENT, declare(1, "mine", 4) + declare(1, "", 4) + declare(1, "ours", 0) + declare(1, "mine too", 20))
    for queue in ("mine", "amq.gen-1", "ours"):
        driver.give(BROKER, frames.declare_ok(1, queue))
    driver.give(CLIENT, publish(1, key="mine") + publish(2, key="amq.gen-1") + publish(3, key="ours"))
    gone = leave(driver)
    assert gone.startswith(frames.close(1))
    # Only by owner: declared again they may be another's, or created and deleted.
    deletes = declare(2, "mine too", 20) + delete(2, "mine too") + declare(2, "mine", 20) + delete(2, "mine")
    assert gone.endswith(frames.channel_open(2) + deletes + delete(2, "amq.gen-1") + frames.close(2))
    assert resume(driver) == frames.channel_open(1) + publish(3, key="ours") + frames.close(1)


def test_an_exclusive_queue_that_is_anothers_by_now_keeps_no_other_from_its_end() -> None:
    driver = Driver(hold).open([1])
    driver.give(CLIENT, declare(1, "anothers", 20) + declare(1, "mine", 20) + publish(1))
    leave(driver)
    driver.forget().give(BROKER, frames.close(2, 405))
    apart = (
        frames.channel_open(number) + declare(number, queue, 20) + delete(number, queue) + frames.close(number)
        for number, queue in ((3, "anothers"), (4, "mine"))
    )
    assert driver.written[BROKER] == frames.close_ok(2) + b"".join(apart)
    driver.forget().give(BROKER, frames.close_ok(2) + frames.close(3, 405))
    assert driver.written[BROKER] == frames.close_ok(3)


def test_requests_have_a_consumer_of_direct_replies_or_they_would_be_a_fault() -> None:
    driver = Driver(hold).open()
    driver.give(CLIENT, frames.consume(1, "amq.rabbitmq.reply-to", "r") + publish(1))
    driver.give(BROKER, frames.consume_ok(1, "r"))
    assert leave(driver) == frames.close(1)
    resume(driver)
    assert [each.method for each in driver.to_broker()] == [(20, 10), (60, 20), (60, 40), (20, 40)]


def test_nothing_is_kept_where_only_the_end_of_the_connection_ends_a_consumer() -> None:
    driver = consuming(1, decide=holds("orders"))
    driver.give(CLIENT, publish(1, 2) + b"".join(frames.publish(1, "", "other", b"text")[:2]))
    assert not driver.session.has_undelivered(CLIENT)
    assert len(driver.given_up) == 1


def test_a_close_of_the_connection_is_agreed_to_at_once() -> None:
    driver = consuming(1)
    driver.give(CLIENT, publish(1) + frames.close(0))
    assert driver.written[CLIENT] == frames.close_ok(0)
    assert driver.client_ended
    assert driver.written[BROKER] == frames.close(1) + frames.close(2) + frames.close(3)
    # The end of its stream then changes nothing.
    driver.forget()
    assert driver.session.has_undelivered(CLIENT)
    assert not driver.given_up
    assert resume(driver) == frames.channel_open(1) + publish(1) + frames.close(1) + frames.close(0)


def test_a_close_of_the_connection_is_agreed_to_once_its_exclusive_queues_are_deleted() -> None:
    driver = Driver(hold).open([1])
    driver.give(CLIENT, declare(1, "mine", 20) + publish(1) + frames.close(0))
    assert not driver.written[CLIENT]
    driver.give(BROKER, frames.close_ok(2))
    assert driver.written[CLIENT] == frames.close_ok(0)


def closed() -> Driver:
    """Return a driver whose client has closed a channel with a consumer, and a publish that is held."""
    driver = consuming(1)
    driver.give(CLIENT, publish(1) + frames.close(1))
    return driver


def test_a_close_of_a_channel_waits_for_nothing() -> None:
    driver = closed()
    assert driver.written[CLIENT] == frames.close_ok(1)
    assert driver.written[BROKER] == frames.close(1)
    # The client sees nothing more of it.
    returned = b"".join(frames.returned(1, b"1"))
    driver.forget().give(BROKER, delivery(1) + returned + delivery(1, 2))
    assert driver.written[CLIENT] == delivery(1, 2)
    resume(driver)
    driver.forget().give(BROKER, frames.method(1, 20, 11, bytes(4)) + returned + frames.close_ok(1))
    assert not driver.written[CLIENT]
    driver.give(CLIENT, frames.channel_open(1))
    assert driver.written[BROKER] == frames.channel_open(1)


def test_a_number_is_used_again_once_it_is_free() -> None:
    driver = closed()
    driver.forget().give(CLIENT, frames.channel_open(1) + publish(2) + frames.declare(1))
    assert not driver.written[BROKER]
    assert resume(driver) == frames.channel_open(1) + publish(1) + frames.close(1)
    driver.forget().give(BROKER, frames.close_ok(1) + frames.method(1, 20, 11, bytes(4)))
    driver.settle()
    assert driver.written[BROKER] == frames.channel_open(1) + publish(2) + frames.declare(1)
    assert driver.written[CLIENT] == frames.method(1, 20, 11, bytes(4))
    driver.forget().give(BROKER, delivery(1))
    assert driver.written[CLIENT] == delivery(1)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_fault_of_a_closed_channel_is_not_the_clients(reopened: bool) -> None:  # noqa: FBT001 - as above
    driver = closed()
    if reopened:
        driver.give(BROKER, frames.close_ok(1))
    driver.forget().give(BROKER, frames.close(1, 404))
    assert not driver.written[CLIENT]
    # It is closed once.
    assert driver.written[BROKER] == frames.close(1) * reopened + frames.close_ok(1)
    assert driver.given_up
    driver.give(BROKER, frames.close_ok(1))
    assert driver.session.in_flight() == 0
    driver.forget().give(CLIENT, frames.channel_open(1))
    assert driver.written[BROKER] == frames.channel_open(1)


def test_the_end_of_a_consumer_waits_for_none_of_its_deliveries() -> None:
    driver = consuming(1, decide=holds("work"), limits=("delivery",))
    driver.give(CLIENT, frames.subscribe(1, "other", "d"))
    driver.give(BROKER, frames.consume_ok(1, "d") + delivery(1) + delivery(2, consumer="d") + delivery(3))
    driver.give(CLIENT, frames.cancel(1, "c"))
    driver.forget().give(BROKER, frames.cancel_ok(1, "c"))
    driver.tick()
    assert driver.written[CLIENT] == frames.cancel_ok(1, "c") + delivery(2, consumer="d")
    assert driver.written[BROKER] == frames.give_back(1, 1) + frames.give_back(1, 3)
    assert driver.session.in_flight() == 0


def test_deliveries_without_acks_come_before_the_end_of_their_consumer() -> None:
    driver = Driver(hold, limits=("delivery",)).open([1])
    driver.give(CLIENT, frames.consume(1, "work", "c"))
    driver.give(BROKER, frames.consume_ok(1, "c") + delivery(1) + delivery(2))
    driver.give(CLIENT, frames.cancel(1, "c"))
    driver.forget().give(BROKER, frames.cancel_ok(1, "c"))
    assert driver.written[CLIENT] == delivery(1) + delivery(2) + frames.cancel_ok(1, "c")
    # It is charged, above the limit.
    batch = driver.tick()
    assert batch is not None
    assert [str(charge.resources[0]) for charge in batch.charges] == ["delivery:work"] * 2


def test_in_a_transaction_the_end_of_a_consumer_waits() -> None:
    driver = consuming(1, limits=("delivery",))
    driver.give(CLIENT, tx(1, 10) + frames.cancel(1, "c"))
    driver.forget().give(BROKER, delivery(1) + frames.cancel_ok(1, "c"))
    assert not driver.written[CLIENT]
    driver.settle()
    assert driver.written[CLIENT] == delivery(1) + frames.cancel_ok(1, "c")


def test_a_delivery_of_a_stream_does_not_go_back() -> None:
    driver = consuming(1, limits=("delivery",))
    begin, _, body = frames.deliver(1, 1, b"text", "c")
    header = frames.frame(2, 1, frames.header(4, headers=frames.table({"x-stream-offset": "7"})[4:]))
    driver.give(CLIENT, frames.cancel(1, "c"))
    driver.forget().give(BROKER, begin + header + body + frames.cancel_ok(1, "c"))
    assert driver.written[CLIENT] == frames.cancel_ok(1, "c")
    assert not driver.written[BROKER]
