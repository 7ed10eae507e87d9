"""Formats the demo's output: a live table on a terminal, or a line per second elsewhere, and a final summary."""

from collections.abc import Mapping, Sequence
from math import inf

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from admin.common.numbers import number
from admin.demo.ledger import EDITED, WINDOW_S, Check, Ledger, TopicLoad

_BAR_CELLS = 6
#: With this padding, the figures of ten minutes fit into 80 columns.
_PADDING = (0, 1, 0, 0)
_UNBOUNDED_COLUMNS = 1000


def heading(
    title: str, admin_url: str, rows: Sequence[tuple[str, str | Text]], notes: Sequence[str] = ()
) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    if admin_url:
        grid.add_row("page", Text.assemble("open ", (admin_url.rstrip("/"), "bold"), " to change limits"))
    for about, text in (*rows, *(("note", note) for note in notes)):
        grid.add_row(about, text)
    return Group(Text(title, style="bold"), grid, Text())


def live(ledger: Ledger, elapsed_s: float, seconds: float | None) -> RenderableType:
    rows = []
    for load in ledger.loads:
        counts = ledger.counts[load.topic]
        sent, passed, refused = ledger.rates(load.topic)
        rates = (_per_second(sent), _per_second(passed), _refused(_per_second(refused)), _bar(passed, refused))
        rows.append((_topic(load), *rates, f"{counts.sent:,}", f"{counts.passed:,}", _refused(f"{counts.refused:,}")))
    columns = ("sent/s", "passed/s", "refused/s", "", "sent", "passed", "refused")
    tables = (_table(ledger.kind, columns[: count - 1], [row[:count] for row in rows]) for count in (8, 5, 4))
    left = "Ctrl-C to stop" if seconds is None else f"{max(0.0, seconds - elapsed_s):.0f} s left"
    window = f"/s: mean of the last {WINDOW_S:g} s"
    below = Text(f"{elapsed_s:.0f} s · {window} · ■ passed □ refused · {left}", style="dim")
    return Group(_FirstThatFits(*tables), below)


def line(ledger: Ledger, elapsed_s: float) -> str:
    rates = ((load.topic, ledger.rates(load.topic)) for load in ledger.loads)
    parts = [f"{topic} {'/'.join(number(rate, 0) for rate in each)}" for topic, each in rates]
    return f"{elapsed_s:4.0f} s  sent/passed/refused per second: " + "  ".join(parts)


def summary(
    ledger: Ledger,
    stored: Mapping[str, int],
    limit_per_s: float,
    elapsed_s: float,
    checks: Sequence[Check],
    *,
    burst_s: float = 1.0,
) -> RenderableType:
    """Return the final summary. The column ``other`` counts requests that got another response or no response."""
    rows = []
    for load in ledger.loads:
        counts = ledger.counts[load.topic]
        kept = stored.get(load.topic, 0)
        rows.append(
            (
                _topic(load),
                number(limit_per_s, grouped=True),
                f"{counts.sent:,}",
                f"{counts.passed:,}",
                _refused(f"{counts.refused:,}"),
                f"{counts.failed + counts.unanswered:,}",
                f"{kept:,}",
                number(kept / elapsed_s, 1, grouped=True) if elapsed_s else "",
            )
        )
    columns = ("limit/s", "sent", "passed", "refused", "other", "stored", "stored/s")
    narrow = _table(ledger.kind, columns[1:-1], [(row[0], *row[2:-1]) for row in rows])
    parts: list[RenderableType] = [
        Text(f"\nafter {elapsed_s:.1f} s", style="bold"),
        _FirstThatFits(_table(ledger.kind, columns, rows), narrow),
    ]
    if EDITED not in checks and elapsed_s and limit_per_s < inf:
        burst = limit_per_s * burst_s
        most = number(limit_per_s + burst / elapsed_s, 1, grouped=True)
        may = f"{number(limit_per_s, grouped=True)}/s and one burst of {number(burst, grouped=True)}"
        parts.append(Text(f"A {ledger.kind} may store {may}: up to {most}/s over {elapsed_s:.1f} s", style="dim"))
    marks = (
        ("- ", "dim") if check == EDITED else ("✓ ", "bold green") if check.holds else ("✗ ", "bold red")
        for check in checks
    )
    parts += [Text.assemble(mark, check.text) for mark, check in zip(marks, checks, strict=True)]
    return Group(*parts)


class _FirstThatFits:
    def __init__(self, *tables: Table) -> None:
        self._tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=_UNBOUNDED_COLUMNS)
        fitting = (
            table for table in self._tables if Measurement.get(console, unbounded, table).maximum <= options.max_width
        )
        yield next(fitting, self._tables[-1])


def _table(kind: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=_PADDING)
    table.add_column(kind, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _per_second(rate: float) -> str:
    return number(rate, 0, grouped=True)


def _topic(load: TopicLoad) -> Text:
    return Text(load.topic, style="bold red" if load.runaway else "")


def _refused(figure: str) -> Text:
    return Text(figure, style="dim" if figure == "0" else "red")


def _bar(passed: float, refused: float) -> Text:
    answered = passed + refused
    if not answered:
        return Text()
    refused_cells = min(_BAR_CELLS, max(1 if refused else 0, round(_BAR_CELLS * refused / answered)))
    return Text.assemble(("■" * (_BAR_CELLS - refused_cells), "green"), ("□" * refused_cells, "red"))
