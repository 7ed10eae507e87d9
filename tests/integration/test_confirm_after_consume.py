"""Confirms after the consumers' ack, and the fallbacks without one: what pika is told, and why."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import pytest
from harness.amqp import AmqpClient, method, publish
from harness.clients import amqp_go, amqp_java, amqp_node, amqp_python, run_client, start_client
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

# By the beginning of a rule's names, the wait for consumers: practically for ever, or a second.
_WITHIN_S: Final = {"": 3600, "soon-": 1}


def _rule(kind: str, name: str, within_s: int, *more: str) -> str:
    lines = ("[[limits]]", f'kind = "{kind}"', f'name = "{name}*"', 'rate = "unlimited"', 'confirm = "after_consume"')
    return "\n".join((*lines, f"confirm_within_s = {within_s}", *more, "", ""))


_CONFIG: Final = _rule("exchange", "unknown", 3600) + "".join(
    _rule(kind, f"{start}{fallback}", within_s, f'fallback = "{fallback}"', *more)
    for start, within_s in _WITHIN_S.items()
    for fallback in ("persist", "nack")
    for kind, more in {"queue": (), "exchange": ("confirm_queues = 2",)}.items()
)
_TIMEOUT_S: Final = 60.0
_BLOCKER: Final = "blocker"
_WAYS: Final = ("after_consume", "broker", "persisted", "nacked")


class Scene:
    """One queue with its publishers and consumers: real clients, through Sluice unless noted."""

    def __init__(self, rabbitmq: RabbitMQ, sluice: Sluice, queue: str, home: Path) -> None:
        self.rabbitmq, self.sluice, self.queue, self._home = rabbitmq, sluice, queue, home
        self._clients, self._made = ExitStack(), ExitStack()

    def declare(self, queue: str = "", *, exchange: str = "", **arguments: object) -> str:
        """Make a durable queue, directly at the broker, bound to a fanout exchange if one is named."""
        name = queue or self.queue
        if exchange:
            self.declare_exchange(exchange)
        self._made.callback(self._call, "queue.delete", queue=name)
        names = {key.replace("_", "-"): value for key, value in arguments.items()}
        self._call("queue.declare", queue=name, durable=True, arguments=names)
        if exchange:
            self._call("queue.bind", queue=name, exchange=exchange)
        return name

    def declare_exchange(self, exchange: str) -> None:
        self._made.callback(self._call, "exchange.delete", exchange=exchange)
        self._call("exchange.declare", exchange=exchange, type="fanout", durable=True)

    def _call(self, name: str, **arguments: object) -> None:
        with self.rabbitmq.connect() as client:
            client.call(client.open_channel(), name, **arguments)

    def take(self, what: str, *, queue: str = "", prefetch: int = 10, direct: bool = False) -> ManagedProcess:
        """Start a consumer that handles its messages as named. See clients/amqp/pika_takes.py."""
        address = self.rabbitmq.address if direct else self.sluice.routes[0].listen
        host, _, port = address.rpartition(":")
        command = amqp_python("pika_takes.py", host, port, queue or self.queue, str(prefetch), what)
        process = start_client(command, home=self._home)
        self._clients.callback(process.kill)
        return process

    def block(self) -> ManagedProcess:
        """Start a consumer that never finishes a message, so that the others stay in the queue."""
        consumer = self.take("keep", prefetch=1)
        self.push(_BLOCKER)
        consumer.wait_for_line(_BLOCKER, timeout_s=_TIMEOUT_S)
        return consumer

    def publish(self, *bodies: str, exchange: str = "") -> list[str]:
        """Publish with pika, one message after the other. Return each outcome."""
        told: list[str] = run_client(self._publisher(*bodies, exchange=exchange), home=self._home, seconds=_TIMEOUT_S)
        print(told)
        return told

    def publish_while(self, action: Callable[[], object], body: str = "a") -> str:
        """Publish a message, and run ``meanwhile``. Return the message's outcome."""
        with ThreadPoolExecutor(1) as other:
            telling = other.submit(self.publish, body)
            action()
            (told,) = telling.result()
        return told

    def start_publisher(self, body: str) -> ManagedProcess:
        """Publish a message in a separate process that can be killed."""
        process = start_client(self._publisher(body), home=self._home)
        self._clients.callback(process.kill)
        return process

    def _publisher(self, *bodies: str, exchange: str = "") -> list[str]:
        host, _, port = self.sluice.routes[0].listen.rpartition(":")
        return amqp_python("pika_told.py", host, port, exchange, "" if exchange else self.queue, *bodies)

    def push(self, body: str) -> None:
        """Publish a message, directly at the broker."""
        with self.rabbitmq.connect() as client:
            channel = client.open_channel(confirms=True)
            client.publish(channel, self.queue, body.encode(), delivery_mode=2)
            client.wait_for_confirms(channel)

    def wait_for_ready(self) -> None:
        """Wait until a message is ready in the queue."""
        _wait_until(lambda: self.rabbitmq.messages(self.queue) > 0, "a message in the queue")

    def pending(self) -> int:
        """Return the number of messages that wait for their consumers."""
        return int(self.sluice.metrics().total("sluice_confirms_pending", resource=self.queue))

    def ways(self) -> dict[str, int]:
        """Return the number of confirms of the queue, or the exchange of its name, by kind."""
        metrics = self.sluice.metrics()
        counts = {way: metrics.total("sluice_confirms_total", resource=self.queue, way=way) for way in _WAYS}
        return {way: int(count) for way, count in counts.items() if count}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the clients and delete the queues."""
        self._clients.close()
        self._made.close()


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not {what}"
        time.sleep(0.02)


def taken(consumer: ManagedProcess, count: int) -> list[dict[str, Any]]:
    """Wait for this many deliveries of a consumer, and return all."""

    def said() -> list[dict[str, Any]]:
        return [json.loads(line) for line in consumer.lines if line.startswith("{")]

    _wait_until(lambda: len(said()) >= count, f"{count} deliveries")
    return said()


def seen(consumer: ManagedProcess, count: int) -> list[dict[str, Any]]:
    """Check that they arrived as they were sent, however often."""
    found = taken(consumer, count)
    for each in found:
        if each["body"] != _BLOCKER:
            assert each["mode"] == 2, each
            assert {key: value for key, value in each["headers"].items() if "death" not in key} == {"sent": "so"}, each
    return found


def _copies(fallback: str) -> int:
    """Return the number of copies that consumers get of a message that falls back after a delivery."""
    return 2 if fallback == "persist" else 1


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", config=_CONFIG)


MakeScene = Callable[[str], Scene]


@pytest.fixture
def scene(rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path) -> Iterator[MakeScene]:
    with ExitStack() as made:

        def make(queue: str) -> Scene:
            each = Scene(rabbitmq, sluice, queue, client_home)
            made.callback(each.close)
            return each

        yield make


@pytest.fixture
def scene_alone(
    start_sluice: StartSluice, rabbitmq: RabbitMQ, client_home: Path, listen: str
) -> Iterator[Callable[..., Scene]]:
    """A scene with its own Sluice. ``queue``, ``broker``, and Sluice's arguments by name."""
    with ExitStack() as made:

        def make(queue: str, broker: RabbitMQ = rabbitmq, **how: object) -> Scene:
            route = Route(listen, broker.address)
            sluice = made.enter_context(start_sluice(routes=(route,), protocol="amqp091", config=_CONFIG, **how))
            return made.enter_context(Scene(broker, sluice, queue, client_home))

        yield make


