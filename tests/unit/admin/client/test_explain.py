import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from admin.cli import main
from admin.client.api import Api
from admin.client.explain import ask_file, ask_sidecar, text
from admin.client.target import Target
from admin.common.errors import SettingsError
from proxy.stats.question import (
    ConfirmView,
    Explanation,
    LimitState,
    Question,
    RuleView,
    StandingRefusal,
    UnappliedRule,
)
from proxy.stats.snapshot import ConfirmState

Write = Callable[[str], str]
ORDERS = Question("topic", "orders", "10.1.2.3", "g", "main")


class TestAskingASidecar:
    def test_brings_its_answer(self, api: Any, explanation: Explanation) -> None:
        api.answers["GET /explain"] = (200, msgspec.to_builtins(explanation))
        with Api(Target(api.url)) as client:
            assert ask_sidecar(client, ORDERS) == explanation
        assert api.asked[0].query == {
            "kind": "topic",
            "name": "orders",
            "client": "10.1.2.3",
            "producer_group": "g",
            "listener": "main",
        }

    @pytest.mark.parametrize(
        ("field", "line"),
        [
            ("kind", "KIND: is wrong"),
            ("name", "NAME: is wrong"),
            ("producer_group", "--producer-group: is wrong"),
        ],
    )
    def test_what_is_wrong_is_named_as_on_the_command_line(self, api: Any, problem: Any, field: str, line: str) -> None:
        api.answers["GET /explain"] = problem(400, "wrong", {"field": field, "detail": "is wrong"})
        with Api(Target(api.url)) as client, pytest.raises(SettingsError) as caught:
            ask_sidecar(client, ORDERS)
        assert caught.value.lines == (line,)

    @pytest.mark.parametrize("name", ["\udcff\udcfe", "a\nb"])
    def test_what_cannot_be_printed_is_not_asked_for(self, api: Any, sluice: Any, name: str) -> None:
        ran = sluice("limits", "explain", "topic", name)
        assert ran.exit_code == 2
        assert ran.err == f"sluice: NAME: {name!r} has characters that cannot be printed\n"
        assert api.asked == []


