"""The compiled extension serves an AMQP 0.9.1 connection as the session does with the same bytes."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from random import Random
from unittest.mock import patch

import pytest
import sluice_native
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver
from hypothesis import given
from hypothesis import strategies as st
from live_states import states_of
from msgspec.structs import replace

from limiter.counting.accounts import Accounts
from limiter.deciding import limits as limits_module
from limiter.deciding.limits import Limits
from limiter.rules.rule import NS_PER_S, Rule
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import Batch, Side
from proxy.deciding.counting import Tally
from proxy.deciding.judge import Judge
from proxy.deciding.pipeline import HandlerConfig, HandlerServices, Pipeline
from proxy.deciding.rate_limit import PLUGIN, RateLimit, RateLimitOptions
from proxy.protocols.amqp091 import session as session_module
from proxy.protocols.base import Close

RULES = (
    Rule("queue", "*", 4),
    Rule("queue", "a", 1),
    Rule("queue", "b", 8, action="delay"),
    Rule("queue", "c", 4, action="shadow"),
    Rule("queue", "*", None, bytes_per_s=900),
    Rule("exchange", "*", 5),
    Rule("exchange", "e", 2, bytes_per_s=500),
    Rule("exchange", "f", None, exempt=True),
    Rule("exchange", "*", 6, shared=True),
    Rule("routing_key", "*", 2),
    Rule("routing_key", "e/*", 3),
    Rule("routing_key", "f/b", None, bytes_per_s=300),
    Rule("routing_key", "e/a", 3, action="delay"),
    Rule("client", "*", 9),
    Rule("user", "guest", 7),
    Rule("delivery", "q", 3),
)
KINDS = ("queue", "exchange", "routing_key", "delivery")
CHANNELS, CONFIRMS = range(1, 6), (1, 2, 3)
Step = Callable[["Served"], None]


class Served(Driver):
    """A session with its own limiter, lent whenever possible if it ``lends``."""

    def __init__(self, rules: Sequence[Rule], exempt: bool = False, *, lends: bool = True) -> None:  # noqa: FBT001, FBT002 - a case
        self.made_of = rules, exempt
        self.accounts, self.lends = Accounts(), False
        with patch.object(limits_module, "COMPILED", sluice_native if lends else None):
            self.limiter = Limits(rule_set(rules, 1), 100, self.accounts)
        self.tally = Tally(self.accounts)
        services = HandlerServices(self.limiter, lambda: self.now_ns)
        pipeline = Pipeline([HandlerConfig(PLUGIN, RateLimitOptions(), "inline")], services)
        assert isinstance(pipeline.only, RateLimit)
        self.handler = pipeline.only
        super().__init__(resources=self.limiter.resources, exempt=exempt)
        self.counters, self.info = self.session._context.counters, self.session._context.connection
        self.sender = self.accounts.sender(self.info.address)
        if self.limiter.resources is not None:
            self.judge = Judge(pipeline, self.handler, self.tally, self.limiter.resources, self.info, self.sender)
        self.number: int | None = None
        self.served_bytes = 0
        self.closed = ""
        # The history: steps, and bytes of a side in the parts in which they were read.
        self.past: list[Step | tuple[Side, bytes]] = []
        self.turn = sluice_native.Turn(lambda: self.now_ns, self.accounts.moment, self._failed)
        self.sockets = {side: socket.socketpair() for side in Side}
        for each in (each for pair in self.sockets.values() for each in pair):
            each.setblocking(False)
        self._know_kinds()
        self.open(CHANNELS, confirms=CONFIRMS)
        self.lends = lends

    def close(self) -> None:
        self.recall()
        self.session.close()
        for each in (each for pair in self.sockets.values() for each in pair):
            each.close()

    def _failed(self, number: int, error: Exception) -> None:
        self.failures.append(error)

    def pass_time(self, later_ns: int) -> None:
        self.now_ns += later_ns

    def _know_kinds(self) -> None:
        self.limits.clear()
        self.limits.update(kind for kind in KINDS if self.limiter.rule_set.limits_kind(kind))

    def swap(self, rules: Sequence[Rule], version: int) -> None:
        self.limiter.swap(rule_set(rules, version), self.now_ns)
        self._know_kinds()

    def _decide(self, batch: Batch) -> None:
        self.requests += batch.requests
        batch.add_verdicts(self.handler.on_requests(batch, self.now_ns))
        if batch.connection is not self.info:
            self.info = batch.connection
            self.sender = self.accounts.sender(self.info.address, self.session.language, "guest", self.session.product)
        self.tally.count(batch, self.now_ns, self.sender)
        self.session.decided(batch, self.now_ns)
        self.take()

    def do(self, step: Step) -> None:
        """Apply a step other than a peer's bytes."""
        self.past.append(step)
        step(self)

    def give(self, side: Side, data: bytes, random: Random | None = None, longest: int = 1 << 20) -> None:
        if not self.lends:
            super().give(side, data, random, longest)
            return
        self.past.append((side, data))
        was_lent = self.number is not None
        if self._lent(side, data):
            self._serve(side, data, goes_along=not was_lent)
        else:
            super().give(side, data)
            self._lent()

    def _lent(self, side: Side = Side.CLIENT, data: bytes = b"") -> bool:
        """Lend it, if possible, with unread bytes of a peer."""
        if self.number is None and not any(self.unread.values()) and not any(map(self.must_wait, Side)):
            self.judge.connection, self.judge.sender = self.info, self.sender
            lent = self.session.lend(self.judge)
            if lent is not None:
                client, broker = (self.sockets[side][0].fileno() for side in Side)
                unread = (data, b"") if side is Side.CLIENT else (b"", data)
                self.number = self.turn.lend(client, broker, lent, ends_here=False, unread=unread)
        return self.number is not None

    def _serve(self, side: Side, data: bytes, *, goes_along: bool) -> None:
        if not goes_along:
            self.sockets[side][1].sendall(data)
        self.served_bytes += len(data)
        _, events, frames, _, _, round_trips = self.turn.serve(NS_PER_S)
        for each, count in zip(Side, frames, strict=True):
            self.counters.frames[each] += count
            self.written[each] += received(self.sockets[each][1])
        ((answers, *_, waiting),) = self.turn.take_signals()
        self.session._context.signals.answers += answers
        assert waiting == self.session.unanswered()
        for took_ns in round_trips:
            self.counters.round_trip.observe(took_ns)
        if events:
            self.recall()

    def recall(self) -> None:
        """Take it back, and let the session read the unhandled bytes."""
        if self.number is None:
            return
        requests, refused, *_ = self.turn.take_counts(self.number)
        self.session.count_lent(requests, refused)
        state, begun, unread, unwritten, _ = self.turn.take(self.number)
        self.number = None
        assert not any(unwritten)
        self.session.returned(state)
        self.take()
        for side, data in zip(Side, map(bytes.__add__, begun, unread), strict=True):
            self.served_bytes -= len(data)
            if data:
                self._come_later(side, data)
                super().give(side, data)
        if self.lends:
            self._lent()

    def _come_later(self, side: Side, data: bytes) -> None:
        """Record that the session reads the last bytes of a side only now."""
        left = len(data)
        for index in reversed(range(len(self.past))):
            step = self.past[index]
            if left and not callable(step) and step[0] is side:
                at = max(0, len(step[1]) - left)
                left -= len(step[1]) - at
                self.past[index] = side, step[1][:at]
        self.past.append((side, data))

    def again(self) -> "Served":
        """Return a session that has read the same alone."""
        other = Served(*self.made_of, lends=False)
        try:
            for step in self.past:
                if callable(step):
                    step(other)
                elif step[1]:
                    other.give(*step)
        except Close as close:
            other.closed = str(close)
        return other

    def comes_to(self) -> dict[str, object]:
        """Return the written bytes, and the visible state of the session, of limits and of accounts."""
        session, timed = self.session, self.session._timed
        # The visible names depend on the reader.
        described = replace(session.describe(0), resources=(), more_resources=0)
        return {
            "closed": self.closed,
            "written": {side: frames.by_channel(bytes(written)) for side, written in self.written.items()},
            "session": (session.in_flight(), session.unanswered(), described, session._heard, session._written),
            "signals": (session._context.signals.answers, session._context.signals.blocked),
            "frames": self.counters.frames,
            "round_trip": self.counters.round_trip.durations(),
            "timed": timed and (timed[0].number, *timed[1:]),
            "states": {(state.resource, state.rule): state for state in states_of(self.limiter, self.now_ns)},
            "counts": dict(filter(None, self.accounts.each())),
            "usages": dict(self.limiter.usages(self.now_ns)),
            "rules": self.accounts.rules,
            "seconds": [list(span.steps(100, set())) for span in self.accounts.take(self.now_ns, unfinished=True)],
        }


