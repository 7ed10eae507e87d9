"""Plans: which limits apply to a request, worked out once for each set of resources and each caller.

A plan is a matter of the rules alone: what is stored, held or open has no part in it. Plans are remembered as
long as the rules that they are made of, as many as fit in a bound, since names and addresses come from clients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

from limiter.buckets.limiter import Gate, Limiter
from limiter.counting.accounts import Accounts
from limiter.counting.row import Row, Second
from limiter.plans.registry import Registry
from limiter.rules.resource import CLIENT, LISTENER, PRODUCER_GROUP, TOTAL, Resource
from limiter.rules.rule import UPERMITS_PER_PERMIT, Dimension, FairBy, Rule
from limiter.rules.rule_set import RuleSet

_MAX_REMEMBERED: Final = 16_384
"""Plans remembered of each sort. One that is not takes some ten microseconds to make."""

_MAX_RESOURCES: Final = 8
"""Plans for more are not remembered: clients may name many, and always others."""

MESSAGES: Final = 0
REQUESTS: Final = 1
BYTES: Final = 2
"""Units of cost; also where the costs in that unit stand in a tuple of all three."""

_NO_ROW: Final = Row(Resource("", ""))
_NO_ROW.retired = True

Asks = Literal["all", "delaying", "refusing"]
"""Which rules decide: all that apply; those that hold what is over them; or the others, which refuse it, or shadow.

Where a receiver says how many messages may come, the former decide how many, and the latter on each as it comes."""

K = TypeVar("K")
V = TypeVar("V")


class Caller(NamedTuple):
    """Who asks: the scopes a request belongs to, and the keys of its fair shares.

    Attributes:
        client: the client's IP address.
        producer_group: the group it sends for, or empty.
        listener: the scope of its listener.
        consumes: it takes messages; the scopes of those who send do not limit it.
        by_answer: what it costs is known from its answer.
        refusable: it can be refused. What cannot waits for as long as it takes, whatever the rules' action.
        scopes: others that its connection belongs to, such as its user, in the order in which they are asked.
        asks: which rules it asks.
        may_wait: it can be held. What a rule would hold of it is refused else.
    """

    client: str
    producer_group: str
    listener: str
    consumes: bool = False
    by_answer: bool = False
    refusable: bool = True
    scopes: tuple[Resource, ...] = ()
    asks: Asks = "all"
    may_wait: bool = True

    def share_key(self, fair_by: FairBy) -> str:
        """Return whose share of a limit it takes; empty where that is not known."""
        if fair_by == CLIENT:
            return self.client
        if fair_by == PRODUCER_GROUP:
            return self.producer_group
        return next((scope.name for scope in self.scopes if scope.kind == fair_by), "")


def gate_of(limiter: Limiter, caller: Caller, now_ns: int) -> Gate:
    """Return what decides for a caller: the limiter, or the caller's share of it."""
    fair_by = limiter.rule.fair_by
    if fair_by is None:
        return limiter
    return limiter.share(caller.share_key(fair_by), now_ns)


class Confirming(NamedTuple):
    """Which messages their consumers confirm to the sender, in place of the broker.

    Attributes:
        below_bytes: those that are smaller than this, in bytes.
        within_ns: how long the consumers have, in nanoseconds.
        queues: how many queues each message goes to, and so how many acks confirm it; None if the rule does not say it.
        persists: one that they do not confirm the broker is to store, and then confirms; otherwise the sender is told
            that it failed.
    """

    below_bytes: int
    within_ns: int
    queues: int | None
    persists: bool


class Advance(NamedTuple):
    """How many messages the tightest of some limits lets through.

    Attributes:
        rate: in micro-permits per second.
        burst: at once.
        most: at once, with all the debt that one message may leave; 0 if the limit admits nothing at all.
    """

    rate: int
    burst: int
    most: int


#: Of limits that admit nothing: a refusal needs a message.
_CLOSED: Final = Advance(UPERMITS_PER_PERMIT, 2, 0)


