import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from trio.testing import MockClock, wait_all_tasks_blocked

from admin import web
from admin.config.faults import Origins
from admin.config.settings import AdminSettings
from admin.http import server
from admin.http.auth import Access, Keyring, read_access
from admin.http.guard import BODY_TIMEOUT_S, MAX_BATCH_BYTES, MAX_BODY_BYTES, Guard
from admin.http.problems import Refusals
from admin.stats.health import Health
from admin.wire import usual_type

WRITE, READ = "write-token-for-the-tests-0", "read-token-for-the-tests-00"
ADMIN = AdminSettings(token=WRITE, read_token=READ)
ACCESS = read_access(ADMIN, Origins(None, {}, {}))
BEARER = {"authorization": f"Bearer {WRITE}"}


class Answer(NamedTuple):
    """An answer, and the requests that got through."""

    status: int
    headers: dict[str, str]
    body: bytes
    passed: list[Scope]
    given: list[bytes]

    @property
    def problem(self) -> Any:
        return json.loads(self.body)


Feed = Callable[[], Awaitable[Message]]


def scope_of(method: str, target: str, headers: Iterable[tuple[str, str]]) -> Scope:
    """Make the server's scope of a request."""
    raw, _, query = target.encode().partition(b"?")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw.decode("ascii")),
        "raw_path": raw,
        "query_string": query,
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        "client": ("192.0.2.9", 4711),
        "server": ("127.0.0.1", 9870),
        "state": {},
    }


def fed(*chunks: bytes, ends: bool = True) -> Feed:
    """Feed a body. Nothing comes afterwards."""
    messages: list[Message] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if ends:
        messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Message:
        if messages:
            return messages.pop(0)
        await trio.sleep_forever()
        raise AssertionError

    return receive


class Asking:
    def __init__(self, access: Access = ACCESS, hosts: Sequence[str] = ()) -> None:
        self.refusals = Refusals()
        self.keyring = Keyring(access)
        self.passed: list[Scope] = []
        self.given: list[bytes] = []
        self.answer: Callable[[Scope, Receive, Send], Awaitable[None]] = self._hello
        self.guard: ASGIApp = Guard(
            self._app, self.keyring, pages={"/"}, probes={"/healthz"}, allowed_hosts=hosts, refusals=self.refusals
        )

    async def __call__(
        self,
        target: str = "/api/v1/limits",
        method: str = "GET",
        *,
        headers: dict[str, str] | None = None,
        more: Iterable[tuple[str, str]] = (),
        receive: Feed | None = None,
    ) -> Answer:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        fields = {"host": "127.0.0.1:9870", **BEARER} | (headers or {})
        all_fields = [(name, value) for name, value in fields.items() if value] + list(more)
        await self.guard(scope_of(method, target, all_fields), receive or fed(), send)
        if not sent:
            return Answer(0, {}, b"", self.passed, self.given)
        status = int(sent[0]["status"])
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(status, answered, b"".join(each["body"] for each in sent[1:]), self.passed, self.given)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.passed.append(scope)
        self.given.append((await receive())["body"])
        await self.answer(scope, receive, send)

    async def _hello(self, _: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def ask() -> Asking:
    return Asking()


PUT = {"method": "PUT", "headers": {"content-type": "application/json"}}
CASES: list[tuple[int, str, dict[str, Any]]] = [
    (401, "no_token", {"headers": {"authorization": ""}}),
    *(
        (401, "wrong_token", {"headers": {"authorization": value}})
        for value in (f"Bearer {WRITE}x", f"Bearer {WRITE[:-1]}", f"Basic {WRITE}", WRITE, "Bearer  ")
    ),
    (401, "wrong_token", {"more": [("authorization", f"Bearer {READ}")]}),
    *(
        (403, "role", {"method": method, "headers": {"authorization": f"Bearer {READ}"}})
        for method in ("PUT", "POST", "DELETE", "PATCH", "BREW", "get")
    ),
    *(
        (421, "host", {"headers": {"host": host}, "target": "/healthz"})
        for host in ("evil.example", "127.0.0.1.evil.example", "", "127.0.0.1:x", "a@127.0.0.1", "[::1")
    ),
    (400, "host", {"more": [("host", "127.0.0.1")]}),
    *(
        (403, "origin", {"headers": {"origin": origin}})
        for origin in (
            *("http://evil.example", "null", "http://127.0.0.1:9871", "http://127.0.0.1", "http://127.0.0.1:9870/"),
            *("ftp://127.0.0.1:9870", "http://user@127.0.0.1:9870", "http://[::1"),
        )
    ),
    (403, "origin", {"headers": {"sec-fetch-site": "cross-site"}, "method": "POST"}),
    (403, "origin", {"headers": {"sec-fetch-site": "same-site"}}),
    (403, "origin", {"headers": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}}),
    (400, "path", {"target": "/api/v1/limits/topic/a%01b"}),
    (400, "path", {"target": "/api/v1/limits/topic/a%7F"}),
    (400, "path", {"target": "/api/v1/limits/topic/%ff"}),
    (400, "path", {"target": "/api/v1/limits/topic/%ed%a0%80"}),
    (415, "content_type", {"method": "PUT", "headers": {"content-type": "text/plain"}, "receive": [b"{}"]}),
    (415, "content_type", {"method": "PUT", "headers": {"content-type": "application/jsonx"}, "receive": [b"{}"]}),
    (415, "content_type", {"method": "PUT", "receive": [b"{}"]}),
    (400, "body_size", {"method": "PUT", "headers": {"content-length": "5", "transfer-encoding": "chunked"}}),
    (413, "body_size", {"method": "PUT", "headers": {"content-length": "9" * 40}}),
    (413, "body_size", {**PUT, "receive": [bytes(MAX_BODY_BYTES), b"x"]}),
]


