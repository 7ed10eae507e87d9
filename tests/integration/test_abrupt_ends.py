"""Everything a client sent before it left, by any kind of end, is stored, even if Sluice had not read it or was writing
to the client.
"""

import ctypes
import fcntl
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable

import pytest
from harness.amqp import AmqpClient, publish
from harness.amqp_one import AmqpOneClient, message
from harness.artemis import Artemis
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send
from harness.paths import ROOT
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_TIMEOUT_S = 60.0
_BODY = bytes(4096)
_AMQP = """
[[listeners]]
name = "main"
listen = "{listen}"
broker = "{broker}"
protocol = "amqp091"
options = {{ max_waiting_bytes = 16384 }}

[[limits]]
kind = "queue"
name = "held*"
rate = 150
burst_s = 0.1

[[limits]]
kind = "queue"
name = "spooled*"
rate = 150
burst_s = 0.1
action = "delay"
spool = true
"""


@pytest.fixture(scope="module")
def amqp(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    listen = f"127.0.0.1:{free_port()}"
    config = _AMQP.format(listen=listen, broker=rabbitmq.address)
    return start_sluice(routes=(Route(listen, rabbitmq.address),), config=config, covered=False)


def _wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.1)


def _declare(rabbitmq: RabbitMQ, *queues: str) -> None:
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for queue in queues:
            client.call(channel, "queue.declare", queue=queue)


def _unsent(sock: socket.socket) -> int:
    """Return the number of bytes that the other end's kernel does not have yet."""
    return int(struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0])


def _reset(sock: socket.socket) -> None:
    """Close so that the kernel discards unsent data and resets the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def _half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


# --- AMQP 0.9.1 ---------------------------------------------------------------------------------------


_CHILD = """
import sys
from harness.amqp import AmqpClient, publish
client = AmqpClient(sys.argv[1], heartbeat_s=int(sys.argv[3]), beating=False)
channel = client.open_channel()
for number in range(int(sys.argv[4])):
    client.send(publish(channel, sys.argv[2], b"%d " % number + bytes(4096)))
print("sent", flush=True)
if sys.argv[5] == "stays":
    sys.stdin.read()