def advance_of(rules: Iterable[Rule]) -> Advance | None:
    """Return that of the tightest rule that limits messages; None if there is none."""
    found: Advance | None = None
    for rule in rules:
        limit = None if rule.exempt or rule.action == "shadow" else rule.part("messages")
        if limit is not None and limit.rate_upermits_per_s:
            burst = max(1, limit.capacity_upermits // UPERMITS_PER_PERMIT)
            advance = Advance(limit.rate_upermits_per_s, burst, max(burst, limit.most_permits))
            if found is None or not found.most or advance < found:
                found = advance
        elif limit is not None and found is None:
            found = _CLOSED
    return found


class Terms(NamedTuple):
    """What rules in force say to messages for some resources, before one comes.

    Attributes:
        delays: some rule holds what is over it, so that credit for them is to be asked for.
        refuses: some rule refuses what is over it, or shadows, so that each message is to be decided.
        most_bytes: the largest message that the limits of bytes admit at once, in bytes; None is any.
        confirm: which of them consumers confirm; None is none. It limits nothing.
        advance: of the tightest limit of messages; None if there is none.
    """

    delays: bool = False
    refuses: bool = False
    most_bytes: int | None = None
    confirm: Confirming | None = None
    advance: Advance | None = None

    @property
    def limits(self) -> bool:
        """Whether any of them may be limited."""
        return self.delays or self.refuses or self.most_bytes is not None


NO_TERMS: Final = Terms()


class QueueKey(NamedTuple):
    """Where requests wait in line: for one limiter, or for one share of it.

    It is what decides that has a line, not what is asked for: names come from clients, and where many share one
    limiter or one share, a line for each would be asked in vain whenever one permit is there.

    Attributes:
        dimension: what the limiter limits.
        resource: what the limiter stands under.
        share: the key of the share; empty where no shares are kept apart.
    """

    dimension: Dimension
    resource: Resource
    share: str


def unit_of(dimension: Dimension, rule: Rule) -> int:
    """Return what a request costs under a rule that limits this dimension."""
    return BYTES if dimension == "bytes" else REQUESTS if rule.count == "requests" else MESSAGES


class ApplicableLimit:
    """One limit that applies: whose, in what, and where its limiter lives.

    Attributes:
        registry: where.
        resource: the resource, scope or total that is limited.
        rule: the rule, with this dimension as its only limit.
        unit: what a request costs there: its messages, one permit or its bytes.
        fair_by: whose shares are kept apart.
        delays: some of what is over the limit waits: for credit, or as ``holds`` says.
        holds: a request over the limit is held for a while.
        by_answer: what is held costs nothing yet if it is charged by its answer.
    """

    __slots__ = (
        "_accounts",
        "_dimension",
        "_row",
        "_unused",
        "by_answer",
        "delays",
        "fair_by",
        "holds",
        "registry",
        "resource",
        "rule",
        "unit",
    )

    def __init__(self, registry: Registry, resource: Resource, rule: Rule, accounts: Accounts) -> None:
        self.registry = registry
        self.resource = resource
        self.rule = rule
        self.unit = unit_of(registry.dimension, rule)
        self.fair_by: FairBy | None = rule.fair_by
        self.holds = rule.action == "delay"
        self.delays = self.holds or rule.credit_waits
        self.by_answer = self.delays and self.unit != REQUESTS
        self._accounts = accounts
        self._dimension = registry.number
        self._row = _NO_ROW
        #: Of the permits of which it was noted that they were spent, those that were given back since.
        self._unused = 0

    def waits(self, caller: Caller) -> bool:
        """Say whether a request over the limit waits rather than being refused."""
        return (self.holds and caller.may_wait) or not caller.refusable

    def spend(self, second: Second, now_ns: int, permits: int) -> None:
        """Note that something was asked in the second under way, and the permits that were spent for it."""
        self.row(now_ns).spend(second, self._dimension, permits)

    def spend_on_credit(self, second: Second, now_ns: int, permits: int) -> None:
        """Note the permits that were spent on credit. What is given back, below 0, comes off what is spent next."""
        unused = self._unused - permits
        self._unused = max(0, unused)
        self.row(now_ns).spend(second, self._dimension, max(0, -unused))

    def row(self, now_ns: int) -> Row:
        """Return the row of what is limited."""
        row = self._row
        if row.retired:
            row = self._accounts.row(self.resource, now_ns)
            if not row.shared:
                self._row = row
        return row

    def line(self, gate: Gate) -> QueueKey:
        """Return where requests wait for what decides."""
        return QueueKey(self.registry.dimension, gate.resource, gate.key)


class Plan:
    """All limits that apply, in the order in which they are asked.

    Attributes:
        parts: all of them.
        enforcing: those that stop what is over them.
        shadows: the others; those of one rule and resource stand together.
        only: the one part, if there is no other, and it is of the plain sort: it refuses and makes no difference
            between callers, and its costs are messages or requests.
        doubled: two of the enforcing may be one limiter, which is then charged for both.
        has_bytes: some part limits bytes.
        exempt: nothing limits what it is for, the scopes of the caller included.
        terms: what it says to a message before it comes.
    """

    __slots__ = ("_asked", "doubled", "enforcing", "exempt", "has_bytes", "only", "parts", "shadows", "terms")

    def __init__(
        self, parts: Iterable[ApplicableLimit], *, exempt: bool = False, confirm: Confirming | None = None
    ) -> None:
        self.exempt = exempt
        self.parts = self.enforcing = tuple(parts)
        self.shadows: tuple[tuple[ApplicableLimit, ...], ...] = ()
        self.has_bytes = any(part.unit == BYTES for part in self.parts)
        self.doubled = False
        self.only: ApplicableLimit | None = None
        if any(part.rule.action == "shadow" for part in self.parts):
            self._part_shadows()
        elif len(self.parts) == 1:
            first = self.parts[0]
            self.only = None if self.has_bytes or first.delays or first.fair_by is not None else first
        if len(self.enforcing) > 1:
            # What the registry has no room for shares one limiter with others of its rule, as does all of one total.
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
        """Return the plan of only those parts that are asked."""
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
    """The plans under one rule set.

    Args:
        rule_set: the rules in force.
        registries: where limiters live, by what they limit.
        accounts: where it is noted what limits spend.

    Attributes:
        by_resources: the plans that ``of`` remembers; one that is not there must be asked for.
        scoped: some rule limits scopes.
    """

    __slots__ = (
        "_accounts",
        "_by_asker",
        "_parts",
        "_registries",
        "_rule_set",
        "_scopes",
        "by_resources",
        "scoped",
    )

    def __init__(self, rule_set: RuleSet, registries: Mapping[Dimension, Registry], accounts: Accounts) -> None:
        self._accounts = accounts
        self._rule_set = rule_set
        self._registries = registries
        self._scopes = rule_set.scopes
        self.scoped = bool(rule_set.scopes)
        self.by_resources: dict[Sequence[Resource], Plan] = {}
        self._by_asker: dict[Caller, Plan] = {}
        #: One part for each limit, whichever plans it stands in.
        self._parts: dict[tuple[Dimension, Resource], ApplicableLimit] = {}

    def of(self, resources: Sequence[Resource]) -> Plan:
        """Return what applies to resources, given as a tuple."""
        plan = self.by_resources.get(resources)
        if plan is None:
            exempt = bool(resources) and all(self._rule_set.match(resource).exempt for resource in resources)
            parts = (part for resource in resources for part in self._of(resource))
            plan = Plan(parts, exempt=exempt, confirm=self._confirming(resources))
            if len(resources) <= _MAX_RESOURCES:
                _remember(self.by_resources, resources, plan)
        return plan

    def _confirming(self, resources: Sequence[Resource]) -> Confirming | None:
        """Return what the first of some resources that has a rule for it says of confirms."""
        for resource in resources:
            rule = self._rule_set.match(resource)
            if rule.confirms_after_consume and self._rule_set.limiting(resource):
                persists = rule.fallback == "persist"
                return Confirming(rule.confirm_below_bytes, rule.confirm_within_ns, rule.confirm_queues, persists)
        return None

    def of_scopes(self, caller: Caller, plan: Plan) -> Plan:
        """Return what applies to a caller besides the plan of what is asked for."""
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
    """Yield the scopes that a caller belongs to, in the order in which they are asked."""
    if caller.client:
        yield Resource(CLIENT, caller.client)
    if caller.producer_group:
        yield Resource(PRODUCER_GROUP, caller.producer_group)
    yield from caller.scopes
    if caller.listener:
        yield Resource(LISTENER, caller.listener)
