"""The explanation of a request's limits. ``proxy.datapath.explanation`` computes it."""

from typing import Literal

import msgspec

from limiter.counting.accounts import Usage
from limiter.rules.rule import Count, FairBy, Fallback, ShownAction
from proxy.stats.snapshot import ConfirmState


class Question(msgspec.Struct, frozen=True):
    """A hypothetical request. Limits of scopes that it leaves empty are ignored.

    Attributes:
        kind: kind of the resource or scope.
        name: name of the resource.
        client: the client's IP address.
        producer_group: the producer group.
        user: the client's user.
        vhost: the client's virtual host.
        certificate: the name in the client's TLS certificate.
        listener: name or scope of the listener. Empty: the only scope, if there is just one.
        at: a time in ISO 8601 with a time zone, to show the rules at that time, without live state. Empty: now.
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
    """``parameter`` is the invalid attribute of the question. ``detail``: the error, and the allowed values."""

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(parameter, detail)
        self.parameter = parameter
        self.detail = detail


class RuleView(msgspec.Struct, frozen=True):
    """A rule, formatted for display.

    Attributes:
        name: the name in logs and metrics.
        source: where the rule was defined.
        limit: the amount admitted, e.g. ``500/s`` or ``unlimited``.
        action: the action above the limit. ``default``: AMQP 1.0 withholds credit, other protocols refuse.
        hours: when the rule is active. None: always.
    """

    name: str
    source: str
    limit: str
    action: ShownAction
    hours: str | None


class LimitView(msgspec.Struct, frozen=True):
    """The parameters of a limit.

    Attributes:
        unit: the unit of a permit.
        rate_per_s: permits per second, in the long run.
        burst_s: seconds of permits that can be stored.
        break_s: seconds for which it keeps refusing after permits are available again.
        max_debt_s: largest debt of one request, in seconds of the rate.
        most_at_once: cost of the largest request that can pass, in permits.
        max_delay_s: longest time that a request is held, in seconds. None if requests are not held.
        spool: whether all held requests are spooled, or none. None: those beyond the bounds on held requests, or
            requests are not held.
        fair_by: the callers that get fair shares, or None.
        warm_up_s: seconds until the full rate after an idle time.
        busy_code: response code of a refusal. None: the protocol's default.
        adaptive: whether the rate follows the broker's responses. Then ignore ``rate_per_s`` and ``burst_s``.
        fleet: whether it is one limit for the whole fleet.
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
    """One labelled line of details."""

    name: str
    text: str


class ShareView(msgspec.Struct, frozen=True):
    """Live state of one caller's fair share of a limit.

    Attributes:
        key: the caller.
        stored_permits: permits reserved for this caller. Negative is a debt.
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
        rule: the rule.
        limit: its parameters.
        state: state of the bucket. None before the first request.
        held: requests that currently wait for it.
        usage: its recent usage. None before the first request.
        text: the amount admitted, in words.
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
    """A rule about messages that consumers confirm.

    Attributes:
        rule: the rule.
        below_bytes: size in bytes below which consumers confirm a message.
        within_s: time that consumers have, in seconds.
        queues: number of queues that get each message, and of acks that confirm it. None if unspecified.
        fallback: whether messages not confirmed in time are published again for the broker to confirm, or refused.
        left_alone: why the broker confirms such messages anyway. Empty if it does not.
        now: current state. None if nothing was published recently.
        text: the confirming side and the reason, in words.
        details: the rule's promise, the state and the counts, in words.
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
        name: the matched name.
        why: why it does not apply.
        rule: the rule.
        text: the finding in words.
    """

    kind: str
    name: str
    why: str
    rule: RuleView
    text: str = ""


class StandingRefusal(msgspec.Struct, frozen=True):
    """A refusal that does not depend on limits.

    Attributes:
        rule: its name in logs and metrics.
        listeners: the listeners that refuse.
    """

    rule: str
    listeners: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    """The limits of a request, and why they apply.

    Attributes:
        question: the normalized question, with the canonical address and the listener's scope.
        rule_set_version: version of the active rules.
        limiting: whether limiting is on. Otherwise no limit applies.
        exempt_on: listeners on which this client is exempt.
        limits: limits of the request, in the order of checking.
        unapplied: rules that match and do not limit.
        ignored: scopes in the question whose limits do not apply to it.
        off_kinds: kinds for which limiting is off.
        refusals: refusals of this request that do not depend on limits.
        refuses: whether such a request can be refused. Otherwise it waits as long as necessary, whatever the action.
        waits: a sentence about requests that wait, whatever the action, because they cannot be refused.
        by_credit: whether waiting messages have not been sent yet, because Sluice grants no credit for them.
        confirm: how such a message is confirmed, if a rule lets consumers confirm it.
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
