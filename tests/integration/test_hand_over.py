"""Take-overs under load: no request is refused, no acknowledged message lost, and no debt forgiven."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
import trio
from harness.amqp import AmqpClient, AmqpError
from harness.api import ask, rate
from harness.clients import java, run_client
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, sends, stored
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.rocketmq import RocketMQ
from harness.sidecar import Route, Sluice, run_sluice

from admin.edits.store import NAME
from admin.run import hand_over

pytestmark = pytest.mark.integration

RATES = {"flooded": 200, "held": 50, "fair": 100}
CONFIG = """
take_over = true
grace_s = 3.0

[[limits]]
kind = "topic"
name = "flooded"
rate = 200

[[limits]]
kind = "topic"
name = "held"
rate = 50
action = "delay"
max_delay_s = 2.0

[[limits]]
kind = "topic"
name = "fair"
rate = 100
fair_by = "client"

[[limits]]
kind = "topic"
name = "debts"
rate = 1
burst_s = 10
max_debt_s = 3600
"""
_UP_S = 60.0


class Processes:
    """Processes of Sluice, each of which takes over from the one before."""

    def __init__(
        self, directory: Path, routes: tuple[Route, ...], *, config: str = CONFIG, protocol: str = "rocketmq"
    ) -> None:
        self.directory, self.routes = directory, routes
        self._how = {"config": config, "protocol": protocol}
        self.now = self.start()

    def start(self) -> Sluice:
        """Start a process without a predecessor, and wait until another can take over."""
        started = Sluice(self.directory, self.routes, **self._how)  # type: ignore[arg-type]  # text, both of them
        started.process.wait_for_line("sluice is up", timeout_s=_UP_S)
        return started

    def take_over(self) -> None:
        """Start a process that takes over, and wait for the end of the old one."""
        before = self.now
        # It has the same address, where the old process answers at first.
        self.now = Sluice(self.directory, self.routes, admin=before.admin, **self._how)  # type: ignore[arg-type]
        try:
            self.now.process.wait_for_line("took over from the previous process", timeout_s=_UP_S)
            self.now.process.wait_for_line("sluice is up", timeout_s=_UP_S)
            assert before.process.wait(timeout_s=_UP_S) == 0
        finally:
            before.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self.now.stop() == 0


class Load:
    """Clients on threads that send until they are stopped, and reconnect when their connection ends."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.acknowledged: Counter[str] = Counter()
        self.refusals = self.ended = self.connected = 0
        self.longest_s = 0.0
        self.faults: list[str] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, topic: str, *, at_once: int, per_connection: int | None = None, source: str = "") -> None:
        """Start a client with this many sends at once, and this many rounds per connection."""
        thread = threading.Thread(target=self._run, args=(topic, at_once, per_connection, source), daemon=True)
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _run(self, topic: str, at_once: int, per_connection: int | None, source: str) -> None:
        while not self._over.is_set():
            began_s = time.monotonic()
            try:
                client = FrameClient(self.address, source=source)
            except OSError as error:
                self._fault(f"connect: {error!r}")
                return
            with self._lock:
                self.connected += 1
            try:
                with client:
                    self._use(client, topic, at_once, per_connection)
                if per_connection == 1:
                    with self._lock:
                        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            except OSError:
                with self._lock:
                    self.ended += 1

    def _use(self, client: FrameClient, topic: str, at_once: int, per_connection: int | None) -> None:
        times = 0
        while not self._over.is_set() and times != per_connection:
            times += 1
            client.write(*sends(at_once, topic))
            for _ in range(at_once):
                answer = client.read()
                passed, stopped = stored(answer), len(refused(answer))
                with self._lock:
                    self.acknowledged[topic] += passed
                    self.refusals += stopped
                if passed + stopped != 1:
                    self._fault(f"answer: {answer}")

    def _fault(self, what: str) -> None:
        with self._lock:
            self.faults.append(what)


def within_limits(broker: EmbeddedBroker, began_s: float) -> dict[str, float]:
    """Return by topic the fraction of the limits' permits that was stored: their rate since then, and one burst."""
    found = {}
    for topic, per_s in RATES.items():
        count = broker.stored(topic)
        # Each share of a fair limit, and its pool, may end in a debt of one request.
        more = 4 if topic == "fair" else 1
        found[topic] = count / (per_s * (time.monotonic() - began_s) + per_s + more)
    return found


