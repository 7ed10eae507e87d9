"""A rule defines a limit, the names that it applies to, and what to do with requests that exceed it."""

import re
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, get_args

from limiter.rules.errors import RuleError
from limiter.rules.patterns import Pattern, read_glob, read_network
from limiter.rules.resource import CLIENT, LISTENER, SCOPES, TOTAL, Resource
from limiter.rules.schedule import Hours

UPERMITS_PER_PERMIT: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

Action = Literal["reject", "shadow", "delay", "off"]
"""``shadow`` admits everything and counts the requests over the limit. ``off`` disables the rule."""
ShownAction = Literal["reject", "shadow", "delay", "off", "default"]
"""``default`` means that each connection uses its protocol's default action."""
Count = Literal["messages", "requests"]
FairBy = Literal["client", "producer_group", "certificate", "user", "topic", "queue", "exchange"]
"""The property that identifies the callers sharing a limit. Topic, queue and exchange require an adaptive limit."""
Confirm = Literal["broker", "after_consume"]
Fallback = Literal["persist", "nack"]
"""``persist`` lets the broker store messages that consumers do not confirm. ``nack`` refuses them."""
Dimension = Literal["messages", "bytes"]
"""The unit of a limit. If the rule counts requests, ``messages`` means requests."""
DIMENSIONS: Final[tuple[Dimension, ...]] = get_args(Dimension)

MAX_RATE_PER_S: Final = 1_000_000_000
"""Low enough that micro-permits fit into a signed 64-bit integer even with a burst of ``MAX_TIME_S``."""
MAX_TIME_S: Final = 3600
MAX_FAIR_KEYS: Final = 256
DEFAULT_MAX_FAIR_KEYS: Final = 32
OF_MESSAGES: Final = frozenset({"topic", "queue", "exchange"})
DEFAULT_FLOOR_PER_S: Final = 100.0
MAX_WEIGHT: Final = 1_000
_NO_BOUND_UPERMITS: Final = 1 << 62
ADAPTIVE_NAME: Final = "adaptive "
"""In records and answers, this prefix distinguishes refusals due to a slow broker from those due to a limit."""
FOR_THE_FLEET: Final = " for the fleet"
DEFAULT_BREAK_S: Final = 1.0
DEFAULT_MAX_DELAY_S: Final = 2.0
DEFAULT_MAX_DEBT_S: Final = 10.0
MAX_CONFIRM_BELOW_BYTES: Final = 1_048_576
"""Limits memory use, because each message is kept until it is confirmed."""
MAX_CONFIRM_QUEUES: Final = 1_000
DEFAULT_CONFIRM_BELOW_BYTES: Final = 4_096
DEFAULT_CONFIRM_WITHIN_S: Final = 5.0

_KIND = re.compile(r"[a-z][a-z0-9_]*")
_RATES_ALLOWED: Final = f"0 to {MAX_RATE_PER_S} messages per second, or unlimited"
_BYTES_ALLOWED: Final = f"0 to {MAX_RATE_PER_S} bytes per second"


