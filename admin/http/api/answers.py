"""Answers: bodies as JSON, entity tags, and problems in place of errors."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from admin.edits.model import ConflictError, EditError, EditProblem, NotFoundError, ReloadError, StaleError, StoreError
from admin.wire import PROBLEM, PROBLEMS, FieldProblem, Problem
from proxy.common.cooperative import Pace
from proxy.stats.question import QuestionError

NO_STORE = {"cache-control": "no-store"}
EDIT_ERRORS = (EditError, StaleError, NotFoundError, ConflictError, StoreError, ReloadError, QuestionError)


class BadRequestError(Exception):
    """A request that cannot be read, or asks for what is not allowed.

    Attributes:
        problems: each field with what is wrong with it.
    """

    def __init__(self, *problems: FieldProblem) -> None:
        super().__init__("; ".join(f"{each.field}: {each.detail}" for each in problems))
        self.problems = problems


def bad(field: str, detail: str) -> BadRequestError:
    """Make the error of one field."""
    return BadRequestError(FieldProblem(field, detail))


def answer(body: object, *, etag: str | None = None) -> Response:
    """Answer with JSON.

    Args:
        body: anything that msgspec encodes.
        etag: its entity tag, without quotes.
    """
    return encoded(msgspec.json.encode(body), etag=etag)


def encoded(body: bytes, *, etag: str | None = None) -> Response:
    """Answer with a body that is JSON already."""
    headers = NO_STORE if etag is None else {"cache-control": "no-cache", "etag": f'"{etag}"'}
    return Response(body, headers=headers, media_type="application/json")


def unchanged(etag: str) -> Response:
    """Answer that the client's copy is current."""
    return Response(status_code=304, headers={"cache-control": "no-cache", "etag": f'"{etag}"'})


async def encode_page(page: msgspec.Struct, rows: str) -> bytes:
    """Encode a page in steps, so that a long one does not hold up the data path.

    Args:
        page: what to encode.
        rows: the name of its field with the rows.
    """
    fields = {name: getattr(page, name) for name in page.__struct_fields__}
    fields[rows] = await encode_rows(fields[rows])
    return msgspec.json.encode(fields)


async def encode_rows(rows: Iterable[Any]) -> list[msgspec.Raw]:
    """Encode many rows in steps."""
    pace, raw = Pace(), []
    for row in rows:
        raw.append(msgspec.Raw(msgspec.json.encode(row)))
        await pace.keep()
    return raw


def problem(
    status: int,
    detail: str,
    errors: Iterable[FieldProblem] = (),
    *,
    etag: str = "",
    kind: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer with a problem.

    Args:
        status: of HTTP.
        detail: what is wrong and what to do.
        errors: what is wrong with which field.
        etag: for a stale write, the current entity tag.
        kind: the last part of the type's URI; default: the usual type of the status.
        headers: further headers.
    """
    body = Problem(
        type=PROBLEMS + kind if kind else "",
        status=status,
        detail=detail,
        errors=tuple(errors),
        etag=etag or msgspec.UNSET,
    )
    more = {**NO_STORE, **(headers or {})}
    if etag:
        more["etag"] = f'"{etag}"'
    return Response(msgspec.json.encode(body), status_code=status, headers=more, media_type=PROBLEM)


def refused_by_router(error: Exception, *, not_found: str) -> Response:
    """Answer to an unknown path, or to a method that is not allowed.

    Args:
        error: Starlette's HTTPException.
        not_found: what to say about an unknown path.

    Raises:
        Exception: the error itself, if it is another one.
    """
    if not isinstance(error, HTTPException):
        raise error
    details = {404: not_found, 405: "this cannot be done here"}
    return problem(error.status_code, details.get(error.status_code, error.detail), headers=error.headers)


async def failed(_: Request, __: Exception) -> Response:
    """Answer that something went wrong; the guard writes the reason into the log."""
    return problem(500, "internal error; the log has the reason")


def refused(error: Exception, *, batch: bool = False) -> Response:
    """Answer with the problem for an error.

    Args:
        error: BadRequestError, or one of EDIT_ERRORS.
        batch: the request has several edits, so that fields need the index of the edit.

    Raises:
        Exception: the error itself, if it is another one.
    """
    match error:
        case BadRequestError():
            return problem(400, _first(error.problems), error.problems)
        case QuestionError():
            return problem(400, error.detail, [FieldProblem(error.parameter, error.detail)])
        case EditError():
            fields = [_field(each, batch=batch) for each in error.problems]
            unknown = not batch and any(each.field == "kind" for each in error.problems)
            return problem(404 if unknown else 400, _first(fields), fields)
        case StaleError():
            place = [FieldProblem(f"edits.{error.edit}", error.detail, error.edit)] if batch else []
            return problem(412, error.detail, place, etag=error.etag)
        case NotFoundError():
            return problem(404, str(error), [_field(each, batch=False) for each in error.problems])
        case ConflictError():
            return problem(409, str(error))
        case StoreError():
            detail = str(error)
            hint = "" if "volatile" in detail else "; volatile=1 changes it until the restart without writing it down"
            return problem(507, detail + hint)
        case ReloadError():
            lines = [FieldProblem("", line) for line in error.lines]
            detail = "the configuration is wrong, and nothing was changed"
            return problem(409, detail, lines, kind="wrong-configuration")
    raise error


def _field(found: EditProblem, *, batch: bool) -> FieldProblem:
    if not batch:
        return FieldProblem(found.field, found.detail)
    field = f"edits.{found.edit}.{found.field}" if found.field else f"edits.{found.edit}"
    return FieldProblem(field, found.detail, found.edit)


def _first(problems: Iterable[FieldProblem]) -> str:
    """Return the first problem as a sentence, with the number of the others."""
    problems = tuple(problems)
    first = problems[0]
    text = f"{first.field}: {first.detail}" if first.field else first.detail
    return text if len(problems) == 1 else f"{text} (and {len(problems) - 1} more)"
