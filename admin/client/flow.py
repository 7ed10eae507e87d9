"""``sluice flow`` and ``sluice spool``."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from admin.client.api import Api, path
from admin.client.tables import listing
from admin.client.words import moment
from admin.common.columns import CONFIRMS, CONNECTIONS, SPOOLED, STAGES, Column
from admin.common.errors import SettingsError
from admin.common.tables import printable
from admin.wire import PurgedSpool


def flow(api: Api, most: int, *, json: bool) -> str:
    """Say what waits for what."""
    reply = api.get(path("flow"), {"limit": most})
    return reply.json() if json else "\n".join(_flow(reply.read(dict[str, Any])))


def _flow(now: dict[str, Any]) -> Iterator[str]:
    yield from now["sentences"]
    yield ""
    for alarm in now["alarms"]:
        since = f" (since {moment(alarm['since'])})" if alarm["since"] else ""
        yield f"{alarm['scarce'] + ' alarm':<13} {alarm['status']}{since}"
    yield from (f"{each['name']:<13} {each['text']}" for each in now["details"])
    stages = [
        {**stage, "id": each["id"], "listener": each["listener"]} if number == 0 else stage
        for each in now["connections"]
        for number, stage in enumerate((each["connection"], *each["others"]))
    ]
    owner = [column for column in CONNECTIONS if column.name in {"id", "listener"}]
    yield from _part([*owner, *STAGES], stages, now["more_connections"], "more connection")
    yield from _part(CONFIRMS, now["confirms"], now["more_confirms"], "more destination")


def _part(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]], more: int, what: str) -> Iterator[str]:
    """Yield a table behind a blank line, and how many rows are missing."""
    if rows:
        yield ""
        yield listing(columns, rows)
    if more:
        yield ""
        yield f"and {more} {what}{'s' * (more != 1)}; --limit N shows more"


def spool(api: Api, most: int, *, json: bool) -> str:
    """Say what is spooled."""
    reply = api.get(path("spool"), {"limit": most})
    return reply.json() if json else "\n".join(_spool(reply.read(dict[str, Any])))


def _spool(now: dict[str, Any]) -> Iterator[str]:
    yield from now["sentences"]
    holds = now["holds"]
    if holds is None:
        return
    yield ""
    yield from (f"{each['name']:<10} {each['text']}" for each in now["details"])
    yield from _part(SPOOLED, holds["resources"], holds["more_resources"], "more resource")


def purge(api: Api, resource: str, *, reason: str, yes: bool, json: bool) -> str:
    """Refuse and drop the spooled messages of a resource, ``KIND:NAME``.

    Raises:
        SettingsError: it is not of that form, or not confirmed.
    """
    kind, colon, name = resource.partition(":")
    if not (kind and colon and name):
        raise SettingsError(f"{resource}: must be KIND:NAME, as `sluice spool` lists it")
    if not yes:
        _ask(resource)
    reply = api.ask("DELETE", path("spool", kind, name), params={"reason": reason})
    if json:
        return reply.json()
    done = reply.read(PurgedSpool)
    if not done.refused and not done.dropped:
        return f"Nothing of {resource} was spooled; change {done.change}"
    return f"{resource}: {done.refused} refused, {done.dropped} dropped; change {done.change}"


def _ask(resource: str) -> None:
    """Ask for confirmation.

    Raises:
        SettingsError: there is no terminal, or the answer is no.
    """
    if not sys.stdin.isatty():
        raise SettingsError(f"purging {resource} cannot be undone: give --yes if it is meant")
    question = f"Refuse or drop all spooled messages of {printable(resource)}? This cannot be undone. [y/N] "
    print(question, end="", file=sys.stderr, flush=True)  # noqa: T201 - the command line speaks to people here
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise SettingsError("nothing was purged")