class TestText:
    def test_says_which_limits_apply_why_and_in_which_state(self, explanation: Explanation) -> None:
        assert text(explanation, live=True).splitlines() == [
            "topic orders, client 10.1.2.3, producer group g, listener scope default",
            "",
            "1. topic orders: 500 messages per second, burst 1 s",
            "   rule   topic:orders = 500/s (sluice.toml:3)",
            "   why    exact name",
            "   above  refused, and so is everything else until 1 s after permits are available again",
            "   now    refuses everything for another 0.25 s; last refused 1.5 s ago",
            "   used   100% over 1 s, 80% over 10 s, 25% over 60 s",
            "",
            "2. client 10.1.2.3: 1048576 bytes per second, burst 2 s",
            "   rule   client:10.0.0.0/8 09:00-18:00 UTC = 1048576 bytes/s (sluice.toml:9)",
            "   why    network",
            "   above  held for up to 1.5 s, then refused with code 215",
            "   now    admits again in 0.002 s, 2048 bytes owed; nothing refused so far",
            "   held   3 requests wait for it",
            "",
            "3. total producer_group:g*: 9 requests per second, burst 1 s, warming up in 10 s",
            "   rule   total:producer_group:g* = 9 requests/s (sluice.toml:15)",
            "   why    shared",
            "   above  passes, and is counted as what would be refused",
            "   now    nobody has needed it yet",
            "",
            "4. listener default: 900 messages per second, burst 1 s, shared fairly by client",
            "   rule   listener:default = 900/s (sluice.toml:20)",
            "   why    exact name",
            "   above  refused",
            "   now    300 messages in store; nothing refused so far",
            "   share  of 10.1.2.3: admits again in 0.01 s, 0.5 messages owed",
            "   share  of 10.1.2.4: 0.5 messages owed, admits what others leave over",
            "   share  of _other: 2.25 messages in store",
            "",
            "These rules match but do not apply:",
            "   listener default: listener:default = 5/s (sluice.toml:25): not now: 18:00-20:00 UTC",
        ]

    def test_of_a_file_says_nothing_of_what_is_live(self, explanation: Explanation) -> None:
        assert "nobody has needed it yet" not in text(explanation, live=False)

    def test_of_what_no_rule_matches_says_so(self, explanation: Explanation) -> None:
        bare = msgspec.structs.replace(explanation, limits=(), unapplied=())
        assert text(bare, live=True).splitlines()[1:] == ["", "No rule matches, so nothing limits it."]

    def test_says_first_what_makes_all_of_it_void(self, explanation: Explanation) -> None:
        void = msgspec.structs.replace(explanation, limiting=False, exempt_on=("main", "vip"))
        assert text(void, live=True).splitlines()[1:3] == [
            "Limiting is switched off: everything passes.",
            "The client is exempt on listener main, vip: nothing limits it there.",
        ]

    def test_names_what_of_the_question_does_not_matter(self, explanation: Explanation) -> None:
        question = Question("subscription", "g@orders", "10.1.2.3", "g")
        ignoring = msgspec.structs.replace(explanation, question=question, ignored=("client", "producer_group"))
        assert text(ignoring, live=True).splitlines()[1] == (
            "Limits of a client or producer group do not matter for it: they limit what is sent, and a subscription is"
            " what is consumed."
        )

    def test_says_what_is_put_aside(self, explanation: Explanation) -> None:
        first, second, *_ = explanation.limits
        limit = msgspec.structs.replace(second.limit, spool=True, max_delay_s=3600)
        spooled = msgspec.structs.replace(second, limit=limit)
        told = text(msgspec.structs.replace(explanation, limits=(first, spooled)), live=True).splitlines()
        assert "   above  held for up to 3600 s in the spool, then refused with code 215" in told

    def test_says_what_cannot_be_refused(self, explanation: Explanation) -> None:
        waits = "a publish without confirms cannot be refused: it waits"
        told = text(msgspec.structs.replace(explanation, waits=waits), live=True).splitlines()
        assert told[1] == "A publish without confirms cannot be refused: it waits."
        above = [line for line in told if line.startswith("   above")]
        assert above[0] == "   above  refused, and so is everything else until 1 s after permits are available again"
        told = text(msgspec.structs.replace(explanation, waits=waits, refuses=False), live=True).splitlines()
        above = [line for line in told if line.startswith("   above")]
        assert above[:3] == [
            *["   above  held until it is admitted"] * 2,
            "   above  passes, and is counted as what would be refused",
        ]
        shadows = tuple(limit for limit in explanation.limits if limit.rule.action == "shadow")
        assert "waits" not in text(msgspec.structs.replace(explanation, waits=waits, limits=shadows), live=True)

    def test_says_what_waits_for_credit(self, explanation: Explanation) -> None:
        told = text(msgspec.structs.replace(explanation, by_credit=True), live=True)
        above = [line.removeprefix("   above  ") for line in told.splitlines() if line.startswith("   above")]
        assert above[0].startswith("refused, ")
        assert above[1:3] == [
            "waits for credit until it is admitted",
            "passes, and is counted as what would be refused",
        ]
        told = text(msgspec.structs.replace(explanation, by_credit=True, refuses=False), live=True)
        assert told.count("waits for credit") == 3

    def test_of_nothing_at_all_no_credit_comes(self, explanation: Explanation) -> None:
        (limit,) = [limit for limit in explanation.limits if limit.rule.action == "delay"]
        nothing = msgspec.structs.replace(limit, limit=msgspec.structs.replace(limit.limit, rate_per_s=0.0))
        told = text(msgspec.structs.replace(explanation, by_credit=True, limits=(nothing,)), live=True)
        assert "   above  gets no credit\n" in told
        assert "refuses everything" not in told

    def test_names_the_moment_that_was_asked_about(self, explanation: Explanation) -> None:
        question = Question("topic", "orders", at="2026-11-21T23:00Z")
        at = msgspec.structs.replace(explanation, question=question)
        assert text(at, live=False).splitlines()[0] == "topic orders, at 2026-11-21T23:00Z"

    @pytest.mark.parametrize(
        ("action", "now"),
        [
            ("reject", "refuses everything; last refused 1.5 s ago"),
            ("shadow", "would refuse everything; would last have refused 1.5 s ago"),
        ],
    )
    def test_a_limit_of_0_admits_nothing_ever(self, explanation: Explanation, action: str, now: str) -> None:
        limit = explanation.limits[0]
        zero = msgspec.structs.replace(
            limit,
            rule=msgspec.structs.replace(limit.rule, action=action),
            limit=msgspec.structs.replace(limit.limit, rate_per_s=0),
        )
        shown = text(msgspec.structs.replace(explanation, limits=(zero,)), live=True)
        assert "1. topic orders: no messages at all\n" in shown
        assert f"   now    {now}\n" in shown
        assert ("   above  everything is refused\n" in shown) is (action == "reject")
        assert "permits again" not in shown

    @pytest.mark.parametrize(
        ("state", "now"),
        [
            (
                LimitState(0, True, 0.9, 0.1),
                "would refuse everything for another 0.9 s; would last have refused 0.1 s ago",
            ),
            (
                LimitState(-2, False, 0.5, 3),
                "would admit again in 0.5 s, 2 messages owed; would last have refused 3 s ago",
            ),
            (LimitState(4, False, 0, None), "4 messages in store; nothing would have been refused so far"),
        ],
    )
    def test_a_shadow_rule_refuses_nothing(self, explanation: Explanation, state: LimitState, now: str) -> None:
        limit = explanation.limits[0]
        rule = msgspec.structs.replace(limit.rule, action="shadow")
        shadow = msgspec.structs.replace(limit, rule=rule, state=state)
        shown = text(msgspec.structs.replace(explanation, limits=(shadow,)), live=True)
        assert f"   now    {now}\n" in shown

    def test_refused_without_a_break_is_said_shortly(self, explanation: Explanation) -> None:
        limit = explanation.limits[0]
        calm = msgspec.structs.replace(limit, limit=msgspec.structs.replace(limit.limit, break_s=0))
        shown = text(msgspec.structs.replace(explanation, limits=(calm,)), live=True)
        assert "   above  refused\n" in shown


