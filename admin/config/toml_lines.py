"""Finds the line of each table and key in valid TOML.

For a key in an inline table, ``line_of`` returns the line of that table.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache

Path = tuple[str | int, ...]
"""The keys and array indexes that lead to a value."""

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_ARRAY_TABLE = re.compile(rf"\s*\[\[\s*({_DOTTED})\s*\]\]")
_TABLE = re.compile(rf"\s*\[\s*({_DOTTED})\s*\]\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"\s*({_DOTTED})\s*=")
_MULTILINE = ('"""', "'''")


def find_lines(text: str) -> Mapping[Path, int]:
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
        elif match := _TABLE.match(line):
            table = _resolve(_split(match[1]), arrays, whole=True)
        elif match := _ASSIGNMENT.match(line):
            key = (*table, *_split(match[1]))
            for end in range(len(table) + 1, len(key) + 1):
                lines.setdefault(key[:end], number)
            quotes = next((mark for mark in _MULTILINE if line.count(mark) % 2), None)
            continue
        for end in range(1, len(table) + 1):
            lines.setdefault(table[:end], number)
    return lines


def line_of(path: Path, lines: Mapping[Path, int]) -> int | None:
    """Return the line of a path, or of its nearest parent whose line is known."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


@lru_cache(maxsize=1024)
def _split(dotted: str) -> tuple[str, ...]:
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
    path: Path = ()
    for position, key in enumerate(keys):
        path = (*path, key)
        if (whole or position < len(keys) - 1) and path in arrays:
            path = (*path, arrays[path])
    return path
