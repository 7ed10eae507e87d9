"""A RocketMQ session that reads by the compiled part, and one that reads by Python: both do the same."""

from playbook.trial import Trial

from fuzz_targets import conversation
from fuzz_targets.rocketmq import mutated, play, seeds
from limiter.compiled import COMPILED

__all__ = ["mutated", "run", "seeds"]

if COMPILED is None:
    raise ImportError("the compiled part is not installed: make native")


def run(data: bytes) -> None:
    """Try an input."""
    said = conversation.read(data)
    if said is not None:
        compiled, python = (_all_of(play(said, reading)) for reading in ("compiled", "python"))
        assert compiled == python


def _all_of(trial: Trial) -> object:
    """Return what was decided, and what came of it."""
    asked = [
        (request.resources, request.size_bytes, request.messages, request.producer_group, request.refusal)
        for request in trial.all_requests
    ]
    return trial.received, trial.own, trial.closed, asked, trial.charged, trial.counters.frames
