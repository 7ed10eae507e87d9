"""Attacks on the admin address of a running sidecar while messages pass.

A producer sends messages all the time. After each attack more must pass, and at the end the broker has all acknowledged
ones.
"""

import json
import re
import signal
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trustme
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send
from harness.ports import free_port
from harness.process import ManagedProcess
from harness.sidecar import Route, Sluice, StartSluice, run_sluice, sluice_command

from proxy.protocols.rocketmq.wire.codes import ResponseCode

pytestmark = pytest.mark.integration

WRITE: Final = "6f0f5c4e1b0a49d6a1f77f2c5b3b9a10"
READ: Final = "d1c7a4be30f24a0f9a5e2f6f4a1c8e77"
TOPIC: Final = "undisturbed"
_TIMEOUT_S: Final = 60.0
# Messages that must pass after an attack.
_MORE: Final = 50

Headers = dict[str, str]


class Answer(NamedTuple):
    status: int
    headers: Headers
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Traffic:
    def __init__(self, address: str) -> None:
        self.stored = 0
        self.failure: BaseException | None = None
        self._address = address
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def wait_for(self, stored: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.stored >= stored or self.failure, _TIMEOUT_S)
        assert self.failure is None

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(_TIMEOUT_S)
        assert self.failure is None

    def _send(self) -> None:
        try:
            with FrameClient(self._address) as client:
                while not self._stopping:
                    (answer,) = client.ask(send(TOPIC))
                    assert answer.code == ResponseCode.SUCCESS, answer
                    with self._changed:
                        self.stored += 1
                        self._changed.notify_all()
        except (OSError, AssertionError) as error:
            with self._changed:
                self.failure = error
                self._changed.notify_all()


@pytest.fixture(scope="module")
def sidecar(
    start_sluice: StartSluice, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sluice]:
    """A sidecar with a write token and a read token, and with public metrics."""
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.touch(0o600)
    file.write_text(f"alice write {WRITE}\nbob read {READ}\n", encoding="utf-8")
    config = f'[admin]\ntoken_file = "{file}"\npublic_metrics = true\n\n[defaults.topic]\nrate = "unlimited"\n'
    with start_sluice(routes=(broker.route(),), config=config) as running:
        yield running


@pytest.fixture(scope="module")
def traffic(sidecar: Sluice, broker: EmbeddedBroker) -> Iterator[Traffic]:
    """Runs during all tests. At the end the broker must have all its messages."""
    running = Traffic(sidecar.routes[0].listen)
    yield running
    running.stop()
    assert broker.stored(TOPIC) == running.stored


@pytest.fixture(autouse=True)
def _data_path_goes_on(traffic: Traffic) -> Iterator[None]:
    traffic.wait_for(1)
    yield
    traffic.wait_for(traffic.stored + _MORE)


@pytest.fixture
def ask(sidecar: Sluice) -> Callable[..., Answer]:
    def request(
        path: str, method: str = "GET", *, token: str = WRITE, body: bytes = b"", headers: Headers | None = None
    ) -> Answer:
        fields: Headers = {"Host": sidecar.admin, "Connection": "close"}
        if token:
            fields["Authorization"] = f"Bearer {token}"
        if body:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        with connect(sidecar.admin) as connection:
            connection.sendall(head(method, path, fields | (headers or {})) + body)
            return read(connection)

    return request


def head(method: str, path: str, headers: Headers) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), _TIMEOUT_S)


def read(connection: socket.socket) -> Answer:
    """Read one answer until the connection is closed. Status 0: no answer."""
    got = bytearray()
    while chunk := connection.recv(65536):
        got += chunk
    top, _, body = bytes(got).partition(b"\r\n\r\n")
    if not top:
        return Answer(0, {}, b"")
    status, *lines = top.decode().split("\r\n")
    return Answer(int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body)


