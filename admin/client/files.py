"""``sluice limits apply``, ``diff`` and ``export``: active limits and limits in a file.

A file has ``[[limits]]`` and ``[defaults]`` as in a configuration; other tables of a configuration are ignored. The
sidecar checks the limits, and its objections are shown with the file's lines.
"""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from admin.client import RefusedError
from admin.client.api import LONG_TIMEOUT_S, Api, as_json, path
from admin.client.limits import batch, edited, joined, layout, places
from admin.client.target import Target
from admin.client.words import change_lines, moment
from admin.config.toml_lines import Path as Place
from admin.config.toml_lines import find_lines, line_of
from admin.edits.model import ActiveEdit, Change, LimitEntry
from admin.edits.wording import short
from admin.wire import MAX_EDITS, Changes, Drift
from limiter.rules.resource import TOTAL

_OTHER_TABLES: Final = frozenset(
    {"listeners", "handlers", "admin", "log", "bounds", "limiting", "grace_s", "state_dir"}
)


class Applying(NamedTuple):
    """How to apply a file.

    Attributes:
        reason: for the audit trail, before the evidence of recommendations.
        dry_run: only show what would change.
        volatile: until the restart only.
        prune: limits: also undo edits that the file does not have.
        only: recommendations: names that match this glob.
        instance: recommendations: of this sidecar; by default of the one that is asked.
        force: recommendations: also for limits that were changed since.
        offered: recommendations: optional ones to apply, ``lower`` or ``raise``.
    """

    reason: str = ""
    dry_run: bool = False
    volatile: bool = False
    prune: bool = False
    only: str = ""
    instance: str = ""
    force: bool = False
    offered: frozenset[str] = frozenset()


class _Wanted(NamedTuple):
    kind: str
    name: str
    limit: dict[str, Any]
    place: Place

    @property
    def edit(self) -> dict[str, Any]:
        return {"type": "set_limit", "kind": self.kind, "name": self.name, "limit": self.limit}


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RefusedError(f"{file}: cannot be read: {why}; name a TOML file") from None
    except UnicodeDecodeError as error:
        raise RefusedError(f"{file}: not UTF-8 text: byte {error.start} cannot be read; save it as UTF-8") from None


