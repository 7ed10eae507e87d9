"""``sluice limits list``, ``get``, ``set``, ``reset`` and ``unset``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from admin.client import NotFoundError
from admin.client.api import Api, Name, Reply, as_json, path
from admin.client.tables import listing
from admin.client.words import change_lines, is_rate, standing
from admin.common.columns import LIMITS, Column
from admin.common.errors import OperatorError, SettingsError
from admin.common.tables import Rows
from admin.edits.model import Change, LimitEntry
from admin.edits.wording import further, short
from admin.wire import Changes, Drift, FieldProblem, LimitPage
from limiter.rules.resource import TOTAL

_LINES: Final = 20
"""How many changes of a batch are printed."""

_NAMES: Final = 1000
"""How many names, the busiest first, are searched for a similar one."""
_NEAR: Final = 0.8
"""Ratio of ``difflib``: one letter missing, or two swapped, in a word of six."""

_T = TypeVar("_T")


def list_limits(api: Api, query: Mapping[str, Any], most: int | None, *, json: bool) -> str:
    """List resources and rules with their limits: ``most`` rows, or all."""
    return listed(api, "limits", {**query, "history": "0"}, most, columns=LIMITS, nothing="Nothing matches.", json=json)


def listed(
    api: Api,
    where: str,
    query: Mapping[str, Any],
    most: int | None,
    *,
    columns: Iterable[Column],
    nothing: str,
    json: bool,
    rows_of: Callable[[dict[str, Any]], list[dict[str, Any]]] = lambda row: [row],
) -> str:
    """Read a list page by page and lay it out.

    Args:
        api: of the sidecar.
        where: the list.
        query: of the request.
        most: rows at most; None is all.
        columns: see ``admin.common.columns``.
        nothing: printed if there are no rows.
        json: print the API's JSON.
        rows_of: returns the printed rows of one of the list.
    """
    replies = list(api.pages(path(where), query, most))
    if json:
        return joined(replies, "rows")
    pages = [reply.read(dict[str, Any]) for reply in replies]
    found = [row for page in pages for row in page["rows"]]
    rows = [each for row in found for each in rows_of(row)]
    text = listing(columns, rows) if rows else nothing
    if found and len(found) < pages[-1]["total"]:
        text += f"\n\n{len(found)} of {pages[-1]['total']}; --limit N or --all shows more"
    return text


def layout(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Write a table, see ``Rows``, without the columns that are empty in every row."""
    return "\n".join(Rows(columns, rows, right).used().lines())


def places(file: str, sent: Sequence[_T], place: Callable[[_T, str], str]) -> Name:
    """Return a function that names a fault of a batch by the place its edit comes from."""

    def name(fault: FieldProblem) -> str:
        if fault.edit is None or fault.edit >= len(sent):
            return file
        key = fault.field.rpartition(".")[2]
        return place(sent[fault.edit], "" if key.isdigit() else key)

    return name


def joined(replies: list[Reply], key: str) -> str:
    """Return the JSON of a list, with its pages joined."""
    bodies = [reply.read(dict[str, Any]) for reply in replies]
    if len(bodies) == 1:
        return replies[0].json()
    rows = [row for body in bodies for row in body[key]]
    return as_json({**bodies[0], key: rows, "limit": len(rows)}) if bodies else as_json({key: [], "total": 0})


def get(api: Api, place: Sequence[str], *, json: bool) -> str:
    """Show one limit."""
    reply = api.get(path(*place))
    return reply.json() if json else "\n".join(_entry(reply.read(LimitEntry), reply.etag))


def _entry(entry: LimitEntry, etag: str) -> Iterator[str]:
    yield f"{entry.kind} {entry.name}: {entry.limit_text}"
    yield f"   rule        {entry.rule or 'none'}" + (f" ({entry.source})" if entry.source else "")
    if rest := further(entry.limit):
        yield f"   further     {', '.join(f'{key} {value}' for key, value in rest.items())}"
    if entry.edit is not None:
        yield f"   edited      {standing(entry.edit)}"
    if entry.configured is not None:
        yield f"   configured  {short(entry.configured.limit)} ({entry.configured.source})"
    yield f"   etag        {entry.etag or etag}"


