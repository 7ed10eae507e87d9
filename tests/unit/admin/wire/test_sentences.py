"""The sentences of ``explain``, ``flow`` and ``spool``."""

from typing import Any

import msgspec
import pytest
from api_examples import ADAPTIVE, FLEET, FLOW, SPOOL

from admin.wire import FolderState, Spool, sentences
from proxy.stats.flow import Flow
from proxy.stats.question import AppliedLimit, ConfirmView, Explanation, LimitState, Question, RuleView, UnappliedRule
from proxy.stats.snapshot import AdaptiveName, ConfirmState, FleetState

replace = msgspec.structs.replace


def explained(explanation: Explanation, *, live: bool = True, **changes: Any) -> Explanation:
    return sentences.explained(replace(explanation, **changes), live=live)


def details(explanation: Explanation, word: str) -> list[str]:
    return [each.text for limit in explanation.limits for each in limit.details if each.name == word]


class TestExplained:
    def test_names_applied_limits_with_reason_and_state(self, explanation: Explanation) -> None:
        whole = explained(explanation)
        assert whole.text == "topic orders, client 10.1.2.3, producer group g, listener scope default"
        assert whole.sentences == ()
        assert [limit.text for limit in whole.limits] == [
            "500 messages per second, burst 1 s",
            "1048576 bytes per second, burst 2 s",
            "9 requests per second, burst 1 s, warming up in 10 s",
            "900 messages per second, burst 1 s, shared fairly by client",
        ]
        assert [(each.name, each.text) for each in whole.limits[0].details] == [
            ("rule", "topic:orders = 500/s (sluice.toml:3)"),
            ("why", "exact name"),
            ("above", "refused, as are all later requests until permits have been available for 1 s"),
            ("now", "refuses everything for another 0.25 s; last refused 1.5 s ago"),
            ("used", "100% over 1 s, 80% over 10 s, 25% over 60 s"),
        ]
        assert details(whole, "above")[1:] == [
            "held for up to 1.5 s, then refused with code 215",
            "passes, and is counted as a request that would be refused",
            "refused",
        ]
        assert details(whole, "now")[1:] == [
            "admits again in 0.002 s, 2048 bytes owed; nothing refused so far",
            "not used yet",
            "300 messages available; nothing refused so far",
        ]
        assert details(whole, "held") == ["3 requests"]
        assert details(whole, "share") == [
            "of 10.1.2.3: admits again in 0.01 s, 0.5 messages owed",
            "of 10.1.2.4: 0.5 messages owed, admits what others leave unused",
            "of _other: 2.25 messages available",
        ]
        assert [each.text for each in whole.unapplied] == [
            "listener default: listener:default = 5/s (sluice.toml:25): not now: 18:00-20:00 UTC"
        ]

    def test_shows_the_common_fields_first(self, explanation: Explanation) -> None:
        assert explained(explanation, limits=(), unapplied=()).sentences == ("No rule matches, so nothing limits it.",)
        assert explained(explanation, limits=()).sentences == ("Nothing limits it.",)
        assert explained(explanation, limiting=False, exempt_on=("main", "vip")).sentences == (
            "Limiting is switched off: everything passes.",
            "The client is exempt on listener main, vip: nothing limits it there.",
        )
        question = Question("subscription", "g@orders", "10.1.2.3", "g")
        assert explained(explanation, question=question, ignored=("client", "producer_group")).sentences == (
            (
                "Limits of a client or producer group do not apply to it: they limit published messages, and a"
                " subscription is consumed."
            ),
        )

    def test_shows_the_wait_in_place_of_a_refusal(self, explanation: Explanation) -> None:
        waits = "a publish without confirms cannot be refused: it waits"
        assert explained(explanation, waits=waits).sentences == (f"A{waits[1:]}.",)
        assert details(explained(explanation, refuses=False), "above")[:2] == ["held until it is admitted"] * 2
        by_credit = details(explained(explanation, by_credit=True), "above")
        assert by_credit[0].startswith("refused, ")
        assert by_credit[1] == "waits for credit until it is admitted"
        shadows = tuple(limit for limit in explanation.limits if limit.rule.action == "shadow")
        assert explained(explanation, waits=waits, limits=shadows).sentences == ()

    @pytest.mark.parametrize(
        ("action", "above", "now"),
        [
            ("reject", "everything is refused", "refuses everything; last refused 1.5 s ago"),
            (
                "shadow",
                "passes, and is counted as a request that would be refused",
                "would refuse everything; would last have refused 1.5 s ago",
            ),
        ],
    )
    def test_a_limit_of_0_admits_nothing_ever(
        self, explanation: Explanation, action: Any, above: str, now: str
    ) -> None:
        limit = explanation.limits[0]
        zero = replace(limit, rule=replace(limit.rule, action=action), limit=replace(limit.limit, rate_per_s=0))
        whole = explained(explanation, limits=(zero,))
        assert whole.limits[0].text == "no messages at all"
        assert (details(whole, "above"), details(whole, "now")) == ([above], [now])

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
            (
                LimitState(4, False, 0, 0.01),
                "4 messages available; would last have refused 0.01 s ago",
            ),
            (LimitState(4, False, 0, None), "4 messages available; nothing would have been refused so far"),
        ],
    )
    def test_a_shadow_rule_refuses_nothing(self, explanation: Explanation, state: LimitState, now: str) -> None:
        limit = explanation.limits[0]
        shadow = replace(limit, rule=replace(limit.rule, action="shadow"), state=state)
        assert details(explained(explanation, limits=(shadow,)), "now") == [now]


