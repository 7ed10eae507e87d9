"""Publishes that wait for their consumers: the publisher's confirms, their time, and republished messages."""

from collections.abc import Callable

import pytest
from amqp_playbook import frames
from amqp_playbook.broker import mode_of
from amqp_playbook.driver import BROKER, CLIENT, Driver
from amqp_playbook.world import NACK, PERSIST, QUEUE, World

from limiter.plans.plans import Confirming
from limiter.rules.resource import Resource
from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.after_consume import FIRST_WINDOW, AfterConsume
from proxy.protocols.amqp091.marking import MAX_UNCONFIRMED


def answers(driver: Driver) -> list[tuple[str, int]]:
    told = [
        ({80: "ack", 120: "nack"}[message.method[1]], int.from_bytes(message.arguments[:8], "big"))
        for message in driver.to_client()
        if message.method in {(60, 80), (60, 120)}
    ]
    del driver.written[CLIENT][:]
    return told


def delivered(driver: Driver) -> list[frames.Message]:
    given = [each for each in driver.to_client() if each.method in {(60, 60), (60, 71), (60, 50)}]
    del driver.written[CLIENT][:]
    return given


def waiting(world: World, bodies: int = 1, **more: object) -> tuple[Driver, Driver]:
    """Return a publisher with waiting messages, the broker's acks withheld, and a consumer that has them."""
    publisher, consumer = world.publisher(**more), world.consumer()
    for number in range(bodies):
        publisher.give(CLIENT, frames.durable(1, "orders", b"%d" % number))
    world.broker.confirm(publisher, 1, bodies)
    for _ in range(bodies):
        assert world.broker.deliver(consumer, 1, "c")
    assert answers(publisher) == []
    return publisher, consumer


def test_a_consumers_ack_confirms_a_publish() -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    sent = frames.header(5, headers=frames.short("a") + b"S" + frames.long("b"))
    publisher.give(CLIENT, frames.durable(1, "orders", b"hello", headers=frames.short("a") + b"S" + frames.long("b")))
    world.broker.receive()
    (stored,) = world.broker.queues["orders"]
    assert mode_of(stored.header) == 1
    assert wire.CONFIRM_FIELD in stored.header
    world.broker.confirm(publisher, 1)
    assert publisher.written[CLIENT] == b""
    assert publisher.session.in_flight() == 1
    world.broker.deliver(consumer, 1, "c")
    (message,) = delivered(consumer)
    assert (message.header, message.body) == (sent, b"hello")
    consumer.give(CLIENT, frames.ack(1, 1))
    assert publisher.woken
    world.settle()
    assert answers(publisher) == [("ack", 1)]
    assert publisher.session.in_flight() == 0
    assert world.broker.acked == {b"hello": {"orders"}}
    assert world.state().after_consume_total == 1
    world.close()


@pytest.mark.parametrize("cut", range(0, 200, 3))
def test_a_delivery_is_restored_wherever_it_is_cut(cut: int) -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    publisher.give(CLIENT, frames.durable(1, "orders", b"hello"))
    world.broker.receive()
    (stored,) = world.broker.queues["orders"]
    begin = frames.deliver(1, 1)[0]
    data = frames.with_header(1, begin, stored.header, stored.body)
    consumer.give(BROKER, data[:cut])
    consumer.give(BROKER, data[cut:])
    (message,) = delivered(consumer)
    assert (message.header, message.body) == (frames.header(5), b"hello")
    consumer.give(CLIENT, frames.ack(1, 1))
    world.settle()
    assert answers(publisher) == [("ack", 1)]


@pytest.mark.parametrize(
    "publish",
    [
        frames.durable(1, "orders", b"x" * 4096),
        frames.durable(1, "orders", b"x", mode=1),  # type: ignore[arg-type]  # a mode
        frames.durable(1, "orders", b"x", mode=None),  # type: ignore[arg-type]  # likewise
        frames.durable(1, "orders", b"x", expiration=frames.short("1000")),
        frames.durable(1, "orders", b"x", headers=frames.short("CC") + b"A" + frames.long(b"S" + frames.long("k"))),
        frames.durable(1, "orders", b"x", headers=frames.short("x-sluice-confirm") + b"S" + frames.long("k")),
        frames.durable(1, "orders", b"x", headers=frames.short("x-death") + b"A" + frames.long(b"")),
        frames.durable(1, "other", b"x"),
        frames.durable(1, "", b"x", "events"),
    ],
)
def test_messages_outside_a_rule_pass_unchanged(publish: bytes) -> None:
    world = World({**QUEUE, "exchange:events": PERSIST})
    publisher, _ = world.publisher(), world.consumer()
    publisher.give(CLIENT, publish)
    assert publisher.written[BROKER] == publish
    world.broker.confirm(publisher, 1)
    assert answers(publisher) == [("ack", 1)]
    world.close()


