"""The page of the command line: the ``--help`` of every command."""

import io
from collections.abc import Iterator
from typing import Final

from cyclopts import App
from rich.console import Console

from admin.cli import app
from reference import markdown

_COLUMNS: Final = 100
_INTRODUCTION: Final = """\
The `--help` output of each command. `sluice completion` prints a completion script for your shell."""


def commands(of: App = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, including groups."""
    yield path
    for name in of:
        if not name.startswith("-"):
            yield from commands(of[name], (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    text = io.StringIO()
    app.help_print(list(path), console=Console(file=text, width=_COLUMNS, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")


def page() -> str:
    parts = (f"## {' '.join(('sluice', *path))}\n\n```text\n{help_of(path)}\n```" for path in commands())
    return markdown.page("Commands", "the command line", _INTRODUCTION, *parts)
