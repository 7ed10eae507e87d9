"""Asking a limiter as the data path does."""

from collections.abc import Sequence

from limiter.buckets.limiter import Admission, Gate


def acquire(gate: Gate, now_ns: int, costs: Sequence[int]) -> Admission:
    """Ask as everybody asks: check, then commit what is admitted, then refuse if something is not."""
    admission = gate.check(now_ns, costs)
    gate.commit(now_ns, costs[: admission.admitted])
    if admission.alone:
        assert gate.refuse_alone(now_ns, costs[admission.admitted]) <= admission.wait_us
    elif admission.admitted < len(costs):
        assert gate.refuse(now_ns) == admission.wait_us
    return admission
