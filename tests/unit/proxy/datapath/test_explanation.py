from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

import pytest

from limiter.deciding.limits import Limits
from limiter.plans.plans import Caller
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from limiter.rules.schedule import read_hours
from proxy.datapath.explanation import explain
from proxy.net.server import ListenerConfig
from proxy.protocols.base import Kind, Protocol
from proxy.stats.question import ConfirmView, Explanation, Question, QuestionError
from proxy.stats.snapshot import ConfirmState

NS_PER_S = 1_000_000_000
HOST = "127.0.0.1"
KINDS = (
    Kind("topic", "what is sent", waits="without confirms it waits"),
    Kind("subscription", "what is consumed", consumes=True, refuses=False),
)
RULES = (
    Rule("topic", "orders", 500, bytes_per_s=1024, source="file:1"),
    Rule("topic", "o*", 1000, shared=True),
    Rule("topic", "free", None),
    Rule("topic", "old", 5, action="off"),
    Rule("topic", "day*", 7, hours=read_hours("09:00-18:00", (), "UTC")),
    Rule("subscription", "*", 100),
    Rule("client", "10.0.0.0/8", 50, action="delay", max_delay_s=1.5, busy_code=215),
    Rule("producer_group", "*", 60, count="requests"),
    Rule("listener", "one", 5000, fair_by="client"),
)
THERE_ARE = "main (scope one), vip (scope one), other (scope two)"
KNOWN = "topic, subscription, client, producer_group, certificate, listener"
ALL = Question("topic", "orders", "10.1.2.3", "g", "main")


@pytest.fixture
def listeners(lines: Protocol) -> tuple[ListenerConfig, ...]:
    def listener(name: str, scope: str, **config: Any) -> ListenerConfig:
        return ListenerConfig(name, lines, lines.options(), (HOST, 0), (HOST, 1), scope=scope, **config)

    return (
        listener("main", "one", exempt=(ip_network("10.9.0.0/16"),)),
        listener("vip", "one"),
        listener("other", "two", exempt=(ip_network("10.9.9.0/24"),)),
    )


def rule_set(hour: int = 12) -> RuleSet:
    return RuleSet(RULES).at(datetime(2026, 1, 5, hour, tzinfo=UTC))


def ask(
    question: Question,
    listeners: tuple[ListenerConfig, ...],
    limits: Limits | None = None,
    now_ns: int = 0,
    scopes: tuple[str, ...] = ("producer_group",),
) -> Explanation:
    protocols = [replace(listeners[0].protocol, kinds=KINDS, scopes=scopes)]
    return explain(question, limits or Limits(rule_set()), listeners, protocols, now_ns)


def names(explanation: Explanation) -> list[str]:
    return [f"{limit.kind} {limit.name} {limit.limit.unit}" for limit in explanation.limits]


