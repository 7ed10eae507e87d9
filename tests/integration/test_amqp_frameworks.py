"""Celery and Spring AMQP above a limit: everything that works directly works, and refusals are reported as
docs/rabbitmq.md says.
"""

from pathlib import Path
from typing import Any

import pytest
from harness.clients import amqp_java, amqp_python, run_client, start_client
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_TASKS = 3000
# Sluice does not read everything at once that a program writes.
_CONFIG = """
[[listeners]]
listen = "{listen}"
broker = "{broker}"
protocol = "amqp091"
options = {{ max_waiting_bytes = 65536 }}

[[limits]]
kind = "queue"
name = "exits"
rate = 300
burst_s = 0.1

[[limits]]
kind = "queue"
name = "held*"
rate = 20
burst_s = 0.1
action = "delay"

[[limits]]
kind = "queue"
name = "refused*"
rate = 0

[[limits]]
kind = "delivery"
name = "held*"
rate = 20
burst_s = 0.1
"""


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice, rabbitmq: RabbitMQ) -> Sluice:
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    return start_sluice(routes=(route,), config=_CONFIG.format(**route._asdict()))


def _celery(address: str, queue: str, results: str, *what: str) -> list[str]:
    return amqp_python("celery_client.py", *address.split(":"), queue, results, *what)


def _have_done(address: str, queue: str, results: str, home: Path) -> Any:
    home.mkdir(parents=True)
    worker = start_client(_celery(address, queue, results, "worker"), home=home / "worker")
    try:
        return run_client(_celery(address, queue, results, "calls"), home=home / "client", seconds=60)
    finally:
        assert worker.stop() == 0, worker.lines


@pytest.mark.parametrize("results", ["rpc", pytest.param("file", marks=pytest.mark.long)])
def test_tasks_are_done_as_directly(rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path, results: str) -> None:
    done = []
    for name, address in (("direct", rabbitmq.address), ("held", sluice.routes[0].listen)):
        home, queue = client_home / name, f"{name}-{results}"
        done.append(_have_done(address, queue, f"{results}://{home if results == 'file' else ''}", home))
        assert rabbitmq.messages(queue) == 0
    direct, through = done
    assert through == direct
    metrics = sluice.metrics()
    for kind in ("queue", "delivery"):
        assert metrics.total("sluice_requests_total", kind=kind, resource=f"held-{results}", verdict="pass") > 10
    assert metrics.total("sluice_rule_held_total") > 0


@pytest.mark.long
def test_program_that_exits_at_once_has_given_its_tasks(rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path) -> None:
    command = _celery(sluice.routes[0].listen, "exits", "rpc://", "exits", str(_TASKS))
    run_client(command, home=client_home, seconds=60)
    sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_connections") == 0)
    assert rabbitmq.messages("exits") == _TASKS


@pytest.mark.parametrize(
    ("retry", "times"), [("retry", 4), pytest.param("", 1, marks=pytest.mark.long)], ids=["usual", "without_retry"]
)
def test_refused_task_is_published_at_each_retry(sluice: Sluice, client_home: Path, retry: str, times: int) -> None:
    def counted() -> tuple[float, float]:
        metrics = sluice.metrics()
        refused = metrics.total("sluice_requests_total", resource=f"refused-{retry}", verdict="refuse")
        return refused, metrics.total("sluice_connections_opened_total")

    before = counted()
    command = _celery(sluice.routes[0].listen, f"refused-{retry}", "rpc://", "confirmed", "5", retry)
    assert run_client(command, home=client_home, seconds=60) == ["OperationalError: "] * 5
    assert [after - earlier for after, earlier in zip(counted(), before, strict=True)] == [5 * times] * 2


def test_held_task_is_only_slower(rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path) -> None:
    command = _celery(sluice.routes[0].listen, "held-confirmed", "rpc://", "confirmed", "30", "retry")
    assert run_client(command, home=client_home, seconds=60) == [""] * 30
    assert rabbitmq.messages("held-confirmed") == 30


@pytest.mark.long
def test_spring_shows_a_refusal_as_that_of_a_full_queue(rabbitmq: RabbitMQ, sluice: Sluice, client_home: Path) -> None:
    with rabbitmq.connect() as client:
        # Without room for a single message it refuses each of them.
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        client.call(client.open_channel(), "queue.declare", queue="full", arguments=full)
    told = []
    for address, queue, refusing in (
        (rabbitmq.address, "direct-spring", "full"),
        (sluice.routes[0].listen, "held-spring", "refused-spring"),
    ):
        command = amqp_java("SpringClient.java", *address.split(":"), queue, refusing)
        told.append(run_client(command, home=client_home / queue, seconds=60))
    assert told[0] == told[1]
