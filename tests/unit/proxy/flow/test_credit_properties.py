"""Stages compared to processes that do the same message by message, and progress to the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from credit_processes import Processes
from hypothesis import given
from hypothesis import strategies as st

from proxy.flow.credit import Credit, Kind, Stage
from proxy.flow.diagnosis import Survey


class Plan(NamedTuple):
    """Attributes of stages. ``gives``: the first ones have no senders. ``pairs``: sender and receiver."""

    gives: list[Credit]
    pairs: list[tuple[int, int]]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(2, 7))
    pairs = set()
    for follower in range(1, count):
        pairs |= {(sender, follower) for sender in draw(st.sets(st.integers(0, follower - 1), max_size=3))}
    pairs.add((count - 2, count - 1))
    initials = st.sampled_from([1, 2, 3, 4, 5, 8, 30])
    gives = []
    for _ in range(count):
        initial = draw(initials)
        gives.append(Credit(initial, draw(st.integers(1, initial))))
    return Plan(gives, sorted(pairs))


# A seed, because drawing each number would make most cases too large.
randoms = st.integers(0, 2**32).map(Random)
steps = st.lists(
    st.tuples(
        st.sampled_from(["send"] * 10 + ["ack"] * 10 + ["stall"] * 3 + ["resume"] * 3 + ["end"]),
        st.integers(0, 99),
        st.sampled_from([1, 2, 3, 5, 9, 50]),
    ),
    min_size=20,
    max_size=60,
)


class Network:
    """Stages, processes beside them that are always up to date, and others whose grants arrive late."""

    def __init__(self, plan: Plan, random: Random) -> None:
        self.pairs = list(plan.pairs)
        self.random = random
        kinds: list[Kind] = ["connection", "channel", "resource", "writer", "store"]
        self.stages = {
            pid: Stage(kinds[min(pid, 4)], str(pid), gives, self.noting(pid)) for pid, gives in enumerate(plan.gives)
        }
        specs = [tuple(gives) for gives in plan.gives]
        self.exact, self.late = Processes(specs, random), Processes(specs, random)
        self.unacked: Counter[tuple[int, int]] = Counter()
        self.stalled: set[tuple[int, int]] = set()
        self.now_ns = 0
        self.told: Counter[int] = Counter()
        self.flow_total: Counter[int] = Counter()
        self.flow_ns: Counter[int] = Counter()
        self.blocked: dict[int, bool] = dict.fromkeys(self.stages, False)
        self.ended: Counter[int] = Counter()

    def noting(self, pid: int) -> Any:
        return lambda: self.told.update([pid])

    def step(self, what: str, which: int, count: int) -> None:
        self.now_ns += which + 1
        for pid, blocked in self.blocked.items():
            self.flow_ns[pid] += blocked * (which + 1)
        if what == "end":
            self.end(sorted(self.stages)[which % len(self.stages)])
        elif what == "send" and self.pairs:
            self.send(*self.pairs[which % len(self.pairs)], count)
        elif what in {"stall", "resume"} and self.pairs:
            self.stall(self.pairs[which % len(self.pairs)], on=what == "stall")
        elif pairs := [pair for pair in self.pairs if self.unacked[pair]]:
            pair = pairs[which % len(pairs)]
            self.ack(*pair, min(count, self.unacked[pair]))
        self.late.deliver(self.random.randrange(3))
        self.compare()

    def send(self, sender: int, follower: int, count: int) -> None:
        self.stages[sender].send(self.stages[follower], count, self.now_ns)
        self.unacked[sender, follower] += count
        for processes in (self.exact, self.late):
            for _ in range(count):
                processes.send(sender, follower)

    def ack(self, sender: int, follower: int, count: int) -> None:
        self.stages[follower].ack(self.stages[sender], count, self.now_ns)
        self.unacked[sender, follower] -= count
        for processes in (self.exact, self.late):
            for _ in range(count):
                processes.ack(follower, sender)
        self.exact.deliver()

    def stall(self, pair: tuple[int, int], *, on: bool) -> None:
        self.stages[pair[0]].stall(self.stages[pair[1]], self.now_ns, on=on)
        if on is (pair in self.stalled):
            return
        for processes in (self.exact, self.late):
            (processes.stall if on else processes.resume)(*pair)
        self.stalled ^= {pair}
        self.exact.deliver()

    def end(self, pid: int) -> None:
        if len(self.stages) == 1:
            return
        stage = self.stages.pop(pid)
        stage.close(self.now_ns)
        assert not stage.out_of_credit
        assert stage.followers() == stage.waits_for() == ()
        self.pairs = [pair for pair in self.pairs if pid not in pair]
        self.stalled = {pair for pair in self.stalled if pid not in pair}
        self.blocked.pop(pid)
        for processes in (self.exact, self.late):
            processes.down(pid)
        self.exact.deliver()

    def compare(self) -> None:
        for sender, follower in self.pairs:
            pair = self.stages[sender], self.stages[follower]
            self.compare_pair(*pair, self.exact.balance(sender, follower), self.exact.deferred(follower, sender))
            assert pair[0].in_flight(pair[1]) == self.unacked[sender, follower]
        for pid, stage in self.stages.items():
            blockers = self.exact.blockers(pid)
            assert stage.out_of_credit == bool(blockers)
            if blockers:
                assert {int(follower.name) for follower in stage.waits_for()} == blockers
                self.compare_diagnosis(stage)
            for follower in stage.waits_for() if blockers else ():
                stalled = (pid, int(follower.name)) in self.stalled
                assert stalled or stage.in_flight(follower) > 0 or follower.out_of_credit
            self.flow_total[pid] += bool(blockers) and not self.blocked[pid]
            self.ended[pid] += self.blocked[pid] and not blockers
            self.blocked[pid] = bool(blockers)
            figures = stage.figures(self.now_ns)
            assert (figures.flow_total, figures.flow_s) == (self.flow_total[pid], self.flow_ns[pid] / 1e9)
            assert self.told[pid] == self.ended[pid]

    def compare_diagnosis(self, stage: Stage) -> None:
        """A stage without credit waits for one with credit."""
        survey = Survey(self.now_ns)
        survey.add(stage)
        bottlenecks = [name for finding in survey.findings() for name in finding.at]
        assert bottlenecks
        assert not any(self.stages[int(name.split()[1])].out_of_credit for name in bottlenecks)

    @staticmethod
    def compare_pair(sender: Stage, follower: Stage, balance: int, deferred: int) -> None:
        pair = sender._find(follower)
        assert sender.credit(follower) == max(0, balance)
        assert (follower.gives.initial if pair is None else pair.balance) == balance
        assert follower.deferred(sender) == deferred
        assert follower.out_of_credit or not deferred

    def finish(self) -> None:
        """End all stalls and handle everything in progress, in any order."""
        for pair in sorted(self.stalled):
            self.stall(pair, on=False)
            self.compare()
        while pairs := [pair for pair in self.pairs if self.unacked[pair]]:
            self.step("ack", self.random.randrange(len(pairs)), self.random.choice((1, 3, 50)))
        self.late.deliver()
        for sender, follower in self.pairs:
            stages = self.stages[sender], self.stages[follower]
            assert stages[0].credit(stages[1]) > 0
            self.compare_pair(*stages, self.late.balance(sender, follower), self.late.deferred(follower, sender))
        assert not any(stage.out_of_credit for stage in self.stages.values())


@given(plans(), steps, randoms)
def test_stages_equal_processes_message_by_message(
    plan: Plan, steps: list[tuple[str, int, int]], random: Random
) -> None:
    network = Network(plan, random)
    for step in steps:
        network.step(*step)
    network.finish()


class Work:
    """Messages on their way through stages that follow the docstring of ``credit``."""

    def __init__(self, plan: Plan, random: Random, count: int) -> None:
        self.random = random
        self.stages = [Stage("connection", str(pid), gives) for pid, gives in enumerate(plan.gives)]
        self.followers: dict[Stage, list[Stage]] = {stage: [] for stage in self.stages}
        for sender, follower in plan.pairs:
            self.followers[self.stages[sender]].append(self.stages[follower])
        have_senders = {self.stages[follower] for _, follower in plan.pairs}
        self.left = {stage: count for stage in self.stages if stage not in have_senders and self.followers[stage]}
        # Messages that reached each stage, and taken ones that are not acked.
        self.queues: dict[Stage, list[tuple[Stage, int]]] = {stage: [] for stage in self.stages}
        self.kept: dict[Stage, list[tuple[Stage, int]]] = {stage: [] for stage in self.stages}
        self.stalled: set[tuple[Stage, Stage]] = set()
        self.now_ns = 0

    def run(self, ends: Iterator[int]) -> None:
        until_end = next(ends, None)
        while turns := self.turns():
            self.now_ns += 1
            if until_end == self.now_ns:
                until_end = next(ends, None)
                self.end(self.random.choice(self.stages))
            else:
                stage, turn = self.random.choice(turns)
                turn(stage)
        assert not any(stage.out_of_credit for stage in self.stages)
        assert not any(self.left.values())

    def turns(self) -> list[tuple[Stage, Any]]:
        return [
            *((stage, self.read) for stage, left in self.left.items() if left and not stage.out_of_credit),
            *((stage, self.hand_on) for stage, queue in self.queues.items() if queue),
            *((stage, self.ack) for stage, kept in self.kept.items() if kept),
            # No stall begins once everything is handled, so that the run ends.
            *((stage, self.stall) for stage, left in self.left.items() if left),
            *((sender, self.resume) for sender, _ in self.stalled),
        ]

    def stall(self, stage: Stage) -> None:
        follower = self.random.choice(self.followers[stage])
        self.stalled.add((stage, follower))
        stage.stall(follower, self.now_ns, on=True)

    def resume(self, stage: Stage) -> None:
        pair = self.random.choice([pair for pair in sorted(self.stalled, key=_names) if pair[0] is stage])
        self.stalled.remove(pair)
        stage.stall(pair[1], self.now_ns, on=False)
        assert stage.out_of_credit == any(
            stage.credit(follower) == 0 or (stage, follower) in self.stalled for follower in stage.followers()
        )

    def read(self, stage: Stage) -> None:
        count = min(self.left[stage], self.random.choice((1, 3, 20)))
        self.left[stage] -= count
        follower = self.random.choice(self.followers[stage])
        self.send(stage, follower, count)
        assert stage.in_flight(follower) < follower.gives.initial + 20

    def send(self, stage: Stage, follower: Stage, count: int) -> None:
        stage.send(follower, count, self.now_ns)
        self.queues[follower].append((stage, count))

    def hand_on(self, stage: Stage) -> None:
        sender, count = self.queues[stage].pop(0)
        followers = self.followers[stage]
        if not followers:
            self.kept[stage].append((sender, count))
            return
        ack_first = self.random.random() < 0.5
        if ack_first:
            stage.ack(sender, count, self.now_ns)
        for part in (count // 2, count - count // 2):
            if part:
                self.send(stage, self.random.choice(followers), part)
        if not ack_first:
            stage.ack(sender, count, self.now_ns)

    def ack(self, stage: Stage) -> None:
        sender, count = self.kept[stage].pop(self.random.randrange(len(self.kept[stage])))
        stage.ack(sender, count, self.now_ns)

    def end(self, stage: Stage) -> None:
        stage.close(self.now_ns)
        self.stalled = {pair for pair in self.stalled if stage not in pair}
        self.stages.remove(stage)
        self.left.pop(stage, None)
        for of_each in (self.queues, self.kept):
            del of_each[stage]
        del self.followers[stage]
        for other, followers in self.followers.items():
            if stage in followers:
                followers.remove(stage)
                if not followers:
                    self.left.pop(other, None)
        for stage_left, queue in self.queues.items():
            assert stage_left is not stage
            assert all(count for _, count in queue)


def _names(pair: tuple[Stage, Stage]) -> tuple[str, str]:
    return pair[0].name, pair[1].name


@given(
    plans(),
    randoms,
    st.integers(0, 60),
    st.lists(st.integers(1, 100), max_size=3, unique=True).map(sorted),
)
def test_everything_gets_through_and_nothing_waits_in_the_end(
    plan: Plan, random: Random, count: int, ends: list[int]
) -> None:
    Work(plan, random, count).run(iter(ends[: len(plan.gives) - 1]))
