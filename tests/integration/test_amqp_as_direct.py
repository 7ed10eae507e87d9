"""An AMQP client sees the same through Sluice as directly, plus the nacks of refused messages."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pytest
from harness.amqp import PROTOCOL_HEADER, AmqpClient, AmqpError, Event, content, frame, method, publish, split_frames
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_LIMITS = """
[[limits]]
kind = "queue"
name = "refused*"
rate = 0

[[limits]]
kind = "queue"
name = "held*"
rate = 50
action = "delay"

[[limits]]
kind = "queue"
name = "over*"
rate = 50

[[limits]]
kind = "delivery"
name = "slow*"
rate = 10

[[limits]]
kind = "queue"
name = "amq.*"
rate = 0

[[limits]]
kind = "queue"
name = "tenant/refused*"
rate = 0

[[limits]]
kind = "queue"
name = "a%2Fb%25c€%FF"
rate = 0

[[limits]]
kind = "exchange"
name = "refused*"
rate = 0

[[limits]]
kind = "routing_key"
name = "events/refused.*"
rate = 0
"""
# More than the 50 that pass at once, but few enough not to be held too long.
_SOME_HELD = 80


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", config=_LIMITS)


class Scene:
    def __init__(self, address: str, rabbitmq: RabbitMQ, *, limited: bool) -> None:
        self.address = address
        self.rabbitmq = rabbitmq
        self.limited = limited
        self._queues: list[str] = []
        self._exchanges: list[str] = []
        self._clients = contextlib.ExitStack()

    def connect(self, **how: Any) -> AmqpClient:
        return self._clients.enter_context(AmqpClient(self.address, **how))

    def queue(self, name: str, **how: Any) -> str:
        with self.rabbitmq.connect() as client:
            client.call(client.open_channel(), "queue.declare", queue=name, **how)
        self._queues.append(name)
        return name

    def fanout(self, name: str, *queues: str) -> str:
        """Make a fanout exchange for queues, directly at the broker."""
        with self.rabbitmq.connect() as client:
            channel = client.open_channel()
            client.call(channel, "exchange.declare", exchange=name, type="fanout")
            for queue in queues:
                client.call(channel, "queue.bind", queue=queue, exchange=name)
        self._exchanges.append(name)
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clients.close()
        with self.rabbitmq.connect() as client:
            channel = client.open_channel()
            for queue in self._queues:
                client.call(channel, "queue.delete", queue=queue)
            for exchange in self._exchanges:
                client.call(channel, "exchange.delete", exchange=exchange)


def _seen(client: AmqpClient, *, since: int = 0) -> dict[int, list[tuple[Any, ...]]]:
    """Return the peer's methods by channel, without confirms, whose grouping varies."""
    channels: dict[int, list[tuple[Any, ...]]] = {}
    for event in client.events[since:]:
        if event.name not in {"basic.ack", "basic.nack"}:
            shown = event.name, dict(event.arguments), dict(event.properties), event.body
            channels.setdefault(event.channel, []).append(shown)
    return channels


def _answers(client: AmqpClient, channel: int, labels: dict[int, str]) -> dict[str, str]:
    """Return the outcome of each publish of a confirm channel, by the test's name for it."""
    confirmed = client.wait_for_confirms(channel)
    assert confirmed.again == []
    assert not set(confirmed.acked) & set(confirmed.nacked)
    return {labels[number]: "ack" for number in confirmed.acked} | {
        labels[number]: "nack" for number in confirmed.nacked
    }


def _error_of(scene: Scene, call: Callable[[], object]) -> str:
    with pytest.raises(AmqpError) as caught:
        call()
    return str(caught.value).replace(scene.address, "ADDRESS")


def opening(scene: Scene) -> Any:
    seen: list[Any] = []
    for how in ({}, {"frame_max": 4096, "heartbeat_s": 7}, {"capabilities": ()}):
        client = scene.connect(**how)
        client.open_channel()
        seen.append(_seen(client))
        client.close()
    seen.extend(_error_of(scene, lambda how=how: scene.connect(**how)) for how in ({"user": "x"}, {"vhost": "none"}))
    return seen


