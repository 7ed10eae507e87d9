"""ASGI middleware that authenticates and checks requests to the admin address.

It checks the path, the Host header (to prevent DNS rebinding), Origin and Sec-Fetch-Site (to reject scripts on other
sites), the token and its role, and finally the body. If a request passes, the application finds ``author`` and ``role``
in ``request.state``. The body has then already been read.

Like the router, the guard compares decoded paths, so encoding a path differently cannot bypass a check.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from typing import Final, Literal
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admin.edits.model import Author
from admin.http.auth import LOCAL, Access, Keyring, Role
from admin.http.problems import NO_STORE, Refusals, field_problem, problem
from admin.wire import BASE
from proxy.common.log_rate import LogRate
from proxy.net.sockets import format_address

MAX_BODY_BYTES: Final = 64 * 1024
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
BODY_TIMEOUT_S: Final = 10.0
"""Time limit for receiving a complete body, starting at the end of the request head."""

SECURITY_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
}
"""Prevent the page from loading content from other sites, running inline scripts, and being shown in a frame."""

_BATCH: Final = f"{BASE}/limits:batch"
#: Maximum number of batches in memory at the same time, because each can be large.
_MAX_BATCHES: Final = 4
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_BEARER: Final = re.compile(r"bearer +([!-~]+) *", re.IGNORECASE)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

Reason = Literal["path", "host", "origin", "no_token", "wrong_token", "role", "content_type", "body_size", "body_time"]

_log = structlog.get_logger(__name__)


class RefusedError(Exception):
    """Raised to refuse a request.

    ``reason`` is the label value in the metric. ``field`` is the part of the request that is wrong: a header, ``body``,
    or ``name`` for the path.
    """

    def __init__(self, reason: Reason, status: int, detail: str, field: str = "", challenge: str | None = None) -> None:
        super().__init__(detail)
        self.reason, self.status, self.field, self.challenge = reason, status, field, challenge


class Guard:
    """Checks requests before they reach ``app``, which must raise HTTPException for unknown paths and methods.

    ``pages`` and ``probes`` are paths that do not require a token. Other sites may link to ``pages``. ``allowed_hosts``
    are host names to accept in addition to localhost and IP addresses.
    """

    def __init__(
        self,
        app: ASGIApp,
        keyring: Keyring,
        *,
        pages: Collection[str],
        probes: Collection[str],
        allowed_hosts: Iterable[str] = (),
        refusals: Refusals,
    ) -> None:
        self._app, self._keyring, self._refusals = app, keyring, refusals
        self._pages, self._public = pages, frozenset({*pages, *probes})
        self._hosts = frozenset({"localhost", *(_bare(host) for host in allowed_hosts)})
        self._log_rate = LogRate()
        self._batches = trio.CapacityLimiter(_MAX_BATCHES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = self._keyring.access

        def is_allowed() -> bool:
            # End open streams when the tokens change, so that the clients must authenticate again.
            return self._keyring.access is access or scope["path"] in self._public

        answer = _Answer(scope, send, is_allowed)
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            role, author = self._authenticate(scope, headers, access)
            # Wait only after authentication, so that only clients with a write token can occupy the slots.
            async with self._batches if _is_batch(scope) else nullcontext():
                body = await _body(scope, headers, receive)
                # The body is None if the client disconnected before sending all of it.
                if body is not None:
                    state = {"author": author, "role": role, "authentication": bool(access.tokens)}
                    inner = {**scope, "state": {**scope["state"], **state}, "app": self}
                    inner["method"] = "GET" if scope["method"] == "HEAD" else scope["method"]
                    with answer.scope:
                        await self._app(inner, _replay(body, receive), answer.send)
        except RefusedError as refused:
            self._refusals[refused.reason] += 1
            self._log_refusal(refused, _peer(scope))
            # Close the connection, because the client may still be sending a body that will not be read.
            fields = {"connection": "close", **({"www-authenticate": refused.challenge} if refused.challenge else {})}
            response = field_problem(refused.status, refused.field, str(refused), fields)
            await response(scope, receive, answer.send)
        except HTTPException as error:
            details = {404: "there is no such path", 405: "the method is not allowed here"}
            response = problem(error.status_code, details.get(error.status_code, error.detail), headers=error.headers)
            await response(scope, receive, answer.send)
        except Exception as error:  # noqa: BLE001 - the client gets a response, and the reason is logged
            if (more := self._log_rate.take("failed", trio.current_time())) is not None:
                _log.error("admin request failed", path=scope["path"], error=repr(error), not_logged=more)
            if not answer.is_started:
                response = problem(500, "internal error; see Sluice's log")
                await response(scope, receive, answer.send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        if not path.startswith("/") or not _is_utf8(scope):
            raise RefusedError("path", 400, "the request target must be a percent-encoded UTF-8 path")
        if _CONTROL.search(path):
            # Check this here, because no route would match a path that contains a line feed.
            raise RefusedError("path", 400, "the path contains a control character", "name")
        host = _only(headers, "host", "host", 400)
        name = _HOST.fullmatch(host)
        if name is None or not (_bare(name[1]) in self._hosts or _is_address(name[1])):
            what = f'unknown host name "{host[:100]}"; use an IP address, or add the name to'
            raise RefusedError("host", 421, f"{what} admin.allowed_hosts", "host")
        origin = _only(headers, "origin", "origin", 403)
        if origin and not _same_host(origin, host):
            raise RefusedError("origin", 403, "cross-site requests are not allowed", "origin")
        site = _only(headers, "sec-fetch-site", "origin", 403)
        navigates = path in self._pages and scope["method"] in _SAFE
        if site not in ("", "same-origin", "none") and not (
            navigates and _only(headers, "sec-fetch-mode", "origin", 403) in ("navigate", "")
        ):
            raise RefusedError("origin", 403, "cross-site requests are not allowed", "sec-fetch-site")

    def _authenticate(self, scope: Scope, headers: Headers, access: Access) -> tuple[Role, Author]:
        peer = _peer(scope)
        if scope["path"] in self._public:
            return "read", Author("", peer)
        if not access.tokens:
            return "write", Author(LOCAL, peer)
        values = headers.getlist("authorization")
        challenge = 'Bearer realm="sluice"'
        if not values:
            what = "a token is required, in the header Authorization: Bearer TOKEN"
            raise RefusedError("no_token", 401, what, "authorization", challenge)
        bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
        # Compare tokens even if the header is malformed, so that the response time does not depend on the error.
        token = access.find(bearer[1].encode() if bearer else b"")
        if token is None or bearer is None:
            what = (
                "unknown token" if bearer else "there must be a single Authorization header with the value Bearer TOKEN"
            )
            raise RefusedError("wrong_token", 401, what, "authorization", f'{challenge}, error="invalid_token"')
        if token.role != "write" and scope["method"] not in _SAFE:
            what = f"the token {token.name} is read-only"
            raise RefusedError("role", 403, what, "authorization", f'{challenge}, error="insufficient_scope"')
        return token.role, Author(token.name, peer)

    def _log_refusal(self, refused: RefusedError, peer: str) -> None:
        if refused.status not in (401, 403):
            return
        if (more := self._log_rate.take(refused.reason, trio.current_time())) is not None:
            _log.warning("admin request refused", reason=refused.reason, peer=peer, not_logged=more)


class _Answer:
    """Adds security headers to a response, and discards messages that are sent after the response is complete."""

    def __init__(self, scope: Scope, send: Send, is_allowed: Callable[[], bool]) -> None:
        self._scope, self._send, self._is_allowed = scope, send, is_allowed
        self.is_started = self._has_ended = False
        #: Cancelled when the response ends before the application has sent all of it.
        self.scope = trio.CancelScope()

    async def send(self, message: Message) -> None:
        if self._has_ended:
            return
        is_cut = False
        if message["type"] == "http.response.start":
            self.is_started = True
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            for name, value in (SECURITY_HEADERS | NO_STORE if self._is_api else SECURITY_HEADERS).items():
                headers.setdefault(name, value)
            message = {**message, "headers": headers.raw}
        elif message["type"] == "http.response.body":
            if self._scope["method"] == "HEAD" or not self._is_allowed():
                is_cut = message.get("more_body", False)
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            self._has_ended = not message.get("more_body", False)
        await self._send(message)
        if is_cut:
            # Otherwise, a stream would continue and block further requests on this connection.
            self.scope.cancel()

    @property
    def _is_api(self) -> bool:
        return bool(self._scope["path"].startswith(BASE))


async def _body(scope: Scope, headers: Headers, receive: Receive) -> bytes | None:
    most = MAX_BATCH_BYTES if _is_batch(scope) else MAX_BODY_BYTES
    too_large = RefusedError("body_size", 413, f"the body must not exceed {most} bytes", "body")
    length = _only(headers, "content-length", "body_size", 400)
    if length and "transfer-encoding" in headers:
        # Prevent request smuggling. A proxy in front of Sluice may use a different header to find the body's end.
        what = "Content-Length and Transfer-Encoding must not both be present"
        raise RefusedError("body_size", 400, what, "transfer-encoding")
    if length.isascii() and length.isdigit() and (len(length) > 9 or int(length) > most):
        raise too_large
    body = bytearray()
    with trio.move_on_after(BODY_TIMEOUT_S) as patience:
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if len(body) > most:
                raise too_large
            if not message.get("more_body", False):
                break
        else:
            return None
    if patience.cancelled_caught:
        raise RefusedError("body_time", 408, f"the body did not arrive within {BODY_TIMEOUT_S:g} seconds", "body")
    if body and scope["method"] not in _SAFE and not _is_json(headers.getlist("content-type")):
        raise RefusedError("content_type", 415, "the body must have Content-Type: application/json", "content-type")
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _only(headers: Headers, name: str, reason: Reason, status: int) -> str:
    """Return a header's value, or an empty string if the header is missing.

    Raises RefusedError if the header is repeated, because a proxy in front of Sluice may have used the other value.
    """
    values = headers.getlist(name)
    if len(values) > 1:
        raise RefusedError(reason, status, f"the {name} header must not be repeated", name)
    return values[0].strip() if values else ""


def _is_batch(scope: Scope) -> bool:
    return scope["path"] == _BATCH and scope["method"] not in _SAFE


def _is_utf8(scope: Scope) -> bool:
    try:
        return bool(unquote_to_bytes(scope["raw_path"]).decode() == scope["path"])
    except UnicodeDecodeError:
        return False


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
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    port = _DEFAULT_PORTS.get(parts.scheme)
    if port is None or origin.lower() != f"{parts.scheme}://{parts.netloc}".lower():
        return False
    return _bare(parts.netloc.removesuffix(port)) == _bare(host.removesuffix(port))


def _is_json(content_types: list[str]) -> bool:
    return len(content_types) == 1 and content_types[0].split(";")[0].strip().lower() == "application/json"