class TestLimits:
    def test_are_listed_as_they_are_asked(self, listeners: tuple[ListenerConfig, ...]) -> None:
        explanation = ask(ALL, listeners)
        assert names(explanation) == [
            "topic orders messages",
            "topic orders bytes",
            "total topic:o* messages",
            "client 10.1.2.3 messages",
            "producer_group g requests",
            "listener one messages",
        ]
        assert explanation.question == Question("topic", "orders", "10.1.2.3", "g", "one")
        assert explanation.unapplied == ()

    def test_show_their_composition(self, listeners: tuple[ListenerConfig, ...]) -> None:
        messages, size, *_, client, _, listener = ask(ALL, listeners).limits
        assert (messages.rule.name, messages.rule.source) == ("topic:orders", "file:1")
        assert (messages.limit.rate_per_s, size.limit.rate_per_s) == (500, 1024)
        assert messages.rule == size.rule
        assert (messages.limit.break_s, messages.limit.max_delay_s) == (1, None)
        assert (client.rule.action, client.limit.max_delay_s, client.limit.busy_code) == ("delay", 1.5, 215)
        assert listener.limit.fair_by == "client"
        assert all(limit.why for limit in ask(ALL, listeners).limits)

    def test_of_consumers_are_not_those_of_senders(self, listeners: tuple[ListenerConfig, ...]) -> None:
        question = Question("subscription", "g@orders", "10.1.2.3", "g", "main")
        explanation = ask(question, listeners)
        assert names(explanation) == ["subscription g@orders messages"]
        assert explanation.ignored == ("client", "producer_group", "listener")
        assert ask(ALL, listeners).ignored == ()

    def test_of_a_moment_are_by_the_rules_of_then_and_without_live_state(
        self, listeners: tuple[ListenerConfig, ...]
    ) -> None:
        limits = Limits(rule_set())
        limits.decide(0, (Resource("topic", "day"),), Caller("", "", ""), [1], lambda: [0])
        for at, asked in (("2026-01-05T10:00Z", ["topic day messages"]), ("2026-01-05T19:30+01:00", [])):
            explanation = ask(Question("topic", "day", at=at), listeners, limits)
            assert names(explanation) == asked
            assert all(limit.state is None for limit in explanation.limits)
            assert explanation.question.at == at

    @pytest.mark.parametrize(
        ("at", "said"),
        [
            ("tomorrow", "is not a valid time"),
            ("2026-01-05T10:00", "append one, such as +01:00, or Z for UTC"),
            ("2026-01-05T10:00 01:00", "or Z instead of +01:00 for UTC (in a URL, write + as %2B)"),
            ("0001-01-01T00:00:00+14:00", "is out of range"),
            ("9999-12-31T23:59:59-14:00", "is out of range"),
        ],
    )
    def test_of_an_invalid_moment_are_an_error(self, listeners: tuple[ListenerConfig, ...], at: str, said: str) -> None:
        with pytest.raises(QuestionError) as caught:
            ask(Question("topic", "day", at=at), listeners)
        assert caught.value.parameter == "at"
        assert said in caught.value.detail

    def test_of_a_client_that_is_exempt_wherever_it_may_come_are_none(
        self, listeners: tuple[ListenerConfig, ...]
    ) -> None:
        explanation = ask(Question("topic", "orders", "10.9.1.2", listener="main"), listeners)
        assert explanation.exempt_on == ("main",)
        assert explanation.limits == ()
        assert {each.rule.name: each.why.partition("; ")[2] for each in explanation.unapplied} == dict.fromkeys(
            ("topic:orders", "total:topic:o*", "client:10.0.0.0/8", "listener:one"), "the client is exempt"
        )
        assert names(ask(Question("topic", "orders", "10.9.1.2", listener="one"), listeners)) != []

    @pytest.mark.parametrize(
        ("kind", "name", "asked"),
        [
            ("client", "::ffff:10.1.2.3", "client 10.1.2.3 messages"),
            ("producer_group", "g", "producer_group g requests"),
            ("listener", "vip", "listener one messages"),
        ],
    )
    def test_of_a_scope_can_be_asked_for_alone(
        self, listeners: tuple[ListenerConfig, ...], kind: str, name: str, asked: str
    ) -> None:
        assert names(ask(Question(kind, name, "10.7.7.7", "x"), listeners)) == [asked]

    def test_of_user_and_vhost_are_asked_where_a_protocol_has_them(self, listeners: tuple[ListenerConfig, ...]) -> None:
        limits = Limits(RuleSet((Rule("vhost", "*", 4), Rule("user", "alice", 3), Rule("client", "*", 2))))
        question = Question("topic", "orders", "10.1.2.3", user="alice", vhost="/")
        explanation = ask(question, listeners, limits, scopes=("user", "vhost"))
        assert names(explanation) == ["client 10.1.2.3 messages", "user alice messages", "vhost / messages"]
        assert (explanation.question.user, explanation.question.vhost) == ("alice", "/")
        assert names(ask(Question("user", "alice"), listeners, limits, scopes=("user",))) == ["user alice messages"]
        question = Question("subscription", "g@orders", user="alice")
        assert ask(question, listeners, limits, scopes=("user",)).ignored == ("user",)

    def test_of_a_kind_name_requests_that_cannot_be_refused(self, listeners: tuple[ListenerConfig, ...]) -> None:
        questions = Question("topic", "a"), Question("subscription", "g@a"), Question("client", "10.1.2.3")
        explanations = [ask(question, listeners) for question in questions]
        assert [(each.refuses, each.waits) for each in explanations] == [
            (True, "without confirms it waits"),
            (False, ""),
            (True, ""),
        ]

    def test_of_a_kind_that_protocols_share_are_those_of_the_listener(
        self, listeners: tuple[ListenerConfig, ...]
    ) -> None:
        held = replace(listeners[0].protocol, kinds=KINDS)
        credit = replace(held, name="credit", kinds=(replace(KINDS[0], by_credit=True),))
        through = (replace(listeners[0], protocol=held), replace(listeners[2], protocol=credit))
        limits = Limits(RuleSet((Rule("topic", "a", 5, action="delay", spool=True),)))

        def explained(listener: str) -> tuple[bool, bool | None]:
            explanation = explain(Question("topic", "a", listener=listener), limits, through, (held, credit), 0)
            (limit,) = explanation.limits
            return explanation.by_credit, limit.limit.spool

        assert [explained(listener) for listener in ("", "main", "other")] == [
            (False, True),
            (False, True),
            (True, None),
        ]


