"""``sluice limits apply``: applies limits from a TOML file, or recommendations from a report."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from admin.client.api import Api, change_lines
from admin.client.text import as_json
from admin.common.disk import read_file, unreadable
from admin.common.errors import SettingsError
from admin.common.recommendations import VERSION, Recommendation, RecommendationsFile, of_fleet
from admin.common.tables import printable
from admin.config.faults import Origins
from admin.config.sources import load_limits
from admin.config.toml_lines import Path as Place
from admin.edits.model import Change, LimitEntry
from admin.edits.wording import short
from admin.wire import MAX_EDITS, Changes, FieldProblem, applying
from limiter.rules.errors import RuleError
from limiter.rules.patterns import glob_of, read_glob

_FEW: Final = 5
_REMAKE: Final = "pass a report's recommendations.json, or make a new one with this release's `sluice report`"


class _Planned(NamedTuple):
    edit: Mapping[str, Any]
    at: Callable[[str, str], str]


# --- a file of limits -----------------------------------------------------------------------------


def apply_limits(api: Api, file: str, *, prune: bool, reason: str, **how: bool) -> str:
    """Apply the limits in a TOML file atomically and return a description of the changes. Raises OperatorError.

    If ``prune`` is set, edits to limits that are not in the file are undone. ``how`` must contain ``dry_run``,
    ``volatile`` and ``fleet``.
    """
    wanted = _wanted(file)
    edited = api.rows("limits", filter="edited", history="0", most=None)
    planned: list[_Planned] = []
    unchanged: list[Mapping[str, Any]] = []
    for begin in range(0, len(wanted), MAX_EDITS):
        part = wanted[begin : begin + MAX_EDITS]
        # A dry run fills in the default values, so that the limits can be compared.
        for each, change in zip(part, _send(api, file, part, dry_run=True), strict=True):
            if (change.old, change.old_rule) == (change.new, change.new_rule):
                unchanged.append(each.edit)
            else:
                planned.append(each)
    names = {(each.edit["kind"], each.edit["name"]) for each in wanted}
    for row in edited["rows"]:
        if prune and (row["kind"], row["name"]) not in names:
            edit = {"type": "unset_limit", "kind": row["kind"], "name": row["name"]}
            planned.append(_Planned(edit, lambda _, what: f"{file}: {what}"))
    # Do not overwrite edits that were made since the comparison.
    changes = _send(api, file, planned, reason=reason, if_match=edited["etag"], **how)
    if api.json:
        left = [{"kind": each["kind"], "name": each["name"]} for each in unchanged]
        return as_json({"changes": changes, "unchanged": left})
    lines = [line for each in changes for line in change_lines(each, dry_run=how["dry_run"])]
    lines += [f"unchanged: {each['kind']} {each['name']}: {short(each['limit'])}" for each in unchanged]
    did = "would change" if how["dry_run"] else "changed"
    return "\n".join([*lines, f"{did} {len(changes)}, left {len(unchanged)} unchanged"])


def _wanted(file: str) -> list[_Planned]:
    data, origins = load_limits(file)
    found: dict[tuple[str, str], _Planned] = {}
    problems = []
    limits = [(("limits", index), dict(table)) for index, table in enumerate(data.get("limits", []))]
    limits += [
        (("defaults", kind), {"kind": kind, "name": "*", **each}) for kind, each in data.get("defaults", {}).items()
    ]
    for place, limit in limits:
        kind, name = limit.pop("kind"), limit.pop("name")
        kind, name = ("total", f"{kind}:{name}") if limit.pop("shared", False) else (kind, name)
        if (kind, name) in found:
            what = f"another limit for {kind} {name}, but live edits cannot depend on the time; put both into the"
            problems.append(origins.problem(place, f"{what} configuration and run `sluice reload`"))
        edit = {"type": "set_limit", "kind": kind, "name": name, "limit": limit}
        found[kind, name] = _Planned(edit, partial(_at, origins, place))
    if problems:
        raise SettingsError(problems)
    return list(found.values())


def _at(origins: Origins, place: Place, key: str, what: str) -> str:
    return origins.problem((*place, key) if key else place, what)


def _send(api: Api, file: str, planned: Sequence[_Planned], **how: Any) -> tuple[Change, ...]:
    def worded(fault: FieldProblem) -> str:
        if fault.edit is None or fault.edit >= len(planned):
            return f"{file}: {fault.detail}"
        key = fault.field.rpartition(".")[2]
        return planned[fault.edit].at("" if key.isdigit() else key, fault.detail)

    if len(planned) > MAX_EDITS:
        raise SettingsError(
            f"{file}: {len(planned)} limits would change, but at most {MAX_EDITS} can change at once; put them into"
            " the configuration and run `sluice reload`"
        )
    edits = [each.edit for each in planned]
    return api.batch(edits, worded=worded, **how).read(Changes).changes if edits else ()


# --- recommendations ------------------------------------------------------------------------------


def read_recommendations(file: str) -> RecommendationsFile:
    """Read a report's ``recommendations.json``. Raises SettingsError."""
    try:
        content = read_file(file)
        version = msgspec.json.decode(content, type=dict[str, Any]).get("version")
        if version == VERSION:
            return msgspec.json.decode(content, type=RecommendationsFile)
    except OSError as error:
        why = unreadable(file, error)
        raise SettingsError(f"{file}: {why}; pass a report's recommendations.json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{file}: {error}; {_REMAKE}") from None
    raise SettingsError(f"{file}: found version {version}, expected {VERSION}; {_REMAKE}")


