"""Which kind of limiter a rule needs, and the change of a live limiter from one kind to another."""

from collections.abc import Callable

from limiter.buckets.adaptive import AdaptiveLimiter
from limiter.buckets.fair import FairLimiter
from limiter.buckets.fleet import FleetLimiter
from limiter.buckets.limiter import Limiter
from limiter.buckets.warm_up import WarmUpLimiter
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

Join = Callable[[FleetLimiter, int], None]
"""Gives a limiter its lease from the fleet's bucket."""


def new_limiter(resource: Resource, rule: Rule, now_ns: int, join: Join | None = None) -> Limiter:
    """Return a new limiter of the kind that a rule needs; that of a fleet needs ``join``."""
    limiter = kind_of(rule)(resource, rule, now_ns)
    if join is not None and isinstance(limiter, FleetLimiter):
        join(limiter, now_ns)
    return limiter


def put_in_force(limiter: Limiter, now_ns: int, rule: Rule, join: Join | None = None) -> Limiter:
    """Switch a limiter to another rule, in place or by a successor of another kind.

    A successor has the balance that the limiter would have under the new rule, and every debt; shares end in the total.
    A fair limiter with an inherited debt admits nobody until it is paid. A warm-up starts cold, and cold permits count
    as the permits that they would have bought. Breakers close; the last refusal stays known.

    Returns:
        The limiter that decides from now on; if it is another, the old one is retired.
    """
    limiter.reconfigure(now_ns, rule)
    if type(limiter) is kind_of(rule):
        return limiter
    successor = begun_anew(limiter, now_ns, rule, join)
    successor.inherit(limiter, now_ns)
    return successor


def begun_anew(limiter: Limiter, now_ns: int, rule: Rule, join: Join | None = None) -> Limiter:
    """Return a limiter to replace another: full and closed, without shares."""
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
