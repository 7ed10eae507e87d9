"""``sluice flow`` and ``sluice spool``: what waits for what, and what is put aside."""

import sys
from collections.abc import Iterator, Mapping
from typing import Final, get_args

from admin.client.api import Api, path
from admin.client.limits import layout
from admin.client.words import moment, short_span
from admin.common.confirms import REASONS
from admin.common.errors import SettingsError
from admin.common.numbers import per_second
from admin.common.tables import printable
from admin.wire import Alarm, Flow, PurgedSpool, Spool
from proxy.flow.alarms import size_text
from proxy.flow.credit import Kind, State
from proxy.stats.flow import SpooledResource, SpoolPlace, SpoolState, StageState
from proxy.stats.snapshot import ConfirmState

PLACES: Final[tuple[SpoolPlace, ...]] = get_args(SpoolPlace)
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_STATES: Final[tuple[State, ...]] = ("blocked", "flow", "throttled", "running")
_WORDS: Final[Mapping[State, str]] = {
    "running": "running",
    "flow": "in flow",
    "throttled": "throttled",
    "blocked": "blocked",
}
"""How a state is said."""
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
    return "" if stage.state == "running" else _WORDS[stage.state]


def flow(api: Api, most: int, *, json: bool) -> str:
    """Say what waits for what."""
    reply = api.get(path("flow"), {"limit": most})
    return reply.json() if json else "\n".join(_flow(reply.read(Flow)))


def _flow(now: Flow) -> Iterator[str]:
    if not now.findings:
        yield "No bottleneck: connections waited only for moments." if now.connections else "Nobody waits."
    yield from (finding.text for finding in now.findings)
    yield ""
    for alarm in now.alarms:
        yield f"{alarm.scarce + ' alarm':<13} {_alarm(alarm)}"
    if now.store is not None:
        yield f"{'spool disk':<13} {_shown(now.store)}"
    for kind in (kind for kind in _KINDS if kind != "store"):
        counts = {each.state: each.stages for each in now.counts if each.kind == kind and each.stages}
        if counts:
            said = ", ".join(f"{counts[word]} {_WORDS[word]}" for word in _STATES if word in counts)
            yield f"{_stages(kind):<13} {said}"
    yield f"{'busy':<13} {now.busy_ratio:.0%} of the last second"
    rows = [
        (str(each.id) if number == 0 else "", each.listener if number == 0 else "", *_stage(stage))
        for each in now.connections
        for number, stage in enumerate((each.connection, *each.others))
    ]
    if rows:
        yield ""
        columns = ("id", "listener", "stage", "state", "in flow", "throttled", "blocked", "waits for")
        yield layout(columns, rows, right=(0,))
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
        "consumers" if each.mode == "after_consume" else f"broker: {REASONS.get(each.reason, each.reason)}",
        str(each.pending),
        _oldest(each) if each.pending else "",
        str(each.window),
        *map(str, (each.after_consume_total, each.broker_total, each.persisted_total, each.nacked_total)),
    )


def _oldest(each: ConfirmState) -> str:
    return f"{each.oldest_ms} ms" if each.oldest_ms < 1000 else short_span(each.oldest_ms / 1000)


def _stages(kind: Kind) -> str:
    return {"channel": "channels", "resource": "resources", "writer": "to brokers"}.get(kind, "connections")


def _alarm(alarm: Alarm) -> str:
    since = f" (since {moment(alarm.since)})" if alarm.since else ""
    before = f"; it has stood {_times(alarm.total, alarm.stood_s)}" if alarm.total else ""
    if alarm.stands:
        return f"STANDS{since}: {alarm.text}"
    if alarm.bytes_now is None or alarm.bytes_limit is None:
        return f"none; what there is is not known{before}"
    what = "used, alarm above" if alarm.scarce == "memory" else "free, alarm below"
    return f"none: {size_text(alarm.bytes_now)} {what} {size_text(alarm.bytes_limit)}{before}"


def _shown(stage: StageState) -> str:
    times = [
        f"{word} {_times(total, seconds)}"
        for word, total, seconds in (
            ("in flow", stage.flow_total, stage.flow_s),
            ("throttled", stage.throttled_total, stage.throttled_s),
            ("blocked", stage.blocked_total, stage.blocked_s),
        )
        if total
    ]
    return "; ".join([_WORDS[stage.state], *times])


def _stage(stage: StageState) -> tuple[str, ...]:
    return (
        f"{stage.kind} {stage.name}".rstrip(),
        _WORDS[stage.state],
        _times(stage.flow_total, stage.flow_s),
        _times(stage.throttled_total, stage.throttled_s),
        _times(stage.blocked_total, stage.blocked_s),
        ", ".join(stage.waits_for),
    )


def _times(total: int, seconds: float) -> str:
    """Write how often and for how long; nothing for never."""
    if not total:
        return ""
    return f"{total} time{'s' * (total != 1)}, {short_span(seconds)}"


def spool(api: Api, most: int, *, json: bool) -> str:
    """Say what is put aside."""
    reply = api.get(path("spool"), {"limit": most})
    return reply.json() if json else "\n".join(_spool(reply.read(Spool)))


def _spool(now: Spool) -> Iterator[str]:
    holds, folder = now.holds, now.folder
    if holds is None:
        yield f"There is no spool{f': {folder.error}' if folder.error else ''}; what waits is held in memory."
        return
    messages = sum(holds.messages.values())
    size = size_text(sum(holds.content_bytes.values()))
    yield f"{_count(messages, 'message')} of {size} in {_count(holds.queues, 'queue')}, in {folder.directory}"
    if holds.alarm:
        yield f"The disk takes no more: {holds.alarm}. What comes is held in memory until it does."
    if holds.stopped:
        yield "Memory is full: clients whose messages would be put aside are not read until some is free."
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
    yield from _figures(holds)
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


def _figures(holds: SpoolState) -> Iterator[str]:
    yield f"memory     {size_text(holds.memory_bytes)} of {size_text(holds.memory_limit_bytes)}"
    writing = f", {size_text(holds.writing_bytes)} being written" if holds.writing_bytes else ""
    yield f"disk       {size_text(holds.disk_bytes)} of {size_text(holds.disk_limit_bytes)}{writing}"
    moved = f"{holds.in_total} in, {holds.out_total} out"
    yield f"so far     {moved}, {holds.written_total} written, {holds.read_total} read"
    what = (
        (holds.lost_total, "lost on disk"),
        (holds.expired_total, "expired"),
        (holds.too_old_total, "too old"),
        (holds.stops_total, "times stopped as memory was full"),
    )
    if said := ", ".join(f"{count} {word}" for count, word in what if count):
        yield f"           {said}"


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