class TestCommand:
    def test_prints_the_sidecars_answer(self, api: Any, sluice: Any, explanation: Explanation) -> None:
        api.answers["GET /explain"] = (200, msgspec.to_builtins(explanation))
        ran = sluice("limits", "explain", "topic", "orders", "--client", "10.1.2.3")
        assert (ran.exit_code, ran.out) == (0, text(explanation, live=True) + "\n")

    def test_prints_json_on_demand(self, api: Any, sluice: Any, explanation: Explanation) -> None:
        api.answers["GET /explain"] = (200, msgspec.to_builtins(explanation))
        ran = sluice("limits", "explain", "topic", "orders", "--json")
        assert json.loads(ran.out) == json.loads(msgspec.json.encode(explanation))

    @pytest.mark.parametrize(
        ("tokens", "line"),
        [
            ("explain topic", "NAME: nothing given; see sluice limits explain --help"),
            (
                "explain topic a --clinet 1",
                "unknown option: --clinet; did you mean --client? see sluice limits explain --help",
            ),
            (
                "explain topic a --admin x:1 --config y",
                "--admin and --config: give one of them",
            ),
            ("explain topic a --admin x", 'must be "host:port"'),
            ("explain topic a --config /nowhere.toml", "/nowhere.toml: cannot be read: no such file or directory"),
        ],
    )
    def test_that_is_wrong_is_one_line_and_exit_code_2(
        self, capsys: pytest.CaptureFixture[str], tokens: str, line: str
    ) -> None:
        assert main(["limits", *tokens.split()]) == 2
        (complaint,) = capsys.readouterr().err.splitlines()
        assert complaint.startswith("sluice: ")
        assert line in complaint


FILE = """
[[listeners]]
listen = "127.0.0.2:10911"
broker = "127.0.0.1:10911"
name = "main"
exempt = ["10.9.0.0/16"]

[[limits]]
kind = "topic"
name = "orders"
rate = 500

[[limits]]
kind = "topic"
name = "o*"
rate = 1000
shared = true

[[limits]]
kind = "topic"
name = "free"
rate = "unlimited"

[[limits]]
kind = "client"
name = "10.0.0.0/8"
rate = "unlimited"
bytes_per_s = 1048576
"""


