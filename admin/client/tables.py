"""Lays out rows of the API by the table of columns, for every list that commands print."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from admin.client.words import moment
from admin.common.columns import Column
from admin.common.numbers import per_second, percent, short_span
from admin.common.tables import Rows
from admin.wire.sentences import state_word
from proxy.flow.alarms import size_text

RIGHT: Final = frozenset({"rate", "count", "share", "bytes", "seconds", "milliseconds"})
"""Formats of figures."""
_USUAL: Final = frozenset({"reject", "off", "running"})
"""Actions and states that are not shown."""


def table(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Lay out rows; columns that are empty in every row are left out."""
    shown = [column for column in columns if column.cli]
    cells = ([cell(column, row, shown) for column in shown] for row in rows)
    right = (at for at, column in enumerate(shown) if column.format in RIGHT)
    return Rows([column.title.lower() for column in shown], cells, right).used()


def listing(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines of ``table``."""
    return "\n".join(table(columns, rows).lines())


def cell(column: Column, row: Mapping[str, Any], columns: Iterable[Column] = ()) -> str:
    """Write one value of a row; empty if it has none.

    Args:
        column: which.
        row: as the API has it.
        columns: all of the table: the kind of a name is written with it unless it has a column of its own.
    """
    value: Any = row
    for key in column.field.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    match column.format:
        case "name":
            kind = "" if any(each.name == "kind" for each in columns) else row.get("kind", "")
            return f"{kind} {value or ''}".strip()
        case "client":
            return _client(row)
        case "links":
            return _links(row)
        case "list":
            more = row.get(f"more_{column.name}")
            return ", ".join(value or ()) + (f" and {more} more" if more else "")
    if isinstance(value, Mapping):
        value = sum(value.values())
    if value is None or value in _USUAL or (not value and column.optional):
        return ""
    match column.format:
        case "state":
            return state_word(value)
        case "flag":
            return "yes" if value else ""
        case "rate":
            return per_second(value)
        case "share":
            return percent(value)
        case "bytes":
            return size_text(value)
        case "seconds":
            return short_span(value) if value else ""
        case "milliseconds":
            return (f"{value} ms" if value < 1000 else short_span(value / 1000)) if value else ""
        case "age" | "time":
            return moment(value)
    return str(value)


def _client(row: Mapping[str, Any]) -> str:
    client = row["client"]
    user, certificate = client.get("user"), row.get("certificate")
    software = client.get("product") or client.get("language"), client.get("version")
    marks = ", ".join(filter(None, ("exempt" if row.get("exempt") else "", row.get("tls"))))
    parts = (
        client.get("id"),
        user and f"({user})",
        certificate and f"(certificate {certificate})",
        *software,
        marks and f"[{marks}]",
    )
    return " ".join(filter(None, parts))


def _links(row: Mapping[str, Any]) -> str:
    links = row.get("links") or ()
    waiting = sum(link["waits_ms"] > 0 for link in links)
    attached = len(links) + row.get("more_links", 0)
    return f"{attached}, {waiting} waiting" if waiting else str(attached or "")
