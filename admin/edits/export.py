"""Writes the current limits as a configuration file that ``sluice check`` and ``sluice limits apply`` accept."""

from collections.abc import Iterator, Sequence
from json import dumps
from typing import Any, Final

from admin.common.tables import printable
from admin.config.limit_fields import FIELDS
from admin.config.rule_fields import fields_of, target_of, written
from admin.config.rulebook import BUILT_IN
from admin.edits.model import ALL_KINDS, ActiveEdit, LimitEntry, SwitchEntry
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.rule import Rule

_NO_RULE: Final = "default"
_BY_KEY: Final = {each.key: each for each in FIELDS}


def export(
    rules: Sequence[Rule],
    limits: Sequence[LimitEntry],
    switches: Sequence[SwitchEntry],
    *,
    heading: str = "",
    edits_only: bool = False,
) -> str:
    """Return the limits as TOML. A comment gives the author and reason of each edit.

    ``rules`` includes scheduled rules that do not apply now. ``limits`` contains only names that have a rule of
    their own.
    """
    edits = {(entry.kind, entry.name): entry.edit for entry in limits if entry.edit is not None}
    off = [each.kind for each in switches if not each.limiting]
    lines = [f"# {printable(heading)}"] if heading else []
    lines += [f"# This kind is switched off, which a file cannot express: {kind}" for kind in off if kind != ALL_KINDS]
    lines += ["limiting = false"] if ALL_KINDS in off else []
    for rule in rules:
        edit = edits.get(target_of(rule))
        if edit is not None or (not edits_only and _is_written(rule)):
            lines += ["", *([_comment(edit)] if edit is not None else []), "[[limits]]", *_table(rule)]
    return "\n".join(lines) + "\n"


def toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:.0f}" if value == int(value) and abs(value) < 1e15 else repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # A JSON string is also a valid TOML string, unless it contains DEL.
    return dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_written(rule: Rule) -> bool:
    # Built-in default rates must be written, because they do not apply if the file contains limits.
    if rule.source == _NO_RULE:
        return False
    return not rule.source.startswith(BUILT_IN) or rule.pattern == DEFAULT_PATTERN


def _table(rule: Rule) -> Iterator[str]:
    limit = fields_of(rule)
    table: dict[str, Any] = {"kind": rule.kind, "name": rule.pattern} | ({"shared": True} if rule.shared else {})
    table |= {key: value for key, value in written(limit).items() if _BY_KEY[key].fits(limit)}
    if not table.keys() & {"rate", "bytes_per_s", "exempt", "adaptive"} and table.get("action") != "off":
        table["rate"] = "unlimited"
    return (f"{key} = {toml(value)}" for key, value in table.items())


def _comment(edit: ActiveEdit) -> str:
    until = f" until {edit.expires_at}" if edit.expires_at else ""
    reason = f": {edit.reason}" if edit.reason else ""
    return printable(f"# change {edit.change_id} by {edit.by} at {edit.at}{until}{reason}")
