import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress

import pytest
import structlog
import trio
import trustme
from starlette.types import Message, Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from admin.http.http1 import HEAD_TIMEOUT_S, KEEP_ALIVE_S, MAX_HEAD_BYTES, WRITE_TIMEOUT_S, Http1Server

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
MOST = 4
LARGE_BYTES = 32 * 1024 * 1024
# Time for the kernel of a busy machine to deliver data to another socket of this process.
DELIVERY_S = 0.005


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer at once, but ``/wait`` and ``/stream`` only when the client has left, and ``/large`` with a large body."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    body = bytes(LARGE_BYTES) if scope["path"] == "/large" else scope["path"].encode()
    head: Message = {
        "type": "http.response.start",
        "status": 200,
        "headers": [] if scope["path"] == "/stream" else [(b"content-length", str(len(body)).encode())],
    }
    await send(head)
    while scope["path"] in {"/wait", "/stream"} and (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.body", "body": body})


class Server:
    """Connections on a separate address."""

    def __init__(self, nursery: trio.Nursery, tls: ssl.SSLContext | None = None) -> None:
        self._nursery = nursery
        self.counted: Counter[str] = Counter()
        self.heard: list[str] = []
        self.methods: list[str] = []
        self._http = Http1Server(
            self._app, tls=tls, refusals=self.counted, max_connections=MOST, max_unsent_bytes=2 * LARGE_BYTES
        )
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        self.address = sock.getsockname()
        await self._nursery.start(self._http.serve, sock)

    async def connect(self, said: bytes = b"") -> trio.SocketStream:
        stream = await self._stack.enter_async_context(await trio.open_tcp_stream(*self.address))
        if said:
            await stream.send_all(said)
        await wait_all_tasks_blocked(DELIVERY_S)
        return stream

    async def close(self) -> None:
        await self._stack.aclose()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def heard() -> Message:
            message = await receive()
            self.heard.append(message["type"])
            return message

        self.methods.append(scope["method"])
        await hello(scope, heard, send)


@pytest.fixture
def autojump_clock() -> MockClock:
    """A clock that jumps only after a moment of silence, because data may be in flight."""
    return MockClock(autojump_threshold=4 * DELIVERY_S)


@pytest.fixture
async def server(nursery: trio.Nursery) -> AsyncIterator[Server]:
    running = Server(nursery)
    await running.start()
    yield running
    await running.close()


async def rest(stream: trio.abc.ReceiveStream) -> bytes:
    """Return everything until the other side ends or resets the connection."""
    got = bytearray()
    with suppress(trio.BrokenResourceError):
        async for chunk in stream:
            got += chunk
    return bytes(got)


async def answer(stream: trio.SocketStream) -> bytes:
    """Return one answer whose body is the path of its request."""
    got = b""
    while b"\r\n\r\n/" not in got:
        chunk = await stream.receive_some(65536)
        assert chunk, got
        got += chunk
    return got


async def test_requests_may_come_before_the_answers(server: Server) -> None:
    stream = await server.connect(GET * 2 + GET.replace(b"\r\nhost", b"\r\nconnection: close\r\nhost"))
    assert (await rest(stream)).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("method", [b"get", b"head", b"BREW"])
async def test_a_method_is_taken_as_it_is_written_and_answered(server: Server, method: bytes) -> None:
    assert (await answer(await server.connect(method + GET[3:]))).endswith(b"\r\n\r\n/")
    assert server.methods == [method.decode()]


async def test_silent_client_is_disconnected(server: Server, autojump_clock: MockClock) -> None:
    del autojump_clock
    began = trio.current_time()
    stream = await server.connect()
    assert await rest(stream) == b""
    assert trio.current_time() - began == pytest.approx(HEAD_TIMEOUT_S)
    assert server.counted == {"slow_head": 1}


async def test_a_connection_is_kept_for_the_next_request_for_a_while(server: Server, autojump_clock: MockClock) -> None:
    del autojump_clock
    stream = await server.connect(GET)
    await answer(stream)
    began = trio.current_time()
    assert await rest(stream) == b""
    assert trio.current_time() - began == pytest.approx(KEEP_ALIVE_S)


async def test_client_that_does_not_read_is_disconnected(server: Server, autojump_clock: MockClock) -> None:
    del autojump_clock
    stream = await server.connect(GET.replace(b" / ", b" /large "))
    began = trio.current_time()
    await trio.sleep(WRITE_TIMEOUT_S + 1)
    assert len(await rest(stream)) < LARGE_BYTES
    assert server.counted == {"slow_reader": 1}
    assert trio.current_time() - began == pytest.approx(WRITE_TIMEOUT_S + 1)


@pytest.mark.parametrize(
    "said", [GET.replace(b" / ", b" /stream "), b"POST" + GET[3:-2] + b"content-length: 9\r\n\r\n{"]
)
async def test_a_client_that_resets_has_left_and_nothing_is_logged(server: Server, said: bytes) -> None:
    stream = await server.connect(said)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with structlog.testing.capture_logs() as logged:
        await stream.aclose()
        await wait_all_tasks_blocked(DELIVERY_S)
    assert server.heard[-1] == "http.disconnect"
    assert logged == []


async def test_a_body_is_asked_for_if_the_client_waits_for_that(server: Server) -> None:
    post = b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    stream = await server.connect(post)
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
    await stream.send_all(b"{}")
    assert (await answer(stream)).startswith(b"HTTP/1.1 200 ")


async def test_a_body_in_chunks_that_are_none_is_refused_as_a_problem(server: Server) -> None:
    said = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nnone\r\n"
    got = await rest(await server.connect(said))
    assert got.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in got


async def test_a_head_that_is_too_large_is_refused_as_a_problem(server: Server) -> None:
    stream = await server.connect(GET.replace(b"\r\n\r\n", b"\r\nx: " + b"y" * 3 * MAX_HEAD_BYTES + b"\r\n\r\n"))
    got = await rest(stream)
    assert got.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in got
    assert b"16384 bytes" in got


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_non_http_request_is_refused_as_a_problem(server: Server, said: bytes) -> None:
    got = await rest(await server.connect(said + b"\r\n" * 2))
    assert got.startswith(b"HTTP/1.1 400 "), got
    assert b"application/problem+json" in got


@pytest.fixture
def contexts() -> Callable[[], tuple[ssl.SSLContext, ssl.SSLContext]]:
    """Return a server's context, and that of a client that trusts it."""

    def make() -> tuple[ssl.SSLContext, ssl.SSLContext]:
        authority = trustme.CA()
        for_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for_server.set_alpn_protocols(["http/1.1"])
        authority.issue_cert("127.0.0.1").configure_cert(for_server)
        for_client = ssl.create_default_context()
        authority.configure_trust(for_client)
        return for_server, for_client

    return make


async def test_requests_over_tls_are_answered_in_http_1_only(
    nursery: trio.Nursery, contexts: Callable[[], tuple[ssl.SSLContext, ssl.SSLContext]]
) -> None:
    for_server, for_client = contexts()
    server = Server(nursery, for_server)
    await server.start()
    for_client.set_alpn_protocols(["h2", "http/1.1"])
    stream = await trio.open_ssl_over_tcp_stream(*server.address, ssl_context=for_client, https_compatible=True)
    async with stream:
        await stream.send_all(GET.replace(b"\r\nhost", b"\r\nconnection: close\r\nhost"))
        assert (await rest(stream)).startswith(b"HTTP/1.1 200")
        assert stream.selected_alpn_protocol() == "http/1.1"


async def test_a_handshake_that_does_not_come_is_cut(
    nursery: trio.Nursery,
    contexts: Callable[[], tuple[ssl.SSLContext, ssl.SSLContext]],
    autojump_clock: MockClock,
) -> None:
    del autojump_clock
    server = Server(nursery, contexts()[0])
    await server.start()
    silent = await server.connect()
    assert await rest(silent) == b""
    assert server.counted == {"handshake": 1}
    await rest(await server.connect(GET))
    assert server.counted == {"handshake": 2}
    await server.close()


LARGE = GET.replace(b" / ", b" /large ")
WAIT = GET.replace(b" / ", b" /wait ")
HALF_HEAD = GET[:-2]
HALF_BODY = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"


@pytest.mark.parametrize("said", [b"", HALF_HEAD, HALF_BODY, LARGE, WAIT])
async def test_a_new_connection_is_answered_whatever_the_others_do(server: Server, said: bytes) -> None:
    others = [await server.connect(said) for _ in range(3 * MOST)]
    assert await answer(await server.connect(GET))
    assert len(await rest(others[0])) < LARGE_BYTES
    assert server.counted["evicted"] >= 2 * MOST


async def test_answers_that_are_not_read_have_a_bound_in_bytes(server: Server) -> None:
    # They end with the answer. Otherwise an idle connection would be kept for a minute of real time.
    asked = LARGE.replace(b"\r\nhost", b"\r\nconnection: close\r\nhost")
    stuck = [await server.connect(asked) for _ in range(MOST - 1)]
    assert server.counted == {"evicted": 1}
    assert len(await rest(stuck[0])) < LARGE_BYTES
    assert len(await rest(stuck[-1])) > LARGE_BYTES


async def test_bytes_beyond_the_content_length_are_an_invalid_next_request(server: Server) -> None:
    said = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}smuggled\r\n\r\n"
    got = await rest(await server.connect(said))
    assert re.findall(rb"HTTP/1.1 \d+", got) == [b"HTTP/1.1 200", b"HTTP/1.1 400"]


async def test_a_connection_with_a_request_is_closed_last(server: Server) -> None:
    waiting = await server.connect(WAIT)
    idle = [await server.connect() for _ in range(MOST)]
    assert await rest(idle[0]) == b""
    await waiting.send_eof()
    assert server.heard[-1] == "http.request"
