"""Lent AMQP 1.0 connections send and count the same as Python alone."""

import os
import socket
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
import sluice_native
from amqp10_playbook import codec
from amqp10_playbook.codec import say
from amqp10_playbook.driver import BROKER, CLIENT
from amqp10_playbook.limited import BetweenLimited, Limited
from amqp10_playbook.trial import Addresses, Trial

from limiter.rules.rule import NS_PER_S, Rule
from proxy.deciding.batch import Side

FACTOR = max(1, int(os.environ.get("FUZZ_FACTOR", "1")))
HIGH = 1e6
RULES = (
    Rule("queue", "shaped", 50, action="delay"),
    Rule("queue", "refused", 40),
    Rule("queue", "high", HIGH),
    Rule("queue", "plenty", HIGH, action="delay"),
    Rule("queue", "bytes", None, bytes_per_s=2000, action="delay"),
    Rule("delivery", "shaped", 30, action="delay"),
)
SCOPED = (
    Rule("client", "*", 60),
    Rule("queue", "shaped", HIGH),
    Rule("queue", "refused", 20, bytes_per_s=20_000),
    Rule("queue", "plenty", 5, action="shadow"),
    Rule("delivery", "high", HIGH, action="delay"),
)
NAMES = ("free", "shaped", "refused", "high", "plenty", "bytes")


def busy(detail: str) -> bool:
    return "SYSTEM_BUSY" in detail


def converse(seed: int, *, lent: bool) -> tuple[dict[str, Any], int]:
    """Return the results of a random conversation, and the number of chunks read by the compiled extension."""
    between = BetweenLimited(*((RULES,) if seed % 2 else (RULES, SCOPED, ())), lent=lent)
    Trial(seed, between, addresses=Addresses.of(*NAMES), refused=busy, closes=seed % 3 == 0).run(400)
    return between.driver.figures(), between.driver.served


@pytest.mark.parametrize("block", range(4))
def test_random_conversations_are_the_same(block: int) -> None:
    served = 0
    for seed in range(block * 1_000_000, block * 1_000_000 + 6 * FACTOR):
        alone, _ = converse(seed, lent=False)
        lent, chunks = converse(seed, lent=True)
        for what in alone:
            assert lent[what] == alone[what], f"{what} of seed {seed}"
        served += chunks
    assert served > 100 * FACTOR


def opened(*, lent: bool, queue: str = "plenty", rules: tuple[Rule, ...] = RULES) -> Limited:
    """Return a connection with a link with much credit, after its first transfer and disposition."""
    driver = Limited(rules, lent=lent)
    driver.open()
    driver.sends(address=f"/queues/{queue}")
    driver.credit(1000)
    driver.forget()
    for number in range(300):
        exchange(driver, number)
    return driver


def exchange(driver: Limited, first: int, count: int = 1) -> None:
    """Send some transfers and settle each. Most links get more credit at times."""
    transfers = [transfer(number) for number in range(first, first + count)]
    driver.now_ns += 1_000_000
    driver.give(CLIENT, b"".join(transfers))
    settled = {"state": codec.Described(codec.ULong(0x24), []), "settled": True}
    driver.give(BROKER, say(5, "disposition", role=True, first=first, last=first + count - 1, **settled))
    if first % 100 == 0:
        driver.credit(1000, count=first + count, next_incoming_id=10 + first + count, incoming_window=2000)


def transfer(number: int, **fields: Any) -> bytes:
    return say(1, "transfer", codec.message(b"x"), handle=0, delivery_id=number, delivery_tag=b"%d" % number, **fields)


@pytest.mark.parametrize("queue", ["free", "plenty", "high"])
def test_a_transfer_and_its_disposition_need_no_session(queue: str) -> None:
    driver = opened(lent=True, queue=queue)
    assert driver.lent is not None
    total = {side: len(data) for side, data in driver.total.items()}
    calls = counted(driver)
    exchange(driver, 301, count=32)
    # Decided messages take no credit from other links of the client.
    expected = {"Link.admitted": 1, "Unpaid.note_prepaid": 1, "Unpaid.take": 1} if queue == "high" else {}
    assert calls == expected
    assert all(len(data) > total[side] for side, data in driver.total.items())
    assert driver.lent is not None


@pytest.mark.parametrize("queue", ["free", "plenty"])
def test_a_flow_whose_credit_is_in_store_needs_no_session(queue: str) -> None:
    driver = opened(lent=True, queue=queue)
    # Granted credit is used before the receiver gives more.
    for first in range(300, 6000, 50):
        exchange(driver, first, count=50)
    calls, told = counted(driver), len(driver.total[Side.CLIENT])
    exchange(driver, 6000, count=50)
    assert not calls
    assert len(driver.total[Side.CLIENT]) > told
    assert driver.lent is not None


