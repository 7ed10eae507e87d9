"""One topic or queue floods a real broker with a slow disk: losses and delays of the quiet ones."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from harness.clients import amqp_java, java, run_client
from harness.haproxy import HAProxy
from harness.ports import free_port
from harness.rabbitmq import StartRabbitMQ
from harness.rocketmq import RocketMQ, StartRocketMQ
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone]

_CONFIGS: Final = {"plain": "", "adaptive": '[[limits]]\nkind = "listener"\nname = "*"\nadaptive = true\nfloor = 50\n'}
_WAYS: Final = ("direct", "haproxy", *_CONFIGS)
_FLOOD: Final = "flood"
_QUIET: Final = ("orders", "invoices", "payments", "shipments", "audit")
_QUIET_PER_S: Final = 20
# The quiet ones are alone at first, for this long.
_CALM_S: Final = 5
# Eight sends at a time wait for the disk: 400 to 700 a second. By default the broker refuses sends that have waited for
# a fifth of a second, which is too short on a busy machine.
_ROCKETMQ: Final = {
    "flushDiskType": "SYNC_FLUSH",
    "asyncSendEnable": "false",
    "sendMessageThreadPoolNums": "8",
    "waitTimeMillsInSendQueue": "500",
}
_ROCKETMQ_SYNC_MS, _ROCKETMQ_FLOOD_PER_S = 10, 1000
# At most 400 messages of a channel are in flight to a queue: about 4000 a second with this disk.
_RABBITMQ_SYNC_MS, _RABBITMQ_FLOOD_PER_S = 200, 6000


class _Result:
    def __init__(self, way: str, report: Mapping[str, Mapping[str, Any]]) -> None:
        quiet = [report[name] for name in _QUIET]
        self.lost = sum(each["lost"] for each in quiet) / sum(each["sent"] for each in quiet)
        self.p99_ms = max(float(each["p99Millis"]) for each in quiet)
        self.stored = sum(int(each["stored"]) for each in report.values())
        refused = [sum(each) for each in zip(*(each["refusedBySecond"] for each in quiet), strict=True)]
        print(
            f"{way:8}: {self.lost:8.3%} of the quiet messages lost, p99 {self.p99_ms:8.1f} ms;"
            f" {self.stored} stored; refused by second: {refused}"
        )


def _between(way: str, route: Route, protocol: str, start_sluice: StartSluice, folder: Path) -> HAProxy | Sluice:
    if way == "haproxy":
        host, _, port = route.listen.rpartition(":")
        return HAProxy(folder / way, route.broker, host=host, port=int(port))
    return start_sluice(routes=(route,), protocol=protocol, config=_CONFIGS[way], covered=False)


@pytest.mark.parametrize(
    ("ways", "seconds"), [(("haproxy", "adaptive"), 12), pytest.param(_WAYS, 25, marks=pytest.mark.long)], ids=str
)
def test_quiet_topics_lose_nothing_while_another_floods_a_slow_rocketmq(
    start_rocketmq: StartRocketMQ, start_sluice: StartSluice, tmp_path: Path, ways: Sequence[str], seconds: int
) -> None:
    results = {}

    def measure(way: str, namesrv: str) -> None:
        quiet = (word for name in _QUIET for word in (name, str(_QUIET_PER_S), "0"))
        arguments = namesrv, str(seconds), _FLOOD, str(_ROCKETMQ_FLOOD_PER_S), str(_CALM_S), *quiet
        home = tmp_path / f"{way}-client"
        command = java("PacedProducer.java", *arguments, home=home)
        results[way] = _Result(way, run_client(command, home=home, seconds=seconds))

    def start(**how: str) -> RocketMQ:
        rocketmq = start_rocketmq(settings=_ROCKETMQ, sync_ms=_ROCKETMQ_SYNC_MS, **how)
        for topic in (_FLOOD, *_QUIET):
            rocketmq.create_topic(topic)
        return rocketmq

    if "direct" in ways:
        with start(advertised_host="127.0.0.1") as rocketmq:
            measure("direct", rocketmq.namesrv)
    with start() as rocketmq:
        route = Route(f"{rocketmq.advertised_host}:{rocketmq.port}", f"{rocketmq.host}:{rocketmq.port}")
        for way in ways:
            if way != "direct":
                with _between(way, route, "rocketmq", start_sluice, tmp_path):
                    measure(way, rocketmq.namesrv)
    adaptive = results.pop("adaptive")
    assert all(result.lost > 0.02 for result in results.values())
    # In a short run, one pause of the machine weighs more.
    assert adaptive.lost <= (0.001 if "direct" in ways else 0.02)
    assert adaptive.stored >= 0.6 * max(result.stored for result in results.values())


@pytest.mark.long
def test_quiet_queues_are_confirmed_in_time_while_another_floods_a_slow_rabbitmq(
    start_rabbitmq: StartRabbitMQ, start_sluice: StartSluice, tmp_path: Path
) -> None:
    seconds, results = 25, {}
    queues = [(_FLOOD, _RABBITMQ_FLOOD_PER_S, _CALM_S), *((name, _QUIET_PER_S, 0) for name in _QUIET)]
    with start_rabbitmq(sync_ms=_RABBITMQ_SYNC_MS) as rabbitmq:
        for way in _WAYS:
            listen = rabbitmq.address if way == "direct" else f"127.0.0.1:{free_port()}"
            # One connection, which RabbitMQ throttles as a whole.
            words = (str(word) for queue in queues for word in queue)
            command = amqp_java("Paced.java", *listen.split(":"), str(seconds), *words)
            with ExitStack() as between:
                if way != "direct":
                    route = Route(listen, rabbitmq.address)
                    between.enter_context(_between(way, route, "amqp091", start_sluice, tmp_path))
                results[way] = _Result(way, run_client(command, home=tmp_path / f"{way}-client", seconds=seconds))
    adaptive = results.pop("adaptive")
    assert adaptive.lost <= 0.001
    assert adaptive.p99_ms <= min(result.p99_ms for result in results.values()) / 2
    # Some of the others are confirmed after the end.
    assert adaptive.stored >= 0.3 * max(result.stored for result in results.values())
