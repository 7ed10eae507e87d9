"""Refusals of the admin address: the problem that is answered, the headers of every answer, and the count by reason."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

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


def problem(status: int, detail: str, field: str = "") -> tuple[Headers, bytes]:
    """Make the headers and the body of a problem, security headers included.

    Args:
        status: of HTTP.
        detail: what is wrong and what to do, for people.
        field: the header at fault, or ``body``; empty is none.
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


class Refusals:
    """How many requests and connections were refused, by reason, for the metric."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()

    def count(self, reason: str) -> None:
        """Count one."""
        self.by_reason[reason] += 1


class RefusedError(Exception):
    """The guard refuses a request.

    Attributes:
        reason: label of the metric.
        status: of HTTP.
        detail: what is wrong and what to do, for people.
        field: the header at fault, or ``body``; empty is none.
        headers: further headers.
    """

    def __init__(
        self, reason: Reason, status: int, detail: str, *, field: str = "", headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(detail)
        self.reason, self.status, self.detail, self.field, self.headers = reason, status, detail, field, headers
