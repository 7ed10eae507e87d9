"""Unchanged AMQP clients of each language at full speed at a limit: stored messages, and confirms."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.clients import amqp_go, amqp_java, amqp_node, amqp_python, run_client
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone]

_SENDING_S = 6
# 50 permits a second for six seconds, from a full bucket, with some tolerance.
_STORED_AT_THE_LIMIT = range(285, 361)
_CLIENTS: dict[str, Callable[[], list[str]]] = {
    "pika": lambda: amqp_python("pika_flat_out.py"),
    "py-amqp": lambda: amqp_python("py_amqp_flat_out.py"),
    "aio-pika": lambda: amqp_python("aio_pika_flat_out.py"),
    "amqplib": lambda: amqp_node("flat_out.js"),
    "java": lambda: amqp_java("FlatOut.java"),
    "go": amqp_go,
}


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    return start_sluice(routes=(route,), protocol="amqp091", limits=("queue:limited-*=50/s",))


def _run(name: str, sluice: Sluice, home: Path, limited: str, free: str) -> Any:
    host, _, port = sluice.routes[0].listen.rpartition(":")
    command = [*_CLIENTS[name](), host, port, str(_SENDING_S), limited, free]
    return run_client(command, home=home / name, seconds=_SENDING_S)


def _check(rabbitmq: RabbitMQ, sluice: Sluice, report: Any, limited: str, free: str) -> None:
    counts = {queue: {how: len(ids) for how, ids in told.items()} for queue, told in report.items()}
    print(counts)
    assert report[limited]["failed"] == report[free]["failed"] == [], counts
    # Each was answered, and once.
    acked, nacked = report[limited]["acked"], report[limited]["nacked"]
    assert sorted(acked + nacked) == list(range(len(acked) + len(nacked))), counts
    assert report[free]["nacked"] == [], counts
    assert sorted(report[free]["acked"]) == list(range(len(report[free]["acked"]))), counts
    # The broker has stored exactly the acked messages.
    assert rabbitmq.messages(limited) in _STORED_AT_THE_LIMIT, counts
    assert sorted(map(int, rabbitmq.drain(limited))) == sorted(acked), counts
    assert sorted(map(int, rabbitmq.drain(free))) == sorted(report[free]["acked"]), counts
    metrics = sluice.metrics()

    def decided(queue: str, verdict: str) -> float:
        return metrics.total("sluice_requests_total", kind="queue", resource=queue, verdict=verdict)

    assert decided(limited, "pass") == len(acked)
    assert decided(limited, "refuse") == len(nacked) > 0
    assert decided(free, "pass") == len(report[free]["acked"]) > 0
    assert decided(free, "refuse") == 0
    assert metrics.total("sluice_bypassed_total") == 0


# pika waits for each confirm: beside the others it would be slower than the limit.
@pytest.mark.parametrize(
    "names", [("pika",), pytest.param(("aio-pika", "amqplib", "java"), marks=pytest.mark.long)], ids="+".join
)
def test_limited_queue_holds_its_limit_and_the_other_loses_nothing(
    names: tuple[str, ...], rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path
) -> None:
    queues = {name: (f"limited-of-{name}", f"free-of-{name}") for name in names}
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(_run, name, sluice, client_home, *queues[name]) for name in names}
    for name in names:
        _check(rabbitmq, sluice, running[name].result(), *queues[name])


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in _CLIENTS if name != "pika"])
def test_limited_queue_holds_its_limit_and_the_other_loses_nothing_alone(
    name: str, rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path
) -> None:
    queues = f"limited-{name}", f"free-{name}"

    report = _run(name, sluice, client_home, *queues)

    _check(rabbitmq, sluice, report, *queues)


@pytest.mark.long
@pytest.mark.parametrize("name", _CLIENTS)
def test_a_spooling_limit_is_not_an_error_to_any_client(
    name: str, start_sluice: StartSluice, rabbitmq: RabbitMQ, client_home: Path, listen: str
) -> None:
    queues = f"put-aside-{name}", f"beside-{name}"
    limit = f'[[limits]]\nkind = "queue"\nname = "{queues[0]}"\nrate = 100\naction = "delay"\nspool = true\n'
    with start_sluice(
        routes=(Route(listen, rabbitmq.address),), protocol="amqp091", config=limit, covered=False
    ) as sluice:
        report = _run(name, sluice, client_home, *queues)
        assert sluice.metrics().total("sluice_rule_held_total") > 0
    for queue in queues:
        acked = report[queue]["acked"]
        assert report[queue]["nacked"] == report[queue]["failed"] == []
        assert sorted(acked) == list(range(len(acked)))
        assert sorted(map(int, rabbitmq.drain(queue))) == sorted(acked)
