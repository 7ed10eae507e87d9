"""How a request of the admin address is answered: refusals, and what every answer has in common."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec
import trio
from starlette.types import Message, Receive, Scope, Send

from admin.wire import PROBLEM, FieldProblem, Problem

Headers = list[tuple[bytes, bytes]]

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-embedder-policy", b"require-corp"),
)
"""The page loads nothing from elsewhere, runs no scripts but its own files, and cannot be put in a frame."""

NO_STORE: Final = (b"cache-control", b"no-store")


def problem(status: int, detail: str, field: str = "") -> tuple[Headers, bytes]:
    """Make the headers and the body of an answer that says what is wrong.

    Args:
        status: of HTTP.
        detail: what is wrong and what to do, for people.
        field: the header that it is about, or ``body``; empty is none.

    Returns:
        Its headers, security headers included, and its body.
    """
    errors = (FieldProblem(field, detail),) if field else ()
    body = msgspec.json.encode(Problem(status=status, detail=detail, errors=errors))
    headers = [
        (b"content-type", PROBLEM.encode()),
        (b"content-length", str(len(body)).encode()),
        NO_STORE,
        *SECURITY_HEADERS,
    ]
    return headers, body


Reason = Literal[
    "path",
    "host",
    "origin",
    "no_token",
    "wrong_token",
    "role",
    "content_type",
    "body_size",
    "body_time",
    "evicted",
    "slow_head",
    "slow_reader",
    "handshake",
]

API: Final = "/api/"
"""Answers to paths below this must not be stored."""


class Refusals:
    """How many requests and connections were refused, by reason, for the metric."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()

    def count(self, reason: str) -> None:
        """Count one."""
        self.by_reason[reason] += 1


class RefusedError(Exception):
    """A request is not let through.

    Attributes:
        reason: what the metric has.
        status: of HTTP.
        detail: what is wrong and what to do, for people.
        field: the header that it is about, or ``body``; empty is none.
        headers: besides those of every refusal.
    """

    def __init__(
        self, reason: Reason, status: int, detail: str, *, field: str = "", headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(detail)
        self.reason, self.status, self.detail, self.field, self.headers = reason, status, detail, field, headers


class Answer:
    """Sends an answer with the headers that every answer has, and nothing after its end."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._started = False
        self._ended = False
        self.limiter: trio.CapacityLimiter | None = None
        self.still_allowed: Callable[[], bool] = lambda: True

    async def send(self, message: Message) -> None:
        """Send on what the application sends."""
        if self._ended:
            return
        if message["type"] == "http.response.start":
            self._started = True
            self.give_back()
            message = {**message, "headers": self._with_headers(message.get("headers", []))}
        elif message["type"] == "http.response.body":
            if self._scope["method"] == "HEAD" or not self.still_allowed():
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            self._ended = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, refused: RefusedError) -> None:
        """Answer, and close the connection: the client may still be sending a body that nobody will read."""
        headers, body = problem(refused.status, refused.detail, refused.field)
        headers += [*refused.headers, (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self) -> None:
        """Answer with 500; an answer that has already begun is broken off by the server."""
        if self._started:
            return
        headers, body = problem(500, "internal error; the log has the reason")
        await self._send({"type": "http.response.start", "status": 500, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
        self._ended = True

    def give_back(self) -> None:
        """Let another read compute."""
        if self.limiter is not None:
            self.limiter.release_on_behalf_of(self)
            self.limiter = None

    def _with_headers(self, given: Iterable[tuple[bytes, bytes]]) -> Headers:
        headers = [(bytes(name), bytes(value)) for name, value in given]
        present = {name.lower() for name, _ in headers}
        headers += [header for header in SECURITY_HEADERS if header[0] not in present]
        if NO_STORE[0] not in present and self._scope["path"].startswith(API):
            headers.append(NO_STORE)
        return headers


def replay(body: bytes, receive: Receive) -> Receive:
    """Give the application the body that was read already; after that it is told when the client leaves."""
    given = False

    async def again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
