"""An AMQP 1.0 session that reads by the compiled part, and one that reads by Python: both do the same."""

from fuzz_targets import conversation
from fuzz_targets.amqp10 import decided_alike, mutated, seeds
from limiter.compiled import COMPILED

__all__ = ["mutated", "run", "seeds"]

if COMPILED is None:
    raise ImportError("the compiled part is not installed: make native")


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is not None:
        compiled, python = decided_alike(said, "compiled"), decided_alike(said, "python")
        if compiled.closed and compiled.closed == python.closed:
            for side, total in compiled.total.items():
                assert total.startswith(python.total[side]) or python.total[side].startswith(total)
        else:
            assert compiled == python