def _raw(scene: Scene, *sent: bytes, until: bytes | None = None) -> bytes:
    """Return the answers to bytes until the end of the stream, or until this. Each but the last waits for an answer."""
    host, _, port = scene.address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as sock:
        answer = b""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for each in sent[:-1]:
                sock.sendall(each)
                answer += sock.recv(4096)
            sock.sendall(sent[-1])
            while (until is None or until not in answer) and (part := sock.recv(4096)):
                answer += part
        return answer


def other_headers(scene: Scene) -> Any:
    return [
        _raw(scene, b"AMQP\x00\x01\x00\x00"),
        _raw(scene, b"AMQP\x00\x00\x09\x02"),
        _raw(scene, b"GET / HTTP/1.0\r\n\r\n"),
    ]


def older_header(scene: Scene) -> Any:
    host, _, port = scene.address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as sock:
        sock.sendall(b"AMQP\x01\x01\x00\x09")
        return sock.recv(11)[:1] + sock.recv(4096)[:4]


def confirms(scene: Scene) -> Any:
    free, client = scene.queue("free"), scene.connect()
    channel = client.open_channel(confirms=True)
    labels = {}
    for number in range(300):
        labels[client.publish(channel, free, b"%d" % number)] = f"free {number}"
        if scene.limited and number % 3 == 0:
            client.publish(channel, "refused", b"refused")
    answers = _answers(
        client, channel, labels | {number: "refused" for number in range(1, 401) if number not in labels}
    )
    refused = answers.pop("refused", "nack")
    assert refused == "nack"
    return answers, scene.rabbitmq.drain(free), _seen(client)


def returns(scene: Scene) -> Any:
    """A mandatory publish without a queue is returned, and then acked."""
    free, client = scene.queue("free"), scene.connect()
    channel, labels = client.open_channel(confirms=True), {}
    for number in range(20):
        labels[client.publish(channel, free, b"%d" % number, mandatory=True)] = f"free {number}"
        if scene.limited:
            client.publish(channel, "refused-missing", b"x", mandatory=True)
        gone = client.publish(
            channel, "free-missing", b"%d" % number, mandatory=True, message_id=f"m{number}", headers={"a": [1, "b"]}
        )
        labels[gone] = f"missing {number}"
    if scene.limited:
        labels |= {number: "refused" for number in range(1, 61) if number not in labels}
    answers = _answers(client, channel, labels)
    assert answers.pop("refused", "nack") == "nack"
    numbers = {label: number for number, label in labels.items()}
    acked: set[int] = set()
    for event in client.events:
        if event.name == "basic.ack":
            acked |= {number for number in labels if _acks(event, number)}
        elif event.name == "basic.return":
            assert numbers[f"missing {event.body.decode()}"] not in acked
    return answers, scene.rabbitmq.drain(free), _seen(client)


def _acks(event: Event, number: int) -> bool:
    return bool(event["delivery_tag"] == number or (event["multiple"] and event["delivery_tag"] > number))


def copies(scene: Scene) -> Any:
    """CC and BCC are destinations, too. BCC is removed before delivery."""
    one, two, three, client = *(scene.queue(f"free-{name}") for name in ("one", "two", "three")), scene.connect()
    channel, labels = client.open_channel(confirms=True), {}
    labels[client.publish(channel, one, b"all", headers={"CC": [two], "BCC": [three], "x": 1})] = "all"
    labels[client.publish(channel, one, b"cc", headers={"CC": [two]}, delivery_mode=2)] = "cc"
    refused = []
    if scene.limited:
        for headers in ({"CC": ["refused"]}, {"CC": [two], "BCC": [three, "refused"]}):
            refused.append(client.publish(channel, one, b"copied", headers=headers))
            labels[refused[-1]] = "refused"
    labels[client.publish(channel, one, b"last")] = "last"
    answers = _answers(client, channel, labels)
    assert answers.pop("refused", "nack") == "nack"
    assert scene.rabbitmq.drain("free-two") == [b"all", b"cc"]
    got = client.call(channel, "basic.get", queue=one, no_ack=True)
    assert got.name == "basic.get-ok"
    assert (got.body, got.properties) == (b"all", {"headers": {"CC": [two], "x": 1}})
    # CC must be an array.
    client.publish(channel, one, b"x", headers={"CC": two})
    closed = client.expect("channel.close", channel=channel)
    return answers, scene.rabbitmq.drain(one), scene.rabbitmq.drain(three), dict(closed.arguments), _seen(client)


