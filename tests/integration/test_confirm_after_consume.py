"""Confirms after the consumers' ack, and all that takes its place where none can come: what pika is told, and when.

Each message falls back after a second at the latest; ``persist`` and ``nack`` say how, by the beginning of its queue's
name. What the publishers see is in the table of docs/confirm-after-consume.md.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
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

_WITHIN_S: Final = 1.0
_CONFIG: Final = """
[[limits]]
kind = "queue"
name = "persist*"
rate = "unlimited"
confirm = "after_consume"
confirm_within_s = 1

[[limits]]
kind = "queue"
name = "nack*"
rate = "unlimited"
confirm = "after_consume"
confirm_within_s = 1
fallback = "nack"

[[limits]]
kind = "exchange"
name = "known*"
rate = "unlimited"
confirm = "after_consume"
confirm_within_s = 1
confirm_queues = 2

[[limits]]
kind = "exchange"
name = "unknown*"
rate = "unlimited"
confirm = "after_consume"
"""
_PATIENCE_S: Final = 60.0
#: A confirm that waits for nothing but the broker, on a machine that is busy.
_AT_ONCE_S: Final = 0.7
_BLOCKER: Final = "blocker"
_WAYS: Final = ("after_consume", "broker", "persisted", "nacked")


class Scene:
    """One queue with its publishers and consumers: real clients, through Sluice unless said otherwise.

    Args:
        rabbitmq: the broker.
        sluice: in front of it.
        queue: the queue's name.
        home: for the clients.
    """

    def __init__(self, rabbitmq: RabbitMQ, sluice: Sluice, queue: str, home: Path) -> None:
        self.rabbitmq, self.sluice, self.queue, self._home = rabbitmq, sluice, queue, home
        self._clients = ExitStack()
        self._queues: list[str] = []
        self._exchanges: list[str] = []

    def declare(self, queue: str = "", *, exchange: str = "", **arguments: object) -> str:
        """Make a durable queue, past Sluice, bound to a fanout exchange if one is named."""
        name = queue or self.queue
        self._queues.append(name)
        with self.rabbitmq.connect() as client:
            channel = client.open_channel()
            names = {key.replace("_", "-"): value for key, value in arguments.items()}
            client.call(channel, "queue.declare", queue=name, durable=True, arguments=names)
            if exchange:
                self._exchanges.append(exchange)
                client.call(channel, "exchange.declare", exchange=exchange, type="fanout", durable=True)
                client.call(channel, "queue.bind", queue=name, exchange=exchange)
        return name

    def take(self, what: str, *, queue: str = "", prefetch: int = 10, direct: bool = False) -> ManagedProcess:
        """Start a consumer that does so with what it takes; see clients/amqp/pika_takes.py."""
        address = self.rabbitmq.address if direct else self.sluice.routes[0].listen
        host, _, port = address.rpartition(":")
        command = amqp_python("pika_takes.py", host, port, queue or self.queue, str(prefetch), what)
        process = start_client(command, home=self._home)
        self._clients.callback(process.kill)
        return process

    def block(self) -> ManagedProcess:
        """Start a consumer here that is busy with a message for ever, so that whatever comes stays in the queue."""
        consumer = self.take("keep", prefetch=1)
        with self.rabbitmq.connect() as client:
            channel = client.open_channel(confirms=True)
            client.publish(channel, self.queue, _BLOCKER.encode(), delivery_mode=2)
            client.wait_for_confirms(channel)
        consumer.wait_for_line(_BLOCKER, timeout_s=_PATIENCE_S)
        return consumer

    def publish(self, *bodies: str, exchange: str = "") -> list[tuple[str, float]]:
        """Publish with pika, one message after the other; return what it says of each, and after how many seconds."""
        host, _, port = self.sluice.routes[0].listen.rpartition(":")
        key = "" if exchange else self.queue
        command = amqp_python("pika_told.py", host, port, exchange, key, *bodies)
        return [(what, after_s) for what, after_s in run_client(command, home=self._home, seconds=_PATIENCE_S)]

    def ways(self) -> dict[str, int]:
        """Return how many publishes to the queue, or to the exchange of its name, were confirmed which way."""
        metrics = self.sluice.metrics()
        counts = {way: metrics.total("sluice_confirms_total", resource=self.queue, way=way) for way in _WAYS}
        return {way: int(count) for way, count in counts.items() if count}

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End the clients and take the queues away."""
        self._clients.close()
        with self.rabbitmq.connect() as client:
            channel = client.open_channel()
            for name in self._queues:
                client.call(channel, "queue.delete", queue=name)
            for name in self._exchanges:
                client.call(channel, "exchange.delete", exchange=name)


