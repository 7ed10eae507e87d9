"""HTTP/2 attacks on a listener of RocketMQ 5: they end their own connection, and others are not affected."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from harness.grpc_calls import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    GrpcCalls,
    frame,
    send_request,
)
from harness.ports import free_port
from harness.rocketmq_proxy import RocketMQProxy
from harness.sidecar import Metrics, Route, Sluice, StartSluice
from hpack import Encoder

from proxy.protocols.rocketmq_grpc.messages import OK, read_answer

pytestmark = [pytest.mark.integration]

_TIMEOUT_S = 60.0
_TIMES = 40_000
_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
    (":authority", "sluice"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def _rapid_resets() -> Iterator[bytes]:
    encoder = Encoder()
    for stream in range(1, 2 * _TIMES, 2):
        yield frame(HEADERS, END_HEADERS, stream, encoder.encode(_HEADERS)) + frame(RST_STREAM, 0, stream, bytes(4))


def _continuations() -> Iterator[bytes]:
    yield frame(HEADERS, 0, 1, b"\x00\x01x\x01y")
    for _ in range(_TIMES):
        yield frame(CONTINUATION, 0, 1, b"\x00\x01x\x01y" * 16)


def _header_bomb() -> Iterator[bytes]:
    block = b"\x40\x01x\x7f" + b"\xa1\x1e" + b"y" * 4000 + b"\xbe" * 50_000
    pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    yield frame(HEADERS, 0, 1, pieces[0])
    for piece in pieces[1:-1]:
        yield frame(CONTINUATION, 0, 1, piece)
    yield frame(CONTINUATION, END_HEADERS, 1, pieces[-1])


def _settings() -> Iterator[bytes]:
    return (frame(SETTINGS, 0, 0) for _ in range(_TIMES))


def _pings() -> Iterator[bytes]:
    return (frame(PING, 0, 0, bytes(8)) for _ in range(_TIMES))


def _empty_data() -> Iterator[bytes]:
    yield frame(HEADERS, END_HEADERS, 1, Encoder().encode(_HEADERS))
    for _ in range(_TIMES):
        yield frame(DATA, 0, 1)


def _windows() -> Iterator[bytes]:
    return (frame(WINDOW_UPDATE, 0, 0, ((1 << 31) - 1).to_bytes(4)) for _ in range(2))


_ATTACKS: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "rapid-reset": (_rapid_resets, "flood"),
    "continuation": (_continuations, "headers_too_long"),
    "header-bomb": (_header_bomb, "bad_headers"),
    "settings": (_settings, "flood"),
    # Or the Proxy is faster.
    "ping": (_pings, ""),
    "empty-data": (_empty_data, "flood"),
    "window": (_windows, "window_overdrawn"),
}
_numbers = count(1)


@pytest.fixture(scope="module")
def sidecar(rocketmq_proxy: RocketMQProxy, start_sluice: StartSluice) -> Sluice:
    listen = f"127.0.0.1:{free_port()}"
    return start_sluice(
        routes=(Route(listen, rocketmq_proxy.grpc),), protocol="rocketmq-grpc", limits=("topic:elsewhere=1/s",)
    )


def _connected(sluice: Sluice) -> socket.socket:
    host, _, port = sluice.routes[0].listen.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)


def _attack(sluice: Sluice, frames: Iterator[bytes]) -> None:
    """Send until the connection ends."""
    with _connected(sluice) as sock:
        try:
            sock.sendall(PREFACE + frame(SETTINGS, 0, 0))
            pieces = []
            for number, each in enumerate(frames):
                pieces.append(each)
                if number % 100 == 99:
                    sock.sendall(b"".join(pieces))
                    pieces.clear()
            sock.sendall(b"".join(pieces))
            while sock.recv(65_536):
                pass
        except ConnectionError:
            return


def _send_meanwhile(sluice: Sluice, topic: str, over: threading.Event) -> list[int]:
    """Send one message after the other on a connection. Return the codes of the answers."""
    calls, codes = GrpcCalls("bystander"), []
    with _connected(sluice) as sock:
        while not codes or not over.is_set():
            stream, request = calls.call("SendMessage", send_request(topic, b"x", f"id-{len(codes)}"))
            sock.sendall(calls.take_replies() + request)
            ended: dict[int, int] = {}
            while stream not in ended:
                data = sock.recv(65_536)
                assert data, calls.goodbye
                ended.update(
                    (each, read_answer("SendMessage", answer.message).code) for each, answer in calls.feed(data)
                )
            codes.append(ended[stream])
    return codes


@pytest.mark.parametrize("attack", _ATTACKS)
def test_an_attack_ends_its_own_connection_and_others_do_not_notice(
    attack: str, sidecar: Sluice, rocketmq_proxy: RocketMQProxy
) -> None:
    frames, reason = _ATTACKS[attack]
    topic = rocketmq_proxy.create_topic(f"bystander-{next(_numbers)}", message_type="NORMAL")

    def closed(metrics: Metrics) -> float:
        return metrics.total("sluice_connections_closed_total", **({"reason": reason} if reason else {}))

    before, over = closed(sidecar.metrics()), threading.Event()
    with ThreadPoolExecutor() as pool:
        bystander = pool.submit(_send_meanwhile, sidecar, topic, over)
        try:
            _attack(sidecar, frames())
        finally:
            over.set()
        codes = bystander.result()
    assert set(codes) == {OK}
    # Over all reasons, this includes the other client's close.
    sidecar.wait_for_metrics(lambda metrics: closed(metrics) == before + (1 if reason else 2))
    assert rocketmq_proxy.stored_messages(topic) == len(codes)
