"""How a fault in the settings is put in words: one line that names the place, the key, the value, what is allowed.

It knows where values came from (``Origins``) and how to translate pydantic's errors; it reads nothing itself.
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

#: How alike two names must be, from 0 to 1, for one to be taken for the other mistyped.
_CLOSE = 0.7

SECRET_KEYS: Final = frozenset({"token", "read_token"})
"""Keys whose values are never shown, whatever is wrong with them."""

_MULTIPLES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_NUMBER_WITH_UNIT: Final = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)\s*((?:[kmg]i?)?)(?:b|bytes|messages|msgs?)?(?:/s|ps)?", re.IGNORECASE
)
_SECONDS: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:s|sec|seconds?)?", re.IGNORECASE)


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
        for length in range(len(place), 0, -1):
            if (name := self.named.get(place[:length])) is not None:
                return name
        line = line_of(place, self.lines)
        if self.file is None or line is None:
            return "built-in"
        return f"{self.file}:{line}"

    def line(self, problem: str) -> int:
        """Return the line of the file that a problem names, 0 if none, to sort by."""
        found = re.match(rf"{re.escape(self.file or '')}:([0-9]+):", problem)
        return int(found[1]) if found else 0

    def name(self, place: Place, value: object) -> str:
        """Write one value with its place, for a message about another one."""
        if (name := self.named.get(place)) is not None:
            return given(name, value)
        line = line_of(place, self.lines)
        where = "" if self.file is None or line is None else f" ({self.file}:{line})"
        return f"{spell(place)} = {show(value)}{where}"

    def problem(self, place: Place, what: str, value: object = None) -> str:
        """Make the line for one fault: where, which key, which value, what is allowed."""
        shown = "" if value is None else f" = {show(value)}"
        for length in range(len(place), 0, -1):
            if (name := self.named.get(place[:length])) is not None:
                return f"{given(name, value)}: {what}"
        line = line_of(place, self.lines)
        where = "" if self.file is None else f"{self.file}: " if line is None else f"{self.file}:{line}: "
        return f"{where}{spell(place)}{shown}: {what}"


def describe(
    details: Iterable[ErrorDetails],
    origins: Origins,
    *,
    model: type[Any],
    prefix: Place = (),
    hints: Mapping[tuple[str, str], str] | None = None,
    words: Mapping[tuple[str, str], str] | None = None,
) -> list[str]:
    """Turn pydantic's errors into lines for an operator.

    Args:
        details: what pydantic found.
        origins: where the values came from.
        model: what it was validated against, for the names of the keys that are allowed.
        prefix: the place of what was validated in the configuration.
        hints: what to say of some unknown keys, by the first part of their place and the key.
        words: what to say of some values that keys do not take, by the key and the word; ``*`` is any other.
    """
    return [
        origins.problem((*prefix, *detail["loc"]), *_words(detail, model, hints or {}, words or {}))
        for detail in details
    ]


def describe_fields(
    error: ValidationError,
    *,
    model: type[Any],
    hints: Mapping[str, str] | None = None,
    words: Mapping[tuple[str, str], str] | None = None,
) -> list[tuple[str, str]]:
    """Turn pydantic's errors into pairs of a field and what is wrong with it; all of it together has no field.

    Args:
        error: what pydantic raised.
        model: what it was validated against.
        hints: what to say of some unknown keys.
        words: as for ``describe``.
    """
    found = []
    for detail in error.errors(include_url=False):
        what, value = _words(detail, model, {}, words or {})
        if detail["type"] == "extra_forbidden":
            what = (hints or {}).get(str(detail["loc"][-1]), what)
        found.append((spell(detail["loc"]), what if value is None else f"{what}; found {show(value)}"))
    return found


def unknown_key(key: str, allowed: Iterable[str], *, prefix: str = "") -> str:
    """Say that a key or name does not exist, and which one may have been meant.

    Args:
        key: what was found.
        allowed: what could have stood there.
        prefix: what all of them begin with; it makes none of them more alike.
    """
    names = sorted(allowed)
    bare = [name.removeprefix(prefix) for name in names]
    close = difflib.get_close_matches(key.removeprefix(prefix), bare, n=1, cutoff=_CLOSE)
    if close:
        return f'unknown; did you mean "{prefix}{close[0]}"?'
    return f"unknown; allowed here: {', '.join(names)}" if names else "unknown; nothing can be set here"


_BARE_RATE: Final = re.compile(r"(?m)^\s*rate\s*=\s*([0-9.]+)/s\s*(#.*)?$")
_JSON: Final = re.compile(r"\s*(\{|\[\s*\{)")
_YAML: Final = re.compile(r"---|%YAML|\s*(- +)?[\w.\"'-]+:(\s|$)")


def not_toml(text: str) -> str:
    """Return a hint for a text that is not TOML: what it looks like, and what to write; empty if that is not known."""
    remedy = "Sluice reads TOML, as in deploy/sluice.toml: [[limits]], and below it lines like rate = 500"
    if _JSON.match(text):
        return f"; this looks like JSON; {remedy}"
    first = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    if _YAML.match(first):
        return f"; this looks like YAML; {remedy}"
    return f'; write rate = {found[1]} or rate = "{found[1]}/s"' if (found := _BARE_RATE.search(text)) else ""


def number_meant(text: str) -> str | None:
    """Return the number that was written in quotes or with a unit, ``2MB`` or ``500/s``, as it ought to be; or None."""
    found = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    return None if found is None else f"{float(found[1]) * _MULTIPLES[found[2].lower()]:.15g}"


def _seconds_meant(text: str) -> str | None:
    found = _SECONDS.fullmatch(text.strip())
    return None if found is None else found[1]


def spell(place: Place) -> str:
    """Write a place as one string, ``listeners[0].options.x``."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def given(name: str, value: object = None) -> str:
    """Write a flag or a variable with its value as it stands on a command line."""
    if value is None:
        return name
    shown = show(value)
    plain = shown.strip('"')
    if "\\" not in plain and not any(character.isspace() for character in plain):
        # Quotes only where a shell would need them.
        shown = plain
    return f"{name} {shown}" if name.startswith("--") else f"{name}={shown}"


