"""Explanations of the limits that apply to a request. ``proxy.datapath.explanation`` computes them."""

from typing import Literal

import msgspec

from limiter.counting.accounts import Usage
from limiter.rules.rule import Count, FairBy, Fallback, ShownAction
from proxy.stats.snapshot import ConfirmState


class Question(msgspec.Struct, frozen=True):
    """A hypothetical request. Limits of empty scopes are ignored.

    Attributes:
        kind: kind of the resource or scope.
        name: name of the resource or scope.
        client: the client's IP address.
        certificate: the name in the client's TLS certificate.
        listener: name or scope of the listener. If empty, the only scope, if there is just one.
        at: the time for which to show the rules, in ISO 8601 with a time zone, without live state. If empty, now.
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
        parameter: the invalid attribute of the question.
        detail: the problem and the allowed values.
    """

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(parameter, detail)
        self.parameter = parameter
        self.detail = detail


class RuleView(msgspec.Struct, frozen=True):
    """A rule, formatted for display.

    Attributes:
        name: the name in logs and metrics.
        source: where the rule is defined.
        limit: the limit, e.g. ``500/s`` or ``unlimited``.
        action: the action above the limit. With ``default``, AMQP 1.0 withholds credit, and other protocols refuse.
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
        unit: what one permit stands for.
        rate_per_s: permits per second, in the long run.
        burst_s: capacity of the bucket, in seconds of the rate.
        break_s: how long the breaker keeps refusing once permits are available, in seconds.
        max_debt_s: largest debt of one request, in seconds of the rate.
        most_at_once: cost of the largest request that can pass, in permits.
        max_delay_s: longest time that a request is held, in seconds. None if requests are not held.
        spool: True if all held requests are spooled, False if none are. None if only those beyond the bounds on held
            requests are spooled, or requests are not held.
        fair_by: the kind of caller that gets a fair share. None without fair shares.
        warm_up_s: seconds until the full rate is reached after an idle period.
        busy_code: response code of a refusal. None for the protocol's default.
        adaptive: whether the rate adapts to the broker. If so, ignore ``rate_per_s`` and ``burst_s``.
        fleet: whether the whole fleet shares the limit.
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
    """Live state of one caller's fair share of a limit.

    Attributes:
        key: the caller.
        stored_permits: permits stored for this caller. Negative is a debt.
        open: whether the share's breaker currently refuses everything.
        wait_s: seconds until a request of this caller would be admitted.
    """

    key: str
    stored_permits: float
    open: bool
    wait_s: float


class LimitState(msgspec.Struct, frozen=True):
    """Live state of a limit.

    Attributes:
        stored_permits: permits stored. Negative is a debt.
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
        name: its name. For a total, the name of its rule.
        why: why this rule applies.
        state: the limit's live state. None before the first request.
        held: number of requests currently held for this limit.
        usage: the limit's recent usage. None before the first request.
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
    """A rule with ``after_consume``, so that consumers confirm messages.

    Attributes:
        below_bytes: consumers confirm messages smaller than this, in bytes.
        within_s: how long consumers have to confirm a message, in seconds.
        queues: number of queues that receive each message, each of which must ack it. None if unspecified.
        fallback: whether messages not confirmed in time are refused, or published again for the broker to confirm.
        left_alone: why the broker confirms such messages nevertheless. Empty if consumers do.
        now: current state. None if nothing was published recently.
        text: the confirming side and the reason, in words.
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
        text: the rule and the reason in words.
    """

    kind: str
    name: str
    why: str
    rule: RuleView
    text: str = ""


class StandingRefusal(msgspec.Struct, frozen=True):
    """A refusal that does not depend on limits.

    Attributes:
        rule: name of the refusal in logs and metrics.
        listeners: the listeners that refuse the request.
    """

    rule: str
    listeners: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    """The limits of a request and why they apply.

    Attributes:
        question: the normalized question, with the canonical address and the listener's scope.
        rule_set_version: version of the active rules.
        limiting: whether limiting is on. If not, no limit applies.
        exempt_on: listeners on which the client is exempt.
        limits: limits of the request, in the order in which they are checked.
        unapplied: rules that match but do not apply.
        ignored: scopes in the question whose limits do not apply to such a request.
        off_kinds: kinds for which limiting is off.
        refusals: refusals of such a request that do not depend on limits.
        refuses: whether such a request can be refused. If not, it waits as long as necessary, whatever the action.
        waits: a sentence on which requests wait because they cannot be refused. May be empty.
        by_credit: whether the sender waits for credit, so that waiting messages have not been sent yet.
        confirm: how such a message is confirmed. None if no rule lets consumers confirm it.
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