def test_a_publish_without_confirms_or_in_a_transaction_goes_as_it_came() -> None:
    world = World()
    driver, _ = world.connect(1, 2), world.consumer()
    data = frames.durable(1, "orders", b"x") + frames.method(2, 90, 10) + frames.durable(2, "orders", b"y")
    driver.give(CLIENT, data)
    assert driver.written[BROKER] == data


def reject(consumer: Driver, world: World) -> None:
    del world
    consumer.give(CLIENT, frames.reject(1, 1, requeue=False))


def nack(consumer: Driver, world: World) -> None:
    del world
    consumer.give(CLIENT, frames.give_back(1, 0, multiple=True, requeue=False))


def wait(consumer: Driver, world: World) -> None:
    del consumer
    world.pass_time(5)


def leave(consumer: Driver, world: World) -> None:
    world.broker.lose(consumer)
    world.drivers.remove(consumer)


def drain(consumer: Driver, world: World) -> None:
    del consumer
    for driver in world.drivers:
        driver.session.close_client("bye", world.now_ns)


FALLS_BACK = [reject, nack, wait, leave, drain]


@pytest.mark.parametrize("fails", FALLS_BACK)
def test_fallback_republishes_unchanged_and_the_broker_confirms(
    fails: Callable[[Driver, World], None],
) -> None:
    world = World()
    publisher, consumer = waiting(world)
    fails(consumer, world)
    world.settle()
    assert answers(publisher) == []
    assert world.state().persisted_total == 1
    assert world.is_empty()
    (again,) = (each for each in world.broker.queues["orders"] if each.is_durable)
    assert again.header == frames.header(1)
    assert publisher.session.in_flight() == 1
    world.broker.confirm(publisher, 1)
    assert answers(publisher) == [("ack", 1)]
    assert publisher.session.in_flight() == 0
    world.close()


@pytest.mark.parametrize("fails", FALLS_BACK)
def test_fallback_nack_refuses_the_message(fails: Callable[[Driver, World], None]) -> None:
    world = World({"queue:orders": NACK})
    publisher, consumer = waiting(world)
    fails(consumer, world)
    world.settle()
    assert answers(publisher) == [("nack", 1)]
    assert world.state().nacked_total == 1
    assert not any(each.is_durable for each in world.broker.queues["orders"])
    world.close()


def test_a_message_in_a_transaction_of_its_consumer_falls_back() -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    consumer.give(CLIENT, frames.method(1, 90, 10))
    publisher.give(CLIENT, frames.durable(1, "orders", b"x"))
    world.broker.deliver(consumer, 1, "c")
    consumer.give(CLIENT, frames.ack(1, 1))
    world.settle()
    assert answers(publisher) == []
    assert world.state().persisted_total == 1


def test_a_message_that_was_dead_lettered_falls_back() -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    publisher.give(CLIENT, frames.durable(1, "orders", b"x"))
    world.broker.receive()
    (stored,) = world.broker.queues["orders"]
    at = stored.header.index(wire.CONFIRM_FIELD)
    death = frames.short("x-death") + b"A" + frames.long(b"")
    length = int.from_bytes(stored.header[at - 4 : at], "big") + len(death)
    stored.header = stored.header[: at - 4] + length.to_bytes(4, "big") + death + stored.header[at:]
    world.broker.deliver(consumer, 1, "c")
    consumer.give(CLIENT, frames.ack(1, 1))
    world.settle()
    assert world.state().persisted_total == 1
    (message,) = delivered(consumer)
    assert message.header == frames.header(1, headers=death)


