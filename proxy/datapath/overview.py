"""The operator's view of a data path: counts, limits, resources and connections.

Call all methods on a thread from ``proxy.common.threads``. The items are collected at slightly different times.
"""

import math
from collections.abc import Callable, Container, Iterator
from heapq import heappush, heapreplace
from operator import itemgetter
from typing import Any, Final

import trio

from limiter.counting.accounts import NEVER, Accounts, RuleSums, Usage
from limiter.counting.rejections import DID, OTHER, OUTCOMES
from limiter.counting.row import Amounts
from limiter.deciding.limits import Limits
from limiter.rules.resource import TOTAL, Resource
from limiter.rules.rule import Dimension
from proxy.common.threads import from_loop
from proxy.datapath.pressure import Pressure, Waiting, stages_beside
from proxy.deciding.batch import Side
from proxy.net.connection import Connection
from proxy.net.server import Server
from proxy.stats.snapshot import (
    ENDINGS,
    MAX_RESOURCES_SHOWN,
    ConnectionState,
    Direction,
    LimitInForce,
    Origin,
    ResourceCounts,
    ResourceState,
    RuleCounts,
)

_ORIGINS: Final[dict[str, Origin]] = {"live": "edit", "built-in": "built-in", "default": "built-in"}
"""Where a rule comes from, by the first word of its ``source``."""
_ENDINGS: Final = tuple((ending.verdict, OUTCOMES.index(ending.outcome)) for ending in ENDINGS)


def direction(side: Side) -> Direction:
    return "client" if side is Side.CLIENT else "broker"