# The fallback, and the publisher's outcome.
_FALLBACKS: Final = pytest.mark.parametrize(("fallback", "told"), [("persist", "acked"), ("nack", "nacked")])


# --- Consumed messages ----------------------------------------------------------------------------------


def test_the_consumers_ack_is_the_publishers_confirm(scene: MakeScene) -> None:
    each = scene("persist-acked")
    each.declare()
    consumer = each.take("ack-later")
    assert each.publish("a", "b") == ["acked", "acked"]
    assert [one["body"] for one in seen(consumer, 2)] == ["a", "b"]
    assert each.ways() == {"after_consume": 2}


@pytest.mark.long
@pytest.mark.parametrize("what", ["requeue", "recover"])
def test_requeued_message_stays_pending_until_acknowledged(scene: MakeScene, what: str) -> None:
    each = scene(f"nack-{what}")
    each.declare()
    consumer = each.take(what)
    assert each.publish("a") == ["acked"]
    assert [(one["body"], one["redelivered"]) for one in seen(consumer, 2)] == [("a", False), ("a", True)]
    assert each.ways() == {"after_consume": 1}


@pytest.mark.long
@pytest.mark.parametrize("what", ["vanish", "close"])
def test_message_taken_over_by_another_consumer_stays_pending(scene: MakeScene, what: str) -> None:
    """The connection or the channel of its first consumer is gone."""
    each = scene(f"nack-{what}")
    each.declare()
    # It is the first in turn.
    gone, other = each.take(what, prefetch=1), each.take("ack-later", prefetch=1)
    assert each.publish("a") == ["acked"]
    assert [one["body"] for one in seen(gone, 1)] == ["a"]
    assert [(one["body"], one["redelivered"]) for one in seen(other, 1)] == [("a", True)]
    assert each.ways() == {"after_consume": 1}


