"""Several processes on one port, and one limit for them."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, sends, stored
from harness.redis import RedisServer
from harness.sidecar import Route, Sluice, run_sluice

pytestmark = pytest.mark.integration

RATE: Final = 200
CLIENTS: Final = 24


def config(route: Route, redis: RedisServer, *, reuse_port: bool = True) -> str:
    return f"""
take_over = true
[fleet]
url = "{redis.url}"
name = "f"
[[listeners]]
listen = "{route.listen}"
broker = "{route.broker}"
reuse_port = {str(reuse_port).lower()}
[[limits]]
kind = "topic"
name = "orders"
rate = {RATE}
fleet = true
"""


def started(folder: Path, route: Route, redis: RedisServer) -> Sluice:
    folder.mkdir(exist_ok=True)
    return Sluice(folder, (route,), config=config(route, redis))


def test_two_processes_on_one_port_have_one_limit_and_take_each_others_place(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    route = broker.route()
    with ExitStack() as running:
        redis = running.enter_context(RedisServer(tmp_path))
        first, second = (running.enter_context(started(tmp_path / name, route, redis)) for name in "ab")
        clients = [running.enter_context(FrameClient(route.listen)) for _ in range(CLIENTS)]
        began, before = time.monotonic(), broker.stored("orders")
        for _ in range(3):
            for client in clients:
                client.ask(*sends(RATE // 4, "orders"))
        passed, limit = broker.stored("orders") - before, RATE * (time.monotonic() - began + 1)
        assert RATE / 2 <= passed <= limit
        opened = [each.metrics().total("sluice_connections_opened_total") for each in (first, second)]
        assert min(opened) > 0
        assert sum(opened) == CLIENTS
        assert [each.metrics().total("sluice_fleet_members") for each in (first, second)] == [2, 2]

        third = running.enter_context(started(tmp_path / "a", route, redis))
        more = [running.enter_context(FrameClient(route.listen)) for _ in range(CLIENTS)]
        assert sum(stored(client.ask(*sends(1, "others"))) for client in more) == CLIENTS
        opened = [each.metrics().total("sluice_connections_opened_total") for each in (second, third)]
        assert min(opened) > 0
        assert first.process.wait(timeout_s=30) == 0

        second.stop()
        with FrameClient(route.listen) as client:
            assert stored(client.ask(*sends(1, "others"))) == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_port_of_a_process_without_reuse_port_is_a_clear_error(
    broker: EmbeddedBroker, tmp_path: Path, *, first: bool
) -> None:
    route = broker.route()
    with RedisServer(tmp_path) as redis:
        file = tmp_path / "second.toml"
        file.write_text(config(route, redis, reuse_port=not first), encoding="utf-8")
        with Sluice(tmp_path, (route,), config=config(route, redis, reuse_port=first)):
            ended = run_sluice(
                *("run", "--config", str(file), "--admin", "off", "--state-dir", str(tmp_path / "b")), cwd=tmp_path
            )
    assert ended.returncode != 0
    assert "it is in use" in ended.stderr
    assert ("the other process does not have reuse_port = true" in ended.stderr) is not first
