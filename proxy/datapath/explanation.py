"""Explains which limits apply to a request, based on a running data path or a configuration file.

Explaining creates no limiters.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from limiter.deciding.explain import Applied
from limiter.deciding.limits import Limits
from limiter.plans.plans import Caller
from limiter.rules.errors import RuleError
from limiter.rules.resource import CERTIFICATE, CLIENT, LISTENER, SCOPES, USER, VHOST, Resource
from limiter.rules.rule import Count, Rule
from limiter.rules.rule_set import RuleSet
from proxy.common.admission import client_address, in_networks
from proxy.net.server import ListenerConfig
from proxy.protocols.base import Kind, Protocol, kinds_of, unsupported_kind
from proxy.stats.question import (
    AppliedLimit,
    ConfirmView,
    Explanation,
    LimitState,
    LimitView,
    Question,
    QuestionError,
    RuleView,
    ShareView,
    StandingRefusal,
    UnappliedRule,
)
from proxy.stats.snapshot import ConfirmState

_US_PER_S: Final = 1e6
_NS_PER_S: Final = 1e9
#: Dates in these years can be converted to any time zone.
_FIRST_YEAR, _LAST_YEAR = 1970, 9998


def explain(
    question: Question,
    limits: Limits,
    listeners: Sequence[ListenerConfig],
    protocols: Iterable[Protocol],
    now_ns: int,
    *,
    confirms: Mapping[Resource, ConfirmState] = MappingProxyType({}),
) -> Explanation:
    """Explain which limits apply to a request. Raises QuestionError if the question is invalid."""
    protocols = tuple(protocols)
    through = _through(question.listener, listeners)
    spoken = {listener.protocol.name for listener in through}
    in_turn = sorted(protocols, key=lambda protocol: protocol.name not in spoken)
    kinds_by_name = {kind.name: kind for kind in kinds_of(in_turn)}
    # The kinds of the selected listeners' protocols take precedence.
    kinds_by_name |= {kind.name: kind for kind in kinds_of(each for each in protocols if each.name in spoken)}
    named = [scope for scope in SCOPES if getattr(question, scope)]
    scopes = [scope for scope in SCOPES if any(protocol.has(scope) for protocol in protocols)]
    question = _understood(question, kinds_by_name, scopes, listeners, through)
    _check_name(question, protocols)
    _check_scopes(question, protocols)
    if question.at:
        limits = Limits(limits.rule_set.at(_moment(question.at)))
    resource = Resource(question.kind, question.name)
    kind = kinds_by_name.get(question.kind)
    # A question about a scope does not name a caller.
    caller = Caller("", "", "") if kind is None else _caller(question, kind)
    rule_set = limits.rule_set
    applied = limits.explain(now_ns, (resource,), caller)
    client = question.name if question.kind == CLIENT else question.client
    spools = not caller.consumes and not (kind is not None and kind.by_credit)
    exempt_on = tuple(listener.name for listener in through if client and in_networks(client, listener.exempt))
    unapplied = {
        (each.resource, id(each.rule)): each
        for each in applied
        # Leave out the implicit rule for names that no rule matches.
        if not each.limits and rule_set.rule(each.rule.key) is each.rule
    }
    if exempt_on and len(exempt_on) == len(through):
        unapplied |= {
            (each.resource, id(each.rule)): each._replace(why=f"{each.why}; the client is exempt")
            for each in applied
            if each.limits
        }
        applied = ()
    return Explanation(
        question=question,
        rule_set_version=rule_set.version,
        limiting=rule_set.enabled,
        off_kinds=tuple(sorted(rule_set.off_kinds)),
        exempt_on=exempt_on,
        limits=tuple(_limit(each, kind, now_ns, spools=spools) for each in applied if each.limits),
        unapplied=tuple(
            UnappliedRule(*each.resource, each.why, _rule_view(each.rule, kind)) for each in unapplied.values()
        ),
        ignored=tuple(named) if kind is None or kind.consumes else (),
        refusals=_refusals(resource, through, exempt_on) if rule_set.enabled else (),
        refuses=kind is None or kind.refuses,
        waits="" if kind is None else kind.waits,
        by_credit=kind is not None and kind.by_credit,
        confirm=_confirm(
            resource, rule_set, through, confirms.get(resource), exempt=len(exempt_on) == len(through) > 0
        ),
    )


def _confirm(
    resource: Resource,
    rule_set: RuleSet,
    through: Iterable[ListenerConfig],
    now: ConfirmState | None,
    *,
    exempt: bool,
) -> ConfirmView | None:
    """Return None if the rule or protocol does not let consumers confirm messages."""
    kinds = (kind for listener in through for kind in listener.protocol.kinds if kind.name == resource.kind)
    kind = next((kind for kind in kinds if kind.after_consume), None)
    rule = rule_set.match(resource)
    if kind is None or not rule.confirms_after_consume:
        return None
    queues = rule.confirm_queues if kind.queues is None else kind.queues
    left_alone = ""
    if not rule_set.limiting(resource):
        left_alone = "limiting is switched off"
    elif exempt:
        left_alone = "the client is exempt"
    elif queues is None:
        left_alone = "confirm_queues is not set, so the number of queues that receive each message is unknown"
    return ConfirmView(
        rule=_rule_view(rule, kind),
        below_bytes=rule.confirm_below_bytes,
        within_s=rule.confirm_within_s,
        queues=queues,
        fallback=rule.fallback,
        left_alone=left_alone,
        now=now,
    )


def _caller(question: Question, kind: Kind) -> Caller:
    scopes = tuple(Resource(scope, name) for scope in (CERTIFICATE, USER, VHOST) if (name := getattr(question, scope)))
    return Caller(question.client, question.producer_group, question.listener, kind.consumes, scopes=scopes)


def _refusals(
    resource: Resource, through: Iterable[ListenerConfig], exempt_on: Sequence[str]
) -> tuple[StandingRefusal, ...]:
    found: dict[str, list[str]] = {}
    for listener in through:
        rule = listener.protocol.always_refuses(listener.options, resource)
        if rule and listener.name not in exempt_on:
            found.setdefault(rule, []).append(listener.name)
    return tuple(StandingRefusal(rule, tuple(names)) for rule, names in found.items())


def _understood(
    question: Question,
    kinds: Iterable[str],
    scopes: Iterable[str],
    listeners: Sequence[ListenerConfig],
    through: Sequence[ListenerConfig],
) -> Question:
    known = (*kinds, *scopes)
    if question.kind not in known:
        raise QuestionError("kind", f"unknown kind {question.kind!r}; must be one of {', '.join(known)}")
    if not question.name:
        raise QuestionError("name", f"the name of the {question.kind.replace('_', ' ')} is required")
    name, client = question.name, question.client
    if question.kind == CLIENT:
        name = _address("name", name)
    elif question.kind == LISTENER:
        (name,) = {listener.scope_name for listener in _through(name, listeners, "name")}
    if client:
        client = _address("client", client)
    behind = {listener.scope_name for listener in through}
    scope = behind.pop() if len(behind) == 1 else ""
    return msgspec.structs.replace(question, name=name, client=client, listener=scope)


def _check_name(question: Question, protocols: Iterable[Protocol]) -> None:
    pattern = "".join(f"[{character}]" if character in "*?[" else character for character in question.name)
    for protocol in protocols:
        if all(kind.name != question.kind for kind in protocol.kinds):
            continue
        try:
            rule = Rule(question.kind, pattern, None)
            protocol.check_rule(rule)
        except RuleError as error:
            what = error.what.removeprefix(f"rule {question.kind}:{pattern}: ")
            raise QuestionError("name", f"{what}; allowed: {error.allowed}") from None


def _check_scopes(question: Question, protocols: Iterable[Protocol]) -> None:
    asked = [protocol for protocol in protocols if protocol.has(question.kind)]
    for scope in SCOPES:
        if getattr(question, scope) and not any(protocol.has(scope) for protocol in asked):
            raise QuestionError(scope, unsupported_kind(asked, scope))


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        what = f"{text!r} is not a valid time; use the form 2026-11-21T23:00+01:00, or Z instead of +01:00 for UTC"
        if "T" in text and " " in text:
            what += " (in a URL, write + as %2B)"
        raise QuestionError("at", what) from None
    if moment.tzinfo is None:
        what = f"{text!r} has no time zone; append one, such as +01:00, or Z for UTC"
        raise QuestionError("at", what)
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise QuestionError("at", f"{text!r} is out of range; the year must be between {_FIRST_YEAR} and {_LAST_YEAR}")
    return moment


def _address(parameter: str, value: str) -> str:
    try:
        return client_address(value)
    except ValueError:
        raise QuestionError(parameter, f"{value!r} is not an IP address") from None


def _through(
    wanted: str, listeners: Sequence[ListenerConfig], parameter: str = "listener"
) -> tuple[ListenerConfig, ...]:
    if not wanted:
        return tuple(listeners)
    through = tuple(listener for listener in listeners if listener.name == wanted) or tuple(
        listener for listener in listeners if listener.scope_name == wanted
    )
    if not through:
        there_are = ", ".join(f"{listener.name} (scope {listener.scope_name})" for listener in listeners) or "none"
        raise QuestionError(parameter, f"{wanted!r} is neither a listener nor a scope; known listeners: {there_are}")
    return through


def _limit_view(rule: Rule, unit: Count | Literal["bytes"], *, spools: bool) -> LimitView:
    fields: dict[str, Any] = {name: getattr(rule, name, None) for name in LimitView.__struct_fields__} | {
        "unit": unit,
        "rate_per_s": rule.rate_per_s or 0.0,
        "break_s": rule.break_in_force_s,
        "most_at_once": rule.max_permits,
        "max_delay_s": rule.max_delay_s if rule.action == "delay" else None,
        "spool": rule.spool if rule.action == "delay" and spools else None,
    }
    return LimitView(**fields)


def _limit(applied: Applied, kind: Kind | None, now_ns: int, *, spools: bool) -> AppliedLimit:
    rule, state = applied.rule, applied.state
    part = rule.part(applied.dimension) or rule
    return AppliedLimit(
        kind=applied.resource.kind,
        name=applied.resource.name,
        why=applied.why,
        rule=_rule_view(rule, kind),
        limit=_limit_view(part, "bytes" if applied.dimension == "bytes" else rule.count, spools=spools),
        state=state
        and LimitState(
            stored_permits=state.stored_permits,
            open=state.open,
            wait_s=state.wait_us / _US_PER_S,
            last_refused_s=(
                None if state.last_refused_ns is None else max(0, now_ns - state.last_refused_ns) / _NS_PER_S
            ),
            shares=tuple(
                ShareView(share.key, share.stored_permits, share.open, share.wait_us / _US_PER_S)
                for share in state.shares
            ),
        ),
        held=applied.held,
        usage=applied.usage,
    )


def _rule_view(rule: Rule, kind: Kind | None) -> RuleView:
    action = rule.shown_action
    if action == "default" and kind is not None and not kind.credit_waits:
        # The default is the same on all listeners that support this kind.
        action = "delay" if kind.by_credit else "reject"
    return RuleView(rule.name, rule.source, rule.limit_text, action, None if rule.hours is None else str(rule.hours))