def transactions(scene: Scene) -> Any:
    """Messages held in a transaction are stored when the commit is answered."""
    held, client = scene.queue("held"), scene.connect()
    channel = client.open_channel()
    client.call(channel, "tx.select")
    client.send(*(publish(channel, held, b"%d" % number) for number in range(_SOME_HELD)))
    before = scene.rabbitmq.messages(held)
    client.call(channel, "tx.commit")
    stored = scene.rabbitmq.messages(held)
    client.send(*(publish(channel, held, b"no") for _ in range(3)))
    client.call(channel, "tx.rollback")
    client.publish(channel, held, b"last")
    client.call(channel, "tx.commit")
    return before, stored, scene.rabbitmq.drain(held), _seen(client)


def refused_limit_in_a_transaction(scene: Scene) -> Any:
    """Messages that cannot be refused wait: the limit is kept, and nothing is lost."""
    over, client = scene.queue("over"), scene.connect()
    channel = client.open_channel()
    client.call(channel, "tx.select")
    client.send(*(publish(channel, over, b"%d" % number) for number in range(_SOME_HELD)))
    client.call(channel, "tx.commit")
    return scene.rabbitmq.drain(over), _seen(client)


def getting(scene: Scene) -> Any:
    """basic.get sees everything that its channel published before, held or not."""
    held, client = scene.queue("held"), scene.connect()
    channel = client.open_channel()
    assert client.call(channel, "basic.get", queue=held).name == "basic.get-empty"
    client.send(*(publish(channel, held, b"%d" % number, message_id=f"m{number}") for number in range(_SOME_HELD)))
    first = client.call(channel, "basic.get", queue=held)
    assert (first.name, first.body, first["message_count"]) == ("basic.get-ok", b"0", _SOME_HELD - 1)
    client.send(method(channel, "basic.reject", delivery_tag=first["delivery_tag"], requeue=True))
    again = client.call(channel, "basic.get", queue=held)
    assert again["redelivered"]
    client.send(method(channel, "basic.ack", delivery_tag=again["delivery_tag"]))
    client.call(channel, "queue.purge", queue=held)
    assert client.call(channel, "basic.get", queue=held).name == "basic.get-empty"
    return _seen(client)


def channel_errors(scene: Scene) -> Any:
    free, client = scene.queue("free"), scene.connect()
    other = client.open_channel()
    errors: list[Any] = []
    for sent in (
        lambda channel: publish(channel, "key", b"x", exchange="missing"),
        lambda channel: method(channel, "queue.declare", queue=free, durable=True),
        lambda channel: method(channel, "basic.ack", delivery_tag=99),
        lambda channel: method(channel, "basic.consume", queue="missing"),
        lambda channel: method(channel, "queue.declare", queue="amq.mine"),
    ):
        channel, labels = client.open_channel(confirms=True), {}
        labels[client.publish(channel, free, b"before")] = "before"
        if scene.limited:
            labels[client.publish(channel, "refused", b"before")] = "refused"
        answers = _answers(client, channel, labels)
        assert answers.pop("refused", "nack") == "nack"
        client.send(sent(channel))
        errors.append((answers, dict(client.expect("channel.close", channel=channel).arguments)))
        # The number is free again, and its confirms start over.
        client.open_channel(channel, confirms=True)
        client.publish(channel, free, b"after")
        errors.append(client.wait_for_confirms(channel).acked)
        client.call(channel, "channel.close", reply_code=200)
    client.call(other, "queue.declare", queue=free, passive=True)
    return errors, _seen(client)


