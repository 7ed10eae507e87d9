"""A plan lists the limits that apply to a request. The cache of plans is bounded, because clients choose the names."""

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

_MAX_RESOURCES: Final = 8

MESSAGES: Final = 0
REQUESTS: Final = 1
BYTES: Final = 2
"""Indexes into tuples of (messages, requests, bytes)."""

_NO_ROW: Final = Row(Resource("", ""))
_NO_ROW.retired = True

Asks = Literal["all", "delaying", "refusing"]
"""Which rules to check: all, only those that hold requests, or only those that refuse or shadow.

Rules that hold requests determine how much credit a receiver gets. The other rules decide on each message.
"""

K = TypeVar("K")
V = TypeVar("V")


class Caller(NamedTuple):
    client: str
    producer_group: str
    listener: str
    consumes: bool = False  # if true, the scopes of producers do not apply
    by_answer: bool = False  # whether the cost is known only from the answer
    refusable: bool = True  # if false, requests wait as long as necessary, regardless of the action
    scopes: tuple[Resource, ...] = ()
    asks: Asks = "all"
    may_wait: bool = True  # if false, delay rules refuse requests
    resources: tuple[Resource, ...] = ()  # destinations

    def share_key(self, fair_by: FairBy | None) -> str:
        """Return the key that identifies the caller's share of a limit, or an empty string if it is unknown.

        If ``fair_by`` is None, the key is the caller's first destination.
        """
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
    below_bytes: int
    within_ns: int
    # Number of acks needed to confirm a message. None if the rule does not set it.
    queues: int | None
    # Whether the broker stores and confirms a message that consumers do not confirm.
    persists: bool


class Advance(NamedTuple):
    """The tightest limit that may apply. It bounds the credit for messages whose limits are not known yet."""

    rate: int  # micro-permits per second
    burst: int  # messages
    most: int


# A burst of 2, because Sluice must receive a message to refuse it.
_CLOSED: Final = Advance(UPERMITS_PER_PERMIT, 2, 0)


def advance_of(rules: Iterable[Rule]) -> Advance | None:
    found: Advance | None = None
    for rule in rules:
        limit = None if rule.exempt or rule.adaptive or rule.action == "shadow" else rule.part("messages")
        if limit is not None and limit.rate_upermits_per_s:
            burst = max(1, limit.capacity_upermits // UPERMITS_PER_PERMIT)
            advance = Advance(limit.rate_upermits_per_s, burst, max(burst, limit.max_permits))
            if found is None or not found.most or advance < found:
                found = advance
        elif limit is not None and found is None:
            found = _CLOSED
    return found


class Terms(NamedTuple):
    delays: bool = False
    refuses: bool = False  # each message must be checked, because a rule refuses or shadows
    max_bytes: int | None = None
    confirm: Confirming | None = None
    advance: Advance | None = None

    @property
    def limits(self) -> bool:
        return self.delays or self.refuses or self.max_bytes is not None


NO_TERMS: Final = Terms()


class QueueKey(NamedTuple):
    """Identifies the queue of requests that are waiting for a limiter or a share.

    Resources do not get their own queues: when many resources share a limiter, each permit would be offered to many
    queues that cannot use it.
    """

    dimension: Dimension
    resource: Resource
    share: str


def unit_of(dimension: Dimension, rule: Rule) -> int:
    return BYTES if dimension == "bytes" else REQUESTS if rule.count == "requests" else MESSAGES


class ApplicableLimit:
    __slots__ = (
        *("_accounts", "_dimension", "_row", "by_answer", "delays", "fair_by", "holds", "registry", "resource"),
        *("rule", "unit"),
    )

    def __init__(self, registry: Registry, resource: Resource, rule: Rule, accounts: Accounts) -> None:
        self.registry = registry
        self.resource = resource
        self.rule = rule
        self.unit = unit_of(registry.dimension, rule)
        self.fair_by: FairBy | None = rule.fair_by
        self.holds = rule.action == "delay"
        self.delays = rule.delays
        # A request whose cost is determined by the response costs nothing while it is held.
        self.by_answer = self.delays and self.unit != REQUESTS
        self._accounts = accounts
        self._dimension = registry.number
        self._row = _NO_ROW

    def waits(self, caller: Caller) -> bool:
        return (self.holds and caller.may_wait) or not caller.refusable

    def spend(self, second: Second, now_ns: int, permits: int) -> None:
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
        self.exempt = exempt
        self.parts = self.enforcing = tuple(parts)
        self.shadows: tuple[tuple[ApplicableLimit, ...], ...] = ()
        self.adaptive = any(part.rule.adaptive for part in self.parts)
        self.has_bytes = any(part.unit == BYTES for part in self.parts)
        self.doubled = False  # whether two enforcing parts may be the same limiter, which is then charged twice
        # The only part, if it refuses requests, has no shares and does not limit bytes.
        self.only: ApplicableLimit | None = None
        if any(part.rule.action == "shadow" for part in self.parts):
            self._part_shadows()
        elif len(self.parts) == 1:
            first = self.parts[0]
            self.only = None if self.has_bytes or first.delays or first.fair_by is not None else first
        if len(self.enforcing) > 1:
            rules = [(part.registry.dimension, id(part.rule)) for part in self.enforcing]
            self.doubled = len(set(rules)) < len(rules)
        self._asked: dict[Asks, Plan] = {}
        most = [part.rule.max_permits for part in self.enforcing if part.unit == BYTES]
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
    def __init__(self, rule_set: RuleSet, registries: Mapping[Dimension, Registry], accounts: Accounts) -> None:
        self._accounts = accounts
        self._rule_set = rule_set
        self._registries = registries
        self._scopes = rule_set.scopes
        self.scoped = bool(rule_set.scopes)
        self.by_resources: dict[Sequence[Resource], Plan] = {}
        self._by_caller: dict[Caller, Plan] = {}
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
        if not self._scopes or caller.consumes or plan.exempt:
            return NO_PLAN
        scoped = self._by_caller.get(caller)
        if scoped is None:
            scoped = Plan(part for scope in scopes(caller) if scope.kind in self._scopes for part in self._of(scope))
            _remember(self._by_caller, caller, scoped)
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
