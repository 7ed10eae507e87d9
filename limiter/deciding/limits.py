"""Finds and checks the limits that apply to a request.

A request is subject to the limits of its resources and scopes, and to the totals for both.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from limiter.buckets.adaptive import AdaptiveLimiter
from limiter.buckets.cell import Cell
from limiter.buckets.fleet import FleetLimiter
from limiter.buckets.limiter import Limiter, LimiterState
from limiter.buckets.saved import SavedLimiter, bound_debt
from limiter.compiled import COMPILED
from limiter.counting.accounts import Accounts, Usage
from limiter.counting.row import Row
from limiter.deciding.acquirer import Acquirer
from limiter.deciding.explain import Applied, explain
from limiter.fleet.member import Member
from limiter.plans.plans import (
    MESSAGES,
    NO_PLAN,
    REQUESTS,
    Advance,
    ApplicableLimit,
    Caller,
    Plan,
    Plans,
    Terms,
    advance_of,
    gate_of,
    unit_of,
)
from limiter.plans.registry import DEFAULT_MAX_LIVE, Registry, Spent
from limiter.rules.resource import LISTENER, TOTAL, Resource
from limiter.rules.rule import NS_PER_S, UPERMITS_PER_PERMIT, Dimension, Rule
from limiter.rules.rule_set import RuleSet
from limiter.waiting.delays import Decision, Delays, Granted, too_large
from limiter.waiting.holding import BoundName, HeldNow, Holding
from limiter.waiting.lines import Credit, Denial, Held, ShadowDenial, Wait

if TYPE_CHECKING:
    from sluice_native import Callers, Resources, Shares

__all__ = [
    "Applied",
    "Caller",
    "Credit",
    "Decision",
    "Denial",
    "Granted",
    "Held",
    "Limits",
    "SavedLimits",
    "ShadowDenial",
    "Spent",
    "Terms",
    "Usage",
]

PlainLimit = tuple[Cell, Row, int, bool]
"""A limit as the compiled extension gets it: state, row, unit of costs, and whether requests may wait for it."""


class PlainOfCaller(NamedTuple):
    """The limits on a caller's scopes. ``limits`` is None if the compiled extension cannot check them."""

    limits: tuple[PlainLimit, ...] | None
    shares: "Shares | None"


class PlainDefault(NamedTuple):
    full: Limiter | None  # the limiter of a new name. None if unlimited
    bare_name: str
    unit: int
    waits: bool
    ends: Sequence[tuple[str, str]]  # prefixes and suffixes of names that may have other rules


class SavedLimits(NamedTuple):
    at_ns: int
    limiters: dict[Dimension, list[SavedLimiter]]
    reserved: Sequence[Spent] = ()


_PLAIN: Final = (Limiter, FleetLimiter)
"""Limiters that decide by their bucket alone, so that the compiled extension may spend from it."""
_NS_PER_US: Final = 1_000
_MAX_CALLERS: Final = 1024
_MORE_NAMES: Final = 50_000
"""Maximum number of names that the compiled extension caches, not counting those that may have limiters."""


