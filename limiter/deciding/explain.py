"""Explains which rules apply to a request, in which order and why, and shows their live state."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from limiter.buckets.limiter import LimiterState
from limiter.counting.accounts import Accounts, Usage
from limiter.plans.plans import Caller, scopes
from limiter.plans.registry import Registry
from limiter.rules.patterns import DEFAULT_PATTERN
from limiter.rules.resource import TOTAL, Resource
from limiter.rules.rule import Dimension, Rule
from limiter.rules.rule_set import RuleSet
from limiter.waiting.holding import Holding


class Applied(NamedTuple):
    resource: Resource
    rule: Rule
    dimension: Dimension  # ``messages`` if there is no limit
    limits: bool
    why: str
    state: LimiterState | None
    held: int
    usage: Usage | None


def explain(
    now_ns: int,
    rule_set: RuleSet,
    registries: Mapping[Dimension, Registry],
    accounts: Accounts,
    holding: Holding,
    *,
    resources: Sequence[Resource],
    caller: Caller,
) -> tuple[Applied, ...]:
    all_exempt = bool(resources) and all(rule_set.match(resource).exempt for resource in resources)

    def applied(resource: Resource, rule: Rule, why: str, *, exempt: bool) -> Iterator[Applied]:
        idle = _why_idle(rule_set, resource, rule, exempt=exempt)
        dimensions = [dimension for dimension in registries if rule.part(dimension) is not None]
        if idle is not None:
            yield Applied(resource, rule, "messages", False, f"{why}; {idle}", None, 0, None)
            return
        for dimension in dimensions:
            part = rule.part(dimension)
            yield Applied(
                resource=resource,
                rule=rule,
                dimension=dimension,
                limits=True,
                why=why,
                state=registries[dimension].state(resource, now_ns),
                held=holding.waiting_for(resource, dimension),
                usage=None if part is None else accounts.usage(now_ns, resource, part, dimension),
            )

    def everything() -> Iterator[Applied]:
        asked_for = () if caller.consumes else scopes(caller)
        for resource in (*resources, *asked_for):
            for rule in rule_set.with_hours:
                if rule_set.holds(rule) or not rule.applies_to(resource):
                    continue
                name = Resource(TOTAL, rule.target) if rule.shared else resource
                yield Applied(name, rule, "messages", False, f"{_why(rule)}; not now: {rule.hours}", None, 0, None)
            rule = rule_set.match(resource)
            exempt = all_exempt or rule.exempt
            if rule_set.rule(rule.key) is rule:
                yield from applied(resource, rule, _why(rule), exempt=exempt)
            elif resource in resources:
                yield Applied(resource, rule, "messages", False, "no rule matches; unlimited", None, 0, None)
            total = rule_set.match_total(resource)
            if total is not None:
                yield from applied(Resource(TOTAL, total.target), total, _why(total), exempt=exempt)

    return tuple(everything())


def _why(rule: Rule) -> str:
    pattern = rule.matches
    if pattern.text == DEFAULT_PATTERN:
        why = f"the default for kind {rule.kind}"
    elif pattern.exact_name is not None:
        why = "exact name"
    elif pattern.network is not None:
        why = f"network {pattern.text}"
    else:
        why = f"pattern with {pattern.literals} literal characters"
    return f"total: {why}" if rule.shared else why


def _why_idle(rule_set: RuleSet, resource: Resource, rule: Rule, *, exempt: bool) -> str | None:
    if not rule_set.limiting(resource):
        return f"limiting of kind {rule.kind} is switched off" if rule_set.enabled else "limiting is switched off"
    if rule.action == "off":
        return "action off"
    if exempt:
        return "exempt from all limits" if rule.exempt else "does not apply to exempt requests"
    return None if rule.limits else "unlimited"
