"""What the compiled part reads and decides comes to what Python reads and decides."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from unittest.mock import patch

import pytest
import sluice_native
from amqp_playbook import frames
from amqp_playbook.driver import BROKER, CLIENT, Driver
from hypothesis import given
from hypothesis import strategies as st
from live_states import states_of

from limiter.counting.accounts import Accounts
from limiter.deciding import limits as limits_module
from limiter.deciding.limits import Limits
from limiter.rules.rule import NS_PER_S, Rule
from limiter.rules.rule_set import RuleSet
from proxy.deciding.batch import Batch
from proxy.deciding.counting import Tally
from proxy.deciding.pipeline import HandlerServices
from proxy.deciding.rate_limit import RateLimit, RateLimitOptions

RULES = (
    Rule("queue", "*", 3),
    Rule("queue", "a", 1),
    Rule("queue", "b", 2, action="delay"),
    Rule("queue", "c", 1, action="shadow"),
    Rule("queue", "*", None, bytes_per_s=900),
    Rule("exchange", "*", 3),
    Rule("exchange", "e", 2, bytes_per_s=500),
    Rule("exchange", "f", None, exempt=True),
    Rule("routing_key", "*", 2),
    Rule("routing_key", "e/a", 1, action="delay"),
    Rule("client", "*", 7),
)
CHANNELS, CONFIRMS = range(1, 7), (1, 2, 3)


class Way(Driver):
    """A session with a limiter of its own."""

    def __init__(self, rules: Sequence[Rule], *, compiled: bool) -> None:
        self.accounts = Accounts()
        with patch.object(limits_module, "COMPILED", sluice_native if compiled else None):
            chosen = {rule.key: rule for rule in reversed(rules)}.values()
            self.limiter = Limits(RuleSet(chosen, True, 1), 100, self.accounts)
        self.tally = Tally(self.accounts)
        self.handler = RateLimit(RateLimitOptions(), HandlerServices(self.limiter, lambda: 0))
        self.scanned = 0
        with patch.object(Driver, "scans", compiled):
            super().__init__(limits=("routing_key",), resources=self.limiter.resources)
        self.open(CHANNELS, confirms=CONFIRMS)

    def _decide(self, batch: Batch) -> None:
        self.scanned += getattr(batch.requests, "scanned", 0)
        batch.add_verdicts(self.handler.on_requests(batch, self.now_ns))
        self.tally.count(batch, self.now_ns, self.accounts.sender(batch.connection.address))
        self.session.decided(batch, self.now_ns)
        self.take()

    def all_of_it(self) -> dict[str, object]:
        """Return what was written, and all that can be seen of limits and accounts."""
        said = Counter(frames.read(bytes(self.written[CLIENT])))
        return {
            "to broker": bytes(self.written[BROKER]),
            "to client": said,
            "waiting": (self.session.in_flight(), self.session.paused(CLIENT)),
            "states": {(state.resource, state.rule): state for state in states_of(self.limiter, self.now_ns)},
            "counts": dict(filter(None, self.accounts.each())),
            "rules": self.accounts.rules,
        }


def chunk_of(random: Random) -> bytes:
    """Return contents of some channels, frames of each in order."""
    lines = []
    for channel in CHANNELS:
        line: list[bytes] = []
        for _ in range(random.randrange(4)):
            exchange, key = random.choice(("", "", "e", "f")), random.choice("abcd")
            line += frames.publish(channel, exchange, key, bytes(random.choice((0, 3, 300))), body_bytes=100)
        lines.append(line)
    out = []
    while any(lines):
        line = random.choice([line for line in lines if line])
        count = random.choice((1, 1, 2, 9))
        out += line[:count]
        del line[:count]
    return b"".join(out)


@given(st.lists(st.sampled_from(RULES), max_size=6), st.integers(0, 2**32))
def test_what_is_decided_is_the_same(rules: list[Rule], seed: int) -> None:
    random = Random(seed)
    ways = [Way(rules, compiled=compiled) for compiled in (True, False)]
    for _ in range(random.randrange(1, 6)):
        chunk = chunk_of(random)
        later_ns = random.choice((0, 1_000_000, NS_PER_S // 2, 10 * NS_PER_S))
        for way in ways:
            way.now_ns += later_ns
            way.give(CLIENT, chunk)
        compiled, python = (way.all_of_it() for way in ways)
        assert compiled == python
        assert ways[1].scanned == 0
        assert not chunk or ways[0].scanned
        if ways[0].session._publishes.waiting:
            # Channels on which something waits are read frame by frame, which is another order of asking.
            break


@pytest.mark.parametrize("channel", [1, 4])
def test_all_of_a_chunk_is_scanned(channel: int) -> None:
    way = Way([Rule("queue", "*", 1_000_000)], compiled=True)
    data = b"".join(b"".join(frames.publish(channel, "", "orders", b"body")) for _ in range(100))
    way.give(CLIENT, data)
    assert way.scanned == 100
    assert bytes(way.written[BROKER]) == data