# --- Fallbacks -----------------------------------------------------------------------------------


@_FALLBACKS
@pytest.mark.parametrize("what", ["reject", pytest.param("nack", marks=[pytest.mark.long])])
def test_rejected_message_falls_back(scene: MakeScene, what: str, fallback: str, told: str) -> None:
    each = scene(f"{fallback}-refused-by-{what}")
    each.declare()
    consumer = each.take(what)
    assert each.publish("a") == [told]
    copies = _copies(fallback)
    assert [(one["body"], one["redelivered"]) for one in seen(consumer, copies)] == [("a", False)] * copies
    assert each.ways() == {f"{fallback}ed": 1}


@_FALLBACKS
def test_unacknowledged_message_falls_back_in_time(scene: MakeScene, fallback: str, told: str) -> None:
    each = scene(f"soon-{fallback}-kept")
    each.declare()
    consumer = each.take("keep", prefetch=2)
    # The second is sent unmarked, because consumers are too slow.
    assert each.publish("a", "b") == [told, "acked"]
    assert [one["body"] for one in seen(consumer, 2)] == (["a", "a"] if fallback == "persist" else ["a", "b"])
    assert each.ways() == {f"{fallback}ed": 1, "broker": 1}


@pytest.mark.parametrize(
    "what", ["auto", *(pytest.param(what, marks=[pytest.mark.long]) for what in ("get", "get-auto"))]
)
def test_without_a_consumer_that_acknowledges_the_broker_confirms(scene: MakeScene, what: str) -> None:
    each = scene(f"nack-{what}")
    each.declare()
    consumer = each.take(what)
    assert each.publish("a") == ["acked"]
    assert [one["body"] for one in seen(consumer, 1)] == ["a"]
    assert each.ways() == {"broker": 1}


def test_without_a_consumer_the_broker_confirms(scene: MakeScene) -> None:
    each = scene("nack-alone")
    each.declare()
    assert each.publish("a") == ["acked"]
    assert each.ways() == {"broker": 1}
    assert each.rabbitmq.drain(each.queue) == [b"a"]


@pytest.mark.long
@_FALLBACKS
def test_message_consumed_elsewhere_falls_back_in_time(scene: MakeScene, fallback: str, told: str) -> None:
    """A consumer with a direct connection is not seen. It gets the message marked and transient."""
    each = scene(f"soon-{fallback}-both")
    each.declare()
    each.block()
    elsewhere = each.take("ack", direct=True)
    assert each.publish("a") == [told]
    marked, *plain = taken(elsewhere, _copies(fallback))
    assert (marked["body"], marked["mode"], sorted(marked["headers"])) == ("a", 1, ["sent", "x-sluice-confirm"])
    assert [(one["body"], one["mode"], one["headers"]) for one in plain] == [("a", 2, {"sent": "so"})] * len(plain)
    assert each.ways() == {f"{fallback}ed": 1}