def seen(consumer: ManagedProcess, count: int) -> list[dict[str, Any]]:
    """Wait for so many deliveries of a consumer, and return what it said of all that came."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while len(found := [json.loads(line) for line in consumer.lines if line.startswith("{")]) < count:
        assert time.monotonic() < deadline_s, consumer.tail()
        time.sleep(0.02)
    for each in found:
        if each["body"] != _BLOCKER:
            # As they were sent, however often they come.
            assert each["mode"] == 2, each
            assert {key: value for key, value in each["headers"].items() if "death" not in key} == {"sent": "so"}, each
    return found


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port('127.0.0.1')}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", config=_CONFIG)


MakeScene = Callable[[str], Scene]


@pytest.fixture
def scene(rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path) -> Iterator[MakeScene]:
    """Makes the scene of a queue."""
    with ExitStack() as made:

        def make(queue: str) -> Scene:
            each = Scene(rabbitmq, sluice, queue, client_home)
            made.callback(each.close)
            return each

        yield make


def _told(told: list[tuple[str, float]], *expected: str, after_s: float = 0, before_s: float = _PATIENCE_S) -> None:
    print(told)
    assert [what for what, _ in told] == list(expected)
    assert all(after_s <= each <= before_s for _, each in told), told


# --- What is consumed ----------------------------------------------------------------------------------


def test_the_consumers_ack_is_the_publishers_confirm(scene: MakeScene) -> None:
    each = scene("persist-acked")
    each.declare()
    consumer = each.take("ack-later")
    _told(each.publish("a", "b"), "acked", "acked", after_s=0.3, before_s=0.3 + _AT_ONCE_S)
    assert [one["body"] for one in seen(consumer, 2)] == ["a", "b"]
    assert each.ways() == {"after_consume": 2}


@pytest.mark.long
@pytest.mark.parametrize("what", ["requeue", "recover"])
def test_what_is_given_back_stays_pending_until_it_is_acknowledged(scene: MakeScene, what: str) -> None:
    each = scene(f"persist-{what}")
    each.declare()
    consumer = each.take(what)
    _told(each.publish("a"), "acked", before_s=_AT_ONCE_S)
    assert [(one["body"], one["redelivered"]) for one in seen(consumer, 2)] == [("a", False), ("a", True)]
    assert each.ways() == {"after_consume": 1}


@pytest.mark.long
@pytest.mark.parametrize("what", ["vanish", "close"])
def test_what_another_consumer_takes_over_stays_pending(scene: MakeScene, what: str) -> None:
    """The connection or the channel of the one that had it is gone."""
    each = scene(f"persist-{what}")
    each.declare()
    # It is the first in turn.
    gone, other = each.take(what, prefetch=1), each.take("ack-later", prefetch=1)
    _told(each.publish("a"), "acked", after_s=0.3, before_s=_WITHIN_S)
    assert [one["body"] for one in seen(gone, 1)] == ["a"]
    assert [(one["body"], one["redelivered"]) for one in seen(other, 1)] == [("a", True)]
    assert each.ways() == {"after_consume": 1}


# --- What falls back -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("fallback", "told"), [("persist", "acked"), ("nack", "nacked")])
@pytest.mark.parametrize("what", ["reject", pytest.param("nack", marks=[pytest.mark.long])])
def test_what_a_consumer_refuses_falls_back_at_once(scene: MakeScene, what: str, fallback: str, told: str) -> None:
    each = scene(f"{fallback}-refused-by-{what}")
    each.declare()
    consumer = each.take(what)
    _told(each.publish("a"), told, before_s=_AT_ONCE_S)
    copies = 2 if fallback == "persist" else 1
    assert [(one["body"], one["redelivered"]) for one in seen(consumer, copies)] == [("a", False)] * copies
    assert each.ways() == {f"{fallback}ed": 1}


@pytest.mark.parametrize(("fallback", "told"), [("persist", "acked"), ("nack", "nacked")])
def test_what_is_never_acknowledged_falls_back_in_time(scene: MakeScene, fallback: str, told: str) -> None:
    each = scene(f"{fallback}-kept")
    each.declare()
    consumer = each.take("keep", prefetch=2)
    # The second goes as it came: they do not keep up.
    first, second = each.publish("a", "b")
    _told([first], told, after_s=_WITHIN_S, before_s=_WITHIN_S + _AT_ONCE_S)
    _told([second], "acked", before_s=_AT_ONCE_S)
    assert [one["body"] for one in seen(consumer, 2)] == (["a", "a"] if fallback == "persist" else ["a", "b"])
    assert each.ways() == {f"{fallback}ed": 1, "broker": 1}


@pytest.mark.parametrize(
    "what", ["auto", *(pytest.param(what, marks=[pytest.mark.long]) for what in ("get", "get-auto"))]
)
def test_without_a_consumer_that_acknowledges_the_broker_confirms(scene: MakeScene, what: str) -> None:
    each = scene(f"persist-{what}")
    each.declare()
    consumer = each.take(what)
    _told(each.publish("a"), "acked", before_s=_AT_ONCE_S)
    assert [one["body"] for one in seen(consumer, 1)] == ["a"]
    assert each.ways() == {"broker": 1}


def test_without_a_consumer_the_broker_confirms(scene: MakeScene) -> None:
    each = scene("persist-alone")
    each.declare()
    _told(each.publish("a"), "acked", before_s=_AT_ONCE_S)
    assert each.ways() == {"broker": 1}
    assert each.rabbitmq.drain(each.queue) == [b"a"]


@pytest.mark.long
def test_with_a_consumer_elsewhere_the_broker_confirms(scene: MakeScene) -> None:
    each = scene("persist-elsewhere")
    each.declare()
    consumer = each.take("ack", direct=True)
    _told(each.publish("a"), "acked", before_s=_AT_ONCE_S)
    assert [one["body"] for one in seen(consumer, 1)] == ["a"]
    assert each.ways() == {"broker": 1}


@pytest.mark.long
def test_what_a_consumer_elsewhere_takes_falls_back_in_time(scene: MakeScene) -> None:
    """One here is seen, one that connects directly is not: it takes what comes, marked and transient."""
    each = scene("persist-both")
    each.declare()
    each.block()
    elsewhere = each.take("ack", direct=True)
    _told(each.publish("a"), "acked", after_s=_WITHIN_S, before_s=_WITHIN_S + _AT_ONCE_S)
    deadline_s = time.monotonic() + _PATIENCE_S
    while len(lines := [json.loads(line) for line in elsewhere.lines if line.startswith("{")]) < 2:
        assert time.monotonic() < deadline_s, elsewhere.tail()
        time.sleep(0.02)
    marked, plain = lines
    assert (marked["body"], marked["mode"], sorted(marked["headers"])) == ("a", 1, ["sent", "x-sluice-confirm"])
    assert (plain["body"], plain["mode"], plain["headers"]) == ("a", 2, {"sent": "so"})
    assert each.ways() == {"persisted": 1}


@pytest.mark.long
@pytest.mark.parametrize(("what", "copies"), [("get", 2), ("get-auto", 2), ("transaction", 2)])
def test_what_is_taken_in_another_way_falls_back_at_once(scene: MakeScene, what: str, copies: int) -> None:
    each = scene(f"persist-by-{what}")
    each.declare()
    each.block()
    consumer = each.take(what)
    _told(each.publish("a"), "acked", before_s=_AT_ONCE_S)
    assert [one["body"] for one in seen(consumer, copies)] == ["a"] * copies
    assert each.ways() == {"persisted": 1}


@pytest.mark.long
@pytest.mark.parametrize("arguments", [{"x_message_ttl": 200}, {"x_max_length": 0}], ids=["ttl", "length"])
def test_what_the_queue_drops_unseen_falls_back_in_time(scene: MakeScene, arguments: dict[str, object]) -> None:
    """And is dropped again then: that is what the queue does."""
    each = scene("persist-dropped-by-" + "-".join(arguments))
    each.declare(**arguments)
    each.block()
    _told(each.publish("a"), "acked", after_s=_WITHIN_S, before_s=_WITHIN_S + _AT_ONCE_S)
    assert each.ways() == {"persisted": 1}


@pytest.mark.long
@pytest.mark.parametrize("why", ["ttl", "length", "reject"])
def test_what_is_dead_lettered_falls_back_at_once(scene: MakeScene, why: str) -> None:
    """The queue where it ends has a consumer here, too."""
    each = scene(f"persist-dying-by-{why}")
    dead = each.declare(f"dead-by-{why}")
    route = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    arguments = {"ttl": {"x_message_ttl": 200}, "length": {"x_max_length": 1}, "reject": {}}[why]
    each.declare(**route, **arguments)
    last = each.take("ack", queue=dead)
    if why == "reject":
        each.take("reject")
        _told(each.publish("a"), "acked", before_s=_AT_ONCE_S)
    else:
        each.block()
        if why == "ttl":
            _told(each.publish("a"), "acked", after_s=0.2, before_s=0.2 + _AT_ONCE_S)
        else:

            def push() -> None:
                while each.rabbitmq.messages(each.queue) == 0:
                    time.sleep(0.02)
                with each.rabbitmq.connect() as client:
                    client.publish(client.open_channel(), each.queue, _BLOCKER.encode())

            pushing = threading.Thread(target=push)
            pushing.start()
            _told(each.publish("a"), "acked", before_s=_WITHIN_S)
            pushing.join()
    (death, *_) = [one["headers"]["x-death"] for one in seen(last, 1) if one["body"] == "a"]
    assert death[0]["queue"] == each.queue
    assert each.ways() == {"persisted": 1}


@pytest.mark.long
@pytest.mark.parametrize(("fallback", "told"), [("persist", "acked"), ("nack", "nacked")])
def test_what_the_last_consumer_leaves_falls_back_at_once(scene: MakeScene, fallback: str, told: str) -> None:
    """Its connection is gone, and no other is there."""
    each = scene(f"{fallback}-left")
    each.declare()
    each.take("vanish")
    _told(each.publish("a"), told, before_s=_AT_ONCE_S)
    assert each.ways() == {f"{fallback}ed": 1}
    # The first copy is still there as well, transient.
    assert each.rabbitmq.drain(each.queue) == [b"a"] * (2 if fallback == "persist" else 1)


@pytest.mark.long
def test_what_a_cancelled_consumer_keeps_falls_back_in_time(scene: MakeScene) -> None:
    each = scene("persist-cancelled")
    each.declare()
    each.take("cancel")
    _told(each.publish("a"), "acked", after_s=_WITHIN_S, before_s=_WITHIN_S + _AT_ONCE_S)
    assert each.ways() == {"persisted": 1}


# --- Exchanges -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_fanout_is_confirmed_once_every_queue_has_consumed_it(scene: MakeScene) -> None:
    each = scene("known-fan")
    queues = [each.declare(f"known-{number}", exchange="known-fan") for number in (1, 2)]
    consumers = [each.take(what, queue=queue) for what, queue in zip(("ack", "ack-later"), queues, strict=True)]
    _told(each.publish("a", exchange="known-fan"), "acked", after_s=0.3, before_s=0.3 + _AT_ONCE_S)
    assert [one["body"] for consumer in consumers for one in seen(consumer, 1)] == ["a", "a"]
    assert each.ways() == {"after_consume": 1}
    # One of them takes no more: it falls back, and both get it once more.
    consumers[1].kill()
    _told(each.publish("b", exchange="known-fan"), "acked", after_s=_WITHIN_S, before_s=_WITHIN_S + _AT_ONCE_S)
    assert each.ways() == {"after_consume": 1, "persisted": 1}
    assert [one["body"] for one in seen(consumers[0], 3)] == ["a", "b", "b"]


@pytest.mark.long
def test_an_exchange_whose_queues_are_not_known_is_left_alone(scene: MakeScene) -> None:
    each = scene("unknown-fan")
    queue = each.declare("unknown-1", exchange="unknown-fan")
    each.take("keep", queue=queue)
    _told(each.publish("a", exchange="unknown-fan"), "acked", before_s=_AT_ONCE_S)
    assert each.ways().keys() <= {"broker"}


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
"""Publishes that wait at a time: with 16 on a channel their confirms would be left to the broker."""
#: Of what a consumer gets for the first time, this message of each so many is refused.
_REFUSED, _OF = 100, 1000


class Consumer:
    """Acknowledges what it takes from a queue, but for a few, in a thread; the harness's own client.

    Attributes:
        taken: the bodies that it acknowledged.
        refused: those that it did not want when they came first.
    """

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

    def close(self) -> None:
        """Take no more."""
        self._over.set()
        self._thread.join(_PATIENCE_S)
        self._client.close()


@pytest.mark.long
@pytest.mark.parametrize("name", _PUBLISHERS)
def test_every_client_is_told_of_each_message_once(name: str, scene: MakeScene, client_home: Path) -> None:
    """To two queues on one channel, while confirms of consumers, of the broker and nacks are mixed."""
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
        # Refused are those alone that a consumer did not want and that were not on disk.
        assert set(told["nacked"]) <= consumer.refused
    assert report[persist.queue]["nacked"] == []


# --- Ends ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_when_sluice_ends_everything_falls_back(
    start_sluice: StartSluice, rabbitmq: RabbitMQ, client_home: Path, listen: str
) -> None:
    config = _CONFIG.replace("confirm_within_s = 1", "confirm_within_s = 30")
    with (
        start_sluice(routes=(Route(listen, rabbitmq.address),), protocol="amqp091", config=config) as sluice,
        Scene(rabbitmq, sluice, "persist-drained", client_home) as each,
    ):
        each.declare()
        consumer = each.take("keep")

        def end() -> None:
            consumer.wait_for_line('"a"', timeout_s=_PATIENCE_S)
            sluice.process.signal(signal.SIGTERM)

        ending = threading.Thread(target=end)
        ending.start()
        ((told, after_s),) = each.publish("a")
        print(told, after_s)
        ending.join()
        # The ack and the close come together, and of these pika tells the close.
        assert told in {"acked", "ConnectionClosedByBroker"}
        assert after_s < _PATIENCE_S / 4
        sluice.process.wait(timeout_s=_PATIENCE_S)
        assert rabbitmq.drain(each.queue) == [b"a", b"a"]


@pytest.mark.long
def test_when_the_broker_is_killed_its_publisher_was_told_nothing(
    start_rabbitmq: StartRabbitMQ, start_sluice: StartSluice, client_home: Path, listen: str
) -> None:
    with (
        start_rabbitmq() as rabbitmq,
        start_sluice(routes=(Route(listen, rabbitmq.address),), protocol="amqp091", config=_CONFIG) as sluice,
        Scene(rabbitmq, sluice, "persist-restarted", client_home) as each,
    ):
        each.declare()
        consumer = each.take("keep")

        def kill() -> None:
            consumer.wait_for_line('"a"', timeout_s=_PATIENCE_S)
            rabbitmq.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        ((told, after_s),) = each.publish("a")
        print(told, after_s)
        killing.join()
        assert told in {"StreamLostError", "ConnectionClosedByBroker"}
        rabbitmq.start()
        # It was transient; its publisher knows that nothing is known of it.
        assert rabbitmq.drain(each.queue) == []
        assert "Traceback" not in sluice.process.log.read_text(encoding="utf-8")


# --- Bounds --------------------------------------------------------------------------------------------

_MANY: Final = 50_000
_AT_A_TIME: Final = 1000
#: What a Sluice may grow by while so many pass whose consumers never answer, in bytes: nearly nothing of it waits.
_MOST_GROWTH: Final = 40_000_000


def _resident_bytes(process: ManagedProcess) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


@pytest.mark.long
def test_a_consumer_that_never_acknowledges_costs_neither_memory_nor_time(
    start_sluice: StartSluice, rabbitmq: RabbitMQ, client_home: Path, listen: str
) -> None:
    with (
        start_sluice(
            routes=(Route(listen, rabbitmq.address),), protocol="amqp091", config=_CONFIG, covered=False
        ) as sluice,
        Scene(rabbitmq, sluice, "persist-many", client_home) as each,
        AmqpClient(listen) as consumer,
        AmqpClient(listen) as publisher,
    ):
        each.declare()
        consuming = consumer.open_channel()
        consumer.call(consuming, "basic.consume", queue=each.queue)
        channel = publisher.open_channel(confirms=True)
        first, most_pending, longest_s = _resident_bytes(sluice.process), 0.0, 0.0
        for _ in range(_MANY // _AT_A_TIME):
            begun_s = time.monotonic()
            for _ in range(_AT_A_TIME):
                publisher.number_publish(channel)
            publisher.send(*(publish(channel, each.queue, b"." * 1000, delivery_mode=2) for _ in range(_AT_A_TIME)))
            most_pending = max(most_pending, sluice.metrics().total("sluice_confirms_pending"))
            assert publisher.wait_for_confirms(channel).nacked == []
            longest_s = max(longest_s, time.monotonic() - begun_s)
        grown = _resident_bytes(sluice.process) - first
        ways = each.ways()
        print(f"pending: at most {most_pending:.0f}; {grown / 1e6:.0f} MB more; {longest_s:.1f} s at most; {ways}")
        assert sum(ways.values()) == _MANY
        assert ways["broker"] > 0.99 * _MANY
        assert most_pending <= 16
        assert grown < _MOST_GROWTH
        assert longest_s < _WITHIN_S + 5
