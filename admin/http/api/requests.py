"""Reads requests strictly: the parameters of path and query, the body, and the conditions.

Unknown keys are refused, and every fault names its field as it was written. Conditions are entity tags in ``If-Match``
and ``If-None-Match``, after RFC 9110, section 13.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from admin.config.faults import describe_fields, show, unknown_key
from admin.config.settings import EDIT_KEY_HINTS, VALUE_HINTS, WrittenLimit
from admin.edits.model import (
    ALL_KINDS,
    MAX_REASON,
    MAX_TTL_S,
    ActiveEdit,
    Change,
    Edit,
    LimitEntry,
    SetLimit,
    SetSwitch,
    StaleError,
    SwitchEntry,
    UnsetLimit,
    UnsetSwitch,
)
from admin.edits.service import EditService
from admin.http.api.answers import BadRequestError, bad
from admin.http.guard import MAX_BODY_BYTES
from admin.rejection_log.history import MAX_SECONDS
from admin.stats import Query as BoardQuery
from admin.wire import DEFAULT_PAGE, MAX_EDITS, MAX_PAGE, ConnectionColumn, FieldProblem, Filter, LimitColumn, Order
from limiter.rules.resource import TOTAL
from proxy.common.cooperative import Pace

LIMIT_KEYS: Final = frozenset(WrittenLimit.model_fields)
_PUT_KEYS: Final = LIMIT_KEYS | {"reason", "ttl_s"}
_EDITS: Final[Mapping[str, type[Any]]] = {
    "set_limit": SetLimit,
    "unset_limit": UnsetLimit,
    "set_switch": SetSwitch,
    "unset_switch": UnsetSwitch,
}
#: How many unknown keys an answer names, and how much of each.
_NAMED_KEYS: Final = 10
_SHOWN_CHARS: Final = 100
#: A batch with more commas than this cannot consist of ordinary edits, and is not parsed.
_MAX_COMMAS: Final = MAX_EDITS * 40
_outer: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array: Final = msgspec.json.Decoder(list[msgspec.Raw])
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_AT: Final = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)
_TYPES: Final = {
    "str": "text in quotes",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "an object",
    "null": "null",
}
ANY: Final = "*"
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_TAGS: Final = re.compile(rf"[ \t,]*{_TAG.pattern}([ \t]*,[ \t,]*{_TAG.pattern})*[ \t,]*")
#: Equal to no tag: a condition that nothing meets.
_NONE: Final = "W/"


class Parameters(BaseModel):
    """The parameters of a path or a query."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(Parameters):
    """No parameters."""


class PageQuery(Parameters):
    """Which rows of a list."""

    offset: int = Field(0, ge=0, description="rows to skip", examples=[0])
    limit: int = Field(DEFAULT_PAGE, ge=0, le=MAX_PAGE, description="maximum number of rows", examples=[DEFAULT_PAGE])


class LimitsQuery(PageQuery):
    """Which rows of the table of limits."""

    kind: str = Field("", description="only this kind, for example `topic`; empty: all kinds", examples=["topic"])
    name: str = Field("", description="only the row of exactly this name; empty: all names", examples=["orders"])
    search: str = Field("", max_length=255, description="part of the name, case-insensitive", examples=["orders"])
    filter: Filter | None = Field(
        None,
        description="`limited`: refused or held something in the last ten seconds; `edited` or `overridden`: has an"
        " edit; `near`: uses at least 80 % of the limit; `shadowed`: a shadow rule would have refused something",
    )
    sort: LimitColumn = Field("name", description="the column to sort by")
    order: Order = Field("asc", description="smallest first, or largest first")
    history: bool = Field(True, description="include the messages of the last minutes")


class ConnectionsQuery(PageQuery):
    """Which connections."""

    search: str = Field(
        "", max_length=255, description="part of the peer, client id, user, certificate, listener, a resource or link"
    )
    resource: str = Field(
        "",
        description="only connections with exactly this resource, as `kind:name`; empty: all",
        examples=["topic:orders"],
    )
    sort: ConnectionColumn = Field("id", description="the column to sort by")
    order: Order = Field("asc", description="smallest first, or largest first")


