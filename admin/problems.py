"""The headers that every answer of the admin address has, and refusals with them."""

from typing import Final

from admin.wire import PROBLEM, FieldProblem, Problem, problem_body

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
    body = problem_body(Problem(status=status, detail=detail, errors=errors))
    headers = [
        (b"content-type", PROBLEM.encode()),
        (b"content-length", str(len(body)).encode()),
        NO_STORE,
        *SECURITY_HEADERS,
    ]
    return headers, body