@pytest.mark.long
@_FALLBACKS
@pytest.mark.parametrize("what", ["auto", "get", "get-auto", "transaction"])
def test_message_taken_by_get_falls_back(scene: MakeScene, what: str, fallback: str, told: str) -> None:
    each = scene(f"{fallback}-by-{what}")
    each.declare()
    each.block()
    consumers = []

    def take() -> None:
        # Otherwise nothing would wait.
        each.wait_for_ready()
        consumers.append(each.take(what))

    assert each.publish_while(take) == told
    copies = _copies(fallback)
    assert [one["body"] for one in seen(*consumers, copies)] == ["a"] * copies
    assert each.ways() == {f"{fallback}ed": 1}


@pytest.mark.long
@_FALLBACKS
@pytest.mark.parametrize("arguments", [{"x_message_ttl": 200}, {"x_max_length": 0}], ids=["ttl", "length"])
def test_message_dropped_by_the_queue_falls_back_in_time(
    scene: MakeScene, arguments: dict[str, object], fallback: str, told: str
) -> None:
    """If it is published again, the queue drops it again."""
    each = scene(f"soon-{fallback}-dropped-by-" + "-".join(arguments))
    each.declare(**arguments)
    each.block()
    assert each.publish("a") == [told]
    assert each.ways() == {f"{fallback}ed": 1}


@pytest.mark.long
@_FALLBACKS
@pytest.mark.parametrize("why", ["ttl", "length", "reject"])
def test_dead_lettered_message_falls_back(scene: MakeScene, why: str, fallback: str, told: str) -> None:
    """The consumer of the dead-letter queue is connected here, too."""
    each = scene(f"{fallback}-dying-by-{why}")
    dead = each.declare(f"dead-by-{why}")
    route = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    arguments = {"ttl": {"x_message_ttl": 200}, "length": {"x_max_length": 1}, "reject": {}}[why]
    each.declare(**route, **arguments)
    last = each.take("ack", queue=dead)
    if why == "reject":
        each.take("reject")
    else:
        each.block()

    def push() -> None:
        if why == "length":
            each.wait_for_ready()
            each.push(_BLOCKER)

    assert each.publish_while(push) == told
    (death, *_) = [one["headers"]["x-death"] for one in seen(last, 1) if one["body"] == "a"]
    assert death[0]["queue"] == each.queue
    assert each.ways() == {f"{fallback}ed": 1}


@pytest.mark.long
@_FALLBACKS
def test_message_left_by_the_last_consumer_falls_back(scene: MakeScene, fallback: str, told: str) -> None:
    """Its connection is gone, and there is no other."""
    each = scene(f"{fallback}-left")
    each.declare()
    each.take("vanish")
    assert each.publish("a") == [told]
    assert each.ways() == {f"{fallback}ed": 1}
    # The first copy is also still there, transient.
    assert each.rabbitmq.drain(each.queue) == [b"a"] * _copies(fallback)


@pytest.mark.long
@_FALLBACKS
def test_message_kept_by_a_cancelled_consumer_falls_back_in_time(scene: MakeScene, fallback: str, told: str) -> None:
    each = scene(f"soon-{fallback}-cancelled")
    each.declare()
    each.take("cancel")
    assert each.publish("a") == [told]
    assert each.ways() == {f"{fallback}ed": 1}


# --- The broker's answers ------------------------------------------------------------------------------


# --- Exchanges -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_fanout_is_confirmed_once_every_queue_has_consumed_it(scene: MakeScene) -> None:
    each = scene("nack-fan")
    queues = [each.declare(f"fan-{number}", exchange=each.queue) for number in (1, 2)]
    consumers = [each.take(what, queue=queue) for what, queue in zip(("ack", "ack-later"), queues, strict=True)]
    assert each.publish("a", exchange=each.queue) == ["acked"]
    assert [one["body"] for consumer in consumers for one in seen(consumer, 1)] == ["a", "a"]
    assert each.ways() == {"after_consume": 1}


# --- Publishers of each language -----------------------------------------------------------------------

