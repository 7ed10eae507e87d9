"""The rate limiter as a handler: asks the live limiter of every resource, once per resource and batch.

It knows neither protocols nor time; the decision itself is ``limiter``'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from limiter.limiter import Admission, Limiter
from limiter.registry import Registry
from limiter.resource import Resource
from proxy.batch import NO_VERDICTS, Batch, Group, Refuse, Verdict, Verdicts
from proxy.pipeline import Fails, Handler, HandlerPlugin, HandlerServices


@dataclass(frozen=True, slots=True)
class RateLimitOptions:
    """The rate limiter has no options of its own: rules come from the limits."""


class RateLimit(Handler):
    """Refuses what is over the limit of any of its resources; fails open."""

    fails: ClassVar[Fails] = "open"
    #: The registry is swapped, read and explained from the event loop.
    thread_safe: ClassVar[bool] = False

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        """Decide each group of requests with the same resources in one go."""
        get = self._registry.get
        verdicts: dict[int, Verdict] = {}
        for resources, group in batch.by_resources().items():
            undecided = _undecided(group, batch) if batch.verdicts else group
            if len(resources) == 1:
                limiter = get(resources[0], now_ns)
                if limiter is not None:
                    admission = limiter.acquire(now_ns, undecided.costs)
                    if admission.admitted < len(undecided.costs):
                        _refuse(resources[0], limiter, admission, undecided, verdicts)
            else:
                self._decide_together(resources, undecided, now_ns, verdicts)
        for charge in batch.charges:
            for resource in charge.resources:
                limiter = get(resource, now_ns)
                if limiter is not None:
                    limiter.charge(now_ns, charge.messages)
        return verdicts or NO_VERDICTS

    def _decide_together(
        self, resources: Sequence[Resource], group: Group, now_ns: int, verdicts: dict[int, Verdict]
    ) -> None:
        """Admit the longest prefix that every limiter admits; what follows is refused by the one that stopped it.

        All are checked before any is charged, so a refusal spends nothing anywhere. A prefix is exact: a limiter
        that has refused refuses the rest of the same instant too.
        """
        # Two names may share one overflow limiter, which then is charged for both.
        shares: dict[Limiter, list[Resource]] = {}
        for resource in resources:
            limiter = self._registry.get(resource, now_ns)
            if limiter is not None:
                shares.setdefault(limiter, []).append(resource)
        if not shares or not group.costs:
            return
        costs = {limiter: [cost * len(shared) for cost in group.costs] for limiter, shared in shares.items()}
        admissions = {limiter: limiter.check(now_ns, costs[limiter]) for limiter in shares}
        stopped_by = min(shares, key=lambda limiter: admissions[limiter].admitted)
        admission = admissions[stopped_by]
        refused = admission.admitted < len(group.costs)
        for limiter in shares:
            limiter.commit(now_ns, costs[limiter][: admission.admitted])
            if refused and admissions[limiter].admitted == admission.admitted:
                limiter.refuse(now_ns)
        if refused:
            _refuse(shares[stopped_by][0], stopped_by, admission, group, verdicts)


def _undecided(group: Group, batch: Batch) -> Group:
    """Leave out what an earlier handler refused: it must not be charged."""
    pairs = [pair for pair in zip(group.indexes, group.costs, strict=True) if pair[0] not in batch.verdicts]
    return Group([index for index, _ in pairs], [cost for _, cost in pairs])


def _refuse(
    resource: Resource, limiter: Limiter, admission: Admission, group: Group, verdicts: dict[int, Verdict]
) -> None:
    """Refuse what follows the admitted prefix, in the name of the request's own resource: a limiter may be shared."""
    refuse = Refuse(resource, limiter.rule.name, admission.wait_us)
    for index in group.indexes[admission.admitted :]:
        verdicts[index] = refuse


def _build(_: RateLimitOptions, services: HandlerServices) -> Handler:
    return RateLimit(services.registry)


PLUGIN = HandlerPlugin("rate_limit", RateLimitOptions, _build)
"""The entry point ``rate_limit``."""
