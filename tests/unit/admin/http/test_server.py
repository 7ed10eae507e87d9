import json
import socket

import pytest
import trio

from admin.common.errors import StartError
from admin.config.settings import Endpoint
from admin.http import server
from proxy.net.sockets import Inherited


class Served:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    async def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        async with await trio.open_tcp_stream(*self.endpoint) as stream:
            fields = {"host": "localhost", "connection": "close", **headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            await stream.send_all(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
            answer = b"".join([chunk async for chunk in stream])
        top, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


@pytest.fixture
def asked(served: Endpoint) -> Served:
    return Served(served)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/web/../admin/http/auth.py", 404),
        ("POST", "/metrics", 405),
        ("head", "/", 405),
    ],
)
async def test_missing_path_is_refused(asked: Served, method: str, path: str, expected: int) -> None:
    status, headers, body = await asked.ask(path, method)
    assert (status, headers["content-type"]) == (expected, "application/problem+json")
    assert json.loads(body)["status"] == expected


async def test_a_head_request_has_the_head_of_the_answer_only(asked: Served) -> None:
    for path in ("/healthz", "/", "/metrics"):
        (got, _, body), (head, headers, nothing) = await asked.ask(path), await asked.ask(path, "HEAD")
        assert (got, head, bool(body), nothing) == (200, 200, True, b"")
        assert "content-type" in headers


def test_a_name_that_turns_out_to_be_reached_by_others_is_refused() -> None:
    with pytest.raises(StartError) as caught:
        server.bind(Endpoint("0.0.0.0", 0), anyone=False)
    assert "which other machines can reach, and no token is set" in caught.value.lines[0]
    server.bind(Endpoint("127.0.0.1", 0), anyone=False).close()


def test_the_ipv6_wildcard_serves_ipv4_too_unless_another_listener_has_that() -> None:
    with server.bind(Endpoint("::", 0)) as bound:
        port = bound.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        socket.create_connection(("::1", port)).close()
    with (
        server.bind(Endpoint("127.0.0.1", 0)) as other,
        server.bind(Endpoint("::", other.getsockname()[1]), v6only=True),
    ):
        pass


def test_a_socket_that_was_passed_is_found_by_a_name_of_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        port = passed.getsockname()[1]
        inherited = Inherited((passed.dup(),))
        with server.bind(Endpoint("localhost", port), inherited=inherited) as bound:
            assert bound.getsockname() == ("127.0.0.1", port)
        assert inherited.close() == []


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(StartError) as caught:
        server.bind(Endpoint(host, 9870))
    (line,) = caught.value.lines
    assert line.startswith(f"admin: cannot listen on {host}:9870: ")