_PUBLISHERS: Final[dict[str, Callable[[], list[str]]]] = {
    "pika": lambda: amqp_python("pika_flat_out.py"),
    "aio-pika": lambda: amqp_python("aio_pika_flat_out.py"),
    "amqplib": lambda: amqp_node("flat_out.js"),
    "java": lambda: amqp_java("FlatOut.java"),
    "go": amqp_go,
}
_PUBLISHING_S: Final = 4
_AT_ONCE: Final = 10
"""Concurrent publishes. With 16 on a channel, the broker would confirm."""
# One first delivery in ``_OF`` is rejected.
_REFUSED, _OF = 100, 1000


class Consumer:
    """Acknowledges messages of a queue, except for a few, in a thread."""

    def __init__(self, address: str, queue: str) -> None:
        self._client = AmqpClient(address)
        self._channel = self._client.open_channel(prefetch=500)
        self._client.call(self._channel, "basic.consume", queue=queue)
        self.taken: set[int] = set()
        self.refused: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.002):
            for event in self._client.take("basic.deliver"):
                number, tag = int(event.body), event["delivery_tag"]
                if number % _OF == _REFUSED and number not in self.refused:
                    self.refused.add(number)
                    self._client.send(method(self._channel, "basic.reject", delivery_tag=tag))
                else:
                    self.taken.add(number)
                    self._client.send(method(self._channel, "basic.ack", delivery_tag=tag))

    def stop(self) -> None:
        """Stop acknowledging, and keep further messages."""
        self._over.set()
        self._thread.join(_TIMEOUT_S)

    def close(self) -> None:
        self.stop()
        self._client.close()


@pytest.mark.long
@pytest.mark.parametrize("name", _PUBLISHERS)
def test_every_client_is_told_of_each_message_once(name: str, scene: MakeScene, client_home: Path) -> None:
    """With two queues on one channel, and mixed confirms of consumers and the broker, and nacks."""
    persist, nack = scene(f"persist-of-{name}"), scene(f"nack-of-{name}")
    address = persist.sluice.routes[0].listen
    host, _, port = address.rpartition(":")
    consumers = {}
    for each in (persist, nack):
        each.declare()
        consumers[each] = Consumer(address, each.queue)
    command = [*_PUBLISHERS[name](), host, port, str(_PUBLISHING_S), persist.queue, nack.queue]
    report = run_client(
        command, home=client_home, seconds=_PUBLISHING_S, env={"DELIVERY_MODE": "2", "AT_ONCE": str(_AT_ONCE)}
    )
    for each, consumer in consumers.items():
        told = report[each.queue]
        ways = each.ways()
        consumer.close()
        left = set(map(int, each.rabbitmq.drain(each.queue)))
        print(each.queue, {how: len(numbers) for how, numbers in told.items()}, len(left), consumer.refused, ways)
        assert told["failed"] == []
        answered = told["acked"] + told["nacked"]
        assert sorted(answered) == list(range(len(answered)))
        assert set(told["acked"]) <= consumer.taken | consumer.refused | left
        assert sum(ways.values()) == len(answered)
        assert ways["after_consume"] > 0
        assert len(told["nacked"]) == ways.get("nacked", 0)
        # Refused are only messages that a consumer rejected and that were not on disk.
        assert set(told["nacked"]) <= consumer.refused
    assert report[persist.queue]["nacked"] == []


# --- Ends ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_messages_of_a_gone_publisher_no_longer_wait(scene: MakeScene) -> None:
    """The publisher had no confirm. Its message is in the queue as forwarded."""
    each = scene("persist-orphaned")
    each.declare()
    blocked = each.block()
    publisher = each.start_publisher("a")
    each.wait_for_ready()
    assert each.pending() == 1
    publisher.kill()
    _wait_until(lambda: each.pending() == 0, "forgotten")
    blocked.kill()
    assert [one["body"] for one in seen(each.take("ack"), 2)] == [_BLOCKER, "a"]
    assert each.ways() == {}


