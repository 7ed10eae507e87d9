"""Real clients of RocketMQ 5 through Sluice, with a real Proxy: limits, kinds of messages, routes, TLS, a total."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from certificates import HOST, Certificates
from harness.clients import grpc_client, run_client
from harness.connections import inodes_connected_to, inodes_of
from harness.ports import free_port
from harness.remoting import RemotingClient
from harness.rocketmq_proxy import RocketMQProxy
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration]

_SENDING_S = 10
_RATE = 50
# 50 permits a second for ten seconds, from a full bucket.
_STORED = range(475, 561)
_SOURCES = {"java": "GrpcFlatOut", "python": "flat_out.py", "node": "flat_out.js"}
# Each client's text of a refusal, before Sluice's own.
_SHOWN = {
    "java": r"TooManyRequestsException: \[request-id=.*, response-code=42900\] ",
    "python": r"TooManyRequestsException: 42900, ",
    "node": r"TooManyRequestsException: .*",
}
_numbers = count(1)

# The first of them is a quick test.
languages = pytest.mark.parametrize(
    "language", [pytest.param(each, marks=pytest.mark.long if at else ()) for at, each in enumerate(_SOURCES)]
)


def _topic(proxy: RocketMQProxy, prefix: str, message_type: str = "NORMAL") -> str:
    return proxy.create_topic(f"{prefix}-{next(_numbers)}", message_type=message_type)


def _before(proxy: RocketMQProxy, start_sluice: StartSluice, *limits: str, config: str = "") -> Sluice:
    listen = f"{HOST}:{free_port()}"
    if config:
        config += f'\n[[listeners]]\nlisten = "{listen}"\nbroker = "{proxy.grpc}"\nprotocol = "rocketmq-grpc"\n'
    return start_sluice(routes=(Route(listen, proxy.grpc),), protocol="rocketmq-grpc", limits=limits, config=config)


def _send(
    language: str,
    sluice: Sluice,
    *topics: str,
    home: Path,
    attempts: int = 1,
    seconds: int = _SENDING_S,
    tls: bool = False,
) -> Any:
    arguments = (sluice.routes[0].listen, "tls" if tls else "plain", str(attempts), str(seconds), *topics)
    command = grpc_client(language, _SOURCES[language], *arguments, home=home)
    return run_client(command, home=home, seconds=seconds)


def _troubles(sluice: Sluice) -> dict[str, float]:
    """Return the numbers of connections that did not end by the client's close, and of bypassing ones."""
    metrics = sluice.metrics()
    found = Counter({"bypassed": metrics.total("sluice_bypassed_total")})
    for (name, labels), value in metrics.items():
        if name == "sluice_connections_closed_total":
            found[dict(labels)["reason"]] += value
    # A JVM that ends may reset unread data.
    del found["client_closed"], found["client_error"]
    return dict(+found)


@pytest.mark.alone
@languages
def test_a_limited_topic_holds_its_limit_and_a_free_one_loses_nothing(
    language: str, rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path
) -> None:
    sluice = _before(rocketmq_proxy, start_sluice, f"topic:limited-*={_RATE}/s")
    limited, free = _topic(rocketmq_proxy, "limited"), _topic(rocketmq_proxy, "free")

    report = _send(language, sluice, limited, free, home=client_home)

    stored = rocketmq_proxy.stored_messages(limited)
    assert stored in _STORED, report
    told = report[limited]
    assert (told["stored"], told["failed"]) == (stored, 0), report
    assert told["refused"] > 0
    text = rf"\[RateLimit\] for {limited} need wait:\d+microsecs, rule topic:limited-\*"
    assert re.search(_SHOWN[language] + text, told["refusal"]), report
    assert rocketmq_proxy.stored_messages(free) == report[free]["stored"] > 0, report
    assert report[free]["failed"] == report[free]["refused"] == 0, report
    metrics = sluice.metrics()
    assert metrics.total("sluice_requests_total", resource=limited, verdict="refuse") == told["refused"]
    assert _troubles(sluice) == {}


# The number of requests of one refused call, with the client's own retries.
_ATTEMPTS = {"java": 3, "python": 1, "node": 3}


@pytest.mark.alone
@pytest.mark.long
@languages
def test_a_clients_attempts_are_as_documented(
    language: str, rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path
) -> None:
    sluice = _before(rocketmq_proxy, start_sluice, "topic:refused-*=0/s")
    topic = _topic(rocketmq_proxy, "refused")
    report = _send(language, sluice, topic, home=client_home, attempts=0, seconds=3)
    refused = report[topic]["refused"]
    assert refused > 0, report
    metrics = sluice.metrics()
    assert metrics.total("sluice_requests_total", resource=topic, verdict="refuse") == refused * _ATTEMPTS[language]
    repeated = metrics.total("sluice_repeated_requests_total")
    assert repeated == refused * (_ATTEMPTS[language] - 1)


