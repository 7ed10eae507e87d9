"""``sluice flow`` and ``sluice spool``: what waits for what, and what is put aside."""

import sys
from collections.abc import Iterator, Mapping
from typing import Final, get_args

from admin.client.api import Api, path
from admin.client.limits import layout
from admin.client.words import moment
from admin.common.errors import SettingsError
from admin.common.numbers import per_second, short_span
from admin.common.tables import printable
from admin.wire import Flow, PurgedSpool, Spool
from admin.wire.sentences import state_word
from proxy.flow.alarms import size_text
from proxy.stats.flow import SpooledResource, SpoolPlace, StageState
from proxy.stats.snapshot import ConfirmState

PLACES: Final[tuple[SpoolPlace, ...]] = get_args(SpoolPlace)
_WAYS: Final = ("by consumers", "by broker", "persisted", "nacked")
"""What has confirmed messages, or refused them."""
_WHERE: Final[Mapping[SpoolPlace, str]] = {
    "alpha": "all in memory",
    "beta": "content on disk, index in memory",
    "gamma": "content on disk, index in both",
    "delta": "all on disk",
}


def state(stage: StageState) -> str:
    """Write how a stage shows; nothing for one that is running."""
    return "" if stage.state == "running" else state_word(stage.state)


def flow(api: Api, most: int, *, json: bool) -> str:
    """Say what waits for what."""
    reply = api.get(path("flow"), {"limit": most})
    return reply.json() if json else "\n".join(_flow(reply.read(Flow)))


def _flow(now: Flow) -> Iterator[str]:
    yield from now.sentences
    yield ""
    for alarm in now.alarms:
        since = f" (since {moment(alarm.since)})" if alarm.since else ""
        yield f"{alarm.scarce + ' alarm':<13} {alarm.status}{since}"
    yield from (f"{each.name:<13} {each.text}" for each in now.details)
    rows = [
        (str(each.id) if number == 0 else "", each.listener if number == 0 else "", *_stage(stage))
        for each in now.connections
        for number, stage in enumerate((each.connection, *each.others))
    ]
    if rows:
        yield ""
        yield layout(("id", "listener", "stage", "state", "how often, how long", "waits for"), rows, right=(0,))
    if now.more_connections:
        yield ""
        yield f"and {now.more_connections} more connections; --limit N shows more"
    if now.confirms:
        yield ""
        titles = ("after consume", "confirmed by", "waiting", "oldest", "window", *_WAYS)
        yield layout(titles, map(_confirmed, now.confirms), right=range(2, 9))
    if now.more_confirms:
        yield ""
        yield f"and {_count(now.more_confirms, 'more destination')}; --limit N shows more"


def _confirmed(each: ConfirmState) -> tuple[str, ...]:
    return (
        f"{each.kind} {each.name}",
        each.by,
        str(each.pending),
        _oldest(each) if each.pending else "",
        str(each.window),
        *map(str, (each.after_consume_total, each.broker_total, each.persisted_total, each.nacked_total)),
    )


def _oldest(each: ConfirmState) -> str:
    return f"{each.oldest_ms} ms" if each.oldest_ms < 1000 else short_span(each.oldest_ms / 1000)


def _stage(stage: StageState) -> tuple[str, ...]:
    return f"{stage.kind} {stage.name}".rstrip(), state_word(stage.state), stage.text, ", ".join(stage.waits_for)


def spool(api: Api, most: int, *, json: bool) -> str:
    """Say what is put aside."""
    reply = api.get(path("spool"), {"limit": most})
    return reply.json() if json else "\n".join(_spool(reply.read(Spool)))


def _spool(now: Spool) -> Iterator[str]:
    yield from now.sentences
    holds = now.holds
    if holds is None:
        return
    yield ""
    yield layout(
        ("place", "messages", "content", "where"),
        (
            (place, str(holds.messages.get(place, 0)), size_text(holds.content_bytes.get(place, 0)), _WHERE[place])
            for place in PLACES
        ),
        right=(1, 2),
    )
    yield ""
    yield from (f"{each.name:<10} {each.text}" for each in now.details)
    if holds.resources:
        yield ""
        yield layout(
            (
                *("kind", "name", "queues", "messages", *PLACES, "content", "in memory", "in/s", "out/s"),
                "recovered",
            ),
            map(_resource, holds.resources),
            right=range(2, 13),
        )
    if holds.more_resources:
        yield ""
        yield f"and {_count(holds.more_resources, 'more resource')}; --limit N shows more"


def _resource(each: SpooledResource) -> tuple[str, ...]:
    return (
        each.kind,
        each.name,
        str(each.queues),
        str(sum(each.messages.values())),
        *(str(each.messages.get(place, 0) or "") for place in PLACES),
        size_text(sum(each.content_bytes.values())),
        size_text(each.memory_bytes),
        per_second(each.in_per_s),
        per_second(each.out_per_s),
        str(each.recovered or ""),
    )


def purge(api: Api, resource: str, *, reason: str, yes: bool, json: bool) -> str:
    """Refuse and drop what is put aside of a resource, ``KIND:NAME``.

    Raises:
        SettingsError: it is none, or nobody said that it is to be.
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
        return f"Nothing of {resource} was put aside; change {done.change}"
    return f"{resource}: {done.refused} refused, {done.dropped} dropped; change {done.change}"


def _ask(resource: str) -> None:
    """Ask whether it is meant.

    Raises:
        SettingsError: nobody can be asked, or the answer is no.
    """
    if not sys.stdin.isatty():
        raise SettingsError(f"purging {resource} cannot be undone: give --yes if it is meant")
    question = f"Refuse or drop all that is put aside of {printable(resource)}? This cannot be undone. [y/N] "
    print(question, end="", file=sys.stderr, flush=True)  # noqa: T201 - the command line speaks to people here
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise SettingsError("nothing was purged")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
