"""Parses and validates request parameters, bodies, and the conditions in ``If-Match`` and ``If-None-Match``."""

import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request

from admin.config.faults import FaultsError, FromText, read, show, spell
from admin.config.limit_fields import limit_struct
from admin.edits.model import (
    ALL_KINDS,
    Change,
    Edit,
    FieldProblem,
    InvalidError,
    LimitEntry,
    PreconditionError,
    Reason,
    SetLimit,
    SetSwitch,
    SwitchEntry,
    Ttl,
    TtlS,
    UnsetLimit,
    UnsetSwitch,
)
from admin.edits.service import EditService
from admin.edits.transaction import whose
from admin.http.api.answers import bad
from admin.http.guard import MAX_BODY_BYTES
from admin.rejection_log.history import MAX_SECONDS
from admin.wire import DEFAULT_PAGE, MAX_EDITS, MAX_PAGE, MostRows, Offset
from limiter.rules.resource import TOTAL
from proxy.common.threads import on_thread

T = TypeVar("T")

Kind = Annotated[str, Meta(description="a kind, or `total` for shared limits", examples=["topic"])]
SwitchKind = Annotated[str, Meta(description="one kind, or `all`", examples=["all"])]
LimitName = Annotated[
    str,
    Meta(
        description="exact name or pattern, percent-encoded including slashes. If the kind is `total`, `KIND:PATTERN`."
        " The names `.` and `..` can only be edited in a batch",
        examples=["orders"],
    ),
]
ResourceKind = Annotated[str, Meta(description="kind of the resource", examples=["topic"])]
ResourceName = Annotated[
    str, Meta(min_length=1, description="exact name, percent-encoded including slashes", examples=["orders"])
]
Id = Annotated[int, Meta(ge=1, description="id", examples=[1])]

_AnyKind = Annotated[
    str, Meta(description="return only this kind, for example `topic`. If empty, return all kinds", examples=["topic"])
]


class Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PageQuery(Parameters, frozen=True, kw_only=True):
    offset: Annotated[Offset, Meta(description="number of rows to skip")] = 0
    limit: Annotated[MostRows, Meta(description="maximum number of rows")] = DEFAULT_PAGE


class RulesQuery(PageQuery, frozen=True, kw_only=True):
    kind: _AnyKind = ""


class ExportQuery(Parameters, frozen=True, kw_only=True):
    edits_only: Annotated[bool, Meta(description="only limits with an edit")] = False


class AuditQuery(Parameters, frozen=True, kw_only=True):
    before: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="only changes with a smaller id. For the next page, pass `next` from this page"),
    ] = None
    target: Annotated[
        str, Meta(description="only changes whose target begins with this, for example `limits/topic/`")
    ] = ""
    by: Annotated[str, Meta(description="only changes by this author")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="maximum number of changes")] = DEFAULT_PAGE


class ExplainQuery(Parameters, frozen=True, kw_only=True):
    kind: Annotated[str, Meta(min_length=1, description="kind of the resource or scope", examples=["topic"])]
    name: Annotated[str, Meta(min_length=1, description="name of the resource", examples=["orders"])]
    client: Annotated[str, Meta(description="the client's IP address. If empty, client limits are ignored")] = ""
    producer_group: Annotated[
        str, Meta(description="the producer group. If empty, producer group limits are ignored")
    ] = ""
    certificate: Annotated[
        str, Meta(description="the name in the client's TLS certificate. If empty, certificate limits are ignored")
    ] = ""
    user: Annotated[str, Meta(description="the user. If empty, user limits are ignored")] = ""
    vhost: Annotated[str, Meta(description="the virtual host. If empty, virtual host limits are ignored")] = ""
    listener: Annotated[str, Meta(description="name or scope of the listener")] = ""
    at: Annotated[str, Meta(description="time with a time zone, e.g. `2026-01-02T03:04+01:00`. Default: now")] = ""


class DryRun(Parameters, frozen=True, kw_only=True):
    dry_run: Annotated[bool, Meta(description="do not change anything, and return what would change")] = False


