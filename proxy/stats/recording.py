"""What became of requests in each second, on the data path's clocks: the recorder, and how it is emptied.

It is told by the tally, of whole runs of requests. Without somebody who takes it nothing is recorded.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final

import trio

from limiter.counting.recorder import NO_ACCOUNT, Account, Judged, Recorder, Sender, Sums
from limiter.counting.rejections import Outcome, RejectionVerdict, TrafficSecond
from limiter.rules.resource import Resource
from proxy.common.cooperative import Pace
from proxy.deciding.batch import Batch, Group, Hold, Refuse, Request, Shadow, Verdict

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


class Recording:
    """A recorder that knows what time it is.

    Args:
        max_keys_per_s: rejections told apart in a second.
        max_resources: resources told apart in a second, those of ``pinned`` not counted.
        pinned: resources that are always told apart.
        now_ns: the data path's monotonic clock.
        wall_clock: the time of day.
    """

    __slots__ = ("_now_ns", "_recorder", "_wall_clock")

    def __init__(
        self,
        max_keys_per_s: int,
        max_resources: int,
        pinned: Container[Resource],
        now_ns: Callable[[], int],
        wall_clock: Callable[[], datetime],
    ) -> None:
        self._now_ns = now_ns
        self._wall_clock = wall_clock
        self._recorder = Recorder(max_keys_per_s, max_resources, pinned, now_ns(), self._wall_ns())

    def _wall_ns(self) -> int:
        return (self._wall_clock() - _EPOCH) // _US * 1000

    def at(self, now_ns: int) -> Recorder:
        """Return what takes things that happen now."""
        recorder = self._recorder
        if now_ns >= recorder.ends_ns:
            recorder.turn(now_ns, self._wall_ns())
        return recorder

    async def take(self, *, unfinished: bool) -> tuple[TrafficSecond, ...]:
        """Hand out the seconds that are over; if it is cancelled they stay."""
        raw = self._recorder.take(self._now_ns(), self._wall_ns(), unfinished=unfinished)
        taken: list[TrafficSecond] = []
        try:
            await _in_steps(chain.from_iterable(second.steps() for second in raw), taken)
        except BaseException:
            self._recorder.put_back(raw)
            raise
        with trio.CancelScope(shield=True):
            # From here on it is the caller's.
            await _in_steps(chain.from_iterable(second.let_go() for second in raw), taken)
        return tuple(taken)


async def _in_steps(steps: Iterator[TrafficSecond | None], taken: list[TrafficSecond]) -> None:
    pace = Pace(rests=True)
    for second in steps:
        if second is not None:
            taken.append(second)
        await pace.keep()


class Runs:
    """Records a batch with verdicts, one run of a group after the other.

    Args:
        recorder: told of them.
        batch: whose requests they are.
        sender: who sent it.
        passed: what becomes of requests without a verdict.
    """

    __slots__ = (
        "_answers",
        "_batch",
        "_messages",
        "_outcome",
        "_passed",
        "_producer_group",
        "_recorder",
        "_requests",
        "_rule",
        "_second",
        "_sender",
        "_size_bytes",
        "_verdict",
        "_wait_us",
    )

    def __init__(self, recorder: Recorder, batch: Batch, sender: Sender, passed: Outcome) -> None:
        self._recorder = recorder
        self._second = recorder.second
        self._batch = batch
        self._sender = sender
        self._passed = passed
        self._verdict: RejectionVerdict | None = None
        self._rule = self._producer_group = ""

    def begin(self, group: Group, indexes: Sequence[int], messages: int, verdict: Verdict | None) -> None:
        """Look at requests of one group that have the same verdict; ``add`` follows for each of their resources."""
        self._requests, self._messages = len(indexes), messages
        self._size_bytes, answers = self._batch.sums_of(group, indexes)
        if verdict is None:
            self._outcome, self._verdict = self._passed, None
            self._rule = self._producer_group = ""
            return
        self._producer_group = group.producer_group
        self._wait_us = self._answers = 0
        if isinstance(verdict, Refuse):
            self._outcome, self._verdict, self._rule = "refused", "refuse", verdict.rule
            self._wait_us, self._answers = verdict.wait_us, answers
        elif isinstance(verdict, Shadow):
            self._outcome, self._verdict, self._rule = "shadowed", "shadow", verdict.rule
        elif isinstance(verdict, Hold):
            self._outcome, self._verdict, self._rule = "held", "hold", verdict.rule

    def add(self, resource: Resource, account: Account = NO_ACCOUNT) -> Account:
        """Record the run for one resource.

        Args:
            resource: whose.
            account: of the run before, likely to be good for this one, too.

        Returns:
            The account of this run.
        """
        outcome, sender, requests, messages = self._outcome, self._sender, self._requests, self._messages
        if (
            account.second is not self._second
            or account.sender is not sender
            or account.outcome is not outcome
            or account.resource is not resource
            or account.rule != self._rule
            or account.producer_group != self._producer_group
        ):
            verdict = self._verdict
            judged = None if verdict is None else (verdict, self._rule, self._producer_group, 0, 0)
            account = self._recorder.account(resource, sender, outcome, judged)
        sums = account.sums
        sums[0] += requests
        sums[1] += messages
        sums[2] += self._size_bytes
        if self._verdict is not None:
            sums[3] += self._answers
            sums = account.rejection
            sums[0] += requests
            sums[1] += messages
            sums[2] += self._size_bytes
            if self._wait_us > sums[3]:  # noqa: PLR1730 - max() costs as much as all of the sums
                sums[3] = self._wait_us
        return account


def record_resolved(recorder: Recorder, request: Request, verdict: Refuse | Shadow | None, sender: Sender) -> None:
    """Record what becomes of a request that was held, and is not any more."""
    outcome: Outcome = "admitted"
    judged: Judged | None = None
    if isinstance(verdict, Refuse):
        outcome = "refused"
        judged = ("refuse", verdict.rule, request.producer_group, verdict.wait_us, int(not request.oneway))
    elif verdict is not None:
        outcome, judged = "shadowed", ("shadow", verdict.rule, request.producer_group, 0, 0)
    recorder.count(request.resources, _amount(request), outcome, sender, judged)


def record_dropped(recorder: Recorder, request: Request, sender: Sender) -> None:
    """Record a request that was held when its client left."""
    recorder.count(request.resources, _amount(request), "dropped", sender)


def _amount(request: Request) -> Sums:
    return 1, request.messages, 0 if request.consumes else request.size_bytes
