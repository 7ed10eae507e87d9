"""Creates the kind of limiter that a rule needs, and converts live limiters when their rule changes."""

from collections.abc import Callable

from limiter.buckets.adaptive import AdaptiveLimiter
from limiter.buckets.fair import FairLimiter
from limiter.buckets.fleet import FleetLimiter
from limiter.buckets.limiter import Limiter
from limiter.buckets.warm_up import WarmUpLimiter
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

Join = Callable[[FleetLimiter, int], None]


def new_limiter(resource: Resource, rule: Rule, now_ns: int, join: Join | None = None) -> Limiter:
    limiter = kind_of(rule)(resource, rule, now_ns)
    if join is not None and isinstance(limiter, FleetLimiter):
        join(limiter, now_ns)
    return limiter


def apply_rule(limiter: Limiter, now_ns: int, rule: Rule, join: Join | None = None) -> Limiter:
    """Apply another rule to a limiter.

    If the rule needs a limiter of another class, a new limiter inherits the balance, any debt and the last refusal, but
    starts with a closed breaker. Permits of fair shares are merged into the total. A new fair limiter admits nothing
    until an inherited debt is paid. A new warm-up limiter starts cold.

    Returns:
        The limiter to use from now on. If it is a new object, the old one is retired.
    """
    limiter.reconfigure(now_ns, rule)
    if type(limiter) is kind_of(rule):
        return limiter
    successor = restart_limiter(limiter, now_ns, rule, join)
    successor.inherit(limiter, now_ns)
    return successor


def restart_limiter(limiter: Limiter, now_ns: int, rule: Rule, join: Join | None = None) -> Limiter:
    successor = new_limiter(limiter.resource, rule, now_ns, join)
    limiter.retired = True
    if isinstance(limiter, AdaptiveLimiter):
        limiter.retire_shares()
    successor.last_refused_ns, successor.last_wait_us = limiter.last_refused_ns, limiter.last_wait_us
    successor.epoch, successor.asked_ns, successor.pinned = limiter.epoch, limiter.asked_ns, limiter.pinned
    return successor


def kind_of(rule: Rule) -> type[Limiter]:
    if rule.fleet:
        return FleetLimiter
    if rule.adaptive:
        return AdaptiveLimiter
    if rule.fair_by:
        return FairLimiter
    return WarmUpLimiter if rule.warm_up_ns else Limiter
