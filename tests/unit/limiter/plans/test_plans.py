"""Exempt requests are subject to no limit. Other properties of plans are tested through the limits' decisions."""

from __future__ import annotations

import pytest
from live_states import states_of

from limiter.deciding.limits import Caller, Decision, Limits
from limiter.rules.resource import CLIENT, LISTENER, PRODUCER_GROUP, Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet

REPLIES = Resource("topic", "c_REPLY_TOPIC")
ORDERS = Resource("topic", "orders")
ASKER = Caller("10.1.2.3", "g", "main")
EXEMPT = Rule("topic", "*_REPLY_TOPIC", None, exempt=True)
ROUND_ABOUT = (
    Rule("topic", "*", 0, shared=True),
    Rule(CLIENT, "*", 0, bytes_per_s=0),
    Rule(CLIENT, "*", 0, shared=True),
    Rule(PRODUCER_GROUP, "g", 0, action="delay"),
    Rule(LISTENER, "*", 0, action="shadow"),
)


def decide(limits: Limits, *resources: Resource, now_ns: int = 0) -> Decision:
    return limits.decide(now_ns, resources, ASKER, [1, 1], lambda: [100, 100])


@pytest.mark.parametrize("rule", ROUND_ABOUT)
def test_exempt_names_pass_despite_scopes_and_totals(rule: Rule) -> None:
    limits = Limits(RuleSet((EXEMPT, Rule("topic", "*", 100), rule)))
    assert decide(limits, REPLIES) == Decision(2)
    assert decide(limits, ORDERS).admitted < 2 or decide(limits, ORDERS).shadow_denials
    limits.charge(0, (REPLIES,), ASKER, 50, 5000)
    assert all(state.resource != REPLIES and state.stored_permits >= 0 for state in states_of(limits, 0))