def closing_with_publishes_held(scene: Scene) -> Any:
    """A channel that the client opens again waits for the publishes of the one it closed."""
    held, client = scene.queue("held"), scene.connect()
    channel = client.open_channel()
    client.send(*(publish(channel, held, b"%d" % number) for number in range(_SOME_HELD)))
    client.call(channel, "channel.close", reply_code=200)
    client.call(channel, "channel.open")
    client.call(channel, "queue.declare", queue=held, passive=True)
    stored = scene.rabbitmq.messages(held)
    return stored, scene.rabbitmq.drain(held), _seen(client)


def exclusive_queues(scene: Scene) -> Any:
    mine, other = scene.connect(), scene.connect()
    channel = mine.open_channel()
    mine.call(channel, "queue.declare", queue="free-exclusive", exclusive=True)
    mine.call(channel, "queue.declare", queue="free-once", auto_delete=True)
    mine.call(channel, "basic.consume", queue="free-exclusive", consumer_tag="c")
    mine.publish(channel, "free-exclusive", b"x")
    assert mine.expect("basic.deliver").body == b"x"
    consume = _error_of(
        scene, lambda: other.call(other.open_channel(), "basic.consume", queue="free-exclusive", consumer_tag="d")
    )
    mine.call(channel, "queue.delete", queue="free-exclusive")
    mine.call(channel, "queue.delete", queue="free-once")
    return consume, _seen(mine), _seen(other)


def replies(scene: Scene) -> Any:
    asking, answering, queue = scene.connect(), scene.connect(), scene.queue("free")
    channel, answers = asking.open_channel(), answering.open_channel()
    asking.call(channel, "basic.consume", queue="amq.rabbitmq.reply-to", no_ack=True, consumer_tag="c")
    answering.call(answers, "basic.consume", queue=queue, no_ack=True, consumer_tag="c")
    asked = []
    for number in range(20):
        asking.publish(channel, queue, b"%d" % number, reply_to="amq.rabbitmq.reply-to", correlation_id=str(number))
        question = answering.expect("basic.deliver")
        answering.publish(answers, question.properties["reply_to"], question.body + b"!", correlation_id=str(number))
        reply = asking.expect("basic.deliver")
        asked.append((reply.body, reply.properties))
    return asked


def contents_interleaved(scene: Scene) -> Any:
    """Frames of several channels' contents interleave, including those of refused messages."""
    free, client = scene.queue("free"), scene.connect(frame_max=4096)
    first, second, third = (client.open_channel(confirms=True) for _ in range(3))
    labels: dict[int, dict[int, str]] = {first: {}, second: {}, third: {}}
    bodies = {channel: bytes([channel]) * 20_000 for channel in (first, second, third)}
    for number in range(30):
        queues = {first: free, second: "refused" if scene.limited else None, third: free}
        frames = {}
        for channel, queue in queues.items():
            if queue is not None:
                labels[channel][client.number_publish(channel)] = f"{number}"
                frames[channel] = split_frames(publish(channel, queue, bodies[channel], frame_max=4096))
        turns = [frames[channel][turn : turn + 1] for turn in range(9) for channel in frames]
        client.send(*(each for turn in turns for each in turn))
    assert set(_answers(client, second, labels[second]).values()) <= {"nack"}
    confirmed = [_answers(client, channel, labels[channel]) for channel in (first, third)]
    stored = scene.rabbitmq.drain(free)
    return confirmed, sorted(stored), len(stored)