class RulesQuery(PageQuery):
    """Which rules."""

    kind: str = Field("", description="only this kind; empty: all kinds", examples=["topic"])


class AuditQuery(Parameters):
    """Which changes."""

    before: int | None = Field(None, ge=0, description="changes with a smaller id: the `next` of the previous page")
    target: str = Field(
        "", description="only changes whose target begins with this, e.g. `limits/topic/`", examples=["limits/topic/"]
    )
    by: str = Field("", description="only changes by this author", examples=["alice"])
    limit: int = Field(DEFAULT_PAGE, ge=1, le=MAX_PAGE, description="most changes returned", examples=[DEFAULT_PAGE])


class ExplainQuery(Parameters):
    """A hypothetical request."""

    kind: str = Field(min_length=1, description="kind of the resource, or of a scope", examples=["topic"])
    name: str = Field(min_length=1, description="name of the resource", examples=["orders"])
    client: str = Field("", description="the client's IP address; empty: leave out limits of clients")
    producer_group: str = Field("", description="the producer group; empty: leave out limits of producer groups")
    certificate: str = Field(
        "", description="the name in the client's TLS certificate; empty: leave out limits of certificates"
    )
    user: str = Field("", description="the user; empty: leave out limits of users")
    vhost: str = Field("", description="the virtual host; empty: leave out limits of virtual hosts")
    listener: str = Field("", description="name or scope of the listener")
    at: str = Field("", description="time with its time zone, e.g. `2026-01-02T03:04+01:00`; empty: now")


_DRY_RUN: Final = "return what would change, and change nothing"
_VOLATILE: Final = "the change lasts until the restart and is not stored"
_REASON: Final = "why, for the audit trail"


class DryRun(Parameters):
    """Parameters of a write."""

    dry_run: bool = Field(False, description=_DRY_RUN)


class Write(DryRun):
    """Parameters of a write that can be volatile."""

    volatile: bool = Field(False, description=_VOLATILE)


class Unset(Write):
    """Parameters of a write without a body."""

    reason: str = Field("", max_length=MAX_REASON, description=_REASON)


class Reset(Parameters):
    """Parameters of a reset."""

    reason: str = Field("", max_length=MAX_REASON, description=_REASON)


class Close(Parameters):
    """Parameters of closing a connection."""

    reason: str = Field("", max_length=MAX_REASON, description="why, for the log")


class FlowQuery(Parameters):
    """How much of it."""

    limit: int = Field(
        DEFAULT_PAGE, ge=0, le=MAX_PAGE, description="most connections, or resources", examples=[DEFAULT_PAGE]
    )


class HistoryQuery(Parameters):
    """How much of the past."""

    seconds: int = Field(
        MAX_SECONDS, ge=60, le=MAX_SECONDS, description="so many seconds, up to now", examples=[MAX_SECONDS]
    )


class Purge(Parameters):
    """Parameters of a purge."""

    reason: str = Field("", max_length=MAX_REASON, description=_REASON)


class KindPath(Parameters):
    """A kind."""

    kind: str = Field(description="a kind, or `total` for shared limits", examples=["topic"])


class LimitPath(KindPath):
    """A limit."""

    name: str = Field(
        description="exact name or pattern, percent-encoded including slashes; for `total`: `KIND:PATTERN`. The names"
        " `.` and `..` can only be edited in a batch",
        examples=["orders"],
    )


class ResourcePath(Parameters):
    """A resource."""

    kind: str = Field(description="kind of the resource", examples=["topic"])
    name: str = Field(
        min_length=1, description="its exact name, percent-encoded including slashes", examples=["orders"]
    )


class SwitchPath(Parameters):
    """A switch."""

    kind: str = Field(description="one kind, or `all`", examples=["all"])


class IdPath(Parameters):
    """A change, or a connection."""

    id: int = Field(ge=1, description="the id", examples=[1])


class ProblemPath(Parameters):
    """A type of problems."""

    name: str = Field(description="the last part of the URI", examples=["stale"])