@pytest.mark.parametrize(("status", "reason", "how"), CASES)
async def test_a_refusal_has_a_status_and_a_reason_and_closes(
    ask: Asking, status: int, reason: str, how: dict[str, Any], autojump_clock: MockClock
) -> None:
    del autojump_clock
    answer = await ask(**{**how, "receive": fed(*how.get("receive", ()), ends=status == 415)})
    assert (answer.status, answer.problem["status"], answer.passed) == (status, status, [])
    assert (answer.headers["content-type"], answer.headers["connection"]) == ("application/problem+json", "close")
    assert answer.problem["type"] == usual_type(status).type
    assert ask.refusals == {reason: 1}
    assert WRITE.encode() not in answer.body
    assert ("www-authenticate" in answer.headers) == (status == 401 or reason == "role")


@pytest.mark.parametrize(
    ("target", "method", "headers"),
    [
        ("/api/v1/limits", "GET", {"authorization": f"bearer   {READ}"}),
        ("/api/v1/limits", "OPTIONS", {"authorization": f"Bearer {READ}"}),
        ("/", "GET", {"authorization": ""}),
        ("/healthz", "HEAD", {"authorization": ""}),
        ("/", "GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}),
        ("/api/v1/limits", "DELETE", {}),
        *(("/", "GET", {"host": host}) for host in ("LOCALHOST:1", "192.0.2.1:9870", "[::1]", "sluice.example:443")),
        ("/", "POST", {"origin": "http://127.0.0.1:9870", "sec-fetch-site": "same-origin"}),
        ("/", "POST", {"origin": "https://localhost", "host": "localhost:443"}),
        ("/", "POST", {"origin": "http://[::1]:7", "host": "[::1]:7"}),
    ],
)
async def test_allowed_requests_pass(target: str, method: str, headers: dict[str, str]) -> None:
    assert (await Asking(hosts=["Sluice.Example."])(target, method, headers=headers)).status == 200


async def test_without_any_token_configured_all_is_allowed_to_local() -> None:
    answer = await Asking(Access())(method="DELETE", headers={"authorization": ""})
    state = answer.passed[0]["state"]
    assert (state["role"], state["author"].name, state["authentication"]) == ("write", "local", False)


async def test_a_write_token_is_the_author(ask: Asking) -> None:
    answer = await ask(
        method="PUT", headers={"content-type": "application/json; charset=utf-8"}, receive=fed(b'{"ra', b'te":1}')
    )
    assert (answer.status, answer.given) == (200, [b'{"rate":1}'])
    state = answer.passed[0]["state"]
    assert (state["role"], state["author"].name, state["author"].address) == ("write", "token", "192.0.2.9:4711")


async def test_a_reload_of_tokens_holds_for_the_next_request(ask: Asking) -> None:
    new = "another-token-for-the-tests"
    changed = ask.keyring.replace(read_access(AdminSettings(token=new), Origins(None, {}, {})))
    assert changed == ["token read_token: removed", "token token: changed (write)"]
    assert (await ask()).status == 401
    assert (await ask(headers={"authorization": f"Bearer {new}"})).status == 200


async def test_a_stream_ends_when_its_token_is_revoked(ask: Asking) -> None:
    async def stream(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        ask.keyring.replace(read_access(AdminSettings(read_token=READ), Origins(None, {}, {})))
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body", "body": b"three", "more_body": True})

    ask.answer = stream
    assert (await ask()).body == b"one "


@pytest.mark.parametrize(("method", "shown"), [("GET", b"one "), ("HEAD", b"")])
async def test_the_connection_of_a_stream_that_was_cut_is_free_again(
    ask: Asking, autojump_clock: MockClock, method: str, shown: bytes
) -> None:
    async def stream(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        ask.keyring.replace(read_access(AdminSettings(read_token=READ), Origins(None, {}, {})))
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await trio.sleep_forever()

    ask.answer = stream
    with trio.fail_after(1):
        assert (await ask(method=method)).body == shown
    del autojump_clock


async def test_a_body_may_have_its_bound_and_a_batch_may_be_larger(ask: Asking) -> None:
    answer = await ask(**PUT, receive=fed(bytes(MAX_BODY_BYTES - 1), b"x"))
    assert (answer.status, len(answer.given[-1])) == (200, MAX_BODY_BYTES)
    pieces = [bytes(MAX_BODY_BYTES)] * (MAX_BATCH_BYTES // MAX_BODY_BYTES)
    answer = await ask("/api/v1/limits:batch", "POST", headers=PUT["headers"], receive=fed(*pieces))
    assert (answer.status, len(answer.given[-1])) == (200, MAX_BATCH_BYTES)
    assert (await ask("/api/v1/limits:batch", "POST", receive=fed(*pieces, b"x"))).status == 413


async def test_read_only_client_uses_no_batch_slot(ask: Asking, autojump_clock: MockClock) -> None:
    path = "/api/v1/limits:batch"

    async def read_slowly() -> None:
        await ask(path, headers={"authorization": f"Bearer {READ}"}, receive=trio.sleep_forever)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(read_slowly)
        await wait_all_tasks_blocked()
        assert (await ask(path, "POST", receive=fed())).status == 200
        assert trio.current_time() - began < BODY_TIMEOUT_S
    del autojump_clock


async def test_a_slow_body_is_cut(ask: Asking, autojump_clock: MockClock) -> None:
    async def dripping() -> Message:
        await trio.sleep(1)
        return {"type": "http.request", "body": b"{", "more_body": True}

    began = trio.current_time()
    assert (await ask(method="PUT", receive=dripping)).status == 408
    assert trio.current_time() - began == pytest.approx(BODY_TIMEOUT_S)
    assert ask.refusals == {"body_time": 1}
    del autojump_clock


async def test_only_a_few_batches_are_read_at_once(ask: Asking, nursery: trio.Nursery) -> None:
    reading = []

    async def receive() -> Message:
        reading.append(1)
        await trio.sleep_forever()
        raise AssertionError

    for _ in range(9):
        nursery.start_soon(partial(ask, "/api/v1/limits:batch", **PUT, receive=receive))
    await wait_all_tasks_blocked()
    assert len(reading) == 4
    nursery.cancel_scope.cancel()


async def test_every_answer_has_the_security_headers(ask: Asking) -> None:
    headers = (await ask()).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "cache-control" not in (await ask("/")).headers


async def test_a_failing_application_is_answered_and_logged_at_a_bounded_rate(
    ask: Asking, autojump_clock: MockClock
) -> None:
    del autojump_clock

    async def failing(*_: object) -> None:
        raise KeyError("secret detail")

    ask.answer = failing
    with structlog.testing.capture_logs() as logged:
        for number in range(100):
            answer = await ask(f"/api/v1/limits/topic/{number}")
            assert (answer.status, answer.problem["detail"]) == (500, "internal error; see Sluice's log")
        await trio.sleep(1)
        await ask()
    assert [(entry["event"], entry["not_logged"]) for entry in logged] == [
        ("admin request failed", 0),
        ("admin request failed", 99),
    ]


async def test_failed_authentications_are_logged_with_the_peer_at_a_bounded_rate(
    ask: Asking, autojump_clock: MockClock
) -> None:
    del autojump_clock
    with structlog.testing.capture_logs() as logged:
        for _ in range(100):
            await ask(headers={"authorization": "Bearer wrong"})
    assert len(logged) <= 2
    assert (logged[0]["peer"], logged[0]["reason"]) == ("192.0.2.9:4711", "wrong_token")
    assert "Bearer" not in str(logged)


_PAGES = {route.path for route in web.routes()}
_ENDPOINTS = ["/api/v1/whoami", "/api/v1/limits/topic/orders", "/metrics", "/api/v1/reload", "/healthz", "/"]
_TRICKS = [
    "/",
    "//",
    "/./",
    "/../",
    "/%2e%2e/",
    "/%2E/",
    "%2f",
    "%252f",
    "%00",
    "\\",
    "%5c",
    ";",
    ";/healthz",
    "/healthz",
    "/healthz/..",
    "?",
    "#",
    "%23",
    "%3f",
    "%ff",
    "%c0%af",
    "http://127.0.0.1:9870",
    "http://127.0.0.1:9870/healthz/..",
    "*",
    "%20",
    "%0a",
    "API",
]


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Draw a path of the API or a probe with tricks, and some percent-encoded characters."""
    target = draw(st.sampled_from(_ENDPOINTS))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(target)))
        target = (
            target[:at]
            + draw(st.sampled_from(_TRICKS) | st.text(st.characters(max_codepoint=127), max_size=3))
            + target[at:]
        )
    encoded = draw(st.sets(st.integers(0, len(target))))
    spelled = "".join(
        f"%{ord(char):02x}" if at in encoded else char
        for at, char in enumerate(target)
        if char > " " and char != "\x7f"
    )
    return draw(st.sampled_from([spelled, spelled.swapcase(), quote(spelled, safe="/%")]))


@given(target=spellings(), method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"]))
async def test_no_spelling_of_a_path_gets_to_the_api_or_the_metrics_without_a_token(target: str, method: str) -> None:
    reached: list[str] = []

    async def api(scope: Scope, _: Receive, send: Send) -> None:
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"api"})

    # A request that gets through fails, which is not a refusal.
    data_path: Any = None
    app = server.application(
        data_path, Health(data_path), keyring=Keyring(ACCESS), settings=ADMIN, api=api, refusals=Refusals()
    )
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope_of(method, target, [("host", "localhost")]), fed(), send)
    assert reached == []
    path = unquote(target.partition("?")[0])
    if sent[0]["status"] not in (400, 401):
        assert path in {"/healthz", "/readyz", *_PAGES}, sent[0]
