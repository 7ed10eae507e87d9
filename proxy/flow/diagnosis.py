"""Finds bottlenecks by comparing the states of all stages.

A stage in flow waits for a follower, which may be in flow itself. The bottleneck is the first stage on such a path
that is not in flow. ``CAUSES`` explains it. If no stage is in flow, the cause of a delay is a limit, an alarm, or
Sluice's event loop. When the event loop is saturated, messages do not queue between stages.
"""

from typing import Final, NamedTuple

import msgspec

from proxy.flow.credit import RECENT_NS, Kind, Stage, State

_EXAMPLES: Final = 3


class Cause(NamedTuple):
    """A cause of delays. It applies if its ``waiting``, ``at`` and ``state`` match a path. None matches everything."""

    name: str  # value of the metrics' label
    waiting: Kind | None  # kind of the stage that waits, if any
    at: Kind | None  # kind of the bottleneck, and its state
    state: State | None
    says: str
    do: str


CAUSES: Final = (
    Cause(
        "broker_alarm",
        None,
        "writer",
        "blocked",
        "the broker has raised an alarm and blocks publishers",
        "Check the broker's memory and disk. Sluice resumes as soon as the broker does.",
    ),
    Cause(
        "alarm",
        None,
        None,
        "blocked",
        "one of Sluice's own alarms blocks publishers",
        "The alarm says whether memory or disk space is low. Consumers and acknowledgements are not affected.",
    ),
    Cause(
        "broker",
        None,
        "writer",
        "running",
        "the broker, or the connection to it, is slower than the incoming traffic",
        "Check the broker's flow control, disk and queue lengths, then the network to it.",
    ),
    Cause(
        "disk",
        None,
        "store",
        "running",
        "the spool's disk is slower than the incoming traffic",
        "Use a faster disk for the spool, allow more memory for held messages, or slow down the publishers.",
    ),
    Cause(
        "limit",
        None,
        None,
        "throttled",
        "a configured limit has been reached",
        "This is expected. Raise the limit to let more messages pass.",
    ),
    Cause(
        "deciding",
        None,
        "resource",
        "running",
        "the limiter is slower than the incoming traffic (CPU)",
        "Check that the compiled extension is installed, use fewer limits per message, or use a faster CPU.",
    ),
    Cause(
        "decoding",
        "connection",
        "channel",
        "running",
        "decoding is slower than the incoming traffic (CPU)",
        "Check that the compiled extension is installed, spread clients over more sidecars, or use a faster CPU.",
    ),
)
"""The first matching cause applies. The order also breaks ties between findings."""
_DECODING: Final = next(cause for cause in CAUSES if cause.name == "decoding")
_OTHER: Final = Cause("other", None, None, None, "the stage is slower than the incoming traffic", "Check this stage.")


def cause_of(waiting: Kind | None, at: Kind, state: State) -> Cause | None:
    if waiting is None and state in ("running", "flow"):
        return None
    for cause in CAUSES:
        if cause.waiting in (None, waiting) and cause.at in (None, at) and cause.state in (None, state):
            return cause
    return _OTHER


class FlowFinding(msgspec.Struct, frozen=True):
    """One reason why messages wait.

    Attributes:
        cause: name of the cause, as in metrics.
        connections: number of connections that wait because of it.
        at: some of the stages where messages wait, each as ``KIND NAME``.
        text: explains the cause and what to do about it.
    """

    cause: str
    connections: int
    at: tuple[str, ...]
    text: str


_Ends = dict[Cause, tuple[str, ...]]


