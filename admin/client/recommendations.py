"""``sluice limits apply recommendations.json``: applies the recommended limits of a report.

A recommendation changes the rate, the bytes or the fair shares of the active limit, with its evidence as the reason. It
is left out if it was made for another limit (unless forced), or is optional (unless asked for).
"""

import os
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from admin.client import RefusedError
from admin.client.api import LONG_TIMEOUT_S, Api, as_json, path
from admin.client.files import Applying
from admin.client.limits import batch, places
from admin.client.target import Target
from admin.client.words import change_lines
from admin.common.disk import open_to_read
from admin.common.recommendations import VERSION, Recommendation, RecommendationsFile, refusals
from admin.common.tables import printable
from admin.edits.model import Change, LimitEntry
from admin.wire import MAX_EDITS, Changes, State, applying
from limiter.rules.errors import RuleError
from limiter.rules.patterns import Pattern, glob_of, read_glob

SUFFIX: Final = ".json"
"""A file of this name has recommendations; others are TOML files of limits."""
_MAX_BYTES: Final = 256 << 20
"""A recommendation takes two kilobytes."""
_LINES: Final = 20
"""How many of those left out for one reason are named."""
_FINE: Final = "keep: it is right as it is"
_NOT_ONLY: Final = "does not match --only"
_OTHERS: Final = "for another sidecar"
_COUNTED: Final = {_FINE: "right as they are", _NOT_ONLY: "that do not match --only", _OTHERS: "for other sidecars"}
"""Reasons that are only counted."""
_REMAKE: Final = "name the recommendations.json of a report, or make it anew with `sluice report`"


class Skipped(msgspec.Struct, frozen=True):
    """A recommendation that is left out.

    Attributes:
        instance: of the sidecar.
        kind: of the resource.
        name: of the resource.
        action: the recommended one.
        why: in words.
    """

    instance: str
    kind: str
    name: str
    action: str
    why: str


class _Planned(NamedTuple):
    place: int
    recommendation: Recommendation
    edit: dict[str, Any]


class _Head(msgspec.Struct):
    """Common to all versions of the file."""

    version: int
    recommendations: list[msgspec.Raw]


