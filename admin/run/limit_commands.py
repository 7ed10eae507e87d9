"""What clients ask of limits in the broker's own protocol: to see them, and to change a rate.

Which clients may is settled by the listener before a command comes here. A change is an edit as any other: written
down, recorded, and undone in the same ways; its author is ``remote``.
"""

import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

import structlog
import trio

from admin.config.settings import UNLIMITED
from admin.edits.interface import LiveLimits
from admin.edits.model import Author, EditError, LimitFields, NotFoundError, SetLimit, StaleError, StoreError
from limiter.rules.patterns import read_glob
from limiter.rules.resource import Resource
from proxy.common.cooperative import Pace
from proxy.common.log_rate import LogRate
from proxy.control import DataPath, LimitCommand, LimitCommandReply, ListedLimit

_log = structlog.get_logger(__name__)

NAME: Final = "remote"
"""The author of such changes."""

#: What the data path counts names under that it does not tell apart.
_OTHERS: Final = "_other"
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


async def answer(
    data_path: DataPath,
    live: LiveLimits,
    *,
    now_ns: Callable[[], int] = time.monotonic_ns,
    wall_ns: Callable[[], int] = time.time_ns,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer commands until cancelled: changes in the order in which they came, each view with all that came before it.

    One view is made at a time, and those that came before it began share it: however many ask, others who wait for
    their turn to do something long wait for one view.

    Args:
        data_path: where they come from.
        live: what they are about.
        now_ns: the monotonic clock of the data path.
        wall_ns: nanoseconds since 1970.
        task_status: reports that they are taken.
    """
    # Those who wait for the next view: the changes that came before them are made.
    viewers: list[LimitCommand] = []
    came = trio.Event()
    log_rate = LogRate()

    async def one(command: LimitCommand) -> LimitCommandReply:
        try:
            if command.verb == "view_limits":
                return await view(data_path, live, now := now_ns(), wall_ns() - now)
            return await update(live, command)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client gets an answer and the log the reason
            not_logged = log_rate.take(type(error).__name__, trio.current_time())
            if not_logged is not None:
                _log.exception(
                    "a remote command failed",
                    verb=command.verb,
                    peer=command.peer,
                    error=repr(error),
                    not_logged=not_logged,
                )
            return LimitCommandReply(error="internal error; Sluice's log has the reason")

    async def views() -> None:
        nonlocal viewers, came
        while True:
            await came.wait()
            who, viewers, came = viewers, [], trio.Event()
            reply, pace = await one(who[0]), Pace()
            for command in who:
                await data_path.reply(command.id, reply)
                await pace.keep()

    async with data_path.limit_commands() as commands, trio.open_nursery() as nursery:
        nursery.start_soon(views)
        task_status.started()
        async for command in commands:
            if command.verb == "view_limits":
                viewers.append(command)
                came.set()
            else:
                await data_path.reply(command.id, await one(command))
        nursery.cancel_scope.cancel()


async def view(data_path: DataPath, live: LiveLimits, now_ns: int, since_1970_ns: int) -> LimitCommandReply:
    """Return the limits of all that clients may ask for and that have one of their own or were asked for.

    Args:
        data_path: what knows who was asked for.
        live: the limits.
        now_ns: the monotonic clock.
        since_1970_ns: what makes a time of the wall clock of one of the monotonic clock.
    """
    # Rules with hours hold by the wall clock.
    rules = live.rule_set.at(datetime.fromtimestamp((now_ns + since_1970_ns) / _NS_PER_S, UTC))
    shown = frozenset(kind.name for kind in live.reader.kinds.values() if kind.in_commands)
    pace = Pace()
    found: dict[Resource, ListedLimit] = {}
    for entry in live.limits():
        name = read_glob(entry.name).exact_name if entry.kind in shown else None
        if name is not None:
            resource = Resource(entry.kind, name)
            found[resource] = ListedLimit(*resource, _rate(entry.limit), 0, 0)
        await pace.keep()
    async with aclosing(data_path.resources()) as states:
        async for state in states:
            if state.kind not in shown or state.name == _OTHERS:
                continue
            resource = Resource(state.kind, state.name)
            refused_ns = state.last_refused_ns
            refused_ms = 0 if refused_ns is None else (refused_ns + since_1970_ns) // _NS_PER_MS
            rate_per_s = rules.match(resource).rate_per_s
            found[resource] = ListedLimit(*resource, rate_per_s, state.last_wait_us, refused_ms)
            await pace.keep()
    return LimitCommandReply(version=rules.version, limits=tuple(found.values()))


async def update(live: LiveLimits, command: LimitCommand) -> LimitCommandReply:
    """Change the rate of one limit; what else the limit in force says stays."""
    author = Author(NAME, command.peer)
    try:
        limit = {**live.limit(command.kind, command.name).limit, "rate": command.rate_per_s, "exempt": False}
        edit = SetLimit(
            kind=command.kind,
            name=command.name,
            limit=limit,
            reason=f"in the broker's own protocol, through listener {command.listener}",
        )
        await live.change([edit], author)
    except (EditError, StaleError, NotFoundError, StoreError) as error:
        return LimitCommandReply(error=str(error), version=live.rule_set.version)
    return LimitCommandReply(version=live.rule_set.version)


def _rate(limit: LimitFields) -> float | None:
    rate = limit["rate"]
    return None if rate in {None, UNLIMITED} else float(rate)
