"""Several limits together, compared with a model of rules and sums."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from limiter.deciding.limits import Caller, Credit, Denial, Held, Limits
from limiter.rules.resource import SCOPES, TOTAL, Resource
from limiter.rules.rule import UPERMITS_PER_PERMIT, Action, Dimension, Rule
from limiter.rules.rule_set import RuleSet

NS_PER_S = 1_000_000_000
DIMENSIONS: tuple[Dimension, ...] = ("messages", "bytes")
A, B = Resource("topic", "a"), Resource("topic", "b")
Bucket = tuple[Dimension, Resource]

RATES = st.sampled_from([None, 0, 0.5, 1, 3, 7.25])
BYTES = st.sampled_from([None, None, None, 0, 40, 333])


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    kind = draw(st.sampled_from(["topic", "topic", *SCOPES]))
    shared = draw(st.booleans())
    action: Action = draw(st.sampled_from(["reject", "reject", "shadow", "delay", "delay", "off"]))
    more: dict[str, Any] = {}
    if kind in ("topic", "listener") and draw(st.booleans()):
        more["fair_by"] = draw(st.sampled_from(["client", "producer_group", "certificate", "user"]))
    if action != "delay" and draw(st.booleans()):
        more["break_s"] = 0
    exact = {"topic": "a", "client": "10.0.0.1", "producer_group": "g", "certificate": "c", "user": "u", "vhost": "v"}
    return Rule(
        kind,
        "*" if shared else draw(st.sampled_from(["*", exact.get(kind, "main")])),
        draw(RATES),
        burst_s=draw(st.sampled_from([1.0, 2.5])),
        count=draw(st.sampled_from(["messages", "requests"])),
        bytes_per_s=draw(BYTES),
        shared=shared,
        action=action,
        max_delay_s=draw(st.sampled_from([0.5, 3.0])),
        **more,
    )


RULE_SETS = st.lists(rules(), max_size=8, unique_by=lambda rule: rule.key)
ASKERS = st.builds(
    Caller,
    st.sampled_from(["10.0.0.1", "10.0.0.2"]),
    st.sampled_from(["", "g", "h"]),
    st.just("main"),
    st.just(value=False),
    scopes=st.sampled_from(
        [(), (Resource("user", "u"), Resource("vhost", "v")), (Resource("certificate", "c"), Resource("user", "w"))]
    ),
    by_answer=st.just(value=False),
    refusable=st.booleans(),
    asks=st.sampled_from(["all", "all", "delaying", "refusing"]),
    may_wait=st.booleans(),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, NS_PER_S // 7, NS_PER_S, 4 * NS_PER_S]),
        st.sampled_from([(A,), (B,), (A, B)]),
        ASKERS,
        st.lists(st.tuples(st.integers(1, 4), st.integers(20, 90)), min_size=1, max_size=6),
        st.sampled_from([0, 0, 1, 3, 50]),
    ),
    min_size=1,
    max_size=12,
)


@dataclass(frozen=True)
class Request:
    resources: tuple[Resource, ...]
    caller: Caller
    messages: int
    size_bytes: int


class Model:
    """Searches all rules again for each request."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = rules
        self.spent: dict[Bucket, list[tuple[int, int]]] = defaultdict(list)

    def applying(self, resource: Resource) -> Iterator[tuple[Resource, Rule]]:
        own = [rule for rule in self.rules if rule.kind == resource.kind and not rule.shared]
        exact = [rule for rule in own if rule.pattern == resource.name]
        for rule in exact or [rule for rule in own if rule.pattern == "*"]:
            yield resource, rule
        for rule in self.rules:
            if rule.kind == resource.kind and rule.shared:
                yield Resource(TOTAL, f"{rule.kind}:*"), rule

    def costs(self, request: Request) -> Iterator[tuple[Bucket, Rule, int]]:
        """Yield a request's costs by bucket. A bucket above two of its resources is charged twice."""
        caller = request.caller
        names = [("client", caller.client), ("producer_group", caller.producer_group), *caller.scopes]
        names.append(("listener", caller.listener))
        for resource in (*request.resources, *(Resource(*name) for name in names if name[1])):
            for bucket, rule in self.applying(resource):
                if rule.action == "off":
                    continue
                if caller.asks != "all" and (rule.action == "delay") is not (caller.asks == "delaying"):
                    continue
                for dimension in DIMENSIONS:
                    part = rule.part(dimension)
                    if part is None:
                        continue
                    cost = request.messages if rule.count == "messages" else 1
                    cost = cost if dimension == "messages" else request.size_bytes
                    # A request that cannot be refused never costs more than the limit admits at once.
                    cost = cost if caller.refusable else min(cost, part.max_permits)
                    yield (dimension, bucket), rule, cost

    def is_enforced(self, bucket: Bucket) -> bool:
        dimension, resource = bucket
        rule = self.rule_of(resource)
        return rule.action in ("reject", "delay") and rule.part(dimension) is not None

    def rule_of(self, resource: Resource) -> Rule:
        if resource.kind == TOTAL:
            return next(rule for rule in self.rules if rule.shared and rule.target == resource.name)
        return next(rule for bucket, rule in self.applying(resource) if bucket == resource)


