"""What an operator sees of a data path that runs: resources, limiters, connections, one after the other.

There may be many thousands, so all of it is gathered in short stretches, and safe while it changes in between:
each item is of one moment, and not all of the same. Nothing here changes anything.
"""

import math
from collections.abc import AsyncGenerator, Callable
from collections.abc import Set as AbstractSet
from heapq import heappush, heapreplace
from operator import itemgetter
from typing import Final

from limiter.buckets.limiter import LimiterState
from limiter.counting.accounts import NEVER, Accounts, RuleSums
from limiter.counting.rejections import DID, OTHER, OUTCOMES
from limiter.counting.row import Amounts
from limiter.deciding.limits import Limits
from limiter.rules.resource import TOTAL, Resource
from limiter.rules.rule import Dimension
from proxy.common.cooperative import Pace
from proxy.datapath.pressure import Aside, Pressure, stage_state, stages_beside
from proxy.deciding.batch import Side
from proxy.net.connection import Connection
from proxy.net.server import Server
from proxy.stats.snapshot import (
    ENDINGS,
    MAX_RESOURCES_SHOWN,
    ConnectionState,
    Direction,
    Limit,
    Origin,
    ResourceCounts,
    ResourceState,
    RuleCounts,
    Usage,
)

_ORIGINS: Final[dict[str, Origin]] = {"live": "edit", "built-in": "built-in", "default": "built-in"}
"""By what the source of a rule begins with."""
_ENDINGS: Final = tuple((ending.verdict, OUTCOMES.index(ending.outcome)) for ending in ENDINGS)


def direction(side: Side) -> Direction:
    """Return the word for the peer that something comes from."""
    return "client" if side is Side.CLIENT else "broker"