def test_a_full_queues_refusals_are_forwarded_unless_consumers_confirmed() -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    publisher.give(CLIENT, frames.durable(1, "orders", b"x") * 3)
    world.broker.deliver(consumer, 1, "c")
    consumer.give(CLIENT, frames.ack(1, 1))
    world.settle()
    assert answers(publisher) == [("ack", 1)]
    world.broker.confirm(publisher, 1, 3, multiple=True, nack=True)
    assert answers(publisher) == [("nack", 2), ("nack", 3)]
    assert world.is_empty()
    world.broker.deliver(consumer, 1, "c")
    consumer.give(CLIENT, frames.ack(1, 2))
    world.settle()
    assert answers(publisher) == []


def test_a_publish_that_comes_back_is_restored_and_confirmed_by_the_broker() -> None:
    world = World()
    publisher, _ = world.publisher(), world.consumer("orders")
    world.broker.queues.clear()
    publisher.give(CLIENT, frames.durable(1, "orders", b"x", mandatory=True))
    world.broker.receive()
    (message,) = delivered(publisher)
    assert (message.method, message.header) == ((60, 50), frames.header(1))
    world.broker.confirm(publisher, 1)
    assert answers(publisher) == [("ack", 1)]
    assert world.is_empty()


def test_a_consumer_that_ends_can_still_acknowledge() -> None:
    world = World()
    publisher, consumer = waiting(world, 2)
    consumer.give(CLIENT, frames.cancel(1, "c"))
    world.broker.receive()
    assert world.state().reason == "no_consumer"
    consumer.give(CLIENT, frames.ack(1, 1) + frames.close(1))
    world.settle()
    assert answers(publisher) == [("ack", 1)]
    assert world.state().persisted_total == 1
    world.close()


def test_a_message_to_several_queues_is_confirmed_after_acks_from_all() -> None:
    rules = {"exchange:events": PERSIST._replace(queues=2)}
    world = World(rules, queues=("a", "b"), bindings={"events": ("a", "b")})
    publisher, first, second = world.publisher(), world.consumer("a"), world.consumer("b")
    publisher.give(CLIENT, frames.durable(1, "", b"x", "events"))
    world.broker.confirm(publisher, 1)
    world.broker.deliver(first, 1, "c")
    first.give(CLIENT, frames.ack(1, 1))
    world.settle()
    assert answers(publisher) == []
    world.broker.deliver(second, 1, "c")
    second.give(CLIENT, frames.ack(1, 1))
    world.settle()
    assert answers(publisher) == [("ack", 1)]
    world.close()


@pytest.mark.parametrize(("rule", "told"), [(NACK, [("nack", 1)]), (PERSIST, [])])
def test_a_message_unconsumed_in_one_of_several_queues_falls_back(
    rule: Confirming, told: list[tuple[str, int]]
) -> None:
    world = World({"exchange:events": rule._replace(queues=2)}, queues=("a", "b"), bindings={"events": ("a", "b")})
    publisher, consumer = world.publisher(), world.consumer("a")
    publisher.give(CLIENT, frames.durable(1, "", b"x", "events"))
    world.broker.confirm(publisher, 1)
    world.broker.deliver(consumer, 1, "c")
    consumer.give(CLIENT, frames.ack(1, 1))
    world.pass_time(4)
    assert answers(publisher) == []
    world.pass_time(1)
    assert answers(publisher) == told
    assert [each.is_durable for each in world.broker.queues["b"]] == [False, True][: 1 + rule.persists]
    world.close()


def test_a_mark_of_another_process_is_removed_without_waiting() -> None:
    world = World()
    consumer = world.consumer()
    header = wire.mark_header(frames.header(1, headers=b""), 1, 1)
    assert header is not None
    consumer.give(BROKER, frames.with_header(1, frames.deliver(1, 1)[0], header, b"x"))
    (message,) = delivered(consumer)
    assert message.header == frames.header(1, headers=b"")
    consumer.give(CLIENT, frames.ack(1, 1))
    world.close()


def test_marks_are_not_guessable() -> None:
    world = World()
    publisher, _ = world.publisher(), world.consumer()
    publisher.give(CLIENT, frames.durable(1, "orders", b"x") * 3)
    world.broker.receive()
    marks = [wire.read_mark(stored.header) for stored in world.broker.queues["orders"]]
    numbers = [mark.number for mark in marks if mark is not None]
    assert len(numbers) == 3
    assert min(abs(one - other) for one in numbers for other in numbers if one is not other) > 1 << 20
    world.close()


