"""The form of the HTTP API's errors."""

from http import HTTPStatus

import msgspec


class FieldProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong with a request.

    Attributes:
        field: the field, parameter or header that it is about; empty is all of it.
        detail: what was found and what is allowed.
        edit: of a batch, the index of the edit.
    """

    field: str
    detail: str
    edit: int | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not answered: problem details as RFC 9457 has them.

    Attributes:
        type: always ``about:blank``: the status says all that a program can make of it.
        title: the status in words.
        status: the HTTP status.
        detail: what is wrong and what to do, for people.
        errors: what is wrong with which field, if it is about fields.
        etag: of a stale write, what is in force.
    """

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str
    errors: tuple[FieldProblem, ...] = ()
    etag: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not self.title:
            msgspec.structs.force_setattr(self, "title", HTTPStatus(self.status).phrase)


def problem_body(problem: Problem) -> bytes:
    """Return a problem as JSON."""
    return msgspec.json.encode(problem)
