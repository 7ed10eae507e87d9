import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from trio.testing import MockClock

from admin import web
from admin.config.faults import Origins
from admin.config.settings import AdminSettings
from admin.http import server
from admin.http.auth import Access, Keyring, read_access
from admin.http.guard import BODY_TIMEOUT_S, MAX_BATCH_BYTES, MAX_BODY_BYTES, Guard, Public
from admin.http.refusals import Refusals
from admin.stats.health import Health
from admin.wire import usual_type

WRITE, READ = "write-token-for-the-tests-0", "read-token-for-the-tests-00"
ADMIN = AdminSettings(token=WRITE, read_token=READ)
ACCESS = read_access(ADMIN, Origins(None, {}, {}))
PUBLIC = Public(pages=frozenset({"/", "/web/app.js"}), probes=frozenset({"/healthz"}))
BEARER = {"authorization": f"Bearer {WRITE}"}


class Answer(NamedTuple):
    """What came back, and what got through."""

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
    """Make what the server makes of a request."""
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
    """Feed a body; afterwards nothing comes any more."""
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
    """Asks a guard."""

    def __init__(self, access: Access = ACCESS, hosts: Sequence[str] = ()) -> None:
        self.refusals = Refusals()
        self.keyring = Keyring(access)
        self.passed: list[Scope] = []
        self.given: list[bytes] = []
        self.answer: Callable[[Scope, Receive, Send], Awaitable[None]] = self._hello
        self.guard: ASGIApp = Guard(self._app, self.keyring, public=PUBLIC, allowed_hosts=hosts, refusals=self.refusals)

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


def refused(answer: Answer, status: int) -> str:
    """Check that it is a refusal in the form of all refusals, and return what it says."""
    assert answer.status == status, answer
    assert answer.passed == []
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.problem["status"] == status
    assert answer.problem["type"] == usual_type(status).type
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["connection"] == "close"
    return str(answer.problem["detail"])


async def test_a_write_token_may_write_and_is_the_author(ask: Asking) -> None:
    answer = await ask(
        method="PUT", headers={"content-type": "application/json; charset=utf-8"}, receive=fed(b'{"ra', b'te":1}')
    )
    assert (answer.status, answer.body, answer.given) == (200, b"hello", [b'{"rate":1}'])
    state = answer.passed[0]["state"]
    assert (state["role"], state["author"].name, state["author"].address) == ("write", "token", "192.0.2.9:4711")
    assert state["authentication"] is True


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_read_token_may_read(ask: Asking, method: str) -> None:
    answer = await ask(method=method, headers={"authorization": f"bearer   {READ}"})
    assert answer.status == 200
    assert answer.passed[0]["state"]["role"] == "read"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "TRACE", "CONNECT", "BREW"])
async def test_a_read_token_may_do_nothing_else(ask: Asking, method: str) -> None:
    answer = await ask(method=method, headers={"authorization": f"Bearer {READ}"})
    assert refused(answer, 403) == "the token read_token may only read"
    assert ask.refusals.by_reason == {"role": 1}


async def test_without_a_token_it_says_which_header_is_wanted(ask: Asking) -> None:
    answer = await ask(headers={"authorization": ""})
    assert refused(answer, 401) == "a token is wanted: Authorization: Bearer TOKEN"
    assert answer.headers["www-authenticate"] == 'Bearer realm="sluice"'
    assert answer.problem["errors"][0]["field"] == "authorization"
    assert ask.refusals.by_reason == {"no_token": 1}


@pytest.mark.parametrize(
    "value",
    [
        f"Bearer {WRITE}x",
        f"Bearer {WRITE[:-1]}",
        f"Basic {WRITE}",
        WRITE,
        "Bearer",
        "Bearer  ",
        f"Bearer {WRITE} {READ}",
    ],
)
async def test_a_wrong_token_is_refused(ask: Asking, value: str) -> None:
    answer = await ask(headers={"authorization": value})
    assert WRITE not in refused(answer, 401)
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert ask.refusals.by_reason == {"wrong_token": 1}


async def test_two_authorizations_are_refused_even_if_one_is_right(ask: Asking) -> None:
    refused(await ask(more=[("authorization", f"Bearer {READ}")]), 401)


@pytest.mark.parametrize("path", ["/", "/web/app.js", "/healthz"])
async def test_pages_and_probes_want_no_token(ask: Asking, path: str) -> None:
    assert (await ask(path, headers={"authorization": ""})).status == 200


