"""Brokers killed ten times under load: clients come back as they do without Sluice, which leaks nothing."""

import faulthandler
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from harness.clients import amqp_python, java, start_client
from harness.ledger import Ledger
from harness.ports import free_port
from harness.rabbitmq import StartRabbitMQ
from harness.rocketmq import StartRocketMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_HOST: Final = "127.0.0.1"
_CHILD: Final = Path(__file__).parent / "harness" / "ledger_child.py"
_KILLS: Final = 10
_OUTAGE_S: Final = 2.0
_MORE: Final = 30
# A client of RocketMQ may look for its broker only every half minute, and may need a second try.
_MAX_S: Final = 600


class _Killed(NamedTuple):
    """When a broker was killed and available again, in ms since 1970."""

    killed_ms: int
    back_ms: int


def _now_ms() -> int:
    return int(time.time() * 1000)


def _killing(kill: Callable[[], None], start: Callable[[], None]) -> Callable[[], _Killed]:
    def run() -> _Killed:
        kill()
        killed_ms = _now_ms()
        time.sleep(_OUTAGE_S)
        start()
        return _Killed(killed_ms, _now_ms())

    return run


@contextmanager
def _clients(commands: Mapping[str, Sequence[str]], home: Path) -> Iterator[dict[str, Ledger]]:
    with ExitStack() as running:
        ledgers = {}
        for name, command in commands.items():
            ledgers[name] = Ledger(name, start_client(command, home=home / name))
            running.callback(ledgers[name].client.kill)
        yield ledgers


def _check(
    sluice: Sluice,
    kinds: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    brokers: tuple[Callable[[], _Killed], ...],
    home: Path,
) -> None:
    places = ("through Sluice", "directly")
    idle = sluice.descriptors()
    commands = {f"{kind} {place}": pair[nth] for kind, pair in kinds.items() for nth, place in enumerate(places)}
    outages_ms: dict[str, list[int]] = {name: [] for name in commands}
    after_ms: dict[str, list[int]] = {name: [] for name in commands}
    with _clients(commands, home) as ledgers, ThreadPoolExecutor() as at_once:
        for ledger in ledgers.values():
            ledger.wait_for_more(_MORE)
        for nth in range(_KILLS):
            # pytest would end the test without a dump.
            faulthandler.dump_traceback_later(_MAX_S, exit=True)
            killed = list(at_once.map(lambda kill: kill(), brokers))
            for name, ledger in ledgers.items():
                times = killed[0] if name.endswith(places[0]) else killed[-1]
                # Nothing was stored during the outage. Ignore messages stored just before the kill.
                first_ms = ledger.first_stored_ms(times.killed_ms + int(_OUTAGE_S * 500))
                outages_ms[name].append(first_ms - times.killed_ms)
                after_ms[name].append(first_ms - times.back_ms)
            for ledger in ledgers.values():
                ledger.wait_for_more(_MORE)
            print(f"kill {nth + 1}:", {name: each[-1] for name, each in outages_ms.items()}, flush=True)
        for ledger in ledgers.values():
            print(ledger.check())
    for kind in kinds:
        through, direct = (outages_ms[f"{kind} {place}"] for place in places)
        ratios = [ours / theirs for ours, theirs in zip(through, direct, strict=True)]
        for name in (f"{kind} {place}" for place in places):
            print(
                f"{name}: nothing stored for {statistics.median(outages_ms[name]):.0f} ms "
                f"({min(outages_ms[name])} to {max(outages_ms[name])}), until "
                f"{statistics.median(after_ms[name]):.0f} ms after the broker was there ({after_ms[name]})"
            )
        middle = statistics.median(ratios)
        print(f"{kind}: through Sluice x directly {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    sluice.end_with_nothing_left(descriptors=idle)


def test_rocketmq_clients_come_back_as_without_sluice(
    start_rocketmq: StartRocketMQ, start_sluice: StartSluice, client_home: Path
) -> None:
    with start_rocketmq() as behind, start_rocketmq(advertised_host="127.0.0.1") as alone:
        sluice = start_sluice(behind, limits=("topic:*=unlimited",))
        commands = [
            java("LedgerClient.java", rocketmq.namesrv, rocketmq.create_topic("ledger"), name, home=client_home / name)
            for name, rocketmq in (("behind", behind), ("alone", alone))
        ]
        kills = (_killing(rocketmq.kill_broker, rocketmq.start_broker) for rocketmq in (behind, alone))
        _check(sluice, {"java": (commands[0], commands[1])}, tuple(kills), client_home)


def test_amqp_clients_come_back_as_without_sluice(
    start_rabbitmq: StartRabbitMQ, start_sluice: StartSluice, client_home: Path
) -> None:
    with start_rabbitmq() as rabbitmq:
        route = Route(f"{_HOST}:{free_port()}", rabbitmq.address)
        sluice = start_sluice(routes=(route,), protocol="amqp091", limits=("queue:*=unlimited",))
        pika, pipelined = (
            (command(route.listen, "behind"), command(rabbitmq.address, "alone"))
            for command in (
                lambda address, queue: amqp_python("pika_ledger.py", *address.split(":"), f"pika-{queue}"),
                lambda address, queue: [sys.executable, str(_CHILD), address, f"pipelined-{queue}"],
            )
        )
        _check(sluice, {"pika": pika, "pipelined": pipelined}, (_killing(rabbitmq.kill, rabbitmq.start),), client_home)
