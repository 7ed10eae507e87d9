"""The model peers follow the protocol, detect violations, and see no other effects of a session in between."""

import os
from collections.abc import Callable
from random import Random

import pytest
from amqp10_playbook.between import Between
from amqp10_playbook.driver import REFUSED, SHAPED
from amqp10_playbook.peers import Peer, RuleBrokenError, Session
from amqp10_playbook.trial import Addresses, Direct, Trial

from limiter.rules.resource import Resource
from proxy.protocols.base import Terms

FACTOR = max(1, int(os.environ.get("FUZZ_FACTOR", "1")))
# Queues of all sorts, and their rules.
QUEUES = {
    "free": Terms(),
    "shaped": SHAPED,
    "refused": REFUSED,
    "both": Terms(delays=True, refuses=True),
    "bytes": Terms(delays=True, max_bytes=1000),
}


def busy(detail: str) -> bool:
    return "SYSTEM_BUSY" in detail


def with_seeds(run: Callable[[int], object], first: int, count: int) -> None:
    """Run several seeds. An error names the seed."""
    for seed in range(first, first + count):
        try:
            run(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_two_peers_without_anything_between() -> None:
    def run(seed: int) -> None:
        trial = Trial(seed, Direct(), closes=seed % 3 == 0).run()
        assert seed % 3 == 0 or sum(trial.outcomes.values()) > 0

    with_seeds(run, 0, 40)


def test_two_peers_with_a_session_between_that_limits_nothing() -> None:
    with_seeds(lambda seed: Trial(seed, Between(seed, {}), closes=seed % 3 == 0).run(), 0, 30)


@pytest.mark.parametrize("block", range(4))
def test_neither_peer_sees_a_rule_broken(block: int) -> None:
    """Queues of all sorts, changing rules, and links and sessions that come and go."""

    def run(seed: int) -> None:
        random = Random(seed)
        closes = random.random() < 0.3
        terms = {Resource("queue", name): each for name, each in QUEUES.items()}
        terms |= {Resource("delivery", "shaped"): SHAPED, Resource("delivery", "free"): Terms()}
        refusals = random.choice([0.0, 0.1, 0.5, 1.0])
        between = Between(seed, terms, changes=random.random() < 0.3, refusals=refusals)
        trial = Trial(seed, between, addresses=Addresses.of(*QUEUES), refused=busy, closes=closes).run(600)
        said = between.driver.session.describe(0).refused
        assert trial.refused <= said
        # An aborted one may have been refused before.
        assert closes or said <= trial.refused + trial.outcomes.get("aborted", 0)

    with_seeds(run, block * 1_000_000, 6 * FACTOR)


def test_charges_equal_the_received_messages() -> None:
    terms = {Resource("queue", name): each for name, each in QUEUES.items()}

    def run(seed: int) -> None:
        between = Between(seed, terms, refusals=0.0)
        # A link that fills the window in tiny frames before its address is known is refused.
        trial = Trial(seed, between, addresses=Addresses.of(*QUEUES), aborts=False, refused=busy).run(600)
        between.driver.tick()
        for name in ("shaped", "both", "bytes"):
            assert between.charged(Resource("queue", name)) == trial.sent_to(name), name

    with_seeds(run, 0, 12 * FACTOR)


def connected() -> tuple[Peer, Peer, Session]:
    """Return a client, a broker, and the client's session, with a link that has a credit of one."""
    client, broker = Peer("client"), Peer("broker")
    client.start()
    exchange(client, broker)
    session = client.begin(0, 10)
    exchange(client, broker)
    client.attach(session, "l", 0, sends=True, address="/queues/q")
    exchange(client, broker)
    (theirs,) = broker.sessions.values()
    broker.grant(theirs, theirs.links[3], 1)
    exchange(client, broker)
    return client, broker, session


def exchange(client: Peer, broker: Peer) -> None:
    for _ in range(6):
        for one, other in ((client, broker), (broker, client)):
            said, one.out = bytes(one.out), bytearray()
            other.take(said)


@pytest.mark.parametrize(
    ("channel", "name", "fields"),
    [
        (0, "transfer", {"handle": 1, "delivery_id": 9, "delivery_tag": b"t"}),
        (1, "transfer", {"handle": 0, "delivery_id": 9, "delivery_tag": b"t"}),
        (0, "transfer", {"handle": 0}),
        (0, "attach", {"name": "other", "handle": 0, "role": False, "initial_delivery_count": 0}),
        (0, "begin", {"next_outgoing_id": 0, "incoming_window": 1, "outgoing_window": 1}),
        (0, "detach", {"handle": 1}),
        (0, "open", {"container_id": "c"}),
        (0, "flow", {"incoming_window": 1, "next_outgoing_id": 5, "outgoing_window": 1}),
        (0, "disposition", {"role": True, "first": 5, "settled": True}),
    ],
)
def test_protocol_violations_are_noticed(channel: int, name: str, fields: dict[str, object]) -> None:
    client, broker, _ = connected()
    client.say(channel, name, **fields)
    with pytest.raises(RuleBrokenError):
        exchange(client, broker)


@pytest.mark.parametrize("broken", ["number", "credit"])
def test_numbers_and_credit_are_held_to(broken: str) -> None:
    client, broker, session = connected()
    number = session.delivery_id
    client.say(0, "transfer", b"x", handle=0, delivery_id=number, delivery_tag=b"1", settled=True)
    session.outgoing_id = (session.outgoing_id + 1) % (1 << 32)
    exchange(client, broker)
    following = (number + (2 if broken == "number" else 1)) % (1 << 32)
    client.say(0, "transfer", b"x", handle=0, delivery_id=following, delivery_tag=b"2", settled=True)
    with pytest.raises(RuleBrokenError, match="is not" if broken == "number" else "beyond the credit"):
        exchange(client, broker)