class TestAskingAFile:
    def test_says_what_it_would_do_without_a_live_state(self, write: Write) -> None:
        explanation = ask_file(write(FILE), Question("topic", "orders", "10.1.2.3"))
        assert [(limit.kind, limit.name, limit.limit.unit, limit.rule.name) for limit in explanation.limits] == [
            ("topic", "orders", "messages", "topic:orders"),
            ("total", "topic:o*", "messages", "total:topic:o*"),
            ("client", "10.1.2.3", "bytes", "client:10.0.0.0/8"),
        ]
        assert {limit.state for limit in explanation.limits} == {None}
        assert explanation.question.listener == "default"

    def test_knows_who_is_exempt(self, write: Write) -> None:
        file = write(FILE)
        assert ask_file(file, Question("topic", "orders", "10.9.1.1")).exempt_on == ("main",)
        assert ask_file(file, Question("topic", "orders", "::ffff:10.9.1.1")).exempt_on == ("main",)
        assert ask_file(file, Question("topic", "orders", "10.1.1.1")).exempt_on == ()

    def test_names_what_is_refused_whatever_the_limits_are(self, write: Write) -> None:
        listener = '[[listeners]]\nname = "{}"\nlisten = "127.0.0.1:{}"\nbroker = "127.0.0.1:9"\n'
        limit = '[[limits]]\nkind = "topic"\nname = "a"\nrate = 1\n'
        passing = 'exempt = ["10.9.0.0/16"]\n' + listener.format("inner", 2)
        file = write(listener.format("main", 1) + passing + '[listeners.options]\ninternal_topics = "pass"\n' + limit)
        shown = ask_file(file, Question("topic", "rmq_sys_wheel_timer"))
        assert shown.refusals == (StandingRefusal("internal_topic", ("main",)),)
        assert text(shown, live=False).splitlines()[1:] == [
            "It is refused on listener main whatever the limits are: internal_topic.",
            "",
            "No limit applies to it.",
        ]
        assert ask_file(file, Question("topic", "rmq_sys_wheel_timer", "10.9.0.1", listener="main")).refusals == ()
        assert ask_file(file, Question("topic", "rmq_sys_wheel_timer", listener="inner")).refusals == ()
        assert ask_file(file, Question("topic", "a")).refusals == ()
        off = ask_file(
            write(f"limiting = false\n{listener.format('main', 1)}"), Question("topic", "rmq_sys_wheel_timer")
        )
        assert off.refusals == ()

    def test_lists_what_matches_and_does_not_limit(self, write: Write) -> None:
        explanation = ask_file(write(FILE), Question("topic", "free"))
        assert explanation.limits == ()
        assert [(rule.name, rule.rule.name) for rule in explanation.unapplied] == [("free", "topic:free")]

    def test_without_listeners_knows_the_usual_kinds(self, write: Write) -> None:
        file = write('[[limits]]\nkind = "topic"\nname = "a"\nrate = 1\n')
        assert [limit.rule.name for limit in ask_file(file, Question("topic", "a")).limits] == ["topic:a"]

    @pytest.mark.parametrize(
        ("question", "line"),
        [
            (Question("topc", "a"), "KIND: 'topc' is not one of topic, retry_group, "),
            (Question("topic", "a", client="10.1"), "--client: '10.1' is not an IP address"),
            (
                Question("topic", "a", listener="vip"),
                "--listener: 'vip' is neither a listener nor a scope; there are: main (scope default)",
            ),
        ],
    )
    def test_a_question_that_makes_no_sense_is_one_line(self, write: Write, question: Question, line: str) -> None:
        with pytest.raises(SettingsError) as caught:
            ask_file(write(FILE), question)
        assert caught.value.lines[0].startswith(line)

    @pytest.mark.parametrize(
        ("kind", "name", "line"),
        [
            ("subscription", "billing", "NAME: billing names no subscription; allowed: GROUP@TOPIC"),
            ("retry_group", "%RETRY%g", "NAME: %RETRY% is no part of a name here"),
            ("topic", "%RETRY%g", "NAME: %RETRY% is no part of a name here"),
        ],
    )
    def test_a_name_that_cannot_be_is_one_line(self, write: Write, kind: str, name: str, line: str) -> None:
        with pytest.raises(SettingsError) as caught:
            ask_file(write(FILE), Question(kind, name))
        assert caught.value.lines[0].startswith(line)
        assert caught.value.exit_code == 2

    def test_goes_by_the_rules_of_the_moment_that_is_asked_about(self, write: Write) -> None:
        night = (
            '[[limits]]\nkind = "topic"\nname = "o*"\nrate = 9\nbetween = "22:00-06:00"\ntime_zone = "Europe/Berlin"\n'
        )
        file = write(night)
        (limit,) = ask_file(file, Question("topic", "orders", at="2026-11-21T22:30Z")).limits
        assert limit.rule.name == "topic:o* 22:00-06:00 Europe/Berlin"
        assert ask_file(file, Question("topic", "orders", at="2026-11-21T20:30+00:00")).limits == ()

    def test_is_a_command(self, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["limits", "explain", "topic", "orders", "--config", write(FILE)]) == 0
        assert "1. topic orders: 500 messages per second, burst 1 s" in capsys.readouterr().out


