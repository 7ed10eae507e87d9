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
"""The page loads nothing from elsewhere, runs no script but its own files, and stands in nobody's frame."""

NO_STORE: Final = (b"cache-control", b"no-store")


def problem(status: int, detail: str, field: str = "") -> tuple[Headers, bytes]:
    """Make an answer that says what is wrong.

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
    "connections",
    "busy",
    "evicted",
    "slow_head",
    "slow_reader",
    "handshake",
]

#: What is still sent when a request has been refused is read for so long, so that the answer gets through.
_DISCARD_S: Final = 1.0

API: Final = "/api/"
"""Where all answers begin that must not be stored."""


class Refusals:
    """How many requests and connections were refused, by reason; what the metric is made of."""

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
    """What is sent back: with the headers that every answer has, and nothing behind its end."""

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

    async def refuse(self, refused: RefusedError, receive: Receive | None) -> None:
        """Answer, and read on what the client may still be sending, since it may not look before it has sent it."""
        headers, body = problem(refused.status, refused.detail, refused.field)
        close = [(b"connection", b"close")]
        start: Message = {
            "type": "http.response.start",
            "status": refused.status,
            "headers": [*headers, *refused.headers, *close],
        }
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": receive is not None})
        if receive is None:
            return
        async with trio.open_nursery() as nursery:
            discarded = trio.Event()
            nursery.start_soon(_discard, receive, discarded)
            with trio.move_on_after(_DISCARD_S):
                await discarded.wait()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()

    async def fail(self) -> None:
        """Answer that it went wrong; what has begun is broken off by the server when the application is done."""
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


async def _discard(receive: Receive, done: trio.Event) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            done.set()


def replay(body: bytes, receive: Receive) -> Receive:
    """Give the application the body that was read already; from then on it hears when the client leaves."""
    given = False

    async def again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
