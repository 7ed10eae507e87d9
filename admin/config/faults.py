"""Error messages about settings: one line with the place, the key, the value and what is allowed.

Reads nothing itself. Most of what pydantic says is kept; only its texts that would puzzle an operator are replaced.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from admin.config.toml_lines import Path as Place
from admin.config.toml_lines import line_of

#: How alike two names must be, from 0 to 1, to suggest one for the other.
_CLOSE = 0.7
_MAX_SHOWN: Final = 60

SECRET_KEYS: Final = frozenset({"token", "read_token"})
"""Keys whose values are never shown."""

_TABLE: Final = "must be a table"
#: What is said in place of pydantic's text, by its type of error.
_TEXTS: Final = {
    "missing": "missing; it must be given",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text in quotes",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "greater_than_equal": "must be at least {ge:.15g}",
    "greater_than": "must be more than {gt:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
    "list_type": "must be an array, for example [1, 2]; tables of an array have double brackets, like [[limits]]",
    "model_type": _TABLE,
    "dict_type": _TABLE,
    "dataclass_type": _TABLE,
}
_UNKNOWN_KEY: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_JSON: Final = re.compile(r"\s*(\{|\[\s*\{)")
_YAML: Final = re.compile(r"---|%YAML|\s*(- +)?[\w.\"'-]+:(\s|$)")


@dataclass(frozen=True, slots=True)
class Origins:
    """Where each value came from.

    Attributes:
        file: the path of the file as the operator gave it, or None.
        lines: the file's lines by place.
        named: the variable or flag that gave the value of a place.
    """

    file: str | None
    lines: Mapping[Place, int]
    named: Mapping[Place, str]

    def of(self, place: Place) -> str:
        """Name where a table came from: a flag, a variable, ``file:line``, or ``built-in``."""
        return self._named(place) or self._line(place) or "built-in"

    def name(self, place: Place, value: object) -> str:
        """Write one value with its place, for a message about another one."""
        if (name := self.named.get(place)) is not None:
            return given(name, value)
        line = self._line(place)
        return f"{spell(place)} = {show(value)}" + (f" ({line})" if line else "")

    def problem(self, place: Place, what: str, value: object = None) -> str:
        """Return the line for one fault; a value of None is not shown."""
        if (name := self._named(place)) is not None:
            return f"{given(name, value)}: {what}"
        where = self._line(place) or self.file
        shown = "" if value is None else f" = {show(value)}"
        return (f"{where}: " if where else "") + f"{spell(place)}{shown}: {what}"

    def _named(self, place: Place) -> str | None:
        return next((self.named[place[:end]] for end in range(len(place), 0, -1) if place[:end] in self.named), None)

    def _line(self, place: Place) -> str | None:
        line = line_of(place, self.lines)
        return None if self.file is None or line is None else f"{self.file}:{line}"


def describe(
    error: ValidationError,
    origins: Origins,
    *,
    model: type[Any],
    prefix: Place = (),
    value_hints: Mapping[tuple[str, str], str] | None = None,
) -> list[str]:
    """Turn pydantic's errors into lines for an operator.

    Args:
        error: what pydantic raised.
        origins: where the values came from.
        model: what it was validated against.
        prefix: the place of what was validated in the configuration.
        value_hints: what to say of some wrong values, by the key and the value; ``*`` is any value.
    """
    return [
        origins.problem((*prefix, *each["loc"]), _text(each, model, value_hints or {}), _value(each))
        for each in error.errors(include_url=False)
    ]


def describe_fields(
    error: ValidationError,
    *,
    model: type[Any],
    hints: Mapping[str, str] | None = None,
    words: Mapping[tuple[str, str], str] | None = None,
) -> list[tuple[str, str]]:
    """Turn pydantic's errors into pairs of a field and what is wrong with it; an error about several has no field.

    Args:
        error: what pydantic raised.
        model: what it was validated against.
        hints: what to say of some unknown keys.
        words: as ``value_hints`` of ``describe``.
    """
    found = []
    for detail in error.errors(include_url=False):
        what, value = _text(detail, model, words or {}), _value(detail)
        if detail["type"] in _UNKNOWN_KEY:
            what = (hints or {}).get(str(detail["loc"][-1]), what)
        found.append((spell(detail["loc"]), what if value is None else f"{what}; found {show(value)}"))
    return found


def unknown_key(key: str, allowed: Iterable[str], *, prefix: str = "") -> str:
    """Say that a key or name is unknown, and which one may have been meant.

    Args:
        key: what was found.
        allowed: all that could be there.
        prefix: what all of these begin with; it does not count for their likeness.
    """
    names = sorted(allowed)
    bare = [name.removeprefix(prefix) for name in names]
    if close := difflib.get_close_matches(key.removeprefix(prefix), bare, n=1, cutoff=_CLOSE):
        return f'unknown; did you mean "{prefix}{close[0]}"?'
    return f"unknown; allowed here: {', '.join(names)}" if names else "unknown; nothing can be set here"


def not_toml(text: str) -> str:
    """Return a hint for a text that is not TOML but looks like JSON or YAML; otherwise nothing."""
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    looks_like = "JSON" if _JSON.match(text) else "YAML" if _YAML.match(first) else ""
    return f"; this looks like {looks_like}; Sluice reads TOML, as in deploy/sluice.toml" if looks_like else ""


def spell(place: Place) -> str:
    """Write a place as one string, ``listeners[0].options.x``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def given(name: str, value: object = None) -> str:
    """Write a flag or a variable with its value as on a command line."""
    if value is None:
        return name
    shown = show(value)
    plain = shown.strip('"')
    # Quotes only where a shell would need them.
    shown = shown if "\\" in plain or any(map(str.isspace, plain)) else plain
    return f"{name} {shown}" if name.startswith("--") else f"{name}={shown}"


def show(value: object) -> str:
    """Write a value as in TOML, cut to fit a line."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:
        text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _value(detail: ErrorDetails) -> object:
    """Return the faulty value, or None if it should not be shown: a secret, a whole table, or not there."""
    is_hidden = detail["type"] in {"missing", *_UNKNOWN_KEY} or SECRET_KEYS.intersection(detail["loc"])
    is_table = detail["type"] == "value_error" and isinstance(detail["input"], dict)
    return None if is_hidden or is_table else detail["input"]


def _text(detail: ErrorDetails, model: type[Any], hints: Mapping[tuple[str, str], str]) -> str:
    *table, key = detail["loc"] or ("",)
    if detail["type"] in _UNKNOWN_KEY:
        return unknown_key(str(key), _keys(model, table))
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    message = detail["msg"].replace("Input should be", "must be", 1)
    what = _TEXTS.get(detail["type"], message[:1].lower() + message[1:].replace("'", '"'))
    what = what.format_map(detail.get("ctx", {})) if detail["type"] in _TEXTS else what
    hint = hints.get((str(key), str(detail["input"]).lower())) or hints.get((str(key), "*"))
    return f"{what}; {hint}" if hint else what


def _keys(model: Any, table: Sequence[str | int]) -> Iterable[str]:
    """Return the keys that a table of a model can have."""
    for part in table:
        fields = getattr(model, "model_fields", None)
        # An index, or a key of a free-form table, leaves the model as it is.
        if fields is not None and part in fields:
            annotation = fields[part].annotation
            model = (get_args(annotation) or (annotation,))[-1]
    return getattr(model, "model_fields", None) or getattr(model, "__dataclass_fields__", {})
