"""Decides which requests delay rules may hold back, which limit each one waits on, and for how long."""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from limiter.buckets.limiter import Gate
from limiter.plans.plans import BYTES, ApplicableLimit, Caller, QueueKey
from limiter.rules.rule import MAX_TIME_S, NS_PER_S, UPERMITS_PER_PERMIT, Rule
from limiter.waiting.holding import NEVER_NS, Holding
from limiter.waiting.lines import Credit, Denial, Held, ShadowDenial, Wait

REMEMBER_NS: Final = 1_000_000_000
_MAX_LINES: Final = 4_096


class _Flow:
    def __init__(self) -> None:
        self.last_cost = 1
        self.released_ns: deque[int] = deque()


class ExpectedCosts:
    """Estimates what outstanding answers will cost.

    A request for messages costs nothing until it is answered. If one stored permit released all held requests, their
    answers would cost far more than that. Until a request is answered, it is therefore assumed to cost as much as the
    last non-empty answer, but only for a second, because it may be a long poll.
    """

    def __init__(self) -> None:
        self._flows: OrderedDict[QueueKey, _Flow] = OrderedDict()

    def ahead(self, line: QueueKey, now_ns: int) -> int:
        flow = self._flows.get(line)
        if flow is None:
            return 0
        released_ns = flow.released_ns
        while released_ns and released_ns[0] + REMEMBER_NS <= now_ns:
            released_ns.popleft()
        return len(released_ns) * flow.last_cost

    def remembered_until_ns(self, line: QueueKey) -> int | None:
        flow = self._flows.get(line)
        return flow.released_ns[0] + REMEMBER_NS if flow is not None and flow.released_ns else None

    def released(self, line: QueueKey, now_ns: int) -> None:
        self._flow(line).released_ns.append(now_ns)

    def answered(self, line: QueueKey, cost: int) -> None:
        flow = self._flow(line)
        if cost:
            flow.last_cost = cost
        if flow.released_ns:
            flow.released_ns.popleft()

    def _flow(self, line: QueueKey) -> _Flow:
        flow = self._flows.get(line)
        if flow is None:
            if len(self._flows) >= _MAX_LINES:
                self._flows.popitem(last=False)
            flow = self._flows[line] = _Flow()
        else:
            self._flows.move_to_end(line)
        return flow


Demand = tuple[ApplicableLimit, Gate, Sequence[int]]


class CreditDemand(NamedTuple):
    part: ApplicableLimit
    gate: Gate
    price: int
    enough: int = 1  # minimum number of permits to grant together
    left: int = 0  # permits reserved for requests that may not wait


class Granted(NamedTuple):
    messages: int
    stops: Sequence[CreditDemand] = ()


class Decision(NamedTuple):
    admitted: int
    stop: Denial | None = None
    delays: tuple[Demand, ...] = ()  # the demands that stopped the next request, if it may be held
    shadow_denials: tuple[ShadowDenial, ...] = ()
    # How many of the next requests are refused alone. The rest must be checked again. If 0, all are stopped.
    alone: int = 0


_NS_PER_US: Final = 1_000