class RuleKey(NamedTuple):
    kind: str
    pattern: str  # exact name, or pattern. Networks are in canonical form
    exact: bool
    shared: bool
    hours: Hours | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit for each matching name, or for all matching names together.

    Raises:
        RuleError: a value or a combination of values is invalid.
    """

    kind: str
    pattern: str  # exact name or glob, or for clients, address or network. ``*`` is the kind's default
    rate_per_s: float | None  # permits per second, in steps of a millionth. 0 refuses everything, None is unlimited
    burst_s: float = 1.0
    # 0 disables the breaker. None means 1 s, or the burst if that is shorter. For scopes, totals, delays and warm-ups,
    # None means 0.
    break_s: float | None = None
    count: Count = "messages"
    bytes_per_s: float | None = None
    bytes_burst_s: float = 1.0
    shared: bool = False  # one bucket for all matching names together, in addition to their own limits
    action: Action = "reject"
    credit_waits: bool = False
    # A request that would leave a larger debt is refused alone.
    max_debt_s: float = DEFAULT_MAX_DEBT_S
    max_delay_s: float = DEFAULT_MAX_DELAY_S
    # True: spool everything. False: spool nothing. None: spool requests that exceed the bounds on held requests.
    spool: bool | None = None
    busy_code: int | None = None
    fair_by: FairBy | None = None
    max_fair_keys: int = DEFAULT_MAX_FAIR_KEYS
    fleet: bool = False
    # Derive the rate from the broker's responses. Only for listeners.
    adaptive: bool = False
    floor_per_s: float = DEFAULT_FLOOR_PER_S
    ceiling_per_s: float | None = None
    weight: int = 1  # number of equal shares of an adaptive limit that each matching name gets
    warm_up_s: float = 0.0
    # Applies even if the rule has no limit. With action ``off``, the broker confirms.
    confirm: Confirm = "broker"
    confirm_below_bytes: int = DEFAULT_CONFIRM_BELOW_BYTES
    confirm_within_s: float = DEFAULT_CONFIRM_WITHIN_S
    confirm_queues: int | None = None
    fallback: Fallback = "persist"
    hours: Hours | None = None
    allow_under_limit: bool = False  # allow break_s to exceed burst_s, so that clients get less than the rate
    exempt: bool = False
    # The origin of the rule, for display: ``flag``, ``file:NAME``, ``built-in``, and so on.
    source: str = "default"
    # ``kind:pattern``, ``total:kind:pattern`` or ``adaptive kind:pattern``, followed by any hours.
    name: str = field(init=False, repr=False, compare=False)
    rate_upermits_per_s: int = field(init=False, repr=False, compare=False)
    capacity_upermits: int = field(init=False, repr=False, compare=False)
    max_debt_upermits: int = field(init=False, repr=False, compare=False)
    # The largest cost that can be admitted: the full burst plus the full debt.
    max_permits: int = field(init=False, repr=False, compare=False)
    burst_ns: int = field(init=False, repr=False, compare=False)
    break_ns: int = field(init=False, repr=False, compare=False)
    max_debt_ns: int = field(init=False, repr=False, compare=False)
    max_delay_ns: int = field(init=False, repr=False, compare=False)
    warm_up_ns: int = field(init=False, repr=False, compare=False)
    confirm_within_ns: int = field(init=False, repr=False, compare=False)
    matches: Pattern = field(init=False, repr=False, compare=False)
    bytes_rule: "Rule | None" = field(init=False, repr=False, compare=False)
    key: RuleKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind) or self.kind == TOTAL:
            raise RuleError(
                f"invalid rule kind {self.kind!r}",
                'lower-case letters, digits and _, starting with a letter; "total" is reserved',
                "kind",
            )
        self._derive("matches", read_network(self.pattern) if self.kind == CLIENT else read_glob(self.pattern))
        exact = self.exact_name is not None
        key = RuleKey(self.kind, self.exact_name or self.matches.text, exact, self.shared, self.hours)
        self._derive("key", key)
        self._derive("name", self.bare_name if self.hours is None else f"{self.bare_name} {self.hours}")
        rate = 0 if self.rate_per_s is None else self._scaled("rate_per_s", MAX_RATE_PER_S, UPERMITS_PER_PERMIT)
        burst_ns = self._seconds("burst_s")
        capacity = rate * burst_ns // NS_PER_S
        if self.rate_per_s and not capacity:
            raise RuleError(
                f"rule {self.name}: rate_per_s {self.rate_per_s} with burst_s {self.burst_s} is too low",
                "at least a millionth of a permit per burst, or a rate of 0",
                "rate_per_s",
            )
        self._derive("rate_upermits_per_s", rate)
        self._derive("capacity_upermits", capacity)
        self._derive("burst_ns", burst_ns)
        self._derive("max_debt_ns", self._seconds("max_debt_s"))
        self._derive("max_debt_upermits", debt_upermits(rate, self.max_debt_ns))
        self._derive("max_permits", (capacity + self.max_debt_upermits) // UPERMITS_PER_PERMIT)
        self._derive("max_delay_ns", self._seconds("max_delay_s"))
        self._derive("warm_up_ns", self._seconds("warm_up_s"))
        self._derive("confirm_within_ns", self._seconds("confirm_within_s"))
        self._derive("break_ns", self._checked_break_ns())
        self._check_words()
        self._check_confirm()
        if self.adaptive:
            self._check_adaptive()
            self._derive("max_debt_upermits", _NO_BOUND_UPERMITS)
            self._derive("max_permits", _NO_BOUND_UPERMITS // UPERMITS_PER_PERMIT)
        self._derive("bytes_rule", self._of_bytes())

    def __str__(self) -> str:
        return f"{self.bare_name}={self.limit_text}"

    @property
    def bare_name(self) -> str:
        """The name without the hours."""
        if self.shared:
            return f"{TOTAL}:{self.target}"
        return f"{ADAPTIVE_NAME}{self.target}" if self.adaptive else self.target

    @property
    def target(self) -> str:
        """The kind and the pattern, as in ``topic:orders``."""
        return f"{self.kind}:{self.matches.text}"

    @property
    def limit_text(self) -> str:
        """The limit as text: ``5 requests/s + 1024 bytes/s, shared by client``, ``unlimited`` or ``exempt``."""
        if self.exempt:
            return "exempt"
        if self.adaptive:
            return with_shares(adaptive_text(self.floor_per_s, self.ceiling_per_s), self.fair_by)
        texts = []
        if self.rate_per_s is not None:
            texts.append(self._rate_number + ("/s" if self.count == "messages" else " requests/s"))
        if self.bytes_rule is not None:
            texts.append(f"{self.bytes_rule._rate_number} bytes/s")  # noqa: SLF001 - also a rule
        return with_shares(" + ".join(texts) or "unlimited", self.fair_by) + (FOR_THE_FLEET if self.fleet else "")

    @property
    def _rate_number(self) -> str:
        whole, millionths = divmod(self.rate_upermits_per_s, UPERMITS_PER_PERMIT)
        return f"{whole}.{millionths:06}".rstrip("0").rstrip(".")

    @property
    def exact_name(self) -> str | None:
        return self.matches.exact_name

    @property
    def limits(self) -> bool:
        return self.action != "off" and (self.adaptive or self.rate_per_s is not None or self.bytes_per_s is not None)

    @property
    def shown_action(self) -> ShownAction:
        return "default" if self.credit_waits else self.action

    @property
    def delays(self) -> bool:
        return self.action == "delay" or self.credit_waits

    @property
    def confirms_after_consume(self) -> bool:
        return self.confirm == "after_consume" and self.action != "off"

    @property
    def break_in_force_s(self) -> float:
        return self.break_ns / NS_PER_S

    def part(self, dimension: Dimension) -> "Rule | None":
        if self.action == "off":
            return None
        if dimension == "bytes":
            return self.bytes_rule
        return self if self.adaptive or self.rate_per_s is not None else None

    def applies_to(self, resource: Resource) -> bool:
        """Return whether the rule matches a resource, ignoring hours and other rules."""
        return self.kind == resource.kind and self.matches.stands_for(resource.name)

    def _checked_break_ns(self) -> int:
        no_breaker = 'action "delay"' if self.action == "delay" else "warm_up_s" if self.warm_up_s else None
        if self.fleet:
            no_breaker = "fleet"
        if self.credit_waits:
            no_breaker = "the default action of AMQP 1.0 (wait for credit)"
        if self.break_s is None:
            harmful = no_breaker is not None or self.shared or self.kind in SCOPES
            return 0 if harmful else min(round(DEFAULT_BREAK_S * NS_PER_S), self.burst_ns)
        break_ns = self._seconds("break_s")
        if break_ns and no_breaker is not None:
            what = (
                f"rule {self.name}: break_s {self.break_s} cannot be combined with {no_breaker}, which has no breaker"
            )
            raise RuleError(what, "0", "break_s")
        if break_ns > self.burst_ns and self.rate_per_s is not None and not self.allow_under_limit:
            raise RuleError(
                f"rule {self.name}: break_s {break_ns / NS_PER_S:g} is longer than burst_s {self.burst_s},"
                " so clients would get less than the limit",
                f"0 to {self.burst_s}, or allow_under_limit = true",
                "break_s",
            )
        return break_ns

    def _check_words(self) -> None:
        words: tuple[tuple[str, object, tuple[str, ...]], ...] = (
            ("action", self.action, get_args(Action)),
            ("count", self.count, get_args(Count)),
            ("fair_by", self.fair_by, get_args(FairBy)),
            ("confirm", self.confirm, get_args(Confirm)),
            ("fallback", self.fallback, get_args(Fallback)),
        )
        for attribute, value, allowed in words:
            if value not in allowed and not (attribute == "fair_by" and value is None):
                raise RuleError(f"rule {self.name}: invalid {attribute} {value!r}", ", ".join(allowed), attribute)
        if self.exempt:
            self._check_exempt()
        if self.shared and self.exact_name is not None:
            raise RuleError(f"rule {self.name}: a shared rule must match more than one name", "a pattern", "shared")
        if self.fleet and (self.fair_by is not None or self.warm_up_s):
            other = "warm_up_s" if self.fair_by is None else "fair_by"
            raise RuleError(f"rule {self.name}: fleet cannot be combined with {other}", "only one of them", "fleet")
        if self.fleet and self.rate_per_s is None and self.bytes_per_s is None:
            raise RuleError(f"rule {self.name}: fleet requires a limit", "a rate or bytes_per_s", "fleet")
        if self.fair_by is not None and self.warm_up_s:
            raise RuleError(
                f"rule {self.name}: fair_by cannot be combined with warm_up_s", "only one of them", "fair_by"
            )
        if self.fair_by in OF_MESSAGES and not self.adaptive:
            raise RuleError(
                f"rule {self.name}: fair_by {self.fair_by!r} requires adaptive = true",
                f"adaptive = true, or a separate limit for each {self.fair_by} instead of fair_by",
                "fair_by",
            )
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise RuleError(f"rule {self.name}: invalid weight {self.weight!r}", f"1 to {MAX_WEIGHT}", "weight")
        if self.fair_by == self.kind and not self.shared:
            what = (
                f"rule {self.name}: fair_by {self.fair_by!r} has no effect,"
                f" because each {self.kind} has a separate limit"
            )
            raise RuleError(what, "fair_by together with shared = true, or no fair_by", "fair_by")
        if not 1 <= self.max_fair_keys <= MAX_FAIR_KEYS:
            what = f"rule {self.name}: invalid max_fair_keys {self.max_fair_keys}"
            raise RuleError(what, f"1 to {MAX_FAIR_KEYS}", "max_fair_keys")

    def _check_confirm(self) -> None:
        if self.confirm == "after_consume" and (self.shared or self.kind in SCOPES):
            what = f'rule {self.name}: confirm "after_consume" applies to single resources, not to scopes or totals'
            raise RuleError(what, "a kind of resource, without shared", "confirm")
        if not self.confirm_within_ns:
            what = f"rule {self.name}: confirm_within_s {self.confirm_within_s} is too short for any consumer"
            raise RuleError(what, f"more than 0 and at most {MAX_TIME_S} seconds", "confirm_within_s")
        if not 1 <= self.confirm_below_bytes <= MAX_CONFIRM_BELOW_BYTES:
            what = f"rule {self.name}: invalid confirm_below_bytes {self.confirm_below_bytes}"
            raise RuleError(what, f"1 to {MAX_CONFIRM_BELOW_BYTES} bytes", "confirm_below_bytes")
        if self.confirm_queues is not None and not 1 <= self.confirm_queues <= MAX_CONFIRM_QUEUES:
            what = f"rule {self.name}: invalid confirm_queues {self.confirm_queues}"
            raise RuleError(what, f"1 to {MAX_CONFIRM_QUEUES}", "confirm_queues")

    def _check_adaptive(self) -> None:
        what = f"rule {self.name}: adaptive"
        if self.kind != LISTENER or self.shared:
            only = f'{what} = true requires kind = "{LISTENER}"{" and no shared" * self.shared}'
            otherwise = "a rate" if self.kind in SCOPES or self.shared else "a rate or a weight"
            raise RuleError(only, f"{otherwise} for {self.kind} {self.pattern}", "adaptive")
        for attribute, rate in (("rate_per_s", self.rate_per_s), ("bytes_per_s", self.bytes_per_s)):
            if rate is not None:
                allowed = f"either adaptive = true with floor and ceiling, or {attribute}"
                raise RuleError(f"{what} cannot be combined with {attribute}", allowed, attribute)
        if self.action == "delay" or self.credit_waits:
            raise RuleError(f'{what} cannot be combined with action "delay"', "reject, shadow or off", "action")
        if self.warm_up_s or self.break_ns:
            attribute = "warm_up_s" if self.warm_up_s else "break_s"
            raise RuleError(f"{what} cannot be combined with {attribute}", "only one of them", attribute)
        floor, ceiling = self.floor_per_s, self.ceiling_per_s
        if not 1 <= floor <= MAX_RATE_PER_S:
            raise RuleError(
                f"{what} floor {floor!r} is out of range", f"1 to {MAX_RATE_PER_S} messages per second", "floor_per_s"
            )
        if ceiling is not None and not floor <= ceiling <= MAX_RATE_PER_S:
            is_below = f"{what} ceiling {ceiling:.15g} is below the floor of {floor:.15g}"
            raise RuleError(
                is_below if ceiling < floor else f"{what} ceiling {ceiling!r} is out of range",
                f"from the floor to {MAX_RATE_PER_S} messages per second",
                "ceiling_per_s",
            )

    def _check_exempt(self) -> None:
        if self.rate_per_s is not None or self.bytes_per_s is not None:
            raise RuleError(f"rule {self.name}: exempt cannot be combined with a limit", "only one of them", "exempt")
        if self.shared or self.kind in SCOPES:
            what = f"rule {self.name}: exempt applies to resources, not to scopes or totals"
            raise RuleError(
                what,
                "a kind of resource, without shared; to exempt clients, use the listener's exempt setting",
                "exempt",
            )

    def _of_bytes(self) -> "Rule | None":
        if self.bytes_per_s is None:
            return None
        try:
            return replace(
                self, rate_per_s=self.bytes_per_s, burst_s=self.bytes_burst_s, bytes_per_s=None, count="messages"
            )
        except RuleError as error:
            allowed = error.allowed.replace(_RATES_ALLOWED, _BYTES_ALLOWED).replace("of a permit", "of a byte")
            attribute = error.attribute and _in_bytes(error.attribute)
            raise RuleError(_in_bytes(error.what), allowed, attribute) from None

    def _seconds(self, attribute: str) -> int:
        return self._scaled(attribute, MAX_TIME_S, NS_PER_S)

    def _scaled(self, attribute: str, most: int, scale: int) -> int:
        value: object = getattr(self, attribute)
        allowed = _RATES_ALLOWED if attribute == "rate_per_s" else f"0 to {most} seconds"
        # Also false for NaN.
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most:
            return round(value * scale)
        raise RuleError(f"rule {self.kind}:{self.pattern}: invalid {attribute} {value!r}", allowed, attribute)

    def _derive(self, attribute: str, value: object) -> None:
        object.__setattr__(self, attribute, value)


def with_shares(text: str, fair_by: str | None) -> str:
    return f"{text}, shared by {fair_by.replace('_', ' ')}" if fair_by else text


def adaptive_text(floor_per_s: float, ceiling_per_s: float | None) -> str:
    most = "" if ceiling_per_s is None else f", at most {ceiling_per_s:.15g}/s"
    return f"adaptive, at least {floor_per_s:.15g}/s{most}"


def debt_upermits(rate_upermits_per_s: int, max_debt_ns: int) -> int:
    """Return the maximum debt in micro-permits. It is at least one permit, so that every limit can admit a request."""
    return max(UPERMITS_PER_PERMIT, rate_upermits_per_s * max_debt_ns // NS_PER_S)


def _in_bytes(text: str) -> str:
    return text.replace("rate_per_s", "bytes_per_s").replace("burst_s", "bytes_burst_s")
