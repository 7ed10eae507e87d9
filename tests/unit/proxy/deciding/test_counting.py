"""The tally's reports to the accounts about decided batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from limiter.counting.accounts import Accounts
from limiter.counting.rejections import Amount, Outcome, Rejection, TrafficSecond
from limiter.counting.repeats import KEPT_NS
from limiter.rules.resource import Resource
from proxy.deciding.batch import (
    LATER,
    Batch,
    Charge,
    ConnectionInfo,
    Hold,
    MessageIds,
    Refuse,
    Request,
    Shadow,
    Side,
    Ticket,
    Verdict,
)
from proxy.deciding.counting import Tally

INFO: Final = ConnectionInfo(1, "main", "main", "192.0.2.1:40000", "192.0.2.1")


class Told:
    def __init__(self) -> None:
        self.accounts = Accounts()
        self.tally = Tally(self.accounts)
        self.sender = self.accounts.sender("192.0.2.1", "JAVA")
        self.accounts.take(0, unfinished=False)

    def count(
        self,
        *requests: Request,
        ids: MessageIds | None = None,
        now_ns: int = 0,
        charges: tuple[Charge, ...] = (),
        bypassed: bool = False,
        exempt: bool = False,
        **verdicts: Verdict,
    ) -> Batch:
        """Count a batch. Verdicts are named by the index of their request, as ``at1``."""
        batch = Batch(msgspec.structs.replace(INFO, exempt=exempt), Side.CLIENT, requests, charges, ids=ids)
        batch.add_verdicts({int(name.removeprefix("at")): verdict for name, verdict in verdicts.items()})
        if bypassed:
            batch.bypassed["rate_limit"] = "late"
        self.tally.count(batch, now_ns, self.sender)
        return batch

    def over(self) -> TrafficSecond:
        """Return the counts since the last call."""
        (span,) = self.accounts.take(0, unfinished=True)
        *_, second = self.accounts.steps_of([span])
        assert second is not None
        return second

    def outcomes(self) -> Mapping[str, Mapping[Outcome, Amount]]:
        return {each.resource.name: each.outcomes for each in self.over().resources}

    def held(self) -> tuple[int, int]:
        return self.tally.held_requests, self.tally.held_bytes


@pytest.fixture
def told() -> Told:
    return Told()


def resource(name: str) -> Resource:
    return Resource("topic", name)


def request(*names: str, messages: int = 1, size_bytes: int = 100, group: str = "g", **more: Any) -> Request:
    given = {"refusal": "answered", "order_key": None, "handle": None} | more
    return Request(tuple(map(resource, names)), messages, size_bytes, group, **given)


def refuse(rule: str = "rule", wait_us: int = 0) -> Refuse:
    return Refuse(resource("x"), rule, wait_us)


def shadow() -> Shadow:
    return Shadow(resource("x"), "dark")


def hold() -> Hold:
    return Hold(resource("x"), "slow", Ticket(lambda: None))


def test_passed_request_counts_for_each_resource(told: Told) -> None:
    told.count(
        request("a", messages=2, size_bytes=10),
        request("b", messages=3, size_bytes=200),
        request("a", messages=5, size_bytes=4000),
        request("b", "c", messages=7, size_bytes=50_000),
    )
    second = told.over()
    assert {each.resource.name: each.outcomes for each in second.resources} == {
        "a": {"admitted": Amount(2, 7, 4010)},
        "b": {"admitted": Amount(2, 10, 50_200)},
        "c": {"admitted": Amount(1, 7, 50_000)},
    }
    assert second.rejections == ()
    assert (second.resources[0].languages, second.resources[0].clients) == ({"JAVA": (2, 0)}, ("192.0.2.1",))


def test_undecided_requests_count_as_dropped(told: Told) -> None:
    one, other = request("a", messages=2, size_bytes=10), request("a", messages=3, size_bytes=200)
    told.tally.lost([one, one, one, other, one], 0, told.sender)
    assert told.outcomes() == {"a": {"dropped": Amount(5, 11, 240)}}


def test_spooled_request_counts_as_held_once_decided(told: Told) -> None:
    info = msgspec.structs.replace(INFO, spools=True)
    requests = [request("a", since_ns=7), request("a", since_ns=7), request("a", since_ns=7), request("a")]
    batch = Batch(info, Side.CLIENT, requests)
    batch.add_verdicts({1: hold(), 2: LATER})
    told.tally.count(batch, 0, told.sender)
    told.tally.resolved(requests[1], None, 0, told.sender)
    # The second one was held by its ticket. The third one is repeated.
    assert told.outcomes() == {"a": {"admitted": Amount(3, 3, 300), "held": Amount(2, 2, 200)}}


def test_runs_of_verdicts_are_distinguished(told: Told) -> None:
    once, again = refuse("one", 5), refuse("two", 9)
    requests = [request("a", messages=1 << at, size_bytes=10**at) for at in range(6)]
    told.count(*requests, at0=once, at1=once, at3=again, at4=shadow())
    second = told.over()
    (of,) = second.resources
    assert of.outcomes == {
        "refused": Amount(3, 11, 1011),
        "admitted": Amount(2, 36, 100_100),
        "shadowed": Amount(1, 16, 10_000),
    }
    assert (of.languages, of.busy_answers) == ({"JAVA": (6, 3)}, 3)
    assert second.rejections == (
        Rejection(resource("a"), "192.0.2.1", "g", "one", "refuse", Amount(2, 3, 11), 5),
        Rejection(resource("a"), "192.0.2.1", "g", "two", "refuse", Amount(1, 8, 1000), 9),
        Rejection(resource("a"), "192.0.2.1", "g", "dark", "shadow", Amount(1, 16, 10_000), 0),
    )


def test_consuming_request_is_charged_by_its_answer(told: Told) -> None:
    told.count(request("a", messages=0, size_bytes=300, consumes=True, by_answer=True), bypassed=True)
    told.count(charges=(Charge((resource("a"),), 32, 9000), Charge((resource("b"),), 0, 0)))
    assert told.outcomes() == {"a": {"bypassed": Amount(1, 0, 0), "admitted": Amount(0, 32, 9000)}}


def test_held_request_counts_as_held_and_by_its_outcome(told: Told) -> None:
    requests = [
        request("a", "b", messages=1 << at, size_bytes=10**at, refusal="silent" if at == 2 else "answered")
        for at in range(5)
    ]
    batch = told.count(*requests, request("c"), **{f"at{at}": hold() for at in range(5)})
    assert told.held() == (5, 11_111)
    second = told.over()
    assert second.resources[0].outcomes == {"held": Amount(5, 31, 11_111)}
    assert [(each.rule, each.verdict, each.amount.requests) for each in second.rejections[:5]] == [
        ("slow", "hold", 5),
        ("slow", "hold", 5),
    ]
    tally, sender = told.tally, told.sender
    tally.resolved(batch.requests[0], None, 1, sender)
    tally.resolved(batch.requests[1], refuse("full", 77), 2, sender)
    tally.resolved(batch.requests[2], refuse("full", 7), 3, sender)
    assert told.accounts.last_stop(resource("b")) == (3, 7, "full", 3)
    tally.resolved(batch.requests[3], shadow(), 4, sender)
    tally.dropped(batch.requests[4], 5, sender)
    assert told.held() == (0, 0)
    assert told.accounts.last_stop(resource("b")) == (3, 7, "full", 5)
    second = told.over()
    for of in second.resources:
        assert of.outcomes == {
            "admitted": Amount(1, 1, 1),
            "refused": Amount(2, 6, 110),
            "shadowed": Amount(1, 8, 1000),
            "dropped": Amount(1, 16, 10_000),
        }
        assert (of.busy_answers, of.languages, of.clients) == (1, {"JAVA": (5, 2)}, ("192.0.2.1",))
    assert [(each.rule, each.verdict, each.amount, each.wait_max_us) for each in second.rejections[::2]] == [
        ("full", "refuse", Amount(2, 6, 110), 77),
        ("dark", "shadow", Amount(1, 8, 1000), 0),
    ]
    assert told.accounts.rules == {"slow": {"hold": (5, 31)}, "full": {"refuse": (2, 6)}, "dark": {"shadow": (1, 8)}}


def test_a_forwarded_request_costs_its_charge(told: Told) -> None:
    batch = told.count(request("a", messages=3), at0=hold())
    told.over()
    told.tally.passed_on(batch.requests[0], 1, told.sender)
    told.count(charges=(Charge((resource("a"),), 3, 100),))
    assert told.held() == (0, 0)
    assert told.outcomes() == {"a": {"admitted": Amount(1, 3, 100)}}


def test_a_returned_request_is_not_held_and_not_counted(told: Told) -> None:
    batch = told.count(request("a", returns=True), at0=hold())
    told.over()
    told.tally.dropped(batch.requests[0], 1, told.sender)
    assert told.held() == (0, 0)
    told.count(request("b"))
    assert told.outcomes() == {"b": {"admitted": Amount(1, 1, 100)}}


class Ids:
    """Handles are the messages' ids."""

    chunk = memoryview(b"")

    def message_id(self, request: Request) -> bytes:
        assert isinstance(request.handle, bytes)
        return request.handle


