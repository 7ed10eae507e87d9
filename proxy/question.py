"""Why a request is limited as it is: the question, and the answer in full.

Plain data that can cross a process boundary; who finds the answer is ``proxy.explanation``.
"""

from typing import Literal

import msgspec

from limiter.rule import Action, Count, FairBy
from proxy.snapshot import Usage


class Question(msgspec.Struct, frozen=True):
    """A request that might come: what would limit it?

    Attributes:
        kind: the kind of resource that it is for, or of a scope.
        name: its name.
        client: the client's IP address; empty leaves out what limits clients.
        producer_group: the group that sends it; empty leaves out what limits groups.
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
        action: what happens above that.
        hours: when it holds; None is always.
    """

    name: str
    source: str
    limit: str
    action: Action
    hours: str | None


class LimitView(msgspec.Struct, frozen=True):
    """What a limit is made of.

    Attributes:
        unit: what a permit is.
        rate_per_s: permits per second, in the long run.
        burst_s: seconds' worth of permits that can be stored.
        break_s: how long it goes on refusing after permits are there again, in seconds.
        max_delay_s: how long it holds a request at most, in seconds; None if it holds none.
        fair_by: whose shares are kept apart, or None.
        warm_up_s: seconds in which the rate rises after idleness.
        busy_code: the protocol's number for the refusal, or None for the protocol's own choice.
    """

    unit: Count | Literal["bytes"]
    rate_per_s: float
    burst_s: float
    break_s: float
    max_delay_s: float | None
    fair_by: FairBy | None
    warm_up_s: float
    busy_code: int | None


class ShareView(msgspec.Struct, frozen=True):
    """The live state of one asker's fair share of a limit.

    Attributes:
        key: who asks.
        stored_permits: permits kept for that asker alone; negative is a debt.
        open: whether the share's breaker refuses everything at this moment.
        wait_s: seconds until a request of that asker would be admitted; 0 is at once.
    """

    key: str
    stored_permits: float
    open: bool
    wait_s: float


class LimitState(msgspec.Struct, frozen=True):
    """The live state of a limit.

    Attributes:
        stored_permits: permits in store; negative is a debt.
        open: whether the breaker refuses everything at this moment.
        wait_s: seconds until a request would be admitted; 0 is at once.
        last_refused_s: seconds since a request was last refused; None if none was.
        shares: the fair shares of those who asked of late, if shares are kept apart.
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
        why: why this rule holds for it.
        rule: the rule.
        limit: its figures.
        state: the bucket's state, or None while no request has needed it.
        held: requests that wait for it now.
        usage: how much of it was used of late; None while no request has needed it.
    """

    kind: str
    name: str
    why: str
    rule: RuleView
    limit: LimitView
    state: LimitState | None
    held: int
    usage: Usage | None


class UnappliedRule(msgspec.Struct, frozen=True):
    """A rule that matches and yet does not limit.

    Attributes:
        kind: the kind of what it matches.
        name: the name that it matches.
        why: why it does not limit.
        rule: the rule.
    """

    kind: str
    name: str
    why: str
    rule: RuleView


class Explanation(msgspec.Struct, frozen=True):
    """Why a request is limited as it is.

    Attributes:
        question: as it was understood: the address in its one spelling, the listener's scope.
        rule_set_version: of the rules in force.
        limiting: whether limiting is on at all; without it nothing below limits.
        exempt_on: listeners on which this client is exempt, so that nothing below limits it there.
        limits: what limits the request, in the order in which it is asked.
        unapplied: rules that match and do not limit.
        ignored: scopes that the question names and whose limits do not matter for it.
        off_kinds: kinds whose limiting is switched off.
    """

    question: Question
    rule_set_version: int
    limiting: bool
    exempt_on: tuple[str, ...]
    limits: tuple[AppliedLimit, ...]
    unapplied: tuple[UnappliedRule, ...]
    ignored: tuple[str, ...] = ()
    off_kinds: tuple[str, ...] = ()