class Delays:
    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._answers = ExpectedCosts()
        self._refused_ns: dict[QueueKey, int] = {}
        self._last_refused_ns = -REMEMBER_NS
        self.lines = holding.lines

    def must_wait(self, now_ns: int, part: ApplicableLimit, gate: Gate, caller: Caller, *, held: Held | None) -> bool:
        """Return whether a request must wait because others are waiting.

        Each time the queue advances, requests that are not allowed to wait may overtake it for one turn, because they
        would otherwise never get permits.
        """
        if held is None:
            if not self.lines:
                return False
            line = part.line(gate)
            if part.waits(caller):
                return self._holding.is_behind(line, None)
            queue = self.lines.get(line)
            return queue is not None and queue.overtaken >= gate.turn(1, queue.waiting, len(self.lines))
        line = part.line(gate)
        if self._holding.is_behind(line, held.number):
            return True
        ahead = self._ahead(now_ns, part, caller, line)
        return ahead > 0 and gate.wait_us_behind(now_ns, ahead) > 0

    def can_grant_all(self, now_ns: int) -> bool:
        return not self.lines and self._last_refused_ns + REMEMBER_NS <= now_ns

    def credit_of(
        self, now_ns: int, demand: CreditDemand, credit: Credit, held: Held | None
    ) -> tuple[int, CreditDemand]:
        """Return how much credit this limit would grant, and the demand with ``enough`` and ``left`` set.

        The first request in the queue gets the permits of one turn. If it is the only one, it gets all permits, but not
        before there are enough for one turn. If requests that may not wait were refused recently, another turn is
        reserved for them.
        """
        part, gate, price = demand[:3]
        key = part.line(gate)
        line = self.lines.get(key)
        others = 0 if line is None else line.waiting - (held is not None and held.line is line)
        turn = gate.turn(price, others + 1, len(self.lines))
        enough, left = max(credit.least, min(credit.most, turn)), 0
        if self._refused_ns and self._refused_ns.get(key, -REMEMBER_NS) + REMEMBER_NS > now_ns:
            fits = (enough + turn) * price * UPERMITS_PER_PERMIT <= gate.capacity_upermits
            left = turn if fits else 0
        demand = CreditDemand(part, gate, price, enough, left)
        if line is not None and self._holding.is_behind(key, None if held is None else held.number):
            return 0, demand
        count = gate.affords(now_ns, price, credit.most + left) - left
        return (0 if count < enough else enough if others else count), demand

    def hold_credit(self, now_ns: int, granted: Granted, held: Held) -> None:
        self._holding.hold(now_ns, held, self.credit_waits(now_ns, granted.stops, held), NEVER_NS)

    def credit_waits(self, now_ns: int, stops: Sequence[CreditDemand], held: Held) -> Wait:
        """Return the wait in the current queue if the request must stay there, otherwise that for the slowest limit."""
        waits: list[Wait] = []
        for part, gate, price, enough, left in stops:
            key = part.line(gate)
            # The last message is admitted if the balance is still positive after all others.
            behind = (enough + left - 1) * price
            wait_us = max(1, gate.wait_us_behind(now_ns, behind, price), gate.open_us(now_ns))
            waits.append(Wait(key, enough * price, now_ns + wait_us * _NS_PER_US, part.resource, gate.rule))
            if held.line is not None and held.line.key == key:
                return waits[-1]
        return max(waits, key=self._ends_ns)

    def _ends_ns(self, wait: Wait) -> int:
        line, rate = self.lines.get(wait.line), wait.rule.rate_upermits_per_s
        before = 0 if line is None else line.permits
        return wait.due_ns + (before * UPERMITS_PER_PERMIT * NS_PER_S // rate if rate else 0)

    def on_overtaken(self, part: ApplicableLimit, gate: Gate, permits: int) -> None:
        line = self.lines.get(part.line(gate))
        if line is not None:
            line.overtaken += permits

    def refused(self, now_ns: int, part: ApplicableLimit, gate: Gate) -> None:
        if len(self._refused_ns) >= _MAX_LINES:
            self._refused_ns.clear()
        self._refused_ns[part.line(gate)] = self._last_refused_ns = now_ns

    def given_back(self, now_ns: int, part: ApplicableLimit, gate: Gate) -> None:
        if self.lines:
            self._holding.recheck_soon(part.line(gate), now_ns)

    def wait_us(self, now_ns: int, part: ApplicableLimit, gate: Gate, cost: int = 1) -> int:
        line = self.lines.get(part.line(gate))
        return _wait_us(now_ns, gate, line.permits if line is not None else 0, cost)

    def hold(
        self, now_ns: int, decision: Decision, held: Held, behind: int = 0, *, may_spool: bool = False
    ) -> Denial | None:
        """Hold a request that only delay rules stopped. If it must be refused instead, return the denial.

        A request that costs more than its rule can ever admit is refused alone, with ``most`` set in the denial. A
        request whose cost is determined by the response waits until its deadline, because a refused consumer would
        retry immediately.

        Args:
            now_ns: time of the decision.
            decision: the decision on the request. Its ``delays`` must not be empty.
            held: the request. Its ``spooled`` is set if it and all requests behind it must be spooled.
            behind: number of later requests in the batch. They are refused together with this one.
            may_spool: whether the request can be spooled if the rule allows it.
        """
        longest: Wait | None = None
        longest_us = -1
        waited_ns = now_ns - held.since_ns if held.since_ns else 0
        max_delay_ns = MAX_TIME_S * NS_PER_S
        for part, gate, costs in decision.delays:
            rule, cost = gate.rule, costs[len(costs) - behind - 1]
            wait_us = self.wait_us(now_ns, part, gate, cost)
            if held.caller.refusable:
                if rule.rate_upermits_per_s and cost > rule.max_permits:
                    return too_large(part, rule, cost, gate.refuse_alone(now_ns, cost))
                too_long = wait_us * _NS_PER_US > rule.max_delay_ns - waited_ns and not held.caller.by_answer
                if too_long or not rule.rate_upermits_per_s:
                    return Denial(part.resource, rule, max(wait_us, gate.refuse(now_ns)))
                max_delay_ns = min(max_delay_ns, rule.max_delay_ns)
            if wait_us > longest_us:
                due_ns = now_ns + _wait_us(now_ns, gate, 0, cost) * _NS_PER_US
                longest, longest_us = Wait(part.line(gate), cost, due_ns, part.resource, rule), wait_us
        assert longest is not None  # noqa: S101 - such a decision lists its delays
        if held.caller.refusable:
            held.spooled = may_spool and longest.rule.spool is True
            bound = None if held.spooled else self._holding.over_bound(held)
            if bound is not None:
                if not may_spool or longest.rule.spool is False:
                    self._holding.refused_by_bound[bound] += 1 + behind
                    return Denial(longest.resource, longest.rule, max(1, longest_us))
                held.spooled = True
            max_delay_ns -= waited_ns
        else:
            max_delay_ns = NEVER_NS
            held.spooled = may_spool and longest.rule.spool is True
        self._holding.hold(now_ns, held, longest, max_delay_ns)
        return None

    def spools_behind(self, held: Held, leader: Held) -> bool:
        if leader.spooled:
            return True
        return leader.rule.spool is not False and self._holding.over_bound(held) is not None

    def follow(self, now_ns: int, held: Held, leader: Held) -> Denial | None:
        """Hold a request behind ``leader``, which it must not overtake. Return a denial if too much is held already."""
        bound = self._holding.over_bound(held)
        if bound is not None:
            self._holding.refused_by_bound[bound] += 1
            return Denial(leader.resource, leader.rule, max(1, (leader.deadline_ns - now_ns) // _NS_PER_US))
        self._holding.follow(now_ns, held, leader)
        return None

    def still_waits(self, now_ns: int, delays: Sequence[Demand], held: Held) -> Denial | Wait:
        """Return where and until when a request must keep waiting, or its denial. See ``credit_waits``."""
        waits = []
        for part, gate, costs in delays:
            rule = gate.rule
            if not rule.rate_upermits_per_s and held.caller.refusable:
                return Denial(part.resource, rule, gate.refuse(now_ns))
            line = part.line(gate)
            ahead = self._ahead(now_ns, part, held.caller, line)
            due_ns = now_ns + max(1, _wait_us(now_ns, gate, ahead, costs[0])) * _NS_PER_US
            if ahead:
                due_ns = min(due_ns, self._answers.remembered_until_ns(line) or due_ns)
            waits.append(Wait(line, costs[0], due_ns, part.resource, rule))
            if held.line is not None and held.line.key == line:
                return waits[-1]
        return max(waits, key=lambda wait: wait.due_ns)

    def released(self, now_ns: int, asked: Sequence[Demand], caller: Caller) -> None:
        if caller.by_answer:
            for part, gate, _ in asked:
                if part.by_answer:
                    self._answers.released(part.line(gate), now_ns)

    def answered(self, now_ns: int, part: ApplicableLimit, gate: Gate, caller: Caller, cost: int) -> None:
        if part.by_answer and caller.by_answer:
            line = part.line(gate)
            self._answers.answered(line, cost)
            self._holding.recheck_soon(line, now_ns)

    def _ahead(self, now_ns: int, part: ApplicableLimit, caller: Caller, line: QueueKey) -> int:
        return self._answers.ahead(line, now_ns) if part.by_answer and caller.by_answer else 0


def _wait_us(now_ns: int, gate: Gate, permits: int, cost: int) -> int:
    return max(gate.wait_us_behind(now_ns, permits, cost), gate.open_us(now_ns))


def too_large(part: ApplicableLimit, rule: Rule, cost: int, wait_us: int) -> Denial:
    most = rule.max_permits if cost > rule.max_permits else None
    return Denial(part.resource, rule, wait_us, most, "bytes" if part.unit == BYTES else "messages")
