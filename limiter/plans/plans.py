"""Plans: which limits apply to a request, worked out once for each set of resources and each caller.

A plan depends on the rules alone. Plans are cached in bounded numbers, since names and addresses come from clients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from limiter.buckets.limiter import Gate, Limiter
from limiter.counting.accounts import Accounts
from limiter.counting.row import Row, Second
from limiter.plans.registry import Registry
from limiter.rules.resource import CLIENT, LISTENER, PRODUCER_GROUP, TOTAL, Resource
from limiter.rules.rule import OF_MESSAGES, UPERMITS_PER_PERMIT, Dimension, FairBy, Rule
from limiter.rules.rule_set import RuleSet

_MAX_REMEMBERED: Final = 16_384
"""Cached plans of each sort. Making one takes some ten microseconds."""

_MAX_RESOURCES: Final = 8
"""Plans for more resources are not cached: clients may name many, and always others."""

MESSAGES: Final = 0
REQUESTS: Final = 1
BYTES: Final = 2
"""Units of cost, as indexes into a tuple of all three."""

_NO_ROW: Final = Row(Resource("", ""))
_NO_ROW.retired = True

Asks = Literal["all", "delaying", "refusing"]
"""Which rules to ask: all; those that hold requests; or the others, which refuse or shadow.

For receivers with credit, the first decide how much is granted, and the second on each message as it comes.
"""

K = TypeVar("K")
V = TypeVar("V")


class Caller(NamedTuple):
    """Who asks: the scopes a request belongs to, and the keys of its fair shares."""

    client: str
    producer_group: str  # or empty
    listener: str  # the scope of its listener
    consumes: bool = False  # it takes messages; scopes of producers do not limit it
    by_answer: bool = False  # its answer tells its cost
    refusable: bool = True  # it can be refused. Otherwise it waits for as long as it takes, whatever the rules' action.
    # Others that its connection belongs to, such as its user, in the order in which they are asked.
    scopes: tuple[Resource, ...] = ()
    asks: Asks = "all"
    may_wait: bool = True  # it can be held. Otherwise delay rules refuse it.
    resources: tuple[Resource, ...] = ()  # what it asks for, where adaptive limits are shared by that

    def share_key(self, fair_by: FairBy | None) -> str:
        """Return whose share of a limit it takes; empty if unknown. None: that of what it asks for first."""
        if fair_by is None or fair_by in OF_MESSAGES:
            return next((str(each) for each in self.resources if fair_by in {None, each.kind}), "")
        if fair_by == CLIENT:
            return self.client
        if fair_by == PRODUCER_GROUP:
            return self.producer_group
        return next((scope.name for scope in self.scopes if scope.kind == fair_by), "")


def gate_of(limiter: Limiter, caller: Caller, now_ns: int) -> Gate:
    rule = limiter.rule
    if rule.fair_by is None and not rule.adaptive:
        return limiter
    return limiter.share(caller.share_key(rule.fair_by), now_ns)


class Confirming(NamedTuple):
    """Which messages are confirmed by their consumers instead of the broker."""

    below_bytes: int  # smaller messages only
    within_ns: int  # how long the consumers have
    # How many queues each message goes to, and so how many acks confirm it; None if the rule does not say.
    queues: int | None
    # The broker stores and confirms a message that consumers do not confirm; else the sender is told that it failed.
    persists: bool


class Advance(NamedTuple):
    """The allowance of the tightest limit."""

    rate: int  # micro-permits per second
    burst: int  # messages at once
    most: int  # messages at once, with all the debt that one may leave; 0 if the limit admits nothing


# A limit that admits nothing: a refusal needs a message.
_CLOSED: Final = Advance(UPERMITS_PER_PERMIT, 2, 0)


def advance_of(rules: Iterable[Rule]) -> Advance | None:
    found: Advance | None = None
    for rule in rules:
        limit = None if rule.exempt or rule.adaptive or rule.action == "shadow" else rule.part("messages")
        if limit is not None and limit.rate_upermits_per_s:
            burst = max(1, limit.capacity_upermits // UPERMITS_PER_PERMIT)
            advance = Advance(limit.rate_upermits_per_s, burst, max(burst, limit.most_permits))
            if found is None or not found.most or advance < found:
                found = advance
        elif limit is not None and found is None:
            found = _CLOSED
    return found


class Terms(NamedTuple):
    """What active rules say about messages for some resources, before one comes."""

    delays: bool = False  # some rule holds messages, so their credit must be asked for
    refuses: bool = False  # some rule refuses or shadows, so each message must be decided
    most_bytes: int | None = None  # the largest message that limits of bytes admit at once; None is any
    confirm: Confirming | None = None  # which messages consumers confirm; None is none. It limits nothing.
    advance: Advance | None = None

    @property
    def limits(self) -> bool:
        return self.delays or self.refuses or self.most_bytes is not None


NO_TERMS: Final = Terms()


class QueueKey(NamedTuple):
    """Identifies a line of waiting requests: one limiter, or one share of it.

    Not the resource: where many names share a limiter, a line for each would be asked in vain for every permit.
    """

    dimension: Dimension
    resource: Resource  # that of the limiter
    share: str  # the key of the share; empty without shares


def unit_of(dimension: Dimension, rule: Rule) -> int:
    return BYTES if dimension == "bytes" else REQUESTS if rule.count == "requests" else MESSAGES


class ApplicableLimit:
    """One limit that applies to a request."""

    __slots__ = (
        *("_accounts", "_dimension", "_row", "by_answer", "delays", "fair_by", "holds", "registry", "resource"),
        *("rule", "unit"),
    )

    def __init__(self, registry: Registry, resource: Resource, rule: Rule, accounts: Accounts) -> None:
        self.registry = registry
        self.resource = resource
        self.rule = rule  # the rule, with this dimension as its only limit
        self.unit = unit_of(registry.dimension, rule)  # of a request's cost: messages, one permit or bytes
        self.fair_by: FairBy | None = rule.fair_by  # whose shares are kept apart
        self.holds = rule.action == "delay"
        self.delays = rule.delays
        # A held request that is charged by its answer costs nothing yet.
        self.by_answer = self.delays and self.unit != REQUESTS
        self._accounts = accounts
        self._dimension = registry.number
        self._row = _NO_ROW

    def waits(self, caller: Caller) -> bool:
        return (self.holds and caller.may_wait) or not caller.refusable

    def spend(self, second: Second, now_ns: int, permits: int) -> None:
        """Count a question, and the permits spent in the second under way or, below 0, given back."""
        self.row(now_ns).spend(second, self._dimension, permits)

    def row(self, now_ns: int) -> Row:
        row = self._row
        if row.retired:
            row = self._accounts.row(self.resource, now_ns)
            if not row.shared:
                self._row = row
        return row

    def line(self, gate: Gate) -> QueueKey:
        return QueueKey(self.registry.dimension, gate.resource, gate.key)


class Plan:
    """All limits that apply, in the order in which they are asked."""

    __slots__ = (
        "_asked",
        "adaptive",
        "doubled",
        "enforcing",
        "exempt",
        "has_bytes",
        "only",
        "parts",
        "shadows",
        "terms",
    )

    def __init__(
        self, parts: Iterable[ApplicableLimit], *, exempt: bool = False, confirm: Confirming | None = None
    ) -> None:
        self.exempt = exempt  # nothing limits its resources, nor the scopes of the caller
        self.parts = self.enforcing = tuple(parts)
        # The others; those of one rule and resource are adjacent.
        self.shadows: tuple[tuple[ApplicableLimit, ...], ...] = ()
        self.adaptive = any(part.rule.adaptive for part in self.parts)
        self.has_bytes = any(part.unit == BYTES for part in self.parts)
        self.doubled = False  # two of the enforcing may be one limiter, which is then charged for both
        # The one part, if there is no other and it is plain: it refuses, has no shares and does not count bytes.
        self.only: ApplicableLimit | None = None
        if any(part.rule.action == "shadow" for part in self.parts):
            self._part_shadows()
        elif len(self.parts) == 1:
            first = self.parts[0]
            self.only = None if self.has_bytes or first.delays or first.fair_by is not None else first
        if len(self.enforcing) > 1:
            # Overflow limiters and totals are shared by many names.
            rules = [(part.registry.dimension, id(part.rule)) for part in self.enforcing]
            self.doubled = len(set(rules)) < len(rules)
        self._asked: dict[Asks, Plan] = {}
        most = [part.rule.most_permits for part in self.enforcing if part.unit == BYTES]
        self.terms = Terms(
            any(part.delays for part in self.parts),
            not all(part.delays for part in self.parts),
            min(most, default=None),
            confirm,
            advance_of(part.rule for part in self.enforcing),
        )

    def asked(self, asks: Asks) -> "Plan":
        if asks == "all":
            return self
        plan = self._asked.get(asks)
        if plan is None:
            parts = [part for part in self.parts if part.delays is (asks == "delaying")]
            plan = self._asked[asks] = self if len(parts) == len(self.parts) else Plan(parts, exempt=self.exempt)
        return plan

    def _part_shadows(self) -> None:
        self.enforcing = tuple(part for part in self.parts if part.rule.action != "shadow")
        shadows: dict[Resource, list[ApplicableLimit]] = {}
        for part in self.parts:
            if part.rule.action == "shadow":
                shadows.setdefault(part.resource, []).append(part)
        self.shadows = tuple(map(tuple, shadows.values()))


NO_PLAN: Final = Plan(())


class Plans:
    """The plans under one rule set."""

    def __init__(self, rule_set: RuleSet, registries: Mapping[Dimension, Registry], accounts: Accounts) -> None:
        self._accounts = accounts
        self._rule_set = rule_set
        self._registries = registries
        self._scopes = rule_set.scopes
        self.scoped = bool(rule_set.scopes)  # some rule limits scopes
        self.by_resources: dict[Sequence[Resource], Plan] = {}
        self._by_asker: dict[Caller, Plan] = {}
        # One part for each limit, whatever plans it is in.
        self._parts: dict[tuple[Dimension, Resource], ApplicableLimit] = {}

    def of(self, resources: Sequence[Resource]) -> Plan:
        plan = self.by_resources.get(resources)
        if plan is None:
            exempt = bool(resources) and all(self._rule_set.match(resource).exempt for resource in resources)
            parts = (part for resource in resources for part in self._of(resource))
            plan = Plan(parts, exempt=exempt, confirm=self._confirming(resources))
            if len(resources) <= _MAX_RESOURCES:
                _remember(self.by_resources, resources, plan)
        return plan

    def _confirming(self, resources: Sequence[Resource]) -> Confirming | None:
        for resource in resources:
            rule = self._rule_set.match(resource)
            if rule.confirms_after_consume and self._rule_set.limiting(resource):
                persists = rule.fallback == "persist"
                return Confirming(rule.confirm_below_bytes, rule.confirm_within_ns, rule.confirm_queues, persists)
        return None

    def of_scopes(self, caller: Caller, plan: Plan) -> Plan:
        """Return the limits of a caller's scopes, beside the plan of the resources."""
        if not self._scopes or caller.consumes or plan.exempt:
            return NO_PLAN
        scoped = self._by_asker.get(caller)
        if scoped is None:
            scoped = Plan(part for scope in scopes(caller) if scope.kind in self._scopes for part in self._of(scope))
            _remember(self._by_asker, caller, scoped)
        return scoped

    def _of(self, resource: Resource) -> list[ApplicableLimit]:
        if not self._rule_set.limiting(resource):
            return []
        rule = self._rule_set.match(resource)
        parts = self._of_one(resource, rule)
        total = None if rule.exempt else self._rule_set.match_total(resource)
        return parts if total is None else parts + self._of_one(Resource(TOTAL, total.target), total)

    def _of_one(self, resource: Resource, rule: Rule) -> list[ApplicableLimit]:
        parts = []
        for dimension, registry in self._registries.items():
            limit = rule.part(dimension)
            if limit is None:
                registry.current(resource)
            else:
                part = self._parts.get((dimension, resource))
                if part is None:
                    part = ApplicableLimit(registry, resource, limit, self._accounts)
                    _remember(self._parts, (dimension, resource), part)
                parts.append(part)
        return parts


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    if len(memory) >= _MAX_REMEMBERED:
        memory.clear()
    memory[key] = value


def scopes(caller: Caller) -> Iterator[Resource]:
    if caller.client:
        yield Resource(CLIENT, caller.client)
    if caller.producer_group:
        yield Resource(PRODUCER_GROUP, caller.producer_group)
    yield from caller.scopes
    if caller.listener:
        yield Resource(LISTENER, caller.listener)