def refused(answer: Answer, status: int) -> str:
    """Check that it is an ordinary refusal without any part of the tokens, and return its text."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert WRITE.encode() not in answer.body
    return str(answer.json["detail"])


def test_without_a_token_nothing_is_told_and_nothing_changed(sidecar: Sluice, ask: Callable[..., Answer]) -> None:
    before = ask("/api/v1/limits").json
    for method, path in [
        ("GET", "/api/v1/limits"),
        ("GET", "/api/v1/openapi.json"),
        ("GET", "/api/v1/events"),
        ("GET", "/api/v1/nowhere"),
        ("PUT", "/api/v1/switches/all"),
        ("DELETE", "/api/v1/connections/1"),
        ("POST", "/api/v1/reload"),
    ]:
        answer = ask(path, method, token="")
        assert refused(answer, 401) == "a token is required, in the header Authorization: Bearer TOKEN"
        assert answer.headers["www-authenticate"].startswith("bearer ")
    assert ask("/api/v1/limits").json["etag"] == before["etag"]
    assert sidecar.get("/healthz")[0] == sidecar.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    "token", [WRITE[:-1], WRITE + "0", WRITE.upper(), READ + WRITE, "Bearer", "' or 1=1 --", "x" * 8000]
)
def test_a_wrong_token_counts_as_no_token(ask: Callable[..., Answer], token: str) -> None:
    refused(ask("/api/v1/limits", token=token), 401)


def test_failed_tokens_are_logged_with_their_peer_and_without_the_token(
    sidecar: Sluice, ask: Callable[..., Answer]
) -> None:
    for _ in range(20):
        ask("/api/v1/limits", token="guessed-guessed-guessed-guessed")
    ask("/api/v1/limits")
    line = sidecar.process.wait_for_line("admin request refused", timeout_s=_TIMEOUT_S)
    assert "127.0.0.1:" in line
    log = sidecar.process.log.read_text(encoding="utf-8")
    assert not re.search(f"guessed|{WRITE}|{READ}", log)


def test_a_read_only_token_reads_and_does_not_write(ask: Callable[..., Answer]) -> None:
    assert ask("/api/v1/limits", token=READ).status == 200
    assert ask("/api/v1/whoami", token=READ).json["name"] == "bob"
    for method, path, body in [
        ("PUT", "/api/v1/limits/topic/orders", b'{"rate": 0}'),
        ("DELETE", "/api/v1/limits/topic/orders", b""),
        ("POST", "/api/v1/limits:batch", b'{"edits": []}'),
        ("PUT", "/api/v1/switches/all", b'{"limiting": false}'),
        ("POST", "/api/v1/reload", b""),
        ("DELETE", "/api/v1/connections/1", b""),
        ("POST", "/api/v1/limits/topic/orders?dry_run=1", b"{}"),
    ]:
        assert refused(ask(path, method, token=READ, body=body), 403) == "the token bob is read-only"
    assert ask("/api/v1/audit").json["changes"] == []


@pytest.mark.parametrize("origin", ["http://evil.example", "https://127.0.0.1", "null", "http://localhost:1"])
def test_a_page_of_another_origin_can_do_nothing(ask: Callable[..., Answer], origin: str) -> None:
    for method, path in [("GET", "/api/v1/limits"), ("POST", "/api/v1/reload"), ("OPTIONS", "/api/v1/limits")]:
        answer = ask(path, method, headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"})
        refused(answer, 403)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "[::1].evil"])
@pytest.mark.parametrize("path", ["/api/v1/limits", "/", "/healthz", "/metrics"])
def test_a_name_that_was_rebound_to_this_address_is_not_served(
    ask: Callable[..., Answer], host: str, path: str
) -> None:
    refused(ask(path, headers={"Host": host}), 421)


def test_a_form_cannot_write(ask: Callable[..., Answer]) -> None:
    answer = ask("/api/v1/limits/topic/orders", "PUT", body=b'{"rate": 0}', headers={"Content-Type": "text/plain"})
    refused(answer, 415)


def test_an_oversized_body_is_refused_while_it_comes(sidecar: Sluice, ask: Callable[..., Answer]) -> None:
    fields = {"Host": sidecar.admin, "Authorization": f"Bearer {WRITE}", "Content-Type": "application/json"}
    path = "/api/v1/limits/topic/orders"
    announced = ask(path, "PUT", headers={"Content-Length": "99999999999"})
    refused(announced, 413)
    with connect(sidecar.admin) as connection:
        # The answer comes although the rest is not read.
        connection.sendall(head("PUT", path, {**fields, "Transfer-Encoding": "chunked"}))
        connection.sendall((b"10000\r\n" + bytes(0x10000) + b"\r\n") * 17)
        refused(read(connection), 413)
    refused(ask(path, "PUT", body=b"[" * 1024 * 1024 + b"x"), 413)


def test_a_body_of_nothing_but_brackets_is_an_answer_and_no_failure(ask: Callable[..., Answer]) -> None:
    answer = ask("/api/v1/limits/topic/orders", "PUT", body=b"[" * (1024 * 1024))
    assert 400 <= answer.status < 500


@pytest.fixture(scope="module", autouse=True)
def half_said(sidecar: Sluice) -> Iterator[dict[str, socket.socket]]:
    """Connections that stop in the middle of a body and of a head. Each has ten seconds, while the other tests run."""
    fields = {"Host": sidecar.admin, "Authorization": f"Bearer {WRITE}", "Content-Length": "100"}
    with connect(sidecar.admin) as body, connect(sidecar.admin) as half_head:
        body.sendall(head("PUT", "/api/v1/limits/topic/orders", fields) + b'{"rate"')
        half_head.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        yield {"body": body, "head": half_head}


def test_a_head_that_is_too_large_is_refused(sidecar: Sluice) -> None:
    with connect(sidecar.admin) as connection:
        connection.sendall(head("GET", "/healthz", {"Host": sidecar.admin, "X": "y" * 200_000}))
        assert read(connection).status in (0, 431)


_SPELLINGS = [
    "//api/v1/limits",
    "/api//v1/limits",
    "/api/v1/limits/",
    "/api/v1/./limits",
    "/healthz/../api/v1/limits",
    "/healthz/%2e%2e/api/v1/limits",
    "/web/..%2fapi/v1/limits",
    "/%61pi/v1/limits",
    "/api%2fv1%2flimits",
    "/API/v1/limits",
    "/api/v1/limits%00",
    "/healthz%00/../api/v1/limits",
    "/healthz;/api/v1/limits",
    "/api/v1/limits;/healthz",
    "/api/v1/limits?/healthz",
    "/api/v1/limits%3f/healthz",
    "/\\api\\v1\\limits",
    "/api/v1/limits/topic/..%2f..%2f..%2f..%2fhealthz",
    "http://127.0.0.1/api/v1/limits",
    "http://127.0.0.1/healthz/../api/v1/limits",
    "/..%2f..%2f..%2fetc/passwd",
    "/web/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/web/%2e%2e/%2e%2e/auth.py",
    "/%ff%fe",
    "*",
]


@pytest.mark.parametrize("path", _SPELLINGS)
def test_no_spelling_of_a_path_leads_past_the_token_or_to_a_file(ask: Callable[..., Answer], path: str) -> None:
    for method in ("GET", "PUT", "OPTIONS"):
        answer = ask(path, method, token="")
        assert answer.status in (400, 401), answer
        assert b"rows" not in answer.body
    # Nor does a token give access to a file.
    assert b"root:" not in ask(path).body


def test_html_in_a_topic_and_in_a_reason_is_json_that_no_browser_takes_for_html(ask: Callable[..., Answer]) -> None:
    name, reason = '<script>alert("x")</script>', "<img src=x onerror=alert(1)>"
    path = f"/api/v1/limits/topic/{urllib.parse.quote(name, safe='')}"
    body = json.dumps({"rate": 5, "reason": reason}).encode()
    changed = ask(path, "PUT", body=body)
    assert (changed.status, changed.json["reason"]) == (200, reason)
    for read_path in (path, "/api/v1/limits", "/api/v1/audit", "/api/v1/diff"):
        answer = ask(read_path)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert name in str(answer.json)
    assert refused(ask(f"/api/v1/limits/{urllib.parse.quote(name, safe='')}/x"), 404)
    assert ask(path, "DELETE").status == 200


def test_on_an_address_that_others_reach_it_does_not_start_without_a_token(tmp_path: Path, listen: str) -> None:
    done = run_sluice("run", "--listen", listen, "--broker", "127.0.0.1:1", "--admin", "0.0.0.0:0", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("sluice: --admin 0.0.0.0:0: other machines can reach this address, and no token is set; ")
    assert all(way in line for way in ("admin.token_file", "127.0.0.1", "admin.allow_anyone"))


def test_starts_without_a_token_on_a_public_address_only_if_allowed(
    start_sluice: StartSluice, listen: str, unreachable: str
) -> None:
    config = "[admin]\nallow_anyone = true\n"
    admin = f"0.0.0.0:{free_port()}"
    with start_sluice(routes=(Route(listen, unreachable),), config=config, admin=admin, ready=False) as running:
        running.process.wait_for_line("anyone who can reach it can change limits", timeout_s=_TIMEOUT_S)


def test_token_is_not_sent_to_a_server_without_tls(
    start_sluice: StartSluice, listen: str, unreachable: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "admin.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "admin.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    admin = f"127.0.0.1:{free_port()}"
    command = ["run", "--listen", listen, "--broker", unreachable, "--protocol", "rocketmq", "--admin", admin]
    secrets = {
        "SLUICE_ADMIN_TOKEN": WRITE,
        "SLUICE_ADMIN_TLS_CERTIFICATE_FILE": str(tmp_path / "admin.pem"),
        "SLUICE_ADMIN_TLS_KEY_FILE": str(tmp_path / "admin.key"),
        "SLUICE_STATE_DIR": str(tmp_path / "state"),
    }
    with ManagedProcess(
        "sluice", sluice_command(*command), log=tmp_path / "sluice.log", env=secrets, cwd=tmp_path
    ) as running:
        running.wait_for_line("sluice is up", timeout_s=_TIMEOUT_S)
        fields = {"Host": admin, "Authorization": f"Bearer {WRITE}", "Connection": "close"}
        with connect(admin) as plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            assert connection.version() in ("TLSv1.2", "TLSv1.3")
            connection.sendall(head("GET", "/api/v1/whoami", fields))
            assert read(connection).json["role"] == "write"
        with connect(admin) as plain:
            plain.sendall(head("GET", "/api/v1/whoami", fields))
            assert read(plain).status == 0
        assert WRITE not in running.log.read_text(encoding="utf-8")


def test_a_hangup_takes_new_tokens_and_keeps_the_old_ones_if_the_file_is_wrong(
    start_sluice: StartSluice, listen: str, unreachable: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"alice write {WRITE}\n", encoding="utf-8")
    config = f'[admin]\ntoken_file = "{file}"\n'
    with start_sluice(routes=(Route(listen, unreachable),), config=config, ready=False) as running:

        def status(token: str) -> int:
            fields = {"Host": running.admin, "Authorization": f"Bearer {token}", "Connection": "close"}
            with connect(running.admin) as connection:
                connection.sendall(head("GET", "/api/v1/whoami", fields))
                return read(connection).status

        assert (status(WRITE), status(READ)) == (200, 401)
        file.write_text("alice write short\n", encoding="utf-8")
        running.process.signal(signal.SIGHUP)
        running.process.wait_for_line(f"{file}:1: a token must be at least 24 characters long", timeout_s=_TIMEOUT_S)
        assert (status(WRITE), status(READ)) == (200, 401)
        file.write_text(f"bob read {READ}\n", encoding="utf-8")
        running.process.signal(signal.SIGHUP)
        running.process.wait_for_line("token bob: added (read)", timeout_s=_TIMEOUT_S)
        assert (status(WRITE), status(READ)) == (401, 200)


def test_a_body_shorter_than_its_content_length_is_cut(half_said: dict[str, socket.socket]) -> None:
    assert "10 seconds" in refused(read(half_said["body"]), 408)


def test_a_head_that_does_not_end_is_cut(half_said: dict[str, socket.socket]) -> None:
    assert read(half_said["head"]).status == 0