class Overview:
    def __init__(
        self,
        limits: Limits,
        accounts: Accounts,
        server: Server,
        pressure: Pressure,
        *,
        now_ns: Callable[[], int],
        iso: Callable[[int], str],
    ) -> None:
        self._limits = limits
        self._accounts = accounts
        self._server = server
        self._pressure = pressure
        self._now_ns, self._iso = now_ns, iso

    def many(self, max_labels: int) -> dict[str, Any]:
        return {
            "resources": self.counts(),
            "rules": self.rules(),
            "usage": self.usage(max_labels),
            "oldest_waiting": self.oldest_waiting(max_labels),
            "limits": self.configured(max_labels),
        }

    def counts(self) -> dict[tuple[str, str], ResourceCounts]:
        found = (each for each in from_loop(self._accounts.each()) if each is not None)
        return {(resource.kind, resource.name): _counts(amounts) for resource, amounts in found}

    def rules(self) -> dict[str, RuleCounts]:
        return {name: _rule_counts(sums.copy()) for name, sums in list(self._accounts.rules.items())}

    def totals(self) -> ResourceCounts:
        totals = _counts(((0, 0, 0),) * len(OUTCOMES))
        for found in from_loop(self._accounts.each()):
            if found is not None:
                for verdict, number in _ENDINGS:
                    requests, messages, _ = found[1][number]
                    totals.requests[verdict] += requests
                    totals.messages[verdict] += messages
        return totals

    def usage(self, max_others: int) -> dict[tuple[str, str, Dimension], Usage]:
        """Return the usage of limits that were used in the last minute.

        Includes all limits of resources that have their own rule, and the ``max_others`` most used of the others.
        """
        rule_set = self._limits.rule_set
        usage: dict[tuple[str, str, Dimension], Usage] = {}
        # A heap with the least used limit first. Among equally used limits, the latest is first.
        others: list[tuple[float, int, tuple[str, str, Dimension], Usage]] = []
        for number, (resource, usages) in enumerate(from_loop(self._limits.usages(self._now_ns()))):
            for dimension, used in usages.items():
                name = (resource.kind, resource.name, dimension)
                if rule_set.has_own(resource):
                    usage[name] = used
                elif len(others) < max_others:
                    heappush(others, (used.last_60s, -number, name, used))
                elif others and used.last_60s > others[0][0]:
                    heapreplace(others, (used.last_60s, -number, name, used))
        while others:
            _, _, name, figures = others.pop()
            usage[name] = figures
        return usage

    def configured(self, max_limits: int) -> dict[tuple[str, str, Dimension], LimitInForce]:
        """Return the active limits, with exact names last. Leave out adaptive limits, which have their own metric."""
        limits = dict[tuple[str, str, Dimension], LimitInForce]()
        for rule in self._limits.rule_set.in_force:
            if len(limits) >= max_limits:
                break
            if rule.action != "off" and not rule.exempt and not rule.adaptive:
                kind, name = (TOTAL, f"{rule.kind}:{rule.pattern}") if rule.shared else (rule.kind, rule.pattern)
                origin = _ORIGINS.get(rule.source.split(" ")[0], "configuration")
                # Scheduled rules come before the rules that they override, so the first rule counts.
                per_s = math.inf if rule.rate_per_s is None else rule.rate_per_s
                limits.setdefault((kind, name, "messages"), LimitInForce(per_s, origin))
                if rule.bytes_per_s is not None:
                    limits.setdefault((kind, name, "bytes"), LimitInForce(rule.bytes_per_s, origin))
        return limits

    def oldest_waiting(self, max_names: int) -> dict[tuple[str, str], float]:
        """Return how long each resource's oldest message has waited, in seconds.

        Names beyond ``max_names`` are merged into ``_other``.
        """
        now_ns, ages = self._now_ns(), dict[tuple[str, str], float]()
        oldest = sorted(trio.from_thread.run(self._pressure.waiting).oldest_ns.items(), key=itemgetter(1))
        for number, ((kind, name), since_ns) in enumerate(oldest):
            ages.setdefault((kind, name if number < max_names else OTHER), max(0.0, (now_ns - since_ns) / 1e9))
        return ages

    def resources(self, since_ns: int) -> Iterator[ResourceState]:
        waiting = trio.from_thread.run(self._pressure.waiting)
        yield from filter(None, from_loop(self._states(since_ns, waiting)))

    def _states(self, since_ns: int, waiting: Waiting) -> Iterator[ResourceState | None]:
        held = {key.resource for key in self._limits.holding.lines}
        for kind, name in waiting.oldest_ns:
            # Show resources that have waiting messages, no matter how old.
            self._accounts.row(Resource(kind, name), self._now_ns()).seen_ns = self._now_ns()
            yield None
        for found in self._accounts.each(since_ns):
            yield None if found is None else self._state(found[0], found[1], held, waiting)
        for scope in self._accounts.scopes(since_ns):
            yield None if scope is None else self._state(scope, None, held, waiting)

    def _state(
        self, resource: Resource, amounts: Amounts | None, held: Container[Resource], waiting: Waiting
    ) -> ResourceState:
        limits, now_ns = self._limits, self._now_ns()
        rule = limits.rule_set.match(resource)
        stop = self._accounts.last_stop(resource) if amounts is not None else NEVER
        messages = limits.state(resource, now_ns)
        states = [state for state in (messages, limits.state(resource, now_ns, "bytes")) if state is not None]
        refusals = [
            (each.last_refused_ns, each.last_wait_us, each.rule) for each in states if each.last_refused_ns is not None
        ]
        shadowed_ns = None
        if rule.action == "shadow":
            shadowed_ns = max((at_ns for at_ns, _, _ in refusals), default=None)
            states, refusals = [], []
        last_refused_ns, last_wait_us, refused_by = max(refusals) if refusals else (None, 0, "")
        if stop.refused_ns is not None and (last_refused_ns is None or stop.refused_ns >= last_refused_ns):
            last_refused_ns, last_wait_us, refused_by = stop.refused_ns, stop.wait_us, stop.rule
        alone = amounts is None and (rule.shared or rule.exact_name is not None)
        sums = self._accounts.rules.get(rule.name) if alone else None
        return ResourceState(
            kind=resource.kind,
            name=resource.name,
            counts=None if amounts is None else _counts(amounts),
            usage=limits.used(resource, now_ns),
            stored_permits=None if messages is None else messages.stored_permits,
            open=any(state.open for state in states),
            wait_us=max((state.wait_us for state in states), default=0),
            last_refused_ns=last_refused_ns,
            last_wait_us=last_wait_us,
            last_refused_rule=refused_by,
            last_held_ns=now_ns if resource in held else stop.held_ns,
            last_shadowed_ns=shadowed_ns,
            rule=rule.name if alone else "",
            rule_counts=_rule_counts(sums) if sums else None,
            state=waiting.states.get(str(resource), "running"),
            spooled=waiting.by_resource.get(resource, 0),
            waits_since_ns=waiting.oldest_ns.get(resource),
        )

    def connections(self) -> tuple[ConnectionState, ...]:
        waiting = trio.from_thread.run(self._pressure.waiting)
        return tuple(from_loop(self._each_connection(waiting)))

    def _each_connection(self, waiting: Waiting) -> Iterator[ConnectionState]:
        for connection in self._server.each_connection():
            several = self._server.watches[connection.info.listener].backups > 0
            yield _connection(connection, waiting, self._now_ns(), self._iso, several=several)


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


def _connection(
    connection: Connection, waiting: Waiting, now_ns: int, iso: Callable[[int], str], *, several: bool
) -> ConnectionState:
    info, session = connection.info, connection.session
    connection.count_lent()
    described = session.describe(now_ns)
    shown = described.resources[:MAX_RESOURCES_SHOWN]
    return ConnectionState(
        id=info.id,
        listener=info.listener,
        peer=info.peer,
        client=described.client,
        exempt=info.exempt,
        broker=connection.writer.name if several else "",
        opened_at=iso(connection.opened_ns),
        age_s=round((now_ns - connection.opened_ns) / 1e9, 1),
        bytes_total={direction(side): count for side, count in connection.bytes_read.items()},
        requests_total=described.requests,
        refused_total=described.refused,
        in_flight=session.in_flight(),
        resources=shown,
        more_resources=described.more_resources + len(described.resources) - len(shown),
        stage=connection.stage.figures(now_ns),
        channels=stages_beside(connection, now_ns),
        spooled=sum(waiting.by_stage.get(stage, 0) for stage in session.stages()),
        links=described.links,
        more_links=described.more_links,
        tls=info.tls,
        certificate=info.certificate,
    )
