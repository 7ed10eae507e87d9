"""The guard: ASGI middleware that authenticates each request to the admin address, and refuses what is not allowed.

It checks in this order: the path, the Host (against DNS rebinding), Origin and Sec-Fetch-Site (against scripts of other
pages), the token, its role, the content type, the body. A request that passes has its author in
``request.state.author``, its role in ``request.state.role``, and its body in memory.

Only the paths of a short list need no token. They are compared with the string that the router uses, so another
spelling of a path is not on the list.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admin.edits.model import Author
from admin.http.auth import LOCAL, Access, Keyring, Role
from admin.http.refusals import NO_STORE, SECURITY_HEADERS, Headers, Reason, Refusals, RefusedError, problem
from admin.wire import BASE
from proxy.common.log_rate import LogRate
from proxy.net.sockets import format_address

MAX_BODY_BYTES: Final = 64 * 1024
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
BODY_TIMEOUT_S: Final = 10.0
"""For the whole body, from the end of the request's head."""

_API: Final = "/api/"
_BATCH: Final = f"{BASE}/limits:batch"
#: Batches in memory at once: each can be large.
_MAX_BATCHES: Final = 4
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BEARER: Final = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Public:
    """The paths that need no token: pages, to which a link from another site may lead, and probes."""

    pages: frozenset[str] = frozenset()
    probes: frozenset[str] = frozenset()


