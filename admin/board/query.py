"""What is asked of the table: which lines, in which order, and which of them."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from admin import wire
from admin.board.line import Line


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines are asked for.

    Attributes:
        kind: only this one; empty is all.
        search: part of the name, in any case; empty is all.
        filter: only those limited now, shadowed now, with an edit, or near their limit.
        sort: the column.
        order: of the column.
        offset: of the first row.
        limit: rows at most.
        history: with the last minutes.
    """

    kind: str = ""
    search: str = ""
    filter: wire.Filter | None = None
    sort: wire.LimitColumn = "name"
    order: wire.Order = "asc"
    offset: int = 0
    limit: int = wire.DEFAULT_PAGE
    history: bool = True

    @property
    def view(self) -> "View":
        """What decides which lines there are and in which order."""
        return View(self.kind, self.search.casefold(), self.filter, self.sort, self.order)


class View(NamedTuple):
    """What decides which lines there are and in which order."""

    kind: str
    search: str
    filter: wire.Filter | None
    sort: wire.LimitColumn
    order: wire.Order


def in_alphabet(line: Line) -> tuple[str, str, str]:
    """Return what the order of names goes by."""
    return line.lower, line.kind, line.name


def wanted(view: View, now_ns: int) -> Callable[[Line], bool]:
    """Return what tells whether a line is among those asked for."""
    passes: dict[wire.Filter | None, Callable[[Line], bool]] = {
        None: lambda _: True,
        "limited": lambda line: line.is_limited(now_ns),
        "edited": lambda line: line.is_edited,
        "overridden": lambda line: line.is_edited,
        "near": lambda line: line.is_near,
        "shadowed": lambda line: line.is_shadowed(now_ns),
    }
    kind, search, passes_filter = view.kind, view.search, passes[view.filter]
    return lambda line: (not kind or line.kind == kind) and search in line.lower and passes_filter(line)
