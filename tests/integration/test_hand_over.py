"""Processes take each other's place under load: nobody is refused, nothing acknowledged is lost, nobody is forgiven."""

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from harness.amqp import AmqpClient, AmqpError
from harness.api import ask
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, sends, stored
from harness.rabbitmq import RabbitMQ
from harness.rocketmq import RocketMQ
from harness.sidecar import Route, Sluice, run_sluice

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
    """Processes of Sluice one after another, each of which takes the place of the one before."""

    def __init__(self, directory: Path, routes: tuple[Route, ...], *, config: str = CONFIG, protocol: str = "rocketmq") -> None:
        self.directory, self.routes = directory, routes
        self._how = {"config": config, "protocol": protocol}
        self.now = Sluice(directory, routes, **self._how)  # type: ignore[arg-type]  # text, both of them

    def take_over(self) -> None:
        """Have another process take over, and wait until the one before has ended."""
        before = self.now
        # Its address is the same: whoever answers there first is the one before.
        self.now = Sluice(self.directory, self.routes, admin=before.admin, **self._how)  # type: ignore[arg-type]
        try:
            self.now.process.wait_for_line("took over from the process before", timeout_s=_UP_S)
            self.now.process.wait_for_line("sluice is up", timeout_s=_UP_S)
            assert before.process.wait(timeout_s=_UP_S) == 0
        finally:
            before.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self.now.stop() == 0


class Load:
    """Clients on threads that send until they are stopped, and come again when their connection ends.

    Attributes:
        acknowledged: by topic, how many sends were.
        refusals: how many were refused by a limit.
        ended: connections that Sluice ended.
        faults: what must not happen: connections that were refused, answers that no client expects.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.acknowledged: Counter[str] = Counter()
        self.refusals = self.ended = self.connected = 0
        self.faults: list[str] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, topic: str, *, at_once: int, per_connection: int | None = None, source: str = "") -> None:
        """Start a client that sends so many at once, and so many times on each connection."""
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
    """Return by topic how much of what all limits allow by now was stored: their rate since then, and one burst."""
    found = {}
    for topic, rate in RATES.items():
        count = broker.stored(topic)
        # In the debt of one request each share of a fair limit may end, and its pool.
        more = 4 if topic == "fair" else 1
        found[topic] = count / (rate * (time.monotonic() - began_s) + rate + more)
    return found


@pytest.mark.parametrize("times", [3, pytest.param(50, marks=[pytest.mark.long, pytest.mark.alone])])
def test_a_process_is_replaced_under_load_and_no_client_notices_more_than_a_goodbye(
    tmp_path: Path, times: int
) -> None:
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
        print(f"{load.connected} connections, {load.ended} ended; {load.refusals} refusals; {load.acknowledged}; {used[-1]}")
        assert not load.faults
        assert load.ended > 0
        for topic, acknowledged in load.acknowledged.items():
            assert broker.stored(topic) >= acknowledged > 0
        assert max(share for each in used for share in each.values()) <= 1
        # The limits were used, so that one that began anew would have shown.
        assert min(used[-1].values()) > 0.5