def apply_recommendations(
    api: Api,
    file: str,
    *,
    only: str,
    instance: str,
    offered: Collection[str],
    force: bool,
    reason: str,
    **how: bool,
) -> str:
    """Apply the selected recommendations atomically and return a description of the changes. Raises OperatorError.

    Each one becomes an edit, with the evidence as its reason. A recommendation is skipped if it cannot be applied, and
    in these cases:

    - Its name does not match the glob ``only``.
    - It is not for ``instance``, which by default is this sidecar or its fleet.
    - It needs a flag, and the flag is not in ``offered``.
    - The limit has changed since the report was made, and ``force`` is not set.

    ``how`` is the same as in ``apply_limits``.
    """
    recommended = read_recommendations(file)
    state = api.get("state").read(dict[str, Any]) if not instance or how["fleet"] else {}
    instance = of_fleet(state["fleet"]["name"]) if how["fleet"] and state["fleet"] else instance or state["instance"]
    known = sorted({*recommended.instances, *(each.instance for each in recommended.recommendations)})
    if recommended.recommendations and instance not in known:
        listed = ", ".join(known[:_FEW]) + (f" and {len(known) - _FEW} more" if len(known) > _FEW else "")
        raise SettingsError(
            f"{file} was made for {listed}, not for {instance or 'a sidecar without a name'} at {api.url}; point"
            " --admin at the right sidecar, or select the recommendations with --instance"
        )
    left_out = _choice(only, instance, offered)
    planned: list[_Planned] = []
    skipped: list[dict[str, str]] = []
    for index, each in enumerate(recommended.recommendations):
        place = f"{file}: recommendations[{index}]"
        entry = None
        if not (why := left_out(each)):
            try:
                entry = api.get("limits", each.kind, glob_of(each.name)).read(LimitEntry)
            except SettingsError as error:
                raise SettingsError(f"{place}: {error}") from None
            changed = "" if force else applying.changed_since(each, entry)
            why = applying.not_applicable_reason(each, entry) or (changed and f"{changed}; --force applies it anyway")
        if entry is None or why:
            names = {"instance": each.instance, "kind": each.kind, "name": each.name}
            skipped.append({**names, "action": each.action, "why": why})
        else:
            planned.append(_Planned(_edit(each, entry, reason), partial(_of, f"{place}: {each.kind} {each.name}")))
    changes = _send(api, file, planned, **how)
    if api.json:
        return as_json({"changes": changes, "skipped": skipped})
    lines: list[str] = []
    for change in changes:
        lines += change_lines(change, dry_run=how["dry_run"])
        lines += [f"   reason: {change.reason}"] if change.reason else []
    by_reason: dict[str, list[str]] = defaultdict(list)
    for left in skipped:
        by_reason[left["why"]].append(f"{left['kind']} {left['name']}")
    for why, alike in by_reason.items():
        named = alike if len(alike) <= _FEW else [f"{len(alike)} limits"]
        lines += [f"skipped: {what}: {why}" for what in named]
    did = "would change" if how["dry_run"] else "changed"
    return "\n".join([*map(printable, lines), f"{did} {len(changes)}, skipped {len(skipped)}"])


def _of(place: str, key: str, what: str) -> str:
    return f"{place}: {key}: {what}" if key else f"{place}: {what}"


def _choice(text: str, instance: str, offered: Collection[str]) -> Callable[[Recommendation], str]:
    try:
        only = read_glob(text or "*")
    except RuleError as error:
        raise SettingsError(f"--only {text}: {error}") from None

    def why(each: Recommendation) -> str:
        if each.instance != instance:
            return f"for {each.instance}" + ("; --fleet applies it" if each.instance.startswith(of_fleet("")) else "")
        if not only.stands_for(each.name):
            return "does not match --only"
        logged = each.backtest.logged
        if each.action == "keep" and logged is not None and logged.refused_messages:
            return f"no change is recommended: {each.evidence}"
        if each.only_with and each.only_with not in offered:
            return f"{applying.change_of(each)} is optional; --{each.only_with} applies it: {each.evidence}"
        return applying.no_change_reason(each)

    return why


def _edit(each: Recommendation, entry: LimitEntry, reason: str) -> dict[str, Any]:
    limit = {**entry.limit, **applying.fields_of(each, entry)}
    return {
        "type": "set_limit",
        "kind": each.kind,
        "name": glob_of(each.name),
        "limit": {key: value for key, value in limit.items() if value is not None},
        "reason": applying.reason_of(each, reason),
        # Do not overwrite edits that were made since this entry was read.
        "if_match": entry.etag,
    }
