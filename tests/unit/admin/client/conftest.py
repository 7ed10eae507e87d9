"""APIs for the client's tests: the real one in this process, or a scripted one."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
import structlog.testing
import trio
from served_api import Served, as_author, mount, served

from admin.cli import main

__all__ = ["served"]

PROBLEM = "application/problem+json"


class FakeApi:
    """Answers as scripted, and records requests.

    ``answers``: by ``METHOD /path`` (without ``/api/v1``), status and JSON, or a function of the request that returns
    them. ``asked``: the requests, with header names in lower case. ``etag``: sent with every answer, if not empty.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.etag = ""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                where = parts.path.removeprefix("/api/v1")
                request = Asked(
                    self.command,
                    where,
                    dict(parse_qsl(parts.query)),
                    {key.lower(): value for key, value in self.headers.items()},
                    body,
                )
                fake.asked.append(request)
                answer = fake.answers.get(f"{self.command} {where}", problem(404, "there is no such thing"))
                status, what = answer(request) if callable(answer) else answer
                raw = what if isinstance(what, bytes) else json.dumps(what).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.send_header("content-type", PROBLEM if status >= 400 else "application/json")
                if fake.etag:
                    self.send_header("etag", f'"{fake.etag}"')
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_PUT = do_PATCH = do_POST = do_DELETE = _answer  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def writes(self) -> list[Any]:
        """The requests other than reads."""
        return [each for each in self.asked if each.method != "GET"]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Server(ThreadingHTTPServer):
    """Does not log a client's disconnection, which could appear in the next test's output."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Asked:
    def __init__(self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Any) -> None:
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body


def problem(status: int, detail: str, *errors: dict[str, Any]) -> tuple[int, Any]:
    return status, {"type": "about:blank", "title": "x", "status": status, "detail": detail, "errors": list(errors)}


@pytest.fixture(name="problem")
def _problem() -> Callable[..., tuple[int, Any]]:
    return problem


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()


class Ran:
    """A command's output and exit."""

    def __init__(self, exit_code: int, out: str, err: str) -> None:
        self.exit_code, self.out, self.err = exit_code, out, err


@pytest.fixture
def sluice(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command against the scripted API."""

    def run(*tokens: str) -> Ran:
        exit_code = main([*tokens, "--admin", api.address])
        captured = capsys.readouterr()
        return Ran(exit_code, captured.out, captured.err)

    return run


@pytest.fixture
def asked(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    transport = httpx2.ASGITransport(as_author(mount(served.app), "ada"))

    async def answer(request: httpx2.Request) -> httpx2.Response:
        found = await transport.handle_async_request(request)
        return httpx2.Response(found.status_code, headers=found.headers, content=await found.aread())

    def handle(_: httpx2.HTTPTransport, request: httpx2.Request) -> httpx2.Response:
        return trio.from_thread.run(answer, request)

    monkeypatch.setattr(httpx2.HTTPTransport, "handle_request", handle)

    async def run(*tokens: str) -> Ran:
        exit_code = await trio.to_thread.run_sync(main, tokens)
        captured = capsys.readouterr()
        return Ran(exit_code, captured.out, captured.err)

    # The sidecar's log is not part of a command's output.
    with structlog.testing.capture_logs():
        yield run


def change(target: str = "limits/topic/orders", **fields: Any) -> dict[str, Any]:
    return {
        "id": 17,
        "at": "2026-11-21T20:00:00.000Z",
        "by": "ada",
        "address": "127.0.0.1:5",
        "action": "set",
        "target": target,
        "old": {"rate": 500.0, "burst_s": 1.0},
        "new": {"rate": 1000.0, "burst_s": 1.0},
    } | fields


@pytest.fixture(name="change")
def _change() -> Callable[..., dict[str, Any]]:
    """Makes a change in the API's form."""
    return change


def entry(name: str = "orders", **fields: Any) -> dict[str, Any]:
    return {
        "kind": "topic",
        "name": name,
        "limit": {"rate": 1000.0, "burst_s": 2.0, "action": "reject"},
        "limit_text": "1000/s",
        "rule": f"topic:{name}",
        "source": "change 17",
        "exact": True,
        "configured": {"limit": {"rate": 500.0}, "source": "sluice.toml:5"},
        "edit": {
            "change_id": 17,
            "at": "2026-11-21T20:00:00.000Z",
            "by": "ada",
            "address": "127.0.0.1:5",
            "reason": "launch",
            "limit": {"rate": 1000.0},
        },
        "etag": "abc",
    } | fields


@pytest.fixture(name="entry")
def _entry() -> Callable[..., dict[str, Any]]:
    """Makes a limit in the API's form."""
    return entry