class Guard:
    """The middleware. ``allowed_hosts`` are names of the address besides localhost and IP addresses."""

    def __init__(
        self,
        app: ASGIApp,
        keyring: Keyring,
        *,
        public: Public,
        allowed_hosts: Iterable[str] = (),
        refusals: Refusals,
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._public = public
        self._hosts = frozenset({"localhost", *(_bare(host) for host in allowed_hosts)})
        self._refusals = refusals
        self._log_rate = LogRate()
        self._batches = trio.CapacityLimiter(_MAX_BATCHES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        request = _Request(scope)
        try:
            self._check(request)
            access = self._keyring.access
            role, author = self._authenticate(request, access)
            async with self._batches if request.is_batch else nullcontext():
                body = await self._body(request, receive)
                # None: the client left before the end of its body.
                if body is not None:
                    state: dict[str, object] = {"author": author, "role": role, "authentication": bool(access.tokens)}
                    await self._pass(request, _replay(body, receive), send, access, state)
        except RefusedError as refused:
            self._refusals.count(refused.reason)
            self._log_refusal(refused, request)
            headers, body = problem(refused.status, refused.detail, refused.field)
            # The client may still be sending a body that is not read.
            headers += [*refused.headers, (b"connection", b"close")]
            await send({"type": "http.response.start", "status": refused.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def _pass(
        self, request: "_Request", receive: Receive, send: Send, access: Access, state: dict[str, object]
    ) -> None:
        def still_allowed() -> bool:
            now = self._keyring.access
            return now is access or request.path in self._public.probes or _same(request, now, access)

        answer = _Answer(request.scope, send, still_allowed)
        inner = {
            **request.scope,
            "method": "GET" if request.method == "HEAD" else request.method,
            "state": {**request.scope["state"], **state},
        }
        try:
            await self._app(inner, receive, answer.send)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client gets an answer and the log the reason
            more = self._log_rate.take("failed", trio.current_time())
            if more is not None:
                _log.error("admin request failed", path=request.path, error=repr(error), more_since_last_line=more)
            await answer.fail()

    def _check(self, request: "_Request") -> None:
        if not request.path.startswith("/") or not request.is_utf8:
            raise RefusedError("path", 400, "the request's target must be a path in UTF-8, percent-encoded")
        if _CONTROL.search(request.path):
            # Here and not in the API: no route matches a path with a line feed.
            raise RefusedError("path", 400, "no name has control characters, and this path has one", field="name")
        host = request.only(b"host", "host", 400)
        name = _HOST.fullmatch(host)
        if name is None or not (_bare(name[1]) in self._hosts or _is_address(name[1])):
            raise RefusedError(
                "host",
                421,
                f'nothing is served under the name "{host[:100]}"; use the address, or add the name to '
                "admin.allowed_hosts",
                field="host",
            )
        navigates = request.path in self._public.pages and request.method in _SAFE
        origin = request.only(b"origin", "origin", 403)
        if origin and not _same_host(origin, host):
            raise RefusedError("origin", 403, "this is not for scripts of other sites", field="origin")
        site = request.only(b"sec-fetch-site", "origin", 403)
        if site not in ("", "same-origin", "none") and not (
            navigates and request.only(b"sec-fetch-mode", "origin", 403) in ("navigate", "")
        ):
            raise RefusedError("origin", 403, "this is not for scripts of other sites", field="sec-fetch-site")

    def _authenticate(self, request: "_Request", access: Access) -> tuple[Role, Author]:
        if request.path in self._public.pages or request.path in self._public.probes:
            return "read", Author("", request.peer)
        if not access.tokens:
            return "write", Author(LOCAL, request.peer)
        values = request.all(b"authorization")
        if not values:
            raise RefusedError(
                "no_token",
                401,
                "a token is wanted: Authorization: Bearer TOKEN",
                field="authorization",
                headers=[(b"www-authenticate", b'Bearer realm="sluice"')],
            )
        bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
        # Always compare something, so that the time taken does not reveal what was wrong.
        token = access.find(bearer[1] if bearer else b"")
        if token is None or bearer is None:
            raise RefusedError(
                "wrong_token",
                401,
                "no such token" if bearer else "must be one header: Authorization: Bearer TOKEN",
                field="authorization",
                headers=[(b"www-authenticate", b'Bearer realm="sluice", error="invalid_token"')],
            )
        if token.role != "write" and request.method not in _SAFE:
            raise RefusedError(
                "role",
                403,
                f"the token {token.name} may only read",
                field="authorization",
                headers=[(b"www-authenticate", b'Bearer realm="sluice", error="insufficient_scope"')],
            )
        return token.role, Author(token.name, request.peer)

    async def _body(self, request: "_Request", receive: Receive) -> bytes | None:
        """Read the whole body; None if the client left."""
        most = MAX_BATCH_BYTES if request.is_batch else MAX_BODY_BYTES
        too_large = RefusedError("body_size", 413, f"a body has at most {most} bytes", field="body")
        length = request.only(b"content-length", "body_size", 400)
        if length and request.all(b"transfer-encoding"):
            # A proxy in front may go by the other one, and send what follows as another client's request.
            raise RefusedError(
                "body_size", 400, "Content-Length and Transfer-Encoding exclude each other", field="transfer-encoding"
            )
        if length.isascii() and length.isdigit() and (len(length) > 9 or int(length) > most):
            raise too_large
        body = bytearray()
        with trio.move_on_after(BODY_TIMEOUT_S) as scope:
            while (message := await receive())["type"] == "http.request":
                body += message.get("body", b"")
                if len(body) > most:
                    raise too_large
                if not message.get("more_body", False):
                    break
            else:
                return None
        if scope.cancelled_caught:
            raise RefusedError(
                "body_time", 408, f"the body was not there within {BODY_TIMEOUT_S:g} seconds", field="body"
            )
        if body and request.method not in _SAFE and not _is_json(request.all(b"content-type")):
            raise RefusedError(
                "content_type", 415, "the body must be Content-Type: application/json", field="content-type"
            )
        return bytes(body)

    def _log_refusal(self, refused: RefusedError, request: "_Request") -> None:
        """Log a failed authentication, at a bounded rate."""
        if refused.status not in (401, 403):
            return
        more = self._log_rate.take(refused.reason, trio.current_time())
        if more is not None:
            _log.warning("admin request refused", reason=refused.reason, peer=request.peer, more_since_last_line=more)


class _Answer:
    """Sends an answer with the headers that every answer has, and nothing after its end."""

    def __init__(self, scope: Scope, send: Send, still_allowed: Callable[[], bool]) -> None:
        self._scope, self._send, self._still_allowed = scope, send, still_allowed
        self._started = self._ended = False

    async def send(self, message: Message) -> None:
        if self._ended:
            return
        if message["type"] == "http.response.start":
            self._started = True
            message = {**message, "headers": self._with_headers(message.get("headers", []))}
        elif message["type"] == "http.response.body":
            if self._scope["method"] == "HEAD" or not self._still_allowed():
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            self._ended = not message.get("more_body", False)
        await self._send(message)

    async def fail(self) -> None:
        """Answer with 500; the server breaks off an answer that has begun."""
        if not self._started:
            headers, body = problem(500, "internal error; the log has the reason")
            await self._send({"type": "http.response.start", "status": 500, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})

    def _with_headers(self, given: Iterable[tuple[bytes, bytes]]) -> Headers:
        headers = [(bytes(name), bytes(value)) for name, value in given]
        present = {name.lower() for name, _ in headers}
        headers += [header for header in SECURITY_HEADERS if header[0] not in present]
        if NO_STORE[0] not in present and self._scope["path"].startswith(_API):
            headers.append(NO_STORE)
        return headers


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the application the body; after that it is told when the client leaves."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


class _Request:
    """What the guard needs to know about a request."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        #: Of those who may change something: others must not take their turns.
        self.is_batch = self.path == _BATCH and self.method not in _SAFE
        self.peer = _peer(scope)
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        try:
            self.is_utf8 = unquote_to_bytes(scope["raw_path"]).decode() == self.path
        except UnicodeDecodeError:
            self.is_utf8 = False

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self._headers if key.lower() == name]

    def only(self, name: bytes, reason: Reason, status: int) -> str:
        """Return the one header of that name, empty if there is none; a proxy in front may read another of several."""
        values = self.all(name)
        if len(values) > 1:
            text = name.decode()
            raise RefusedError(reason, status, f"there must be one header {text}", field=text)
        return values[0].decode("latin-1").strip() if values else ""


def _same(request: _Request, now: Access, before: Access) -> bool:
    """Return whether the request's token still has the role that it had."""
    if not now.tokens:
        return True
    bearer = _BEARER.fullmatch((request.all(b"authorization") or [b""])[0])
    text = bearer[1] if bearer else b""
    token, old = now.find(text), before.find(text)
    return token is not None and old is not None and token.role == old.role


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return format_address(tuple(client)) if client else ""


def _bare(host: str) -> str:
    return host.lower().rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _same_host(origin: str, host: str) -> bool:
    """Return whether a page of that origin was served by this host."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    port = _DEFAULT_PORTS.get(parts.scheme)
    if port is None or origin.lower() != f"{parts.scheme}://{parts.netloc}".lower():
        return False
    return _bare(parts.netloc.removesuffix(port)) == _bare(host.removesuffix(port))


def _is_json(content_types: list[bytes]) -> bool:
    return len(content_types) == 1 and content_types[0].split(b";")[0].strip().lower() == b"application/json"
