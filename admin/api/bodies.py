"""Bodies of requests: read strictly, and what is wrong with them named by field, as it was written."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from pydantic import ValidationError
from starlette.requests import Request

from admin.api.answers import BadRequestError, bad
from admin.faults import describe_fields, show, unknown_key
from admin.live.model import Edit, SetLimit, SetSwitch, UnsetLimit, UnsetSwitch
from admin.settings import EDIT_KEY_HINTS, VALUE_HINTS, WrittenLimit
from admin.wire import MAX_EDITS, MAX_REASON, MAX_TTL_S, FieldProblem
from proxy.pace import Pace

LIMIT_KEYS: Final = frozenset(WrittenLimit.model_fields)
_PUT_KEYS: Final = LIMIT_KEYS | {"reason", "ttl_s"}
_SWITCH_KEYS: Final = frozenset({"limiting", "reason", "ttl_s"})
_EDITS: Final[Mapping[str, type[Any]]] = {
    "set_limit": SetLimit,
    "unset_limit": UnsetLimit,
    "set_switch": SetSwitch,
    "unset_switch": UnsetSwitch,
}
#: A body longer than this is decoded in steps.
_STEP_BYTES: Final = 32 * 1024
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


async def read_object(request: Request, allowed: Iterable[str], *, optional: bool = False) -> dict[str, Any]:
    """Read a body that is one JSON object.

    Args:
        request: whose body.
        allowed: the keys that it may have.
        optional: no body is an empty object.

    Raises:
        BadRequestError: with all that is wrong.
    """
    body = await request.body()
    if not body and optional:
        return {}
    return _object(_decoded(body), allowed)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        what = "is empty" if not body else _lower(str(error)) if not isinstance(error, RecursionError) else "too deep"
        raise bad("", f"the body must be a JSON object: {what}") from None


def _object(found: object, allowed: Iterable[str]) -> dict[str, Any]:
    table = _mapping(found)
    _known(table, allowed)
    return table


def _mapping(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise bad("", f"the body must be a JSON object; found {show(found)}")
    return found


def _known(found: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse other keys."""
    allowed = frozenset(allowed)
    if unknown := [key for key in found if key not in allowed]:
        raise BadRequestError(
            *(FieldProblem(key, EDIT_KEY_HINTS.get(key) or unknown_key(key, allowed)) for key in unknown)
        )


async def read_limit(request: Request) -> tuple[dict[str, Any], str, float | None]:
    """Read a limit as it is put: its fields, the reason, and for how long.

    The fields are checked by who puts them in force, unless something else is wrong besides.

    Raises:
        BadRequestError: with all that is wrong.
    """
    found = _mapping(_decoded(await request.body()))
    try:
        _known(found, _PUT_KEYS)
        reason, ttl_s = _reason(found), _ttl_s(found)
    except BadRequestError:
        raise BadRequestError(*_all_problems(found)) from None
    found.pop("reason", None)
    found.pop("ttl_s", None)
    return found, reason, ttl_s


def _all_problems(found: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Yield what is wrong with a limit as it is put, each key on its own."""
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
            # What only all of them together say may be down to a key that is unknown.
            if field:
                yield FieldProblem(field, what)


async def read_switch(request: Request) -> tuple[bool, str, float | None]:
    """Read a switch as it is put.

    Raises:
        BadRequestError: with all that is wrong.
    """
    found = await read_object(request, _SWITCH_KEYS)
    if "limiting" not in found:
        raise bad("limiting", "missing; it must be given")
    limiting = found["limiting"]
    if not isinstance(limiting, bool):
        raise bad("limiting", f"must be true or false; found {show(limiting)}")
    return limiting, _reason(found), _ttl_s(found)


async def read_revert(request: Request) -> tuple[str, bool]:
    """Read why a change is undone, and whether later ones count for nothing.

    Raises:
        BadRequestError: with all that is wrong.
    """
    found = await read_object(request, ("reason", "force"), optional=True)
    force = found.get("force", False)
    if not isinstance(force, bool):
        raise bad("force", f"must be true or false; found {show(force)}")
    return _reason(found), force


async def read_edits(request: Request) -> list[Edit]:
    """Read the edits of a batch.

    Raises:
        BadRequestError: with what is wrong with each of them.
    """
    found = _object(await _decoded_in_steps(await request.body()), ("edits", "reason"))
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
    """Decode an object with a long array of edits."""
    if len(body) > _STEP_BYTES:
        # Whatever is wrong with it, is said of the whole.
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            found: dict[str, Any] = dict(_outer.decode(body))
            pace = Pace()
            edits: list[Any] = []
            for edit in _array.decode(found.pop("edits", b"")):
                # Too many are refused for that alone.
                edits.append(msgspec.json.decode(edit) if len(edits) <= MAX_EDITS else None)
                await pace.keep()
            return {**{key: msgspec.json.decode(value) for key, value in found.items()}, "edits": edits}
    return _decoded(body)


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
    """Name the field in what msgspec says."""
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


def check_reason(reason: object, field: str = "reason") -> str:
    """Return a reason.

    Raises:
        BadRequestError: it is no text, or too long.
    """
    if not isinstance(reason, str):
        raise bad(field, f"must be text in quotes; found {show(reason)}")
    if len(reason) > MAX_REASON:
        raise bad(field, f"must be at most {MAX_REASON} characters; found {len(reason)}")
    return reason


def _reason(found: Mapping[str, Any]) -> str:
    return check_reason(found.get("reason", ""))


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
