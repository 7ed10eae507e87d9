"""Bad networks between client and Sluice, and between Sluice and broker: the clients' answers stay true."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from harness.api import ask
from harness.clients import amqp_python, java, start_client
from harness.ledger import Ledger
from harness.ports import free_port
from harness.rabbitmq import StartRabbitMQ
from harness.rocketmq import StartRocketMQ
from harness.sidecar import Route, Sluice, StartSluice
from harness.toxiproxy import Direction, Toxiproxy

pytestmark = [pytest.mark.integration, pytest.mark.long]

_HOST: Final = "127.0.0.1"
_CHILD: Final = Path(__file__).parent / "harness" / "ledger_child.py"
# Clients send faster, each to its own topic or queue, so some sends are refused.
_CONFIG: Final = """
[[limits]]
kind = "{kind}"
name = "ledger*"
rate = 25
"""
_WARM: Final = 20
_FAULT_S: Final = 3.0
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.2
_PLACES: Final = ("client-sluice", "sluice-broker")


@dataclass(frozen=True)
class _Fault:
    """A fault of a network."""

    kind: str
    attributes: dict[str, int]
    breaks: bool = False


_FAULTS: Final = {
    "latency": _Fault("latency", {"latency": 200}),
    "jitter": _Fault("latency", {"latency": 100, "jitter": 100}),
    "reset": _Fault("reset_peer", {"timeout": 0}, breaks=True),
    "cut after 5 kB": _Fault("limit_data", {"bytes": 5000}, breaks=True),
    "slow close": _Fault("slow_close", {"delay": 1000}, breaks=True),
    "silence, then cut": _Fault("timeout", {"timeout": 500}, breaks=True),
    "10 kB a second": _Fault("bandwidth", {"rate": 10}),
    "black hole": _Fault("timeout", {"timeout": 0}, breaks=True),
    "byte by byte": _Fault("slicer", {"average_size": 1, "size_variation": 0, "delay": 0}),
}


class _Stage:
    """A broker, Sluice, a bad network on either side of Sluice, and clients that keep account."""

    def __init__(self, toxiproxy: Toxiproxy, sluice: Sluice, start: Callable[[], list[Ledger]]) -> None:
        self.toxiproxy, self.sluice = toxiproxy, sluice
        self.idle = sluice.descriptors()
        self.ledgers = start()
        for ledger in self.ledgers:
            ledger.wait_for_more(_WARM)
            ledger.wait_for(lambda ledger=ledger: bool(ledger.refused), "refused anything")

    def opened(self) -> float:
        """Return the number of connections accepted by Sluice."""
        return self.sluice.metrics().total("sluice_connections_opened_total")

    def close_all(self) -> None:
        """Close the clients' connections through the API."""
        # The list may be some seconds old, without the latest connections.
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not (page := ask(self.sluice, "GET", "connections?limit=100")[1])["rows"]:
            assert time.monotonic() < deadline_s
            time.sleep(_LOOK_S)
        for connection in page["rows"]:
            status, answer = ask(self.sluice, "DELETE", f"connections/{connection['id']}")
            # It may have gone by itself.
            assert status in (200, 404), answer

    def end_clients(self) -> None:
        for ledger in self.ledgers:
            ledger.client.kill()


def _sluice(start: StartSluice, toxiproxy: Toxiproxy, front: str, broker: str, **how: Any) -> Sluice:
    """Start Sluice between two relays. Clients connect to ``front``."""
    route, behind = (f"{_HOST}:{free_port()}" for _ in range(2))
    toxiproxy.relay("sluice-broker", behind, broker)
    sluice = start(routes=(Route(route, behind),), **how)
    toxiproxy.relay("client-sluice", front, route)
    return sluice


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    start_sluice: StartSluice,
    start_rocketmq: StartRocketMQ,
    start_rabbitmq: StartRabbitMQ,
) -> Iterator[_Stage]:
    folder = tmp_path_factory.mktemp("faults")
    with ExitStack() as running:
        toxiproxy = Toxiproxy(folder)
        running.callback(toxiproxy.close)
        if request.param == "rocketmq":
            rocketmq = running.enter_context(start_rocketmq())
            topic = rocketmq.create_topic("ledger")
            front, back = f"{rocketmq.advertised_host}:{rocketmq.port}", f"{rocketmq.host}:{rocketmq.port}"
            clients = {"java": java("LedgerClient.java", rocketmq.namesrv, topic, "ledger", home=folder / "java")}
            how = {"config": _CONFIG.format(kind="topic")}
        else:
            rabbitmq = running.enter_context(start_rabbitmq())
            front, back = f"{_HOST}:{free_port()}", rabbitmq.address
            clients = {
                "pika": amqp_python("pika_ledger.py", *front.split(":"), "ledger-pika"),
                "pipelined": [sys.executable, str(_CHILD), front, "ledger-pipelined"],
            }
            how = {"config": _CONFIG.format(kind="queue"), "protocol": "amqp091"}
        sluice = running.enter_context(_sluice(start_sluice, toxiproxy, front, back, **how))

        def start() -> list[Ledger]:
            return [Ledger(name, start_client(command, home=folder / name)) for name, command in clients.items()]

        made = _Stage(toxiproxy, sluice, start)
        running.callback(made.end_clients)
        yield made


def _scenarios() -> list[Any]:
    """Each fault at each place before each broker, in one direction. Both directions occur."""
    found = []
    for broker in ("rocketmq", "rabbitmq"):
        for nth, fault in enumerate(_FAULTS):
            for place in _PLACES:
                flip = (nth + (broker == "rabbitmq") + _PLACES.index(place)) % 2
                direction = ("upstream", "downstream")[flip]
                name = f"{broker}-{place}-{fault}-{direction}".replace(" ", "_")
                found.append(pytest.param(broker, fault, place, direction, id=name))
    return found


@pytest.mark.parametrize(("stage", "fault", "place", "direction"), _scenarios(), indirect=["stage"], scope="module")
def test_answers_match_the_broker_and_traffic_continues(
    stage: _Stage, fault: str, place: str, direction: Direction
) -> None:
    what = _FAULTS[fault]
    opened = stage.opened()
    with stage.toxiproxy.toxic(place, what.kind, direction, what.attributes):
        time.sleep(_FAULT_S / 2)
        if what.kind == "slow_close":
            stage.close_all()
        time.sleep(_FAULT_S / 2)
    for ledger in stage.ledgers:
        ledger.wait_for_more(_WARM)
        print(ledger.check())
    if what.breaks:
        assert stage.opened() > opened


@pytest.mark.parametrize("stage", ["rocketmq", "rabbitmq"], indirect=True, scope="module")
def test_nothing_is_left_behind(stage: _Stage) -> None:
    stage.end_clients()
    stage.sluice.end_with_nothing_left(descriptors=stage.idle)