def unset_all(api: Api, *, reason: str, dry_run: bool, volatile: bool, if_match: str, json: bool) -> str:
    """Revert all limits to the configuration, at once.

    Raises:
        NotFoundError: none is edited.
    """
    entries, etag = edited(api)
    if not entries:
        raise NotFoundError("no limit is edited: all are as configured")
    edits = [{"type": "unset_limit", "kind": entry.kind, "name": entry.name} for entry in entries]
    # Edits since the list was read are not meant.
    reply = batch(api, edits, reason=reason, dry_run=dry_run, volatile=volatile, if_match=if_match or etag)
    if json:
        return reply.json()
    return "\n".join(_all_lines(reply.read(Changes).changes, dry_run=dry_run))


def _all_lines(changes: Sequence[Change], *, dry_run: bool) -> Iterator[str]:
    """Describe many changes, a line each, up to a screenful."""
    yield from (next(change_lines(each, dry_run=dry_run)) for each in changes[:_LINES])
    if (more := len(changes) - _LINES) > 0:
        yield f"and {more} more"
    count = f"{len(changes)} limit{'s' * (len(changes) != 1)}"
    if dry_run:
        yield f"would change {count}"
    else:
        first, last = changes[0].id, changes[-1].id
        yield f"changed {count}: change {first}" + (f" to {last}" if last != first else "") + f" by {changes[0].by}"


def edited(api: Api) -> tuple[list[LimitEntry], str]:
    """Return the limits with an active edit, and the ETag of all."""
    pages = [reply.read(Drift) for reply in api.pages(path("diff"), {}, None)]
    return [entry for page in pages for entry in page.limits], pages[0].etag if pages else ""


def batch(
    api: Api,
    edits: list[dict[str, Any]],
    *,
    reason: str = "",
    dry_run: bool = False,
    volatile: bool = False,
    if_match: str = "",
    **how: Any,
) -> Reply:
    """Apply all edits or none."""
    body = {"edits": edits, "reason": reason} if reason else {"edits": edits}
    params = {"dry_run": dry_run, "volatile": volatile}
    return api.ask("POST", path("limits:batch"), params=params, body=body, if_match=if_match, **how)


def unaddressed(api: Api, kind: str, name: str) -> str:
    """Name the missing word, with a complete command.

    Raises:
        SettingsError: always.
    """
    word = name if not is_rate(name) else kind.rpartition(":")[2]
    page = api.get(path("limits"), {"name": word, "history": "0"}).read(LimitPage)
    rate, kinds = name if is_rate(name) else "500", page.kinds
    if kind in {*kinds, TOTAL}:
        missing, command = ("NAME", f"{kind} NAME {rate}") if is_rate(name) else ("RATE", f"{kind} {name} {rate}")
    else:
        found = next((row.kind for row in page.rows if row.kind in kinds), next(iter(kinds), "KIND"))
        given = kind.partition(":")[0] if kind.partition(":")[0] in kinds else found
        missing, command = "KIND", f"{given} {word} {rate}"
    raise SettingsError(f"{missing} is missing, or a field to change; did you mean: sluice limits set {command}")


def misspelt(api: Api, written: Reply, kind: str, name: str) -> str:
    """Return a hint if a new limit's name has no traffic, and a similar name has."""
    change = written.read(Change)
    if (change.old is not None and not change.old_rule) or kind == TOTAL or any(special in name for special in "*?["):
        return ""
    query = {"kind": kind, "sort": "passed", "order": "desc", "history": "0"}
    try:
        rows = [row for reply in api.pages(path("limits"), query, _NAMES) for row in reply.read(LimitPage).rows]
    except OperatorError:
        return ""
    names = [row.name for row in rows if row.exact and row.live is not None]
    near = [] if name in names else get_close_matches(name, names, 1, _NEAR)
    return f"There is no traffic for {kind} {name} yet. Did you mean {near[0]}?" if near else ""


def answer(reply: Reply, *, dry_run: bool, json: bool) -> str:
    """Describe one change."""
    return reply.json() if json else "\n".join(change_lines(reply.read(Change), dry_run=dry_run))