def bodies_of_all_sizes(scene: Scene) -> Any:
    """Empty bodies, bodies of about a frame's size, and large ones, out and back."""
    free, client = scene.queue("free"), scene.connect()
    channel, labels = client.open_channel(confirms=True, prefetch=1000), {}
    sizes = [0, 1, 131_063, 131_064, 131_065, 262_128, 262_129, 1_000_000, 0, 3_000_000]
    for number, size in enumerate(sizes):
        labels[client.publish(channel, free, bytes([number]) * size, app_id=str(number))] = str(number)
        if scene.limited:
            labels[client.publish(channel, "refused", bytes(size))] = "refused"
    answers = _answers(client, channel, labels)
    assert answers.pop("refused", "nack") == "nack"
    client.call(channel, "basic.consume", queue=free, consumer_tag="c", no_ack=True)
    delivered = [client.expect("basic.deliver") for _ in sizes]
    assert [event.body for event in delivered] == [bytes([number]) * size for number, size in enumerate(sizes)]
    return answers, [event.properties for event in delivered]


def consuming(scene: Scene) -> Any:
    """Prefetch, acks of several at once, nacks, recover and cancel, from two consumers of one channel."""
    free, client = scene.queue("free"), scene.connect()
    channel = client.open_channel(prefetch=5)
    client.call(channel, "basic.consume", queue=free, consumer_tag="one")
    client.call(channel, "basic.consume", queue=free, consumer_tag="two")
    for number in range(10):
        client.publish(channel, free, b"%d" % number)
    first = [client.expect("basic.deliver") for _ in range(10)]
    client.send(method(channel, "basic.ack", delivery_tag=4, multiple=True))
    client.send(method(channel, "basic.nack", delivery_tag=6, multiple=True, requeue=True))
    again = [client.expect("basic.deliver") for _ in range(2)]
    assert all(event["redelivered"] for event in again)
    client.call(channel, "basic.recover", requeue=True)
    last = [client.expect("basic.deliver") for _ in range(6)]
    client.send(method(channel, "basic.ack", delivery_tag=0, multiple=True))
    client.call(channel, "basic.cancel", consumer_tag="one")
    client.call(channel, "basic.cancel", consumer_tag="two")
    client.call(channel, "channel.close", reply_code=200)
    got = [(event.body, event["redelivered"]) for event in (*first, *again)]
    return got, sorted(event.body for event in last), scene.rabbitmq.drain(free)


def settling_while_deliveries_wait(scene: Scene) -> Any:
    """An ack of all deliveries covers only those that were sent to the client: none is lost."""
    seen = []
    for settle in (
        method(1, "basic.ack", delivery_tag=0, multiple=True),
        method(1, "basic.nack", delivery_tag=0, multiple=True, requeue=True),
        method(1, "basic.recover", requeue=True),
    ):
        slow, bodies = scene.queue("slow"), {b"%d" % number for number in range(20)}
        with scene.rabbitmq.connect() as publisher:
            channel = publisher.open_channel(confirms=True)
            for body in bodies:
                publisher.publish(channel, slow, body)
            publisher.wait_for_confirms(channel)
        client = scene.connect()
        channel = client.open_channel(prefetch=20)
        client.call(channel, "basic.consume", queue=slow, consumer_tag="c")
        # Directly all are there at once, and through Sluice as many as pass in a second.
        acked = {client.expect("basic.deliver").body for _ in range(10 if scene.limited else 20)}
        client.send(settle)
        if settle[9:11] == b"\x00\x50":
            client.call(channel, "basic.qos", prefetch_count=20)
            # Deliveries in flight were sent, too.
            acked.update(event.body for event in client.events if event.name == "basic.deliver")
        else:
            while acked < bodies:
                acked.add(client.expect("basic.deliver").body)
            acked.clear()
        client.abort()
        for _ in range(100):
            if scene.rabbitmq.messages(slow) == len(bodies - acked):
                break
            time.sleep(0.1)
        seen.append(acked | set(scene.rabbitmq.drain(slow)) == bodies)
    return seen


