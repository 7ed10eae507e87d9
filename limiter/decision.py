"""Decisions: what several requests that were asked for together are told."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from limiter.limiter import Gate
from limiter.lines import Shade, Stop
from limiter.plans import Part

Asked = tuple[Part, Gate, Sequence[int]]
"""One limit that was asked: which, what decides (its limiter, or the asker's share of it), the costs there."""


class Decision(NamedTuple):
    """What becomes of several requests that were asked for together.

    Attributes:
        admitted: how many from the front pass.
        stop: what stops the others; None if there are none.
        delays: the delay rules that stop the others, if nothing else does: they may be held.
        shades: what shadow rules say to those that pass.
    """

    admitted: int
    stop: Stop | None = None
    delays: tuple[Asked, ...] = ()
    shades: tuple[Shade, ...] = ()


_ALL_PASS: Final = tuple(Decision(count) for count in range(257))
"""The usual answers, made once."""


def all_pass(count: int) -> Decision:
    """Return the decision that so many requests pass."""
    return _ALL_PASS[count] if count < len(_ALL_PASS) else Decision(count)
