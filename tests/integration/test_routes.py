"""Real clients that know only Sluice's name server produce and consume, and never bypass Sluice."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Self

import pytest
from harness.clients import cpp, java, node, run_client, start_client
from harness.connections import inodes_connected_to, inodes_of
from harness.ports import free_port
from harness.rocketmq import VIP_OFFSET, RocketMQ, StartRocketMQ
from harness.sidecar import Sluice, StartSluice

pytestmark = pytest.mark.integration

_SLUICE_HOST = "127.0.0.2"
# The brokers' registered address, where only a trap listens.
_REGISTERED_HOST = "127.0.0.3"
_SENDING_S = 1
_TAKING_S = 60

Command = Callable[..., list[str]]
"""Returns a client's command from its kind, its arguments, and its home."""


def _java(*options: str) -> Command:
    def command(what: str, *arguments: str, home: Path) -> list[str]:
        source = {"produce": "FlatOutProducer.java", "consume": "TimedConsumer.java"}[what]
        return java(source, *arguments, home=home, options=options)

    return command


def _cpp(what: str, *arguments: str, home: Path) -> list[str]:
    del home
    return cpp({"produce": "flat_out_producer.py", "consume": "timed_consumer.py"}[what], *arguments)


def _node(what: str, *arguments: str, home: Path) -> list[str]:
    del home
    return node({"produce": "flat_out_producer.js", "consume": "timed_consumer.js"}[what], *arguments)


_CLIENTS: dict[str, Command] = {
    "java": _java(),
    "java-binary": _java("-Drocketmq.serialize.type=ROCKETMQ"),
    "java-vip": _java("-Dcom.rocketmq.sendMessageWithVIPChannel=true"),
    "cpp": _cpp,
    "node": _node,
}
_numbers = count(1)


class _Traps:
    """Listens at the brokers' registered address. Connections there bypass Sluice."""

    def __init__(self, rocketmq: RocketMQ) -> None:
        self._places = [(rocketmq.advertised_host, port) for port in (rocketmq.port, rocketmq.vip_port)]
        self._stack = ExitStack()
        self._listening: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listening = [self._stack.enter_context(socket.create_server(place)) for place in self._places]
        for each in self._listening:
            each.setblocking(False)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def wait_for_somebody(self) -> None:
        """Wait for a connection to the broker's main port."""
        main = self._listening[0]
        main.settimeout(_TAKING_S)
        main.accept()[0].close()

    @property
    def is_empty(self) -> bool:
        """Connections are never accepted, so each is still in a backlog."""
        for each in self._listening:
            try:
                each.accept()
            except BlockingIOError:
                continue
            return False
        return True


class _Routed:
    """A broker with two name servers, and a sidecar in front of all three. Clients can reach nothing else."""

    def __init__(self, rocketmq: RocketMQ, start_sluice: StartSluice) -> None:
        self.rocketmq = rocketmq
        port = free_port(offsets=(0, VIP_OFFSET))
        self.namesrv = f"{_SLUICE_HOST}:{free_port()}"
        registered, told = f"{rocketmq.advertised_host}:{rocketmq.port}", f"{_SLUICE_HOST}:{port}"
        config = "".join(
            f'[[listeners]]\nname = "{name}"\nlisten = "{_SLUICE_HOST}:{port + offset}"\n'
            f'broker = "{rocketmq.host}:{rocketmq.port + offset}"\n'
            for name, offset in (("main", 0), ("vip", VIP_OFFSET))
        )
        first, *others = rocketmq.namesrvs
        config += (
            f'[[listeners]]\nlisten = "{self.namesrv}"\nbroker = "{first}"\nbackup_brokers = {others}\n'
            f'protocol = "rocketmq-namesrv"\noptions.addresses = {{ "{registered}" = "{told}" }}\n'
        )
        self.sluice: Sluice = start_sluice(config=config)

    def exchange(self, client: Command, home: Path) -> None:
        """One client sends to a topic, and another one consumes everything."""
        number = next(_numbers)
        topic = self.rocketmq.create_topic(f"routed-{number}")
        arguments = (self.namesrv, f"producer-{number}", str(_SENDING_S), "1", topic)
        report = run_client(client("produce", *arguments, home=home), home=home, seconds=_SENDING_S)
        stored = report[topic]["stored"]
        assert report[topic]["failed"] == 0 < stored == self.rocketmq.stored_messages(topic), report
        passed = self.sluice.metrics().total("sluice_requests_total", resource=topic, verdict="pass")
        assert passed == stored
        arguments = (self.namesrv, f"consumer-{number}", topic, str(stored), str(_TAKING_S))
        report = run_client(client("consume", *arguments, home=home), home=home, seconds=_TAKING_S)
        assert len(report["times_ms"]) == stored


