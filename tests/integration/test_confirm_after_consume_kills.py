"""kill -9 of broker, Sluice, consumer or publisher: each confirmed message was consumed, or is in a durable queue on
disk.
"""

import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import pytest
from harness import confirmed_child, confirms_at_once
from harness.confirmed_child import read_id, read_record
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.sidecar import Metrics, Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone]

_CONFIG: Final = """
[[limits]]
kind = "queue"
name = "*"
rate = "unlimited"
confirm = "after_consume"
confirm_within_s = 2

[[limits]]
kind = "exchange"
name = "*"
rate = "unlimited"
confirm = "after_consume"
confirm_within_s = 2
confirm_queues = 2
"""
_QUEUES: Final = ("one", "fan-a", "fan-b")
_FANOUT: Final = "fan"
# Exchange and routing key of each publisher, and the queues its messages go to.
_WAYS: Final = {"queue": ("", "one", ("one",)), "exchange": (_FANOUT, "", ("fan-a", "fan-b"))}
_CONSUMED: Final = ("one", "one", "fan-a", "fan-b")
_HOLD_MS: Final = 60
_TIMEOUT_S: Final = 60.0
_KILLS, _BLOCKS = 10, 20
TARGETS: Final = ("broker", "sluice", "consumer", "publisher")


class Stage:
    """Publishers, Sluice, a broker and consumers, all of which can be killed. New for each block."""

    def __init__(self, rabbitmq: RabbitMQ, start: Callable[[str], Sluice], folder: Path, chance: random.Random) -> None:
        self._rabbitmq, self._start, self._folder, self._chance = rabbitmq, start, folder, chance
        self._listen = f"127.0.0.1:{free_port()}"
        self._started = 0
        self.sluices: list[Sluice] = []
        self.after_consume = 0.0
        with rabbitmq.connect() as client:
            channel = client.open_channel()
            client.call(channel, "exchange.declare", exchange=_FANOUT, type="fanout", durable=True)
            for queue in _QUEUES:
                client.call(channel, "queue.declare", queue=queue, durable=True)
                client.call(channel, "queue.purge", queue=queue)
            for queue in _WAYS["exchange"][2]:
                client.call(channel, "queue.bind", queue=queue, exchange=_FANOUT)
        self._start_sluice()
        self._consumers = {place: self._consumer(queue) for place, queue in enumerate(_CONSUMED)}
        self._publishers = {way: self._publisher(way) for way in _WAYS}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in (*self._consumers.values(), *self._publishers.values(), self.sluices[-1].process):
            process.kill()

    def kill(self, target: str) -> None:
        """Kill one at a random moment, after a confirm of each kind since the last kill, and start it again."""
        self._wait_for_confirms()
        time.sleep(self._chance.uniform(0, 0.3))
        if target == "broker":
            self._rabbitmq.kill()
            time.sleep(self._chance.uniform(0, 0.3))
            self._rabbitmq.start()
        elif target == "sluice":
            self.note_metrics()
            self.sluices[-1].process.signal(signal.SIGKILL)
            self.sluices[-1].process.wait(timeout_s=_TIMEOUT_S)
            self._start_sluice()
        elif target == "consumer":
            place = self._chance.choice(list(self._consumers))
            self._consumers[place].kill()
            self._consumers[place] = self._consumer(_CONSUMED[place])
        else:
            way = self._chance.choice(list(self._publishers))
            self._publishers[way].kill()
            self._publishers[way] = self._publisher(way)

    def note_metrics(self) -> None:
        """Add up Sluice's number of messages confirmed after consumption, before it is killed."""
        self.after_consume += _after_consume(self.sluices[-1].metrics())

    def end(self) -> None:
        """Kill the broker under load and start it again, without consumers."""
        self._wait_for_confirms()
        self.note_metrics()
        self._rabbitmq.kill()
        for process in (*self._consumers.values(), *self._publishers.values()):
            process.kill()
        self._rabbitmq.start()

    def check(self) -> int:
        """Check that all confirmed messages were consumed, or are in their queues on disk. Return their number."""
        on_disk = {queue: {read_id(body) for body in self._rabbitmq.drain(queue)} for queue in _QUEUES}
        consumed = {queue: set(self._recorded(f"consumed-{queue}-*")) for queue in _QUEUES}
        count = 0
        for way, (_, _, queues) in _WAYS.items():
            confirmed = self._recorded(f"confirmed-{way}-*")
            assert len(set(confirmed)) == len(confirmed), "confirmed twice"
            count += len(confirmed)
            for queue in queues:
                lost = set(confirmed) - consumed[queue] - on_disk[queue]
                assert not lost, f"{queue}: {len(lost)} of {len(confirmed)} are lost: {sorted(lost)[:10]}"
        for sluice in self.sluices:
            text = sluice.process.log.read_text(encoding="utf-8")
            assert "Traceback" not in text
            assert '"level": "error"' not in text, [line for line in text.splitlines() if '"error"' in line][:5]
        return count

    def _recorded(self, pattern: str) -> list[str]:
        return [each for path in self._folder.glob(pattern) for each in read_record(path)]

    def _wait_for_confirms(self) -> None:
        """Wait for further confirms of each publisher."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        before = self._sizes()
        while any(size <= before.get(way, 0) for way, size in self._sizes().items()):
            assert time.monotonic() < deadline_s, f"nothing more is confirmed: {before}, {self._sizes()}"
            time.sleep(0.01)

    def _sizes(self) -> dict[str, int]:
        return {
            way: sum(path.stat().st_size for path in self._folder.glob(f"confirmed-{way}-*"))
            for way in self._publishers
        }

    def _start_sluice(self) -> None:
        self.sluices.append(self._start(self._listen))

    def _publisher(self, way: str) -> ManagedProcess:
        exchange, key, _ = _WAYS[way]
        return self._child("publish", f"confirmed-{way}", lambda name: (name, exchange, key))

    def _consumer(self, queue: str) -> ManagedProcess:
        seed = str(self._chance.randrange(1 << 30))
        return self._child("consume", f"consumed-{queue}", lambda _: (queue, str(_HOLD_MS), seed))

    def _child(self, role: str, kind: str, more: Callable[[str], tuple[str, ...]]) -> ManagedProcess:
        self._started += 1
        name = f"{kind}-{self._started}"
        command = [sys.executable, confirmed_child.__file__, role, self._listen, str(self._folder / name), *more(name)]
        return ManagedProcess(role, command, log=self._folder / "children.log", cwd=self._folder)


def _after_consume(metrics: Metrics) -> float:
    return metrics.total("sluice_confirms_total", way="after_consume")


@pytest.fixture(scope="module")
def rabbitmq(start_rabbitmq: StartRabbitMQ) -> Iterator[RabbitMQ]:
    """A broker for this module alone, which kills it."""
    with start_rabbitmq() as running:
        yield running


StartStage = Callable[..., Stage]


@pytest.fixture
def start_stage(start_sluice: StartSluice, rabbitmq: RabbitMQ, tmp_path: Path) -> StartStage:
    """``seed``, and a prefix of Sluice's command."""

    def start(seed: int, inside: tuple[str, ...] = ()) -> Stage:
        def sluice(listen: str) -> Sluice:
            return start_sluice(
                routes=(Route(listen, rabbitmq.address),),
                protocol="amqp091",
                config=_CONFIG,
                inside=inside,
                covered=False,
            )

        return Stage(rabbitmq, sluice, tmp_path, random.Random(seed))

    return start


