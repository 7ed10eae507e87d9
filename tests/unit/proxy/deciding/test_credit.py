"""Requests for credit: amount, time and order of grants."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.counting.accounts import Accounts
from limiter.counting.rejections import Amount, Outcome
from limiter.deciding.limits import Limits
from limiter.plans.plans import NO_TERMS, Advance, Confirming, Terms
from limiter.rules.resource import Resource
from limiter.rules.rule import Action, Rule
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import (
    Asks,
    Batch,
    Charge,
    ConnectionInfo,
    Grant,
    Hold,
    Refusal,
    Refuse,
    Request,
    Side,
    Ticket,
    Verdict,
)
from proxy.deciding.counting import Tally
from proxy.deciding.pipeline import HandlerServices
from proxy.deciding.rate_limit import PLUGIN, RateLimitOptions, caller_of

KIND: Final = "line_topic"
A: Final = Resource(KIND, "a")
B: Final = Resource(KIND, "b")
MS: Final = 1_000_000
S: Final = 1_000_000_000


def info(connection: int = 1, address: str = "192.0.2.1", **more: Any) -> ConnectionInfo:
    return ConnectionInfo(connection, "main", "main", f"{address}:40000", address, **more)


def delay(name: str, rate_per_s: float | None, **more: Any) -> Rule:
    return Rule(KIND, name, rate_per_s, action="delay", **more)


@dataclass
class Link:
    """A link that requests credit again and again, and uses all of it at once."""

    name: str
    resources: tuple[Resource, ...] = (A,)
    window: int = 100
    size_bytes: int = 100
    info: ConnectionInfo = field(default_factory=info)
    asks: Asks = "delaying"
    granted: int = 0
    turns: int = 0
    open: Request | None = None
    ticket: Ticket | None = None

    def request(self) -> Request:
        return Request(
            self.resources, 1, self.size_bytes, "", "impossible", None, self, most=self.window, asks=self.asks
        )


class World:
    def __init__(self, *rules: Rule) -> None:
        self.accounts = Accounts()
        self.limits = Limits(RuleSet(rules), 1000, self.accounts)
        self.handler: Any = PLUGIN.build(RateLimitOptions(), HandlerServices(self.limits, lambda: self.now_ns))
        self.tally = Tally(self.accounts)
        self.sender = self.accounts.sender("192.0.2.1")
        self.now_ns = 0
        self.order: list[str] = []
        self.grants: list[tuple[int, str, int]] = []

    @property
    def holding(self) -> Any:
        return self.limits.holding

    def decide(self, *requests: Request, who: ConnectionInfo | None = None, **more: Any) -> Batch:
        batch = Batch(who or info(), Side.CLIENT, requests, more.get("charges", ()), more.get("paid", ()))
        batch.add_verdicts(self.handler.on_requests(batch, self.now_ns))
        self.tally.count(batch, self.now_ns, self.sender)
        return batch

    def charge(self, messages: int, size_bytes: int = 0, **more: Any) -> None:
        self.decide(charges=(Charge((A,), messages, size_bytes, counts=False, **more),))

    def ask(self, link: Link, *, again: bool = True) -> None:
        """Let a link request credit until it must wait, or once."""
        while link.open is None:
            request = link.request()
            verdict = self.decide(request, who=link.info).verdicts.get(0)
            if isinstance(verdict, Hold):
                link.open, link.ticket = request, verdict.ticket
                verdict.ticket.attach(lambda ticket: self.resolved(link, ticket, again=again))
                return
            assert verdict is None or isinstance(verdict, Grant)
            self.got(link, request.most if verdict is None else verdict.messages)
            if not again:
                return

    def resolved(self, link: Link, ticket: Ticket, *, again: bool) -> None:
        request, link.open = link.open, None
        assert request is not None
        assert ticket.refuse is None
        self.tally.resolved(request, None, self.now_ns, self.sender)
        self.got(link, request.messages)
        if again:
            self.ask(link)

    def got(self, link: Link, messages: int) -> None:
        assert 1 <= messages <= link.window
        link.granted += messages
        link.turns += 1
        self.order.append(link.name)
        self.grants.append((self.now_ns, link.name, messages))

    def give_up(self, link: Link) -> None:
        assert link.open is not None
        assert link.ticket is not None
        self.tally.dropped(link.open, self.now_ns, self.sender)
        link.ticket.drop()
        link.open = None

    def until(self, now_ns: int, *, late_ns: int = 0) -> None:
        """Let time pass with all due work, on time or slightly late."""
        while (due_ns := self.holding.next_due_ns()) is not None and due_ns + late_ns <= now_ns:
            self.now_ns = max(self.now_ns, due_ns + late_ns)
            self.holding.release(self.now_ns)
        self.now_ns = now_ns

    def stored(self, resource: Resource = A, dimension: Any = "messages") -> float:
        state = self.limits.state(resource, self.now_ns, dimension)
        assert state is not None
        return state.stored_permits

    def outcomes(self, resource: Resource = A) -> dict[Outcome, Amount]:
        """Return the outcomes of requests for a resource since the last call."""
        seconds = [
            second
            for span in self.accounts.take(self.now_ns, unfinished=True)
            for second in self.accounts.steps_of([span])
            if second is not None
        ]
        found: dict[Outcome, Amount] = {}
        for second in seconds:
            for each in second.resources:
                if each.resource == resource:
                    for outcome, amount in each.outcomes.items():
                        known = found.get(outcome, Amount())
                        found[outcome] = Amount(
                            known.requests + amount.requests,
                            known.messages + amount.messages,
                            known.size_bytes + amount.size_bytes,
                        )
        return found


def verdict_of(world: World, link: Link) -> Verdict | None:
    return world.decide(link.request(), who=link.info).verdicts.get(0)


class TestGranting:
    def test_all_that_is_asked_for_is_granted_without_a_verdict(self) -> None:
        world = World(delay("a", 10))
        assert verdict_of(world, Link("x", window=10)) is None
        assert world.stored() == 0

    def test_requests_without_a_rule_or_outside_the_rule_are_unlimited(self) -> None:
        world = World(Rule(KIND, "a", 1))
        assert verdict_of(world, Link("x")) is None
        assert verdict_of(world, Link("x", (B,))) is None
        assert verdict_of(world, Link("x", asks="all")) == Grant(1)
        assert verdict_of(World(delay("a", 1)), Link("x", asks="refusing")) is None

    def test_bytes_are_paid_as_predicted(self) -> None:
        world = World(delay("a", None, bytes_per_s=1000))
        assert verdict_of(world, Link("x", size_bytes=300)) == Grant(4)
        assert world.stored(dimension="bytes") == -200

    def test_messages_larger_than_the_maximum_cost_the_maximum(self) -> None:
        world = World(delay("a", None, bytes_per_s=1000, max_debt_s=0))
        assert verdict_of(world, Link("x", size_bytes=1_000_000)) == Grant(1)
        assert world.stored(dimension="bytes") == -1

    def test_open_breaker_holds_credit_and_credit_opens_none(self) -> None:
        world = World(Rule(KIND, "a", 10, break_s=1.0))
        link = Link("x", asks="all")
        world.ask(link)
        assert not world.limits.state(A, 0).open  # type: ignore[union-attr]
        one = Request((A,), 1, 100, "", "answered", None, None)
        assert isinstance(world.decide(one).verdicts[0], Refuse)
        world.until(S - 1)
        assert link.granted == 10
        world.until(2 * S + S // 2)
        assert link.granted >= 20

    def test_rate_of_nothing_holds_for_ever_and_is_given_up(self) -> None:
        world = World(delay("a", 0))
        link = Link("x")
        world.ask(link)
        world.until(5 * S)
        assert world.holding.now == (1, 0)
        assert world.tally.held_requests == 1
        world.give_up(link)
        assert world.holding.now == (0, 0)
        assert world.holding.next_due_ns() is None
        assert world.tally.held_requests == world.tally.held_bytes == 0

    def test_warm_up(self) -> None:
        world = World(delay("a", 100, warm_up_s=10, burst_s=1.0))
        link = Link("x", window=1000)
        world.ask(link)
        world.until(2 * S)
        assert link.granted < 110
        world.until(20 * S)
        before = link.granted
        world.until(30 * S)
        assert link.granted - before == pytest.approx(1000, rel=0.02)


class TestTurns:
    @pytest.mark.parametrize(("rate", "links"), [(500, 1000), (50_000, 1), (50_000, 1000), (3, 5), (500, 7)])
    def test_links_take_turns(self, rate: int, links: int) -> None:
        world = World(delay("a", rate))
        world.charge(rate)
        all_links = [Link(str(number), window=10_000) for number in range(links)]
        for link in all_links:
            world.ask(link)
        seconds = max(4, 20 * links // rate)
        world.until(seconds * S)
        granted = [link.granted for link in all_links]
        assert rate * seconds - rate / 50 - 1 <= sum(granted) <= rate * seconds + 1
        share = sum(granted) / links
        assert 0.8 * share - 1 <= min(granted)
        assert max(granted) <= 1.2 * share + 1
        assert sum(link.turns for link in all_links) <= 1_100 * seconds

    def test_turns_are_few_where_many_limits_are_waited_for(self) -> None:
        world = World(delay("*", 500))
        links = [Link(str(number), (Resource(KIND, str(number)),), window=1_000) for number in range(500)]
        for link in links:
            world.ask(link)
        world.until(4 * S)
        assert sum(link.turns for link in links) < 3_000 * 4
        assert all(2_000 + 250 <= link.granted <= 2_500 + 1 for link in links)

    def test_credit_and_held_requests_wait_in_one_line(self) -> None:
        world = World(delay("a", 10, max_delay_s=10))
        world.charge(10)
        link = Link("x", window=1)
        world.ask(link, again=False)
        request = Request((A,), 1, 100, "", "answered", None, None)
        held = world.decide(request).verdicts[0]
        assert isinstance(held, Hold)
        later = Link("y", window=1)
        world.ask(later, again=False)
        held.ticket.attach(lambda _: world.order.append("held"))
        world.until(S)
        assert world.order == ["x", "held", "y"]

    def test_fair_shares(self) -> None:
        world = World(delay("a", 100, fair_by="client"))
        greedy = [Link(f"x{number}", info=info(number)) for number in range(9)]
        quiet = Link("y", info=info(10, "192.0.2.2"))
        for link in (*greedy, quiet):
            world.ask(link)
        world.until(S)
        before = [link.granted for link in greedy]
        first = quiet.granted
        world.until(21 * S)
        assert quiet.granted - first == pytest.approx(1000, rel=0.02)
        more = [link.granted - granted for link, granted in zip(greedy, before, strict=True)]
        assert sum(more) == pytest.approx(1000, rel=0.02)
        assert max(more) < 1.2 * min(more)


@given(
    rate=st.sampled_from([0.5, 3, 40, 500, 20_000]),
    size_rate=st.sampled_from([None, 700, 50_000]),
    total=st.sampled_from([None, 2, 100]),
    steps=st.lists(
        st.tuples(
            st.integers(0, S),
            st.integers(0, 5),
            st.integers(1, 300),
            st.integers(0, 900),
            st.sampled_from(["ask", "ask", "use", "drop"]),
        ),
        min_size=1,
        max_size=25,
    ),
)
def test_grants_stay_within_the_limits_and_waiters_are_served(
    rate: float, size_rate: int | None, total: int | None, steps: list[tuple[int, int, int, int, str]]
) -> None:
    rules = [delay("*", rate, bytes_per_s=size_rate)]
    if total is not None:
        rules.append(delay("*", total, shared=True))
    world = World(*rules)
    links = {number: Link(str(number), (A,) if number % 2 else (B,)) for number in range(6)}
    for pause_ns, number, window, size_bytes, what in steps:
        world.until(world.now_ns + pause_ns)
        link = links[number]
        if what == "drop" and link.open is not None:
            world.give_up(link)
        elif link.open is None and what == "ask":
            link.window, link.size_bytes = window, size_bytes
            world.ask(link, again=False)
    for resource in (A, B):
        names = [link.name for link in links.values() if link.resources == (resource,)]
        _check_bound([(at_ns, count) for at_ns, name, count in world.grants if name in names], rate)
    if total is not None:
        _check_bound([(at_ns, count) for at_ns, _, count in world.grants], total)
    world.until(world.now_ns + 10_000 * S)
    assert all(link.open is None for link in links.values())
    assert world.holding.now == (0, 0)
    assert world.tally.held_requests == 0


def _check_bound(grants: list[tuple[int, int]], rate: float) -> None:
    for first in range(len(grants)):
        messages = 0
        for at_ns, count in grants[first:]:
            messages += count
            assert messages <= math.ceil(rate * (at_ns - grants[first][0]) / S + rate)


class TestCounting:
    def test_a_waiting_one_is_held_once_with_its_grant(self) -> None:
        world = World(delay("a", 1000))
        world.charge(1000)
        world.outcomes()
        link = Link("x", window=50)
        world.ask(link, again=False)
        assert world.outcomes() == {"held": Amount(1, 1, 0)}
        assert (world.tally.held_requests, world.tally.held_bytes) == (1, 0)
        world.until(20 * MS)
        assert link.granted == 10
        assert world.outcomes() == {"held": Amount(0, 9, 0)}
        assert (world.tally.held_requests, world.tally.held_bytes) == (0, 0)


class TestWhatMayNotWait:
    @staticmethod
    def request(refusal: Refusal = "answered", asks: Asks = "all", size_bytes: int = 100) -> Request:
        return Request((A,), 1, size_bytes, "", refusal, None, None, asks=asks, may_wait=False)

    def test_one_that_is_too_large_is_refused_alone(self) -> None:
        world = World(delay("a", None, bytes_per_s=1000, max_debt_s=1))
        batch = world.decide(self.request(size_bytes=5_000), self.request())
        refuse = batch.verdicts[0]
        assert isinstance(refuse, Refuse)
        assert refuse.most == 2000
        assert 1 not in batch.verdicts

    def test_unrefusable_request_passes_and_is_charged(self) -> None:
        world = World(delay("a", 2), Rule(KIND, "*", 5, shared=True))
        batch = world.decide(*(self.request("impossible") for _ in range(4)))
        assert not batch.verdicts
        assert world.stored() == -2
        assert world.stored(Resource("total", "line_topic:*")) == 1

    @pytest.mark.parametrize("rate", [20, 1_000])
    def test_takes_turns_with_waiting_requests(self, rate: int) -> None:
        world = World(delay("a", rate))
        world.charge(rate)
        links = [Link(str(number), window=1_000) for number in range(3)]
        for link in links:
            world.ask(link)
        admitted = 0
        for at_ms in range(0, 10_000, 2):
            world.until(at_ms * MS)
            admitted += not world.decide(self.request()).verdicts
        assert admitted + sum(link.granted for link in links) == pytest.approx(10 * rate, rel=0.02)
        assert 4 * rate <= admitted <= 6 * rate
        assert [link.granted for link in links] == pytest.approx([links[0].granted] * 3, rel=0.1)

    def test_stated_wait_includes_requests_in_line(self) -> None:
        world = World(delay("a", 10))
        world.charge(10)
        for number in range(5):
            world.ask(Link(str(number)))
        world.decide(self.request())
        refuse = world.decide(self.request()).verdicts[0]
        assert isinstance(refuse, Refuse)
        assert refuse.wait_us > 500_000


class TestBatch:
    def test_requests_are_grouped_by_their_question(self) -> None:
        plain = Request((A,), 1, 100, "", "answered", None, None)
        others = [{"asks": "refusing"}, {"may_wait": False}, {"most": 4}, {"most": 5}]
        requests = [plain, *(msgspec.structs.replace(plain, **other) for other in others), plain]
        groups = Batch(info(), Side.CLIENT, requests).groups
        assert [list(group.indexes) for group in groups] == [[0, 5], [1], [2], [3], [4]]

    def test_smaller_grant_counts_and_a_hold_more(self) -> None:
        batch = Batch(info(), Side.CLIENT, [Link("x", window=5).request()])
        for messages, kept in [(4, 4), (2, 2), (3, 2)]:
            batch.add_verdicts({0: Grant(messages)})
            assert batch.verdicts == {0: Grant(kept)}
        hold = Hold(A, "r", Ticket(lambda: None))
        batch.add_verdicts({0: hold})
        batch.add_verdicts({0: Grant(1)})
        assert batch.verdicts == {0: hold}


def said(world: World, resource: Resource, **how: Any) -> Terms:
    """Return the terms without the allowance of the tightest limit."""
    return world.limits.terms((resource,), caller_of(info(), **how))._replace(advance=None)


class TestTerms:
    @pytest.mark.parametrize(
        ("actions", "terms"),
        [
            ([], Terms()),
            (["delay"], Terms(delays=True)),
            (["reject"], Terms(refuses=True)),
            (["shadow"], Terms(refuses=True)),
            (["delay", "reject"], Terms(delays=True, refuses=True)),
            (["off"], Terms()),
        ],
    )
    def test_rules_show_their_effect(self, actions: list[Action], terms: Terms) -> None:
        names = ["a", "*"]
        world = World(
            *(
                Rule(KIND, name, 1, action=action, shared=name == "*")
                for name, action in zip(names, actions, strict=False)
            )
        )
        assert said(world, A) == terms

    def test_they_say_how_much_the_tightest_limit_of_messages_lets_through(self) -> None:
        shadow = Rule(KIND, "b", 1, action="shadow")
        world = World(Rule("client", "*", 50, max_debt_s=2), delay("a", 20, burst_s=2), shadow)
        assert world.limits.terms((A,), caller_of(info())).advance == Advance(20_000_000, 40, 240)
        assert world.limits.terms((B,), caller_of(info())).advance == Advance(50_000_000, 50, 150)
        assert world.limits.tightest(["client", KIND]) == Advance(20_000_000, 40, 240)
        assert world.limits.tightest(["user"]) is None
        world.limits.swap(world.limits.rule_set.replace(rules=[Rule(KIND, "a", 5)]), 0)
        assert world.limits.tightest(["client", KIND]) == Advance(5_000_000, 5, 55)

    @pytest.mark.parametrize("others", [[], [Rule(KIND, "*", 3)]])
    def test_a_limit_that_admits_nothing_is_not_the_tightest_if_others_are_there(self, others: list[Rule]) -> None:
        world = World(Rule(KIND, "a", 0), *others)
        found = world.limits.tightest([KIND])
        assert found is not None
        assert (found.most > 0) is bool(others)

    def test_consumers_confirm_under_such_a_rule_whatever_the_limits(self) -> None:
        confirming = Confirming(100, 2_500_000_000, 2, persists=False)
        says: dict[str, Any] = {
            "confirm": "after_consume",
            "confirm_below_bytes": 100,
            "confirm_within_s": 2.5,
            "confirm_queues": 2,
            "fallback": "nack",
        }
        world = World(Rule(KIND, "a", None, **says), Rule("client", "*", 1), Rule(KIND, "b", None))
        assert said(world, A, consumes=True) == Terms(confirm=confirming)
        assert said(world, A) == Terms(refuses=True, confirm=confirming)
        assert world.limits.terms((B, A), caller_of(info())).confirm == confirming
        assert world.limits.terms((B,), caller_of(info())).confirm is None
        assert not Terms(confirm=confirming).limits

    @pytest.mark.parametrize("name", ["a", "[ab]", "*"])
    def test_name_pattern_and_default_have_consumers_confirm(self, name: str) -> None:
        world = World(Rule(KIND, name, None, confirm="after_consume"))
        confirming = Confirming(4096, 5_000_000_000, None, persists=True)
        assert world.limits.terms((A,), caller_of(info())).confirm == confirming

    def test_consumers_confirm_nothing_where_limiting_or_the_rule_is_off(self) -> None:
        world = World(
            Rule(KIND, "a", None, confirm="after_consume"), Rule(KIND, "b", 1, action="off", confirm="after_consume")
        )
        assert world.limits.terms((B,), caller_of(info())) == NO_TERMS
        for switches in ({"enabled": False}, {"off_kinds": [KIND]}):
            world.limits.swap(world.limits.rule_set.replace(**switches), 0)
            assert world.limits.terms((A,), caller_of(info())) == NO_TERMS
            world.limits.swap(world.limits.rule_set.replace(enabled=True, off_kinds=[]), 0)
            assert world.limits.terms((A,), caller_of(info())).confirm is not None
