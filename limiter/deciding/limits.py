"""The limits in force: every live limiter, found and asked together.

Several limiters may apply to one request: that of each of its resources, those of the scopes it belongs to (its
client's address, its producer group, its listener), and the totals that any of these fall under; each in messages
or requests, and in bytes. All that enforce are checked before any is charged, so what one refuses spends nothing in
the others. Shadow rules are asked for what these admit, and restrict nothing.

What only delay rules stop may be held: ``hold`` lets it wait in ``holding``, which comes back to ask for it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from limiter.buckets.limiter import LimiterState
from limiter.deciding.asking import Asking, permits_each
from limiter.deciding.explain import Applied, explain
from limiter.plans.plans import NO_PLAN, REQUESTS, Caller, Plan, Plans, gate_of
from limiter.plans.registry import DEFAULT_MAX_LIVE, Registry
from limiter.plans.usage import Meters, Usage
from limiter.rules.resource import TOTAL, Resource
from limiter.rules.rule import Dimension, Rule
from limiter.rules.rule_set import RuleSet
from limiter.waiting.delays import Decision, Delays, all_pass, too_large
from limiter.waiting.holding import BoundName, HeldNow, Holding
from limiter.waiting.lines import Denial, Held, ShadowDenial, Wait

__all__ = ["Applied", "Caller", "Decision", "Denial", "Held", "Limits", "ShadowDenial", "Usage"]

_NS_PER_US: Final = 1_000


class Limits:
    """All limits of one data path.

    Args:
        rule_set: the rules in force from the start.
        max_live: how many limiters may live besides those that have a rule of their own, for each dimension.

    Attributes:
        holding: what is held.
    """

    def __init__(self, rule_set: RuleSet, max_live: int = DEFAULT_MAX_LIVE) -> None:
        self._registries: dict[Dimension, Registry] = {
            "messages": Registry(rule_set, max_live, "messages"),
            "bytes": Registry(rule_set, max_live, "bytes"),
        }
        self._board = Meters(rule_set.has_own)
        self._plans = Plans(rule_set, self._registries, self._board)
        self.holding = Holding(self._ask_again, self._expire)
        self._delays = Delays(self.holding)
        self._asking = Asking(self._delays)

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

    @property
    def held(self) -> HeldNow:
        """What is held at this moment."""
        return self.holding.now

    @property
    def refused_by_bound(self) -> Counter[BoundName]:
        """Requests refused because as many as allowed were held, by the handler's option that says how many."""
        return self.holding.refused_by_bound

    def swap(self, rule_set: RuleSet, now_ns: int) -> dict[Resource, bool]:
        """Put another rule set in force from ``now_ns`` on; what is held is asked for anew.

        Returns:
            What has got a rule of its own, or has lost it; and which of the two.
        """
        own = rule_set.own_since(self.rule_set)
        for registry in self._registries.values():
            registry.swap(rule_set, now_ns, own)
        self._board.pin(rule_set.has_own, own)
        self._plans = Plans(rule_set, self._registries, self._board)
        self.holding.ask_all_soon(now_ns)
        return own

    def decide(
        self,
        now_ns: int,
        resources: tuple[Resource, ...],
        caller: Caller,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
    ) -> Decision:
        """Admit the longest prefix that every limit admits; what follows is stopped by those that ended it.

        A prefix is exact: a limit that has stopped one request stops the rest of the same instant too, unless it
        stopped that one alone, for what it costs: then what comes behind is to be asked for anew.

        Args:
            now_ns: the time.
            resources: everything that each of the requests is charged to.
            caller: who asks.
            messages: the costs of the requests in messages, in order.
            size_bytes: gives their costs in bytes; asked only if some rule limits bytes.
        """
        plans = self._plans
        plan = plans.by_resources.get(resources) or plans.of(resources)
        count = len(messages)
        scoped = plans.of_scopes(caller, plan) if plans.scoped else NO_PLAN
        part = plan.only
        if part is None or scoped.parts:
            return self._decide_together(now_ns, plan, caller, messages, size_bytes, scoped=scoped)
        # One rule of the plain sort is all that most requests have: it costs little more than its limiter does.
        limiter = part.registry.get(part.resource, now_ns)
        if limiter is None or not count:
            return all_pass(count)
        costs = permits_each(count) if part.unit == REQUESTS else messages
        admitted, wait_us, alone = limiter.acquire(now_ns, costs)
        permits = sum(costs if admitted == count else costs[:admitted])
        meter = part.meter
        if now_ns < meter.ends_ns:
            meter.spent += permits
        else:
            meter.turn(now_ns, permits)
        if admitted == count:
            return all_pass(count)
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
            return all_pass(0)
        sizes = size_bytes() if plan.has_bytes or scoped.has_bytes else ()
        enforcing = plan.enforcing + scoped.enforcing
        decision = self._asking.ask(now_ns, enforcing, caller, messages, sizes, held=held, doubled=plan.doubled)
        shadows = plan.shadows + scoped.shadows
        admitted = decision.admitted
        if shadows and admitted:
            shades = self._asking.shades(now_ns, shadows, caller, messages[:admitted], sizes[:admitted])
            return decision._replace(shades=shades) if shades else decision
        return decision

    def hold(self, now_ns: int, decision: Decision, held: Held, behind: int = 0) -> Denial | None:
        """Let a request that only delay rules stopped wait, unless that would take too long or too much is held.

        One that costs more than its rule ever admits is refused alone: the stop says how much that is (``most``).

        One that consumes waits until its deadline however long it would take: refused at once, a consumer asks again
        a moment later, for as long as the debt of earlier answers lasts.

        Args:
            now_ns: the time of the decision.
            decision: which ``delays`` it.
            held: the request.
            behind: how many of the same decision come after it; they are refused with it.

        Returns:
            None if it waits, else what refuses it.
        """
        return self._delays.hold(now_ns, decision, held, behind)

    def follow(self, now_ns: int, held: Held, leader: Held) -> Denial | None:
        """Let a request wait for one that it must not overtake, unless too much is held; return what refuses it."""
        return self._delays.follow(now_ns, held, leader)

    def _ask_again(self, held: Held, now_ns: int) -> Denial | Wait | None:
        """Ask all limits of a held request for it; see Holding."""
        caller = held.caller
        plan = self._plans.of(held.resources)
        scoped = self._plans.of_scopes(caller, plan)
        size_bytes = (0 if caller.consumes else held.size_bytes,)
        decision = self._decide_together(
            now_ns, plan, caller, (held.messages,), lambda: size_bytes, scoped=scoped, held=held
        )
        if decision.delays:
            return self._delays.still_waits(now_ns, decision.delays, held)
        if decision.stop is None:
            held.shades = decision.shades
        return decision.stop

    def _expire(self, held: Held, now_ns: int) -> Denial:
        """Do what a limit does when it refuses a request that has waited for it; see Holding."""
        if held.line is None:
            return Denial(held.resource, held.rule, max(1, held.rule.max_delay_ns // _NS_PER_US))
        limiter = self._registries[held.line.key.dimension].get(held.resource, now_ns)
        if limiter is None:
            return Denial(held.resource, held.rule, 1)
        gate = gate_of(limiter, held.caller, now_ns)
        return Denial(held.resource, gate.rule, gate.refuse(now_ns))

    def charge(
        self, now_ns: int, resources: tuple[Resource, ...], caller: Caller, messages: int, size_bytes: int
    ) -> None:
        """Debit a cost after the fact from every limit that applies; requests have been counted when they came."""
        costs = (messages, 0, size_bytes)
        plan = self._plans.of(resources)
        for part in plan.parts + self._plans.of_scopes(caller, plan).parts:
            limiter = part.registry.get(part.resource, now_ns)
            if limiter is None:
                continue
            gate = gate_of(limiter, caller, now_ns)
            cost = costs[part.unit]
            gate.charge(now_ns, cost)
            part.meter.add(now_ns, cost)
            self._delays.answered(now_ns, part, gate, caller, cost)

    def reset(self, kind: str, name: str, now_ns: int) -> Iterator[tuple[Dimension, LimiterState | None]]:
        """Let the limiters of one name, of a total, or of all names under a pattern's rule begin anew, in small steps.

        Yields:
            What each was; None for a step that found none.
        """
        pattern = None if kind == TOTAL else Rule(kind, name, None)
        exact = None if pattern is None else pattern.exact_name
        for dimension, registry in self._registries.items():
            if pattern is None or exact is not None:
                resource = Resource(kind, exact or name)
                yield dimension, registry.reset(resource, now_ns)
            else:
                for state in registry.reset_all_of(pattern, now_ns):
                    yield dimension, state
            self.holding.ask_all_soon(now_ns)

    def state(self, resource: Resource, now_ns: int, dimension: Dimension = "messages") -> LimiterState | None:
        """Return the state of a resource's own limiter, or None if it has none; creates none."""
        return self._registries[dimension].state(resource, now_ns)

    def states(self, now_ns: int) -> Iterator[LimiterState]:
        """Yield the states of all live limiters; safe while they change between two steps."""
        return (state for state in self.each_state(now_ns) if state is not None)

    def each_state(self, now_ns: int) -> Iterator[LimiterState | None]:
        """Do as ``states`` does in steps that are all short: None stands for a limiter that decides nothing now."""
        for registry in self._registries.values():
            yield from registry.each_state(now_ns)

    def used(self, resource: Resource, now_ns: int) -> dict[Dimension, Usage]:
        """Return the usage of a resource's limits that were asked in the last minute."""
        usages = ((dimension, self._usage(resource, dimension, now_ns)) for dimension in self._registries)
        return {dimension: usage for dimension, usage in usages if usage is not None}

    def usages(self, now_ns: int) -> Iterator[tuple[Resource, Dimension, Usage | None]]:
        """Yield the usage of all limits that are measured, None if not asked in the last minute; safe as ``states``."""
        for dimension, resource, _ in self._board:
            yield resource, dimension, self._usage(resource, dimension, now_ns)

    def measured(self, since_ns: int = 0) -> Iterator[tuple[Resource, bool]]:
        """Yield every resource, scope and total that is measured, and whether it was asked for since then.

        Those that two limits measure come twice. Safe as ``states`` is.
        """
        for _, resource, meter in self._board:
            yield resource, meter.ends_ns > since_ns

    def _usage(self, resource: Resource, dimension: Dimension, now_ns: int) -> Usage | None:
        meter = self._board.shown(dimension, resource)
        rule = None if meter is None else self.rule_set.limit(resource, dimension)
        return None if meter is None or rule is None else meter.usage(now_ns, rule)

    def explain(self, now_ns: int, resources: Sequence[Resource], caller: Caller) -> tuple[Applied, ...]:
        """Return every rule that a request would be asked by, in order; creates no limiter."""
        return explain(
            now_ns, self.rule_set, self._registries, self._board, self.holding, resources=resources, caller=caller
        )
