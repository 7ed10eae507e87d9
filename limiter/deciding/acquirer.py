"""Checks all of a request's limits before charging any of them, so that refused requests use no permits."""

from collections import Counter
from collections.abc import Sequence

from limiter.buckets.limiter import Gate, count_larger
from limiter.counting.accounts import Accounts
from limiter.plans.plans import ApplicableLimit, Caller, Plan, gate_of
from limiter.waiting.delays import CreditDemand, Decision, Delays, Demand, Granted, too_large
from limiter.waiting.lines import Credit, Denial, Held, ShadowDenial


class Acquirer:
    def __init__(self, delays: Delays, accounts: Accounts) -> None:
        self._delays = delays
        self._accounts = accounts

    def ask(
        self,
        now_ns: int,
        parts: Sequence[ApplicableLimit],
        caller: Caller,
        messages: Sequence[int],
        sizes: Sequence[int],
        *,
        held: Held | None = None,
        doubled: bool = False,
    ) -> Decision:
        """Admit and charge as many of the requests, in order, as all ``parts`` allow.

        ``sizes`` is used by parts that limit bytes. Set ``doubled`` if two parts may be the same limiter.
        """
        count = len(messages)
        costs_by_unit = (messages, (1,) * count, sizes)
        asked: Sequence[Demand] = [
            (part, gate_of(limiter, caller, now_ns), costs_by_unit[part.unit])
            for part in parts
            if (limiter := part.registry.get(part.resource, now_ns)) is not None
        ]
        if not caller.refusable:
            asked = [_within_reach(one) for one in asked]
        distinct = _distinct(asked) if doubled else asked
        if doubled and not caller.refusable:
            distinct = [_within_reach(one) for one in distinct]
        admitted = count
        denying: list[Demand] = []
        large: list[tuple[Demand, int]] = []
        for one in distinct:
            part, gate, costs = one
            waits = part.waits(caller)
            if (waits or part.delays) and self._delays.must_wait(now_ns, part, gate, caller, held=held):
                most = gate.rule.max_permits
                passing, alone = 0, count_larger(costs, 0, most, most) if gate.rule.rate_per_s else 0
            else:
                passing, _, alone = gate.check(now_ns, costs if caller.refusable else _within_share(gate, costs))
            if alone and waits and costs[passing] <= gate.rule.max_permits:
                alone = 0
            if passing < admitted:
                admitted = passing
                denying, large = [], []
            if passing < count and passing == admitted:
                denying.append(one)
                if alone:
                    large.append((one, alone))
        if admitted:
            for _, gate, costs in distinct:
                some = costs if admitted == count else costs[:admitted]
                checked = some if caller.refusable else _within_share(gate, some)
                gate.commit(now_ns, checked)
                if checked is not some:
                    gate.charge(now_ns, sum(some) - sum(checked))
        second = self._accounts.at(now_ns)
        for part, _, costs in asked:
            part.spend(second, now_ns, sum(costs[:admitted]))
        if self._delays.lines:
            for part, gate, costs in distinct:
                if not caller.may_wait or (part.delays and not part.holds):
                    self._delays.on_overtaken(part, gate, sum(costs[:admitted]))
        if held is not None and admitted:
            self._delays.released(now_ns, asked, caller)
        if admitted == count:
            return Decision(count)
        if large:
            (part, gate, costs), alone = large[0]
            cost = costs[admitted]
            stop = too_large(part, gate.rule, cost, gate.refuse_alone(now_ns, cost))
            return Decision(admitted, stop, alone=alone)
        return self._stopped(now_ns, admitted, denying, caller)

    def grant(
        self,
        now_ns: int,
        plan: Plan,
        scoped: Plan,
        caller: Caller,
        credit: Credit,
        *,
        held: Held | None,
    ) -> Granted:
        """Grant as much credit as all limits allow, or none if one of them has too little. Charge shadow rules too."""
        asked = self._credit_demands(now_ns, plan.enforcing + scoped.enforcing, caller, credit)
        distinct = _distinct_of_credit(asked) if plan.doubled else asked
        messages, stops = credit.most, []
        for demand in distinct:
            checked = demand._replace(price=min(demand.price, demand.gate.max_permits))
            count, known = self._delays.credit_of(now_ns, checked, credit, held)
            messages = min(messages, count)
            if not count:
                stops.append(known)
        if stops:
            return Granted(0, stops)
        self._take_credit(now_ns, distinct, asked, messages)
        self._take_of_shadows(now_ns, plan.shadows + scoped.shadows, caller, credit, messages)
        return Granted(messages)

    def grant_at_once(self, now_ns: int, parts: Sequence[ApplicableLimit], caller: Caller, credit: Credit) -> bool:
        """Grant the full amount if no request is waiting and all limits have enough permits, otherwise return False."""
        most = credit.most
        if most < credit.least or not self._delays.can_grant_all(now_ns):
            return False
        asked = self._credit_demands(now_ns, parts, caller, credit)
        if any(gate.affords(now_ns, min(price, gate.max_permits), most) < most for _, gate, price, *_ in asked):
            return False
        self._take_credit(now_ns, asked, asked, most)
        return True

    def _take_credit(
        self, now_ns: int, distinct: Sequence[CreditDemand], asked: Sequence[CreditDemand], messages: int
    ) -> None:
        for _, gate, price, *_ in distinct:
            checked = min(price, gate.max_permits)
            gate.take(now_ns, checked, messages)
            if price > checked:
                gate.charge(now_ns, messages * (price - checked))
        second = self._accounts.at(now_ns)
        for part, _, price, *_ in asked:
            part.spend(second, now_ns, messages * price)

    def _take_of_shadows(
        self,
        now_ns: int,
        shadows: Sequence[Sequence[ApplicableLimit]],
        caller: Caller,
        credit: Credit,
        messages: int,
    ) -> None:
        second = self._accounts.at(now_ns)
        for parts in shadows:
            for part, gate, price, *_ in self._credit_demands(now_ns, parts, caller, credit):
                count = gate.affords(now_ns, price, messages)
                gate.take(now_ns, price, count)
                part.spend(second, now_ns, count * price)

    def _credit_demands(
        self, now_ns: int, parts: Sequence[ApplicableLimit], caller: Caller, credit: Credit
    ) -> list[CreditDemand]:
        prices = (1, 1, credit.size_bytes)
        asked = []
        for part in parts:
            limiter = part.registry.get(part.resource, now_ns)
            price = prices[part.unit]
            if limiter is not None and price:
                gate = gate_of(limiter, caller, now_ns)
                asked.append(CreditDemand(part, gate, min(price, gate.rule.max_permits)))
        return asked

    def _stopped(self, now_ns: int, admitted: int, denying: Sequence[Demand], caller: Caller) -> Decision:
        stop: Denial | None = None
        for part, gate, _ in denying:
            if not part.waits(caller):
                wait_us = gate.refuse(now_ns)
                if part.delays:
                    # Remember this refusal, so that the next grant of credit leaves permits for such requests.
                    self._delays.refused(now_ns, part, gate)
                    wait_us = max(wait_us, self._delays.wait_us(now_ns, part, gate))
                # Report the destination that exceeds its share instead of the listener.
                resource = caller.resources[0] if part.rule.adaptive and caller.resources else part.resource
                stop = stop or Denial(resource, gate.rule, wait_us)
        if stop is not None:
            return Decision(admitted, stop)
        part, gate, costs = denying[0]
        wait_us = self._delays.wait_us(now_ns, part, gate, costs[admitted])
        return Decision(admitted, Denial(part.resource, gate.rule, max(1, wait_us)), tuple(denying))

    def shadow_denials(
        self,
        now_ns: int,
        shadows: Sequence[Sequence[ApplicableLimit]],
        caller: Caller,
        messages: Sequence[int],
        sizes: Sequence[int],
    ) -> tuple[ShadowDenial, ...]:
        shadow_denials = []
        count = len(messages)
        for parts in shadows:
            at = 0
            while at < count:
                decision = self.ask(now_ns, parts, caller, messages[at:], sizes[at:])
                if decision.stop is None:
                    break
                first = at + decision.admitted
                at = first + decision.alone if decision.alone else count
                shadow_denials.append(ShadowDenial(decision.stop.resource, decision.stop.rule.name, first, at))
                second, costs_by_unit = self._accounts.at(now_ns), (messages, (1,) * count, sizes)
                for part in parts:
                    part.spend(second, now_ns, sum(costs_by_unit[part.unit][first:at]))
        return tuple(shadow_denials)


def _within_reach(demand: Demand) -> Demand:
    part, gate, costs = demand
    most = gate.rule.max_permits
    return demand if max(costs) <= most else (part, gate, [min(cost, most) for cost in costs])


def _within_share(gate: Gate, costs: Sequence[int]) -> Sequence[int]:
    """Return the costs for which to check requests that cannot be refused. They are charged in full.

    Otherwise, a request that costs more than its share can admit would wait until other keys leave permits.
    """
    most = gate.max_permits
    return costs if max(costs) <= most else [min(cost, most) for cost in costs]


def _distinct_of_credit(asked: Sequence[CreditDemand]) -> list[CreditDemand]:
    times = Counter(demand.gate for demand in asked)
    return [
        demand._replace(price=min(times[gate] * demand.price, gate.rule.max_permits))
        for gate, demand in {demand.gate: demand for demand in asked}.items()
    ]


def _distinct(asked: Sequence[Demand]) -> list[Demand]:
    times = Counter(gate for _, gate, _ in asked)
    distinct: dict[Gate, Demand] = {}
    for part, gate, costs in asked:
        if gate not in distinct:
            distinct[gate] = (part, gate, [cost * times[gate] for cost in costs])
    return list(distinct.values())