def test_a_link_that_waits_for_credit_costs_the_others_of_its_connection_nothing() -> None:
    driver = opened(lent=True, queue="free", rules=(Rule("queue", "none", 0, action="delay"),))
    driver.sends(1, address="/queues/none")
    driver.credit(10, handle=1, next_incoming_id=310, incoming_window=2000)
    driver.now_ns += 1_000_000_000
    driver.tick()
    assert driver.held
    exchange(driver, 301)
    served = driver.served
    for number in range(302, 312):
        exchange(driver, number)
    assert driver.served == served + 20
    assert driver.lent is not None


def test_a_read_has_bounded_answers_of_the_session() -> None:
    driver = opened(lent=True)
    lent, failures = driver.lent, list[Exception]()
    assert lent is not None
    turn = sluice_native.Turn(lambda: driver.now_ns, driver.accounts.moment, lambda _, error: failures.append(error))
    flow = {"incoming_window": 400, "next_outgoing_id": 10, "outgoing_window": 500, "handle": 0}
    pairs = b"".join(transfer(number) + say(1, "flow", delivery_count=number + 1, **flow) for number in range(300, 380))
    sockets = {side: socket.socketpair() for side in Side}
    try:
        turn.lend(*(sockets[side][0].fileno() for side in Side), lent, ends_here=False, unread=(pairs, b""))
        calls = Counter[str]()
        is_idle, events, frames, *_ = profiled(calls, turn.serve, 1)
        assert (is_idle, events, failures) == (False, [], [])
        assert frames[0] == 2 * calls["LentConnection.flows"] == 128
        assert frames[0] + turn.serve(NS_PER_S)[2][0] == 160
    finally:
        for each in (each for pair in sockets.values() for each in pair):
            each.close()


def counted(driver: Limited) -> Counter[str]:
    """Count the calls of sessions while the compiled extension reads."""
    calls, feed = Counter[str](), driver._feed
    driver._feed = lambda *args: profiled(calls, feed, *args)  # type: ignore[method-assign]
    return calls


def profiled(calls: Counter[str], call: Any, *args: Any) -> Any:
    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "/proxy/protocols/" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        return call(*args)
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda driver: driver.give(CLIENT, transfer(300, more=True)), id="more"),
        pytest.param(lambda driver: driver.give(CLIENT, transfer(300, aborted=True)), id="aborted"),
        pytest.param(lambda driver: driver.give(CLIENT, say(1, "detach", handle=0, closed=True)), id="detach"),
        pytest.param(lambda driver: driver.give(CLIENT, say(1, "end")), id="end"),
        pytest.param(lambda driver: driver.give(CLIENT, say(0, "close")), id="close"),
        pytest.param(lambda driver: driver.give(CLIENT, b"\0\0\0\x09\x02\0\0\0\0"), id="malformed"),
        pytest.param(lambda driver: driver.swap(SCOPED) or driver.give(CLIENT, transfer(300)), id="other rules"),
        pytest.param(lambda driver: driver.credit(10, count=300, drain=True), id="drain"),
        pytest.param(lambda driver: driver.session.start_close("over", 0), id="farewell"),
    ],
)
@pytest.mark.parametrize("queue", ["plenty", "high"])
def test_following_frames_are_equal(then: Any, queue: str) -> None:
    figures = []
    for lent in (False, True):
        driver = opened(lent=lent, queue=queue)
        assert (driver.lent is not None) is lent
        for side in Side:
            driver.total[side].clear()
        if lent:
            driver.give(CLIENT, b"")
        then(driver)
        driver.recall()
        driver.take()
        exchange(driver, 301)
        figures.append(driver.figures())
    assert figures[1] == figures[0]


def test_only_admitted_deliveries_are_decided_there() -> None:
    """If a chunk exceeds the limit, the connection leaves before any of it is charged."""
    figures = []
    for lent in (False, True):
        driver = opened(lent=lent, queue="refused", rules=(Rule("queue", "refused", 100, burst_s=1),))
        for first in range(301, 1200, 30):
            driver.now_ns += 100_000_000
            exchange(driver, first, count=30)
        figures.append(driver.figures())
    assert figures[1] == figures[0]
    assert figures[0]["rows"]["queue:refused"][1][0] > 100
