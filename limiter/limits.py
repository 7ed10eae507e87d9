"""The limits in force: every live limiter, found and asked together.

Several limiters may apply to one request: that of each of its resources, those of the scopes it belongs to (its
client's address, its producer group, its listener), and the totals that any of these fall under; each in messages
and in bytes. All are checked before any is charged, so what one refuses spends nothing in the others.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from limiter.limiter import Limiter, LimiterState
from limiter.registry import DEFAULT_MAX_LIVE, Registry
from limiter.resource import CLIENT, LISTENER, PRODUCER_GROUP, TOTAL, Resource
from limiter.rule import Dimension, Rule
from limiter.rules import RuleSet


class Asker(NamedTuple):
    """Who asks: the scopes a request belongs to.

    Attributes:
        client: the client's IP address.
        producer_group: the group it sends for, or empty.
        listener: the scope of its listener.
    """

    client: str
    producer_group: str
    listener: str


class Stop(NamedTuple):
    """The limit that stopped a request.

    Attributes:
        resource: the resource, scope or total that is limited.
        rule: the rule in force for it.
        wait_us: microseconds until a request would be admitted again.
    """

    resource: Resource
    rule: Rule
    wait_us: int


class Decision(NamedTuple):
    """What becomes of several requests that were asked for together.

    Attributes:
        admitted: how many from the front pass.
        stop: what stopped the others; None if there are none.
    """

    admitted: int
    stop: Stop | None


class _Part(NamedTuple):
    """One of the limits that apply: whose, and where its limiter lives."""

    registry: Registry
    resource: Resource


class Limits:
    """All limits of one data path.

    Args:
        rule_set: the rules in force from the start.
        max_live: how many limiters may live besides those that have a rule of their own, for each dimension.
    """

    def __init__(self, rule_set: RuleSet, max_live: int = DEFAULT_MAX_LIVE) -> None:
        self._registries: dict[Dimension, Registry] = {
            "messages": Registry(rule_set, max_live, "messages"),
            "bytes": Registry(rule_set, max_live, "bytes"),
        }

    @property
    def rule_set(self) -> RuleSet:
        """The rules in force."""
        return self._registries["messages"].rule_set

    @property
    def live(self) -> int:
        """How many limiters live, overflow limiters left aside."""
        return sum(registry.live for registry in self._registries.values())

    @property
    def evicted_total(self) -> int:
        """Limiters evicted to make room."""
        return sum(registry.evicted_total for registry in self._registries.values())

    @property
    def overflowed_total(self) -> int:
        """Lookups answered with an overflow limiter."""
        return sum(registry.overflowed_total for registry in self._registries.values())

    def swap(self, rule_set: RuleSet, now_ns: int) -> None:
        """Put another rule set in force from ``now_ns`` on."""
        for registry in self._registries.values():
            registry.swap(rule_set, now_ns)

    def decide(
        self,
        now_ns: int,
        resources: Sequence[Resource],
        asker: Asker | None,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
    ) -> Decision:
        """Admit the longest prefix that every limit admits; what follows is stopped by the one that ended it.

        Args:
            now_ns: the time.
            resources: everything that each of the requests is charged to.
            asker: who asks; None leaves the scopes out.
            messages: the costs of the requests in messages, in order.
            size_bytes: gives their costs in bytes; asked only if some rule limits bytes.
        """
        limiters: dict[Limiter, tuple[Resource, Sequence[int]]] = {}
        for part in self._parts(resources, asker):
            limiter = part.registry.get(part.resource, now_ns)
            if limiter is not None:
                costs = messages if part.registry.dimension == "messages" else size_bytes()
                limiters[limiter] = (part.resource, costs)
        admissions = {limiter: limiter.check(now_ns, costs) for limiter, (_, costs) in limiters.items()}
        admitted = min((admission.admitted for admission in admissions.values()), default=len(messages))
        stop: Stop | None = None
        for limiter, (resource, costs) in limiters.items():
            limiter.commit(now_ns, costs[:admitted])
            if admissions[limiter].admitted == admitted < len(messages):
                wait_us = limiter.refuse(now_ns)
                stop = stop or Stop(resource, limiter.rule, wait_us)
        return Decision(admitted, stop)

    def charge(
        self, now_ns: int, resources: Sequence[Resource], asker: Asker | None, messages: int, size_bytes: int
    ) -> None:
        """Debit a cost after the fact from every limit that applies."""
        for part in self._parts(resources, asker):
            limiter = part.registry.get(part.resource, now_ns)
            if limiter is not None:
                limiter.charge(now_ns, messages if part.registry.dimension == "messages" else size_bytes)

    def _parts(self, resources: Sequence[Resource], asker: Asker | None) -> Iterator[_Part]:
        """Yield where the limiters of everything live that may limit a request."""
        for resource in (*resources, *_scopes(asker)):
            for registry in self._registries.values():
                yield _Part(registry, resource)
            total = self.rule_set.match_total(resource)
            if total is not None:
                for registry in self._registries.values():
                    yield _Part(registry, Resource(TOTAL, total.target))

    def state(self, resource: Resource, now_ns: int) -> LimiterState | None:
        """Return the state of a resource's own limiter of messages, or None if it has none; creates none."""
        return self._registries["messages"].state(resource, now_ns)

    def states(self, now_ns: int) -> Iterator[LimiterState]:
        """Yield the states of all live limiters; safe while they change between two steps."""
        for registry in self._registries.values():
            yield from registry.states(now_ns)


def _scopes(asker: Asker | None) -> Iterator[Resource]:
    if asker is not None:
        yield Resource(CLIENT, asker.client)
        if asker.producer_group:
            yield Resource(PRODUCER_GROUP, asker.producer_group)
        yield Resource(LISTENER, asker.listener)