def read(file: str) -> RecommendationsFile:
    """Read ``recommendations.json``.

    Raises:
        RefusedError: it is invalid; the message says what to do.
    """
    try:
        with os.fdopen(open_to_read(Path(file)), "rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RefusedError(f"{file}: cannot be read: {why}; name the recommendations.json of a report") from None
    if len(content) > _MAX_BYTES:
        raise RefusedError(f"{file}: is longer than {_MAX_BYTES >> 20} MiB; make a report of fewer sidecars' logs")
    try:
        found = msgspec.json.decode(content, type=_Head)
        if found.version == VERSION:
            return msgspec.json.decode(content, type=RecommendationsFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError(f"{file}: {error}; {_REMAKE}") from None
    raise RefusedError(
        f"{file}: version: found {found.version}, and this is version {VERSION}; {_REMAKE}, both of one release of"
        " Sluice"
    )


def apply(target: Target, file: str, how: Applying, *, json: bool) -> str:
    """Apply recommended limits, all that are not left out, or none.

    Raises:
        OperatorError: nothing was changed.
    """
    recommended = read(file)
    only = _glob(how.only)
    with Api(target, LONG_TIMEOUT_S) as api:
        instance = how.instance or api.get(path("state")).read(State).instance
        _check_instance(file, recommended, instance, api.url)
        if only is not None and not any(only.stands_for(each.name) for each in recommended.recommendations):
            raise RefusedError(f"--only {how.only}: no name in {file} is like that")
        planned, skipped = _plan(api, file, recommended.recommendations, instance, only=only, how=how)
        if len(planned) > MAX_EDITS:
            raise RefusedError(
                f"{file}: more than {MAX_EDITS} limits would change, and no more can be changed at once; take some of"
                " them with --only"
            )
        changes: tuple[Change, ...] = ()
        if planned:
            reply = batch(
                api,
                [each.edit for each in planned],
                dry_run=how.dry_run,
                volatile=how.volatile,
                name=places(file, planned, partial(_place, file)),
            )
            changes = reply.read(Changes).changes
    if json:
        return as_json({"changes": changes, "skipped": skipped})
    lines = [
        line
        for change, each in zip(changes, planned, strict=True)
        for line in _lines(change, each.recommendation, dry_run=how.dry_run)
    ]
    lines += _left_out(skipped, instance)
    did = "would change" if how.dry_run else "changed"
    lines.append(f"{did} {len(changes)}, left out {len(skipped)}")
    return "\n".join(lines)


def _glob(text: str) -> Pattern | None:
    try:
        return read_glob(text) if text else None
    except RuleError as error:
        raise RefusedError(f"--only {text}: {error}") from None


def _check_instance(file: str, recommended: RecommendationsFile, instance: str, url: str) -> None:
    """Refuse recommendations that were made for other sidecars."""
    known = set(recommended.instances) | {each.instance for each in recommended.recommendations}
    if recommended.recommendations and instance not in known:
        names = sorted(known)
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise RefusedError(
            f"{file}: made for {listed}, not for {instance or 'a sidecar without a name'} at {url}; ask the right one"
            " with --admin, or name with --instance whose recommendations it shall have"
        )


def _plan(
    api: Api,
    file: str,
    recommendations: Sequence[Recommendation],
    instance: str,
    *,
    only: Pattern | None,
    how: Applying,
) -> tuple[list[_Planned], list[Skipped]]:
    """Separate what is to be changed from what is left out."""
    planned: list[_Planned] = []
    skipped: list[Skipped] = []
    for index, each in enumerate(recommendations):
        why = _passed_over(each, instance, only, how.offered)
        if not why:
            try:
                entry = api.get(path("limits", each.kind, glob_of(each.name))).read(LimitEntry)
            except RefusedError as error:
                raise RefusedError(f"{file}: recommendations[{index}]: {error}") from None
            why = _outdated(each, entry, force=how.force)
            if not why:
                planned.append(_Planned(index, each, _edit(each, entry, how)))
                if len(planned) > MAX_EDITS:
                    break
                continue
        skipped.append(Skipped(each.instance, each.kind, each.name, each.action, why))
    return planned, skipped


def _passed_over(each: Recommendation, instance: str, only: Pattern | None, offered: Container[str]) -> str:
    """Say why a recommendation is left out whatever limit is active; empty if it is not."""
    if each.instance != instance:
        return f"for {each.instance}"
    if only is not None and not only.stands_for(each.name):
        return _NOT_ONLY
    if each.action == "keep":
        return _kept(each)
    if each.only_with and each.only_with not in offered:
        return f"{applying.change_of(each)} is offered apart, --{each.only_with} applies it: {each.evidence}"
    return applying.nothing_to_do(each)


def _outdated(each: Recommendation, entry: LimitEntry, *, force: bool) -> str:
    """Say why a recommendation does not fit the active limit; empty if it does."""
    if why := applying.beside_the_point(each, entry):
        return why
    changed = "" if force else applying.changed_since(each, entry)
    return changed and f"{changed}; --force applies it all the same"


def _edit(each: Recommendation, entry: LimitEntry, how: Applying) -> dict[str, Any]:
    limit = {**entry.limit, **applying.fields_of(each, entry)}
    return {
        "type": "set_limit",
        "kind": each.kind,
        "name": glob_of(each.name),
        "limit": {key: value for key, value in limit.items() if value is not None},
        "reason": applying.reason_of(each, how.reason),
        # Edits since the look at it are not overruled.
        "if_match": entry.etag,
    }


def _kept(each: Recommendation) -> str:
    """Say why a limit stays."""
    refused = each.backtest.logged and each.backtest.logged.refused_messages
    return f"keep: {each.evidence}" if refused else _FINE


def _lines(change: Change, made_of: Recommendation, *, dry_run: bool) -> Iterator[str]:
    yield from map(printable, change_lines(change, dry_run=dry_run))
    if replayed := refusals(made_of):
        yield f"   refused then: {replayed}"
    if change.reason:
        yield printable(f"   because {change.reason}")


def _left_out(skipped: Iterable[Skipped], instance: str) -> Iterator[str]:
    """Name what is left out, grouped by reason."""
    found: dict[str, list[Skipped]] = defaultdict(list)
    for each in skipped:
        found[each.why if each.instance == instance else _OTHERS].append(each)
    for why, alike in found.items():
        if why in _COUNTED:
            yield f"left out: {len(alike)} {_COUNTED[why]}"
            continue
        yield from (printable(f"left out: {each.kind} {each.name}: {why}") for each in alike[:_LINES])
        if (more := len(alike) - _LINES) > 0:
            yield f"left out: {more} more: {printable(why)}"


def _place(file: str, planned: _Planned, key: str) -> str:
    named = printable(f"{planned.recommendation.kind} {planned.recommendation.name}") + (f": {key}" if key else "")
    return f"{file}: recommendations[{planned.place}]: {named}"
