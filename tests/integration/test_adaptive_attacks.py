"""A client that does not read, and a broker that does not answer for some topics or is always busy: others pass."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from typing import Final

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, pull, send, stored
from harness.sidecar import Sluice, StartSluice
from storing_broker import StoringBroker

from admin.demo.broker import Channel, Refused
from proxy.protocols.rocketmq.wire.codes import RequestCode, ResponseCode
from proxy.protocols.rocketmq.wire.command import RemotingCommand, encode

pytestmark = [pytest.mark.integration, pytest.mark.alone]

_CONFIG: Final = '[[limits]]\nkind = "listener"\nname = "*"\nadaptive = true\nfloor = 50\n'
_QUIET: Final = ("orders", "invoices", "payments")
_SECONDS: Final = 6
_AT_ONCE, _PAUSE_S = 10, 0.01
_ATTACK_PER_S: Final = _AT_ONCE / _PAUSE_S
_PULLED_BYTES: Final = 500_000
_BUSY: Final = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 201ms"


class _OddBroker(StoringBroker):
    """Some topics get no answer, others always the same one. The rest is stored at once."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers[RequestCode.SEND_MESSAGE_V2] = self._send_oddly

    def _send_oddly(self, channel: Channel, request: RemotingCommand) -> bytes | None:
        topic = request.fields["b"]
        if topic.startswith("silent"):
            return None
        if topic.startswith("busy"):
            raise Refused(ResponseCode.SYSTEM_BUSY, _BUSY)
        return self._send(channel, request)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(_OddBroker()) as running:
        yield running


@pytest.fixture
def sluice(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    with start_sluice(routes=(broker.route(),), config=_CONFIG) as sidecar:
        yield sidecar


@contextmanager
def _attack(sluice: Sluice, *topics: str, reads: bool) -> Iterator[None]:
    """Send to the topics in turn, on one connection. A client that does not read also pulls a lot."""
    host, _, port = sluice.routes[0].listen.rpartition(":")
    turns = cycle(topics)
    over = threading.Event()

    def write() -> None:
        client.sendall(encode(send(topics[0], body=bytes(_PULLED_BYTES))))
        while not over.wait(_PAUSE_S):
            commands = [send(next(turns)) for _ in range(_AT_ONCE)]
            commands += [] if reads else [pull("deaf", topics[0], 0, most=1)]
            client.sendall(b"".join(map(encode, commands)))

    def read() -> None:
        while client.recv(1 << 16):
            pass

    def until_closed(act: Callable[[], None]) -> None:
        with suppress(OSError):
            act()

    with socket.create_connection((host, int(port))) as client:
        threads = [threading.Thread(target=until_closed, args=(act,)) for act in (write, *([read] if reads else []))]
        for thread in threads:
            thread.start()
        yield
        over.set()
        client.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def _refused(sluice: Sluice, per_s: int, seconds: int) -> int:
    """Send to the quiet topics, each on its own connection. Return the number of messages not stored."""
    refused = 0
    pause = threading.Event()
    start_s = time.monotonic()
    with ExitStack() as closing:
        clients = {topic: closing.enter_context(FrameClient(sluice.routes[0].listen)) for topic in _QUIET}
        for number in range(seconds * per_s):
            pause.wait(max(0.0, start_s + number / per_s - time.monotonic()))
            refused += sum(1 - stored(client.ask(send(topic))) for topic, client in clients.items())
    return refused


def _many(name: str) -> list[str]:
    return [f"{name}{number}" for number in range(500)]


@pytest.mark.parametrize(
    ("topics", "reads", "per_s", "limited"),
    [
        pytest.param(["deaf"], False, 10, False, id="client-does-not-read", marks=pytest.mark.long),
        pytest.param(_many("deaf"), False, 10, False, id="client-does-not-read-of-many"),
        pytest.param(_many("orders"), True, 30, False, id="many-names", marks=pytest.mark.long),
        pytest.param(["silent"], True, 10, True, id="broker-does-not-answer", marks=pytest.mark.long),
        pytest.param(["busy"], True, 10, True, id="broker-is-always-busy"),
    ],
)
def test_topics_of_others_lose_nothing(
    sluice: Sluice, *, topics: list[str], reads: bool, per_s: int, limited: bool
) -> None:
    assert _refused(sluice, per_s, 2) == 0
    with _attack(sluice, *topics, reads=reads):
        assert _refused(sluice, per_s, _SECONDS) == 0
        explained = sluice.explain(kind="topic", name="orders")["limits"][0]["details"]
        print(explained[-1]["text"])
        if limited:
            assert 0 < sluice.metrics().total("sluice_adaptive_limit") < _ATTACK_PER_S