class _File:
    """The limits of a file, and their lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = _text(name)
        try:
            self._data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = str(error).partition("line ")[2].partition(",")[0] or str(max(1, len(text.splitlines())))
            raise RefusedError(f"{name}:{line}: not TOML: {error}") from None
        self._lines = find_lines(text)

    def place(self, wanted: _Wanted, key: str) -> str:
        """Name the place of a limit, or of one of its keys."""
        return self.at((*wanted.place, key) if key else wanted.place)

    def at(self, place: Place) -> str:
        """Name a place: ``FILE:LINE: key``."""
        spelt = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        line = line_of(place, self._lines)
        return f"{self.name}: {spelt}" if line is None else f"{self.name}:{line}: {spelt}"

    def wanted(self) -> list[_Wanted]:
        """Return the limits, in the order of the file.

        Raises:
            RefusedError: with a line for each duplicate, and each value that is not a table.
        """
        problems = [
            f"{self.at((key,))}: unknown; a file of limits has [[limits]] and [defaults]"
            for key in self._data
            if key not in {"limits", "defaults"} | _OTHER_TABLES
        ]
        found: dict[tuple[str, str], _Wanted] = {}
        for each in self._read(problems):
            other = found.setdefault((each.kind, each.name), each)
            if other is not each:
                problems.append(
                    f"{self.at(each.place)}: a second limit for {each.kind} {each.name}, besides"
                    f" {self.at(other.place)}; only one of a name can be set live, hours or not:"
                    " reload the configuration instead"
                )
        if problems:
            raise RefusedError(problems)
        return list(found.values())

    def _read(self, problems: list[str]) -> Iterator[_Wanted]:
        limits, defaults = self._data.get("limits", []), self._data.get("defaults", {})
        if not isinstance(limits, list) or not isinstance(defaults, dict):
            problems.append(f"{self.name}: [[limits]] must be an array of tables, and [defaults] a table")
            return
        for index, table in enumerate(limits):
            place: Place = ("limits", index)
            if not isinstance(table, dict):
                problems.append(f"{self.at(place)}: must be a table: [[limits]]")
                continue
            rest = dict(table)
            kind, name, shared = rest.pop("kind", None), rest.pop("name", None), rest.pop("shared", False)
            for key, value in (("kind", kind), ("name", name)):
                if not isinstance(value, str) or not value:
                    problems.append(f"{self.at((*place, key))}: must be text in quotes")
            if not isinstance(shared, bool):
                problems.append(f"{self.at((*place, 'shared'))}: must be true or false")
            if isinstance(kind, str) and isinstance(name, str):
                yield _Wanted(*((TOTAL, f"{kind}:{name}") if shared else (kind, name)), rest, place)
        for kind, table in defaults.items():
            place = ("defaults", kind)
            if isinstance(table, dict):
                yield _Wanted(kind, "*", table, place)
            else:
                problems.append(f"{self.at(place)}: must be a table: [defaults.{kind}]")


def apply(target_: Target, file: str, how: Applying, *, json: bool) -> str:
    """Apply the limits of a file, all or none. Those that are active already are left alone.

    Raises:
        OperatorError: nothing was changed.
    """
    limits = _File(file)
    wanted = limits.wanted()
    with Api(target_, LONG_TIMEOUT_S) as api:
        entries, etag = edited(api)
        changed, unchanged = _differing(api, limits, wanted)
        edits = [each.edit for each in changed]
        names = {(each.kind, each.name) for each in wanted}
        pruned = [entry for entry in entries if (entry.kind, entry.name) not in names] if how.prune else []
        edits += [{"type": "unset_limit", "kind": entry.kind, "name": entry.name} for entry in pruned]
        if len(edits) > MAX_EDITS:
            raise RefusedError(
                f"{file}: {len(edits)} limits differ, and {MAX_EDITS} can be changed at once;"
                " put them into the configuration and run `sluice reload`"
            )
        changes: tuple[Change, ...] = ()
        if edits:
            # Edits since the comparison are not overruled.
            reply = batch(
                api,
                edits,
                reason=how.reason,
                dry_run=how.dry_run,
                volatile=how.volatile,
                if_match=etag,
                name=places(file, changed, limits.place),
            )
            changes = reply.read(Changes).changes
    if json:
        return as_json(
            {"changes": changes, "unchanged": [{"kind": each.kind, "name": each.name} for each in unchanged]}
        )
    lines = [line for each in changes for line in change_lines(each, dry_run=how.dry_run)]
    lines += [f"unchanged: {each.kind} {each.name}: {short(each.limit)}" for each in unchanged]
    did = "would change" if how.dry_run else "changed"
    lines.append(f"{did} {len(changes)}, left {len(unchanged)} unchanged")
    return "\n".join(lines)


def _differing(api: Api, limits: _File, wanted: Sequence[_Wanted]) -> tuple[list[_Wanted], list[_Wanted]]:
    """Separate limits that differ from the active ones from those that do not; the sidecar fills in defaults."""
    changed: list[_Wanted] = []
    unchanged: list[_Wanted] = []
    for begin in range(0, len(wanted), MAX_EDITS):
        part = wanted[begin : begin + MAX_EDITS]
        reply = batch(api, [each.edit for each in part], dry_run=True, name=places(limits.name, part, limits.place))
        for each, change in zip(part, reply.read(Changes).changes, strict=True):
            (unchanged if (change.old, change.old_rule) == (change.new, change.new_rule) else changed).append(each)
    return changed, unchanged


def diff(api: Api, *, json: bool) -> str:
    """Show how active limits and switches differ from the configuration."""
    replies = list(api.pages(path("diff"), {}, None))
    if json:
        return joined(replies, "limits")
    pages = [reply.read(Drift) for reply in replies]
    on = {True: "on", False: "off"}
    rows = [
        (entry.kind, entry.name, _configured(entry), entry.limit_text, *_standing(entry.edit))
        for page in pages
        for entry in page.limits
    ]
    rows += [
        ("switch", switch.kind, on[switch.configured], on[switch.limiting], *_standing(switch.edit))
        for switch in (pages[0].switches if pages else ())
    ]
    if not rows:
        return "All is as configured."
    columns = ("kind", "name", "configured", "in force", "by", "since", "until", "reason")
    return layout(columns, rows)


def _configured(entry: LimitEntry) -> str:
    return "no rule" if entry.configured is None else short(entry.configured.limit)


def _standing(edit: ActiveEdit | None) -> tuple[str, str, str, str]:
    if edit is None:
        return "", "", "", ""
    return edit.by, moment(edit.at), moment(edit.expires_at) if edit.expires_at else "", edit.reason


def export(api: Api, *, form: str, edits_only: bool) -> str:
    """Write the active limits as a configuration file; ``form`` is ``toml`` or ``json``."""
    text = str(api.get(path("export"), {"edits_only": edits_only}).read(dict[str, str])["text"])
    return as_json({"limits": []} | tomllib.loads(text)) if form == "json" else text.rstrip("\n")
