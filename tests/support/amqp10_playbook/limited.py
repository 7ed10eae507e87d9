"""A session between model peers with real limits and counts, by Python alone or lent to the compiled extension."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast

from limiter.counting.accounts import Accounts
from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import Batch, ConnectionInfo, Hold, Later, Request, Side, Ticket
from proxy.deciding.counting import Tally
from proxy.deciding.judge import Judge
from proxy.deciding.pipeline import HandlerServices
from proxy.deciding.rate_limit import RateLimit, RateLimitOptions, caller_of
from proxy.protocols.amqp10 import wire
from proxy.protocols.base import NO_TERMS, Terms
from proxy.stats.timing import Histogram

from .driver import BROKER, CLIENT, Driver

if TYPE_CHECKING:
    from sluice_native import Lent

SIDES = tuple(Side)


class Limited(Driver):
    """One session under real limits.

    ``lent``: it is lent after each chunk that the session has read, if possible.
    """

    def __init__(self, rules: Sequence[Rule], *, lent: bool) -> None:
        self.accounts = Accounts()
        self.real = Limits(RuleSet(tuple(rules)), accounts=self.accounts)
        self.handler = RateLimit(RateLimitOptions(), HandlerServices(self.real, lambda: self.now_ns))
        self.tally = Tally(self.accounts)
        self.processing = Histogram()
        self.lends = lent
        self.served = 0  # chunks read by the compiled extension
        kinds = {rule.kind for rule in rules}
        super().__init__(limits=tuple(kinds), tightest=self.real.tightest(kinds))
        self.lent: Lent | None = None
        self.kept = dict.fromkeys(Side, b"")
        self.judge: Judge | None = None
        self.sender = self.accounts.sender("192.0.2.1")

    def _terms(self, connection: ConnectionInfo, resources: tuple[Resource, ...], consumes: bool) -> Terms:  # noqa: FBT001
        if connection.exempt:
            return NO_TERMS
        return self.real.terms(resources, caller_of(connection, consumes=consumes))

    def swap(self, rules: Sequence[Rule]) -> None:
        self.real.swap(RuleSet(tuple(rules)), self.now_ns)
        self.version = self.real.swaps

    def _decide(self, batch: Batch) -> None:
        if self.judge is None:
            resources = self.real.resources
            assert resources is not None
            self.judge = Judge(cast("Any", None), self.handler, self.tally, resources, batch.connection, self.sender)
        self.judge.connection = batch.connection
        batch.add_verdicts(self.handler.on_requests(batch, self.now_ns))
        self.tally.count(batch, self.now_ns, self.sender)
        verdicts = [(request, batch.verdicts.get(index)) for index, request in enumerate(batch.requests)]
        waiting = [(request, verdict.ticket) for request, verdict in verdicts if isinstance(verdict, Hold)]
        self.session.decided(batch, self.now_ns)
        for request, ticket in waiting:
            self.held[id(request)] = request, ticket
            ticket.attach(partial(self._resolved, request))
        later = sum(isinstance(verdict, Later) for verdict in batch.verdicts.values())
        self.processing.observe(0, len(batch.requests) - len(waiting) - later)

    def _resolved(self, request: Request, ticket: Ticket) -> None:
        self.held.pop(id(request), None)
        self.recall()
        self.tally.resolved(request, ticket.shadow, self.now_ns, self.sender)
        self.session.resolved(request, None, self.now_ns)
        self.take()

    def tick(self) -> None:
        self.recall()
        self.handler.holding.release(self.now_ns)
        super().tick()

    def _receive(self, side: Side, chunk: bytes) -> int:
        # The beginning of a frame is read again, as by the compiled extension.
        chunk, self.kept[side] = self.session._streams[side].take_back() + self.kept[side] + chunk, b""
        left_bytes = 0
        if self.lent is not None:
            chunk = self._feed(self.lent, side, chunk)
        if chunk:
            left_bytes = super()._receive(side, chunk)
        if self.woken and not self.closed:
            # Like a connection in its next turn.
            super().tick()
        may_be_lent = self.lent is None and not (left_bytes or self.closed or any(self.kept.values()))
        if self.lends and self.judge is not None and may_be_lent:
            self.lent = self.session.lend(self.judge)
            if self.lent is not None:
                self.kept = dict(zip(SIDES, self.lent.take_kept(), strict=True))
        return left_bytes

    def _feed(self, lent: "Lent", side: Side, chunk: bytes) -> bytes:
        """Let the compiled extension read a chunk. Return the rest for the session."""
        self.served += 1
        second, clock = self.accounts.at(self.now_ns), lambda: self.now_ns
        said, stop, leaves, frames, processing, round_trips, (answers, busy) = lent.feed(
            SIDES.index(side), chunk, self.now_ns, clock, second
        )
        for each, count, pieces in zip(SIDES, frames, said, strict=True):
            self.counters.frames[each] += count
            for piece in pieces:
                data = piece if isinstance(piece, bytes) else chunk[slice(*piece)]
                self.written[each] += data
                self.total[each] += data
        self.signals.answers += answers
        self.signals.busy += busy
        for took_ns, requests in processing:
            self.processing.observe(took_ns, requests)
        for took_ns in round_trips:
            self.counters.round_trip.observe(took_ns)
        if leaves:
            self.recall()
            return chunk[stop:]
        self.kept[side] = chunk[stop:]
        return b""

    def recall(self) -> None:
        if self.lent is None:
            return
        lent, self.lent = self.lent, None
        self.session.count_lent(*lent.take_counts())
        self.session.returned(lent.give_back())
        self.take()

    def figures(self) -> dict[str, Any]:
        """Return all counts, and the bytes sent to both peers."""
        self.recall()
        rows = {str(each[0]): each[1] for each in filter(None, self.accounts.each())}
        usage = {str(each): self.real.used(each, self.now_ns) for each in self.accounts.spent()}
        return {
            "sent": {side.value: bytes(data) for side, data in self.total.items()},
            "rows": rows,
            "usage": usage,
            "limits": sorted(filter(None, self.real.each_state(self.now_ns)), key=str),
            "rules": self.accounts.rules,
            "frames": self.counters.frames,
            "round trips": self.counters.round_trip.durations(),
            "processing": self.processing.durations(),
            "links": self.session.describe(self.now_ns),
            "in flight": self.session.in_flight(),
            "signals": (self.signals.answers, self.signals.busy, self.session.unanswered()),
            "closed": self.reason,
        }


class Cutter:
    """Cuts a peer's bytes behind flows that are not the last frame: requested together, links get other credit.

    ``each``: behind each flow.
    """

    def __init__(self, *, each: bool = False) -> None:
        self._rest = b""
        self._each = each

    def cut(self, data: bytes) -> list[bytes]:
        parts, begin, at = [], 0, -len(self._rest)
        whole = self._rest + data
        offset = len(self._rest)
        flowed = False
        while len(whole) - (at + offset) >= wire.HEADER_BYTES:
            start = at + offset
            if whole[start : start + 4] == b"AMQP":
                at += wire.HEADER_BYTES
                continue
            size = int.from_bytes(whole[start : start + 4])
            is_flow = whole[start + 8 : start + 11] == b"\0\x53\x13"
            if flowed and (self._each or not is_flow) and at > begin:
                parts.append(data[begin:at])
                begin = at
            flowed = is_flow
            if start + size > len(whole):
                break
            at += max(wire.HEADER_BYTES, size)
        self._rest = whole[at + offset :]
        return [*parts, data[begin:]]


class BetweenLimited:
    """As ``Between``, with real limits, and random changes between ``rule_sets``."""

    def __init__(self, *rule_sets: Sequence[Rule], lent: bool) -> None:
        self._rule_sets = rule_sets
        self.driver = Limited(rule_sets[0], lent=lent)
        self._cutters = {side: Cutter() for side in Side}

    def give(self, from_client: bool, data: bytes, random: Random) -> None:  # noqa: FBT001 - as Relay has it
        side = CLIENT if from_client else BROKER
        for part in self._cutters[side].cut(data):
            self.driver.give(side, part, random, longest=1 << 16)
        assert self.driver.closed is None, self.driver.closed

    def take(self, to_client: bool) -> bytes:  # noqa: FBT001 - likewise
        written = self.driver.written[CLIENT if to_client else BROKER]
        data = bytes(written)
        written.clear()
        return data

    def step(self, random: Random) -> None:
        self.driver.now_ns += random.choice([0, 0, 1_000_000, 500_000_000, 2_000_000_000])
        if random.random() < 0.1:
            self.driver.swap(random.choice(self._rule_sets))
        self.driver.tick()

    def rest(self) -> None:
        for _ in range(1000):
            self.driver.now_ns += 1_000_000_000
            self.driver.tick()
            if not self.driver.held:
                return
