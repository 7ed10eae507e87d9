"""The demos' real brokers, with their load generators and clients."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Final

import trio
from harness import amqp
from harness.clients import grpc_client
from harness.grpc_calls import GrpcCalls, send_request
from harness.paths import rabbitmq_classpath, rocketmq_classpath
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ
from harness.rocketmq import BROKER_HOST, RocketMQ, java
from harness.rocketmq_proxy import RocketMQProxy
from harness.sidecar import Route

from admin.config.addresses import Endpoint
from admin.demo.producer import Client, Outcome, Producer
from proxy.protocols.rocketmq_grpc.messages import OK, read_answer

#: Where Sluice listens. All addresses of 127/8 are local.
CLIENTS_HOST: Final = "127.0.0.2"
#: The load generator gets the CPU time that broker and Sluice do not use.
_NICE: Final = ("nice", "-n", "15")


class FloodedBroker(ABC):
    """A running broker.

    Attributes:
        name: name of the product.
        protocol: protocol of the listeners.
        kind: kind of the limited resources.
        generator: description of the load generator.
        client: class of a client at a steady rate.
        last_answers_s: how long to wait for answers after the last message, in seconds.
        address: the broker's own address.
        clients: the address for clients.
        routes: Sluice's listeners.
        join_in: how other clients can send.
    """

    name: ClassVar[str]
    protocol: ClassVar[str]
    kind: ClassVar[str]
    generator: ClassVar[str]
    client: ClassVar[type[Client]]
    last_answers_s: ClassVar[float] = 5.0
    address: Endpoint
    clients: Endpoint
    routes: Sequence[Route]
    join_in: str

    @abstractmethod
    def __init__(self, folder: Path, stack: ExitStack, *, behind_sluice: bool) -> None: ...

    @abstractmethod
    def create(self, names: Sequence[str]) -> None:
        """Create topics or queues."""

    @abstractmethod
    def stored(self, name: str) -> int:
        """Return the number of messages at the broker."""

    @abstractmethod
    def flood(self, name: str) -> ManagedProcess:
        """Start the load generator, which sends as fast as the broker answers."""

    def failed(self, lines: Sequence[str]) -> int:
        """Return how many messages the load generator could not send, according to its output."""
        del lines
        return 0


class FloodedRocketMQ(FloodedBroker):
    """A name server, and a broker that answers once a message is on disk."""

    name, protocol, kind = "RocketMQ", "rocketmq", "topic"
    generator = "RocketMQ's own benchmark.Producer"
    client = Producer
    SETTINGS: ClassVar[Mapping[str, str]] = {
        "flushDiskType": "SYNC_FLUSH",
        "asyncSendEnable": "false",
        "waitTimeMillsInSendQueue": "200",
        "osPageCacheBusyTimeOutMills": "1000",
    }

    def __init__(self, folder: Path, stack: ExitStack, *, behind_sluice: bool) -> None:
        self._folder = folder
        # RocketMQ looks here first. By default, each refused message would log a stack trace.
        (folder / "rmq.logback-test.xml").write_text("<configuration/>\n", encoding="utf-8")
        host = CLIENTS_HOST if behind_sluice else BROKER_HOST
        started = RocketMQ(folder / "rocketmq", advertised_host=host, settings=self.SETTINGS)
        self._broker = stack.enter_context(started)
        self.address = Endpoint(BROKER_HOST, started.port)
        self.clients = Endpoint(host, started.port)
        ports = (started.port, started.vip_port)
        self.routes = [Route(f"{CLIENTS_HOST}:{port}", f"{BROKER_HOST}:{port}") for port in ports]
        self.join_in = f"any RocketMQ client, on a topic of its own; name server {started.namesrv}"

    def create(self, names: Sequence[str]) -> None:
        """Create the topics."""
        for name in names:
            self._broker.create_topic(name)

    def stored(self, name: str) -> int:
        """Ask the broker."""
        return self._broker.stored_messages(name)

    def flood(self, name: str) -> ManagedProcess:
        """Start the benchmark with 512 threads. It prints a line per second."""
        command = [
            *_NICE,
            *java(rocketmq_classpath(), self._folder, "-Xmx512m", f"-Drocketmq.client.logRoot={self._folder}"),
            *("org.apache.rocketmq.example.benchmark.Producer", "-n", self._broker.namesrv, "-t", name),
            *("-w", "512", "-s", "128", "-ri", "1000"),
        ]
        return ManagedProcess("flood", command, log=self._folder / "flood.log", cwd=self._folder)

    def failed(self, lines: Sequence[str]) -> int:
        """Read the last report."""
        found = re.findall(r"Send Failed: (\d+) \| Response Failed: (\d+)", "\n".join(lines))
        return sum(map(int, found[-1])) if found else 0


class FloodedRocketMQProxy(FloodedBroker):
    """The same broker, in one process with RocketMQ's Proxy, for gRPC clients."""

    name, protocol, kind = "RocketMQ 5", "rocketmq-grpc", "topic"
    generator = "RocketMQ 5's own Java client, with 128 threads"

    def __init__(self, folder: Path, stack: ExitStack, *, behind_sluice: bool) -> None:
        self._folder = folder
        self._proxy = stack.enter_context(RocketMQProxy(folder / "rocketmq", FloodedRocketMQ.SETTINGS))
        self.address = Endpoint(BROKER_HOST, self._proxy.grpc_port)
        # The Proxy listens on all addresses.
        port = free_port()
        self.clients = Endpoint(CLIENTS_HOST, port) if behind_sluice else self.address
        self.routes = [Route(f"{CLIENTS_HOST}:{port}", self._proxy.grpc)]
        self.join_in = f"any client of RocketMQ 5, on a topic of its own; endpoints {self.clients}"

    def create(self, names: Sequence[str]) -> None:
        """Create the topics."""
        for name in names:
            self._proxy.create_topic(name, message_type="NORMAL")

    def stored(self, name: str) -> int:
        """Ask the broker."""
        return self._proxy.stored_messages(name)

    def flood(self, name: str) -> ManagedProcess:
        """Start 128 threads, each of which sends as fast as the broker answers."""
        arguments = (str(self.clients), "plain", "1", "100000", *[name] * 128)
        command = [*_NICE, *grpc_client("java", "GrpcFlatOut", *arguments, home=self._folder)]
        return ManagedProcess("flood", command, log=self._folder / "flood.log", cwd=self._folder)


