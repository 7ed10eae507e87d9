"""Explanations of the limits that apply to a request. ``proxy.datapath.explanation`` computes them."""

from typing import Literal

import msgspec

from limiter.counting.accounts import Usage
from limiter.rules.rule import Count, FairBy, Fallback, ShownAction
from proxy.stats.snapshot import ConfirmState


class Question(msgspec.Struct, frozen=True):
    """A hypothetical request. If a scope such as ``user`` is empty, its limits are ignored.

    Attributes:
        kind: kind of the resource or scope.
        name: name of the resource or scope.
        client: the client's IP address.
        certificate: the name in the client's TLS certificate.
        listener: name or scope of the listener. If empty and all listeners have the same scope, that scope is used.
        at: the time for which to explain the limits, in ISO 8601 with a time zone. Live state is then
            left out. If empty, the current time.
    """

    kind: str
    name: str
    client: str = ""
    producer_group: str = ""
    listener: str = ""
    at: str = ""
    user: str = ""
    vhost: str = ""
    certificate: str = ""


class QuestionError(ValueError):
    """Raised for an invalid question.

    Attributes:
        parameter: the name of the invalid attribute.
        detail: the problem and the allowed values.
    """

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(parameter, detail)
        self.parameter = parameter
        self.detail = detail


class RuleView(msgspec.Struct, frozen=True):
    """A rule, formatted for display.

    Attributes:
        name: the rule's name in logs and metrics.
        source: where the rule is defined.
        limit: the limit, e.g. ``500/s`` or ``unlimited``.
        action: what happens above the limit. ``default`` means that AMQP 1.0 withholds credit, and that other
            protocols refuse the request.
        hours: when the rule is active. None if always.
    """

    name: str
    source: str
    limit: str
    action: ShownAction
    hours: str | None


class LimitView(msgspec.Struct, frozen=True):
    """The parameters of a limit.

    Attributes:
        unit: the unit that the limit counts. Each message, request or byte needs one permit.
        rate_per_s: long-term rate, in permits per second.
        burst_s: capacity of the bucket, in seconds at the full rate.
        break_s: how long the breaker keeps refusing after permits become available, in seconds.
        max_debt_s: largest debt that one request can cause, in seconds at the full rate.
        most_at_once: cost of the largest request that can pass, in permits.
        max_delay_s: longest time that a request is held, in seconds. None if requests are not held.
        spool: True if all held requests are spooled, False if none are. None if only requests that exceed the bounds on
            held requests are spooled, or if requests are not held.
        fair_by: the kind of caller that gets a fair share. None if there are no fair shares.
        warm_up_s: seconds until the full rate is reached after an idle period.
        busy_code: response code for refusals. None for the protocol's default.
        adaptive: whether the rate adapts to the broker. If so, ignore ``rate_per_s`` and ``burst_s``.
        fleet: whether all members of the fleet share the limit.
    """

    unit: Count | Literal["bytes"]
    rate_per_s: float
    burst_s: float
    break_s: float
    max_debt_s: float
    most_at_once: int
    max_delay_s: float | None
    fair_by: FairBy | None
    warm_up_s: float
    busy_code: int | None
    spool: bool | None = None
    adaptive: bool = False
    fleet: bool = False


class Detail(msgspec.Struct, frozen=True):
    """A label and its text."""

    name: str
    text: str


class ShareView(msgspec.Struct, frozen=True):
    """Live state of a caller's fair share.

    Attributes:
        key: the caller.
        stored_permits: permits available to the caller. A negative number is a debt.
        open: whether the share's breaker currently refuses everything.
        wait_s: seconds until a request from the caller would be admitted.
    """

    key: str
    stored_permits: float
    open: bool
    wait_s: float


class LimitState(msgspec.Struct, frozen=True):
    """Live state of a limit.

    Attributes:
        stored_permits: available permits. A negative number is a debt.
        open: whether the breaker currently refuses everything.
        wait_s: seconds until a request would be admitted.
        last_refused_s: seconds since the last refusal. None if there was none.
        shares: fair shares of recent callers.
    """

    stored_permits: float
    open: bool
    wait_s: float
    last_refused_s: float | None
    shares: tuple[ShareView, ...] = ()