@pytest.fixture(scope="module")
def routed(start_rocketmq: StartRocketMQ, start_sluice: StartSluice) -> _Routed:
    return _Routed(start_rocketmq(advertised_host=_REGISTERED_HOST, name_servers=2), start_sluice)


@pytest.fixture
def traps(routed: _Routed) -> Iterator[_Traps]:
    with _Traps(routed.rocketmq) as traps:
        yield traps


@pytest.mark.parametrize(
    "client", ["cpp", *(pytest.param(name, marks=[pytest.mark.long]) for name in _CLIENTS if name != "cpp")]
)
def test_clients_that_know_only_sluice_never_go_past_it(
    client: str, routed: _Routed, traps: _Traps, client_home: Path
) -> None:
    before = routed.sluice.metrics()
    routed.exchange(_CLIENTS[client], client_home)
    after = routed.sluice.metrics()
    assert traps.is_empty

    def more(name: str, **labels: str) -> float:
        return after.total(name, **labels) - before.total(name, **labels)

    assert more("sluice_routes_total", outcome="rewritten") == more("sluice_routes_total") > 0
    assert more("sluice_connections_opened_total", listener="main") > 0
    # Only clients with the option use it, and only to send.
    assert (more("sluice_connections_opened_total", listener="vip") > 0) is (client == "java-vip")


@pytest.mark.long
def test_all_connections_of_a_broker_are_those_of_the_sidecar_that_fronts_it(
    start_rocketmq: StartRocketMQ, start_sluice: StartSluice, client_home: Path
) -> None:
    rocketmq = start_rocketmq(advertised_host="127.0.0.1")
    port = free_port(offsets=(0, VIP_OFFSET))
    namesrv_port = free_port()
    config = "".join(
        f'[[listeners]]\nname = "{name}"\nlisten = "0.0.0.0:{listen}"\nbroker = "{broker}"\nprotocol = "{protocol}"\n'
        for name, listen, broker, protocol in (
            ("main", port, f"{rocketmq.host}:{rocketmq.port}", "rocketmq"),
            ("vip", port + VIP_OFFSET, f"{rocketmq.host}:{rocketmq.vip_port}", "rocketmq"),
            ("routes", namesrv_port, rocketmq.namesrv, "rocketmq-namesrv"),
        )
    )
    sluice = start_sluice(config=config)
    topic = rocketmq.create_topic("fronted")
    rocketmq.fill(topic, 9)
    namesrv = f"{_SLUICE_HOST}:{namesrv_port}"
    # This client is least affected if a busy machine delays its first route.
    command = cpp("timed_consumer.py", namesrv, "fronted", topic, "10", str(_TAKING_S))
    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(run_client, command, home=client_home, seconds=_TAKING_S)
        # It stays for one message more than there are.
        sluice.wait_for_metrics(lambda _: bool(inodes_connected_to(rocketmq.port)))
        for each in (rocketmq.port, rocketmq.vip_port):
            assert inodes_connected_to(each) <= inodes_of(sluice.process.pid)
        _send_one(namesrv, topic, client_home)
        assert len(consumer.result()["times_ms"]) == 10
    assert sluice.metrics().total("sluice_routes_total", outcome="rewritten") > 0
    assert sluice.metrics().total("sluice_routes_total", outcome="left") == 0


def _send_one(namesrv: str, topic: str, home: Path) -> None:
    report = run_client(node("flat_out_producer.js", namesrv, "one", "0", "1", topic), home=home / "one", seconds=1)
    assert report[topic] == {"stored": 1, "refused": 0, "failed": 0}


def test_cpp_client_sends_back_to_the_address_in_the_message_past_sluice(
    routed: _Routed, traps: _Traps, client_home: Path
) -> None:
    """See docs/rocketmq-routes.md. Routes are not involved."""
    topic = routed.rocketmq.create_topic("routed-back")
    routed.rocketmq.fill(topic, 1)
    consumer = start_client(cpp("rejecting_consumer.py", routed.namesrv, "back", topic, "1"), home=client_home)
    try:
        traps.wait_for_somebody()
    finally:
        consumer.kill()


@pytest.mark.parametrize(
    "client", ["cpp", *(pytest.param(name, marks=[pytest.mark.long]) for name in ("java", "node"))]
)
def test_clients_do_not_notice_that_the_first_name_server_has_died(
    client: str, routed: _Routed, traps: _Traps, client_home: Path
) -> None:
    routed.rocketmq.kill_name_server(routed.rocketmq.namesrv)
    routed.exchange(_CLIENTS[client], client_home)
    assert traps.is_empty
