from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limiter.resource import Resource
from proxy.batch import NO_VERDICTS, Batch, Group, Refuse, Side, Verdict

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

A = Resource("line_topic", "a")
B = Resource("line_topic", "b")


def refuse(rule: str) -> Refuse:
    return Refuse(A, rule, 1)


def test_each_side_is_the_others_other() -> None:
    assert Side.CLIENT.other is Side.BROKER
    assert Side.BROKER.other is Side.CLIENT


class TestGroups:
    def test_group_by_distinct_resources_in_order_of_appearance(self, batch_of: MakeBatch) -> None:
        batch = batch_of("b", "a", "b", "b", costs=[1, 2, 3, 4])
        assert list(batch.by_resources().items()) == [((B,), Group([0, 2, 3], [1, 3, 4])), ((A,), Group([1], [2]))]

    def test_another_set_of_resources_is_another_group(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", ("a", "b"), "a")
        assert [group.indexes for group in batch.by_resources().values()] == [[0, 2], [1]]

    def test_equal_resources_need_not_be_the_same_object(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        assert batch.requests[0].resources is not batch.requests[1].resources
        assert list(batch.by_resources()) == [(A,)]

    def test_are_computed_once(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a")
        assert batch.by_resources() is batch.by_resources()

    def test_are_none_without_requests(self, batch_of: MakeBatch) -> None:
        assert batch_of(charges=[("a", 5)]).by_resources() == {}

    def test_are_never_seen_unfinished(self, batch_of: MakeBatch) -> None:
        """A handler on a thread and the loop may both ask for them at the same time."""
        complete = batch_of("a", "b", "a")
        seen: list[object] = []

        class Watched(list[Any]):
            def __iter__(self) -> Any:
                for request in super().__iter__():
                    seen.append(batch._groups)
                    yield request

        batch = Batch(complete.connection, Side.CLIENT, Watched(complete.requests))
        assert batch.by_resources() == complete.by_resources()
        assert seen == [None, None, None]

    @given(names=st.lists(st.sampled_from(["a", "b", "c", ("a", "b"), ("b", "a")]), max_size=30))
    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_hold_every_request_once(self, batch_of: MakeBatch, names: list[str | tuple[str, ...]]) -> None:
        batch = batch_of(*names, costs=range(1, len(names) + 1))
        found = {}
        for resources, group in batch.by_resources().items():
            assert group.indexes == sorted(group.indexes)
            for index, cost in zip(group.indexes, group.costs, strict=True):
                found[index] = (resources, cost)
        assert found == {index: (request.resources, index + 1) for index, request in enumerate(batch.requests)}


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
        class Hold(Verdict, frozen=True):
            """Not one of today's."""

        batch = batch_of("a")
        batch.add_verdicts({0: Hold()})
        assert batch.verdicts == {0: Hold()}

    @pytest.mark.parametrize("index", [-1, 2, 10**9])
    def test_verdict_for_no_request_is_refused(self, batch_of: MakeBatch, index: int) -> None:
        with pytest.raises(IndexError, match=f"verdict for request {index} of a batch of 2"):
            batch_of("a", "a").add_verdicts({index: refuse("x")})

    @pytest.mark.parametrize("nonsense", [None, True, "refuse", Refuse])
    def test_what_is_no_verdict_is_refused(self, batch_of: MakeBatch, nonsense: Any) -> None:
        with pytest.raises(TypeError, match="not a verdict for request 0"):
            batch_of("a").add_verdicts({0: nonsense})

    @pytest.mark.parametrize(("resource", "rule", "wait_us"), [("a", "r", 0), (A, None, 0), (A, "r", None)])
    def test_refusal_that_no_answer_can_be_made_of_is_refused(
        self, batch_of: MakeBatch, resource: Any, rule: Any, wait_us: Any
    ) -> None:
        with pytest.raises(TypeError, match="belongs"):
            batch_of("a").add_verdicts({0: Refuse(resource, rule, wait_us)})

    def test_of_a_faulty_answer_nothing_is_taken(self, batch_of: MakeBatch) -> None:
        batch = batch_of("a", "a")
        with pytest.raises(IndexError):
            batch.add_verdicts({0: refuse("x"), 7: refuse("x")})
        assert batch.verdicts == {}