IDS: Final = Ids()


def repeats(told: Told) -> dict[str, tuple[Amount, int]]:
    """Return by resource the repeats, and the requests whose repeats would be recognized."""
    return {each.resource.name: (each.repeated, each.identified) for each in told.over().resources}


def test_repeated_request_is_counted_whatever_its_outcome(told: Told) -> None:
    first, other, none = (request("a", handle=handle) for handle in (b"1", b"2", b""))
    told.count(first, other, none, ids=IDS, at0=refuse(), at1=refuse(), at2=refuse())
    assert repeats(told) == {"a": (Amount(), 2)}
    told.count(first, other, none, ids=IDS, at0=refuse())
    assert repeats(told) == {"a": (Amount(2, 2, 200), 1)}
    # The other one has passed, so its next attempt is not a repeat.
    told.count(first, other, ids=IDS)
    told.count(first, other, ids=IDS)
    assert repeats(told) == {"a": (Amount(1, 1, 100), 0)}
    assert told.tally.repeated_requests == {"topic": 3}


def test_repeat_counts_all_messages_and_resources(told: Told) -> None:
    many = request("a", "b", messages=5, size_bytes=700, handle=b"1")
    told.count(many, ids=IDS, at0=refuse())
    told.count(many, ids=IDS, at0=shadow())
    assert repeats(told) == dict.fromkeys("ab", (Amount(1, 5, 700), 1))
    assert told.tally.repeated_requests == {"topic": 1}


