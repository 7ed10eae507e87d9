"""A saturated sidecar: the limit, the decision of every message, memory."""

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from socket import IPPROTO_TCP, SHUT_WR, TCP_NODELAY, create_connection, create_server, socket

import pytest
from harness.sidecar import Route, Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_CHUNK_BYTES = 256 * 1024


def _send(topic: str) -> bytes:
    """Return a SEND_MESSAGE_V2 to a topic, with a small body."""
    fields = {"a": "load", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "m": "false"}
    header = json.dumps({"code": 310, "language": "JAVA", "version": 513, "opaque": 7, "flag": 0, "extFields": fields})
    body = b"." * 64
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header.encode() + body


class _Sink:
    """A broker that reads and never answers. It counts the occurrences of one mark."""

    def __init__(self, mark: bytes) -> None:
        self.marks = 0
        self._mark = mark
        self._lock = threading.Lock()
        self._listening = create_server(("127.0.0.1", 0), backlog=128)
        self._readers: list[threading.Thread] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
                self._readers.append(reader)
                reader.start()

    def _read(self, connection: socket) -> None:
        tail = b""
        with connection, suppress(OSError):
            while chunk := connection.recv(_CHUNK_BYTES):
                seen = tail + chunk
                with self._lock:
                    self.marks += seen.count(self._mark)
                tail = seen[-(len(self._mark) - 1) :]

    def finish(self) -> None:
        for reader in self._readers:
            reader.join(60)
            assert not reader.is_alive()
        self._listening.close()


@pytest.fixture
def sink() -> Iterator[_Sink]:
    sink = _Sink(b'"b": "limited"')
    with closing(sink._listening):
        yield sink


def _connect(sluice: Sluice) -> socket:
    host, _, port = sluice.routes[0].listen.rpartition(":")
    connection = create_connection((host, int(port)), timeout=300)
    connection.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    return connection


def _read_until_closed(connection: socket) -> threading.Thread:
    """Read busy answers and others, until the other side has closed."""

    def read() -> None:
        with suppress(OSError):
            while connection.recv(_CHUNK_BYTES):
                pass

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


def _pour(connection: socket, data: bytes, times: int) -> None:
    """Write as fast as the sidecar reads, then wait until it has closed."""
    with connection:
        reader = _read_until_closed(connection)
        for _ in range(times):
            connection.sendall(data)
        connection.shutdown(SHUT_WR)
        reader.join(300)
        assert not reader.is_alive()


def _most(rate_per_s: int, begun_s: float) -> float:
    """Return the maximum that a limit with a burst of one second may have admitted since ``begun_s``."""
    return rate_per_s * (time.monotonic() - begun_s) + rate_per_s


def test_64_saturating_connections_bypass_nothing_and_the_limit_holds(
    start_sluice: StartSluice, sink: _Sink, listen: str
) -> None:
    connections, chunks, limited, free = 64, 12, 100, 500
    chunk = _send("limited") * limited + _send("free") * free
    limits = ["topic:limited=50/s", "topic:*=unlimited"]
    with start_sluice(routes=(Route(listen, sink.address),), limits=limits, covered=False) as sluice:
        begun_s = time.monotonic()
        clients = [_connect(sluice) for _ in range(connections)]
        threads = [threading.Thread(target=_pour, args=(client, chunk, chunks), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
        sink.finish()
        most = _most(50, begun_s)
        metrics = sluice.metrics()

    def decided(topic: str, verdict: str) -> float:
        return metrics.total("sluice_requests_total", kind="topic", resource=topic, verdict=verdict)

    assert metrics.total("sluice_bypassed_total") == 0
    assert decided("free", "pass") == connections * chunks * free
    assert decided("limited", "pass") + decided("limited", "refuse") == connections * chunks * limited
    assert 50 <= sink.marks == decided("limited", "pass") <= most


def test_a_million_made_up_topics_take_bounded_memory_and_real_limits_hold(
    start_sluice: StartSluice, sink: _Sink, listen: str
) -> None:
    topics, a_chunk = 1_000_000, 1000
    template, real = _send("made-up-#######"), _send("limited")
    head, _, rest = template.partition(b"#######")
    limits = ["topic:limited=50/s", "topic:*=2000/s"]
    with start_sluice(routes=(Route(listen, sink.address),), limits=limits, covered=False) as sluice:
        begun_s = time.monotonic()
        with _connect(sluice) as client:
            reader = _read_until_closed(client)
            for first in range(0, topics, a_chunk):
                names = range(first, first + a_chunk)
                client.sendall(b"".join(b"%b%07d%b" % (head, name, rest) for name in names) + real * 20)
            client.shutdown(SHUT_WR)
            reader.join(300)
            assert not reader.is_alive()
        sink.finish()
        most = _most(50, begun_s)
        metrics = sluice.metrics()
        peak_kib = _peak_resident_kib(sluice)

    requests = metrics.total("sluice_requests_total", kind="topic")
    assert requests == topics + topics // a_chunk * 20
    assert 50 <= sink.marks <= most
    assert metrics.total("sluice_bypassed_total") == 0
    assert metrics.total("sluice_live_limiters") <= 100_001
    assert peak_kib < 250 * 1000


def _peak_resident_kib(sluice: Sluice) -> int:
    """Return the process's peak resident memory."""
    status = Path(f"/proc/{sluice.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
