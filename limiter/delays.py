"""Delays: who may wait for delay rules, for which, and for how long.

It puts what the limits said into the words of the waiting room, which keeps order and time (``holding``), with
regard to what answers still under way will cost (``answers``).
"""

from collections.abc import Sequence
from typing import Final

from limiter.answers import Answers
from limiter.bucket import NS_PER_S
from limiter.decision import Asked, Decision
from limiter.holding import Holding
from limiter.limiter import Gate
from limiter.lines import Held, Stop, Wait
from limiter.plans import Asker, LineKey, Part
from limiter.rule import MAX_TIME_S

_NS_PER_US: Final = 1_000


class Delays:
    """What delay rules ask of the waiting room.

    Args:
        holding: the waiting room.
    """

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._answers = Answers()
        #: All lines in which somebody waits; the usual question is whether there are any.
        self.lines = holding.lines

    def must_wait(self, now_ns: int, part: Part, gate: Gate, asker: Asker, *, held: Held | None) -> bool:
        """Say whether a request must wait for a delay rule, whatever its limiter has stored."""
        if held is None:
            return bool(self.lines) and self._holding.is_behind(part.line(gate), None)
        line = part.line(gate)
        if self._holding.is_behind(line, held.number):
            return True
        ahead = self._ahead(now_ns, part, asker, line)
        return ahead > 0 and gate.wait_us_behind(now_ns, ahead) > 0

    def wait_us(self, now_ns: int, part: Part, gate: Gate) -> int:
        """Return how long a request would wait for one limit if it came now; 0 if not at all."""
        line = self.lines.get(part.line(gate))
        return gate.wait_us_behind(now_ns, line.permits if line is not None else 0)

    def hold(self, now_ns: int, decision: Decision, held: Held, behind: int) -> Stop | None:
        """Let a request wait, or return what refuses it; see ``Limits.hold``."""
        longest: Wait | None = None
        longest_us = -1
        max_delay_ns = MAX_TIME_S * NS_PER_S
        for part, gate, costs in decision.delays:
            wait_us = self.wait_us(now_ns, part, gate)
            rule = gate.rule
            too_long = wait_us * _NS_PER_US > rule.max_delay_ns and not held.asker.consumes
            if too_long or not rule.rate_upermits_per_s:
                return Stop(part.resource, rule, max(wait_us, gate.refuse(now_ns)))
            max_delay_ns = min(max_delay_ns, rule.max_delay_ns)
            if wait_us > longest_us:
                due_ns = now_ns + gate.wait_us_behind(now_ns, 0) * _NS_PER_US
                cost = costs[len(costs) - behind - 1]
                longest, longest_us = Wait(part.line(gate), cost, due_ns, part.resource, rule), wait_us
        assert longest is not None  # noqa: S101 - a decision to be held names what delays it
        if self._holding.over_bound(held, behind):
            return Stop(longest.resource, longest.rule, max(1, longest_us))
        self._holding.hold(now_ns, held, longest, max_delay_ns)
        return None

    def follow(self, now_ns: int, held: Held, leader: Held) -> Stop | None:
        """Let a request wait for one that it must not overtake, or return what refuses it."""
        if self._holding.over_bound(held):
            return Stop(leader.resource, leader.rule, max(1, (leader.deadline_ns - now_ns) // _NS_PER_US))
        self._holding.follow(now_ns, held, leader)
        return None

    def still_waits(self, now_ns: int, delays: Sequence[Asked], held: Held) -> Stop | Wait:
        """Say where a held request waits on: where it is if it must, or else for the one that takes longest."""
        waits = []
        for part, gate, costs in delays:
            rule = gate.rule
            if not rule.rate_upermits_per_s:
                return Stop(part.resource, rule, gate.refuse(now_ns))
            line = part.line(gate)
            ahead = self._ahead(now_ns, part, held.asker, line)
            due_ns = now_ns + max(1, gate.wait_us_behind(now_ns, ahead)) * _NS_PER_US
            if ahead:
                due_ns = min(due_ns, self._answers.regard_ends_ns(line) or due_ns)
            waits.append(Wait(line, costs[0], due_ns, part.resource, rule))
            if held.line is not None and held.line.key == line:
                return waits[-1]
        return max(waits, key=lambda wait: wait.due_ns)

    def released(self, now_ns: int, asked: Sequence[Asked], asker: Asker) -> None:
        """Note that a held request of an asker was let go: if it consumes, its answer is under way."""
        if asker.consumes:
            for part, gate, _ in asked:
                if part.by_answer:
                    self._answers.released(part.line(gate), now_ns)

    def answered(self, now_ns: int, part: Part, gate: Gate, asker: Asker, cost: int) -> None:
        """Note what an answer cost: it may be the turn of the next that waits."""
        if part.by_answer and asker.consumes:
            line = part.line(gate)
            self._answers.answered(line, cost)
            self._holding.ask_soon(line, now_ns)

    def _ahead(self, now_ns: int, part: Part, asker: Asker, line: LineKey) -> int:
        """Return how many permits the answers under way are expected to cost one limit."""
        return self._answers.ahead(line, now_ns) if part.by_answer and asker.consumes else 0
