"""Converts TOML or JSON tables to structs and dataclasses.

Errors show the path, the value and the allowed values. The ``extra`` of a field's ``msgspec.Meta`` may contain:

- ``read``: a function that converts the value, or raises a ValueError that lists the allowed values.
- ``check``: a function that validates the value and returns it, or raises ValueError.
- ``table``: a struct that declares the allowed keys. The value becomes a dict of the keys that are present.
- ``meant``: a dict that maps common mistakes to the words to suggest.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Meta

from admin.config.addresses import Endpoint
from admin.config.toml_lines import Path as Place
from admin.config.toml_lines import line_of

#: Minimum similarity of a suggestion, from 0 to 1.
_CLOSE = 0.7
_MAX_SHOWN: Final = 60
#: The largest integer that TOML and the compiled extension allow.
_MAX_INTEGER: Final = (1 << 63) - 1
#: Maximum number of unknown keys to report per table. Finding suggestions is slow.
_MAX_UNKNOWN: Final = 20
_ARRAY: Final = "must be an array, for example [1, 2]; arrays of tables have double brackets, like [[limits]]"
_NAMES: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
}
_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}

SECRET_KEYS: Final = frozenset({"token", "read_token", "password", "url"})
"""Keys whose values are never shown. A URL may contain a password, although that is an error."""


class FromText(str):
    """Text from an environment variable or a URL query. It may represent a number or a boolean."""

    __slots__ = ()


class Fault(NamedTuple):
    """An error in a value. The message shows ``value`` unless it is None."""

    place: Place
    what: str
    value: object = None

    @property
    def told(self) -> str:
        return self.what if self.value is None else f"{self.what}; found {show(self.value)}"


class FaultsError(Exception):
    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{spell(each.place)}: {each.told}" for each in self.faults))


class Key:
    """The declared type and default of a key.

    ``default`` is ``msgspec.NODEFAULT`` if the key is required. ``plain`` is the type without metadata and None.
    ``item`` describes the values in a list or dict.
    """

    def __init__(self, type_: Any, default: Any = NODEFAULT) -> None:
        self.type, self.default = type_, default
        self.plain, self.metas, self.optional = _unwrapped(type_)
        self.extra = {key: each for meta in self.metas for key, each in (meta.extra or {}).items()}
        self.item = Key(get_args(self.plain)[-1]) if get_origin(self.plain) in {list, dict} else None


@cache
def keys(model: Any) -> Mapping[str, Key]:
    if dataclasses.is_dataclass(model):
        hints = get_type_hints(model, include_extras=True)
        found = {}
        for each in dataclasses.fields(model):
            required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
            found[each.name] = Key(hints[each.name], NODEFAULT if required else each.default)
        return found
    return {
        each.name: Key(each.type, each.default if each.default_factory is NODEFAULT else each.default_factory())
        for each in msgspec.structs.fields(model)
    }


def is_table(type_: Any) -> bool:
    return isinstance(type_, type) and (issubclass(type_, msgspec.Struct) or dataclasses.is_dataclass(type_))


def read(type_: Any, value: object) -> Any:
    """Convert ``value`` to ``type_``. Raises a FaultsError that contains all errors."""
    reader = _Reader()
    found = reader.value(Key(type_), value, ())
    if reader.faults:
        raise FaultsError(reader.faults)
    return found


def _unwrapped(type_: Any) -> tuple[Any, tuple[Meta, ...], bool]:
    if get_origin(type_) is Annotated:
        inner, *more = get_args(type_)
        plain, metas, optional = _unwrapped(inner)
        return plain, (*metas, *(each for each in more if isinstance(each, Meta))), optional
    if get_origin(type_) not in {Union, UnionType}:
        return type_, (), type_ is Any
    optional = type(None) in get_args(type_)
    values = [each for each in get_args(type_) if each not in {type(None), msgspec.UnsetType}]
    return (*_unwrapped(values[0])[:2], optional) if len(values) == 1 else (type_, (), optional)


class _Reader:
    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def value(self, of: Key, value: object, place: Place) -> Any:
        try:
            return self._value(of, value, place)
        except ValueError as error:
            self._fault(place, str(error), value)
            return None

    def _fault(self, place: Place, what: str, value: object = None) -> None:
        self.faults.append(Fault(place, what, None if SECRET_KEYS.intersection(place) else value))

    def _value(self, of: Key, value: object, place: Place) -> Any:
        if value is None and of.optional:
            return None
        if "read" in of.extra:
            return of.extra["read"](value)
        if "table" in of.extra:
            return self._table(of.extra["table"], value, place)
        if is_table(of.plain):
            return self._made(of.plain, value, place)
        if of.item is None:
            found = _leaf(of, value)
            return of.extra["check"](found) if "check" in of.extra else found
        if get_origin(of.plain) is dict:
            return {key: self.value(of.item, each, (*place, key)) for key, each in _dict(value).items()}
        if not isinstance(value, list):
            raise ValueError(_ARRAY)  # noqa: TRY004 - errors of values are ValueErrors
        for meta in of.metas:
            if meta.min_length is not None and len(value) < meta.min_length:
                raise ValueError("must not be empty")
            if meta.max_length is not None and len(value) > meta.max_length:
                raise ValueError(f"must contain at most {meta.max_length} values, but contains {len(value)}")
        return [self.value(of.item, each, (*place, index)) for index, each in enumerate(value)]

    def _table(self, model: Any, value: object, place: Place) -> dict[str, Any]:
        given, known = _dict(value), keys(model)
        for name in [name for name in given if name not in known][:_MAX_UNKNOWN]:
            meant = f"options.{name}" if "options" in known else ""
            self._fault((*place, name), unknown_key(name, known, meant=meant))
        for name, key in known.items():
            if key.default is NODEFAULT and name not in given:
                self._fault((*place, name), "missing, but required")
        return {key: self.value(known[key], each, (*place, key)) for key, each in given.items() if key in known}

    def _made(self, model: type[Any], value: object, place: Place) -> Any:
        before = len(self.faults)
        given = self._table(model, value, place)
        if len(self.faults) > before:
            return None
        try:
            return model(**given)
        except ValueError as error:
            self._fault(place, str(error))
            return None


def _dict(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table")  # noqa: TRY004 - as above
    return value


def _leaf(of: Key, value: object) -> Any:
    strict = not isinstance(value, FromText) or of.plain is str
    value = value.strip() if isinstance(value, FromText) else value
    try:
        found = msgspec.convert(value, of.type, strict=strict)
    except msgspec.ValidationError:
        raise ValueError(_allowed(of, value, strict=strict)) from None
    if isinstance(found, int) and abs(found) > _MAX_INTEGER:
        raise ValueError("must fit in 64 bits")
    if isinstance(found, float):
        if not math.isfinite(found):
            raise ValueError("must be a finite number")
        found += 0.0  # -0.0 becomes 0.0
    return found


def _allowed(of: Key, value: object, *, strict: bool) -> str:
    if get_origin(of.plain) is Literal:
        *most, last = [f'"{each}"' for each in get_args(of.plain)]
        meant = of.extra.get("meant", {}).get(str(value).lower())
        return f"must be {', '.join(most)} or {last}" + (f'; did you mean "{meant}"?' if meant else "")
    try:
        msgspec.convert(value, of.plain, strict=strict)
    except msgspec.ValidationError:
        return f"must be {_NAMES.get(of.plain, f'of type {of.plain}')}"
    bounds = [
        f"{words} {bound:.15g}"
        for meta in of.metas
        for key, words in _BOUNDS.items()
        if (bound := getattr(meta, key)) is not None
    ]
    if bounds:
        return f"must be {' and '.join(bounds)}"
    longest = next((meta.max_length for meta in of.metas if meta.max_length), 0)
    return f"must be at most {longest} characters long" if value else "must not be empty"


@dataclass(frozen=True, slots=True)
class Origins:
    """Where each value comes from: a line in the file, an environment variable or a flag."""

    file: str | None
    lines: Mapping[Place, int]
    named: Mapping[Place, str]

    def of(self, place: Place) -> str:
        """Return where a value comes from: a flag, a variable, ``file:line`` or ``built-in``."""
        return self._named(place) or self._line(place) or "built-in"

    def name(self, place: Place, value: object) -> str:
        """Format a value and its source for an error about another value."""
        if (name := self.named.get(place)) is not None:
            return given(name, value)
        line = self._line(place)
        return f"{spell(place)} = {show(value)}" + (f" ({line})" if line else "")

    def problem(self, place: Place, what: str, value: object = None) -> str:
        """Format an error about the value at a path. The value is shown unless it is None."""
        if (name := self._named(place)) is not None:
            return f"{given(name, value)}: {what}"
        where = self._line(place) or self.file
        shown = "" if value is None else f" = {show(value)}"
        return (f"{where}: " if where else "") + f"{spell(place)}{shown}: {what}"

    def problems(self, error: FaultsError, prefix: Place = ()) -> list[str]:
        return [self.problem((*prefix, *each.place), each.what, each.value) for each in error.faults]

    def _named(self, place: Place) -> str | None:
        return next((self.named[place[:end]] for end in range(len(place), 0, -1) if place[:end] in self.named), None)

    def _line(self, place: Place) -> str | None:
        line = line_of(place, self.lines)
        return None if self.file is None or line is None else f"{self.file}:{line}"


def unknown_key(key: str, allowed: Iterable[str], *, prefix: str = "", meant: str = "") -> str:
    """Return an error message that suggests the most similar allowed key.

    If none is similar, the message suggests ``meant``, if given, and lists the allowed keys.
    """
    names = sorted(allowed)
    bare = [name.removeprefix(prefix) for name in names]
    if close := difflib.get_close_matches(key.removeprefix(prefix), bare, n=1, cutoff=_CLOSE):
        return f'unknown; did you mean "{prefix}{close[0]}"?'
    if meant:
        return f'unknown; did you mean "{meant}"? Allowed here: {", ".join(names)}'
    return f"unknown; allowed here: {', '.join(names)}" if names else "unknown; nothing can be set here"


def spell(place: Place) -> str:
    """Format a path, such as ``listeners[0].options.x``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def given(name: str, value: object = None) -> str:
    if value is None:
        return name
    shown = show(value)
    plain = shown.strip('"')
    # Keep the quotes only if a shell would split or interpret the value.
    shown = shown if "\\" in plain or any(map(str.isspace, plain)) else plain
    return f"{name} {shown}" if name.startswith("--") else f"{name}={shown}"


def show(value: object) -> str:
    """Format a value as in TOML. A long value is truncated."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = json.dumps(_plain_text(value), ensure_ascii=False, default=str)
    except ValueError:
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _plain_text(value: object) -> object:
    if isinstance(value, list):
        return [_plain_text(each) for each in value]
    return str(value) if isinstance(value, Endpoint) else value
