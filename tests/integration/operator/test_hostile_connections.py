"""300 hostile connections to the admin address: probes and a scrape are answered, memory and descriptors are bounded.

The duration of the probes is printed (``pytest -s``) and not asserted.
"""

import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send
from harness.sidecar import Sluice, StartSluice

from proxy.protocols.rocketmq.wire.codes import ResponseCode

pytestmark = pytest.mark.integration

HOSTILE: Final = 300
MAX_ADMIN: Final = 256
# As in the chart.
PROBE_TIMEOUT_S: Final = 5.0
# A scrape of 20 MB takes seconds on a busy machine.
SCRAPE_TIMEOUT_S: Final = 60.0
# 64 MiB of unsent answers, one scrape in progress, and memory that the interpreter does not return.
MAX_GROWTH_MIB: Final = 256
# Enough for a scrape of 20 MB.
LIMITS: Final = 30_000
HEAD: Final = "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    limits = "".join(
        f'[[limits]]\nkind = "topic"\nname = "orders-of-customer-{number}"\nrate = 10\n' for number in range(LIMITS)
    )
    with start_sluice(routes=(broker.route(),), config=limits) as running:
        yield running


def said(sidecar: Sluice, what: str) -> bytes:
    host = sidecar.admin
    match what:
        case "nothing":
            return b""
        case "half a head":
            return b"GET /api/v1/limits HTTP/1.1\r\nHost: "
        case "half a body":
            fields = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
            return f'PUT /api/v1/limits/topic/orders HTTP/1.1\r\n{fields}{{"rate": '.encode()
        case _:
            return HEAD.format(path=what, host=host).encode() * 20


def hold(address: str, text: bytes) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(text)
    return connection


def probe(sidecar: Sluice, path: str, timeout_s: float = PROBE_TIMEOUT_S) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(f"http://{sidecar.admin}{path}", timeout=timeout_s) as answer:
        assert answer.status == 200
        answer.read()
    return time.monotonic() - began


def rss_mib(sidecar: Sluice) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{sidecar.process.pid}/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1]) / 1024


@pytest.mark.parametrize(
    "what",
    [
        "half a head",
        *(
            pytest.param(each, marks=pytest.mark.long)
            for each in ("nothing", "half a body", "/metrics", "/api/v1/limits?limit=500", "/api/v1/events")
        ),
    ],
)
def test_hostile_connections_hold_up_neither_probes_nor_messages(sidecar: Sluice, what: str) -> None:
    before_mib = rss_mib(sidecar)
    text = said(sidecar, what)
    with ExitStack() as hostile:
        for _ in range(HOSTILE):
            hostile.callback(hold(sidecar.admin, text).close)
        took_s = [probe(sidecar, path) for path in ("/healthz", "/readyz") * 5]
        scrape_s = probe(sidecar, "/metrics", SCRAPE_TIMEOUT_S)
        with FrameClient(sidecar.routes[0].listen) as client:
            (answer,) = client.ask(send("undisturbed"))
        assert answer.code == ResponseCode.SUCCESS
        descriptors = len(list(Path(f"/proc/{sidecar.process.pid}/fd").iterdir()))
        grown_mib = rss_mib(sidecar) - before_mib
    assert sidecar.metrics().total("sluice_admin_refused_total", reason="evicted") > 0
    assert descriptors < MAX_ADMIN + 100
    assert grown_mib < MAX_GROWTH_MIB
    print(f"\n{what}: probes up to {max(took_s) * 1e3:.0f} ms, scrape {scrape_s * 1e3:.0f} ms, +{grown_mib:.0f} MiB")