class FloodedRabbitMQ(FloodedBroker):
    """A broker with little memory, as on a small shared machine, and without consumers."""

    name, protocol, kind = "RabbitMQ", "amqp091", "queue"
    generator = "RabbitMQ's own PerfTest, with publisher confirms"
    #: The broker confirms nothing during a memory alarm.
    last_answers_s = 60.0

    def __init__(self, folder: Path, stack: ExitStack, *, behind_sluice: bool) -> None:
        self._folder = folder
        settings = {"vm_memory_high_watermark.absolute": "256MB", "disk_free_limit.absolute": "50MB"}
        self._broker = stack.enter_context(RabbitMQ(folder / "rabbitmq", settings=settings))
        self.address = Endpoint(self._broker.host, self._broker.port)
        self.clients = Endpoint(CLIENTS_HOST if behind_sluice else self._broker.host, self._broker.port)
        self.routes = [Route(f"{CLIENTS_HOST}:{self._broker.port}", self._broker.address)]
        self.join_in = f"any AMQP 0.9.1 client, on a queue of its own; amqp://guest:guest@{self.clients}"

    def create(self, names: Sequence[str]) -> None:
        """Create the queues."""
        with self._broker.connect() as client:
            channel = client.open_channel()
            for name in names:
                client.call(channel, "queue.declare", queue=name, durable=True)

    def stored(self, name: str) -> int:
        """Ask for the number of ready messages."""
        with self._broker.connect() as client:
            channel = client.open_channel()
            return int(client.call(channel, "queue.declare", queue=name, passive=True)["message_count"])

    def flood(self, name: str) -> ManagedProcess:
        """Start PerfTest with four publishers, each with up to 500 unconfirmed messages."""
        command = [
            *_NICE,
            *java(rabbitmq_classpath(), self._folder, "-Xmx512m"),
            *("com.rabbitmq.perf.PerfTest", "--uri", f"amqp://{self.clients}", "--predeclared", "--exchange", ""),
            *("--routing-key", name, "--queue", name, "--flag", "persistent", "--consumers", "0"),
            *("--producers", "4", "--confirm", "500", "--size", "1024"),
        ]
        return ManagedProcess("flood", command, log=self._folder / "flood.log", cwd=self._folder)


