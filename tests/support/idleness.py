"""Whether a limiter may be evicted."""

from limiter.buckets.limiter import Limiter


def is_idle(limiter: Limiter, now_ns: int) -> bool:
    """Say whether the limiter is full and closed at ``now_ns``: indistinguishable from a new one."""
    idle_at_ns = limiter.idle_at_ns()
    return idle_at_ns is not None and idle_at_ns <= now_ns
