"""Makes the API's responses."""

from collections.abc import Collection, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response

from admin.edits.model import EditError, FieldProblem, InvalidError, PreconditionError, ReloadError
from admin.http.problems import NO_STORE, problem
from proxy.common.threads import on_thread
from proxy.stats.question import QuestionError

T = TypeVar("T")
_LONG: Final = 100
_encoder: Final = msgspec.json.Encoder()


def bad(field: str, detail: str) -> InvalidError:
    return InvalidError(FieldProblem(field, detail))


class Tagged(NamedTuple, Generic[T]):
    """A response body and its ETag, without quotes. ``etag`` is None if another write has changed the resource."""

    body: T
    etag: str | None


async def encode(body: msgspec.Struct) -> bytes:
    """Encode a body as JSON. Long lists are encoded row by row on a thread, so that other threads can run."""
    fields = body.__struct_fields__
    long = [name for name in fields if isinstance(getattr(body, name), tuple) and len(getattr(body, name)) > _LONG]
    return await on_thread(_encode_rows, body, long) if long else _encoder.encode(body)


def _encode_rows(body: msgspec.Struct, long: Collection[str]) -> bytes:
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    for name in long:
        fields[name] = [msgspec.Raw(_encoder.encode(row)) for row in fields[name]]
    return _encoder.encode(fields)


async def answer(body: msgspec.Struct, *, etag: str | None = None, store: bool = False) -> Response:
    """Make a response. If ``store`` is set, clients may cache the response and revalidate it with its ETag."""
    headers = {"cache-control": "no-cache"} if store else dict(NO_STORE)
    if etag is not None:
        headers["etag"] = f'"{etag}"'
    return Response(await encode(body), headers=headers, media_type="application/json")


def unchanged(etag: str) -> Response:
    return Response(status_code=304, headers={"cache-control": "no-cache", "etag": f'"{etag}"'})


def refused(error: EditError | QuestionError, *, batch: bool = False) -> Response:
    """Convert an error to a response. If ``batch`` is set, field names include the index of the edit."""
    if isinstance(error, QuestionError):
        return problem(400, error.detail, [FieldProblem(error.parameter, error.detail)])
    fields = [_field(each, batch=batch) for each in error.problems]
    match error:
        case InvalidError():
            return problem(error.status, _first(fields), fields)
        case PreconditionError():
            return problem(error.status, str(error), fields if batch else (), etag=error.etag)
        case ReloadError():
            detail = "the configuration is invalid; nothing was changed"
            return problem(error.status, detail, fields, kind="wrong-configuration")
    return problem(error.status, str(error), fields)


def _field(found: FieldProblem, *, batch: bool) -> FieldProblem:
    if found.edit is None or not batch:
        return FieldProblem(found.field, found.detail)
    return FieldProblem(f"edits.{found.edit}.{found.field}".removesuffix("."), found.detail, found.edit)


def _first(problems: Iterable[FieldProblem]) -> str:
    problems = tuple(problems)
    first = problems[0]
    text = f"{first.field}: {first.detail}" if first.field else first.detail
    return text if len(problems) == 1 else f"{text} (and {len(problems) - 1} more)"