class Overview:
    """Looks over a data path.

    Args:
        limits: its limits.
        accounts: its counts.
        server: its connections.
        pressure: its stages and its spool.
        now_ns: its clock.
    """

    def __init__(
        self, limits: Limits, accounts: Accounts, server: Server, pressure: Pressure, now_ns: Callable[[], int]
    ) -> None:
        self._limits = limits
        self._accounts = accounts
        self._server = server
        self._pressure = pressure
        self._now_ns = now_ns

    async def counts(self) -> dict[tuple[str, str], ResourceCounts]:
        """Return what became of the requests of each resource, by (kind, name)."""
        pace, counted = Pace(rests=True), {}
        for found in self._accounts.each():
            if found is not None:
                resource, amounts = found
                counted[resource.kind, resource.name] = _counts(amounts)
            await pace.keep()
        return counted

    async def rules(self) -> dict[str, RuleCounts]:
        """Return what each rule did, by its name."""
        pace, counted = Pace(rests=True), {}
        for name, sums in list(self._accounts.rules.items()):
            counted[name] = _rule_counts(sums)
            await pace.keep()
        return counted

    async def totals(self) -> ResourceCounts:
        """Return the sum over all resources."""
        pace, totals = Pace(rests=True), _counts(((0, 0, 0),) * len(OUTCOMES))
        for found in self._accounts.each():
            if found is not None:
                for verdict, number in _ENDINGS:
                    requests, messages, _ = found[1][number]
                    totals.requests[verdict] += requests
                    totals.messages[verdict] += messages
            await pace.keep()
        return totals

    async def usage(self, max_others: int) -> dict[tuple[str, str, Dimension], Usage]:
        """Return the usage of limits asked in the last minute: all with a rule of their own, the most used others."""
        rule_set = self._limits.rule_set
        usage: dict[tuple[str, str, Dimension], Usage] = {}
        # The least used first; of equal ones the latest.
        others: list[tuple[float, int, tuple[str, str, Dimension], Usage]] = []
        pace = Pace(rests=True)
        for number, (resource, usages) in enumerate(self._limits.usages(self._now_ns())):
            for dimension, used in usages.items():
                name = (resource.kind, resource.name, dimension)
                if rule_set.has_own(resource):
                    usage[name] = Usage(*used)
                elif len(others) < max_others:
                    heappush(others, (used.used_60s, -number, name, Usage(*used)))
                elif others and used.used_60s > others[0][0]:
                    heapreplace(others, (used.used_60s, -number, name, Usage(*used)))
            await pace.keep()
        while others:
            # Taken out one by one: to let go of ten thousand at once takes milliseconds.
            _, _, name, figures = others.pop()
            usage[name] = figures
            await pace.keep()
        return usage

    async def configured(self, max_limits: int) -> dict[tuple[str, str, Dimension], Limit]:
        """Return the limits in force, with those of exact names last; rules that are off or exempt limit nothing."""
        pace, limits = Pace(rests=True), dict[tuple[str, str, Dimension], Limit]()
        for rule in self._limits.rule_set.in_force:
            if len(limits) >= max_limits:
                break
            if rule.action != "off" and not rule.exempt:
                kind, name = (TOTAL, f"{rule.kind}:{rule.pattern}") if rule.shared else (rule.kind, rule.pattern)
                origin = _ORIGINS.get(rule.source.split(" ")[0], "configuration")
                # Rules with hours come before those without that they replace.
                per_s = math.inf if rule.rate_per_s is None else rule.rate_per_s
                limits.setdefault((kind, name, "messages"), Limit(per_s, origin))
                if rule.bytes_per_s is not None:
                    limits.setdefault((kind, name, "bytes"), Limit(rule.bytes_per_s, origin))
            await pace.keep()
        return limits

    async def oldest_waiting(self, max_names: int) -> dict[tuple[str, str], float]:
        """Return for how many seconds the oldest message of each resource waits; beyond the cap as ``_other``."""
        now_ns, ages = self._now_ns(), dict[tuple[str, str], float]()
        oldest = sorted((await self._pressure.aside()).oldest_ns.items(), key=itemgetter(1))
        for number, ((kind, name), since_ns) in enumerate(oldest):
            ages.setdefault((kind, name if number < max_names else OTHER), max(0.0, (now_ns - since_ns) / 1e9))
        return ages

    async def limiters(self) -> AsyncGenerator[LimiterState, None]:
        """Go through the live limiters."""
        pace = Pace(rests=True)
        for state in self._limits.each_state(self._now_ns()):
            if state is not None:
                yield state
            await pace.keep()

    async def resources(self, since_ns: int) -> AsyncGenerator[ResourceState, None]:
        """Go through what was asked for since then: resources as they are counted, then scopes and totals."""
        pace, waiting = Pace(rests=True), await self._waited_for()
        aside = await self._pressure.aside()
        for kind, name in aside.oldest_ns:
            # What waits is of interest however long ago it came.
            self._accounts.row(Resource(kind, name), self._now_ns()).seen_ns = self._now_ns()
            await pace.keep()
        for found in self._accounts.each(since_ns):
            if found is not None:
                resource, amounts = found
                yield self._resource(resource, _counts(amounts), waiting, aside)
            await pace.keep()
        for scope in self._accounts.scopes(since_ns):
            if scope is not None:
                yield self._resource(scope, None, waiting, aside)
            await pace.keep()

    async def _waited_for(self) -> set[Resource]:
        """Return what requests wait for at this moment."""
        pace, waiting = Pace(rests=True), set()
        for key in list(self._limits.holding.lines):
            waiting.add(key.resource)
            await pace.keep()
        return waiting

    def _resource(
        self, resource: Resource, counts: ResourceCounts | None, waiting: AbstractSet[Resource], aside: Aside
    ) -> ResourceState:
        limits, now_ns = self._limits, self._now_ns()
        messages, size = limits.state(resource, now_ns), limits.state(resource, now_ns, "bytes")
        states = [state for state in (messages, size) if state is not None]
        used = {dimension: Usage(*usage) for dimension, usage in limits.used(resource, now_ns).items()}
        refusals = [
            (each.last_refused_ns, each.last_wait_us, each.rule) for each in states if each.last_refused_ns is not None
        ]
        rule = limits.rule_set.match(resource)
        shadowed_ns = None
        if rule.action == "shadow":
            # What it says stops nothing.
            shadowed_ns = max((at_ns for at_ns, _, _ in refusals), default=None)
            enforcing, refusals = [], []
        else:
            enforcing = states
        stop = self._accounts.last_stop(resource) if counts is not None else NEVER
        last_refused_ns, last_wait_us, refused_by = max(refusals) if refusals else (None, 0, "")
        if stop.refused_ns is not None and (last_refused_ns is None or stop.refused_ns >= last_refused_ns):
            last_refused_ns, last_wait_us, refused_by = stop.refused_ns, stop.wait_us, stop.rule
        alone = counts is None and (rule.shared or rule.exact_name is not None)
        rule_sums = self._accounts.rules.get(rule.name) if alone else None
        return ResourceState(
            kind=resource.kind,
            name=resource.name,
            counts=counts,
            usage=used,
            stored_permits=None if messages is None else messages.stored_permits,
            open=any(state.open for state in enforcing),
            wait_us=max((state.wait_us for state in enforcing), default=0),
            last_refused_ns=last_refused_ns,
            last_wait_us=last_wait_us,
            last_refused_rule=refused_by,
            last_held_ns=now_ns if resource in waiting else stop.held_ns,
            last_shadowed_ns=shadowed_ns,
            rule=rule.name if alone else "",
            rule_counts=None if rule_sums is None else _rule_counts(rule_sums),
            state=aside.states.get(str(resource), "running"),
            spooled=aside.by_resource.get(resource, 0),
            waits_since_ns=aside.oldest_ns.get(resource),
        )

    async def connections(self) -> tuple[ConnectionState, ...]:
        """Return the open connections."""
        pace, states, aside = Pace(rests=True), [], await self._pressure.aside()
        for connection in list(self._server.connections.values()):
            if connection.info.id in self._server.connections:
                several = self._server.watches[connection.info.listener].backups > 0
                states.append(_connection(connection, aside, self._now_ns(), several=several))
            await pace.keep()
        return tuple(states)