def headers_that_have_grown(scene: Scene) -> Any:
    """A dead-lettered message has a header above frame_max, which the broker sends as it is."""
    dead = scene.queue("free-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 1}
    alive, client = scene.queue("free-alive", arguments=arguments), scene.connect()
    channel = client.open_channel(confirms=True)
    client.publish(channel, alive, b"x", headers={"long": "x" * 130_900})
    client.call(channel, "basic.consume", queue=dead, consumer_tag="c", no_ack=True)
    headers = client.expect("basic.deliver").properties["headers"]
    return len(headers["long"]), sorted(headers)


def exchanges(scene: Scene) -> Any:
    one, two, client = scene.queue("free-one"), scene.queue("free-two"), scene.connect()
    fanout = scene.fanout("events", one, two)
    channel, labels = client.open_channel(confirms=True), {}
    for number in range(50):
        labels[client.publish(channel, "eu.created", b"%d" % number, exchange=fanout)] = str(number)
    return _answers(client, channel, labels), scene.rabbitmq.drain(one), scene.rabbitmq.drain(two), _seen(client)


def framing_errors(scene: Scene) -> Any:
    """Invalid or misplaced frames end the connection with the broker's code."""
    free = scene.queue("free")
    codes = []
    for bad in (
        frame(1, 1, b"\0\x14\0\x0a")[:-1] + b"\0",
        frame(2, 1, b"x" * 20),
        publish(1, free, b"x")[: -len(content(1, b"x"))] + publish(1, free, b"y"),
        b"\x01\0\0\xff\xff\xff\xff" + b"x" * 1000,
    ):
        client = scene.connect()
        client.open_channel()
        client.send(bad)
        codes.append(client.expect("connection.close")["reply_code"])
        client.abort()
    return codes


def unknown_methods(scene: Scene) -> Any:
    ends = []
    for payload in (b"\0\x3c\x03\xe7", b"\x03\xe7\0\x0a"):
        client = scene.connect()
        client.open_channel()
        client.send(frame(1, 1, payload))
        client.wait_for_end()
        ends.append([dict(event.arguments) for event in client.events if event.name == "connection.close"])
    return ends


def never_opened(scene: Scene) -> Any:
    client = scene.connect()
    client.send(publish(7, "free", b"x"))
    closed = client.expect("connection.close")
    client.wait_for_end()
    return dict(closed.arguments)


_SCENARIOS = [
    *(opening, other_headers, older_header, confirms, returns, copies, transactions, refused_limit_in_a_transaction),
    *(getting, channel_errors, closing_with_publishes_held, exclusive_queues, replies, contents_interleaved),
    *(
        bodies_of_all_sizes,
        consuming,
        settling_while_deliveries_wait,
        headers_that_have_grown,
        exchanges,
        framing_errors,
        unknown_methods,
        never_opened,
    ),
]


@pytest.mark.parametrize("scenario", _SCENARIOS, ids=[scenario.__name__ for scenario in _SCENARIOS])
def test_a_client_sees_the_same_as_directly(
    scenario: Callable[[Scene], Any], rabbitmq: RabbitMQ, sluice: Sluice
) -> None:
    with Scene(rabbitmq.address, rabbitmq, limited=False) as scene:
        direct = scenario(scene)
    with Scene(sluice.routes[0].listen, rabbitmq, limited=True) as scene:
        through = scenario(scene)
    assert through == direct


# A publish: exchange, routing key, whether it passes.
_PUBLISHES = {
    "/": [
        ("", "refused", False),
        ("", "tenant/refused", True),
        ("", b"a/b%c\xe2\x82\xac\xff", False),
        ("", b"a/b%c\xe2\x82\xac", True),
        ("refused", "key", False),
        ("events", "key", True),
        ("events", "refused.key", False),
        ("events", "refused", True),
    ],
    "tenant": [("", "refused", False), ("", "free", True), ("refused", "key", True), ("events", "refused.key", True)],
}


@pytest.fixture
def tenant(rabbitmq: RabbitMQ) -> str:
    rabbitmq.ctl("add_vhost", "tenant")
    rabbitmq.ctl("set_permissions", "--vhost", "tenant", "guest", ".*", ".*", ".*")
    return "tenant"


def test_a_publish_is_limited_by_its_destination(rabbitmq: RabbitMQ, sluice: Sluice, tenant: str) -> None:
    for vhost in ("/", tenant):
        with AmqpClient(sluice.routes[0].listen, vhost=vhost) as client:
            channel, passed = client.open_channel(confirms=True), {}
            for exchange in ("refused", "events"):
                client.call(channel, "exchange.declare", exchange=exchange, type="topic")
            for exchange, routing_key, passes in _PUBLISHES[vhost]:
                passed[client.publish(channel, routing_key, exchange=exchange)] = passes
            confirmed = client.wait_for_confirms(channel)
            assert {number: number in confirmed.acked for number in passed} == passed, vhost


_SASL_1_0, _AMQP_1_0 = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
_NULL, _NO, _ZERO, _HUNDRED = b"\x40", b"\x42", b"\x43", b"\x52\x64"
# The beginning of the disposition that reports a message as stored.
_DISPOSITION_1_0 = b"\x00\x53\x15"


def _text_1_0(text: bytes, kind: bytes = b"\xa1") -> bytes:
    return kind + bytes([len(text)]) + text


def _list_1_0(code: int, *fields: bytes) -> bytes:
    listed = b"".join(fields)
    return b"\x00\x53" + bytes([code, 0xC0, len(listed) + 1, len(fields)]) + listed


def _frame_1_0(kind: int, body: bytes) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, 0) + body