def received(own: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            data += own.recv(1 << 20)
        except BlockingIOError:
            return data


def rule_set(rules: Sequence[Rule], version: int) -> RuleSet:
    return RuleSet({rule.key: rule for rule in reversed(rules)}.values(), True, version)


def of_client(random: Random) -> list[bytes]:
    """Return frames of one channel that belong together."""
    channel, kind = random.choice((*CONFIRMS, *CHANNELS)), random.random()
    if kind < 0.8:
        exchange, key = random.choice(("", "", "e", "f")), random.choice("abcd")
        more = {"headers": {random.choice(("x", "CC")): ["b"]}} if kind < 0.05 else {}
        return frames.publish(channel, exchange, key, bytes(random.choice((0, 3, 300))), body_bytes=100, **more)
    if kind < 0.85:
        return [random.choice((frames.declare(channel, "q"), frames.get(channel, "q"), frames.recover(channel)))]
    if kind < 0.9:
        return [frames.frame(8, 0, b"")]
    tag = random.randrange(9)
    return [random.choice((frames.ack(channel, tag, multiple=tag > 4), frames.reject(channel, tag, requeue=True)))]


def of_broker(random: Random) -> list[bytes]:
    channel, kind = random.choice(CHANNELS), random.random()
    if kind < 0.5:
        make = random.choice((frames.ack, frames.ack, frames.ack, frames.nack))
        return [make(random.choice(CONFIRMS), random.randrange(30), multiple=random.random() < 0.5)]
    if kind < 0.8:
        body = bytes(random.choice((0, 3, 2000)))
        return random.choice((frames.deliver(channel, random.randrange(99), body), frames.returned(channel, body)))
    if kind < 0.9:
        return [frames.frame(8, 0, b"")]
    return random.choice(([frames.consume_ok(channel, "c")], frames.got(channel, b"body"), [frames.blocked("")]))


def publish(body: int, key: str = "b", channel: int = 1) -> bytes:
    return b"".join(frames.publish(channel, "", key, bytes(body)))


@pytest.fixture
def served() -> Iterator[Served]:
    """A connection that was lent behind its first publish. Publishes to queue a are refused."""
    rules = Rule("queue", "a", 0), Rule("queue", "*", 1e6)
    with patch.object(session_module, "_FEW_READS", 0), closing(Served(rules)) as served:
        served.give(CLIENT, publish(3))
        served.give(BROKER, frames.ack(1, 1))
        assert served.number is not None
        yield served.forget()


def test_publishes_confirms_deliveries_and_acks_need_no_session(served: Served) -> None:
    to_broker = publish(1024) + frames.ack(2, 1) + frames.reject(3, 7, requeue=True) + publish(0, channel=4)
    to_client = frames.ack(1, 2) + b"".join(frames.deliver(2, 1, b"body")) + frames.frame(8, 0, b"")
    with patch.object(served.session, "receive", None):
        for cut in range(0, len(to_broker), 50):
            served.give(CLIENT, to_broker[cut : cut + 50])
        for cut in range(0, len(to_client), 50):
            served.give(BROKER, to_client[cut : cut + 50])
    served.recall()
    assert (served.written[BROKER], served.written[CLIENT]) == (to_broker, to_client)
    assert served.session.in_flight() == 0
    assert sum(served.counters.round_trip.durations().counts) == 2


def test_the_rest_of_a_refused_publish_is_for_the_session(served: Served) -> None:
    refused, passes = publish(500, "a"), publish(10)
    served.give(CLIENT, publish(9) + refused[:200])
    assert served.number is None
    assert served.written[CLIENT] == frames.nack(1, 3)
    served.give(CLIENT, refused[200:])
    assert served.number is not None
    served.give(CLIENT, passes)
    served.give(BROKER, frames.ack(1, 2) + frames.ack(1, 3))
    served.recall()
    assert served.written[BROKER] == publish(9) + passes
    assert [frame.tag for frame in frames.read(bytes(served.written[CLIENT]))] == [3, 2, 4]


def test_a_refusal_waits_for_the_end_of_the_brokers_frame(served: Served) -> None:
    delivery = b"".join(frames.deliver(2, 1, bytes(500)))
    served.give(BROKER, delivery[:300])
    served.give(CLIENT, publish(9, "a"))
    assert served.written[CLIENT] == delivery[:300]
    served.give(BROKER, delivery[300:])
    assert served.written[CLIENT] == delivery + frames.nack(1, 2)


def test_a_delivery_on_a_channel_that_is_not_open_passes(served: Served) -> None:
    delivery = b"".join(frames.deliver(9, 1, bytes(500)))
    served.give(BROKER, delivery[:300])
    served.recall()
    served.give(BROKER, delivery[300:])
    assert served.written[CLIENT] == delivery


def test_routing_keys_are_shown() -> None:
    with patch.object(session_module, "_FEW_READS", 0), closing(Served([Rule("routing_key", "*", 1000)])) as served:
        served.give(CLIENT, publish(3))
        assert served.number is not None
        served.give(CLIENT, b"".join(frames.publish(1, "e", "a", b"x")))
        assert "routing_key:e/a" in served.session.describe(0).resources


def test_a_publish_spends_of_its_exchange_and_its_routing_key_or_of_neither() -> None:
    rules = [Rule("exchange", "e", 100, break_s=0), Rule("routing_key", "e/a", 1, break_s=0)]
    with patch.object(session_module, "_FEW_READS", 0), closing(Served(rules)) as served:
        served.give(CLIENT, publish(3))
        served.forget()
        assert served.number is not None
        sent = [b"".join(frames.publish(1, "e", key, b"x")) for key in "aaab"]
        served.give(CLIENT, b"".join(sent))
        served.recall()
        assert served.written[BROKER] == sent[0] + sent[3]
        (spent,) = (state for state in states_of(served.limiter, 0) if state.resource.name == "e")
        assert spent.stored_permits == 98


@pytest.mark.parametrize("rate", [1e6, 0])
def test_a_read_has_bounded_decisions(rate: float) -> None:
    with patch.object(session_module, "_FEW_READS", 0), closing(Served([Rule("queue", "*", rate)])) as served:
        # Clients that publish are known from their first publish on.
        served.give(CLIENT, publish(3))
        assert served.number is not None
        served.sockets[CLIENT][1].sendall(b"".join(publish(0, str(number % 1000)) for number in range(4500)))
        is_idle, events, read, *_ = served.turn.serve(1)
        # Another connection has its turn. The rest of the chunk is read later.
        assert (is_idle, events) == (False, [])
        assert 0 < read[0] < 9000
        rest = served.turn.serve(NS_PER_S)[2]
        assert read[0] + rest[0] == 9000


def test_a_busy_broker_does_not_keep_its_client_from_being_read(served: Served) -> None:
    served.sockets[CLIENT][1].sendall(publish(3))
    for _ in range(4):
        served.sockets[BROKER][1].sendall(frames.HEARTBEAT)
        served.turn.serve(1)
    assert received(served.sockets[BROKER][1]) == publish(3)


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.long) for part in range(10)])
def test_compiled_and_python_agree_for_many_connections(part: int) -> None:
    for seed in range(10_000 * part, 10_000 * (part + 1)):
        random = Random(seed)
        check(random.sample(RULES, random.randrange(7)), random, exempt=random.random() < 0.1)


