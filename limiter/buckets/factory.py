"""The kinds of limiters: which one a rule needs, and the change from one to another while it lives."""

from limiter.buckets.fair import FairLimiter
from limiter.buckets.limiter import Limiter
from limiter.buckets.warm_up import WarmUpLimiter
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule


def new_limiter(resource: Resource, rule: Rule, now_ns: int) -> Limiter:
    """Return a new limiter of the kind that a rule needs.

    Raises:
        ValueError: the rule does not limit.
    """
    return kind_of(rule)(resource, rule, now_ns)


def put_in_force(limiter: Limiter, now_ns: int, rule: Rule) -> Limiter:
    """Put another rule in force on a limiter, or, if that needs another kind, on one that takes its place.

    A successor has the balance that the limiter would have under the new rule, never more, and every debt. Shares end:
    what they hold and owe is in the total's balance. A fair limiter that takes over a debt admits nobody before that is
    paid. Warming up begins cold; what a cold limiter stored counts as the permits that it would have
    bought. Breakers are closed, and what is known of the last refusal stays.

    Args:
        limiter: the limiter; if another is returned it decides for nobody any more.
        now_ns: from when on the rule is in force.
        rule: a rule that limits.

    Returns:
        The limiter that decides from now on, with the registry's bookkeeping as it was.

    Raises:
        ValueError: the rule does not limit.
    """
    limiter.reconfigure(now_ns, rule)
    if type(limiter) is kind_of(rule):
        return limiter
    successor = begun_anew(limiter, now_ns, rule)
    successor.inherit(limiter, now_ns)
    return successor


def begun_anew(limiter: Limiter, now_ns: int, rule: Rule) -> Limiter:
    """Return a new limiter in the place of another: full and closed, without shares.

    What is known of the last refusal stays, and the registry's bookkeeping.

    Raises:
        ValueError: the rule does not limit.
    """
    successor = new_limiter(limiter.resource, rule, now_ns)
    limiter.retired = True
    successor.last_refused_ns, successor.last_wait_us = limiter.last_refused_ns, limiter.last_wait_us
    successor.epoch, successor.asked_ns = limiter.epoch, limiter.asked_ns
    return successor


def kind_of(rule: Rule) -> type[Limiter]:
    """Return the kind of limiter that a rule needs."""
    if rule.fair_by:
        return FairLimiter
    return WarmUpLimiter if rule.warm_up_ns else Limiter
