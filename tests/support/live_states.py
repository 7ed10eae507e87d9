"""The states of all live limiters at once. The product yields them in short steps."""

from limiter.buckets.limiter import LimiterState
from limiter.deciding.limits import Limits
from limiter.plans.registry import Registry
from limiter.rules.resource import OVERFLOW_NAME


def states_of(limiters: Limits | Registry, now_ns: int) -> list[LimiterState]:
    """Return the states by name, overflow limiters last."""
    states = [state for state in limiters.each_state(now_ns) if state is not None]
    return sorted(states, key=lambda state: (state.resource.name == OVERFLOW_NAME, state.resource))
