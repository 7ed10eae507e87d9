from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limiter.rules.resource import Resource
from proxy.deciding.batch import (
    LATER,
    NO_VERDICTS,
    Group,
    Hold,
    Refuse,
    Shadow,
    Side,
    Ticket,
    Verdict,
    drop_tickets,
)

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

A = Resource("line_topic", "a")
B = Resource("line_topic", "b")


def refuse(rule: str) -> Refuse:
    return Refuse(A, rule, 1)


def test_each_side_is_the_others_other() -> None:
    assert Side.CLIENT.other is Side.BROKER
    assert Side.BROKER.other is Side.CLIENT


class Tickets:
    """Makes tickets and records dropped ones."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def hold(self, rule: str) -> Hold:
        return Hold(A, rule, Ticket(lambda: self.dropped.append(rule)))


class TestGroups:
    def test_group_by_distinct_resources_in_order_of_appearance(self, batch_of: MakeBatch) -> None:
        batch = batch_of("b", "a", "b", "b", costs=[1, 2, 3, 4])
        assert batch.groups == [
            Group(batch.requests[0], [0, 2, 3], [1, 3, 4]),
            Group(batch.requests[1], [1], [2]),
        ]

    def test_another_set_of_resources_is_another_group(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", ("a", "b"), "a")
        assert [group.indexes for group in batch.groups] == [[0, 2], [1]]

    def test_another_producer_group_is_another_group(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a", "a")
        batch.requests[1].producer_group = "g"
        assert [group.indexes for group in batch.groups] == [[0, 2], [1]]

    def test_consuming_requests_form_their_own_group(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a", "a")
        batch.requests[1].consumes = True
        assert [group.indexes for group in batch.groups] == [[0, 2], [1]]

    def test_an_order_key_is_kept_within_one_group(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "b", "a", "a", "b")
        for request, order_key in zip(batch.requests, (7, 8, 7, 9, 8), strict=True):
            request.order_key = order_key
        assert [group.indexes for group in batch.groups] == [[0, 2], [1, 4], [3]]

    def test_requests_of_an_order_key_across_groups_are_separate(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "b", "a", "c", "c")
        for request, order_key in zip(batch.requests, (7, 7, 7, 8, 8), strict=True):
            request.order_key = order_key
        assert [group.indexes for group in batch.groups] == [[0], [1], [2], [3, 4]]

    def test_unrefusable_requests_form_their_own_group(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        batch.requests[1].refusal = "impossible"
        assert [group.indexes for group in batch.groups] == [[0], [1]]

    def test_equal_resources_need_not_be_the_same_object(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        assert batch.requests[0].resources is not batch.requests[1].resources
        assert [group.indexes for group in batch.groups] == [[0, 1]]

    def test_are_none_without_requests(self, batch_of: MakeBatch) -> None:
        assert batch_of(charges=[("a", 5)]).groups == []

    @given(names=st.lists(st.sampled_from(["a", "b", "c", ("a", "b"), ("b", "a")]), max_size=30))
    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    def test_hold_every_request_once(self, batch_of: MakeBatch, names: list[str | tuple[str, ...]]) -> None:
        batch = batch_of(*names, costs=range(1, len(names) + 1))
        found = {}
        for group in batch.groups:
            assert group.indexes == sorted(group.indexes)
            for index, cost in zip(group.indexes, group.messages, strict=True):
                found[index] = (group.request.resources, cost)
        assert found == {index: (request.resources, index + 1) for index, request in enumerate(batch.requests)}


def test_cost_in_bytes_is_the_size_unless_charged_by_the_answer(batch_of: MakeBatch) -> None:
    batch = batch_of("a", "a", "a")
    batch.requests[1].by_answer = True
    batch.requests[2].size_bytes = 7
    assert batch.size_bytes([2, 1, 0]) == [7, 0, 100]


class TestVerdicts:
    def test_first_verdict_stays(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        batch.add_verdicts({0: refuse("first")})
        batch.add_verdicts({0: refuse("second"), 1: refuse("second")})
        assert batch.verdicts == {0: refuse("first"), 1: refuse("second")}

    def test_no_verdicts_leave_everything_to_pass(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a")
        batch.add_verdicts(NO_VERDICTS)
        assert batch.verdicts == {}

    def test_further_kinds_of_verdicts_are_taken(self, batch_of: MakeBatch) -> None:
        class Grant(Verdict, frozen=True):
            """An unknown verdict."""

        batch = batch_of("a")
        batch.add_verdicts({0: Grant()})
        assert batch.verdicts == {0: Grant()}

    @pytest.mark.parametrize("index", [-1, 2, 10**9])
    def test_verdict_for_no_request_is_refused(self, batch_of: MakeBatch, index: int) -> None:
        with pytest.raises(
            IndexError,
            match=f"the handler returned a verdict for request {index}, but the batch contains only 2 requests",
        ):
            batch_of("a", "a").add_verdicts({index: refuse("x")})

    @pytest.mark.parametrize("nonsense", [None, True, "refuse", Refuse])
    def test_invalid_verdict_is_refused(self, batch_of: MakeBatch, nonsense: Any) -> None:
        with pytest.raises(TypeError, match="not a valid verdict for request 0"):
            batch_of("a").add_verdicts({0: nonsense})

    @pytest.mark.parametrize(("resource", "rule", "wait_us"), [("a", "r", 0), (A, None, 0), (A, "r", None)])
    def test_refusal_that_no_answer_can_be_made_of_is_refused(
        self, batch_of: MakeBatch, resource: Any, rule: Any, wait_us: Any
    ) -> None:
        with pytest.raises(TypeError, match="has an invalid"):
            batch_of("a").add_verdicts({0: Refuse(resource, rule, wait_us)})

    def test_of_a_faulty_answer_nothing_is_taken(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        with pytest.raises(IndexError):
            batch.add_verdicts({0: refuse("x"), 7: refuse("x")})
        assert batch.verdicts == {}

    @pytest.mark.parametrize(
        "verdict",
        [Hold(A, "r", None), Hold("a", "r", Ticket(print)), Shadow(A, None), Shadow("a", "r"), Refuse(A, "r", 1, "2")],  # type: ignore[arg-type]  # the faults
    )
    def test_verdict_with_a_wrong_attribute_is_refused(self, batch_of: MakeBatch, verdict: Verdict) -> None:
        with pytest.raises(TypeError, match="has an invalid"):
            batch_of("a").add_verdicts({0: verdict})


class TestPrecedence:
    """Refuse before Hold before Shadow. Of equal ones the first."""

    def test_refusal_takes_the_place_of_a_hold_whose_ticket_is_dropped(self, batch_of: MakeBatch) -> None:
        tickets, batch = Tickets(), batch_of("a")
        batch.add_verdicts({0: tickets.hold("slow")})
        batch.add_verdicts({0: refuse("no")})
        assert batch.verdicts == {0: refuse("no")}
        assert tickets.dropped == ["slow"]

    def test_hold_after_a_refusal_is_dropped(self, batch_of: MakeBatch) -> None:
        tickets, batch = Tickets(), batch_of("a")
        batch.add_verdicts({0: refuse("no")})
        batch.add_verdicts({0: tickets.hold("slow")})
        assert batch.verdicts == {0: refuse("no")}
        assert tickets.dropped == ["slow"]

    def test_second_hold_is_dropped(self, batch_of: MakeBatch) -> None:
        tickets, batch = Tickets(), batch_of("a")
        first = tickets.hold("first")
        batch.add_verdicts({0: first})
        batch.add_verdicts({0: tickets.hold("second")})
        assert batch.verdicts == {0: first}
        assert tickets.dropped == ["second"]

    def test_shadow_gives_way_to_both(self, batch_of: MakeBatch) -> None:
        tickets, batch = Tickets(), batch_of("a", "a", "a")
        hold, shadow = tickets.hold("slow"), Shadow(A, "shadow")
        batch.add_verdicts(dict.fromkeys(range(3), shadow))
        batch.add_verdicts({0: hold, 1: refuse("no"), 2: Shadow(A, "later")})
        batch.add_verdicts(dict.fromkeys(range(2), shadow))
        assert batch.verdicts == {0: hold, 1: refuse("no"), 2: shadow}
        assert tickets.dropped == []

    def test_refusing_all_drops_holds_and_keeps_the_first_refusals(self, batch_of: MakeBatch) -> None:
        tickets, batch = Tickets(), batch_of("a", "a", "a")
        batch.add_verdicts({0: tickets.hold("slow"), 1: refuse("first")})
        batch.add_verdicts(dict.fromkeys(range(3), refuse("closed")))
        assert batch.verdicts == {0: refuse("closed"), 1: refuse("first"), 2: refuse("closed")}
        assert tickets.dropped == ["slow"]

    def test_unused_verdicts_drop_their_tickets(self) -> None:
        tickets = Tickets()
        drop_tickets({0: tickets.hold("a"), 1: refuse("no"), 3: tickets.hold("b")})
        assert tickets.dropped == ["a", "b"]


class TestTicket:
    def test_is_resolved_once(self) -> None:
        seen: list[Refuse | None] = []
        ticket = Ticket(pytest.fail)
        ticket.attach(lambda resolved: seen.append(resolved.refuse))
        ticket.resolve(refuse("no"))
        ticket.resolve(None)
        ticket.drop()
        assert seen == [refuse("no")]
        assert ticket.resolved
        assert not ticket.dropped

    def test_early_resolution_is_delivered_on_attach(self) -> None:
        seen: list[Refuse | None] = []
        ticket = Ticket(pytest.fail)
        ticket.resolve(None)
        ticket.attach(lambda resolved: seen.append(resolved.refuse))
        assert seen == [None]

    def test_is_dropped_once_and_never_resolved_after(self) -> None:
        dropped: list[bool] = []
        ticket = Ticket(lambda: dropped.append(True))
        ticket.attach(lambda _: pytest.fail("resolved"))
        ticket.drop()
        ticket.drop()
        ticket.resolve(None)
        ticket.attach(lambda _: pytest.fail("resolved"))
        assert dropped == [True]
        assert ticket.dropped
        assert not ticket.resolved


class TestWhatCannotBeRefused:
    def test_keeps_no_refusal_and_others_do(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        batch.requests[0].refusal = "impossible"
        no = refuse("r")
        batch.add_verdicts({0: no, 1: no})
        assert batch.verdicts == {1: no}

    def test_alone_can_come_later(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        batch.requests[0].refusal = "impossible"
        batch.add_verdicts({0: LATER, 1: LATER})
        assert batch.verdicts == {0: LATER}

    def test_is_not_refused_with_all_others(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        batch.requests[1].refusal = "impossible"
        batch.add_verdicts(dict.fromkeys(range(2), refuse("r")))
        assert batch.verdicts == {0: refuse("r")}
