"""On which line of a TOML text does a key stand? ``tomllib`` does not say, and error messages should.

It finds tables and keys that begin a line. What is inside an inline table has no line of its own: ask for
the nearest parent instead. The text must already have been read by ``tomllib``; this is no parser.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache

Path = tuple[str | int, ...]
"""A place in the configuration: table keys, and indexes into arrays of tables."""

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_ARRAY_TABLE = re.compile(rf"\s*\[\[\s*({_DOTTED})\s*\]\]")
_TABLE = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")
_MULTILINE = ('"""', "'''")


def find_lines(text: str) -> Mapping[Path, int]:
    """Map each table and key of a TOML text to its line, counted from 1."""
    lines: dict[Path, int] = {}
    arrays: dict[Path, int] = {}
    table: Path = ()
    quotes: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if quotes is not None:
            if quotes in line:
                quotes = None
            continue
        if match := _ARRAY_TABLE.match(line):
            array = _resolve(_split(match[1]), arrays)
            arrays[array] = arrays.get(array, -1) + 1
            table = (*array, arrays[array])
            _note(array, number, lines)
            lines[table] = number
        elif match := _TABLE.match(line):
            table = _resolve(_split(match[1]), arrays, whole=True)
            _note(table, number, lines)
        elif match := _ASSIGNMENT.match(line):
            path = table
            for key in _split(match[1]):
                path = (*path, key)
                lines.setdefault(path, number)
            quotes = next((mark for mark in _MULTILINE if line.count(mark) % 2), None)
    return lines


def line_of(path: Path, lines: Mapping[Path, int]) -> int | None:
    """Return the line of a path or of its nearest parent that has one."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return None


def _note(path: Path, number: int, lines: dict[Path, int]) -> None:
    """Give a table its line, and its parents too where this is the first that is heard of them."""
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], number)


@lru_cache(maxsize=1024)
def _split(dotted: str) -> tuple[str, ...]:
    """Take a dotted key apart; tomllib knows the quoting. The same few keys come again in every limit.

    What only looks like one, a line within a string of several, has no parts.
    """
    keys = []
    try:
        value: object = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    while isinstance(value, dict):
        ((key, value),) = value.items()
        keys.append(key)
    return tuple(keys)


def _resolve(keys: tuple[str, ...], arrays: Mapping[Path, int], *, whole: bool = False) -> Path:
    """Insert the index of the latest element wherever a key names an array of tables."""
    path: Path = ()
    for position, key in enumerate(keys):
        path = (*path, key)
        if (whole or position < len(keys) - 1) and path in arrays:
            path = (*path, arrays[path])
    return path