@pytest.mark.parametrize("times", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.alone])])
def test_process_is_replaced_under_load_with_only_clean_closes(tmp_path: Path, times: int) -> None:
    began_s = time.monotonic()
    with EmbeddedBroker() as broker, Processes(tmp_path, (broker.route(),)) as processes:
        with Load(processes.routes[0].listen) as load:
            for _ in range(2):
                load.start("flooded", at_once=40)
                load.start("held", at_once=15)
                load.start("free", at_once=1, per_connection=1)
            for number in range(2):
                load.start("fair", at_once=20, source=f"127.0.0.{number + 5}")
            load.start("free", at_once=5)
            used = []
            for _ in range(times):
                processes.take_over()
                used.append(within_limits(broker, began_s))
        used.append(within_limits(broker, began_s))
        print(f"{load.connected} connections, {load.ended} ended; {load.refusals} refusals; {load.acknowledged}")
        print(f"share of what the limits allowed: {used[-1]}; longest answer {load.longest_s:.3f} s")
        assert not load.faults
        assert load.ended > 0
        for topic, acknowledged in load.acknowledged.items():
            assert broker.stored(topic) >= acknowledged > 0
        assert max(share for each in used for share in each.values()) <= 1
        # The limits were used, so a limit that started over would show.
        assert min(used[-1].values()) > 0.5


