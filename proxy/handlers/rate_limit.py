"""The rate limiter as a handler: asks the limits, once per group of requests that are decided alike.

It knows neither protocols nor time; the decision itself is ``limiter``'s.
"""

from dataclasses import dataclass
from typing import ClassVar

from limiter.limits import Asker, Limits, Stop
from proxy.batch import NO_VERDICTS, Batch, Refuse, Verdict, Verdicts
from proxy.pipeline import Fails, Handler, HandlerPlugin, HandlerServices


@dataclass(frozen=True, slots=True)
class RateLimitOptions:
    """The rate limiter has no options of its own: rules come from the limits."""


class RateLimit(Handler):
    """Refuses what is over any limit that applies to it; fails open."""

    fails: ClassVar[Fails] = "open"
    #: The limits are swapped, read and explained from the event loop.
    thread_safe: ClassVar[bool] = False

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def on_requests(self, batch: Batch, now_ns: int) -> Verdicts:
        """Decide each group of requests in one go."""
        connection = batch.connection
        if connection.exempt:
            return NO_VERDICTS
        verdicts: dict[int, Verdict] = {}
        for group in batch.groups():
            indexes, messages = group.indexes, group.messages
            if batch.verdicts:
                left = [at for at, index in enumerate(indexes) if not isinstance(batch.verdicts.get(index), Refuse)]
                indexes, messages = [indexes[at] for at in left], [messages[at] for at in left]
            asker = None if group.consumes else Asker(connection.address, group.producer_group, connection.scope)

            def size_bytes(indexes: list[int] = indexes) -> list[int]:
                return batch.size_bytes(indexes)

            decision = self._limits.decide(now_ns, group.resources, asker, messages, size_bytes)
            if decision.stop is not None:
                refuse = _refuse(decision.stop)
                for index in indexes[decision.admitted :]:
                    verdicts[index] = refuse
        for charge in batch.charges:
            asker = None if charge.consumes else Asker(connection.address, charge.producer_group, connection.scope)
            self._limits.charge(now_ns, charge.resources, asker, charge.messages, charge.size_bytes)
        return verdicts or NO_VERDICTS


def _refuse(stop: Stop) -> Refuse:
    return Refuse(stop.resource, stop.rule.name, stop.wait_us, stop.rule.busy_code)


def _build(_: RateLimitOptions, services: HandlerServices) -> Handler:
    return RateLimit(services.limits)


PLUGIN = HandlerPlugin("rate_limit", RateLimitOptions, _build)
"""The entry point ``rate_limit``."""