class Survey:
    """Examines the stages' states at a given time.

    Args:
        is_saturated: whether the event loop had no idle time recently.
        min_share: a stage counts as in flow only if it was out of credit for this fraction of about the last minute.
    """

    def __init__(self, now_ns: int, *, is_saturated: bool = False, min_share: float = 0.0) -> None:
        self._now_ns = now_ns
        self._min_share = min_share
        self._is_saturated = is_saturated
        self._ends: dict[Stage, _Ends] = {}
        self._behind: dict[Stage, _Ends] = {}
        self._counts: dict[Cause, int] = {}
        self._at: _Ends = {}
        self._examined: dict[str, int] = {}

    def add(self, stage: Stage, writer: Stage | None = None, *, is_read: bool = False) -> None:
        """Examine a stage. If ``writer``, the last stage on its path, is blocked, report it even if no stage waits."""
        self._examined[stage.kind] = self._examined.get(stage.kind, 0) + 1
        ends = self._ends_of(stage)
        waits = stage.out_of_credit and self._state(stage) == "flow"
        if writer is not None and not waits and writer.state(self._now_ns) == "blocked":
            ends = {}
            self._note(ends, None, writer, "blocked")
        # A saturated loop matters more than a recent wait.
        waits_not = not stage.out_of_credit and (not ends or self._state(stage) == "flow")
        if self._is_saturated and is_read and waits_not:
            ends = {_DECODING: ("the event loop",)}
        for cause in ends:
            self._counts[cause] = self._counts.get(cause, 0) + 1
        _merge(self._at, ends)

    def findings(self) -> tuple[FlowFinding, ...]:
        order = (*CAUSES, _OTHER)
        causes = sorted(self._counts, key=lambda cause: (-self._counts[cause], order.index(cause)))
        return tuple(self._finding(cause) for cause in causes)

    def _finding(self, cause: Cause) -> FlowFinding:
        count, at = self._counts[cause], self._at[cause]
        kinds = set(self._examined)
        noun = kinds.pop() if len(kinds) == 1 else "stage"
        total = sum(self._examined.values())
        who = f"{count} of {total} {noun}s" if total > 1 else f"The {noun}"
        verb = "wait" if count > 1 else "waits"
        names = ", ".join(at) + (", …" if len(at) == _EXAMPLES else "")
        return FlowFinding(cause.name, count, at, f"{who} {verb}: {cause.says} ({names}). {cause.do}")

    def _state(self, stage: Stage) -> State:
        return stage.state(self._now_ns, min_share=self._min_share)

    def _ends_of(self, stage: Stage) -> _Ends:
        state = self._state(stage)
        if state == "flow":
            behind = self._ends_behind(stage)
            if self._is_saturated or _DECODING not in behind:
                return behind
            # Every busy sender waits briefly for its turn, so other causes matter more if the loop has idle time.
            return self._ends_under_way(stage) or behind
        ends = self._ends.get(stage)
        if ends is None:
            # Set this before examining the followers, so that cycles end here.
            ends = self._ends[stage] = {}
            if state == "running":
                _merge(ends, self._ends_under_way(stage))
            elif state == "throttled":
                # The limited resource is more informative than the stage whose messages wait.
                for follower in stage.followers():
                    if follower.state(self._now_ns) == state:
                        _merge(ends, self._ends_of(follower))
            if not ends:
                self._note(ends, None, stage, state)
        return ends

    def _ends_under_way(self, stage: Stage) -> _Ends:
        ends: _Ends = {}
        for follower in stage.followers():
            if follower.kind == "channel" or stage.in_flight(follower):
                _merge(ends, self._ends_of(follower))
        return ends

    def _ends_behind(self, stage: Stage) -> _Ends:
        """Return the ends of a stage's paths, based on the followers' states when the stage last waited for them."""
        ends = self._behind.get(stage)
        if ends is None:
            ends = self._behind[stage] = {}
            waited_ns = stage.waited_until_ns(self._now_ns)
            for follower in stage.waits_for():
                state = follower.state(waited_ns, RECENT_NS)
                further: _Ends = {}
                if state == "flow":
                    further = self._ends_behind(follower)
                elif state == "throttled":
                    further = self._ends_of(follower)
                if further:
                    _merge(ends, further)
                else:
                    # If a follower in flow waits for no stage, the stage that it waited for has closed.
                    self._note(ends, stage.kind, follower, "running" if state == "flow" else state)
        return ends

    @staticmethod
    def _note(ends: _Ends, waiting: Kind | None, at: Stage, state: State) -> None:
        cause = cause_of(waiting, at.kind, state)
        if cause is not None:
            _merge(ends, {cause: (f"{at.kind} {at.name}".rstrip(),)})


def _merge(into: _Ends, more: _Ends) -> None:
    for cause, names in more.items():
        have = into.get(cause, ())
        if len(have) < _EXAMPLES:
            into[cause] = (*have, *(name for name in names if name not in have))[:_EXAMPLES]
