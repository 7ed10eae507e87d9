"""Fixtures of the integration tests: a shared real broker with a sidecar in front of it, and factories for more."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from os import environ
from pathlib import Path
from typing import Any

import pytest
from harness.artemis import Artemis
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient
from harness.one_broker import OneBroker
from harness.paths import PARTS, required, rocketmq_classpath
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ, StartRabbitMQ
from harness.rocketmq import RocketMQ, StartRocketMQ
from harness.rocketmq_proxy import RocketMQProxy
from harness.sidecar import Route, Sluice, StartSluice

# Limits of the shared sidecar. The topics' names say which limit a test is about.
_SHARED_LIMITS = """
[[limits]]
kind = "topic"
name = "limited-*"
rate = 50

[[limits]]
kind = "topic"
name = "batches-*"
rate = 160

[[limits]]
kind = "topic"
name = "bytes-*"
rate = "unlimited"
bytes_per_s = 100_000

[[limits]]
kind = "topic"
name = "requests-*"
rate = 10
count = "requests"

[[limits]]
kind = "topic"
name = "refused-*"
rate = 0

[[limits]]
kind = "retry_group"
name = "*"
rate = 5

[[limits]]
kind = "retry_group"
name = "refused-*"
rate = 5
action = "reject"
"""
# The address that the broker advertises and the sidecar listens on. On Linux, all of 127/8 is the loopback device.
_SIDECAR_HOST = "127.0.0.2"


@pytest.fixture(scope="session")
def java_classpath() -> str:
    """RocketMQ's client and tools, and Guava."""
    return rocketmq_classpath()


@contextmanager
def _rocketmqs(homes: pytest.TempPathFactory) -> Iterator[StartRocketMQ]:
    with ExitStack() as running:

        def start(*, advertised_host: str = _SIDECAR_HOST, **how: Any) -> RocketMQ:
            return running.enter_context(
                RocketMQ(homes.mktemp("rocketmq") / "home", advertised_host=advertised_host, **how)
            )

        yield start


@contextmanager
def _rabbitmqs(homes: pytest.TempPathFactory) -> Iterator[StartRabbitMQ]:
    root = environ.get("TESTED_RABBITMQ_ROOT")
    with ExitStack() as running:

        def start(**how: Any) -> RabbitMQ:
            how.setdefault("root", Path(root).absolute() if root else None)
            return running.enter_context(RabbitMQ(homes.mktemp("rabbitmq") / "home", **how))

        yield start


# Stop each module's broker with it: an idle RocketMQ takes a twentieth of a core, or half of one if it looks for
# transactions.
@pytest.fixture(scope="module")
def start_rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRocketMQ]:
    """Starts name servers and brokers on their own ports. All are stopped after the module.

    By default the broker advertises an address where only a sidecar listens. With ``advertised_host="127.0.0.1"``
    clients reach it directly.
    """
    with _rocketmqs(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """The broker that most tests share. Use your own topics and groups."""
    with _rocketmqs(tmp_path_factory) as start:
        yield start()


@pytest.fixture(scope="module")
def start_slow_rocketmq(start_rocketmq: StartRocketMQ) -> StartRocketMQ:
    """Starts a broker whose disk takes 10 ms to flush, with one thread for sends and send-backs.

    It refuses requests that have waited for that thread for half a second. The default of a fifth of a second is too
    short on a busy machine.
    """
    settings = {"sendMessageThreadPoolNums": "1", "flushDiskType": "SYNC_FLUSH", "waitTimeMillsInSendQueue": "500"}
    return partial(start_rocketmq, settings=settings, flush_ms=10)


@pytest.fixture(scope="module")
def slow_rocketmq(start_slow_rocketmq: StartRocketMQ) -> RocketMQ:
    """It advertises an address where nothing listens, so that a test can put a sidecar there."""
    return start_slow_rocketmq()


@pytest.fixture(scope="module")
def rocketmq_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQProxy]:
    """RocketMQ's Proxy with a broker. Use your own topics and groups."""
    with RocketMQProxy(tmp_path_factory.mktemp("rocketmq-proxy") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def start_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRabbitMQ]:
    """Starts RabbitMQ brokers on their own ports. All are stopped after the module.

    With TESTED_RABBITMQ_ROOT in the environment it is the one of the Debian there: ``make rabbitmq4``.
    """
    with _rabbitmqs(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The broker of most tests. Use your own queues and exchanges."""
    with _rabbitmqs(tmp_path_factory) as start:
        yield start()


@pytest.fixture(scope="session")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """The broker of most tests of AMQP 1.0. Use your own queues."""
    with Artemis(tmp_path_factory.mktemp("artemis") / "home") as running:
        yield running


@pytest.fixture(scope="session")
def rabbitmq4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    root = required(PARTS / "rabbitmq4" / ".stamp", "make rabbitmq4").parent / "root"
    with _rabbitmqs(tmp_path_factory) as start:
        yield start(root=root)


@pytest.fixture(scope="session", params=["artemis", pytest.param("rabbitmq4", marks=[pytest.mark.rabbitmq4])], ids=str)
def one_broker(request: pytest.FixtureRequest) -> OneBroker:
    """Both brokers for AMQP 1.0."""
    return OneBroker(request.getfixturevalue(request.param))


@contextmanager
def _sluices(homes: pytest.TempPathFactory) -> Iterator[StartSluice]:
    with ExitStack() as running:

        def start(rocketmq: RocketMQ | None = None, *, routes: tuple[Route, ...] = (), **how: object) -> Sluice:
            if rocketmq is not None:
                routes += tuple(
                    Route(f"{rocketmq.advertised_host}:{port}", f"{rocketmq.host}:{port}")
                    for port in (rocketmq.port, rocketmq.vip_port)
                )
            return running.enter_context(Sluice(homes.mktemp("sluice"), routes, **how))

        yield start


@pytest.fixture(scope="module")
def start_sluice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSluice]:
    """Starts sidecars, and stops them after the module.

    ``start(rocketmq, config=…)`` is a sidecar where clients look for that broker, VIP channel included.
    ``start(routes=…)`` has custom listeners.
    """
    with _sluices(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def sluice(tmp_path_factory: pytest.TempPathFactory, rocketmq: RocketMQ) -> Iterator[Sluice]:
    """The sidecar in front of the shared broker, with limits for certain topics and for all retry groups."""
    with _sluices(tmp_path_factory) as start:
        yield start(rocketmq, config=_SHARED_LIMITS)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def client(sidecar: Sluice) -> Iterator[FrameClient]:
    with FrameClient(sidecar.routes[0].listen) as connected:
        yield connected


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def create_topic(rocketmq: RocketMQ, _numbers: Iterator[int]) -> Callable[[str], str]:
    """Makes a topic with a unique name on the shared broker, and returns its name."""

    def create(prefix: str) -> str:
        return rocketmq.create_topic(f"{prefix}-{next(_numbers)}")

    return create


@pytest.fixture
def client_home(tmp_path: Path) -> Path:
    return tmp_path / "client"


@pytest.fixture
def listen() -> str:
    """A free ``host:port``."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def unreachable() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that a few hundred kilobytes fill."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)
