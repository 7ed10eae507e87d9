"""What the integration tests share: one real broker, one sidecar in front of it, and ways to make more of both."""

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

# What the sidecar that most tests share has in force; the topics' names say which limit a test is about.
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
# The address that the broker advertises and the sidecar listens on; all of 127/8 is the loopback device on Linux.
_SIDECAR_HOST = "127.0.0.2"


@pytest.fixture(scope="session")
def java_classpath() -> str:
    """The class path with RocketMQ's client and tools, and Guava."""
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


# A broker of one module ends with it: an idle RocketMQ takes a twentieth of a core, and one that looks for transactions
# all the time half of it.
@pytest.fixture(scope="module")
def start_rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRocketMQ]:
    """Starts a name server with a broker on ports of their own; all are stopped after the module.

    By default the broker advertises an address where nothing listens until a sidecar does; with
    ``advertised_host="127.0.0.1"`` clients reach it without one.
    """
    with _rocketmqs(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """The broker that most tests share; give topics and groups names of their own."""
    with _rocketmqs(tmp_path_factory) as start:
        yield start()


@pytest.fixture(scope="module")
def start_slow_rocketmq(start_rocketmq: StartRocketMQ) -> StartRocketMQ:
    """Starts a broker whose disk takes 10 ms to flush and which has one thread for what is sent and sent back.

    It refuses what has waited for that thread for half a second. By default that is a fifth of a second, which a
    machine that is busy with something else may well let pass.
    """
    settings = {"sendMessageThreadPoolNums": "1", "flushDiskType": "SYNC_FLUSH", "waitTimeMillsInSendQueue": "500"}
    return partial(start_rocketmq, settings=settings, flush_ms=10)


@pytest.fixture(scope="module")
def slow_rocketmq(start_slow_rocketmq: StartRocketMQ) -> RocketMQ:
    """Such a broker, which advertises an address where nothing listens: each test puts something there for itself."""
    return start_slow_rocketmq()


@pytest.fixture(scope="module")
def rocketmq_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQProxy]:
    """RocketMQ's Proxy with a broker; give topics and groups names of their own."""
    with RocketMQProxy(tmp_path_factory.mktemp("rocketmq-proxy") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def start_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRabbitMQ]:
    """Starts a RabbitMQ broker on ports of its own; all are ended after the module.

    With TESTED_RABBITMQ_ROOT in the environment it is the one of the Debian there: ``make rabbitmq4``.
    """
    with _rabbitmqs(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The broker of most tests; give queues and exchanges names of their own."""
    with _rabbitmqs(tmp_path_factory) as start:
        yield start()


@pytest.fixture(scope="session")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """The broker of most tests of AMQP 1.0; give queues names of their own."""
    with Artemis(tmp_path_factory.mktemp("artemis") / "home") as running:
        yield running


@pytest.fixture(scope="session")
def rabbitmq4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """A RabbitMQ 4, which speaks AMQP 1.0 as well."""
    root = required(PARTS / "rabbitmq4" / ".stamp", "make rabbitmq4").parent / "root"
    with _rabbitmqs(tmp_path_factory) as start:
        yield start(root=root)


@pytest.fixture(scope="session", params=["artemis", pytest.param("rabbitmq4", marks=[pytest.mark.rabbitmq4])], ids=str)
def one_broker(request: pytest.FixtureRequest) -> OneBroker:
    """Either broker for AMQP 1.0."""
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
    """Starts sidecars; those still running are stopped after the module.

    ``start(rocketmq, config=…)`` is a sidecar where clients look for that broker, VIP channel included;
    ``start(routes=…)`` is one with listeners of one's own.
    """
    with _sluices(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def sluice(tmp_path_factory: pytest.TempPathFactory, rocketmq: RocketMQ) -> Iterator[Sluice]:
    """The sidecar in front of the shared broker, with limits for topics of certain names and for all retry groups."""
    with _sluices(tmp_path_factory) as start:
        yield start(rocketmq, config=_SHARED_LIMITS)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """An embedded broker for the tests of one module."""
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def client(sidecar: Sluice) -> Iterator[FrameClient]:
    """A connection to ``sidecar``, which is the module's own."""
    with FrameClient(sidecar.routes[0].listen) as connected:
        yield connected


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def create_topic(rocketmq: RocketMQ, _numbers: Iterator[int]) -> Callable[[str], str]:
    """Makes a topic on the shared broker, whose name begins as given and is nobody else's, and returns its name."""

    def create(prefix: str) -> str:
        return rocketmq.create_topic(f"{prefix}-{next(_numbers)}")

    return create


@pytest.fixture
def client_home(tmp_path: Path) -> Path:
    """A directory for a client's logs."""
    return tmp_path / "client"


@pytest.fixture
def listen() -> str:
    """``host:port`` that is free for a listener."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def unreachable() -> str:
    """``host:port`` where nothing listens."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which a few hundred kilobytes fill."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)
