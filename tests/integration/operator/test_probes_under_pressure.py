"""Whether probes are answered while others misuse the admin address: every one of them, whatever the rest does.

How long they took is printed (``pytest -s``) and not asserted.
"""

import selectors
import socket
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final, Self

import pytest
from harness.embedded import EmbeddedBroker
from harness.sidecar import Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.long]

PROBES: Final = 20
#: As patient as the probes of the chart.
PROBE_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.1
_MAX_OPENED: Final = 50_000
_TIMEOUT_S: Final = 60.0

HEAD: Final = "{method} {path} HTTP/1.1\r\nHost: {host}\r\n"


class Pressure:
    """Keeps so many connections open from a thread, each having said the same; those that are closed come anew.

    Args:
        address: where to.
        count: how many at once.
        said: what each says at first.
        reads: whether what is answered is read.
    """

    def __init__(self, address: str, count: int, said: bytes, *, reads: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._count, self._said, self._reads = count, said, reads
        self._stop = threading.Event()
        self._all_open = threading.Event()
        self._unread: list[socket.socket] = []
        self.opened = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._all_open.wait(_TIMEOUT_S)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for _ in range(self._count):
                self._open(selector)
            self._all_open.set()
            while not self._stop.is_set():
                for key, events in selector.select(0.05):
                    self._serve(selector, key, events)
            for connection in [key.fileobj for key in selector.get_map().values()] + self._unread:
                connection.close()  # type: ignore[union-attr]  # all are sockets

    def _open(self, selector: selectors.BaseSelector) -> None:
        if self.opened >= _MAX_OPENED:
            return
        self.opened += 1
        connection = socket.socket()
        if not self._reads:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        connection.connect_ex(self._address)
        selector.register(connection, selectors.EVENT_WRITE)

    def _serve(self, selector: selectors.BaseSelector, key: selectors.SelectorKey, events: int) -> None:
        connection = key.fileobj
        assert isinstance(connection, socket.socket)
        try:
            if events & selectors.EVENT_WRITE:
                connection.send(self._said)
                if self._reads:
                    selector.modify(connection, selectors.EVENT_READ)
                else:
                    selector.unregister(connection)
                    self._unread.append(connection)
                return
            closed = not connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            closed = True
        if closed:
            selector.unregister(connection)
            connection.close()
            self._open(selector)


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    with start_sluice(routes=(broker.route(),)) as running:
        yield running


def half_sent(sidecar: Sluice, count: int = 400) -> Pressure:
    return Pressure(sidecar.admin, count, b"GET /api/v1/limits HTTP/1.1\r\nHost: ")


def event_streams(sidecar: Sluice, count: int = 300) -> Pressure:
    return Pressure(sidecar.admin, count, request(sidecar, "GET", "/api/v1/events"))


def slow_bodies(sidecar: Sluice, count: int = 150) -> Pressure:
    fields = "Content-Type: application/json\r\nContent-Length: 1000\r\n"
    return Pressure(sidecar.admin, count, request(sidecar, "PUT", "/api/v1/limits/topic/orders", fields) + b'{"rate": ')


def unread_answers(sidecar: Sluice, count: int = 300) -> Pressure:
    return Pressure(sidecar.admin, count, request(sidecar, "GET", "/metrics") * 100, reads=False)


def whole_requests(sidecar: Sluice, count: int = 300) -> Pressure:
    return Pressure(sidecar.admin, count, request(sidecar, "GET", "/", "Connection: close\r\n"))


def request(sidecar: Sluice, method: str, path: str, fields: str = "") -> bytes:
    return (HEAD.format(method=method, path=path, host=sidecar.admin) + fields + "\r\n").encode()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
@pytest.mark.parametrize(
    "pressures",
    [
        pytest.param([half_sent], id="half-sent requests"),
        pytest.param([event_streams, slow_bodies], id="event streams and slow bodies"),
        pytest.param([unread_answers], id="answers that nobody reads"),
        pytest.param([whole_requests], id="requests for the page"),
        pytest.param(
            [
                partial(half_sent, count=200),
                partial(event_streams, count=150),
                partial(slow_bodies, count=75),
                partial(unread_answers, count=100),
                partial(whole_requests, count=100),
            ],
            id="all at once",
        ),
    ],
)
def test_every_probe_is_answered(
    sidecar: Sluice, pressures: list[Callable[[Sluice], Pressure]], path: str, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as running:
        opened = [running.enter_context(pressure(sidecar)) for pressure in pressures]
        took_s = [probe(sidecar, path) for _ in range(PROBES)]
    after = sum(pressure.opened for pressure in opened)
    figures = f"median {statistics.median(took_s) * 1e3:.0f} ms, longest {max(took_s) * 1e3:.0f} ms"
    print(f"\n{request.node.callspec.id}: {figures}; {after} connections were opened")


def probe(sidecar: Sluice, path: str) -> float:
    """Ask as a probe does, on a connection of its own; returns how long it took, in seconds."""
    time.sleep(_PAUSE_S)
    began = time.monotonic()
    with urllib.request.urlopen(f"http://{sidecar.admin}{path}", timeout=PROBE_TIMEOUT_S) as answer:
        assert answer.status == 200
        answer.read()
    return time.monotonic() - began