class Limits:
    """All limits of one data path.

    Args:
        max_live: maximum number of limiters per dimension for names that do not have their own rule.
        accounts: counts spent permits. If None, new accounts are created.
        fleet: leases permits for fleet limits. If None, these limits apply to this process alone.
    """

    def __init__(
        self,
        rule_set: RuleSet,
        max_live: int = DEFAULT_MAX_LIVE,
        accounts: Accounts | None = None,
        fleet: Member | None = None,
    ) -> None:
        self._registries: dict[Dimension, Registry] = {
            "messages": Registry(rule_set, max_live, "messages", fleet),
            "bytes": Registry(rule_set, max_live, "bytes", fleet),
        }
        self._accounts = Accounts() if accounts is None else accounts
        self._accounts.pin(rule_set.own)
        self._plans = Plans(rule_set, self._registries, self._accounts)
        self._fleet = fleet
        self.swaps = 0
        self._note_rules(rule_set)
        self._tightest: dict[frozenset[str], Advance | None] = {}
        self.holding = Holding(self._check_again, self._expire)
        self.delays = Delays(self.holding)
        self._acquirer = Acquirer(self.delays, self._accounts)
        self.resources: Resources | None = None
        self._callers: dict[Caller, Callers] = {}
        self._shares: dict[Resource, Shares] = {}
        if COMPILED is not None:
            callbacks = (self._plain_of, self._default_of, self._accounts.row, self.delays.can_grant_all)
            live = [registry.limiters for registry in self._registries.values()]
            self.resources = COMPILED.Resources(*callbacks, max_live + _MORE_NAMES, live, rule_set.own)

    @property
    def rule_set(self) -> RuleSet:
        return self._registries["messages"].rule_set

    @property
    def live(self) -> int:
        return sum(registry.live for registry in self._registries.values())

    @property
    def evicted_total(self) -> int:
        return sum(registry.evicted_total for registry in self._registries.values())

    @property
    def overflowed_total(self) -> int:
        return sum(registry.overflowed_total for registry in self._registries.values())

    @property
    def held(self) -> HeldNow:
        return self.holding.now

    @property
    def refused_by_bound(self) -> Counter[BoundName]:
        return self.holding.refused_by_bound

    def swap(self, rule_set: RuleSet, now_ns: int) -> None:
        self.swaps += 1
        self._note_rules(rule_set)
        self._tightest.clear()
        own = rule_set.own_since(self.rule_set)
        for registry in self._registries.values():
            registry.swap(rule_set, now_ns, own)
        self._accounts.pin(resource for resource, pinned in own.items() if pinned)
        self._accounts.unpin(resource for resource, pinned in own.items() if not pinned)
        self._plans = Plans(rule_set, self._registries, self._accounts)
        if self.resources is not None:
            self._callers.clear()
            self._shares.clear()
            self.resources.swap(
                self.swaps, rule_set.own, {kind: self._default_of(kind) for kind in self.resources.kinds}
            )
        self.holding.recheck_all_soon(now_ns)

    def callers(self, caller: Caller) -> "Callers | None":
        """Return a caller's limits in the compiled extension's form, or None if no rule limits scopes."""
        if not self._plans.scoped or COMPILED is None:
            return None
        callers = self._callers.get(caller)
        if callers is None:
            callers = COMPILED.Callers(partial(self._plain_of_caller, caller))
            if len(self._callers) >= _MAX_CALLERS:
                self._callers.clear()
            self._callers[caller] = callers
        return callers

    def adaptive(self, listener: str, now_ns: int) -> AdaptiveLimiter | None:
        resource = Resource(LISTENER, listener)
        rule = self.rule_set.limit(resource, "messages")
        limiter = None if rule is None or not rule.adaptive else self._registries["messages"].get(resource, now_ns)
        if not isinstance(limiter, AdaptiveLimiter):
            return None
        if limiter.swaps != self.swaps:
            limiter.swaps = self.swaps
            limiter.set_weight_of(self._weight_of)
        return limiter

    def _weight_of(self, key: str) -> int:
        return self.rule_set.match(Resource(*key.split(":", 1))).weight

    def _note_rules(self, rule_set: RuleSet) -> None:
        self.only_refuse = all(rule.action in {"reject", "off"} for rule in rule_set.in_force)
        self.limit_bytes = any(rule.bytes_per_s is not None for rule in rule_set.in_force)
        if self._fleet is not None:
            self._fleet.note_rules(rule_set.in_force)

    def refuses(self, resources: tuple[Resource, ...], caller: Caller) -> bool:
        """Return whether requests above a limit are refused, rather than held or shadowed."""
        plan, scoped, _ = self._asked(resources, caller)
        return not (plan.shadows or scoped.shadows) and not any(
            part.waits(caller) for part in plan.enforcing + scoped.enforcing
        )

    def _plain_of(self, resources: tuple[Resource, ...], now_ns: int) -> tuple[PlainLimit, ...] | None:
        plan = self._plans.of(resources)
        return None if plan.exempt and self._plans.scoped else self._plain(plan, now_ns)

    def _default_of(self, kind: str) -> PlainDefault | None:
        rule_set = self.rule_set
        rule, ends = rule_set.default(kind), rule_set.ends(kind)
        if ends is None or rule.exempt:
            return None
        limiting = rule_set.limiting(Resource(kind, ""))
        parts = [(dimension, rule.part(dimension)) for dimension in self._registries] if limiting else []
        limits = [(dimension, part) for dimension, part in parts if part is not None]
        if not limits:
            return PlainDefault(None, "", MESSAGES, waits=False, ends=ends)
        (dimension, part), *more = limits
        if more or part.action == "shadow" or part.fair_by is not None or part.warm_up_ns or part.fleet:
            return None
        full = Limiter(Resource(kind, ""), part, 0)
        return PlainDefault(full, part.bare_name, unit_of(dimension, part), part.delays, ends)

    def _plain_of_caller(self, caller: Caller, producer_group: str, now_ns: int) -> PlainOfCaller:
        caller = caller._replace(producer_group=producer_group)
        plan = self._plans.of_scopes(caller, NO_PLAN)
        adaptive = next((part for part in plan.parts if part.rule.adaptive), None)
        limits = self._plain(plan, now_ns)
        limiter = None if adaptive is None else adaptive.registry.get(adaptive.resource, now_ns)
        if limits is None or adaptive is None or not isinstance(limiter, AdaptiveLimiter) or COMPILED is None:
            return PlainOfCaller(limits, None)
        if not limiter.is_by_name:
            share = limiter.plain_share(caller.share_key(limiter.rule.fair_by), now_ns)
            of_caller = None if share is None else (*limits, (share, adaptive.row(now_ns), adaptive.unit, False))
            return PlainOfCaller(of_caller, None)
        shares = self._shares.get(limiter.resource)
        if shares is None:
            shares = self._shares[limiter.resource] = COMPILED.Shares(partial(_share_of, adaptive))
        return PlainOfCaller(limits, shares)

    def _plain(self, plan: Plan, now_ns: int) -> tuple[PlainLimit, ...] | None:
        if plan.doubled or any(not part.rule.adaptive for parts in plan.shadows for part in parts):
            return None
        found = []
        for part in plan.enforcing:
            limiter = part.registry.get(part.resource, now_ns)
            if limiter is None or part.rule.adaptive:
                continue
            if type(limiter) not in _PLAIN or limiter.resource != part.resource:
                # The limiter has varying prices or shares, or is an overflow limiter.
                return None
            found.append((limiter, part.row(now_ns), part.unit, part.delays))
        return tuple(found)

    def decide(
        self,
        now_ns: int,
        resources: tuple[Resource, ...],
        caller: Caller,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
    ) -> Decision:
        """Admit the longest prefix of the requests that every limit admits.

        If the next request was stopped because of its size, call this again for the requests after it. ``size_bytes``
        is called only if a rule limits bytes.
        """
        plans = self._plans
        plan = plans.of(resources)
        count = len(messages)
        scoped = plans.of_scopes(caller, plan) if plans.scoped else NO_PLAN
        if caller.asks != "all":
            plan, scoped = plan.asked(caller.asks), scoped.asked(caller.asks)
        part = plan.only
        if part is None or scoped.parts or not caller.refusable:
            if scoped.adaptive:
                caller = caller._replace(resources=resources)
            return self._decide_together(now_ns, plan, caller, messages, size_bytes, scoped=scoped)
        limiter = part.registry.get(part.resource, now_ns)
        if limiter is None or not count:
            return Decision(count)
        costs = (1,) * count if part.unit == REQUESTS else messages
        admitted, wait_us, alone = limiter.acquire(now_ns, costs)
        part.spend(self._accounts.at(now_ns), now_ns, sum(costs if admitted == count else costs[:admitted]))
        if admitted == count:
            return Decision(count)
        if alone:
            return Decision(admitted, too_large(part, limiter.rule, costs[admitted], wait_us), alone=alone)
        return Decision(admitted, Denial(part.resource, limiter.rule, wait_us))

    def _decide_together(
        self,
        now_ns: int,
        plan: Plan,
        caller: Caller,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
        *,
        scoped: Plan,
        held: Held | None = None,
    ) -> Decision:
        if not messages:
            return Decision(0)
        sizes = size_bytes() if plan.has_bytes or scoped.has_bytes else ()
        enforcing = plan.enforcing + scoped.enforcing
        decision = self._acquirer.ask(now_ns, enforcing, caller, messages, sizes, held=held, doubled=plan.doubled)
        shadows = plan.shadows + scoped.shadows
        admitted = decision.admitted
        if shadows and admitted:
            shadow_denials = self._acquirer.shadow_denials(
                now_ns, shadows, caller, messages[:admitted], sizes[:admitted]
            )
            return decision._replace(shadow_denials=shadow_denials) if shadow_denials else decision
        return decision

    def grant(
        self, now_ns: int, resources: tuple[Resource, ...], caller: Caller, credit: Credit, held: Held | None = None
    ) -> Granted:
        plan, scoped, caller = self._asked(resources, caller)
        if not plan.parts and not scoped.parts:
            return Granted(credit.most)
        return self._acquirer.grant(now_ns, plan, scoped, caller, credit, held=held)

    def grant_at_once(self, now_ns: int, resources: tuple[Resource, ...], caller: Caller, credit: Credit) -> bool:
        plan, scoped, _ = self._asked(resources, caller)
        if plan.doubled or plan.shadows or scoped.shadows:
            return False
        parts = plan.enforcing + scoped.enforcing
        return not parts or self._acquirer.grant_at_once(now_ns, parts, caller, credit)

    def _asked(self, resources: tuple[Resource, ...], caller: Caller) -> tuple[Plan, Plan, Caller]:
        plan = self._plans.of(resources)
        scoped = self._plans.of_scopes(caller, plan) if self._plans.scoped else NO_PLAN
        asked = caller._replace(resources=resources) if scoped.adaptive else caller
        return plan.asked(caller.asks), scoped.asked(caller.asks), asked

    def terms(self, resources: tuple[Resource, ...], caller: Caller) -> Terms:
        """Return how the caller's requests for ``resources`` are limited. Valid until ``swaps`` changes."""
        plan = self._plans.of(resources)
        terms = plan.terms
        if not self._plans.scoped:
            return terms
        more = self._plans.of_scopes(caller, plan).terms
        most = min((most for most in (terms.max_bytes, more.max_bytes) if most is not None), default=None)
        advance = min((each.advance for each in (terms, more) if each.advance is not None), default=None)
        return Terms(terms.delays or more.delays, terms.refuses or more.refuses, most, terms.confirm, advance)

    def tightest(self, kinds: Collection[str]) -> Advance | None:
        key = frozenset(kinds)
        if key not in self._tightest:
            self._tightest[key] = advance_of(rule for rule in self.rule_set.in_force if rule.kind in key)
        return self._tightest[key]

    def _check_again(self, held: Held, now_ns: int) -> Denial | Wait | None:
        caller = held.caller
        if held.credit is not None:
            granted = self.grant(now_ns, held.resources, caller, held.credit, held)
            held.messages = granted.messages
            return self.delays.credit_waits(now_ns, granted.stops, held) if granted.stops else None
        plan, scoped, caller = self._asked(held.resources, caller)
        size_bytes = (0 if caller.by_answer else held.size_bytes,)
        decision = self._decide_together(
            now_ns, plan, caller, (held.messages,), lambda: size_bytes, scoped=scoped, held=held
        )
        if decision.delays:
            return self.delays.still_waits(now_ns, decision.delays, held)
        if decision.stop is None:
            held.shadow_denials = decision.shadow_denials
        return decision.stop

    def _expire(self, held: Held, now_ns: int) -> Denial | None:
        if not held.caller.refusable:
            size_bytes = 0 if held.caller.by_answer else held.size_bytes
            self.charge(now_ns, held.resources, held.caller, held.messages, size_bytes, 1)
            return None
        if held.line is None:
            return Denial(held.resource, held.rule, max(1, held.rule.max_delay_ns // _NS_PER_US))
        limiter = self._registries[held.line.key.dimension].get(held.resource, now_ns)
        if limiter is None:
            return Denial(held.resource, held.rule, 1)
        gate = gate_of(limiter, held.caller._replace(resources=held.resources), now_ns)
        return Denial(held.resource, gate.rule, gate.refuse(now_ns))

    def charge(  # noqa: PLR0917 - the costs by position, as in a tuple
        self,
        now_ns: int,
        resources: tuple[Resource, ...],
        caller: Caller,
        messages: int,
        size_bytes: int,
        requests: int = 0,
    ) -> None:
        """Charge a cost that was unknown on arrival to all limits that apply. Negative costs are refunds.

        Pass 0 as ``requests`` if they were counted on arrival.
        """
        costs = (messages, requests, size_bytes)
        plan, scoped, caller = self._asked(resources, caller)
        for part in plan.parts + scoped.parts:
            limiter = part.registry.get(part.resource, now_ns)
            if limiter is None:
                continue
            gate = gate_of(limiter, caller, now_ns)
            cost = costs[part.unit]
            if cost < 0:
                gate.give_back(now_ns, -cost)
                part.spend(self._accounts.at(now_ns), now_ns, cost)
                self.delays.given_back(now_ns, part, gate)
                continue
            gate.charge(now_ns, cost)
            part.spend(self._accounts.at(now_ns), now_ns, cost)
            self.delays.answered(now_ns, part, gate, caller, cost)

    def save(self, now_ns: int, ends_ns: int) -> Generator[None, None, SavedLimits]:
        """Save the state of all limits for the next process, in many short steps.

        Also reserve the permits that held requests will need before ``ends_ns``.
        """
        limiters: dict[Dimension, list[SavedLimiter]] = {}
        for dimension, registry in self._registries.items():
            saved = limiters[dimension] = []
            for each in registry.save(now_ns):
                if each is not None:
                    saved.append(each)
                yield
        return SavedLimits(now_ns, limiters, self._set_aside(now_ns, ends_ns))

    def _set_aside(self, now_ns: int, ends_ns: int) -> list[Spent]:
        wanted: Counter[tuple[Registry, Limiter]] = Counter()
        for held in self.holding.each():
            costs = (held.messages, 1, 0 if held.caller.by_answer else held.size_bytes)
            plan, scoped, _ = self._asked(held.resources, held.caller)
            for part in plan.enforcing + scoped.enforcing:
                limiter = part.registry.get(part.resource, now_ns)
                if limiter is not None:
                    wanted[part.registry, limiter] += costs[part.unit]
        aside = []
        for (registry, limiter), permits in wanted.items():
            accrues = limiter.rate_upermits_per_s * max(0, ends_ns - now_ns) // NS_PER_S
            upermits = min(permits * UPERMITS_PER_PERMIT, max(0, limiter.refill(now_ns) + accrues))
            aside.append(registry.spent(limiter, upermits))
        return aside

    def restore(self, saved: SavedLimits, now_ns: int) -> tuple[int, int]:
        """Restore limits that another process has saved. Call this before the first request.

        Returns:
            The number of limiters that were restored, and of those that were not.
        """
        taken = left = 0
        for dimension, registry in self._registries.items():
            for each in saved.limiters.get(dimension, ()):
                try:
                    is_taken = registry.restore(each, now_ns)
                except ValueError:
                    is_taken = False
                taken, left = taken + is_taken, left + (not is_taken)
        self.debit((each for each in saved.reserved if each.upermits > 0), now_ns)
        for aside in saved.reserved:
            limiter = self._registries[aside.dimension].of(aside, now_ns)
            if limiter is not None:
                bound_debt(limiter, now_ns)
        return taken, left

    def spent_since(self, saved: SavedLimits, now_ns: int) -> list[Spent]:
        """Return the permits spent since ``save``, minus those that it reserved."""
        spent: Counter[Spent] = Counter()
        for dimension, registry in self._registries.items():
            for each in registry.spent_since(saved.limiters.get(dimension, ()), saved.at_ns, now_ns):
                spent[each._replace(upermits=0)] += each.upermits
        for each in saved.reserved:
            spent[each._replace(upermits=0)] -= each.upermits
        return [each._replace(upermits=upermits) for each, upermits in spent.items() if upermits]

    def debit(self, spent: Iterable[Spent], now_ns: int) -> None:
        for each in spent:
            limiter = self._registries[each.dimension].of(each, now_ns)
            if limiter is not None:
                limiter.debit(now_ns, each.upermits)
        self.holding.recheck_all_soon(now_ns)

    def reset(self, kind: str, name: str, now_ns: int) -> Iterator[tuple[Dimension, LimiterState | None]]:
        """Reset limiters in short steps. Yield each limiter's previous state, or None after a step that reset none."""
        pattern = None if kind == TOTAL else Rule(kind, name, None)
        exact = None if pattern is None else pattern.exact_name
        for dimension, registry in self._registries.items():
            if pattern is None or exact is not None:
                resource = Resource(kind, exact or name)
                yield dimension, registry.reset(resource, now_ns)
            else:
                for state in registry.reset_all_of(pattern, now_ns):
                    yield dimension, state
            self.holding.recheck_all_soon(now_ns)

    def state(self, resource: Resource, now_ns: int, dimension: Dimension = "messages") -> LimiterState | None:
        return self._registries[dimension].state(resource, now_ns)

    def each_state(self, now_ns: int) -> Iterator[LimiterState | None]:
        for registry in self._registries.values():
            yield from registry.each_state(now_ns)

    def used(self, resource: Resource, now_ns: int) -> dict[Dimension, Usage]:
        used = {}
        for dimension in self._registries:
            rule = self.rule_set.limit(resource, dimension)
            usage = None if rule is None else self._accounts.usage(now_ns, resource, rule, dimension)
            if usage is not None:
                used[dimension] = usage
        return used

    def usages(self, now_ns: int) -> Iterator[tuple[Resource, dict[Dimension, Usage]]]:
        """Yield the usage of every limited resource. Limits may change while you iterate."""
        for resource in self._accounts.spent():
            yield resource, self.used(resource, now_ns)

    def explain(self, now_ns: int, resources: Sequence[Resource], caller: Caller) -> tuple[Applied, ...]:
        return explain(
            now_ns, self.rule_set, self._registries, self._accounts, self.holding, resources=resources, caller=caller
        )


def _share_of(part: ApplicableLimit, resources: tuple[Resource, ...], now_ns: int) -> tuple[PlainLimit, ...] | None:
    limiter = part.registry.get(part.resource, now_ns)
    if not isinstance(limiter, AdaptiveLimiter) or limiter.rule.fair_by not in {None, resources[0].kind}:
        return None
    share = limiter.plain_share(str(resources[0]), now_ns)
    return None if share is None else ((share, part.row(now_ns), part.unit, False),)
