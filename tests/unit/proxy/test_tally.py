from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limiter.resource import Resource
from proxy.batch import Batch, Refuse
from proxy.control import RequestVerdict
from proxy.tally import _SILENT_NS, OTHER, Tally

if TYPE_CHECKING:
    from tests.unit.proxy.conftest import MakeBatch

KIND = "line_topic"
NS_PER_S = 1_000_000_000
LONG_NS = _SILENT_NS
"""A silence after which a name may lose its place."""


def resource(name: str) -> Resource:
    return Resource(KIND, name)


def refused(batch: Batch, *indexes: int) -> Batch:
    batch.add_verdicts({index: Refuse(resource("x"), "rule", 0) for index in indexes})
    return batch


def requests(tally: Tally, name: str) -> dict[RequestVerdict, int]:
    return tally.snapshot()[KIND, name].requests


def messages(tally: Tally, name: str) -> dict[RequestVerdict, int]:
    return tally.snapshot()[KIND, name].messages


class TestVerdicts:
    def test_requests_and_messages_are_counted_by_verdict(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(refused(batch_of("a", "b", "a", "a", costs=[1, 2, 3, 4]), 2, 3), 0)
        assert requests(tally, "a") == {"pass": 1, "refuse": 2, "bypass": 0}
        assert messages(tally, "a") == {"pass": 1, "refuse": 7, "bypass": 0}
        assert requests(tally, "b") == {"pass": 1, "refuse": 0, "bypass": 0}
        assert messages(tally, "b") == {"pass": 2, "refuse": 0, "bypass": 0}

    def test_bypassed_handler_makes_bypass_of_pass(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = refused(batch_of("a", "a", costs=[5, 6]), 0)
        batch.bypassed["rate_limit"] = "late"
        tally.count(batch, 0)
        assert requests(tally, "a") == {"pass": 0, "refuse": 1, "bypass": 1}
        assert messages(tally, "a") == {"pass": 0, "refuse": 5, "bypass": 6}

    def test_request_with_several_resources_counts_for_each(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(refused(batch_of(("a", "b"), ("a", "b"), "b", costs=[1, 2, 4]), 1), 0)
        assert messages(tally, "a") == {"pass": 1, "refuse": 2, "bypass": 0}
        assert messages(tally, "b") == {"pass": 5, "refuse": 2, "bypass": 0}

    def test_charge_counts_messages_but_no_request(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(batch_of("a", charges=[("a", 9), ("b", 3)]), 0)
        assert requests(tally, "a") == {"pass": 1, "refuse": 0, "bypass": 0}
        assert messages(tally, "a")["pass"] == 10
        assert requests(tally, "b")["pass"] == 0
        assert messages(tally, "b")["pass"] == 3

    def test_kinds_are_told_apart(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(batch_of("a"), 0)
        assert tally.snapshot().keys() == {(KIND, "a")}


class TestCap:
    def test_names_beyond_it_are_counted_together(self, batch_of: MakeBatch) -> None:
        tally = Tally(2)
        tally.count(batch_of("a", "b", "c", "d", "a"), 0)
        assert {name: counts.requests["pass"] for (_, name), counts in tally.snapshot().items()} == {
            "a": 2,
            "b": 1,
            OTHER: 2,
        }

    def test_name_stays_once_it_is_in(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        for name in ("a", "b", "a", "c", "a"):
            tally.count(batch_of(name), 0)
        assert requests(tally, "a")["pass"] == 3

    def test_pinned_names_stand_outside_it(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.pin([resource("vip"), resource("second")])
        tally.count(batch_of("a", "b", "vip", "second"), 0)
        assert set(tally.snapshot()) == {(KIND, "vip"), (KIND, "second"), (KIND, "a"), (KIND, OTHER)}

    def test_pinned_name_is_shown_before_its_first_request(self) -> None:
        tally = Tally(1)
        tally.pin([resource("vip")])
        assert requests(tally, "vip") == {"pass": 0, "refuse": 0, "bypass": 0}

    def test_pinning_keeps_the_counts_and_frees_the_place(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.count(batch_of("a"), 0)
        tally.pin([resource("a")])
        tally.pin([resource("a")])
        tally.count(batch_of("a", "b"), 0)
        assert requests(tally, "a")["pass"] == 2
        assert requests(tally, "b")["pass"] == 1

    def test_silent_name_gives_its_place_to_a_new_one(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.count(batch_of("old", "old"), 0)
        tally.count(batch_of("new"), LONG_NS)
        assert requests(tally, "new")["pass"] == 1
        assert requests(tally, OTHER)["pass"] == 2
        assert (KIND, "old") not in tally.snapshot()

    def test_name_that_spoke_of_late_keeps_its_place(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.count(batch_of("old"), 0)
        tally.count(batch_of("old"), LONG_NS - 1)
        tally.count(batch_of("new"), LONG_NS)
        assert requests(tally, "old")["pass"] == 2
        assert requests(tally, OTHER)["pass"] == 1

    def test_silent_name_is_found_among_busy_ones_in_time(self, batch_of: MakeBatch) -> None:
        tally = Tally(50)
        busy = [f"busy{number}" for number in range(49)]
        tally.count(batch_of("silent", *busy), 0)
        for turn in range(50):
            tally.count(batch_of(*busy, f"new{turn}"), LONG_NS)
        assert (KIND, "silent") not in tally.snapshot()

    def test_cap_of_none_counts_all_together(self, batch_of: MakeBatch) -> None:
        tally = Tally(0)
        tally.count(batch_of("a", "b"), 0)
        assert requests(tally, OTHER)["pass"] == 2

    def test_name_of_a_client_that_is_called_other_hides_nothing(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.pin([resource(OTHER)])
        tally.count(batch_of(OTHER, OTHER, "a"), 0)
        tally.count(batch_of("beyond"), 0)
        assert requests(tally, OTHER)["pass"] == 3
        assert requests(tally, "a")["pass"] == 1


NAMES = ["a", "b", "c", "d", "e", OTHER]


@given(
    cap=st.integers(0, 4),
    pinned=st.sets(st.sampled_from(NAMES), max_size=2),
    steps=st.lists(
        st.tuples(
            st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
            st.sampled_from(["pass", "refuse", "bypass"]),
            st.sampled_from([0, NS_PER_S, LONG_NS, 3 * LONG_NS]),
        ),
        max_size=40,
    ),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_sum_ever_falls_and_none_is_lost(
    batch_of: MakeBatch, cap: int, pinned: set[str], steps: list[tuple[list[str], str, int]]
) -> None:
    tally = Tally(cap)
    tally.pin([resource(name) for name in pinned])
    expected: Counter[str] = Counter()
    other: dict[RequestVerdict, int] = {}
    now_ns = 0
    for names, verdict, pause_ns in steps:
        now_ns += pause_ns
        batch = batch_of(*names)
        if verdict == "refuse":
            refused(batch, *range(len(names)))
        elif verdict == "bypass":
            batch.bypassed["handler"] = "full"
        tally.count(batch, now_ns)
        expected[verdict] += len(names)
        counted: Counter[str] = Counter()
        for counts in tally.snapshot().values():
            counted.update(counts.requests)
        assert +counted == +expected
        told_apart = {name for _, name in tally.snapshot()} - pinned - {OTHER}
        assert len(told_apart) <= cap
        if (KIND, OTHER) in tally.snapshot():
            shared = requests(tally, OTHER)
            assert all(shared[word] >= count for word, count in other.items())
            other = shared