class Publisher(Client):
    """An AMQP 0.9.1 client with publisher confirms."""

    _reader: amqp.EventReader

    async def greet(self, stream: trio.SocketStream) -> None:
        """Open a connection and a channel with confirms."""
        self._reader = amqp.EventReader()
        start_ok = amqp.method(
            0,
            "connection.start-ok",
            client_properties={"capabilities": {"publisher_confirms": True, "basic.nack": True}},
            mechanism="PLAIN",
            response="\0guest\0guest",
            locale="en_US",
        )
        tune_ok = amqp.method(0, "connection.tune-ok", channel_max=2047, frame_max=131_072)
        steps = (
            (amqp.PROTOCOL_HEADER, "connection.start"),
            (start_ok, "connection.tune"),
            (tune_ok + amqp.method(0, "connection.open", virtual_host="/"), "connection.open-ok"),
            (amqp.method(1, "channel.open"), "channel.open-ok"),
            (amqp.method(1, "confirm.select"), "confirm.select-ok"),
        )
        for request, expected in steps:
            await stream.send_all(request)
            names: list[str] = []
            while expected not in names:
                if not (data := await stream.receive_some(65_536)):
                    raise OSError(f"the broker closed the connection before {expected}; after {names}")
                names += [event.name for event in self._reader.events(data)]

    def message(self, number: int) -> bytes:
        """Return a persistent message."""
        del number
        return amqp.publish(1, self.topic, b"sluice demo " * 8, delivery_mode=2)

    def answers(self, data: bytearray) -> Iterable[tuple[int, Outcome]]:
        """Read confirms of one number, or of all up to it."""
        found: list[tuple[int, Outcome]] = []
        for event in self._reader.events(bytes(data)):
            if event.name in {"basic.ack", "basic.nack"}:
                number, outcome = event["delivery_tag"], "passed" if event.name == "basic.ack" else "refused"
                found += [(each, outcome) for each in (self.waiting_up_to(number) if event["multiple"] else [number])]
        data.clear()
        return found


class GrpcProducer(Client):
    """A RocketMQ 5 producer without routes and telemetry."""

    _calls: GrpcCalls

    async def greet(self, stream: trio.SocketStream) -> None:
        """Start HTTP/2."""
        self._calls = GrpcCalls(f"demo-{self.topic}")
        await stream.send_all(self._calls.take_replies())

    def message(self, number: int) -> bytes:
        """Return due replies, followed by a call that stores a message. Streams have odd numbers."""
        request = send_request(self.topic, b"sluice demo " * 8, f"{self.topic}-{number}")
        return self._calls.take_replies() + self._calls.call("SendMessage", request)[1]

    def answers(self, data: bytearray) -> Iterable[tuple[int, Outcome]]:
        """Read frames."""
        found = [((stream + 1) // 2, _outcome(answer.message)) for stream, answer in self._calls.feed(bytes(data))]
        data.clear()
        return found


def _outcome(message: bytes) -> Outcome:
    code = read_answer("SendMessage", message).code
    return "passed" if code == OK else "refused" if b"[RateLimit]" in message else "failed"


FloodedRabbitMQ.client = Publisher
FloodedRocketMQProxy.client = GrpcProducer
BROKERS: Final[Mapping[str, type[FloodedBroker]]] = {
    "rocketmq": FloodedRocketMQ,
    "rocketmq5": FloodedRocketMQProxy,
    "rabbitmq": FloodedRabbitMQ,
}
