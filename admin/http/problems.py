"""Makes error responses, which contain problem details (RFC 9457)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from starlette.responses import Response

from admin.edits.model import FieldProblem
from admin.wire import PROBLEM, PROBLEMS, Problem

NO_STORE: Final = {"cache-control": "no-store"}

Refusals = Counter[str]
"""Counts refused requests and connections by reason, for the metric."""


def problem(
    status: int,
    detail: str,
    errors: Iterable[FieldProblem] = (),
    *,
    etag: str = "",
    kind: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Make an error response.

    ``kind`` is the last segment of the problem type's URI. By default, the first type with this status is used.
    """
    body = Problem(
        type=PROBLEMS + kind if kind else "",
        status=status,
        detail=detail,
        errors=tuple(errors),
        etag=etag or msgspec.UNSET,
    )
    more = {**NO_STORE, **(headers or {}), **({"etag": f'"{etag}"'} if etag else {})}
    return Response(msgspec.json.encode(body), status_code=status, headers=more, media_type=PROBLEM)


def field_problem(status: int, field: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return problem(status, detail, [FieldProblem(field, detail)] if field else [], headers=headers)
