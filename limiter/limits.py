"""The limits in force: every live limiter, found and asked together.

Several limiters may apply to one request: that of each of its resources, those of the scopes it belongs to (its
client's address, its producer group, its listener), and the totals that any of these fall under; each in messages
or requests, and in bytes. All that enforce are checked before any is charged, so what one refuses spends nothing in
the others. Shadow rules are asked for what these admit, and restrict nothing.

What only delay rules stop may be held: ``hold`` lets it wait in ``holding``, which comes back to ask for it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from limiter.answers import Answers
from limiter.bucket import NS_PER_S
from limiter.explain import Applied, explain
from limiter.holding import BoundName, HeldNow, Holding
from limiter.limiter import Gate, LimiterState
from limiter.lines import Held, Stop, Wait
from limiter.plans import Asker, Part, Plan, Plans
from limiter.registry import DEFAULT_MAX_LIVE, Registry
from limiter.resource import Resource
from limiter.rule import MAX_TIME_S, Dimension
from limiter.rules import RuleSet
from limiter.usage import Board, Usage

__all__ = ["Applied", "Asker", "Decision", "Held", "Limits", "Shade", "Stop", "Usage"]

_NS_PER_US: Final = 1_000


class Shade(NamedTuple):
    """What a shadow rule would have refused.

    Attributes:
        resource: the resource, scope or total that it limits.
        rule: its name.
        first: the first of the admitted requests that it would have refused; all behind it as well.
    """

    resource: Resource
    rule: str
    first: int


Asked = tuple[Part, Gate, Sequence[int]]
"""One limit that was asked: which, what decides (its limiter, or the asker's share of it), the costs there."""


class Decision(NamedTuple):
    """What becomes of several requests that were asked for together.

    Attributes:
        admitted: how many from the front pass.
        stop: what stops the others; None if there are none.
        delays: the delay rules that stop the others, if nothing else does: they may be held.
        shades: what shadow rules say to those that pass.
    """

    admitted: int
    stop: Stop | None = None
    delays: tuple[Asked, ...] = ()
    shades: tuple[Shade, ...] = ()


_PASS: Final = tuple(Decision(count) for count in range(257))
"""The usual answers, made once."""
_PASSES: Final = len(_PASS)
_ONES: Final = tuple((1,) * count for count in range(257))


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
        self._board = Board(rule_set.exact_resources)
        self._plans = Plans(rule_set, self._registries, self._board)
        self._answers = Answers()
        self.holding = Holding(self._ask_again, self._expire)

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

    def swap(self, rule_set: RuleSet, now_ns: int) -> None:
        """Put another rule set in force from ``now_ns`` on; what is held is asked for anew."""
        for registry in self._registries.values():
            registry.swap(rule_set, now_ns)
        self._board.pin(rule_set.exact_resources)
        self._plans = Plans(rule_set, self._registries, self._board)
        self.holding.ask_all_soon(now_ns)

    def decide(
        self,
        now_ns: int,
        resources: tuple[Resource, ...],
        asker: Asker,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
    ) -> Decision:
        """Admit the longest prefix that every limit admits; what follows is stopped by those that ended it.

        A prefix is exact: a limit that has stopped one request stops the rest of the same instant too.

        Args:
            now_ns: the time.
            resources: everything that each of the requests is charged to.
            asker: who asks.
            messages: the costs of the requests in messages, in order.
            size_bytes: gives their costs in bytes; asked only if some rule limits bytes.
        """
        plans = self._plans
        plan = plans.by_resources.get(resources) or plans.of(resources)
        count = len(messages)
        part = plan.only
        if part is None or (plans.scoped and plans.of_scopes(asker).parts):
            return self._decide_stacked(now_ns, plan, asker, messages, size_bytes)
        # One rule of the plain sort is all that most requests have: it costs little more than its limiter does.
        limiter = part.registry.get(part.resource, now_ns)
        if limiter is None or not count:
            return _passes(count)
        costs = _permits_each(count) if part.of_requests else messages
        admitted, wait_us = limiter.acquire(now_ns, costs)
        permits = sum(costs if admitted == count else costs[:admitted])
        meter = part.meter
        if now_ns < meter.ends_ns:
            meter.spent += permits
        else:
            meter.turn(now_ns, permits)
        if admitted == count:
            return _PASS[count] if count < _PASSES else Decision(count)
        return Decision(admitted, Stop(part.resource, limiter.rule, wait_us))

    def _decide_stacked(
        self,
        now_ns: int,
        plan: Plan,
        asker: Asker,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
    ) -> Decision:
        scoped = self._plans.of_scopes(asker)
        enforcing, shadows = plan.enforcing + scoped.enforcing, plan.shadows + scoped.shadows
        count = len(messages)
        if not count or not (enforcing or shadows):
            return _passes(count)
        decision = self._decide(now_ns, enforcing, asker, messages, size_bytes, doubled=plan.doubled)
        if shadows and decision.admitted:
            shades = self._shades(now_ns, shadows, asker, messages[: decision.admitted], size_bytes)
            return decision._replace(shades=shades) if shades else decision
        return decision

    def _decide(
        self,
        now_ns: int,
        parts: Sequence[Part],
        asker: Asker,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
        *,
        held: Held | None = None,
        doubled: bool = False,
    ) -> Decision:
        """Check all, then commit all; of requests that arrive, or of one that is held already."""
        asked: list[Asked] = []
        admitted = count = len(messages)
        sizes: Sequence[int] | None = None
        for part in parts:
            limiter = part.registry.get(part.resource, now_ns)
            if limiter is None:
                continue
            if part.of_bytes:
                costs = sizes = size_bytes() if sizes is None else sizes
            else:
                costs = _permits_each(count) if part.of_requests else messages
            asked.append(
                (part, limiter if part.fair_by is None else limiter.share(part.share_of(asker), now_ns), costs)
            )
        distinct = _distinct(asked) if doubled else asked
        stoppers: list[Asked] = []
        for one in distinct:
            part, gate, costs = one
            if part.delays and self._must_wait(now_ns, part, gate, asker, held):
                passing = 0
            else:
                passing = gate.check(now_ns, costs).admitted
            if passing < admitted:
                admitted = passing
                stoppers = [one]
            elif passing < count and passing == admitted:
                stoppers.append(one)
        summed: Sequence[int] | None = None
        permits = 0
        for part, gate, costs in distinct:
            # The costs of one dimension are mostly the same object: summed up once for all its limits.
            if costs is not summed:
                summed, permits = costs, sum(costs if admitted == count else costs[:admitted])
            if admitted and part.fair_by is None:
                gate.charge(now_ns, permits)
            elif admitted:
                gate.commit(now_ns, costs if admitted == count else costs[:admitted])
            if not doubled:
                part.meter.add(now_ns, permits)
        if doubled:
            for part, _, costs in asked:
                part.meter.add(now_ns, sum(costs[:admitted]))
        if admitted < count:
            return self._stopped(now_ns, admitted, stoppers, asker)
        if held is not None and asker.consumes:
            for part in parts:
                if part.by_answer:
                    self._answers.released(part.line(asker), now_ns)
        return _passes(count)

    def _stopped(self, now_ns: int, admitted: int, stoppers: Sequence[Asked], asker: Asker) -> Decision:
        """Refuse in the name of those that stop the rest, or say that only delay rules do."""
        stop: Stop | None = None
        for part, gate, _ in stoppers:
            if not part.delays:
                wait_us = gate.refuse(now_ns)
                stop = stop or Stop(part.resource, gate.rule, wait_us)
        if stop is not None:
            return Decision(admitted, stop)
        part, gate, _ = stoppers[0]
        wait_us = self._wait_us(now_ns, part, gate, asker)
        return Decision(admitted, Stop(part.resource, gate.rule, max(1, wait_us)), tuple(stoppers))

    def _must_wait(self, now_ns: int, part: Part, gate: Gate, asker: Asker, held: Held | None) -> bool:
        """Say whether a request must wait for a delay rule, whatever its limiter has stored."""
        if held is None:
            return bool(self.holding.lines) and self.holding.is_behind(part.line(asker), None)
        line = part.line(asker)
        if self.holding.is_behind(line, held.number):
            return True
        ahead = self._answers.ahead(line, now_ns) if part.by_answer and asker.consumes else 0
        return ahead > 0 and gate.wait_us_behind(now_ns, ahead) > 0

    def _shades(
        self,
        now_ns: int,
        shadows: Sequence[tuple[Part, ...]],
        asker: Asker,
        messages: Sequence[int],
        size_bytes: Callable[[], Sequence[int]],
    ) -> tuple[Shade, ...]:
        """Ask each shadow rule, as if it were the only one besides those that enforce."""
        count = len(messages)
        sizes = _once(lambda: size_bytes()[:count])
        shades = []
        for parts in shadows:
            decision = self._decide(now_ns, parts, asker, messages, sizes)
            if decision.stop is not None:
                shades.append(Shade(decision.stop.resource, decision.stop.rule.name, decision.admitted))
        return tuple(shades)

    def hold(self, now_ns: int, decision: Decision, held: Held, behind: int = 0) -> Stop | None:
        """Let a request that only delay rules stopped wait, unless that would take too long or too much is held.

        Args:
            now_ns: the time of the decision.
            decision: which ``delays`` it.
            held: the request.
            behind: how many of the same decision come after it; they are refused with it.

        Returns:
            None if it waits, else what refuses it.
        """
        longest: Wait | None = None
        longest_us = -1
        max_delay_ns = MAX_TIME_S * NS_PER_S
        for part, gate, costs in decision.delays:
            wait_us = self._wait_us(now_ns, part, gate, held.asker)
            rule = gate.rule
            if wait_us * _NS_PER_US > rule.max_delay_ns or not rule.rate_upermits_per_s:
                return Stop(part.resource, rule, max(wait_us, gate.refuse(now_ns)))
            max_delay_ns = min(max_delay_ns, rule.max_delay_ns)
            if wait_us > longest_us:
                due_ns = now_ns + gate.wait_us_behind(now_ns, 0) * _NS_PER_US
                cost = costs[len(costs) - behind - 1]
                longest, longest_us = Wait(part.line(held.asker), cost, due_ns, part.resource, rule), wait_us
        assert longest is not None  # noqa: S101 - a decision to be held names what delays it
        if self.holding.over_bound(held, behind):
            return Stop(longest.resource, longest.rule, max(1, longest_us))
        self.holding.hold(now_ns, held, longest, max_delay_ns)
        return None

    def follow(self, now_ns: int, held: Held, leader: Held) -> Stop | None:
        """Let a request wait for one that it must not overtake, unless too much is held; return what refuses it."""
        if self.holding.over_bound(held):
            return Stop(leader.resource, leader.rule, max(1, (leader.deadline_ns - now_ns) // _NS_PER_US))
        self.holding.follow(now_ns, held, leader)
        return None

    def _ask_again(self, held: Held, now_ns: int) -> Stop | Wait | None:
        """Ask all limits of a held request for it; see Holding."""
        asker, messages = held.asker, (held.messages,)
        plan, scoped = self._plans.of(held.resources), self._plans.of_scopes(asker)

        def size_bytes() -> tuple[int]:
            return (0 if asker.consumes else held.size_bytes,)

        parts = plan.enforcing + scoped.enforcing
        decision = self._decide(now_ns, parts, asker, messages, size_bytes, held=held, doubled=plan.doubled)
        if decision.admitted:
            self._shades(now_ns, plan.shadows + scoped.shadows, asker, messages, size_bytes)
            return None
        return self._wait(now_ns, decision.delays, held) if decision.delays else decision.stop

    def _wait(self, now_ns: int, delays: Sequence[Asked], held: Held) -> Stop | Wait:
        """Say where a held request waits on: where it is if it must, or else for the one that takes longest."""
        waits = []
        for part, gate, costs in delays:
            rule = gate.rule
            if not rule.rate_upermits_per_s:
                return Stop(part.resource, rule, gate.refuse(now_ns))
            line = part.line(held.asker)
            ahead = self._answers.ahead(line, now_ns) if part.by_answer and held.asker.consumes else 0
            due_ns = now_ns + max(1, gate.wait_us_behind(now_ns, ahead)) * _NS_PER_US
            if ahead:
                due_ns = min(due_ns, self._answers.regard_ends_ns(line) or due_ns)
            waits.append(Wait(line, costs[0], due_ns, part.resource, rule))
            if held.line is not None and held.line.key == line:
                return waits[-1]
        return max(waits, key=lambda wait: wait.due_ns)

    def _wait_us(self, now_ns: int, part: Part, gate: Gate, asker: Asker) -> int:
        """Return how long a request would wait for one limit if it came now; 0 if not at all."""
        line = self.holding.lines.get(part.line(asker))
        return gate.wait_us_behind(now_ns, line.permits if line is not None else 0)

    def _expire(self, held: Held, now_ns: int) -> Stop:
        """Do what a limit does when it refuses a request that has waited for it; see Holding."""
        if held.line is None:
            return Stop(held.resource, held.rule, max(1, held.rule.max_delay_ns // _NS_PER_US))
        key = held.line.key
        limiter = self._registries[key.dimension].get(key.resource, now_ns)
        if limiter is None:
            return Stop(held.resource, held.rule, 1)
        gate = limiter.share(key.share, now_ns)
        return Stop(held.resource, gate.rule, gate.refuse(now_ns))

    def charge(
        self, now_ns: int, resources: tuple[Resource, ...], asker: Asker, messages: int, size_bytes: int
    ) -> None:
        """Debit a cost after the fact from every limit that applies; requests have been counted when they came."""
        for part in self._plans.of(resources).parts + self._plans.of_scopes(asker).parts:
            limiter = part.registry.get(part.resource, now_ns)
            if limiter is None:
                continue
            gate: Gate = limiter if part.fair_by is None else limiter.share(part.share_of(asker), now_ns)
            cost = size_bytes if part.of_bytes else 0 if part.of_requests else messages
            gate.charge(now_ns, cost)
            part.meter.add(now_ns, cost)
            if part.by_answer and asker.consumes:
                line = part.line(asker)
                self._answers.answered(line, cost)
                self.holding.ask_soon(line, now_ns)

    def state(self, resource: Resource, now_ns: int) -> LimiterState | None:
        """Return the state of a resource's own limiter of messages, or None if it has none; creates none."""
        return self._registries["messages"].state(resource, now_ns)

    def states(self, now_ns: int) -> Iterator[LimiterState]:
        """Yield the states of all live limiters; safe while they change between two steps."""
        for registry in self._registries.values():
            yield from registry.states(now_ns)

    def usages(self, now_ns: int) -> Iterator[tuple[Resource, Dimension, Usage]]:
        """Yield the usage of all limits that were asked in the last minute; safe as ``states`` is."""
        for dimension, resource, meter in self._board:
            rule = self.rule_set.limit(resource, dimension)
            usage = meter.usage(now_ns, rule) if rule is not None else None
            if usage is not None:
                yield resource, dimension, usage

    def explain(self, now_ns: int, resources: Sequence[Resource], asker: Asker) -> tuple[Applied, ...]:
        """Return every rule that a request would be asked by, in order; creates no limiter."""
        return explain(
            now_ns, self.rule_set, self._registries, self._board, self.holding, resources=resources, asker=asker
        )


def _passes(count: int) -> Decision:
    return _PASS[count] if count < _PASSES else Decision(count)


def _permits_each(count: int) -> Sequence[int]:
    return _ONES[count] if count < len(_ONES) else (1,) * count


def _distinct(asked: Sequence[Asked]) -> list[Asked]:
    """Put together what is one limiter: it is charged for all of them."""
    times = Counter(gate for _, gate, _ in asked)
    first = {gate: one for one in reversed(asked) for gate in (one[1],)}
    return [
        (part, gate, [cost * times[gate] for cost in costs] if times[gate] > 1 else costs)
        for one in asked
        for part, gate, costs in (one,)
        if first[gate] is one
    ]


def _once(give: Callable[[], Sequence[int]]) -> Callable[[], Sequence[int]]:
    """Return a function that gives the same as another, which it asks once at most."""
    given: list[Sequence[int]] = []

    def remember() -> Sequence[int]:
        if not given:
            given.append(give())
        return given[0]

    return remember