class Write(DryRun, frozen=True, kw_only=True):
    volatile: Annotated[bool, Meta(description="do not save the change, so that it is lost on restart")] = False
    fleet: Annotated[bool, Meta(description="make the change on all members of the fleet")] = False


class Unset(Write, frozen=True, kw_only=True):
    reason: Reason = ""


class Why(Parameters, frozen=True, kw_only=True):
    reason: Reason = ""


class FlowQuery(Parameters, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=0, le=MAX_PAGE, description="maximum number of connections or resources")] = (
        DEFAULT_PAGE
    )


class HistoryQuery(Parameters, frozen=True, kw_only=True):
    seconds: Annotated[int, Meta(ge=60, le=MAX_SECONDS, description="length of the period up to now, in seconds")] = (
        MAX_SECONDS
    )


class PutSwitch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The new state of a switch."""

    limiting: bool
    reason: Reason = ""
    ttl_s: TtlS = None


class Revert(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for undoing a change."""

    reason: Reason = ""
    force: Annotated[bool, Meta(description="undo the change even if a later change has the same target")] = False


class Batch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of edits, which are made in order."""

    edits: Annotated[list[SetLimit | UnsetLimit | SetSwitch | UnsetSwitch], Meta(min_length=1, max_length=MAX_EDITS)]
    reason: Annotated[Reason, Meta(description="reason for edits that do not have their own reason")] = ""


_PATCHED_TTL: Final = Annotated[
    Ttl | UnsetType | None,
    Meta(description="seconds until the edit expires. `null`: never. By default, the active edit's expiry is kept"),
]
PutLimit: Final = limit_struct(
    "PutLimit",
    "A complete limit, which replaces the previous one.",
    more=[("reason", Reason, ""), ("ttl_s", TtlS, None)],
)
PatchLimit: Final = limit_struct(
    "PatchLimit",
    "The fields to change. All others are kept. `null` removes a field.",
    more=[("reason", Reason, ""), ("ttl_s", _PATCHED_TTL, UNSET)],
    patch=True,
)


class _Envelope(Struct):
    reason: Reason = ""
    ttl_s: Ttl | UnsetType | None = UNSET


class _BatchOfAny(Struct):
    edits: Annotated[list[Any], Meta(min_length=1, max_length=MAX_EDITS)]
    reason: Reason = ""


#: A body with more commas is not parsed, because no valid batch contains this many.
_MAX_COMMAS: Final = MAX_EDITS * 40


def read_limit(data: bytes) -> tuple[dict[str, Any], str, float | UnsetType | None]:
    """Parse a body, and return the limit's fields, the reason, and ``ttl_s``.

    Raises InvalidError if the body is malformed. The limit's fields are not checked until the edit is made.
    """
    limit = read_body(data, dict[str, Any])
    about = validated({key: limit.pop(key) for key in ("reason", "ttl_s") if key in limit}, _Envelope)
    return limit, about.reason, about.ttl_s


async def read_edits(data: bytes) -> list[Edit]:
    """Parse a batch, using a thread if the body is long. Raises InvalidError with the errors in all edits."""
    return _edits(data) if len(data) <= MAX_BODY_BYTES else await on_thread(_edits, data)


def _edits(data: bytes) -> list[Edit]:
    if data.count(b",") > _MAX_COMMAS:
        raise bad("", f"the body contains more than {MAX_EDITS} edits, or more values than {MAX_EDITS} edits can have")
    batch = read_body(data, _BatchOfAny)
    edits: list[Edit] = []
    problems: list[FieldProblem] = []
    for index, given in enumerate(batch.edits):
        try:
            edit = validated(given, SetLimit | UnsetLimit | SetSwitch | UnsetSwitch)
            if_match = None if edit.if_match is None else edit.if_match.strip('"')
            edits.append(msgspec.structs.replace(edit, reason=edit.reason or batch.reason, if_match=if_match))
        except InvalidError as error:
            problems += (FieldProblem(each.field, each.detail, index) for each in error.problems)
    if problems:
        raise InvalidError(*problems)
    return edits


def read_body(data: bytes, model: Any) -> Any:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        what = (
            "it is empty"
            if not data
            else "it is nested too deeply"
            if isinstance(error, RecursionError)
            else str(error)
        )
        raise bad("", f"the body must be a JSON object; {what}") from None
    return validated(found, model)


def validated(found: Any, model: Any) -> Any:
    """Convert a dictionary to ``model``, a struct or a union of structs. Raises InvalidError with all errors."""
    if not isinstance(found, dict):
        raise bad("", f"the body must be a JSON object; found {show(found)}")
    if isinstance(model, UnionType):
        models = {each.__struct_config__.tag: each for each in get_args(model)}
        found = dict(found)
        tag = found.pop("type", None)
        model = models.get(tag) if isinstance(tag, str) else None
        if model is None:
            raise bad("type", f"must be one of {', '.join(map(show, models))}; found {show(tag)}")
    try:
        return read(model, found)
    except FaultsError as error:
        raise InvalidError(*(FieldProblem(spell(each.place), each.told) for each in error.faults)) from None


def from_text(values: Mapping[str, str]) -> dict[str, FromText]:
    return {name: FromText(value) for name, value in values.items()}


def check_kind(kind: str, edits: EditService) -> None:
    """Raise InvalidError if the kind is unknown. An empty kind is valid and means all kinds."""
    kinds = [*(each.kind for each in edits.switches() if each.kind != ALL_KINDS), TOTAL]
    if kind and kind not in kinds:
        raise bad("kind", edits.reader.no_kind(kind, kinds))


_ANY: Final = "*"
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_TAGS: Final = re.compile(rf"[ \t,]*{_TAG.pattern}([ \t]*,[ \t,]*{_TAG.pattern})*[ \t,]*")
#: This tag never matches, so a write that requires it always fails.
_NONE: Final = "W/"


class Tags(NamedTuple):
    """The entity tags in a header, without quotes or ``W/``. ``any`` is set if the header is ``*``."""

    any: bool
    strong: list[str]
    all: list[str]

    def names(self, etag: str) -> bool:
        """Return whether the header matches an ETag in a weak comparison, which ``If-None-Match`` uses."""
        return self.any or etag in self.all

    def one_of(self, etag: str) -> str:
        """Return ``etag`` if it is one of the strong tags, otherwise a tag that does not match it."""
        return etag if etag in self.strong else next(iter(self.strong), _NONE)


def read_tags(request: Request, header: str) -> Tags | None:
    """Parse the tags in a header. Return None if the header is missing. Raises InvalidError if it is malformed."""
    values = request.headers.getlist(header)
    if not values:
        return None
    text = ",".join(values)
    found = _TAG.findall(text)
    is_any = text.strip() == _ANY
    if not is_any and (not found or not _TAGS.fullmatch(text)):
        raise bad(header, f'must be * or quoted tags, like "abc", "def"; found {text[:100]!r}')
    return Tags(is_any, [tag for weak, tag in found if not weak], [tag for _, tag in found])


def expected(request: Request, entry: Callable[[], LimitEntry | SwitchEntry]) -> str | None:
    """Return the condition for a write: the required ETag, ``*`` if there must be an active edit, or None.

    Raises PreconditionError if ``If-None-Match`` lists the current ETag, or InvalidError if a header is malformed.
    """
    match, none_match = read_tags(request, "if-match"), read_tags(request, "if-none-match")
    if match is None and none_match is None:
        return None
    now = entry()
    if none_match is not None and (now.edit is not None if none_match.any else none_match.names(now.etag)):
        raise PreconditionError(whose(now), now.etag)
    if match is None:
        # If another write comes first, this write must fail.
        return now.etag
    return _ANY if match.any else match.one_of(now.etag)


def tag_after(change: Change, entry: LimitEntry | SwitchEntry) -> str | None:
    """Return the ETag after a write, or None if another write has already changed the entry."""
    stands = None if entry.edit is None else entry.edit.change_id
    mine = change.id if change.action == "set" else None
    # The id of a dry run is 0. It does not change the ETag.
    return entry.etag if change.id == 0 or stands == mine else None
