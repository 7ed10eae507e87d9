"""An AMQP 0.9.1 session that is lent to the compiled extension, and one that reads alone: both do the same."""

from typing import Final

from amqp_playbook.driver import BROKER

from fuzz_targets import conversation
from fuzz_targets.amqp091 import mutated, refuse_some, seeds
from limiter.compiled import COMPILED

__all__ = ["mutated", "run", "seeds"]

# Behind one of the broker's, nothing else comes on that channel.
_CHANNEL_CLOSE: Final = b"\0\x14\0\x28"

if COMPILED is None:
    raise ImportError("the compiled extension is not installed: make native")


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is not None:
        compiled, python = refuse_some(said, lends=True), refuse_some(said)
        # The compiled extension checks the order of the broker's frames less: impossible frames are forwarded.
        if "the broker sent" in python.closed or _CHANNEL_CLOSE in said.said(BROKER):
            assert compiled.to_broker.startswith(python.to_broker)
        else:
            assert compiled == python
