"""Prints tables, using rich on a terminal and plain text elsewhere.

Long tables are always plain text, because rich takes seconds to lay out thousands of rows. If a table is too wide for
the terminal, each row is printed as a list of its cells.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement

_GAP: Final = "   "
_MAX_LAID_OUT: Final = 500


class Rows:
    """A table of text. ``right`` contains the indexes of the right-aligned columns."""

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(map(printable, row)) for row in rows]
        self.right = frozenset(right)

    def used(self) -> "Rows":
        kept = [at for at in range(len(self.columns)) if any(row[at] for row in self.rows)]
        return Rows(
            [self.columns[at] for at in kept],
            ([row[at] for at in kept] for row in self.rows),
            (new for new, old in enumerate(kept) if old in self.right),
        )

    def lines(self) -> Iterator[str]:
        rows = [self.columns, *self.rows] if self.columns else self.rows
        if not rows:
            return
        widths = [max(map(_width, cells)) for cells in zip(*rows, strict=True)]
        for row in rows:
            yield _GAP.join(
                self._cell(at, cell, width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()

    def _cell(self, at: int, cell: str, width: int) -> str:
        blanks = " " * (width - _width(cell))
        return blanks + cell if at in self.right else cell + blanks

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        if console.is_terminal and len(self.rows) <= _MAX_LAID_OUT:
            from rich.table import Table  # noqa: PLC0415 - slow to import, and most output does not need it
            from rich.text import Text  # noqa: PLC0415 - as above

            if self.columns and self._width() > options.max_width:
                yield from self._blocks()
                return
            table = Table(
                box=None,
                pad_edge=False,
                padding=(0, len(_GAP), 0, 0),
                header_style="dim",
                show_header=bool(self.columns),
            )
            for at in range(len(self.rows[0]) if self.rows else len(self.columns)):
                heading = self.columns[at] if self.columns else ""
                table.add_column(heading, overflow="fold", justify="right" if at in self.right else "left")
            for row in self.rows:
                # rich would interpret brackets in a plain string as markup.
                table.add_row(*map(Text, row))
            yield table
            return
        from rich.segment import Segment  # noqa: PLC0415 - as above

        for line in self.lines():
            for part in _folded(line, options.max_width):
                yield Segment(part)
                yield Segment.line()

    def _width(self) -> int:
        rows = [self.columns, *self.rows]
        return sum(max(map(_width, cells)) + len(_GAP) for cells in zip(*rows, strict=True)) - len(_GAP)

    def _blocks(self) -> "Iterator[RenderableType]":
        from rich.padding import Padding  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        for row in self.rows:
            yield Text(row[0])
            rest = Text("; ").join(
                Text.assemble((f"{heading} ", "dim"), cell.removesuffix("."))
                for heading, cell in zip(self.columns[1:], row[1:], strict=True)
                if cell
            )
            yield Padding(rest, (0, 0, 0, len(_GAP)))

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement  # noqa: PLC0415 - as above

        return Measurement(1, options.max_width)


def _folded(line: str, width: int) -> Iterable[str]:
    if _width(line) <= width:
        return (line,)
    from rich.cells import chop_cells  # noqa: PLC0415 - as above

    return chop_cells(line, width)


def printable(text: str) -> str:
    """Escape unprintable characters, so that a name cannot control the terminal or break the line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    return cell_len(text)
