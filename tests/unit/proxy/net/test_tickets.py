from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from limiter.counting.accounts import Accounts
from limiter.counting.rejections import OUTCOMES
from limiter.counting.seconds import NO_SENDER
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, Hold, Side, Ticket, Verdict
from proxy.deciding.counting import Tally
from proxy.net.tickets import Tickets

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

RESOURCE = Resource("line_topic", "a")


@pytest.fixture
def accounts() -> Accounts:
    return Accounts()


@pytest.fixture
def tally(accounts: Accounts) -> Tally:
    return Tally(accounts)


@pytest.fixture
def tickets(tally: Tally) -> Tickets:
    return Tickets(tally, lambda: 0)


def hold_some(batch: Batch, *verdicts: Verdict | None) -> list[Ticket]:
    """Give a batch these verdicts. Return the tickets among them."""
    given = {index: verdict for index, verdict in enumerate(verdicts) if verdict is not None}
    batch.add_verdicts(given)
    return [verdict.ticket for verdict in given.values() if isinstance(verdict, Hold)]


def hold(dropped: list[str], name: str) -> Hold:
    return Hold(RESOURCE, "rule", Ticket(lambda: dropped.append(name)))


def test_pulls_and_credit_hold_no_message(tickets: Tickets, batch_of: MakeBatch) -> None:
    batch = batch_of("a", "b", "c")
    batch.requests[1].by_answer = True
    batch.requests[2].most = 5
    hold_some(batch, *(hold([], name) for name in "abc"))
    tickets.take(batch)
    assert list(tickets.waiting()) == [(batch.requests[0].resources[0], 0)]


def test_dropped_requests_are_counted_last_first(
    tickets: Tickets, tally: Tally, accounts: Accounts, batch_of: MakeBatch
) -> None:
    dropped: list[str] = []
    batch = batch_of("a", "a", "a")
    hold_some(batch, hold(dropped, "1"), hold(dropped, "2"), hold(dropped, "3"))
    tally.count(batch, 0, NO_SENDER)
    tickets.take(batch)
    tickets.claim(batch.requests[1])
    tickets.drop()
    assert dropped == ["3", "1"]
    ((_, amounts),) = filter(None, accounts.each())
    assert amounts[OUTCOMES.index("dropped")][0] == 2


def test_the_two_peers_requests_are_dropped_apart(tickets: Tickets, tally: Tally, batch_of: MakeBatch) -> None:
    dropped: list[str] = []
    for side in Side:
        batch = batch_of("a", side=side)
        hold_some(batch, hold(dropped, side.value))
        tally.count(batch, 0, NO_SENDER)
        tickets.take(batch)
    tickets.drop(Side.CLIENT)
    assert dropped == ["client"]
    tickets.drop()
    assert dropped == ["client", "broker"]


@pytest.mark.parametrize("leaves", Side)
def test_credit_is_given_up_whichever_peer_leaves(
    tickets: Tickets, tally: Tally, batch_of: MakeBatch, leaves: Side
) -> None:
    dropped: list[str] = []
    batch = batch_of("a", "a")
    batch.requests[0].most = 5
    hold_some(batch, hold(dropped, "credit"), hold(dropped, "message"))
    tally.count(batch, 0, NO_SENDER)
    tickets.take(batch)
    tickets.drop(leaves)
    assert dropped == (["message", "credit"] if leaves is Side.CLIENT else ["credit"])
    assert tickets.claim(batch.requests[1]) is (leaves is Side.BROKER)


def test_unrefusable_requests_stay_when_the_rest_is_dropped(tickets: Tickets, batch_of: MakeBatch) -> None:
    dropped: list[str] = []
    batch = batch_of("a", "a")
    batch.requests[0].refusal = "impossible"
    hold_some(batch, hold(dropped, "1"), hold(dropped, "2"))
    tickets.take(batch)
    tickets.drop(Side.CLIENT, refusable=True)
    assert dropped == ["2"]
    tickets.drop()
    assert dropped == ["2", "1"]


def test_forwarded_requests_count_as_admitted(
    tickets: Tickets, tally: Tally, accounts: Accounts, batch_of: MakeBatch
) -> None:
    dropped: list[str] = []
    batch = batch_of("a", "a", "a")
    hold_some(batch, hold(dropped, "1"), hold(dropped, "2"), hold(dropped, "3"))
    tally.count(batch, 0, NO_SENDER)
    tickets.take(batch)
    tickets.pass_on([*batch.requests[:2], *batch_of("other").requests])
    assert dropped == ["2", "1"]
    assert tally.held_requests == 1
    assert not tickets.claim(batch.requests[0])
    ((_, amounts),) = filter(None, accounts.each())
    assert amounts[OUTCOMES.index("admitted")] == (2, 0, 0)
    assert amounts[OUTCOMES.index("dropped")][0] == 0


def test_single_requests_are_given_up_the_last_first_and_never_twice(tickets: Tickets, batch_of: MakeBatch) -> None:
    dropped: list[str] = []
    batch = batch_of("a", "a", "a")
    hold_some(batch, hold(dropped, "1"), hold(dropped, "2"), hold(dropped, "3"))
    tickets.take(batch)
    tickets.give_up([*batch.requests[:2], *batch_of("other").requests])
    assert dropped == ["2", "1"]
    tickets.drop()
    assert dropped == ["2", "1", "3"]
