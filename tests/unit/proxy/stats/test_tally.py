from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limiter.counting.rejections import OTHER
from limiter.rules.resource import Resource
from proxy.deciding.batch import Batch, ConnectionInfo, Hold, Refuse, Shadow, Ticket
from proxy.stats.snapshot import RequestVerdict, ResourceCounts
from proxy.stats.tally import _SILENT_NS, Tally

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


def held(batch: Batch, *indexes: int) -> Batch:
    batch.add_verdicts({index: Hold(resource("x"), "rule", Ticket(lambda: None)) for index in indexes})
    return batch


def counts_of(tally: Tally) -> dict[tuple[str, str], ResourceCounts]:
    return {(name.kind, name.name): counts for name, counts in tally.each()}


def nonzero(counts: Mapping[Any, int]) -> dict[str, int]:
    return {word: count for word, count in counts.items() if count}


def requests(tally: Tally, name: str) -> dict[str, int]:
    """What became of a resource's requests, without the zeros."""
    return nonzero(counts_of(tally)[KIND, name].requests)


def messages(tally: Tally, name: str) -> dict[str, int]:
    return nonzero(counts_of(tally)[KIND, name].messages)


class TestVerdicts:
    def test_requests_and_messages_are_counted_by_verdict(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(refused(batch_of("a", "b", "a", "a", costs=[1, 2, 3, 4]), 2, 3), 0)
        assert requests(tally, "a") == {"pass": 1, "refuse": 2}
        assert messages(tally, "a") == {"pass": 1, "refuse": 7}
        assert requests(tally, "b") == {"pass": 1}
        assert messages(tally, "b") == {"pass": 2}

    def test_every_verdict_is_shown_before_the_first_of_its_kind(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(batch_of("a"), 0)
        counts = counts_of(tally)[KIND, "a"]
        assert set(counts.requests) == set(counts.messages) == set(get_args(RequestVerdict))

    def test_bypassed_handler_makes_bypass_of_pass(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = refused(batch_of("a", "a", costs=[5, 6]), 0)
        batch.bypassed["rate_limit"] = "late"
        tally.count(batch, 0)
        assert requests(tally, "a") == {"refuse": 1, "bypass": 1}
        assert messages(tally, "a") == {"refuse": 5, "bypass": 6}

    def test_shadow_counts_instead_of_pass(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = batch_of("a", "a", costs=[5, 6])
        batch.add_verdicts({1: Shadow(resource("a"), "rule")})
        tally.count(batch, 0)
        assert requests(tally, "a") == {"pass": 1, "shadow": 1}
        assert messages(tally, "a") == {"pass": 5, "shadow": 6}

    def test_what_an_exempt_client_sends_counts_as_exempt_unless_refused(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        plain = batch_of("a", "a", costs=[5, 6], charges=[("a", 3)])
        info = ConnectionInfo(1, "main", "main", "192.0.2.1:1", "192.0.2.1", exempt=True)
        batch = refused(Batch(info, plain.side, plain.requests, plain.charges), 0)
        batch.bypassed["rate_limit"] = "late"
        tally.count(batch, 0)
        assert requests(tally, "a") == {"refuse": 1, "exempt": 1}
        assert messages(tally, "a") == {"refuse": 5, "exempt": 9}

    def test_request_with_several_resources_counts_for_each(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(refused(batch_of(("a", "b"), ("a", "b"), "b", costs=[1, 2, 4]), 1), 0)
        assert messages(tally, "a") == {"pass": 1, "refuse": 2}
        assert messages(tally, "b") == {"pass": 5, "refuse": 2}

    def test_charge_counts_messages_but_no_request(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(batch_of("a", charges=[("a", 9), ("b", 3)]), 0)
        assert requests(tally, "a") == {"pass": 1}
        assert messages(tally, "a") == {"pass": 10}
        assert requests(tally, "b") == {}
        assert messages(tally, "b") == {"pass": 3}


class TestHeld:
    def test_request_counts_when_it_is_resolved_and_not_before(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = held(batch_of("a", ("a", "b"), "a", costs=[1, 2, 4]), 1, 2)
        tally.count(batch, 0)
        assert requests(tally, "a") == {"pass": 1}
        assert (tally.held_requests, tally.held_bytes) == (2, 200)
        tally.resolved(batch.requests[1], None, 1)
        assert messages(tally, "a") == {"pass": 3}
        assert messages(tally, "b") == {"pass": 2}
        tally.resolved(batch.requests[2], Refuse(resource("a"), "other", 0), 2)
        assert messages(tally, "a") == {"pass": 3, "refuse": 4}
        assert (tally.held_requests, tally.held_bytes) == (0, 0)

    def test_shadow_rules_are_counted_when_what_was_held_passes(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = held(batch_of("a", costs=[3]), 0)
        tally.count(batch, 0)
        tally.resolved(batch.requests[0], Shadow(resource("a"), "dark"), 1)
        assert messages(tally, "a") == {"shadow": 3}
        assert nonzero(dict(tally.rules())["dark"].messages) == {"shadow": 3}

    def test_dropped_request_has_a_verdict_of_its_own(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = held(batch_of("a", costs=[3]), 0)
        tally.count(batch, 0)
        tally.dropped(batch.requests[0], 1)
        assert (requests(tally, "a"), messages(tally, "a")) == ({"drop": 1}, {"drop": 3})
        assert (tally.held_requests, tally.held_bytes) == (0, 0)

    def test_group_that_is_held_as_a_whole_takes_no_place_among_the_names(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(held(batch_of("a"), 0), 0)
        assert counts_of(tally) == {}


class TestLastStop:
    def test_names_time_wait_and_rule_of_the_last_refusal(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(batch_of("a"), 1)
        assert tally.last_stop(resource("a")) == (None, 0, "", None)
        for now_ns, rule in ((2, "total:x"), (3, "client:*")):
            batch = batch_of("a", "b")
            batch.add_verdicts({0: Refuse(resource("x"), rule, 10 * now_ns)})
            tally.count(batch, now_ns)
        assert tally.last_stop(resource("a")) == (3, 30, "client:*", None)
        assert tally.last_stop(resource("b")) == tally.last_stop(resource("never")) == (None, 0, "", None)

    def test_is_when_a_held_request_was_held_or_let_go(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(batch_of("a"), 1)
        batch = held(batch_of("a"), 0)
        tally.count(batch, 2)
        assert tally.last_stop(resource("a")).held_ns == 2
        tally.resolved(batch.requests[0], Refuse(resource("x"), "other", 7), 3)
        assert tally.last_stop(resource("a")) == (3, 7, "other", 3)

    def test_of_names_that_are_folded_together_is_the_latest(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.count(refused(batch_of("a"), 0), 5)
        tally.count(batch_of("b"), LONG_NS + 5)
        assert tally.last_stop(resource("a")) == (None, 0, "", None)
        assert tally.last_stop(resource(OTHER)) == (5, 0, "rule", None)


class TestRules:
    def test_one_is_found_by_its_name(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        tally.count(refused(batch_of("a", "a", costs=[5, 6]), 1), 0)
        found = tally.rule("rule")
        assert found is not None
        assert nonzero(found.messages) == {"refuse": 6}
        assert tally.rule("another") is None

    def test_each_verdict_counts_for_its_rule(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = batch_of("a", "a", "b", "b", costs=[1, 2, 4, 8])
        batch.add_verdicts(
            {
                0: Refuse(resource("a"), "one", 0),
                1: Shadow(resource("a"), "two"),
                2: Hold(resource("b"), "one", Ticket(lambda: None)),
            }
        )
        tally.count(batch, 0)
        rules = dict(tally.rules())
        assert (rules["one"].requests, rules["one"].messages) == (
            {"refuse": 1, "shadow": 0, "hold": 1},
            {"refuse": 1, "shadow": 0, "hold": 4},
        )
        assert (nonzero(rules["two"].requests), nonzero(rules["two"].messages)) == ({"shadow": 1}, {"shadow": 2})

    def test_held_and_then_refused_counts_for_the_rule_that_refused(self, batch_of: MakeBatch) -> None:
        tally = Tally(10)
        batch = held(batch_of("a", costs=[3]), 0)
        tally.count(batch, 0)
        tally.resolved(batch.requests[0], Refuse(resource("a"), "other", 0), 1)
        assert nonzero(dict(tally.rules())["rule"].requests) == {"hold": 1}
        assert nonzero(dict(tally.rules())["other"].messages) == {"refuse": 3}

    def test_names_beyond_the_cap_are_counted_together(self, batch_of: MakeBatch) -> None:
        tally = Tally(2)
        for name in ("a", "b", "c", "d", "a"):
            batch = batch_of("x")
            batch.add_verdicts({0: Refuse(resource("x"), name, 0)})
            tally.count(batch, 0)
        assert {name: counts.requests["refuse"] for name, counts in dict(tally.rules()).items()} == {
            "a": 2,
            "b": 1,
            OTHER: 2,
        }


class TestCap:
    def test_names_beyond_it_are_counted_together(self, batch_of: MakeBatch) -> None:
        tally = Tally(2)
        tally.count(batch_of("a", "b", "c", "d", "a"), 0)
        assert {name: counts.requests["pass"] for (_, name), counts in counts_of(tally).items()} == {
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
        assert set(counts_of(tally)) == {(KIND, "vip"), (KIND, "second"), (KIND, "a"), (KIND, OTHER)}

    def test_pinned_name_is_shown_before_its_first_request(self) -> None:
        tally = Tally(1)
        tally.pin([resource("vip")])
        assert requests(tally, "vip") == {}
        assert (KIND, "vip") in counts_of(tally)

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
        assert (KIND, "old") not in counts_of(tally)

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
        assert (KIND, "silent") not in counts_of(tally)

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
            st.sampled_from(get_args(RequestVerdict)),
            st.sampled_from([0, NS_PER_S, LONG_NS, 3 * LONG_NS]),
        ),
        max_size=40,
    ),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_sum_ever_falls_and_none_is_lost(
    batch_of: MakeBatch, cap: int, pinned: set[str], steps: list[tuple[list[str], RequestVerdict, int]]
) -> None:
    tally = Tally(cap)
    tally.pin([resource(name) for name in pinned])
    expected: Counter[str] = Counter()
    other: dict[str, int] = {}
    now_ns = 0
    for names, verdict, pause_ns in steps:
        now_ns += pause_ns
        count_as(tally, batch_of(*names), verdict, now_ns)
        expected[verdict] += len(names)
        counted: Counter[str] = Counter()
        for counts in counts_of(tally).values():
            counted.update(counts.requests)
        assert +counted == +expected
        assert tally.held_requests == tally.held_bytes == 0
        told_apart = {name for _, name in counts_of(tally)} - pinned - {OTHER}
        assert len(told_apart) <= cap
        if (KIND, OTHER) in counts_of(tally):
            shared = requests(tally, OTHER)
            assert all(shared[word] >= count for word, count in other.items())
            other = shared


def count_as(tally: Tally, batch: Batch, verdict: RequestVerdict, now_ns: int) -> None:
    """Count all requests of a batch under one verdict."""
    every = range(len(batch.requests))
    match verdict:
        case "refuse":
            refused(batch, *every)
        case "bypass":
            batch.bypassed["handler"] = "full"
        case "shadow":
            batch.add_verdicts(dict.fromkeys(every, Shadow(resource("x"), "rule")))
        case "exempt":
            batch.connection = msgspec.structs.replace(batch.connection, exempt=True)
        case "drop":
            held(batch, *every)
    tally.count(batch, now_ns)
    if verdict == "drop":
        for request in batch.requests:
            tally.dropped(request, now_ns)


class TestWithoutARuleOfItsOwn:
    def test_a_name_goes_on_being_told_apart_while_there_is_room(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.pin([resource("a"), resource("never")])
        tally.count(batch_of("a"), 1)
        tally.unpin([resource("a"), resource("never"), resource("unknown")], 2)
        assert requests(tally, "a") == {"pass": 1}
        assert counts_of(tally).keys() == {(KIND, "a")}

    def test_a_name_is_counted_with_the_others_when_there_is_none(self, batch_of: MakeBatch) -> None:
        tally = Tally(1)
        tally.pin([resource("a")])
        tally.count(batch_of("a", "b"), 1)
        tally.unpin([resource("a")], 2)
        assert counts_of(tally).keys() == {(KIND, "b"), (KIND, OTHER)}
        assert requests(tally, OTHER) == {"pass": 1}


class TestLookingThroughThem:
    def test_leaves_out_what_was_not_asked_for_since(self, batch_of: MakeBatch) -> None:
        tally = Tally(9)
        tally.count(batch_of("a"), 1)
        tally.count(batch_of("b"), 5)
        assert [name.name for name, _ in tally.each(2)] == ["b"]

    def test_many_that_were_not_asked_for_are_passed_over_in_steps(self, batch_of: MakeBatch) -> None:
        tally = Tally(999)
        tally.count(batch_of(*map(str, range(500))), 1)
        assert list(tally.steps(2)) == [None] * 8

    def test_sums_are_those_of_all(self, batch_of: MakeBatch) -> None:
        tally = Tally(100)
        tally.pin([resource("7")])
        tally.count(batch_of(*map(str, range(130))), 1)
        sums = list(tally.sums())
        assert len(sums) > 1
        for verdict in ("pass", "refuse"):
            everything = [counts for _, counts in tally.each()]
            assert sum(each.requests[verdict] for each in sums) == sum(each.requests[verdict] for each in everything)
            assert sum(each.messages[verdict] for each in sums) == sum(each.messages[verdict] for each in everything)

    def test_counts_nothing_twice_though_a_name_is_retired_meanwhile(self, batch_of: MakeBatch) -> None:
        tally = Tally(2)
        tally.count(batch_of("a", "b"), 1)
        steps = tally.each()
        first, _ = next(steps)
        tally.count(batch_of("new"), LONG_NS + 1)
        found = dict(steps)
        assert {first.name, *(name.name for name in found)} == {"a", "b"}
        assert sum(counts.requests["pass"] for counts in found.values()) == 1
