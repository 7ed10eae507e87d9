"""The guard in front of the admin address: it finds out whose request it is, and refuses what must not get through.

It is ASGI middleware around the whole application, and checks in this order: the path, the Host (against DNS
rebinding), Origin and Sec-Fetch-Site (against scripts of other pages), the token, its role, the content type, the body.
A request that gets through has its author in ``request.state.author``, its role in ``request.state.role``, and its body
in memory.

Whether a path needs a token is decided on the same string that the router uses, by a list of the few paths that need
none. Another spelling of a path is not on the list.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
import trio
from starlette.types import ASGIApp, Receive, Scope, Send

from admin.edits.model import Author
from admin.http.answering import API, Answer, Reason, Refusals, RefusedError, replay
from admin.http.auth import LOCAL, Access, Keyring, Role
from admin.wire import BASE
from proxy.common.log_rate import LogRate
from proxy.net.sockets import format_address

MAX_BODY_BYTES: Final = 64 * 1024
"""Of a body, and of each edit in a batch; this much is decoded at once."""
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Of a batch of edits."""
BODY_TIMEOUT_S: Final = 10.0
"""For the whole body, from the end of the request's head."""

_BATCH: Final = f"{BASE}/limits:batch"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: How many reads compute at the same time: each takes a slice of every turn of the event loop.
_READS_AT_ONCE: Final = 8
#: Reading the audit trail waits for a disk. If the disk hangs, other reads must still be answered.
_AUDIT: Final = f"{BASE}/audit"
_BEARER: Final = re.compile(rb"bearer +([!-~]+) *", re.IGNORECASE)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Public:
    """The paths that need no token.

    Attributes:
        pages: as the router has them; a link from another site may lead there.
        probes: the others.
    """

    pages: frozenset[str] = frozenset()
    probes: frozenset[str] = frozenset()


class Guard:
    """The middleware.

    Args:
        app: what is behind it.
        keyring: who may do what.
        public: the paths that need no token.
        allowed_hosts: names under which the address is reached, besides localhost and addresses.
        refusals: where refusals are counted.
    """

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
        self._reads = trio.CapacityLimiter(_READS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        answer = Answer(scope, send)
        request = _Request(scope)
        try:
            self._check(request)
            access = self._keyring.access
            role, author = self._authenticate(request, access)
            body = await self._body(request, receive)
        except RefusedError as refused:
            self._refusals.count(refused.reason)
            self._say(refused, scope)
            await answer.refuse(refused)
            return
        if body is None:
            # The client left before the end of its body.
            return
        inner = {
            **scope,
            "method": "GET" if request.method == "HEAD" else request.method,
            "state": {**scope["state"], "author": author, "role": role, "authentication": bool(access.tokens)},
        }
        await self._pass(request, inner, replay(body, receive), answer, access)

    async def _pass(
        self, request: "_Request", scope: Scope, receive: Receive, answer: "Answer", access: Access
    ) -> None:
        keyring = self._keyring

        def still_allowed() -> bool:
            now = keyring.access
            return now is access or request.path in self._public.probes or _same(request, now, access)

        answer.still_allowed = still_allowed
        computes = request.path.startswith(API) and not request.path.startswith(_AUDIT)
        if computes and request.method in _SAFE:
            # Released with the head of the answer: a stream of events computes little and never ends.
            await self._reads.acquire_on_behalf_of(answer)
            answer.limiter = self._reads
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client gets an answer and the log the reason
            more = self._log_rate.take("failed", trio.current_time())
            if more is not None:
                _log.error("admin request failed", path=request.path, error=repr(error), more_since_last_line=more)
            await answer.fail()
        finally:
            answer.give_back()

    def _check(self, request: "_Request") -> None:
        """Refuse what no honest client sends.

        Raises:
            RefusedError: with what is wrong.
        """
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
        """Find out whose request it is.

        Raises:
            RefusedError: it has no token, a wrong one, or one that may only read.
        """
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
        """Read the whole body; None if the client left.

        Raises:
            RefusedError: it is too large, too slow, or not JSON.
        """
        most = MAX_BATCH_BYTES if request.path == _BATCH else MAX_BODY_BYTES
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

    def _say(self, refused: RefusedError, scope: Scope) -> None:
        """Log a failed authentication, at a bounded rate."""
        if refused.status not in (401, 403):
            return
        more = self._log_rate.take(refused.reason, trio.current_time())
        if more is not None:
            _log.warning("admin request refused", reason=refused.reason, peer=_peer(scope), more_since_last_line=more)


class _Request:
    """What the guard needs to know about a request."""

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.peer = _peer(scope)
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        try:
            self.is_utf8 = unquote_to_bytes(scope["raw_path"]).decode() == self.path
        except UnicodeDecodeError:
            self.is_utf8 = False

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self._headers if key.lower() == name]

    def only(self, name: bytes, reason: Reason, status: int) -> str:
        """Return the one header of that name, empty if there is none.

        Raises:
            RefusedError: there are several: another reader of the request may go by another one.
        """
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
