"""A RocketMQ session that is lent to the compiled extension where possible, and one that never is: both do the same."""

from collections import Counter
from random import Random
from typing import Final

from playbook.extension import ASKS, Recorder, Run
from playbook.lending import Loan
from playbook.trial import RefusesName, Trial, refuse_of

from fuzz_targets import conversation
from fuzz_targets.conversation import Conversation
from fuzz_targets.rocketmq import LATE, drive, mutated, seeds
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from proxy.deciding.batch import Side

__all__ = ["mutated", "run", "seeds"]

_SHARES: Final = (0.0, 0.3, 0.6, 1.0)


def run(data: bytes) -> None:
    said = conversation.read(data)
    if said is not None:
        check(said)


def check(said: Conversation) -> int:
    """Compare both. Return the number of chunks that the compiled extension read from."""
    share = _SHARES[said.options & 3]
    # A connection is not lent while a batch is being decided.
    said = said._replace(options=said.options & ~LATE)

    def refuses(resource: Resource, group: str) -> bool:
        return Random(f"{said.seed} {resource} {group}").random() < share

    lent, python = _play(said, refuses, lends=True), _play(said, refuses, lends=False)
    assert _all_of(lent) == _all_of(python)
    assert lent.loan is not None
    return lent.loan.taken


def _play(said: Conversation, refuses: RefusesName, *, lends: bool) -> Trial:
    limits = Limits(ASKS)

    def loan(trial: Trial) -> Loan:
        def decide(run: Run) -> list[tuple[int, bool]]:
            return [(len(run.sizes), not refuses(Resource(run.kind, run.name), run.producer_group))]

        def write(side: Side, data: bytes) -> None:
            trial.received[side] += data

        return Loan(trial.session, Recorder(limits, decide, refuse_of), trial.counters, trial.session._signals, write)

    trial = Trial(
        lambda _: False,
        refuses_name=refuses,
        lends=loan if lends else None,
        limits=limits,
    )
    trial.session._requests._trial = 0
    drive(trial, said)
    trial.end()
    return trial


def _all_of(trial: Trial) -> object:
    """Return the decided requests, in any order, and the result."""
    asked = Counter(
        (each.resources[0], each.size_bytes, each.messages, each.producer_group) for each in trial.all_requests
    )
    if trial.loan is not None:
        for run in trial.loan.judge.runs:
            asked.update((Resource(run.kind, run.name), size, 1, run.producer_group) for size in run.sizes)
    described = trial.session.describe(0)
    return (
        trial.received,
        trial.closed,
        asked,
        trial.charged,
        trial.counters.frames,
        (described.requests, described.refused, set(described.resources), described.more_resources),
        (trial.session._signals.answers, trial.session._signals.busy),
        (trial.session.in_flight(), trial.session.unanswered()),
    )