class TestAdaptive:
    NOW = "adaptive: 1840/s now; the broker's p90 is 85 ms, usually 12 ms"
    RULE = RuleView("adaptive listener:*", "sluice.toml:9", "adaptive, at least 100/s", "reject", None)

    def said(self, explanation: Explanation, question: Question, **changes: Any) -> AppliedLimit:
        limit = explanation.limits[0]
        limit = replace(limit, kind="listener", name="main", rule=self.RULE, limit=replace(limit.limit, adaptive=True))
        asked = replace(explanation, limits=(limit,), question=question)
        return sentences.explained(asked, live=True, adaptive=[replace(ADAPTIVE, **changes)]).limits[0]

    def test_shows_the_brokers_limit_and_the_names_share(self, explanation: Explanation) -> None:
        said = self.said(explanation, Question("topic", "orders"))
        assert said.text == "adaptive, at least 100/s"
        assert [(each.name, each.text) for each in said.details[2:]] == [
            ("above", "while the broker is overloaded, requests that exceed their name's share are refused"),
            ("now", f"{self.NOW}; orders may use 612/s of it and asks for 4000/s"),
        ]

    def test_a_name_may_be_that_of_a_caller(self, explanation: Explanation) -> None:
        names = (AdaptiveName("10.0.0.7", 90.0, 5.0, 5.0, 1),)
        said = self.said(explanation, Question("topic", "new", client="10.0.0.7"), names=names).details[-1].text
        assert said == f"{self.NOW}; 10.0.0.7 may use 5/s of it and asks for 90/s"

    def test_no_name_may_use_more_than_the_limit(self, explanation: Explanation) -> None:
        changes: dict[str, Any] = {"names": (AdaptiveName("topic:orders", 9.0, 9.0, 612.0, 1),), "limit_per_s": 500.0}
        assert (
            "; orders may use 500/s" in self.said(explanation, Question("topic", "orders"), **changes).details[-1].text
        )
        (said,) = sentences.adaptive([replace(ADAPTIVE, **changes)])
        assert said.names[0].may_per_s == 500

    @pytest.mark.parametrize(
        ("changes", "now"),
        [
            (
                {"action": "shadow"},
                "1840/s now (shadow: nothing is refused); the broker's p90 is 85 ms, usually 12 ms",
            ),
            ({"limit_per_s": None, "latency_s": 0.003}, "no limit now; the broker's p90 is 3 ms, usually 12 ms"),
            ({"usual_latency_s": None}, "1840/s now; the broker's p90 is 85 ms"),
            ({"latency_s": None}, "1840/s now; the broker's latency is unknown"),
        ],
    )
    def test_unknown_figures_are_left_out(self, changes: dict[str, Any], now: str) -> None:
        (said,) = sentences.adaptive([replace(ADAPTIVE, **changes)])
        assert (said.text, said.names) == (f"adaptive: {now}", ADAPTIVE.names)


class TestFleet:
    def said(self, explanation: Explanation, state: FleetState) -> AppliedLimit:
        limit = explanation.limits[0]
        limit = replace(limit, limit=replace(limit.limit, fleet=True))
        return sentences.explained(replace(explanation, limits=(limit,)), live=True, fleet=state).limits[0]

    def test_explains_the_share_of_this_member(self, explanation: Explanation) -> None:
        said = self.said(explanation, FLEET)
        assert said.text == "500 messages per second, burst 1 s, for all members of the fleet together"
        assert [each.text for each in said.details if each.name == "fleet"] == [
            "500/s for 4 members; this member's share is 312/s"
        ]

    def test_a_limit_without_demand_here_has_no_share(self, explanation: Explanation) -> None:
        said = self.said(explanation, replace(FLEET, size=1, limits=()))
        assert "for 1 member; this member does not use it now" in [each.text for each in said.details]
        unused = replace(FLEET.limits[0], share=0.0, asks_per_s=0.0)
        said = self.said(explanation, replace(FLEET, limits=(unused,)))
        assert "500/s for 4 members; this member does not use it now" in [each.text for each in said.details]

    @pytest.mark.parametrize(
        ("when_away", "limit", "all_of_it"),
        [
            ("last", "this member's share is 312/s", "this member keeps its last share of each limit"),
            ("equal", "this member's share is 125/s", "this member uses an equal share of each limit"),
            ("unlimited", "this member admits everything", "fleet limits admit everything"),
            ("refuse", "this member's share is 0/s", "fleet limits refuse everything"),
        ],
    )
    def test_explains_the_effect_of_a_missing_redis(self, when_away: str, limit: str, all_of_it: str) -> None:
        away = replace(FLEET, when_away=when_away, away_s=12.0, error="connection refused")
        said = sentences.of_fleet(away)
        assert said.text == f"Redis has been unreachable for 12.0 s (connection refused); {all_of_it}"
        assert said.limits[0].text == f"500/s for 4 members; Redis is unreachable, and {limit}"

    def test_shows_that_redis_has_not_answered_yet(self) -> None:
        said = sentences.of_fleet(replace(FLEET, size=1, last_contact_s_ago=None))
        assert said.text == "1 member; no response from Redis yet"