MANY = b"\x01aV" * wire.MAX_FIELDS


@pytest.mark.parametrize("last", [wire.CONFIRM_FIELD + b"V", b"\x02CCV"])
def test_a_message_with_more_headers_than_are_read_reaches_its_consumer_as_it_is(last: bytes) -> None:
    consumer = Driver().open(frame_max=wire.DEFAULT_FRAME_MAX)
    data = frames.with_header(1, frames.deliver(1, 1)[0], frames.header(1, headers=MANY + last), b"x")
    consumer.give(BROKER, data)
    assert consumer.written[CLIENT] == data


def test_without_a_consumer_nothing_waits() -> None:
    world = World()
    publisher = world.publisher()
    data = frames.durable(1, "orders", b"x")
    publisher.give(CLIENT, data)
    assert publisher.written[BROKER] == data
    state = world.state()
    assert (state.mode, state.reason, state.broker_total) == ("broker", "no_consumer", 1)
    world.consumer()
    assert world.state().mode == "after_consume"


def test_the_window_bounds_waiting_messages_and_doubles_with_consumption() -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    for _ in range(2 * FIRST_WINDOW):
        publisher.give(CLIENT, frames.durable(1, "orders", b"x"))
    assert (world.state().pending, world.state().broker_total) == (FIRST_WINDOW, FIRST_WINDOW)
    for _ in range(FIRST_WINDOW):
        world.broker.deliver(consumer, 1, "c")
    consumer.give(CLIENT, frames.ack(1, 0, multiple=True))
    world.settle()
    assert (world.state().pending, world.state().window) == (0, 2 * FIRST_WINDOW)
    world.close()


def test_consumers_that_do_not_keep_up_are_not_waited_for() -> None:
    world = World()
    publisher, consumer = waiting(world)
    world.pass_time(1.1)
    state = world.state()
    assert (state.mode, state.reason, state.pending, state.oldest_ms) == ("broker", "behind", 1, 1100)
    publisher.give(CLIENT, frames.durable(1, "orders", b"1"))
    assert world.state().broker_total == 1
    consumer.give(CLIENT, frames.ack(1, 1))
    assert world.state().mode == "after_consume"
    world.close()


@pytest.mark.parametrize(("fails", "reason"), [(reject, "falls_back"), (wait, "behind")])
def test_the_pause_doubles_each_time_that_messages_fall_back(
    fails: Callable[[Driver, World], None], reason: str
) -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    for tag, pause_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):
        publisher.give(CLIENT, frames.durable(1, "orders", b"x"))
        assert world.state().pending == 1
        assert world.broker.deliver(consumer, 1, "c")
        if fails is reject:
            consumer.give(CLIENT, frames.reject(1, tag, requeue=False))
        else:
            wait(consumer, world)
            consumer.give(CLIENT, frames.ack(1, tag))
        world.settle()
        world.broker.queues["orders"].clear()
        assert world.state().reason == reason
        world.pass_time(pause_s - 0.1)
        assert world.state().reason == reason
        world.pass_time(0.2)
        assert world.state().mode == "after_consume"
    world.close()


def publish_and_consume(world: World, publisher: Driver, consumer: Driver, count: int, *, broker_s: float) -> int:
    """Publish one by one, each consumed in 10 ms or confirmed in ``broker_s``. Return the number confirmed by the
    broker.
    """
    by_broker = 0
    for _ in range(count):
        publisher.forget()
        publisher.give(CLIENT, frames.durable(1, "orders", b"x"))
        waits = world.state().pending > 0
        by_broker += not waits
        world.pass_time(0.01 if waits else broker_s)
        if not waits:
            world.broker.confirm(publisher, 1, 1000)
        consumer.forget()
        assert world.broker.deliver(consumer, 1, "c")
        consumer.give(CLIENT, frames.ack(1, 0, multiple=True))
        world.settle()
        world.broker.confirm(publisher, 1, 1000)
        assert len(answers(publisher)) == 1
    return by_broker


def test_consumers_confirm_as_long_as_they_are_sooner_than_the_broker() -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    assert publish_and_consume(world, publisher, consumer, 20, broker_s=0.02) == 4
    assert world.state().mode == "after_consume"
    # One a second measures the broker.
    assert publish_and_consume(world, publisher, consumer, 300, broker_s=0.02) == 3
    assert world.state().window > FIRST_WINDOW
    publish_and_consume(world, publisher, consumer, 600, broker_s=0.008)
    assert (world.state().mode, world.state().reason) == ("broker", "no_gain")
    world.close()


