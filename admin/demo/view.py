"""How the demo looks: a live table on a terminal, a line a second elsewhere, a summary at the end."""

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
#: Close enough that ten minutes' figures fit into 80 columns.
_PADDING = (0, 1, 0, 0)
#: Wider than any table here.
_UNBOUNDED_COLUMNS = 1000


def heading(
    title: str, admin_url: str, rows: Sequence[tuple[str, str | Text]], notes: Sequence[str] = ()
) -> RenderableType:
    """Say what runs where.

    Args:
        title: of the demo.
        admin_url: of Sluice's page; empty without Sluice.
        rows: what is said, by a word of what it is about.
        notes: what differs from the usual.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    if admin_url:
        grid.add_row("page", Text.assemble("open ", (admin_url.rstrip("/"), "bold"), ": limits can be changed there"))
    for about, text in (*rows, *(("note", note) for note in notes)):
        grid.add_row(about, text)
    return Group(Text(title, style="bold"), grid, Text())


def live(ledger: Ledger, elapsed_s: float, seconds: float | None) -> RenderableType:
    """Show rates and totals of this moment; a narrow terminal gets the rates alone."""
    rows = []
    for load in ledger.loads:
        counts = ledger.counts[load.topic]
        sent, passed, refused = ledger.rates(load.topic)
        rows.append(
            (
                _topic(load),
                _per_second(sent),
                _per_second(passed),
                _refused(_per_second(refused)),
                _bar(passed, refused),
                f"{counts.sent:,}",
                f"{counts.passed:,}",
                _refused(f"{counts.refused:,}"),
            )
        )
    columns = ("sent/s", "passed/s", "refused/s", "", "sent", "passed", "refused")
    table = _FirstThatFits(
        *(_table(ledger.kind, columns[: count - 1], [row[:count] for row in rows]) for count in (8, 5, 4))
    )
    left = "Ctrl-C ends it" if seconds is None else f"{max(0.0, seconds - elapsed_s):.0f} s to go"
    window = f"/s: mean of the last {WINDOW_S:g} s"
    return Group(table, Text(f"{elapsed_s:.0f} s · {window} · ■ passed □ refused · {left}", style="dim"))


def line(ledger: Ledger, elapsed_s: float) -> str:
    """Return the rates of this moment on one line, for logs and pipes."""
    parts = []
    for load in ledger.loads:
        sent, passed, refused = ledger.rates(load.topic)
        parts.append(f"{load.topic} {'/'.join(number(rate, 0) for rate in (sent, passed, refused))}")
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
    """Show what clients saw beside what the broker stored, and the checks on them.

    ``other`` is what got a strange answer or none. A narrow terminal does not get what can be worked out.
    """
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
    table = _FirstThatFits(
        _table(ledger.kind, columns, rows), _table(ledger.kind, columns[1:-1], [(row[0], *row[2:-1]) for row in rows])
    )
    results = [
        Text.assemble(("✓ ", "bold green") if check.holds else ("✗ ", "bold red"), check.text) for check in checks
    ]
    bounded = EDITED not in checks and elapsed_s and limit_per_s < inf
    burst = [_burst(ledger.kind, limit_per_s, limit_per_s * burst_s, elapsed_s)] if bounded else []
    return Group(Text(f"\nafter {elapsed_s:.1f} s", style="bold"), table, *burst, *results)


def _burst(kind: str, limit_per_s: float, burst: float, elapsed_s: float) -> Text:
    """Say why more than the limit was stored each second: in a short run the burst is a good part of all."""
    limit, most = number(limit_per_s, grouped=True), number(limit_per_s + burst / elapsed_s, 1, grouped=True)
    once = number(burst, grouped=True)
    return Text(
        f"A {kind} may store {limit}/s and one burst of {once}: up to {most}/s over {elapsed_s:.1f} s", style="dim"
    )


class _FirstThatFits:
    """The first of several tables that the terminal has room for, or the last: a figure cut short is a wrong one."""

    def __init__(self, *tables: Table) -> None:
        self._tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(max_width=_UNBOUNDED_COLUMNS)
        fitting = (
            table for table in self._tables if Measurement.get(console, unbounded, table).maximum <= options.max_width
        )
        yield next(fitting, self._tables[-1])


def _table(kind: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Lay out rows that begin with a name; the column without a heading has the bars."""
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
    # A single refusal in a long row must show: only nothing is shown as nothing.
    refused_cells = min(_BAR_CELLS, max(1 if refused else 0, round(_BAR_CELLS * refused / answered)))
    return Text.assemble(("■" * (_BAR_CELLS - refused_cells), "green"), ("□" * refused_cells, "red"))