import os
os._exit(0)
"""


def _child(address: str, queue: str, *, heartbeat_s: int, messages: int, end: str) -> subprocess.Popen[str]:
    arguments = [address, queue, str(heartbeat_s), str(messages), "stays" if end == "kill" else "ends"]
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "integration"), str(ROOT)])},
    )


@pytest.mark.parametrize(
    ("where", "end", "heartbeat_s"),
    [
        ("held", "kill", 2),
        ("spooled", "exit", 0),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in itertools.product(("held", "spooled"), ("exit", "kill"), (0, 2))
            if each not in {("held", "kill", 2), ("spooled", "exit", 0)}
        ),
    ],
)
def test_all_that_a_process_published_is_stored_when_it_has_ended(
    amqp: Sluice, rabbitmq: RabbitMQ, where: str, end: str, heartbeat_s: int
) -> None:
    queue, messages = f"{where}-{end}-{heartbeat_s}", 600
    _declare(rabbitmq, queue)
    before = amqp.metrics().total("sluice_lost_bytes_total")
    with _child(amqp.routes[0].listen, queue, heartbeat_s=heartbeat_s, messages=messages, end=end) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "sent\n"
        if end == "kill":
            child.send_signal(signal.SIGKILL)
    _wait_until(lambda: rabbitmq.messages(queue) >= messages)
    assert [int(body.split()[0]) for body in rabbitmq.drain(queue)] == list(range(messages))
    assert amqp.metrics().total("sluice_lost_bytes_total") == before


@pytest.mark.parametrize("where", ["held", "spooled"])
def test_messages_before_a_reset_are_stored(amqp: Sluice, rabbitmq: RabbitMQ, where: str) -> None:
    queue, messages = f"{where}-reset", 60
    _declare(rabbitmq, queue)
    client = AmqpClient(amqp.routes[0].listen)
    channel = client.open_channel()
    client.send(*(publish(channel, queue, b"%d " % number + bytes(600)) for number in range(messages)))
    _wait_until(lambda: not _unsent(client._socket))
    _reset_shared(client._socket)
    _wait_until(lambda: rabbitmq.messages(queue) >= messages)
    client.abort()
    assert rabbitmq.messages(queue) == messages


def _reset_shared(sock: socket.socket) -> None:
    """Reset a connection although another thread waits for the socket, by connecting it to AF_UNSPEC (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    unspecified = struct.pack("H14x", socket.AF_UNSPEC)
    assert libc.connect(sock.fileno(), unspecified, len(unspecified)) == 0


@pytest.mark.parametrize("heartbeat_s", [pytest.param(0, marks=pytest.mark.long), 2])
def test_half_closed_client_still_receives_and_all_is_stored(
    amqp: Sluice, rabbitmq: RabbitMQ, heartbeat_s: int
) -> None:
    queue, messages = f"held-half-{heartbeat_s}", 400
    _declare(rabbitmq, queue)
    client = AmqpClient(amqp.routes[0].listen, heartbeat_s=heartbeat_s, beating=False)
    channel = client.open_channel()
    client.send(*(publish(channel, queue, _BODY) for _ in range(messages)))
    _half_close(client._socket)
    _wait_until(lambda: rabbitmq.messages(queue) >= messages)
    assert rabbitmq.messages(queue) == messages
    client.abort()


def test_deliveries_to_a_client_that_has_left_destroy_nothing_that_it_sent(amqp: Sluice, rabbitmq: RabbitMQ) -> None:
    queue, work, messages = "held-consumer", "work-consumer", 400
    _declare(rabbitmq, queue, work)
    with rabbitmq.connect() as feeding:
        client = AmqpClient(amqp.routes[0].listen)
        consumer, channel = client.open_channel(), client.open_channel()
        client.call(consumer, "basic.consume", queue=work)
        client.send(*(publish(channel, queue, _BODY) for _ in range(messages)))
        theirs = feeding.open_channel()
        # Sluice has then stopped reading. Earlier, the broker itself loses the client's unread data.
        _wait_until(lambda: rabbitmq.messages(queue) > 20)
        client.abort()
        for _ in range(50):
            feeding.publish(theirs, work, b"x")
            time.sleep(0.02)
        _wait_until(lambda: rabbitmq.messages(queue) >= messages)
    assert rabbitmq.messages(queue) == messages
    _wait_until(lambda: rabbitmq.messages(work) >= 50)
    assert rabbitmq.messages(work) == 50


@pytest.mark.long
def test_paused_client_still_gets_heartbeats_and_deliveries(amqp: Sluice, rabbitmq: RabbitMQ) -> None:
    queue, work, messages = "held-live", "work-live", 1500
    _declare(rabbitmq, queue, work)
    with rabbitmq.connect() as feeding, AmqpClient(amqp.routes[0].listen, heartbeat_s=2, beating=False) as client:
        consumer, channel = client.open_channel(), client.open_channel()
        client.call(consumer, "basic.consume", queue=work, no_ack=True)
        client.send(*(publish(channel, queue, _BODY) for _ in range(messages)))
        theirs = feeding.open_channel()
        for _ in range(5):
            feeding.publish(theirs, work, b"x")
            client.expect("basic.deliver", timeout_s=2)
            time.sleep(0.5)
        time.sleep(3)
        assert client.heartbeats > 0
        assert client.end is None
        _wait_until(lambda: rabbitmq.messages(queue) >= messages)
    assert rabbitmq.messages(queue) == messages


# --- RocketMQ -----------------------------------------------------------------------------------------


_ROCKETMQ = """
[[limits]]
kind = "topic"
name = "held*"
rate = 40
burst_s = 0.1
action = "delay"

[[limits]]
kind = "topic"
name = "spooled*"
rate = 40
burst_s = 0.1
action = "delay"
spool = true
"""


@pytest.fixture(scope="module")
def rocketmq_sluice(start_sluice: StartSluice, broker: EmbeddedBroker) -> Sluice:
    return start_sluice(routes=(broker.route(),), config=_ROCKETMQ, covered=False)


@pytest.mark.parametrize(
    ("topic", "end"),
    [
        *(("held", "close"), ("spooled", "reset"), ("free", "unread")),
        *(
            pytest.param(topic, end, marks=pytest.mark.long)
            for topic, end in (("held", "reset"), ("held", "unread"), ("spooled", "close"), ("spooled", "unread"))
        ),
    ],
)
def test_oneways_of_a_client_that_leaves_are_stored(
    rocketmq_sluice: Sluice, broker: EmbeddedBroker, topic: str, end: str
) -> None:
    topic, messages = f"{topic}-{end}", 60
    client = FrameClient(rocketmq_sluice.routes[0].listen)
    client.ask(send(topic))
    client.write(*(send(topic, body=bytes(500), oneway=True) for _ in range(messages)))
    if end == "unread":
        client.write(*(send("free-answered", body=b"x") for _ in range(5)))
        sock = client._socket
        _wait_until(lambda: struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))[0])
    _wait_until(lambda: not _unsent(client._socket))
    (_reset if end == "reset" else socket.socket.close)(client._socket)
    _wait_until(lambda: broker.stored(topic) >= messages + 1)
    assert broker.stored(topic) == messages + 1


# --- AMQP 1.0 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end", ["reset", *(pytest.param(end, marks=pytest.mark.long) for end in ("close", "half-close"))]
)
def test_settled_transfers_of_a_client_that_leaves_are_stored(
    start_sluice: StartSluice, artemis: Artemis, end: str
) -> None:
    route = Route(f"127.0.0.1:{free_port()}", artemis.address)
    sluice = start_sluice(routes=(route,), protocol="amqp10", limits=("queue:ends*=100/s",), covered=False)
    queue, messages = f"ends-{end}", 60
    client = AmqpOneClient(sluice.routes[0].listen, idle_s=1)
    sender = client.attach_sender(queue, settled=True)
    for number in range(messages):
        sender.wait_for_credit()
        sender.send(message(b"%d" % number))
    sock = client._socket
    _wait_until(lambda: not _unsent(sock))
    if end == "reset":
        _reset_shared(sock)
    elif end == "half-close":
        _half_close(sock)
    else:
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
    client.abort()
    with AmqpOneClient(artemis.address) as reading:
        receiver = reading.attach_receiver(queue)
        receiver.flow(messages + 1)
        for _ in range(messages):
            receiver.receive(timeout_s=10)