def _check_block(start_stage: StartStage, kills: list[str], seed: int, inside: tuple[str, ...] = ()) -> None:
    begun_s = time.monotonic()
    with start_stage(seed, inside) as stage:
        for target in kills:
            stage.kill(target)
        stage.end()
        confirmed = stage.check()
        print(
            f"{confirmed} confirmed, {stage.after_consume:.0f} of them after they were consumed, as far as was asked;"
        )
        print(f"{len(kills)} kills in {time.monotonic() - begun_s:.0f} s")
        assert stage.after_consume > 0


def test_confirmed_messages_survive_any_kill(start_stage: StartStage) -> None:
    _check_block(start_stage, ["consumer", "publisher", "sluice", "broker"], seed=0)


@pytest.mark.long
def test_a_sluice_that_does_not_wait_for_consumers_is_found(start_stage: StartStage) -> None:
    """Tests the check: messages confirmed at once are lost with the broker."""
    at_once = (sys.executable, confirms_at_once.__file__)
    with start_stage(0, at_once) as stage:
        stage.kill("broker")
        stage.end()
        with pytest.raises(AssertionError, match="are lost"):
            stage.check()
        assert stage.after_consume > 0


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, _BLOCKS + 1))])
def test_confirmed_messages_are_consumed_or_on_disk(target: str, seed: int, start_stage: StartStage) -> None:
    _check_block(start_stage, [target] * _KILLS, seed)
