"""Why a request is limited as it is: the question and the answer. ``proxy.datapath.explanation`` finds it."""

from typing import Literal

import msgspec

from limiter.counting.accounts import Usage
from limiter.rules.rule import Count, FairBy, Fallback, ShownAction
from proxy.stats.snapshot import ConfirmState


class Question(msgspec.Struct, frozen=True):
    """A hypothetical request: which limits would apply to it?

    Attributes:
        kind: kind of the resource, or of a scope.
        name: name of the resource.
        client: the client's IP address; empty leaves out limits of clients.
        producer_group: the producer group; empty leaves out limits of producer groups.
        user: the user that the client has logged in as; empty leaves out limits of users.
        vhost: the virtual host that it works in; empty leaves out limits of virtual hosts.
        certificate: the name in its TLS certificate; empty leaves out limits of certificates.
        listener: name or scope of the listener that it comes through; empty is the only scope there is, or leaves
            out what limits listeners.
        at: a moment, as ISO 8601 writes it with its time zone: the rules of that moment, without live state; empty is
            now.
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
    """A question that makes no sense.

    Attributes:
        parameter: the attribute of the question that is wrong.
        detail: what is wrong with it and what is allowed.
    """

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(parameter, detail)
        self.parameter = parameter
        self.detail = detail


class RuleView(msgspec.Struct, frozen=True):
    """A rule for people to read.

    Attributes:
        name: as in logs and metrics.
        source: where it was written.
        limit: what it admits, e.g. ``500/s`` or ``unlimited``.
        action: what happens above that; ``default`` is what the protocol of each connection does by itself, where
            these differ: it refuses, or, with AMQP 1.0, gives no credit.
        hours: when it holds; None is always.
    """

    name: str
    source: str
    limit: str
    action: ShownAction
    hours: str | None


class LimitView(msgspec.Struct, frozen=True):
    """What a limit is made of.

    Attributes:
        unit: what a permit is.
        rate_per_s: permits per second, in the long run.
        burst_s: seconds' worth of permits that can be stored.
        break_s: seconds for which it keeps refusing after permits are available again.
        max_debt_s: largest debt of one request, in seconds of the rate.
        most_at_once: cost of the largest request that can pass, in permits.
        max_delay_s: longest time that it holds a request, in seconds; None if it holds none.
        spool: held requests may be spooled: all if true, none if false; None is those for which the bounds
            on held requests have no room, or that it holds none.
        fair_by: whose fair shares there are, or None.
        warm_up_s: seconds until the full rate after an idle time.
        busy_code: response code of a refusal, or None for the protocol's own.
        adaptive: the rate is found from how the broker answers; then ``rate_per_s`` and what it stores mean nothing.
        fleet: it is one limit for all members of the fleet together.
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
    """One line about something: a short label, and what is to be said."""

    name: str
    text: str


class ShareView(msgspec.Struct, frozen=True):
    """The live state of one caller's fair share of a limit.

    Attributes:
        key: the caller.
        stored_permits: permits kept for that caller alone; negative is a debt.
        open: whether the share's breaker refuses everything at this moment.
        wait_s: seconds until a request of that caller would be admitted; 0 is at once.
    """

    key: str
    stored_permits: float
    open: bool
    wait_s: float


class LimitState(msgspec.Struct, frozen=True):
    """The live state of a limit.

    Attributes:
        stored_permits: permits stored; negative is a debt.
        open: whether the breaker refuses everything at this moment.
        wait_s: seconds until a request would be admitted; 0 is at once.
        last_refused_s: seconds since a request was last refused; None if none was.
        shares: the fair shares of recent callers, if there are fair shares.
    """

    stored_permits: float
    open: bool
    wait_s: float
    last_refused_s: float | None
    shares: tuple[ShareView, ...] = ()


class AppliedLimit(msgspec.Struct, frozen=True):
    """One of the limits that a request must pass.

    Attributes:
        kind: the kind of what is limited: a resource, a scope, or ``total``.
        name: its name; of a total that of its rule.
        why: why this rule applies.
        rule: the rule.
        limit: its figures.
        state: the bucket's state, or None while no request has needed it.
        held: requests that wait for it now.
        usage: how much of it was used recently; None while no request has needed it.
        text: what it admits, in words.
        details: rule, reason, what happens above it, state and usage, in words.
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
    """What a rule says of messages that their consumers confirm.

    Attributes:
        rule: the rule.
        below_bytes: they confirm messages that are smaller than this, in bytes.
        within_s: how long they have, in seconds.
        queues: to how many queues each message goes, so many acks confirm it; None if that is not said.
        fallback: what becomes of a message that they do not confirm: it is published again for the broker to confirm,
            or refused.
        left_alone: why the broker confirms such messages all the same; empty if it does not.
        now: how it is at this moment; None if nothing was published of late.
        text: who confirms such a message, and why, in words.
        details: the promise, the state and the counts, in words.
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
        kind: kind of what it matches.
        name: the name that it matches.
        why: why it does not apply.
        rule: the rule.
        text: all of it in words.
    """

    kind: str
    name: str
    why: str
    rule: RuleView
    text: str = ""


class StandingRefusal(msgspec.Struct, frozen=True):
    """A refusal that does not depend on limits.

    Attributes:
        rule: its name, as in logs and metrics.
        listeners: the listeners that refuse.
    """

    rule: str
    listeners: tuple[str, ...]


class Explanation(msgspec.Struct, frozen=True):
    """Why a request is limited as it is.

    Attributes:
        question: as it was understood: the address in its one spelling, the listener's scope.
        rule_set_version: of the rules in force.
        limiting: whether limiting is on at all; without it nothing below limits.
        exempt_on: listeners on which this client is exempt, so that nothing below limits it there.
        limits: what limits the request, in the order in which it is asked.
        unapplied: rules that match and do not limit.
        ignored: scopes in the question whose limits do not apply to it.
        off_kinds: kinds whose limiting is switched off.
        refusals: refusals of this request that do not depend on limits.
        refuses: such a request can be refused; otherwise it waits for as long as it takes, whatever the action.
        waits: a sentence that says which of such requests wait, whatever the action, since no answer refuses them.
        by_credit: what waits has not been sent yet, as Sluice gives no credit for it.
        confirm: what confirms such a message to its publisher, if a rule says that its consumers do.
        text: the question in words.
        sentences: what holds for all of it, in words.
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