def check_kind(kind: str, live: EditService) -> None:
    """Refuse a kind that does not exist; an empty one stands for all.

    Raises:
        BadRequestError: there is no such kind.
    """
    kinds = [*(each.kind for each in live.switches() if each.kind != ALL_KINDS), TOTAL]
    if kind and kind not in kinds:
        raise bad("kind", live.reader.no_kind(kind, kinds))


def board_query(query: LimitsQuery, live: EditService) -> BoardQuery:
    """Return the query for the live statistics.

    Raises:
        BadRequestError: its kind does not exist.
    """
    check_kind(query.kind, live)
    return BoardQuery(**dict(query))


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        what = "is empty" if not body else _lower(str(error)) if not isinstance(error, RecursionError) else "too deep"
        raise bad("", f"the body must be a JSON object: {what}") from None


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise bad("", f"the body must be a JSON object; found {show(found)}")
    return found


def _known(found: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse other keys, and name the first few: finding out what each was meant to be takes time."""
    allowed = frozenset(allowed)
    if unknown := [key for key in found if key not in allowed]:
        named = [key[:_SHOWN_CHARS] for key in unknown[:_NAMED_KEYS]]
        problems = [FieldProblem(key, EDIT_KEY_HINTS.get(key) or unknown_key(key, allowed)) for key in named]
        if more := len(unknown) - len(named):
            problems.append(FieldProblem("", f"has {more} more unknown keys"))
        raise BadRequestError(*problems)


async def read_limit(request: Request) -> tuple[dict[str, Any], str, float | None]:
    """Read the body of a PUT of a limit: the limit's fields, the reason, and for how many seconds.

    The fields are checked when they are put in force; here only if something else is wrong, so that all faults are
    reported together.

    Raises:
        BadRequestError: with all that is wrong.
    """
    found = _object(_decoded(await request.body()))
    try:
        _known(found, _PUT_KEYS)
        reason, ttl_s = _reason(found), _ttl_s(found)
    except BadRequestError:
        raise BadRequestError(*_all_problems(found)) from None
    found.pop("reason", None)
    found.pop("ttl_s", None)
    return found, reason, ttl_s


async def read_patch(request: Request) -> tuple[dict[str, Any], str, float | msgspec.UnsetType | None]:
    """Read the body of a PATCH of a limit: its fields, the reason, and for how many seconds, UNSET if not given.

    Raises:
        BadRequestError: with what is wrong; the fields are checked when they are put in force.
    """
    found = _object(_decoded(await request.body()))
    _known(found, _PUT_KEYS)
    reason = _reason(found)
    ttl_s = _ttl_s(found) if "ttl_s" in found else msgspec.UNSET
    limit = {key: value for key, value in found.items() if key in LIMIT_KEYS}
    if not limit and ttl_s is msgspec.UNSET:
        raise bad("", "nothing to change: give a field of the limit, or ttl_s")
    return limit, reason, ttl_s


def _all_problems(found: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Yield what is wrong with the body of a PUT of a limit, checking each key on its own."""
    checks: tuple[Callable[[Mapping[str, Any]], object], ...] = (partial(_known, allowed=_PUT_KEYS), _reason, _ttl_s)
    for check in checks:
        try:
            check(found)
        except BadRequestError as error:
            yield from error.problems
    try:
        WrittenLimit.model_validate({key: value for key, value in found.items() if key in LIMIT_KEYS})
    except ValidationError as error:
        for field, what in describe_fields(error, model=WrittenLimit, words=VALUE_HINTS):
            # A fault of all fields together may come from an unknown key.
            if field:
                yield FieldProblem(field, what)


async def read_switch(request: Request) -> tuple[bool, str, float | None]:
    """Read the body of a PUT of a switch: limiting or not, the reason, and for how many seconds.

    Raises:
        BadRequestError: with all that is wrong.
    """
    found = _object(_decoded(await request.body()))
    _known(found, ("limiting", "reason", "ttl_s"))
    if "limiting" not in found:
        raise bad("limiting", "missing; it must be given")
    return _flag(found, "limiting"), _reason(found), _ttl_s(found)


async def read_revert(request: Request) -> tuple[str, bool]:
    """Read the body of a revert, which is optional: the reason, and whether to undo later changes with it.

    Raises:
        BadRequestError: with all that is wrong.
    """
    found = _object(_decoded(await request.body() or b"{}"))
    _known(found, ("reason", "force"))
    return _reason(found), _flag(found, "force")


async def read_edits(request: Request) -> list[Edit]:
    """Read the edits of a batch.

    Raises:
        BadRequestError: with what is wrong with each of them.
    """
    found = _object(await _decoded_in_steps(await request.body()))
    _known(found, ("edits", "reason"))
    edits = found.get("edits")
    if not isinstance(edits, list) or not edits:
        raise bad("edits", "missing; it must be given" if edits is None else "must be an array of edits, not empty")
    if len(edits) > MAX_EDITS:
        raise bad("edits", f"must be at most {MAX_EDITS} edits; found {len(edits)}")
    reason = _reason(found)
    read: list[Edit] = []
    problems: list[FieldProblem] = []
    pace = Pace()
    for index, edit in enumerate(edits):
        try:
            read.append(_edit(edit, reason))
        except BadRequestError as error:
            problems += (
                FieldProblem(f"edits.{index}.{each.field}" if each.field else f"edits.{index}", each.detail, index)
                for each in error.problems
            )
        await pace.keep()
    if problems:
        raise BadRequestError(*problems)
    return read


async def _decoded_in_steps(body: bytes) -> Any:
    """Decode a long batch edit by edit; each edit, and each other value, may be as long as a body at most."""
    if len(body) <= MAX_BODY_BYTES:
        return _decoded(body)
    if body.count(b",") > _MAX_COMMAS:
        raise bad("", f"has more than {MAX_EDITS} edits, or more values than these can have")
    try:
        found: dict[str, Any] = dict(_outer.decode(body))
        texts = _array.decode(found.pop("edits", b""))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise bad("", f"a body above {MAX_BODY_BYTES} bytes must be a JSON object whose edits are a list") from None
    _known(found, ("reason",))
    pace = Pace()
    edits: list[Any] = []
    # More than these are refused by their number.
    for index, text in enumerate(texts[: MAX_EDITS + 1]):
        edits.append(_decoded_part(f"edits.{index}", text))
        await pace.keep()
    return {"edits": edits, **{key: _decoded_part(key, value) for key, value in found.items()}}


def _decoded_part(place: str, text: msgspec.Raw) -> Any:
    if memoryview(text).nbytes > MAX_BODY_BYTES:
        raise bad(place, f"has more than {MAX_BODY_BYTES} bytes")
    return _decoded(bytes(text))


def _edit(found: object, reason: str) -> Edit:
    if not isinstance(found, dict):
        raise bad("", f"must be an object; found {show(found)}")
    kind = found.get("type")
    if not isinstance(kind, str) or kind not in _EDITS:
        allowed = ", ".join(f'"{name}"' for name in _EDITS)
        raise bad("type", "missing; one of " + allowed if kind is None else f"must be one of {allowed}")
    _reason(found)
    _ttl_s(found)
    try:
        edit: Edit = msgspec.convert(found, _EDITS[kind])
    except msgspec.ValidationError as error:
        raise _converted(str(error), _EDITS[kind]) from None
    if isinstance(edit, SetLimit | UnsetLimit) and not edit.name:
        raise bad("name", "must not be empty")
    changes: dict[str, Any] = {} if edit.reason else {"reason": reason}
    if edit.if_match is not None:
        changes["if_match"] = edit.if_match.strip('"')
    return msgspec.structs.replace(edit, **changes)


def _converted(text: str, model: type[Any]) -> BadRequestError:
    """Translate an error of msgspec, naming the field."""
    at = _AT.fullmatch(text)
    what, field = (at[1], at[2]) if at else (text, "")
    if unknown := _UNKNOWN.fullmatch(what):
        return bad(unknown[1], unknown_key(unknown[1], ("type", *model.__struct_fields__)))
    if missing := _MISSING.fullmatch(what):
        return bad(missing[1], "missing; it must be given")
    wrong = re.fullmatch(r"Expected `(.*)`, got `(.*)`", what)
    if wrong is None:
        return bad(field, _lower(what))
    wanted = " or ".join(_TYPES.get(word, word) for word in wrong[1].split(" | "))
    return bad(field, f"must be {wanted}; found {_TYPES.get(wrong[2], wrong[2])}")


def _reason(found: Mapping[str, Any]) -> str:
    reason = found.get("reason", "")
    if not isinstance(reason, str):
        raise bad("reason", f"must be text in quotes; found {show(reason)}")
    if len(reason) > MAX_REASON:
        raise bad("reason", f"must be at most {MAX_REASON} characters; found {len(reason)}")
    return reason


def _flag(found: Mapping[str, Any], key: str) -> bool:
    flag = found.get(key, False)
    if not isinstance(flag, bool):
        raise bad(key, f"must be true or false; found {show(flag)}")
    return flag


def _ttl_s(found: Mapping[str, Any]) -> float | None:
    ttl_s = found.get("ttl_s")
    if ttl_s is None:
        return None
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= MAX_TTL_S:
        what = f"must be a number of seconds, more than 0 and at most {MAX_TTL_S}; found {show(ttl_s)}"
        raise bad("ttl_s", what)
    return ttl_s


def _lower(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


class Tags(NamedTuple):
    """The tags of one header.

    Attributes:
        any: the header is ``*``.
        strong: the tags that are not weak; only these can meet ``If-Match``.
        all: all tags, without ``W/``.
    """

    any: bool
    strong: list[str]
    all: list[str]

    def names(self, etag: str) -> bool:
        """Compare weakly, as ``If-None-Match`` does."""
        return self.any or etag in self.all


def read_tags(request: Request, header: str) -> Tags | None:
    """Read a header, or several of that name; None if there is none.

    Raises:
        BadRequestError: it is no list of tags.
    """
    values = request.headers.getlist(header)
    if not values:
        return None
    text = ",".join(values)
    found = _TAG.findall(text)
    is_any = text.strip() == ANY
    # Tags are separated by commas and blanks, and elements of the list may be empty.
    if not is_any and (not found or not _TAGS.fullmatch(text)):
        raise bad(header, f'must be * or tags in quotes, "abc", "def"; found {text[:100]!r}')
    return Tags(is_any, [tag for weak, tag in found if not weak], [tag for _, tag in found])


def is_conditional(request: Request) -> bool:
    """Return whether a write has conditions."""
    return "if-match" in request.headers or "if-none-match" in request.headers


def has_it(request: Request, etag: str) -> bool:
    """Return whether the client of a GET already has the answer."""
    tags = read_tags(request, "if-none-match")
    return tags is not None and tags.names(etag)


def expected(request: Request, entry: LimitEntry | SwitchEntry) -> str | None:
    """Return the tag that the write must find in force; ``*`` for any edit, None for no condition.

    Args:
        request: the write.
        entry: what it changes, as it is now.

    Raises:
        BadRequestError: a header cannot be read.
        StaleError: ``If-None-Match`` names what is in force.
    """
    none_match = read_tags(request, "if-none-match")
    if none_match is not None and (entry.edit is not None if none_match.any else none_match.names(entry.etag)):
        raise StaleError(0, entry.etag, _whose(entry.edit))
    match = read_tags(request, "if-match")
    if match is None:
        # A write in between makes the condition false.
        return None if none_match is None else entry.etag
    if match.any:
        return ANY
    return one_of(match, entry.etag)


def left_by(change: Change, entry: LimitEntry | SwitchEntry) -> str | None:
    """Return the tag of what a write left in force; None if another write has changed it already.

    Args:
        change: the write; a dry run leaves what there was.
        entry: what it changed, as it is now.
    """
    stands = None if entry.edit is None else entry.edit.change_id
    mine = change.id if change.action == "set" else None
    return entry.etag if change.id == 0 or stands == mine else None


def one_of(tags: Tags, etag: str) -> str:
    """Return the tag that must be in force: the current one if it is among them, or one that is not in force."""
    return etag if etag in tags.strong else next(iter(tags.strong), _NONE)


def _whose(edit: ActiveEdit | None) -> str:
    if edit is None:
        return "this is what is in force"
    reason = f": {edit.reason}" if edit.reason else ""
    return f"edited already: change {edit.change_id} by {edit.by} at {edit.at}{reason}"