@pytest.fixture
def kinds(rocketmq_proxy: RocketMQProxy) -> Callable[[], str]:
    """Makes topics and groups for GrpcKinds, and returns their prefix."""

    def make() -> str:
        prefix = f"kinds-{next(_numbers)}"
        for each in ("normal", "fifo", "delay", "transaction"):
            rocketmq_proxy.create_topic(f"{prefix}-{each}", message_type=each.upper())
        for group in ("push", "delay", "transaction", "simple"):
            rocketmq_proxy.create_group(f"{prefix}-{group}")
        rocketmq_proxy.create_group(f"{prefix}-fifo", in_order=True)
        rocketmq_proxy.create_group(f"{prefix}-dead", in_order=True, most_retries=1)
        return prefix

    return make


@pytest.mark.long
def test_every_kind_of_message_is_as_without_sluice(
    kinds: Callable[[], str], rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path
) -> None:
    sluice = _before(rocketmq_proxy, start_sluice, "topic:elsewhere=1/s", "subscription:*@elsewhere=1/s")
    reports, prefixes = {}, {}
    watch = _Watch(rocketmq_proxy.grpc_port, sluice.process.pid)
    for way, endpoints in (("directly", rocketmq_proxy.grpc), ("sluice", sluice.routes[0].listen)):
        prefixes[way] = kinds()
        home = client_home / way
        command = grpc_client("java", "GrpcKinds", endpoints, "plain", prefixes[way], home=home)
        with watch if way == "sluice" else threading.Lock():
            reports[way] = run_client(command, home=home, seconds=240)

    assert reports["sluice"] == reports["directly"]
    assert reports["sluice"] == {
        "normal": sorted([f"normal-{number}" for number in range(20)]),
        "normal again": ["normal-0"],
        "fifo": [f"fifo-{number}" for number in range(20)],
        "delay": ["delayed"],
        "transaction": ["asked about", "committed"],
        "dead": ["dead", "dead", "behind"],
        "simple": ["simple 1", "simple 2"],
    }
    for prefix in prefixes.values():
        assert rocketmq_proxy.stored_messages(f"%DLQ%{prefix}-dead") == 1
    # The Proxy's own address in its answers was never used.
    assert watch.strangers == set()
    metrics = sluice.metrics()
    assert metrics.total("sluice_routes_total", outcome="rewritten") > 0
    assert metrics.total("sluice_routes_total", outcome="unread") == 0
    for kind, name in {
        "topic": f"{prefixes['sluice']}-normal",
        "subscription": f"{prefixes['sluice']}-push@{prefixes['sluice']}-normal",
        "retry_group": f"{prefixes['sluice']}-dead",
        "transaction": f"{prefixes['sluice']}-transaction",
    }.items():
        assert metrics.total("sluice_requests_total", kind=kind, resource=name, verdict="pass") > 0, kind
    assert _troubles(sluice) == {}


class _Watch:
    """Looks for connections to a port that do not belong to a process."""

    def __init__(self, port: int, pid: int) -> None:
        self._port, self._pid = port, pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.strangers: set[str] = set()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            own = inodes_of(self._pid)
            self.strangers |= inodes_connected_to(self._port) - own - inodes_of(self._pid)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("sluice", HOST)
    return made


