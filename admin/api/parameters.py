"""What stands in the queries of the API; what is not among it is refused."""

from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from admin.wire import DEFAULT_PAGE, MAX_PAGE, MAX_REASON, ConnectionColumn, Filter, LimitColumn, Order


class Parameters(BaseModel):
    """A query."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(Parameters):
    """No query."""


class _Page(Parameters):
    offset: int = Field(0, ge=0, description="rows that are left out at the beginning", examples=[0])
    limit: int = Field(DEFAULT_PAGE, ge=0, le=MAX_PAGE, description="rows at most", examples=[DEFAULT_PAGE])


class LimitsQuery(_Page):
    """Which rows of the table of limits."""

    kind: str = Field("", description="only this kind, for example `topic`; empty is all", examples=["topic"])
    search: str = Field("", max_length=255, description="part of the name, in any case", examples=["orders"])
    filter: Filter | None = Field(
        None,
        description="only those that are limited now, have an edit, use at least 80 % of their limit, or have a shadow "
        "rule that would refuse something now",
    )
    sort: LimitColumn = Field("name", description="the column to sort by")
    order: Order = Field("asc", description="smallest first, or largest first")
    history: bool = Field(True, description="with the messages of the last minutes")


class ConnectionsQuery(_Page):
    """Which connections."""

    search: str = Field("", max_length=255, description="part of the peer, client id, listener or a resource")
    sort: ConnectionColumn = Field("id", description="the column to sort by")
    order: Order = Field("asc", description="smallest first, or largest first")


class PageQuery(_Page):
    """Which rows."""


class RulesQuery(_Page):
    """Which rules."""

    kind: str = Field("", description="only this kind; empty is all", examples=["topic"])


class AuditQuery(Parameters):
    """Which changes."""

    before: int | None = Field(None, ge=0, description="only those with a smaller id: the `next` of the last page")
    target: str = Field(
        "", description="only those whose target begins with this, e.g. `limits/topic/`", examples=["limits/topic/"]
    )
    by: str = Field("", description="only those of this author", examples=["alice"])
    limit: int = Field(DEFAULT_PAGE, ge=1, le=MAX_PAGE, description="changes at most", examples=[DEFAULT_PAGE])


class ExplainQuery(Parameters):
    """A request that might come."""

    kind: str = Field(
        min_length=1, description="the kind of resource that it is for, or of a scope", examples=["topic"]
    )
    name: str = Field(min_length=1, description="its name", examples=["orders"])
    client: str = Field("", description="the client's IP address; empty leaves out what limits clients")
    producer_group: str = Field("", description="the group that sends it; empty leaves out what limits groups")
    listener: str = Field("", description="name or scope of the listener that it comes through")
    at: str = Field("", description="a moment with its time zone, e.g. `2026-01-02T03:04+01:00`; empty is now")


_DRY_RUN: Final = "say what would change, and change nothing"
_VOLATILE: Final = "change it until the restart only, without writing it down"
_REASON: Final = "why, for the audit trail"


class DryRun(Parameters):
    """Of a write."""

    dry_run: bool = Field(False, description=_DRY_RUN)


class Write(DryRun):
    """Of a write that can be volatile."""

    volatile: bool = Field(False, description=_VOLATILE)


class Unset(Write):
    """Of a write without a body."""

    reason: str = Field("", max_length=MAX_REASON, description=_REASON)


class Close(Parameters):
    """Of the end of a connection."""

    reason: str = Field("", max_length=MAX_REASON, description="why, for the log")


Empty = Annotated[Nothing, Query()]
Kind = Annotated[str, Path(description="kind of what is limited, or `total`", examples=["topic"])]
SwitchKind = Annotated[str, Path(description="one kind, or `all`", examples=["all"])]
Name = Annotated[
    str,
    Path(
        description="exact name or pattern, percent-encoded, slashes, too; of a total `KIND:PATTERN`. `.` and `..`"
        " are reached by a batch only",
        examples=["orders"],
    ),
]
Id = Annotated[int, Path(ge=1, description="the id", examples=[1])]


#: What a header that names entity tags looks like; an opaque tag may have other characters, ours have none.
_TAGS: Final = r'^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$'


def _header(name: str, what: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": _TAGS}
    return {"name": name, "in": "header", "required": False, "description": what, "schema": schema}


_MATCH: Final = _header("If-Match", "ETags in quotes, one of which must be in force; `*` wants an edit to stand")
_NONE_MATCH: Final = _header(
    "If-None-Match", "`*` wants no edit to stand; or ETags in quotes, none of which may be in force"
)
_LIST_MATCH: Final = _header("If-Match", "the ETag of the list of limits, which must be in force")
_HAS_IT: Final = _header("If-None-Match", "ETags that the client has: 304 if one is in force")

CONDITIONAL: Final[dict[str, Any]] = {"parameters": [_MATCH, _NONE_MATCH]}
"""Headers of a write, for a route's ``openapi_extra``."""
CONDITIONAL_BATCH: Final[dict[str, Any]] = {"parameters": [_LIST_MATCH]}
CONDITIONAL_GET: Final[dict[str, Any]] = {"parameters": [_HAS_IT]}