@pytest.mark.long
@_FALLBACKS
def test_when_sluice_ends_everything_falls_back(scene_alone: Callable[..., Scene], fallback: str, told: str) -> None:
    each = scene_alone(f"{fallback}-drained")
    each.declare()
    consumer = each.take("keep")

    def end() -> None:
        consumer.wait_for_line('"a"', timeout_s=_TIMEOUT_S)
        each.sluice.process.signal(signal.SIGTERM)

    # The answer and the close arrive together, and pika reports the close.
    assert each.publish_while(end) in {told, "ConnectionClosedByBroker"}
    each.sluice.process.wait(timeout_s=_TIMEOUT_S)
    assert each.rabbitmq.drain(each.queue) == [b"a"] * _copies(fallback)


@pytest.mark.long
@pytest.mark.parametrize("fallback", ["persist", "nack"])
def test_a_publisher_gets_no_answer_when_the_broker_is_killed(
    start_rabbitmq: StartRabbitMQ, scene_alone: Callable[..., Scene], fallback: str
) -> None:
    with start_rabbitmq() as broker:
        each = scene_alone(f"{fallback}-restarted", broker)
        each.declare()
        consumer = each.take("keep")

        def kill() -> None:
            consumer.wait_for_line('"a"', timeout_s=_TIMEOUT_S)
            broker.kill()

        assert each.publish_while(kill) in {"StreamLostError", "ConnectionClosedByBroker"}
        broker.start()
        # It was transient, and its publisher knows that its fate is unknown.
        assert broker.drain(each.queue) == []
        assert "Traceback" not in each.sluice.process.log.read_text(encoding="utf-8")
        each.close()


# --- Bounds --------------------------------------------------------------------------------------------

_SLOW_SYNC_MS: Final = 200
# Messages of a queue that may wait, if ``max_pending_bytes`` allows that many.
_MAX_WINDOW: Final = 10_000
_MAX_PENDING_BYTES: Final = 64 << 20
# With 16 on a channel, the broker would confirm.
_ON_A_CHANNEL: Final = 15
_CHANNELS: Final = 700
_BODY: Final = b"0" * 4000


def _resident_bytes(process: ManagedProcess) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _publish_many(publisher: AmqpClient, channels: list[int], queue: str, on_each: int) -> None:
    """Publish this many on each channel, without waiting for confirms."""
    for channel in channels:
        for _ in range(on_each):
            publisher.number_publish(channel)
        publisher.send(*(publish(channel, queue, _BODY, delivery_mode=2) for _ in range(on_each)))


@pytest.mark.long
def test_a_consumer_that_acknowledges_no_more_costs_bounded_memory(
    start_rabbitmq: StartRabbitMQ, scene_alone: Callable[..., Scene]
) -> None:
    """The worst case: it was quick before, so that the maximum may wait, and all of it falls back at once."""
    # With a quick disk, consumers would have to be quick, too.
    each = scene_alone("persist-wide", start_rabbitmq(sync_ms=_SLOW_SYNC_MS), covered=False)
    each.declare()
    listen, process = each.sluice.routes[0].listen, each.sluice.process
    with AmqpClient(listen) as publisher:
        consumer = Consumer(listen, each.queue)
        channels = [publisher.open_channel(confirms=True) for _ in range(_CHANNELS)]

        def confirmed() -> None:
            for channel in channels:
                assert publisher.wait_for_confirms(channel).nacked == []

        while each.ways().get("after_consume", 0) < 3 * _MAX_WINDOW:
            _publish_many(publisher, channels, each.queue, 1)
            confirmed()
        before, first = each.ways(), _resident_bytes(process)
        consumer.stop()
        _publish_many(publisher, channels, each.queue, _ON_A_CHANNEL)
        _wait_until(lambda: each.pending() >= _MAX_WINDOW, "as many pending as may be")
        grown = _resident_bytes(process) - first
        consumer.close()
        begun_s = time.monotonic()
        confirmed()
        took_s = time.monotonic() - begun_s
        persisted = each.ways()["persisted"] - before.get("persisted", 0)
        print(f"{persisted} pending; {grown / 1e6:.0f} MB more; {took_s:.1f} s until they were published again")
        assert persisted == _MAX_WINDOW
        assert each.pending() == 0
        assert grown < 2 * _MAX_PENDING_BYTES