def test_repeats_are_not_checked_without_recent_refusals(told: Told) -> None:
    class Strict(Ids):
        def message_id(self, request: Request) -> bytes:
            raise AssertionError(request)

    told.count(request("a", handle=b"1"), ids=Strict())
    told.count(request("a", handle=b"1"), ids=IDS, at0=refuse())
    told.count(request("b", handle=b"1"), ids=Strict())
    told.count(request("a", handle=b"1"), ids=Strict(), now_ns=KEPT_NS)


@pytest.mark.parametrize("ends", ["refused", "dropped"])
def test_held_request_counts_once_its_outcome_is_known(told: Told, ends: str) -> None:
    held = request("a", handle=b"1")
    for again in (False, True):
        told.count(held, ids=IDS, at0=hold())
        assert repeats(told) == {"a": (Amount(), 0)}
        # By then the session has a handle of its own.
        held.handle = None
        if ends == "refused":
            told.tally.resolved(held, refuse(), 0, told.sender)
        else:
            told.tally.dropped(held, 0, told.sender)
        assert repeats(told) == {"a": (Amount(1, 1, 100) if again else Amount(), 1)}
        held.handle = b"1"
    told.count(held, ids=IDS, at0=hold())
    told.tally.resolved(held, None, 0, told.sender)
    told.count(held, ids=IDS)
    assert repeats(told) == {"a": (Amount(1, 1, 100), 0)}
    assert told.tally.repeated_requests == {"topic": 2}