def show(value: object) -> str:
    """Write a value as it would stand in TOML, cut to a length that fits a line."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _words(
    detail: ErrorDetails,
    model: type[Any],
    hints: Mapping[tuple[str, str], str],
    words: Mapping[tuple[str, str], str],
) -> tuple[str, object]:
    """Say what is allowed where pydantic found something else, and the value if it is worth showing."""
    context = detail.get("ctx", {})
    value = None if SECRET_KEYS.intersection(detail["loc"]) else detail["input"]
    match detail["type"]:
        case "missing":
            return "missing; it must be given", None
        case "extra_forbidden" | "unexpected_keyword_argument":
            *table, key = detail["loc"]
            hint = hints.get((str(table[0]), str(key))) if table else None
            return hint or unknown_key(str(key), _keys(model, table)), None
        case "value_error":
            # A table as a whole is no value to show.
            return str(context["error"]), None if isinstance(value, dict) else value
        case "bool_type" | "bool_parsing":
            return "must be true or false" + _hint(words, detail), value
        case "int_type" | "int_parsing" | "int_from_float":
            return "must be a whole number" + _number_hint(detail), value
        case "float_type" | "float_parsing":
            return "must be a number" + _number_hint(detail), value
        case "finite_number":
            return "must be a number that is neither infinite nor nan", value
        case "string_type":
            return "must be text in quotes", value
        case "string_too_short":
            return "must not be empty", value
        case "string_too_long":
            return f"must be at most {context['max_length']} characters", value
        case "literal_error" | "enum":
            return f"must be {str(context['expected']).replace(chr(39), chr(34))}" + _hint(words, detail), value
        case "greater_than_equal":
            return f"must be at least {_number(context['ge'])}", value
        case "greater_than":
            return f"must be more than {_number(context['gt'])}", value
        case "less_than_equal":
            return f"must be at most {_number(context['le'])}", value
        case "less_than":
            return f"must be less than {_number(context['lt'])}", value
        case "too_short":
            return "must not be empty", value
        case "list_type":
            of_tables = detail["loc"][-1:] in {("listeners",), ("limits",), ("handlers",)}
            if of_tables:
                return "must be an array; write each element as a table in double brackets", value
            return "must be an array" + (f": [{show(value)}]" if isinstance(value, str) else ""), value
        case "model_type" | "dict_type" | "dataclass_type" | "model_attributes_type":
            return "must be a table", value
        case _:
            message = detail["msg"]
            return message[:1].lower() + message[1:], value


def _hint(words: Mapping[tuple[str, str], str], detail: ErrorDetails) -> str:
    key = str(detail["loc"][-1]) if detail["loc"] else ""
    hint = words.get((key, str(detail["input"]).lower())) or words.get((key, "*"))
    return f"; {hint}" if hint else ""


def _number_hint(detail: ErrorDetails) -> str:
    key, value = str(detail["loc"][-1]) if detail["loc"] else "", detail["input"]
    if not isinstance(value, str):
        return ""
    is_time = key.endswith("_s") and not key.endswith("_per_s")
    number = _seconds_meant(value) if is_time else number_meant(value)
    return f"; write {number}" if number else ""


def _number(bound: float) -> str:
    """Write a bound in full, whole numbers without a decimal point."""
    return str(int(bound)) if bound == int(bound) else str(bound)


def _keys(model: Any, loc: Sequence[str | int]) -> Iterable[str]:
    """Return the keys that the table at ``loc`` of a model can have."""
    for part in loc:
        if isinstance(part, str):
            fields = getattr(model, "model_fields", None)
            if fields is None or part not in fields:
                # The key of a free-form table: its values' model follows.
                continue
            model = _table_type(fields[part].annotation)
    return getattr(model, "model_fields", None) or getattr(model, "__dataclass_fields__", {})


def _table_type(annotation: Any) -> Any:
    """Return the table type inside ``list[T]`` or ``dict[str, T]``, or the type itself."""
    inner = get_args(annotation)
    return inner[-1] if inner else annotation
