"""Calls of a limiter in the data path's order."""

from collections.abc import Sequence

from limiter.buckets.limiter import Admission, Gate


def acquire(gate: Gate, now_ns: int, costs: Sequence[int]) -> Admission:
    """Check, then commit the admitted requests, then refuse the rest."""
    admission = gate.check(now_ns, costs)
    gate.commit(now_ns, costs[: admission.admitted])
    if admission.alone:
        assert gate.refuse_alone(now_ns, costs[admission.admitted]) <= admission.wait_us
    elif admission.admitted < len(costs):
        assert gate.refuse(now_ns) == admission.wait_us
    return admission
