"""AMQP with many made-up routing keys, connections and channels: memory, and no losses."""

import asyncio
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.amqp import AmqpClient, content, method
from harness.paths import ROOT
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ
from harness.scripted_amqp import ManyClients
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_LIMITS = ["queue:limited=50/s", "routing_key:*=2000/s"]
_CONNECTIONS, _CHANNELS = 10_000, 10


def _memory_bytes(sluice: Sluice, what: str) -> int:
    status = Path(f"/proc/{sluice.process.pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(what))


def _route(broker: str) -> Route:
    return Route(f"127.0.0.1:{free_port()}", broker)


def test_a_million_made_up_routing_keys_take_bounded_memory_and_a_real_limit_holds(
    rabbitmq: RabbitMQ, start_sluice: StartSluice
) -> None:
    keys, a_chunk, real = 1_000_000, 1000, 20
    route = _route(rabbitmq.address)
    with (
        start_sluice(routes=(route,), protocol="amqp091", limits=_LIMITS, covered=False) as sluice,
        AmqpClient(route.listen) as client,
    ):
        before = _memory_bytes(sluice, "VmRSS")
        made_up, confirmed = client.open_channel(), client.open_channel(confirms=True)
        client.call(made_up, "exchange.declare", exchange="events", type="topic")
        client.call(made_up, "queue.declare", queue="limited")
        template = method(made_up, "basic.publish", exchange="events", routing_key="made.up.#######")
        head, _, rest = template.partition(b"#######")
        rest += content(made_up, b"")
        begun_s = time.monotonic()
        for first in range(0, keys, a_chunk):
            client.send(b"".join(b"%b%07d%b" % (head, key, rest) for key in range(first, first + a_chunk)))
            for _ in range(real):
                client.publish(confirmed, "limited")
        # The answer comes after everything before it on the channel.
        client.call(made_up, "queue.declare", queue="limited", passive=True)
        answers = client.wait_for_confirms(confirmed)
        seconds = time.monotonic() - begun_s
        metrics = sluice.metrics()
        peak = _memory_bytes(sluice, "VmHWM")
        stored = rabbitmq.messages("limited")
        print(
            f"{keys} routing keys in {seconds:.0f} s: {peak / 1e6:.0f} MB at most, {before / 1e6:.0f} MB before; "
            f"limiters: {metrics.total('sluice_live_limiters'):.0f}; queue limited: {stored} in {seconds:.0f} s"
        )
        asked = keys // a_chunk * real
        assert len(answers.acked) + len(answers.nacked) == asked
        assert len(answers.acked) == stored
        # The bucket starts full. The machine may be too slow to reach the limit all the time.
        assert 50 <= stored <= 50 * seconds + 50
        assert answers.nacked
        assert metrics.total("sluice_requests_total", kind="routing_key", verdict="pass") == keys
        assert metrics.total("sluice_bypassed_total") == 0
        assert peak < 300e6


@pytest.fixture
def many_files() -> Iterator[int]:
    """Raise the limit of open files, also for child processes, and return it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _check_connections(sluice: Sluice, connections: int, queue: str) -> int:
    """Open, publish and confirm on each channel. Return the number of publishes."""
    clients = ManyClients(sluice.routes[0].listen, connections, _CHANNELS)
    before = _memory_bytes(sluice, "VmRSS")

    async def use() -> int:
        begun_s = time.monotonic()
        try:
            return await measure(begun_s)
        finally:
            await clients.close()

    async def measure(begun_s: float) -> int:
        await clients.open()
        opened_s = time.monotonic()
        idle = _memory_bytes(sluice, "VmRSS")
        acked = await clients.publish(queue)
        published = _memory_bytes(sluice, "VmRSS")
        print(
            f"{connections} connections with {_CHANNELS} channels each, opened in {opened_s - begun_s:.0f} s: "
            f"{(idle - before) / connections / 1000:.1f} kB per connection, "
            f"{(published - before) / connections / 1000:.1f} kB when each channel had published; "
            f"{acked} confirms in {time.monotonic() - opened_s:.0f} s; {published / 1e6:.0f} MB in all"
        )
        # While they are open.
        metrics = await asyncio.to_thread(sluice.metrics)
        assert metrics.total("sluice_requests_total", kind="queue", verdict="pass") == acked
        assert metrics.total("sluice_bypassed_total") == 0
        return acked

    acked = asyncio.run(use())
    assert acked == connections * _CHANNELS
    return acked


def test_ten_thousand_connections_with_ten_channels_each_lose_nothing(
    start_sluice: StartSluice, tmp_path: Path, many_files: int
) -> None:
    # Sluice has two for each of them, and some others.
    connections = min(_CONNECTIONS, (many_files - 400) // 2)
    if connections < _CONNECTIONS:
        print(f"{connections} connections, since a process may have {many_files} files open here")
    broker = ManagedProcess(
        "scripted broker",
        [sys.executable, "-m", "harness.scripted_amqp"],
        log=tmp_path / "broker.log",
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "integration")},
    )
    with broker:
        route = _route(f"127.0.0.1:{broker.wait_for_line('port ', timeout_s=60).split()[1]}")
        # High enough not to be reached, so that each publish is counted.
        with start_sluice(
            routes=(route,), protocol="amqp091", limits=["queue:many=1000000/s"], covered=False
        ) as sluice:
            acked = _check_connections(sluice, connections, "many")
        broker.stop()
        assert broker.wait_for_line("published ", timeout_s=60).split()[1] == str(acked)