class AppliedLimit(msgspec.Struct, frozen=True):
    """One of the limits that a request must pass.

    Attributes:
        kind: kind of the limited resource or scope, or ``total``.
        name: name of the resource or scope. For a total, the name of its rule.
        why: why this rule applies.
        state: live state of the limit. None before the first request.
        held: number of requests currently held because of this limit.
        usage: recent usage of the limit. None before the first request.
        text: the limit in words.
        details: rule, reason, action above the limit, state and usage, in words.
    """

    kind: str
    name: str
    why: str
    rule: RuleView
    limit: LimitView
    state: LimitState | None
    held: int
    usage: Usage | None
    text: str = ""
    details: tuple[Detail, ...] = ()


class ConfirmView(msgspec.Struct, frozen=True):
    """A rule with ``after_consume``, which lets consumers confirm messages.

    Attributes:
        below_bytes: consumers confirm messages smaller than this, in bytes.
        within_s: how long consumers have to confirm a message, in seconds.
        queues: number of queues that receive each message. A consumer of each must confirm it. None if unspecified.
        fallback: whether messages not confirmed in time are refused, or published again for the broker to confirm.
        left_alone: why the broker confirms the messages despite the rule. Empty if consumers confirm them.
        now: the current state. None if nothing was published recently.
        text: which side confirms, and why, in words.
        details: the rule's guarantee, the state and the counts, in words.
    """

    rule: RuleView
    below_bytes: int
    within_s: float
    queues: int | None
    fallback: Fallback
    left_alone: str = ""
    now: ConfirmState | None = None
    text: str = ""
    details: tuple[Detail, ...] = ()


class UnappliedRule(msgspec.Struct, frozen=True):
    """A rule that matches but does not apply.

    Attributes:
        kind: kind of the matched resource or scope.
        name: name of the matched resource or scope.
        why: why the rule does not apply.
        text: the rule, and why it does not apply, in words.
    """

    kind: str
    name: str
    why: str
    rule: RuleView
    text: str = ""


class StandingRefusal(msgspec.Struct, frozen=True):
    """A refusal that does not depend on limits.

    Attributes:
        rule: the refusal's name in logs and metrics.
        listeners: names of the listeners that refuse the request.
    """

    rule: str
    listeners: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    """The limits that apply to a request, and why they apply.

    Attributes:
        question: the normalized question, with the canonical address and the listener's scope.
        rule_set_version: version of the active rules. It increases whenever the rules change.
        limiting: whether limiting is on. If not, no limit applies.
        exempt_on: listeners on which the client is exempt.
        limits: limits that apply, in the order in which they are checked.
        unapplied: rules that match the request but do not apply to it.
        ignored: scopes in the question whose limits do not apply to the request.
        off_kinds: kinds for which limiting is off.
        refusals: refusals of the request that do not depend on limits.
        refuses: whether the request can be refused. If not, it waits as long as necessary, whatever the action is.
        waits: a sentence that says which requests wait because they cannot be refused. May be empty.
        by_credit: whether the sender waits for credit. If so, waiting messages have not been sent yet.
        confirm: how the message is confirmed. None if no rule lets consumers confirm it.
        text: the question in words.
        sentences: general remarks.
    """

    question: Question
    rule_set_version: int
    limiting: bool
    exempt_on: tuple[str, ...]
    limits: tuple[AppliedLimit, ...]
    unapplied: tuple[UnappliedRule, ...]
    ignored: tuple[str, ...] = ()
    off_kinds: tuple[str, ...] = ()
    refusals: tuple[StandingRefusal, ...] = ()
    refuses: bool = True
    waits: str = ""
    by_credit: bool = False
    confirm: ConfirmView | None = None
    text: str = ""
    sentences: tuple[str, ...] = ()