class Waiting(Held):
    __slots__ = ("outcomes", "request")

    def __init__(
        self, request: Request, outcomes: list[tuple[Waiting, Denial | None]], credit: Credit | None = None
    ) -> None:
        super().__init__(
            request.resources,
            request.caller,
            request.messages,
            0 if credit else request.size_bytes,
            connection=1,
            order_key=None,
            credit=credit,
        )
        self.request = request
        self.outcomes = outcomes

    def resolved(self, stop: Denial | None) -> None:
        self.outcomes.append((self, stop))


class Run:
    """The limits and the model side by side."""

    def __init__(self, rules: list[Rule]) -> None:
        self.model = Model(rules)
        self.limits = Limits(RuleSet(tuple(rules)))
        self.outcomes: list[tuple[Waiting, Denial | None]] = []
        self.held: set[Waiting] = set()
        self.largest: dict[Bucket, int] = defaultdict(int)

    def balances(self, now_ns: int) -> dict[Bucket, int]:
        """Return the stored micro-permits of each live bucket."""
        return {
            (dimension, limiter.resource): limiter.settled(now_ns)[0]
            for dimension in DIMENSIONS
            for limiter in self.limits._registries[dimension].limiters.all()
        }

    def full(self, bucket: Bucket) -> int:
        part = self.model.rule_of(bucket[1]).part(bucket[0])
        assert part is not None
        return part.capacity_upermits

    def most(self, bucket: Bucket) -> int:
        part = self.model.rule_of(bucket[1]).part(bucket[0])
        assert part is not None
        return part.max_permits

    def step(self, now_ns: int, requests: list[Request], most: int = 0) -> None:
        """Release due requests, then ask for new ones. Compare the permits spent."""
        before = self.balances(now_ns)
        resolved = len(self.outcomes)
        self.limits.holding.release(now_ns)
        passed = self.account(resolved)
        if requests:
            passed += self.ask_for_credit(now_ns, requests[0], most) if most else self.arrive(now_ns, requests)
        expected: dict[Bucket, int] = defaultdict(int)
        for request in passed:
            costs: dict[Bucket, int] = defaultdict(int)
            for bucket, rule, cost in self.model.costs(request):
                if rule.action != "shadow":
                    costs[bucket] += cost
            for bucket, cost in costs.items():
                if not request.caller.refusable:
                    # Nor is its total cost, with a bucket above two of its resources.
                    cost = min(cost, self.most(bucket))  # noqa: PLW2901 - as it is charged
                expected[bucket] += cost
                self.model.spent[bucket].append((now_ns, cost))
                self.largest[bucket] = max(self.largest[bucket], cost)
        after = self.balances(now_ns)
        for bucket, stored in after.items():
            if self.model.is_enforced(bucket):
                spent = before.get(bucket, self.full(bucket)) - stored
                assert spent == expected[bucket] * UPERMITS_PER_PERMIT, bucket
        assert set(expected) <= set(after)

    def account(self, since: int) -> list[Request]:
        passed = []
        for waiting, stop in self.outcomes[since:]:
            self.held.remove(waiting)
            if stop is None:
                passed += [waiting.request] * (waiting.messages if waiting.credit else 1)
        return passed

    def arrive(self, now_ns: int, requests: list[Request]) -> list[Request]:
        first = requests[0]
        decision = self.limits.decide(
            now_ns,
            first.resources,
            first.caller,
            [request.messages for request in requests],
            lambda: [request.size_bytes for request in requests],
        )
        if decision.delays:
            for at in range(decision.admitted, len(requests)):
                waiting = Waiting(requests[at], self.outcomes)
                if self.limits.delays.hold(now_ns, decision, waiting, len(requests) - at - 1) is not None:
                    break
                self.held.add(waiting)
        return requests[: decision.admitted]

    def ask_for_credit(self, now_ns: int, request: Request, most: int) -> list[Request]:
        each = replace(request, messages=1, caller=request.caller._replace(refusable=False))
        credit = Credit(1, most, each.size_bytes)
        granted = self.limits.grant(now_ns, each.resources, each.caller, credit)
        assert 0 <= granted.messages <= most
        if not granted.messages:
            waiting = Waiting(each, self.outcomes, credit)
            self.limits.delays.hold_credit(now_ns, granted, waiting)
            self.held.add(waiting)
        return [each] * granted.messages

    def held_for_ever(self) -> bool:
        """Say whether everything held waits for a limit of 0."""
        return all(not held.caller.refusable and not held.rule.rate_upermits_per_s for held in self.held)

    def forget(self) -> None:
        for held in list(self.held):
            self.limits.holding.drop(held)
            self.held.remove(held)

    def check_bounds(self) -> None:
        for (dimension, resource), spent in self.model.spent.items():
            rule = self.model.rule_of(resource)
            part = rule.part(dimension)
            assert part is not None
            largest = self.largest[dimension, resource]
            rate = Fraction(part.rate_upermits_per_s, UPERMITS_PER_PERMIT)
            capacity = Fraction(part.capacity_upermits, UPERMITS_PER_PERMIT)
            for first in range(len(spent)):
                total = 0
                for at_ns, cost in spent[first:]:
                    total += cost
                    allowed = rate * (at_ns - spent[first][0]) / NS_PER_S + capacity
                    if rule.fair_by is None:
                        assert total <= math.ceil(allowed) + largest - 1
                    else:
                        shares = 2 if rule.fair_by == "client" else 3
                        assert total < allowed + (shares + 1) * largest


@given(rules=RULE_SETS, steps=STEPS)
def test_every_bucket_spends_the_admitted_costs_within_its_bound(
    rules: list[Rule], steps: list[tuple[int, tuple[Resource, ...], Caller, list[tuple[int, int]], int]]
) -> None:
    run = Run(rules)
    now_ns = NS_PER_S
    for pause_ns, resources, caller, costs, most in steps:
        until_ns = now_ns + pause_ns
        while (due_ns := run.limits.holding.next_due_ns()) is not None and due_ns <= until_ns:
            now_ns = max(now_ns, due_ns)
            run.step(now_ns, [])
        now_ns = until_ns
        run.step(now_ns, [Request(resources, caller, messages, size) for messages, size in costs], most)
    while (due_ns := run.limits.holding.next_due_ns()) is not None and not run.held_for_ever():
        now_ns = max(now_ns, due_ns)
        run.step(now_ns, [])
    run.forget()
    assert not run.held
    assert len({waiting for waiting, _ in run.outcomes}) == len(run.outcomes)
    assert run.limits.held == (0, 0)
    run.check_bounds()