@pytest.fixture
def processes(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[Processes]:
    with Processes(tmp_path, (broker.route(),)) as running:
        yield running


def stored_permits(sluice: Sluice) -> float:
    (limit,) = sluice.explain(kind="topic", name="debts")["limits"]
    return float(limit["state"]["stored_permits"])


def owe(address: str) -> None:
    """Borrow some hundred seconds of permits at once."""
    with FrameClient(address) as client:
        assert stored(client.ask(send("debts", batch=500))) == 1


def test_a_debt_goes_over_to_the_process_that_takes_over(processes: Processes) -> None:
    owe(processes.routes[0].listen)
    processes.take_over()
    assert -500 < stored_permits(processes.now) < -400


def test_a_debt_outlives_a_restart(processes: Processes) -> None:
    owe(processes.routes[0].listen)
    assert processes.now.stop() == 0
    processes.now = processes.start()
    assert -500 < stored_permits(processes.now) < -400


def test_a_damaged_state_file_is_quarantined_and_every_limit_begins_full(processes: Processes) -> None:
    owe(processes.routes[0].listen)
    assert processes.now.stop() == 0
    file = processes.directory / "state" / NAME
    file.write_bytes(b"x" * 8192)
    processes.now = processes.start()
    assert f"{NAME}.damaged-" in processes.now.process.tail()
    with FrameClient(processes.routes[0].listen) as client:
        assert stored(client.ask(send("debts"))) == 1


def test_edits_go_over_and_can_be_made_at_once(processes: Processes) -> None:
    for number in range(3):
        path = f"limits/topic/edited-{number}"
        assert ask(processes.now, "PUT", path, {"rate": number + 1, "ttl_s": 3600})[0] == 200
        processes.take_over()
        assert rate(processes.now, f"edited-{number}") == number + 1
    actions = [each["action"] for each in ask(processes.now, "GET", "audit")[1]["changes"]]
    assert actions == ["set"] * 3


def test_held_requests_are_answered_by_the_process_that_holds_them(processes: Processes) -> None:
    address = processes.routes[0].listen
    with FrameClient(address) as client:
        commands = sends(50 + 40, "held")
        client.write(*commands)
        # The stored permits. The rest is held.
        first = client.read(50)
        processes.now.wait_for_metrics(lambda metrics: metrics.total("sluice_held_requests") > 0)
        with ThreadPoolExecutor(1) as reading:
            rest = reading.submit(client.read, 40)
            processes.take_over()
            answers = first + rest.result()
    assert stored(answers) == len(commands)


def test_a_process_that_cannot_start_leaves_the_other_as_it_was(
    processes: Processes, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken, FrameClient(processes.routes[0].listen) as client:
        assert stored(client.ask(send("free"))) == 1
        port = taken.getsockname()[1]
        done = run_sluice(
            *("run", "--listen", processes.routes[0].listen, "--broker", broker.address),
            *("--listen", f"127.0.0.1:{port}", "--broker", broker.address, "--admin", processes.now.admin),
            *("--state-dir", str(tmp_path / "state")),
            cwd=tmp_path / "second",
            env={"SLUICE_TAKE_OVER": "true"},
        )
        assert (done.returncode, "it is in use" in done.stderr) == (1, True)
        # The open connection continues, and so do edits.
        assert stored(client.ask(send("free"))) == 1
        assert ask(processes.now, "PUT", "limits/topic/edited", {"rate": 7})[0] == 200
    assert "this process continues" in processes.now.process.tail()


def test_a_process_that_ends_just_before_it_accepts_leaves_the_other_serving(processes: Processes) -> None:
    async def come_and_go() -> None:
        predecessor = await hand_over.reach(processes.directory / "state")
        assert predecessor is not None
        assert await predecessor.take() is not None
        # A new connection waits, as neither process accepts.
        with FrameClient(processes.routes[0].listen) as waiting:
            waiting.write(send("free"))
            for sock in predecessor.sockets:
                sock.close()
            predecessor.close()
            assert stored(waiting.read()) == 1

    for _ in range(3):
        trio.run(come_and_go)
    processes.now.process.wait_for_line("this process continues", timeout_s=_UP_S)
    assert ask(processes.now, "PUT", "limits/topic/edited", {"rate": 7})[0] == 200
    processes.take_over()


def test_a_killed_process_does_not_prevent_a_start(processes: Processes) -> None:
    processes.now.process.kill()
    processes.now = processes.start()
    assert "took over" not in processes.now.process.tail()
    processes.take_over()


@pytest.mark.alone
@pytest.mark.long
def test_messages_that_rabbitmq_confirmed_are_there(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    config = """
take_over = true
grace_s = 3.0

[[limits]]
kind = "queue"
name = "spooled"
rate = 300
action = "delay"
max_delay_s = 60.0
spool = true
"""
    queues = ("plain", "spooled")
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    with rabbitmq.connect() as client:
        channel = client.open_channel()
        for queue in queues:
            client.call(channel, "queue.declare", queue=queue, durable=True)
    confirmed: dict[str, set[bytes]] = {queue: set() for queue in queues}
    faults: list[str] = []
    over = threading.Event()

    def publish(queue: str) -> None:
        first = 0
        while not over.is_set():
            try:
                with AmqpClient(route.listen) as client:
                    channel = client.open_channel(confirms=True)
                    bodies = []
                    try:
                        while not over.is_set():
                            for _ in range(20):
                                first += 1
                                bodies.append(b"%d" % first)
                                client.publish(channel, queue, bodies[-1], delivery_mode=2)
                            client.wait_for_confirms(channel, at_most=200)
                    finally:
                        confirmed[queue].update(bodies[number - 1] for number in client.confirmed[channel].acked)
            except ConnectionRefusedError as error:
                faults.append(repr(error))
            except (OSError, AmqpError):
                continue

    with Processes(tmp_path, (route,), config=config, protocol="amqp091") as processes:
        threads = [threading.Thread(target=publish, args=(queue,), daemon=True) for queue in queues]
        for thread in threads:
            thread.start()
        for _ in range(4):
            processes.take_over()
        over.set()
        for thread in threads:
            thread.join(timeout=90)
    assert not faults
    for queue in queues:
        arrived = set(rabbitmq.drain(queue))
        assert confirmed[queue]
        assert confirmed[queue] <= arrived


@pytest.mark.alone
@pytest.mark.long
def test_messages_acknowledged_to_a_java_producer_are_stored(
    rocketmq: RocketMQ, tmp_path: Path, client_home: Path
) -> None:
    topic = rocketmq.create_topic("handed-over")
    ports = (rocketmq.port, rocketmq.vip_port)
    routes = tuple(Route(f"{rocketmq.advertised_host}:{port}", f"{rocketmq.host}:{port}") for port in ports)
    seconds = 25
    command = java("FlatOutProducer.java", rocketmq.namesrv, "g", str(seconds), "100", topic, home=client_home)
    with Processes(tmp_path, routes) as processes, ThreadPoolExecutor(1) as running:
        report = running.submit(run_client, command, home=client_home, seconds=seconds)
        times = 0
        while not report.done():
            processes.take_over()
            times += 1
        told = report.result()[topic]
    print(told, times)
    assert times > 3
    # A send whose answer was lost with its connection is repeated.
    assert rocketmq.stored_messages(topic) >= told["stored"] > 0
    assert told["failed"] == 0