async def test_without_any_token_configured_all_is_allowed_to_local() -> None:
    answer = await Asking(Access())(method="DELETE", headers={"authorization": ""})
    state = answer.passed[0]["state"]
    assert (state["role"], state["author"].name, state["authentication"]) == ("write", "local", False)


async def test_a_reload_of_tokens_holds_for_the_next_request(ask: Asking) -> None:
    new = "another-token-for-the-tests"
    changed = ask.keyring.replace(read_access(AdminSettings(token=new), Origins(None, {}, {})))
    assert changed == ["token read_token: removed", "token token: another one (write)"]
    refused(await ask(), 401)
    assert (await ask(headers={"authorization": f"Bearer {new}"})).status == 200


async def test_a_body_of_two_lengths_is_refused_and_the_connection_closed(ask: Asking) -> None:
    headers = {"content-length": "5", "transfer-encoding": "chunked"}
    assert "exclude each other" in refused(await ask(method="PUT", headers=headers), 400)


async def test_a_stream_ends_when_its_token_is_taken_back(ask: Asking) -> None:
    async def stream(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        ask.keyring.replace(read_access(AdminSettings(read_token=READ), Origins(None, {}, {})))
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body", "body": b"three", "more_body": True})

    ask.answer = stream
    assert (await ask()).body == b"one "


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1", "192.0.2.1:9870", "[::1]", "[2001:db8::1]:80", "sluice.example:443"],
)
async def test_addresses_and_configured_names_are_hosts(host: str) -> None:
    assert (await Asking(hosts=["Sluice.Example."])(headers={"host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "127.0.0.1:x", "a@127.0.0.1", "[::1"],
)
async def test_other_hosts_are_misdirected(ask: Asking, host: str) -> None:
    assert "admin.allowed_hosts" in refused(await ask("/healthz", headers={"host": host}), 421)
    assert ask.refusals.by_reason == {"host": 1}


async def test_two_hosts_are_refused(ask: Asking) -> None:
    refused(await ask(more=[("host", "127.0.0.1")]), 400)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:9870", "127.0.0.1:9870"),
        ("https://localhost", "localhost:443"),
        ("http://localhost:80", "localhost"),
        ("http://LOCALHOST:7", "localhost:7"),
        ("http://[::1]:7", "[::1]:7"),
    ],
)
async def test_the_pages_own_origin_is_allowed(ask: Asking, origin: str, host: str) -> None:
    headers = {"origin": origin, "host": host, "sec-fetch-site": "same-origin"}
    assert (await ask(method="DELETE", headers=headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9871"},
        {"origin": "http://127.0.0.1"},
        {"origin": "http://127.0.0.1:9870/"},
        {"origin": "ftp://127.0.0.1:9870"},
        {"origin": "http://user@127.0.0.1:9870"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_scripts_of_other_sites_are_refused(ask: Asking, headers: dict[str, str], method: str) -> None:
    assert refused(await ask(method=method, headers=headers), 403) == "this is not for scripts of other sites"
    assert ask.refusals.by_reason == {"origin": 1}


async def test_a_link_of_another_site_may_lead_to_the_page(ask: Asking) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await ask("/", headers=headers)).status == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
async def test_a_write_with_a_body_must_be_json(ask: Asking, content_type: str) -> None:
    refused(await ask(method="PUT", headers={"content-type": content_type}, receive=fed(b"{}")), 415)


async def test_a_write_without_a_body_needs_no_content_type(ask: Asking) -> None:
    assert (await ask(method="DELETE")).status == 200


async def test_a_body_may_have_its_bound(ask: Asking) -> None:
    answer = await ask(
        method="PUT", headers={"content-type": "application/json"}, receive=fed(bytes(MAX_BODY_BYTES - 1), b"x")
    )
    assert (answer.status, len(answer.given[0])) == (200, MAX_BODY_BYTES)


async def test_a_batch_may_be_larger(ask: Asking) -> None:
    pieces = [bytes(MAX_BODY_BYTES)] * (MAX_BATCH_BYTES // MAX_BODY_BYTES)
    batch = "/api/v1/limits:batch"
    answer = await ask(batch, method="POST", headers={"content-type": "application/json"}, receive=fed(*pieces))
    assert (answer.status, len(answer.given[0])) == (200, MAX_BATCH_BYTES)
    assert (await ask(batch, method="POST", receive=fed(*pieces, b"x"))).status == 413


async def test_a_body_above_its_bound_is_refused_while_it_comes(ask: Asking, autojump_clock: MockClock) -> None:
    del autojump_clock
    refused(await ask(method="PUT", receive=fed(bytes(MAX_BODY_BYTES), b"x", ends=False)), 413)
    assert ask.refusals.by_reason == {"body_size": 1}


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), "9" * 40])
async def test_a_body_that_announces_itself_as_too_large_is_not_waited_for(
    ask: Asking, length: str, autojump_clock: MockClock
) -> None:
    del autojump_clock
    refused(await ask(method="PUT", headers={"content-length": length}, receive=fed(ends=False)), 413)


async def test_a_slow_body_is_cut(ask: Asking, autojump_clock: MockClock) -> None:
    async def dripping() -> Message:
        await trio.sleep(1)
        return {"type": "http.request", "body": b"{", "more_body": True}

    began = trio.current_time()
    refused(await ask(method="PUT", receive=dripping), 408)
    # One more second is given to the client to read the answer.
    assert BODY_TIMEOUT_S <= trio.current_time() - began <= BODY_TIMEOUT_S + 1
    assert ask.refusals.by_reason == {"body_time": 1}
    del autojump_clock


async def test_who_leaves_in_the_middle_of_a_body_is_not_answered(ask: Asking) -> None:
    async def leaving() -> Message:
        return {"type": "http.disconnect"}

    answer = await ask(method="PUT", receive=leaving)
    assert (answer.status, answer.passed) == (0, [])


async def test_a_body_is_not_read_before_its_author_is_known(ask: Asking, autojump_clock: MockClock) -> None:
    del autojump_clock
    refused(await ask(method="PUT", headers={"authorization": ""}, receive=fed(bytes(1000), ends=False)), 401)


async def test_every_answer_has_the_security_headers(ask: Asking) -> None:
    headers = (await ask()).headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "cache-control" not in (await ask("/")).headers


async def test_a_head_request_has_the_head_of_the_answer_only(ask: Asking) -> None:
    answer = await ask(method="HEAD")
    assert (answer.status, answer.body, answer.passed[0]["method"]) == (200, b"", "GET")


@pytest.mark.parametrize("path", ["/api/v1/limits/topic/a%{:02X}b", "/api/v1/limits/topic/a%{:02X}"])
async def test_control_characters_in_a_path_are_refused_alike(ask: Asking, path: str) -> None:
    for code in (*range(32), 127):
        answer = await ask(path.format(code), "PUT")
        assert refused(answer, 400) == "no name has control characters, and this path has one"
        assert [each["field"] for each in answer.problem["errors"]] == ["name"]


async def test_a_failing_application_is_answered_and_logged_once(ask: Asking) -> None:
    async def failing(*_: object) -> None:
        raise KeyError("secret detail")

    ask.answer = failing
    with structlog.testing.capture_logs() as logged:
        answer = await ask()
    assert (answer.status, answer.problem["detail"]) == (500, "internal error; the log has the reason")
    assert [entry["event"] for entry in logged] == ["admin request failed"]


async def test_failures_of_the_application_are_logged_at_a_bounded_rate(ask: Asking, autojump_clock: MockClock) -> None:
    del autojump_clock

    async def failing(*_: object) -> None:
        raise KeyError

    ask.answer = failing
    with structlog.testing.capture_logs() as logged:
        for number in range(100):
            assert (await ask(f"/api/v1/limits/topic/{number}")).status == 500
        await trio.sleep(1)
        await ask()
    assert [(entry["event"], entry["more_since_last_line"]) for entry in logged] == [
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
    """Draw a path of the API or a probe with tricks put in anywhere, and some characters percent-encoded."""
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

    # Not even there: who gets through to it fails, and that is no refusal.
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


async def test_names_with_any_printable_characters_reach_the_api_with_a_token(ask: Asking) -> None:
    name = "a//b/../cé%2e?#<b>"
    answer = await ask(f"/api/v1/limits/topic/{quote(name, safe='')}")
    assert answer.passed[0]["path"] == f"/api/v1/limits/topic/{name}"


@pytest.mark.parametrize("target", ["/api/v1/limits/topic/%ff", "/api/v1/limits/topic/%ed%a0%80"])
async def test_a_path_that_is_not_utf8_is_refused(ask: Asking, target: str) -> None:
    refused(await ask(target), 400)
