"""Three sidecars, one limit, and a real Redis that fails in every way. The broker counts the messages."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread
from typing import Final, Self

import pytest
from harness.api import ask
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, sends, stored
from harness.ports import free_port
from harness.redis import RedisServer
from harness.sidecar import Sluice, StartSluice
from harness.toxiproxy import Toxiproxy

pytestmark = pytest.mark.integration

RATE: Final = 500
PASSWORD: Final = "hush-1729"
_TURN_S: Final = 0.02


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


def config(fleet: str) -> str:
    limit = f'[[limits]]\nkind = "topic"\nname = "orders"\nrate = {RATE}\nfleet = true\n'
    return f'[fleet]\n{fleet}\nname = "f"\n{limit}[[limits]]\nkind = "topic"\nname = "quiet"\nrate = 1000\n'


@pytest.fixture
def fleet(redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice) -> Iterator[list[Sluice]]:
    with ExitStack() as running:
        yield [
            running.enter_context(start_sluice(routes=(broker.route(),), config=config(f"url = '{redis.url}'")))
            for _ in range(3)
        ]


class Traffic:
    """Sends to one topic of one sidecar on a thread, at an adjustable rate."""

    def __init__(self, sluice: Sluice, per_s: float, topic: str = "orders") -> None:
        self.per_s, self.sent, self.stored, self.refused = per_s, 0, 0, 0
        self.took_s: list[float] = []
        self._client, self._topic, self._ended = FrameClient(sluice.routes[0].listen), topic, Event()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        began, asked = time.monotonic(), 0.0
        while not self._ended.wait(_TURN_S):
            now = time.monotonic()
            asked += self.per_s * min(now - began, 5 * _TURN_S)
            began = now
            count = int(asked)
            if count:
                asked -= count
                answers = self._client.ask(*sends(count, self._topic))
                self.took_s.append(time.monotonic() - now)
                self.sent += count
                self.stored += stored(answers)
                self.refused += len(refused(answers))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


def passed_in(broker: EmbeddedBroker, seconds: float) -> tuple[int, float]:
    """Return the number of messages that the broker received in about this period, and the exact period."""
    began, before = time.monotonic(), broker.stored("orders")
    time.sleep(seconds)
    return broker.stored("orders") - before, time.monotonic() - began


@pytest.mark.alone
def test_three_sidecars_flat_out_pass_one_limit(fleet: list[Sluice], broker: EmbeddedBroker) -> None:
    began, before = time.monotonic(), broker.stored("orders")
    with Traffic(fleet[0], RATE), Traffic(fleet[1], RATE), Traffic(fleet[2], RATE):
        # The burst.
        time.sleep(2)
        passed, seconds = passed_in(broker, 10)
    assert 0.95 * RATE * seconds <= passed <= RATE * seconds + 0.1 * RATE
    assert broker.stored("orders") - before <= RATE * (time.monotonic() - began + 1)


@pytest.mark.alone
@pytest.mark.long
def test_shares_follow_demand_that_moves(fleet: list[Sluice], broker: EmbeddedBroker) -> None:
    with ExitStack() as running:
        traffic = [running.enter_context(Traffic(each, 0)) for each in fleet]
        passed = elapsed = 0.0
        for turn in range(3):
            for index, each in enumerate(traffic):
                each.per_s = 1350 if index == turn else 75
            if turn == 0:
                time.sleep(2)
            more, seconds = passed_in(broker, 3)
            passed, elapsed = passed + more, elapsed + seconds
            shares = [each.metrics().total("sluice_fleet_members") for each in fleet]
            assert shares == [3, 3, 3]
    assert 0.95 * RATE * elapsed <= passed <= RATE * (elapsed + 1)


@pytest.mark.alone
@pytest.mark.long
def test_below_the_limit_nothing_is_refused_while_demand_moves(fleet: list[Sluice]) -> None:
    with ExitStack() as running:
        traffic = [running.enter_context(Traffic(each, 0)) for each in fleet]
        for demands in ((360, 20, 20), (20, 360, 20), (0, 0, 400), (133, 133, 133)):
            for each, demand in zip(traffic, demands, strict=True):
                each.per_s = demand
            time.sleep(2)
    assert sum(each.sent for each in traffic) > 2000
    assert [each.refused for each in traffic] == [0, 0, 0]


def p99(traffic: Traffic) -> float:
    took, traffic.took_s = traffic.took_s, []
    return quantiles(took, n=100)[98]


@pytest.mark.alone
def test_without_redis_traffic_continues_within_the_limit(
    fleet: list[Sluice], broker: EmbeddedBroker, redis: RedisServer
) -> None:
    with ExitStack() as running:
        for each in fleet:
            running.enter_context(Traffic(each, RATE))
        quiet = running.enter_context(Traffic(fleet[0], 50, "quiet"))
        time.sleep(4)
        usually = p99(quiet)

        redis.process.signal(signal.SIGSTOP)
        passed, seconds = passed_in(broker, 5)
        assert 0.7 * RATE * seconds <= passed <= RATE * (seconds + 1)
        assert [each.metrics().total("sluice_fleet_away") for each in fleet] == [1, 1, 1]
        stopped = p99(quiet)
        redis.process.signal(signal.SIGCONT)
        passed, seconds = passed_in(broker, 4)
        assert 0.9 * RATE * seconds <= passed <= RATE * (seconds + 1.1)
        assert [each.metrics().total("sluice_fleet_away") for each in fleet] == [0, 0, 0]

        redis.process.kill()
        time.sleep(2)
        assert [each.metrics().total("sluice_fleet_away") for each in fleet] == [1, 1, 1]
        p99(quiet)
        passed, seconds = passed_in(broker, 2)
        assert 0.9 * RATE * seconds <= passed <= RATE * (seconds + 0.2)
        killed = p99(quiet)
        redis.start()
        passed, seconds = passed_in(broker, 4)
        assert 0.8 * RATE * seconds <= passed <= RATE * (seconds + 1.1)
        assert [each.metrics().total("sluice_fleet_away") for each in fleet] == [0, 0, 0]

        redis.command("FLUSHALL")
        redis.command("SCRIPT", "FLUSH")
        passed, seconds = passed_in(broker, 4)
        assert 0.9 * RATE * seconds <= passed <= RATE * (seconds + 0.5)
        assert [each.metrics().total("sluice_fleet_away") for each in fleet] == [0, 0, 0]
        assert quiet.refused == 0
        assert max(stopped, killed) < 2 * usually + 0.02, (usually, stopped, killed)
    for each in fleet:
        failures = [line for line in each.process.lines if "fleet Redis unavailable" in line]
        assert 1 <= len(failures) <= 4, failures
        assert "Traceback" not in "\n".join(each.process.lines)


@pytest.mark.alone
def test_a_member_that_ends_or_dies_leaves_its_share(
    fleet: list[Sluice], broker: EmbeddedBroker, redis: RedisServer
) -> None:
    with Traffic(fleet[0], 2 * RATE):
        assert fleet[1].stop() == 0
        assert redis.command("HLEN", "sluice:{f}:members") == "3"
        fleet[2].process.kill()
        time.sleep(5)
        passed, seconds = passed_in(broker, 2)
    assert 0.9 * RATE * seconds <= passed <= RATE * (seconds + 0.2)
    assert fleet[0].metrics().total("sluice_fleet_members") == 1


@pytest.mark.parametrize(
    ("fleet", "reason"),
    [
        ("url = '{url}'", "a password is required; set fleet.password_file or SLUICE_FLEET_PASSWORD"),
        (
            "url = '{url}'\npassword = 'wrong'",
            "wrong user or password; correct fleet.user and fleet.password_file",
        ),
        ("url = '{tls}'\npassword = '{password}'", "if Redis does not use TLS, fleet.url must start with redis://"),
        ("url = 'redis://127.0.0.1:1'", "connection refused; start Redis, or correct fleet.url"),
        ("url = '{url}'\nuser = 'other'\npassword = '{password}'", "the user lacks a permission"),
    ],
)
def test_a_redis_that_cannot_be_used_is_named_with_the_remedy(
    redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice, fleet: str, reason: str
) -> None:
    redis.command("ACL", "SETUSER", "other", "on", f">{PASSWORD}", "~sluice:{other}:*", "+@all")
    redis.command("CONFIG", "SET", "requirepass", PASSWORD)
    fleet = fleet.format(url=redis.url, tls=redis.url.replace("redis:", "rediss:"), password=PASSWORD)
    with start_sluice(routes=(broker.route(),), config=config(fleet)) as sluice:
        with FrameClient(sluice.routes[0].listen) as client:
            assert stored(client.ask(*sends(100, "orders"))) == 100
        assert reason in sluice.process.wait_for_line("fleet Redis unavailable", timeout_s=10)
        assert sluice.metrics().total("sluice_fleet_away") == 1
        assert PASSWORD not in "\n".join(sluice.process.lines)


def test_a_password_that_is_corrected_needs_no_restart(
    redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice, tmp_path: Path
) -> None:
    redis.command("CONFIG", "SET", "requirepass", PASSWORD)
    file = tmp_path / "password"
    file.write_text("wrong\n", encoding="utf-8")
    with start_sluice(
        routes=(broker.route(),), config=config(f"url = '{redis.url}'\npassword_file = '{file}'")
    ) as sluice:
        sluice.process.wait_for_line("wrong user or password", timeout_s=10)
        file.write_text(f"{PASSWORD}\n", encoding="utf-8")
        sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_fleet_away") == 0)
        sluice.process.wait_for_line("fleet Redis reachable again", timeout_s=10)


def test_a_process_that_takes_over_forgives_nothing(redis: RedisServer, broker: EmbeddedBroker, tmp_path: Path) -> None:
    text = "take_over = true\ngrace_s = 1.0\n" + config(f"url = '{redis.url}'")
    routes, began, before = (broker.route(),), time.monotonic(), broker.stored("orders")
    with Sluice(tmp_path, routes, config=text) as first:
        with FrameClient(routes[0].listen) as client:
            client.ask(*sends(2 * RATE, "orders"))
        with Sluice(tmp_path, routes, config=text):
            with FrameClient(routes[0].listen) as client:
                client.ask(*sends(2 * RATE, "orders"))
            assert broker.stored("orders") - before <= RATE * (time.monotonic() - began + 1)
            assert first.process.wait(timeout_s=30) == 0
            assert redis.command("HLEN", "sluice:{f}:members") == "2"


@pytest.mark.long
def test_a_fail_over_by_sentinel_needs_no_restart(
    redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice, tmp_path: Path
) -> None:
    with ExitStack() as running:
        replica = running.enter_context(RedisServer(tmp_path, "--replicaof", f"127.0.0.1 {redis.port}"))
        sentinels = [running.enter_context(RedisServer(tmp_path, watches=redis.port)) for _ in range(3)]
        # They must know each other, and the replica.
        deadline = time.monotonic() + 60
        while "slaves=1,sentinels=3" not in sentinels[0].command("INFO", "sentinel"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        url = f"url = 'sentinel://{','.join(f'127.0.0.1:{each.port}' for each in sentinels)}/main'"
        sluice = running.enter_context(start_sluice(routes=(broker.route(),), config=config(url)))
        assert sluice.metrics().total("sluice_fleet_away") == 0
        with Traffic(sluice, 2 * RATE):
            time.sleep(2)
            redis.process.kill()
            sentinels[0].process.signal(signal.SIGSTOP)
            sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_fleet_away") == 1)
            sluice.wait_for_metrics(lambda metrics: metrics.total("sluice_fleet_away") == 0)
            passed, seconds = passed_in(broker, 3)
        assert 0.9 * RATE * seconds <= passed <= RATE * (seconds + 1)
        assert "sluice:{f}:members" in replica.command("KEYS", "sluice:*")


@pytest.mark.long
def test_a_cluster_is_used_with_one_node_known(
    broker: EmbeddedBroker, start_sluice: StartSluice, tmp_path: Path
) -> None:
    with ExitStack() as running:
        how = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port")
        nodes = [running.enter_context(RedisServer(tmp_path, *how, str(free_port()))) for _ in range(3)]
        addresses = [f"127.0.0.1:{each.port}" for each in nodes]
        nodes[0].command("--cluster", "create", *addresses, "--cluster-yes")
        sluice = running.enter_context(
            start_sluice(routes=(broker.route(),), config=config(f"url = 'cluster://{addresses[2]}'"))
        )
        with Traffic(sluice, 2 * RATE):
            time.sleep(2)
            passed, seconds = passed_in(broker, 3)
        assert sluice.metrics().total("sluice_fleet_away") == 0
        assert 0.95 * RATE * seconds <= passed <= RATE * (seconds + 0.2)
        assert ask(sluice, "PUT", "limits/topic/orders?fleet=1", {"rate": 400, "fleet": True})[0] == 200
        assert sum("sluice:{f}:members" in each.command("KEYS", "*") for each in nodes) == 1


@pytest.mark.alone
@pytest.mark.long
def test_a_bad_network_to_redis_is_not_noticed_by_clients(
    redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice, tmp_path: Path
) -> None:
    with ExitStack() as running:
        network = Toxiproxy(tmp_path)
        running.callback(network.close)
        fleet = []
        for number in "012":
            network.relay(number, address := f"127.0.0.1:{free_port()}", f"127.0.0.1:{redis.port}")
            routes = (broker.route(),)
            fleet.append(
                running.enter_context(start_sluice(routes=routes, config=config(f"url = 'redis://{address}'")))
            )
        for each in fleet:
            running.enter_context(Traffic(each, RATE))
        quiet = running.enter_context(Traffic(fleet[0], 50, "quiet"))
        time.sleep(4)
        usually = p99(quiet)

        # kind, attributes, relays, stopped members, and the maximum throughput relative to the limit
        for kind, attributes, spoilt, away, most in (
            ("latency", {"latency": 2000}, "012", [1, 1, 1], 1.0),
            ("timeout", {"timeout": 0}, "0", [1, 0, 0], 4 / 3),
            ("bandwidth", {"rate": 1}, "012", [0, 0, 0], 1.0),
        ):
            with ExitStack() as spoiling:
                for number in spoilt:
                    spoiling.enter_context(network.toxic(number, kind, "downstream", attributes))
                passed, seconds = passed_in(broker, 6)
                assert 0.8 * RATE * seconds <= passed <= RATE * (most * seconds + 1), kind
                assert [each.metrics().total("sluice_fleet_away") for each in fleet] == away, kind
                assert p99(quiet) < 2 * usually + 0.02, kind
            passed, seconds = passed_in(broker, 4)
            assert 0.8 * RATE * seconds <= passed <= RATE * (seconds + 1.1), kind
            assert [each.metrics().total("sluice_fleet_away") for each in fleet] == [0, 0, 0], kind
        assert quiet.refused == 0
    for each in fleet:
        assert "Traceback" not in "\n".join(each.process.lines)


def test_a_delayed_message_waits_for_a_permit_of_the_fleet(
    redis: RedisServer, broker: EmbeddedBroker, start_sluice: StartSluice
) -> None:
    limit = '[[limits]]\nkind = "topic"\nname = "held"\nrate = 100\nfleet = true\naction = "delay"\nmax_delay_s = 20\n'
    text = f"[fleet]\nurl = '{redis.url}'\nname = 'f'\n{limit}"
    with ExitStack() as running:
        fleet = [running.enter_context(start_sluice(routes=(broker.route(),), config=text)) for _ in range(2)]
        clients = [running.enter_context(FrameClient(each.routes[0].listen)) for each in fleet]
        began = time.monotonic()
        with ThreadPoolExecutor() as threads:
            answers = list(threads.map(lambda client: client.ask(*sends(150, "held")), clients))
        # The burst, and the rest at the combined rate.
        assert [stored(each) for each in answers] == [150, 150]
        assert time.monotonic() - began >= 300 / 100 - 1
