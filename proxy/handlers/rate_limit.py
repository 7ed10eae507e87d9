"""The rate limiter as a handler: asks the live limiter of every resource, once per resource and batch.

It knows neither protocols nor time; the decision itself is ``limiter``'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from limiter.limiter import Limiter
from limiter.registry import Registry
from proxy.batch import NO_VERDICTS, Batch, Group, Refuse, Verdict, Verdicts
from proxy.pipeline import Fails, Handler, HandlerPlugin, HandlerServices


@dataclass(frozen=True, slots=True)
class RateLimitOptions:
    """The rate limiter has no options of its own: rules come from the limits."""


class RateLimit(Handler):
    """Refuses what is over the limit of any of its resources; fails open."""

    fails: ClassVar[Fails] = "open"

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        """Decide each group of requests with the same resources in one go."""
        get = self._registry.get
        verdicts: dict[int, Verdict] = {}
        for resources, group in batch.by_resources().items():
            live = [limiter for resource in resources if (limiter := get(resource, now_ns)) is not None]
            if live:
                undecided = _undecided(group, batch) if batch.verdicts else group
                _decide(live, undecided, now_ns, verdicts)
        for charge in batch.charges:
            for resource in charge.resources:
                if (limiter := get(resource, now_ns)) is not None:
                    limiter.charge(now_ns, charge.messages)
        return verdicts or NO_VERDICTS


def _undecided(group: Group, batch: Batch) -> Group:
    """Leave out what an earlier handler refused: it must not be charged."""
    pairs = [pair for pair in zip(group.indexes, group.costs, strict=True) if pair[0] not in batch.verdicts]
    return Group([index for index, _ in pairs], [cost for _, cost in pairs])


def _decide(live: Sequence[Limiter], group: Group, now_ns: int, verdicts: dict[int, Verdict]) -> None:
    """Admit the longest prefix that every limiter admits; what follows is refused by the one that stopped it.

    All are checked before any is charged, so a refusal spends nothing anywhere. A prefix is exact: a limiter
    that has refused refuses the rest of the same instant too.
    """
    costs = group.costs
    stopped_by = live[0]
    if len(live) == 1:
        admission = stopped_by.acquire(now_ns, costs)
    else:
        admissions = [limiter.check(now_ns, costs) for limiter in live]
        least = min(range(len(live)), key=lambda index: admissions[index].admitted)
        stopped_by, admission = live[least], admissions[least]
        for limiter, own in zip(live, admissions, strict=True):
            limiter.commit(now_ns, costs[: admission.admitted])
            if own.admitted == admission.admitted < len(costs):
                limiter.refuse(now_ns)
    if admission.admitted < len(costs):
        refuse = Refuse(stopped_by.resource, stopped_by.rule.name, admission.wait_us)
        for index in group.indexes[admission.admitted :]:
            verdicts[index] = refuse


def _build(_: RateLimitOptions, services: HandlerServices) -> Handler:
    return RateLimit(services.registry)


PLUGIN = HandlerPlugin("rate_limit", RateLimitOptions, _build)
"""The entry point ``rate_limit``."""
