"""Fair shares of one limit: a flood and a small sender, through a sidecar to the embedded broker."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, sends, stored
from harness.sidecar import Sluice, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.long]

_RATE = 100
# So slow that on any machine an answer comes before the next permit.
_SLOW_RATE = 10
_AT_ONCE = 50
# One of the small sender's for every three of the flood's: a quarter of the limit, where its share is half.
_FLOOD_FOR_ONE = 3

_RULES = f"""
[[limits]]
kind = "topic"
name = "by-group"
rate = {_RATE}
break_s = 0
fair_by = "producer_group"

[[limits]]
kind = "topic"
name = "by-client"
rate = {_RATE}
break_s = 0
fair_by = "client"

[[limits]]
kind = "topic"
name = "first-come"
rate = {_SLOW_RATE}
break_s = 0
"""


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    with start_sluice(routes=(broker.route(),), config=_RULES) as sluice:
        yield sluice


@pytest.fixture
def connect(sidecar: Sluice) -> Iterator[Callable[[str], FrameClient]]:
    with ExitStack() as connections:
        yield lambda source: connections.enter_context(FrameClient(sidecar.routes[0].listen, source=source))


class _Flood:
    def __init__(self, client: FrameClient, topic: str, group: str) -> None:
        self._client, self._topic, self._group = client, topic, group
        self.stored = self.refused = 0

    def goes_on(self, until_stored: int) -> None:
        while self.stored < until_stored:
            answers = self._client.ask(*sends(_AT_ONCE, self._topic, group=self._group))
            self.stored += stored(answers)
            self.refused += len(refused(answers))


@pytest.mark.parametrize(
    ("topic", "small_group", "small_source"),
    [
        pytest.param("by-group", "small", "127.0.0.1", id="producer group"),
        pytest.param("by-client", "flood", "127.0.0.2", id="client"),
    ],
)
def test_flood_costs_a_small_one_nothing_of_its_share(
    connect: Callable[[str], FrameClient],
    sidecar: Sluice,
    broker: EmbeddedBroker,
    *,
    topic: str,
    small_group: str,
    small_source: str,
) -> None:
    begun_s = time.monotonic()
    flood, small = _Flood(connect("127.0.0.1"), topic, "flood"), connect(small_source)
    # The flood has spent the burst, and a new share starts empty. It fills up next.
    assert stored(small.ask(send(topic, group=small_group))) == 1
    flood.goes_on(_RATE + 100)

    answers = []
    for _ in range(60):
        flood.goes_on(flood.stored + _FLOOD_FOR_ONE)
        answers += small.ask(send(topic, group=small_group))

    assert stored(answers) == 60
    assert flood.refused > 0
    all_stored = 1 + flood.stored + 60
    # Each of the two shares and the pool may end in the debt of one message.
    assert all_stored == broker.stored(topic) <= _RATE * (time.monotonic() - begun_s) + _RATE + 3
    shares = sidecar.explain(kind="topic", name=topic)["limits"][0]["state"]["shares"]
    assert {share["key"] for share in shares} == (
        {"flood", "small"} if topic == "by-group" else {"127.0.0.1", "127.0.0.2"}
    )


def test_without_shares_a_flood_takes_all(connect: Callable[[str], FrameClient]) -> None:
    flood, small = _Flood(connect("127.0.0.1"), "first-come", "flood"), connect("127.0.0.2")
    flood.goes_on(_SLOW_RATE + 5)

    answers = []
    for _ in range(10):
        flood.goes_on(flood.stored + _FLOOD_FOR_ONE)
        answers += small.ask(send("first-come", group="small"))

    assert len(refused(answers)) > 0