class TestState:
    def test_is_that_of_the_live_limiter(self, listeners: tuple[ListenerConfig, ...]) -> None:
        limits = Limits(rule_set())
        caller = Caller("10.1.2.3", "g", "one")
        orders = (Resource("topic", "orders"),)
        limits.decide(NS_PER_S, orders, caller, [40, 20], lambda: [0, 0])
        limits.decide(NS_PER_S, orders, caller, [1], lambda: [0])
        states = {
            (limit.kind, limit.limit.unit): limit.state
            for limit in ask(ALL, listeners, limits, 3 * NS_PER_S).limits
            if limit.state is not None
        }
        topic, client = states["topic", "messages"], states["client", "messages"]
        assert topic.stored_permits == 500
        assert topic.last_refused_s is None
        assert client.stored_permits == 50
        assert not client.open


class TestUnapplied:
    @pytest.mark.parametrize(
        ("name", "rule", "why"),
        [
            ("free", "topic:free", "unlimited"),
            ("old", "topic:old", "off"),
        ],
    )
    def test_rules_are_named_with_the_reason(
        self, listeners: tuple[ListenerConfig, ...], name: str, rule: str, why: str
    ) -> None:
        explanation = ask(Question("topic", name), listeners)
        (unapplied,) = [each for each in explanation.unapplied if each.rule.name == rule]
        assert (unapplied.kind, unapplied.name) == ("topic", name)
        assert why in unapplied.why

    def test_rule_outside_its_hours_is_one(self, listeners: tuple[ListenerConfig, ...]) -> None:
        question = Question("topic", "daybreak")
        assert names(ask(question, listeners)) == ["topic daybreak messages"]
        explanation = ask(question, listeners, Limits(rule_set(hour=20)))
        assert explanation.limits == ()
        (unapplied,) = explanation.unapplied
        assert unapplied.rule.hours == "09:00-18:00 UTC"

    def test_without_limiting_all_are(self, listeners: tuple[ListenerConfig, ...]) -> None:
        explanation = ask(ALL, listeners, Limits(rule_set().replace(enabled=False)))
        assert not explanation.limiting
        assert explanation.limits == ()
        assert {unapplied.rule.name for unapplied in explanation.unapplied} >= {"topic:orders", "client:10.0.0.0/8"}


class TestListeners:
    @pytest.mark.parametrize(
        ("asked", "understood"), [("main", "one"), ("vip", "one"), ("one", "one"), ("other", "two"), ("", "")]
    )
    def test_name_or_scope_leads_to_the_scope(
        self, listeners: tuple[ListenerConfig, ...], asked: str, understood: str
    ) -> None:
        assert ask(Question("topic", "orders", listener=asked), listeners).question.listener == understood

    @pytest.mark.parametrize(
        ("client", "listener", "exempt_on"),
        [
            ("10.9.9.1", "", ("main", "other")),
            ("10.9.9.1", "one", ("main",)),
            ("::ffff:10.9.9.1", "main", ("main",)),
            ("10.9.9.1", "vip", ()),
            ("10.1.1.1", "", ()),
            ("", "", ()),
        ],
    )
    def test_name_exempt_clients(
        self, listeners: tuple[ListenerConfig, ...], client: str, listener: str, exempt_on: tuple[str, ...]
    ) -> None:
        question = Question("topic", "orders", client=client, listener=listener)
        assert ask(question, listeners).exempt_on == exempt_on

    def test_tell_of_a_client_asked_for_alone_too(self, listeners: tuple[ListenerConfig, ...]) -> None:
        assert ask(Question("client", "10.9.0.1"), listeners).exempt_on == ("main",)


