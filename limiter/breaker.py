"""The circuit breaker: after a first refusal, refuse everything until the bucket has recovered.

    =======  ==========================  =====================================================
    state    event                       next
    =======  ==========================  =====================================================
    closed   permits available           closed, admitted
    closed   must wait                   open, refused; the wait is the time until it closes
    open     now - next_free < break     open, refused; costs nothing, adds no debt
    open     now - next_free >= break    closed; the call is decided as in closed
    =======  ==========================  =====================================================

``next_free`` is when the bucket would admit again. With a break no longer than the burst the bucket is
full when the breaker closes, so a saturated limiter still admits its rate on average. A break of 0 never
opens: what remains is the plain bucket.

The state is one integer: ``next_free`` as it was when the breaker opened, or None while it is closed. Nothing
has to happen for it to close; whether it is open is a question of ``now``. What "permits available" means
is the bucket's part.
"""


def is_open(next_free_ns: int | None, break_ns: int, now_ns: int) -> bool:
    """Say whether a breaker in the state ``next_free_ns`` refuses everything at ``now_ns``."""
    return next_free_ns is not None and now_ns - next_free_ns < break_ns


def closes_at_ns(next_free_ns: int, break_ns: int) -> int:
    """Return when a breaker that is open, or about to open, closes."""
    return next_free_ns + break_ns