class TestConfirms:
    """What is said of messages that their consumers confirm."""

    NOW = ConfirmState("queue", "orders", "after_consume", "", 7, 250, 64, 1000, 20, 3, 0)
    VIEW = ConfirmView(
        rule=RuleView("queue:orders", "sluice.toml:3", "unlimited", "reject", None),
        below_bytes=4096,
        within_s=5.0,
        queues=1,
        fallback="persist",
        now=NOW,
    )

    def said(self, view: ConfirmView, *, live: bool = True) -> list[str]:
        explanation = Explanation(Question("queue", "orders"), 1, limiting=True, exempt_on=(), limits=(), unapplied=())
        return text(msgspec.structs.replace(explanation, confirm=view), live=live).splitlines()[4:]

    def test_promise_and_state_are_said(self) -> None:
        assert self.said(self.VIEW) == [
            "Confirmed by its consumers, as queue:orders (sluice.toml:3) says:",
            (
                "   a message below 4096 bytes is confirmed once its consumers have acknowledged it or the broker has"
                " stored it, never before; what consumers do not acknowledge within 5 s is published again for the"
                " broker to confirm"
            ),
            "   now    by its consumers; 7 wait, the oldest for 0.25 s",
            "   so far 1000 by consumers, 20 by the broker, 3 published again",
        ]

    @pytest.mark.parametrize(
        ("reason", "why"), [("behind", "its consumers do not keep up"), ("something_new", "something_new")]
    )
    def test_why_the_broker_does_it_is_said(self, reason: str, why: str) -> None:
        now = ConfirmState("queue", "orders", "broker", reason, 0, 0, 16, 0, 0, 0, 0)
        assert self.said(msgspec.structs.replace(self.VIEW, now=now))[2:] == [
            f"   now    by the broker: {why}; none waits",
            "   so far none",
        ]

    def test_its_rule_is_not_said_to_be_of_no_use(self) -> None:
        other = RuleView("queue:o*", "sluice.toml:9", "5/s", "off", None)
        unapplied = tuple(UnappliedRule("queue", "orders", "unlimited", rule) for rule in (self.VIEW.rule, other))
        explanation = Explanation(
            Question("queue", "orders"),
            1,
            limiting=True,
            exempt_on=(),
            limits=(),
            unapplied=unapplied,
            confirm=self.VIEW,
        )
        lines = text(explanation, live=True).splitlines()
        assert lines[-2:] == [
            "These rules match but do not apply:",
            "   queue orders: queue:o* = 5/s (sluice.toml:9): unlimited",
        ]

    def test_without_traffic_there_is_no_state(self) -> None:
        view = msgspec.structs.replace(self.VIEW, now=None)
        assert self.said(view)[2:] == ["   now    nothing was published of late"]
        assert self.said(view, live=False)[2:] == []

    def test_what_is_left_alone_is_said(self) -> None:
        view = msgspec.structs.replace(self.VIEW, queues=None, left_alone="confirm_queues does not say it")
        assert self.said(view) == [
            (
                "The broker confirms it, although queue:orders (sluice.toml:3) says after_consume: confirm_queues does"
                " not say it."
            )
        ]


@pytest.mark.parametrize(
    ("listener", "action", "above"),
    [
        ("old", "reject", "refused"),
        ("new", "delay", "waits for credit until it is admitted"),
        ("both", "default", "refused; with AMQP 1.0, waits for credit instead"),
        ("", "default", "refused; with AMQP 1.0, waits for credit instead"),
    ],
)
def test_without_an_action_the_protocol_behind_the_listener_says_what_happens(
    write: Write, listener: str, action: str, above: str
) -> None:
    listeners = (
        f'[[listeners]]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\nbroker = "127.0.0.1:{port}9"\n'
        f'protocol = "{protocol}"\n'
        for port, (name, protocol) in enumerate([("old", "amqp091"), ("new", "amqp10"), ("both", "amqp")], 1)
    )
    limits = '[[limits]]\nkind = "queue"\nname = "a"\nrate = 1\n[[limits]]\nkind = "user"\nname = "*"\nrate = 1\n'
    explanation = ask_file(write("".join(listeners) + limits), Question("queue", "a", user="u", listener=listener))
    assert [limit.rule.action for limit in explanation.limits] == [action, action]
    assert text(explanation, live=False).split("\n").count(f"   above  {above}") == 2
