"""Lets clients view and change limits through the broker's protocol, if the listener allows it."""

import time
from collections.abc import Callable, Container, Iterable
from datetime import UTC, datetime
from typing import Final

import structlog
import trio

from admin.config.limit_fields import UNLIMITED
from admin.edits.model import Author, EditError, LimitEntry, LimitFields, PatchLimit
from admin.edits.service import EditService
from limiter.rules.patterns import read_glob
from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet
from proxy.common.log_rate import LogRate
from proxy.common.threads import on_thread
from proxy.control import DataPath, LimitCommand, LimitCommandReply, ListedLimit

_log = structlog.get_logger(__name__)

NAME: Final = "remote"
"""The author's name in changes that clients make."""

#: The data path counts names beyond its bound under this name.
_OTHERS: Final = "_other"
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


async def answer(
    data_path: DataPath,
    edits: EditService,
    *,
    now_ns: Callable[[], int] = time.monotonic_ns,
    wall_ns: Callable[[], int] = time.time_ns,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    log_rate = LogRate()
    async with data_path.limit_commands() as commands:
        task_status.started()
        async for command in commands:
            try:
                if command.verb == "view_limits":
                    reply = await view(data_path, edits, now := now_ns(), wall_ns() - now)
                else:
                    reply = await update(edits, command)
            except Exception as error:  # noqa: BLE001 - the client gets a response, the log the reason
                reply = LimitCommandReply(error="internal error; see Sluice's log")
                not_logged = log_rate.take(type(error).__name__, trio.current_time())
                if not_logged is not None:
                    _log.exception(
                        "remote limit command failed",
                        verb=command.verb,
                        peer=command.peer,
                        error=repr(error),
                        not_logged=not_logged,
                    )
            await data_path.reply(command.id, reply)


async def view(data_path: DataPath, edits: EditService, now_ns: int, since_1970_ns: int) -> LimitCommandReply:
    """Return the limits of every resource that has requests or a limit of its own.

    Only kinds that the command supports are included. ``now_ns`` is monotonic. Adding ``since_1970_ns`` converts it to
    nanoseconds since 1970.
    """
    rules = edits.rule_set.at(datetime.fromtimestamp((now_ns + since_1970_ns) / _NS_PER_S, UTC))
    shown = frozenset(kind.name for kind in edits.reader.kinds.values() if kind.in_commands)
    return await on_thread(_view, data_path, rules, edits.limits(), shown, since_1970_ns)


def _view(
    data_path: DataPath, rules: RuleSet, entries: Iterable[LimitEntry], shown: Container[str], since_1970_ns: int
) -> LimitCommandReply:
    found: dict[Resource, ListedLimit] = {}
    for entry in entries:
        name = read_glob(entry.name).exact_name if entry.kind in shown else None
        if name is not None:
            resource = Resource(entry.kind, name)
            found[resource] = ListedLimit(*resource, _rate(entry.limit), 0, 0)
    for state in data_path.resources():
        if state.kind not in shown or state.name == _OTHERS:
            continue
        resource = Resource(state.kind, state.name)
        refused_ns = state.last_refused_ns
        refused_ms = 0 if refused_ns is None else (refused_ns + since_1970_ns) // _NS_PER_MS
        rate_per_s = rules.match(resource).rate_per_s
        found[resource] = ListedLimit(*resource, rate_per_s, state.last_wait_us, refused_ms)
    return LimitCommandReply(version=rules.version, limits=tuple(found.values()))


async def update(edits: EditService, command: LimitCommand) -> LimitCommandReply:
    edit = PatchLimit(
        kind=command.kind,
        name=command.name,
        limit={"rate": command.rate_per_s},
        reason=f"through the broker's protocol, listener {command.listener}",
        ttl_s=None,
    )
    try:
        await edits.change([edit], Author(NAME, command.peer))
    except EditError as error:
        return LimitCommandReply(error=str(error), version=edits.rule_set.version)
    return LimitCommandReply(version=edits.rule_set.version)


def _rate(limit: LimitFields) -> float | None:
    rate = limit["rate"]
    return None if rate in {None, UNLIMITED} else float(rate)