def _message_of_1_0(queue: str) -> bytes:
    """Return everything an AMQP 1.0 client writes after its first header to publish a message to a queue."""
    target = _list_1_0(0x29, _text_1_0(b"/queues/" + queue.encode()))
    attach = (_text_1_0(b"link"), _ZERO, _NO, _NULL, _NULL, _list_1_0(0x28), target, _NULL, _NULL, _ZERO)
    message = b"\x00\x53\x75" + _text_1_0(b"x", b"\xa0")
    return b"".join(
        (
            _frame_1_0(1, _list_1_0(0x41, _text_1_0(b"PLAIN", b"\xa3"), _text_1_0(b"\x00guest\x00guest", b"\xa0"))),
            _AMQP_1_0,
            _frame_1_0(0, _list_1_0(0x10, _text_1_0(b"container"))),
            _frame_1_0(0, _list_1_0(0x11, _NULL, _ZERO, _HUNDRED, _HUNDRED)),
            _frame_1_0(0, _list_1_0(0x12, *attach)),
            _frame_1_0(0, _list_1_0(0x14, _ZERO, _ZERO, _text_1_0(b"tag", b"\xa0"), _ZERO, _NO) + message),
        )
    )


@pytest.mark.parametrize("waits", [False, True], ids=["at_once", "after_the_answer"])
def test_amqp_1_0_gets_the_answer_and_nothing_passes(rabbitmq: RabbitMQ, sluice: Sluice, *, waits: bool) -> None:
    """RabbitMQ speaks it from 4.0 on, on the same port. 3 answers with the header of AMQP 0.9.1 and closes."""
    with rabbitmq.connect() as client:
        spoken = not client.events[0]["server_properties"]["version"].startswith("3.")
    answers, stored = [], []
    for address, limited in ((rabbitmq.address, False), (sluice.routes[0].listen, True)):
        with Scene(address, rabbitmq, limited=limited) as scene:
            queue = scene.queue("free-1-0")
            message = _message_of_1_0(queue)
            sent = (_SASL_1_0, message) if waits else (_SASL_1_0 + message,)
            answers.append(_raw(scene, *sent, until=_DISPOSITION_1_0))
            stored.append(rabbitmq.drain(queue))
    direct, through = answers
    assert direct[:8] == (_SASL_1_0 if spoken else PROTOCOL_HEADER)
    # Data written together with the header is part of the answer.
    assert len(through) >= 8
    assert direct.startswith(through)
    assert (_AMQP_1_0 in direct, _AMQP_1_0 in through) == (spoken, False)
    assert stored == [[b"x"] if spoken else [], []]