def _counts(amounts: Amounts) -> ResourceCounts:
    return ResourceCounts(
        {verdict: amounts[number][0] for verdict, number in _ENDINGS},
        {verdict: amounts[number][1] for verdict, number in _ENDINGS},
    )


def _rule_counts(sums: RuleSums) -> RuleCounts:
    said = {verdict: sums.get(verdict, (0, 0)) for verdict in DID}
    return RuleCounts(
        {verdict: requests for verdict, (requests, _) in said.items()},
        {verdict: messages for verdict, (_, messages) in said.items()},
    )


def _connection(connection: Connection, aside: Aside, now_ns: int, *, several: bool) -> ConnectionState:
    """Return how a connection is; ``several`` brokers are behind its listener."""
    info, session = connection.info, connection.session
    described = session.describe()
    shown = described.resources[:MAX_RESOURCES_SHOWN]
    return ConnectionState(
        id=info.id,
        listener=info.listener,
        peer=info.peer,
        client=described.client,
        exempt=info.exempt,
        broker=connection.writer.name if several else "",
        opened_ns=connection.opened_ns,
        bytes_total={direction(side): count for side, count in connection.bytes_read.items()},
        requests_total=described.requests,
        refused_total=described.refused,
        in_flight=session.in_flight(),
        resources=shown,
        more_resources=described.more_resources + len(described.resources) - len(shown),
        stage=stage_state(connection.stage, now_ns),
        channels=stages_beside(connection, now_ns),
        spooled=sum(aside.by_stage.get(stage, 0) for stage in session.stages()),
        links=described.links,
        more_links=described.more_links,
        tls=info.tls,
        certificate=info.certificate,
    )