@languages
@pytest.mark.parametrize("to_proxy", ["plain", pytest.param("TLS", marks=pytest.mark.long)])
def test_tls_ends_here(
    *,
    language: str,
    to_proxy: str,
    rocketmq_proxy: RocketMQProxy,
    start_sluice: StartSluice,
    certificates: Certificates,
    client_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For gRPC's C core and Node. Java's client accepts any certificate.
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", certificates.path("ca.pem"))
    config = (
        '[[limits]]\nkind = "topic"\nname = "limited-*"\nrate = 1\n[[listeners]]\n'
        f'listen = "{HOST}:{free_port()}"\nbroker = "{rocketmq_proxy.grpc}"\nprotocol = "rocketmq-grpc"\n'
        f'tls = "require"\ntls_certificate_file = "{certificates.path("sluice.pem")}"\n'
        f'tls_key_file = "{certificates.path("sluice.key")}"\n'
    )
    if to_proxy == "TLS":
        # The Proxy's certificate is self-signed.
        config += "broker_tls = true\nbroker_tls_verify = false\n"
    listen = config.partition('listen = "')[2].partition('"')[0]
    sluice = start_sluice(routes=(Route(listen, rocketmq_proxy.grpc),), config=config)
    limited, free = _topic(rocketmq_proxy, "limited"), _topic(rocketmq_proxy, "free")

    report = _send(language, sluice, limited, free, home=client_home, seconds=3, tls=True)

    assert report[limited]["refused"] > 0 < report[limited]["stored"], report
    assert report[free]["stored"] == rocketmq_proxy.stored_messages(free) > 0, report
    assert report[free]["failed"] == report[limited]["failed"] == 0, report
    assert _troubles(sluice) == {}


@pytest.mark.alone
@pytest.mark.long
def test_both_protocols_of_one_process_share_a_total(
    rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path
) -> None:
    remoting = f"{HOST}:{free_port()}"
    config = f"""
[[limits]]
kind = "topic"
name = "both-*"
rate = {_RATE}
shared = true
break_s = 0

[[listeners]]
listen = "{remoting}"
broker = "{HOST}:{rocketmq_proxy.port}"
protocol = "rocketmq"
"""
    sluice = _before(rocketmq_proxy, start_sluice, config=config)
    old, new = _topic(rocketmq_proxy, "both"), _topic(rocketmq_proxy, "both")
    over, began_s = threading.Event(), time.monotonic()

    def send_by_remoting() -> int:
        host, _, port = remoting.partition(":")
        stored = 0
        with RemotingClient(host, int(port)) as client:
            while not over.is_set():
                stored += client.send(old, 1)
        return stored

    with ThreadPoolExecutor() as pool:
        sending = pool.submit(send_by_remoting)
        report = _send("python", sluice, new, home=client_home)
        over.set()
        by_remoting = sending.result()
    took_s = time.monotonic() - began_s

    stored = [rocketmq_proxy.stored_messages(topic) for topic in (old, new)]
    assert stored == [by_remoting, report[new]["stored"]]
    assert min(stored) > 0
    assert 0.9 * _RATE * took_s <= sum(stored) <= _RATE * (took_s + 1) + 1
    metrics = sluice.metrics()
    assert metrics.total("sluice_requests_total", verdict="refuse") > 0
    assert _troubles(sluice) == {}


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("way", ["push", "simple"])
def test_consumers_keep_to_a_limit_and_see_no_error(
    way: str, rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path
) -> None:
    topic, group = _topic(rocketmq_proxy, "consumed"), rocketmq_proxy.create_group(f"takes-{next(_numbers)}")
    rocketmq_proxy.fill(topic, 2000)
    sluice = _before(rocketmq_proxy, start_sluice, f"subscription:{group}@{topic}={_RATE}/s")
    arguments = (sluice.routes[0].listen, "plain", way, group, topic, "400", "60", "0", "0")
    report = run_client(grpc_client("java", "GrpcConsume", *arguments, home=client_home), home=client_home, seconds=60)

    times = sorted(report["times_ms"])
    assert report["errors"] == []
    assert len(times) >= 400
    # At first each queue is asked once before its content is known.
    first, last = times[0] + 3_000, times[-1]
    taken = sum(first < each <= last for each in times)
    assert taken / ((last - first) / 1000) == pytest.approx(_RATE, rel=0.25)
    assert _troubles(sluice) == {}


@pytest.mark.alone
@pytest.mark.long
def test_send_backs_of_consumers_are_limited_by_group(
    rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path
) -> None:
    topic, group = _topic(rocketmq_proxy, "failing"), rocketmq_proxy.create_group(f"fails-{next(_numbers)}")
    rocketmq_proxy.fill(topic, 100)
    sluice = _before(rocketmq_proxy, start_sluice, f"retry_group:{group}=20/s")
    arguments = (sluice.routes[0].listen, "plain", "push", group, topic, "200", "90", "1", "0")
    report = run_client(grpc_client("java", "GrpcConsume", *arguments, home=client_home), home=client_home, seconds=90)

    assert len(report["times_ms"]) >= 200
    metrics = sluice.metrics()
    assert metrics.total("sluice_requests_total", kind="retry_group", resource=group) >= 100
    assert metrics.total("sluice_rule_held_total", rule=f"retry_group:{group}") > 0
    assert _troubles(sluice) == {}


@pytest.mark.long
def test_nine_minutes_of_silence_end_nothing(
    rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path
) -> None:
    topic, group = _topic(rocketmq_proxy, "silent"), rocketmq_proxy.create_group(f"silent-{next(_numbers)}")
    sluice = _before(rocketmq_proxy, start_sluice, "topic:elsewhere=1/s")
    arguments = (sluice.routes[0].listen, "plain", "push", group, topic, "5", "60", "0", "530")
    report = run_client(grpc_client("java", "GrpcConsume", *arguments, home=client_home), home=client_home, seconds=600)

    assert len(report["times_ms"]) == 5
    # Client and producer have one connection each, to the end.
    assert sluice.metrics().total("sluice_connections_opened_total") == 2
    assert _troubles(sluice) == {}


def test_sluice_knows_its_clients(rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice, client_home: Path) -> None:
    sluice = _before(rocketmq_proxy, start_sluice, "topic:elsewhere=1/s")
    topic = _topic(rocketmq_proxy, "known")
    seen: dict[str, Any] = {}

    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            rows = json.loads(sluice.get("/api/v1/connections")[1])["rows"]
            seen.update({row["client"]["language"]: row for row in rows})

    with ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        # The list is up to five seconds old.
        _send("node", sluice, topic, home=client_home, seconds=8)
        over.set()
        looking.result()
    row = seen.get("NODE_JS")
    assert row is not None, seen
    assert row["client"]["version"] == "1.0.8", row
    assert f"topic:{topic}" in row["resources"], row