class TestSenselessQuestions:
    @pytest.mark.parametrize(
        ("question", "parameter", "detail"),
        [
            (Question("topc", "a"), "kind", f"unknown kind 'topc'; must be one of {KNOWN}"),
            (Question("user", "alice"), "kind", f"unknown kind 'user'; must be one of {KNOWN}"),
            (Question("topic", "a", user="alice"), "user", 'lines does not support "user"'),
            (Question("topic", "a", vhost="/"), "vhost", 'lines does not support "vhost"'),
            (Question("topic", ""), "name", "the name of the topic is required"),
            (Question("topic", "a", client="10.1"), "client", "'10.1' is not an IP address"),
            (Question("client", "host"), "name", "'host' is not an IP address"),
            (
                Question("topic", "a", listener="x"),
                "listener",
                f"'x' is neither a listener nor a scope; known listeners: {THERE_ARE}",
            ),
            (
                Question("listener", "x"),
                "name",
                f"'x' is neither a listener nor a scope; known listeners: {THERE_ARE}",
            ),
        ],
    )
    def test_name_the_fault(
        self, listeners: tuple[ListenerConfig, ...], question: Question, parameter: str, detail: str
    ) -> None:
        with pytest.raises(QuestionError) as caught:
            ask(question, listeners)
        assert (caught.value.parameter, caught.value.detail) == (parameter, detail)


class TestConfirm:
    RULES = (
        Rule("queue", "orders", 5, confirm="after_consume", confirm_within_s=2.0, fallback="nack", source="file:1"),
        Rule("queue", "kept", None, action="off", confirm="after_consume"),
        Rule("queue", "plain", 5),
        Rule("exchange", "*", None, confirm="after_consume"),
        Rule("exchange", "three", None, confirm="after_consume", confirm_queues=3),
    )
    KINDS = (
        Kind("queue", "", after_consume=True, queues=1),
        Kind("exchange", "", after_consume=True),
    )

    def ask(
        self, listeners: tuple[ListenerConfig, ...], kind: str, name: str, *, enabled: bool = True, **question: str
    ) -> ConfirmView | None:
        able = replace(listeners[0].protocol, name="able", kinds=self.KINDS)
        unable = replace(able, name="unable", kinds=tuple(replace(each, after_consume=False) for each in self.KINDS))
        main, vip, other = listeners
        # The first listener's protocol cannot do this, the other one can.
        listeners = (replace(other, protocol=unable), replace(main, protocol=able), replace(vip, protocol=able))
        limits = Limits(RuleSet(self.RULES, enabled=enabled))
        confirms = {
            Resource("queue", "orders"): ConfirmState("queue", "orders", "broker", "behind", 1, 2, 3, 4, 5, 6, 7)
        }
        asked = Question(kind, name, **question)
        return explain(asked, limits, listeners, (unable, able), 0, confirms=confirms).confirm

    def test_rule_and_state_are_shown(self, listeners: tuple[ListenerConfig, ...]) -> None:
        found = self.ask(listeners, "queue", "orders")
        assert found is not None
        assert (found.rule.name, found.rule.source) == ("queue:orders", "file:1")
        assert (found.below_bytes, found.within_s, found.queues, found.fallback) == (4096, 2.0, 1, "nack")
        assert (found.left_alone, found.now and found.now.reason) == ("", "behind")

    def test_of_an_exchange_the_rule_has_the_number_of_queues(self, listeners: tuple[ListenerConfig, ...]) -> None:
        three, others = self.ask(listeners, "exchange", "three"), self.ask(listeners, "exchange", "events")
        assert three is not None
        assert (three.queues, three.left_alone, three.now) == (3, "", None)
        assert others is not None
        why = "confirm_queues is not set, so the number of queues that receive each message is unknown"
        assert others.left_alone == why

    def test_exempt_clients_and_limiting_that_is_off_are_named(self, listeners: tuple[ListenerConfig, ...]) -> None:
        off = self.ask(listeners, "queue", "orders", enabled=False)
        exempt = self.ask(listeners, "queue", "orders", client="10.9.1.1", listener="main")
        assert off is not None
        assert exempt is not None
        assert (off.left_alone, exempt.left_alone) == ("limiting is switched off", "the client is exempt")