def test_the_broker_confirms_when_it_is_nearly_as_fast() -> None:
    world = World()
    publisher, consumer = world.publisher(), world.consumer()
    for pause_s in (1, 2, 4, 8):
        publish_and_consume(world, publisher, consumer, 20, broker_s=0.011)
        assert (world.state().mode, world.state().reason) == ("broker", "no_gain")
        publish_and_consume(world, publisher, consumer, 2, broker_s=0.011)
        world.pass_time(pause_s - 0.1)
        assert world.state().reason == "no_gain"
        world.pass_time(0.2)
        assert world.state().mode == "after_consume"
    # Once it pays again, it starts again after a short pause.
    assert publish_and_consume(world, publisher, consumer, 40, broker_s=0.1) == 4
    publish_and_consume(world, publisher, consumer, 1000, broker_s=0.001)
    world.pass_time(1.1)
    assert world.state().mode == "after_consume"
    world.close()


def test_names_of_clients_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.protocols.amqp091.after_consume.MAX_DESTINATIONS", 10)
    hub = AfterConsume()
    for number in range(100):
        hub.destination(Resource("queue", str(number)), is_queue=True)
    assert len(hub.states(0)) <= 10
    assert len(hub._consumers) <= 10


def test_destinations_without_a_rule_are_still_scanned() -> None:
    world = World(queues=("orders", "other"))
    publisher, _ = world.publisher(), world.consumer()
    data = frames.durable(1, "other", b"x") * 3
    publisher.give(CLIENT, data + frames.durable(1, "orders", b"y") + data)
    publisher.forget()
    publisher.give(CLIENT, data)
    assert publisher.written[BROKER] == data
    assert type(publisher.batches[-1].requests[0].handle).__name__ == "Content"
    assert world.state().pending == 1
    # A new rule applies to new messages.
    world.rules["queue:other"] = PERSIST
    publisher.rules_version += 1
    world.consumer("other")
    publisher.forget()
    publisher.give(CLIENT, frames.durable(1, "other", b"x"))
    assert wire.CONFIRM_FIELD in publisher.written[BROKER]
    publisher.rules_version += 1
    world.rules.clear()
    publisher.forget()
    publisher.give(CLIENT, data)
    assert publisher.written[BROKER] == data


def test_pipelined_publishes_pass_unmarked() -> None:
    world = World()
    publisher, consumer = world.publisher(1, 2), world.consumer()
    data = frames.durable(1, "orders", b"x")
    for _ in range(MAX_UNCONFIRMED):
        publisher.give(CLIENT, data)
    assert world.state().pending == MAX_UNCONFIRMED
    world.broker.receive()
    publisher.give(CLIENT, data)
    publisher.give(CLIENT, data * 20)
    assert publisher.written[BROKER] == data * 21
    assert (world.state().pending, world.state().broker_total) == (MAX_UNCONFIRMED, 21)
    # This is so for each channel.
    for _ in range(MAX_UNCONFIRMED):
        assert world.broker.deliver(consumer, 1, "c")
    consumer.give(CLIENT, frames.ack(1, 0, multiple=True))
    world.settle()
    # One of them measures the broker.
    publisher.give(CLIENT, frames.durable(2, "orders", b"y") * 2)
    assert wire.CONFIRM_FIELD in publisher.written[BROKER]
    while world.broker.deliver(consumer, 1, "c"):
        pass
    consumer.give(CLIENT, frames.ack(1, 0, multiple=True))
    world.settle()
    # And for a moment, even if all were confirmed meanwhile.
    world.broker.confirm(publisher, 1, MAX_UNCONFIRMED + 21, multiple=True)
    publisher.forget()
    publisher.give(CLIENT, data)
    assert publisher.written[BROKER] == data
    world.broker.confirm(publisher, 1, MAX_UNCONFIRMED + 22)
    world.pass_time(1.1)
    publisher.forget()
    publisher.give(CLIENT, data * 2)
    assert wire.CONFIRM_FIELD in publisher.written[BROKER]
    world.close()