@given(st.lists(st.sampled_from(RULES), max_size=6), st.booleans(), st.integers(0, 2**32))
def test_compiled_and_python_agree(rules: list[Rule], exempt: bool, seed: int) -> None:  # noqa: FBT001 - drawn
    check(rules, Random(seed), exempt=exempt)


@patch.object(session_module, "_FEW_READS", 0)
def check(rules: list[Rule], random: Random, *, exempt: bool = False) -> int:
    """Apply random events. Return the number of bytes served by the compiled extension."""
    with closing(Served(rules, exempt)) as served:
        try:
            happen(served, random)
        except Close as close:
            served.closed = str(close)
        count = served.served_bytes
        served.lends = False
        served.recall()
        with closing(served.again()) as again:
            assert served.comes_to() == again.comes_to()
    return count


def happen(served: Served, random: Random) -> None:
    left = dict.fromkeys(Side, b"")
    for version in range(2, 2 + random.randrange(1, 12)):
        side = random.choice(list(Side))
        make = of_client if side is CLIENT else of_broker
        left[side] += frames.mixed(random, (make(random) for _ in range(random.randrange(6))))
        size = random.choice((len(left[side]), random.randint(0, len(left[side]))))
        data, left[side] = left[side][:size], left[side][size:]
        if data:
            served.give(side, data)
        if served.session._publishes.waiting or served.session._answers.waiting:
            # Waiting publishes are not resolved here.
            break
        happens = random.random()
        if happens < 0.1:
            served.recall()
        elif happens < 0.5:
            later_ns = random.choice((1_000_000, NS_PER_S // 2, 10 * NS_PER_S))
            served.do(lambda which, later_ns=later_ns: which.pass_time(later_ns))
        elif happens < 0.55:
            swapped = random.sample(RULES, 3)
            served.do(lambda which, swapped=swapped, version=version: which.swap(swapped, version))