class TestConfirms:
    NOW = ConfirmState("queue", "orders", "after_consume", "", 7, 250, 64, 1000, 20, 3, 0)
    VIEW = ConfirmView(
        rule=RuleView("queue:orders", "sluice.toml:3", "unlimited", "reject", None),
        below_bytes=4096,
        within_s=5.0,
        queues=1,
        fallback="persist",
        now=NOW,
    )
    EMPTY = Explanation(Question("queue", "orders"), 1, limiting=True, exempt_on=(), limits=(), unapplied=())

    def confirm(self, *, live: bool = True, **changes: Any) -> ConfirmView:
        found = explained(self.EMPTY, live=live, confirm=replace(self.VIEW, **changes)).confirm
        assert found is not None
        return found

    def test_prediction_and_state_are_shown(self) -> None:
        said = self.confirm()
        assert said.text == "Confirmed by its consumers, as queue:orders (sluice.toml:3) says:"
        assert [(each.name, each.text) for each in said.details] == [
            (
                "promise",
                (
                    "a message below 4096 bytes is confirmed once its consumers have acknowledged it or the broker has"
                    " stored it, never before; a message not acknowledged within 5 s is published again for the"
                    " broker to confirm"
                ),
            ),
            ("now", "by consumers; 7 wait, the oldest for 0.25 s"),
            ("so far", "1000 by consumers, 20 by the broker, 3 published again"),
        ]

    @pytest.mark.parametrize(
        ("reason", "why"), [("behind", "its consumers do not keep up"), ("something_new", "something_new")]
    )
    def test_the_brokers_reason_is_shown(self, reason: str, why: str) -> None:
        now = ConfirmState("queue", "orders", "broker", reason, 0, 0, 16, 0, 0, 0, 0)
        assert [each.text for each in self.confirm(now=now).details[1:]] == [f"by broker: {why}; none waiting", "none"]

    def test_its_rule_is_not_among_those_that_do_not_apply(self) -> None:
        rules = (self.VIEW.rule, RuleView("queue:o*", "sluice.toml:9", "5/s", "off", None))
        unapplied = tuple(UnappliedRule("queue", "orders", "unlimited", rule) for rule in rules)
        whole = explained(self.EMPTY, unapplied=unapplied, confirm=self.VIEW)
        assert [each.text for each in whole.unapplied] == ["queue orders: queue:o* = 5/s (sluice.toml:9): unlimited"]


class TestFlow:
    def test_without_a_bottleneck_that_is_shown(self) -> None:
        assert sentences.flow(Flow()).sentences == ("No connections are waiting.",)
        calm = sentences.flow(replace(FLOW, findings=()))
        assert calm.sentences == ("No bottleneck: connections waited only briefly.",)

    def test_shows_the_number_of_alarms(self) -> None:
        calm = replace(FLOW.alarms[0], total=2, stood_s=3.0)
        assert sentences.flow(Flow(alarms=(calm,))).alarms[0].status.endswith("; raised 2 times, 3.0 s")
        unknown = replace(calm, bytes_limit=None, total=0)
        assert sentences.flow(Flow(alarms=(unknown,))).alarms[0].status == "none; usage is unknown"


class TestSpool:
    def test_names_its_fault(self) -> None:
        assert SPOOL.holds is not None
        said = sentences.spool(
            replace(SPOOL, holds=replace(SPOOL.holds, alarm="the disk is full", stopped=True, lost_total=2))
        )
        assert said.sentences[1].startswith("The disk does not accept writes: the disk is full.")
        assert said.sentences[2].startswith("Memory is full: ")
        assert said.details[-1].text == "2 lost on disk"

    @pytest.mark.parametrize(("error", "why"), [(None, ""), ("it is not writable", ": it is not writable")])
    def test_without_one_that_is_shown(self, error: str | None, why: str) -> None:
        said = sentences.spool(Spool(FolderState(error=error)))
        assert said.sentences == (f"There is no spool{why}; waiting messages are held in memory.",)
