"""An AMQP 1.0 session that is lent to the compiled extension if possible, and one that never is. Both do the same."""

from collections.abc import Sequence
from random import Random
from typing import Final

from amqp10_playbook.limited import Cutter, Limited

from fuzz_targets import conversation
from fuzz_targets.amqp10 import DECIDES, TERMS_SHIFT, leave, mutated, opened, seeds
from fuzz_targets.conversation import Conversation
from limiter.compiled import COMPILED
from limiter.rules.rule import Rule
from proxy.deciding.batch import Side

__all__ = ["mutated", "run", "seeds"]

if COMPILED is None:
    raise ImportError("the compiled extension is not installed: make native")

_HIGH: Final = 1e6
_RULES: Final[Sequence[Sequence[Rule]]] = (
    (Rule("queue", "*", 20, action="delay"),),
    (Rule("queue", "*", 5),),
    (Rule("queue", "*", 20, bytes_per_s=200), Rule("delivery", "*", 20, action="delay")),
    (Rule("delivery", "*", 3, action="delay"),),
    (Rule("queue", "*", None, bytes_per_s=2000, action="delay"),),
    (Rule("queue", "*", _HIGH), Rule("client", "*", 50)),
    (Rule("queue", "*", _HIGH, action="delay"), Rule("exchange", "e", 5)),
    (),
)
# Independent of a peer's timing, and of the part of a chunk that was read before the close.
_FIGURES: Final = ("sent", "rows", "usage", "frames", "links", "in flight")


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is not None:
        check(said)


def check(said: Conversation) -> int:
    """Compare both. Return the number of chunks read by the compiled extension."""
    lent, alone = _play(said, lent=True), _play(said, lent=False)
    found, expected = lent.figures(), alone.figures()
    assert lent.reason == alone.reason
    for what in () if alone.closed else _FIGURES:
        assert found[what] == expected[what], what
    for side in Side:
        # Earlier frames of the chunk that ends the connection may have been forwarded, or not.
        total, other = lent.total[side], alone.total[side]
        assert total.startswith(other) or other.startswith(total)
    for driver in (lent, alone):
        leave(driver)
    return lent.served


def _play(said: Conversation, *, lent: bool) -> Limited:
    rules = _RULES[said.options >> TERMS_SHIFT & len(_RULES) - 1] if said.options & DECIDES else ()
    driver, random = Limited(rules, lent=lent), Random(said.seed)
    opened(said, driver)
    cutters = {side: Cutter() for side in Side}
    for side, chunk in said.chunks():
        for part in cutters[side].cut(chunk):
            if driver.closed is None:
                driver.give(side, part)
        if driver.closed is None:
            driver.now_ns += random.choice((0, 1_000_000, 500_000_000))
            driver.tick()
    return driver
