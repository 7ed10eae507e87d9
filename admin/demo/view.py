"""How the demo looks: a live table on a terminal, a line a second elsewhere, a summary at the end."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from admin.demo.ledger import Check, Ledger, TopicLoad

_BAR_CELLS = 6
#: Close enough that ten minutes' figures fit into 80 columns.
_PADDING = (0, 1, 0, 0)


def heading(listen: str, broker: str, name_server: str, admin_url: str, limit_per_s: float) -> RenderableType:
    """Say what runs where."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row("way", Text.assemble("clients → ", (f"sluice {listen}", "bold"), f" → embedded broker {broker}"))
    grid.add_row("limit", f"{limit_per_s:g} messages/s for each topic; what is over it gets a busy answer")
    grid.add_row("join in", f"any RocketMQ client, on a topic of its own; name server {name_server}")
    grid.add_row("admin", f"{admin_url}metrics, {admin_url}readyz")
    return Group(Text("sluice demo", style="bold"), grid, Text())


def live(ledger: Ledger, elapsed_s: float, seconds: float | None) -> RenderableType:
    """Show rates and totals of this moment."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=_PADDING)
    table.add_column("topic", no_wrap=True)
    for column in ("sent/s", "passed/s", "refused/s"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for column in ("sent", "passed", "refused"):
        table.add_column(column, justify="right", no_wrap=True)
    for load in ledger.loads:
        counts = ledger.counts[load.topic]
        sent, passed, refused = ledger.rates(load.topic)
        table.add_row(
            _topic(load),
            f"{sent:,.0f}",
            f"{passed:,.0f}",
            _refused(f"{refused:,.0f}"),
            _bar(passed, refused),
            f"{counts.sent:,}",
            f"{counts.passed:,}",
            _refused(f"{counts.refused:,}"),
        )
    left = "Ctrl-C ends it" if seconds is None else f"{max(0.0, seconds - elapsed_s):.0f} s to go"
    return Group(table, Text(f"{elapsed_s:.0f} s · ■ passed □ refused · {left}", style="dim"))


def line(ledger: Ledger, elapsed_s: float) -> str:
    """Return one second's rates on one line, for logs and pipes."""
    parts = []
    for load in ledger.loads:
        sent, passed, refused = ledger.rates(load.topic)
        parts.append(f"{load.topic} {sent:.0f}/{passed:.0f}/{refused:.0f}")
    return f"{elapsed_s:4.0f} s  sent/passed/refused per second: " + "  ".join(parts)


def summary(
    ledger: Ledger, stored: Mapping[str, int], limit_per_s: float, elapsed_s: float, checks: Sequence[Check]
) -> RenderableType:
    """Show what clients saw beside what the broker stored, and the checks on them.

    ``other`` is what got a strange answer or none.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=_PADDING)
    table.add_column("topic", no_wrap=True)
    for column in ("limit/s", "sent", "passed", "refused", "other", "stored", "stored/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for load in ledger.loads:
        counts = ledger.counts[load.topic]
        kept = stored.get(load.topic, 0)
        table.add_row(
            _topic(load),
            f"{limit_per_s:g}",
            f"{counts.sent:,}",
            f"{counts.passed:,}",
            _refused(f"{counts.refused:,}"),
            f"{counts.failed + counts.unanswered:,}",
            f"{kept:,}",
            f"{kept / elapsed_s:,.1f}" if elapsed_s else "",
        )
    results = [
        Text.assemble(("✓ ", "bold green") if check.holds else ("✗ ", "bold red"), check.text) for check in checks
    ]
    return Group(Text(f"\nafter {elapsed_s:.1f} s", style="bold"), table, *results)


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
