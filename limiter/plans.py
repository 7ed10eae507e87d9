"""Plans: which limits apply to a request, worked out once for each set of resources and each asker.

A plan is a matter of the rules alone: what is stored, held or open has no part in it. Plans are remembered as
long as a rule set is in force, as many as fit in a bound, since names and addresses come from clients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from limiter.registry import Registry
from limiter.resource import CLIENT, LISTENER, PRODUCER_GROUP, TOTAL, Resource
from limiter.rule import Dimension, FairBy, Rule
from limiter.rules import RuleSet
from limiter.usage import Board, Meter

_MAX_REMEMBERED: Final = 16_384
"""Plans remembered of each sort. One that is not takes some ten microseconds to make."""

K = TypeVar("K")
V = TypeVar("V")


class Asker(NamedTuple):
    """Who asks: the scopes a request belongs to, and the keys of its fair shares.

    Attributes:
        client: the client's IP address.
        producer_group: the group it sends for, or empty.
        listener: the scope of its listener.
        consumes: it asks for messages; the scopes of those who produce do not limit it.
    """

    client: str
    producer_group: str
    listener: str
    consumes: bool = False


class LineKey(NamedTuple):
    """Where requests wait in line: for one limiter, or for one share of it.

    Attributes:
        dimension: what the limiter limits.
        resource: whose it is.
        share: whose share; empty where no shares are kept apart.
    """

    dimension: Dimension
    resource: Resource
    share: str


class Part:
    """One limit that applies: whose, in what, and where its limiter lives.

    Attributes:
        registry: where.
        resource: the resource, scope or total that is limited.
        rule: the rule, with this dimension as its only limit.
        of_bytes: costs are bytes.
        of_requests: each request costs one permit.
        fair_by: whose shares are kept apart.
        delays: what is over the limit is held for a while.
        by_answer: what is held costs nothing yet if it consumes, but its answer will.
        meter: what the limit has spent.
    """

    __slots__ = ("by_answer", "delays", "fair_by", "meter", "of_bytes", "of_requests", "registry", "resource", "rule")

    def __init__(self, registry: Registry, resource: Resource, rule: Rule, meter: Meter) -> None:
        self.registry = registry
        self.resource = resource
        self.rule = rule
        self.of_bytes = registry.dimension == "bytes"
        self.of_requests = not self.of_bytes and rule.count == "requests"
        self.fair_by: FairBy | None = rule.fair_by
        self.delays = rule.action == "delay"
        self.by_answer = self.delays and not self.of_requests
        self.meter = meter

    def share_of(self, asker: Asker) -> str:
        """Return whose share an asker's is."""
        if self.fair_by is None:
            return ""
        return asker.client if self.fair_by == CLIENT else asker.producer_group

    def line(self, asker: Asker) -> LineKey:
        """Return where an asker's requests wait."""
        return LineKey(self.registry.dimension, self.resource, self.share_of(asker))


class Plan:
    """All limits that apply, in the order in which they are asked.

    Attributes:
        parts: all of them.
        enforcing: those that stop what is over them.
        shadows: the others; those of one rule and resource stand together.
        only: the one part, if there is no other, and it is of the plain sort: it refuses and makes no difference
            between askers, and its costs are messages or requests.
        doubled: two of the enforcing may be one limiter, which is then charged for both.
    """

    __slots__ = ("doubled", "enforcing", "only", "parts", "shadows")

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = tuple(parts)
        self.enforcing = tuple(part for part in self.parts if part.rule.action != "shadow")
        shadows: dict[Resource, list[Part]] = {}
        for part in self.parts:
            if part.rule.action == "shadow":
                shadows.setdefault(part.resource, []).append(part)
        self.shadows = tuple(map(tuple, shadows.values()))
        # What the registry has no room for shares one limiter with others of its rule, as does all of one total.
        rules = [(part.registry.dimension, id(part.rule)) for part in self.enforcing]
        self.doubled = len(set(rules)) < len(rules)
        plain = len(self.parts) == len(self.enforcing) == 1
        first = self.parts[0] if plain else None
        self.only = None if first is None or first.of_bytes or first.delays or first.fair_by is not None else first


NO_PLAN: Final = Plan(())


class Plans:
    """The plans under one rule set.

    Args:
        rule_set: the rules in force.
        registries: where limiters live, by what they limit.
        board: where meters come from.

    Attributes:
        by_resources: the plans that ``of`` remembers; one that is not there must be asked for.
        scoped: some rule limits scopes.
    """

    __slots__ = ("_board", "_by_asker", "_parts", "_registries", "_rule_set", "_scopes", "by_resources", "scoped")

    def __init__(self, rule_set: RuleSet, registries: Mapping[Dimension, Registry], board: Board) -> None:
        self._board = board
        self._rule_set = rule_set
        self._registries = registries
        self._scopes = rule_set.scopes
        self.scoped = bool(rule_set.scopes)
        self.by_resources: dict[Sequence[Resource], Plan] = {}
        self._by_asker: dict[Asker, Plan] = {}
        #: One part for each limit, whichever plans it stands in.
        self._parts: dict[tuple[Dimension, Resource], Part] = {}

    def of(self, resources: Sequence[Resource]) -> Plan:
        """Return what applies to resources, given as a tuple."""
        plan = self.by_resources.get(resources)
        if plan is None:
            plan = Plan(part for resource in resources for part in self._of(resource))
            _remember(self.by_resources, resources, plan)
        return plan

    def of_scopes(self, asker: Asker) -> Plan:
        """Return what applies to an asker, whatever is asked for."""
        if not self._scopes or asker.consumes:
            return NO_PLAN
        plan = self._by_asker.get(asker)
        if plan is None:
            plan = Plan(part for scope in scopes(asker) if scope.kind in self._scopes for part in self._of(scope))
            _remember(self._by_asker, asker, plan)
        return plan

    def _of(self, resource: Resource) -> Iterator[Part]:
        yield from self._of_one(resource)
        total = self._rule_set.match_total(resource)
        if total is not None:
            yield from self._of_one(Resource(TOTAL, total.target))

    def _of_one(self, resource: Resource) -> Iterator[Part]:
        for dimension, registry in self._registries.items():
            rule = self._rule_set.limit(resource, dimension)
            if rule is not None:
                part = self._parts.get((dimension, resource))
                if part is None:
                    part = Part(registry, resource, rule, self._board.meter(dimension, resource))
                    _remember(self._parts, (dimension, resource), part)
                yield part


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    if len(memory) >= _MAX_REMEMBERED:
        memory.clear()
    memory[key] = value


def scopes(asker: Asker) -> Iterator[Resource]:
    """Yield the scopes that an asker belongs to, in the order in which they are asked."""
    if asker.client:
        yield Resource(CLIENT, asker.client)
    if asker.producer_group:
        yield Resource(PRODUCER_GROUP, asker.producer_group)
    if asker.listener:
        yield Resource(LISTENER, asker.listener)
