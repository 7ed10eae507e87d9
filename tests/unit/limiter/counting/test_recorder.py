from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from limiter.counting.recorder import KEPT_S, MAX_CLIENTS, MAX_LANGUAGES, Judged, Recorder, Sender
from limiter.counting.rejections import (
    OTHER,
    Amount,
    Outcome,
    Rejection,
    RejectionVerdict,
    ResourceSecond,
    TrafficSecond,
)
from limiter.rules.resource import Resource

NS_PER_S = 1_000_000_000
BEGAN_S = 1_800_000_000
A, B = Resource("topic", "a"), Resource("topic", "b")
ANN = Sender("192.0.2.1", "JAVA")
BOB = Sender("192.0.2.2", "GO")


class Clock:
    """A monotonic clock and one on the wall, both in the test's hand."""

    def __init__(self, offset_ms: int = 0) -> None:
        self.now_ns = 5 * NS_PER_S
        self.wall_ns = BEGAN_S * NS_PER_S + offset_ms * 1_000_000

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS_PER_S)
        self.wall_ns += round(seconds * NS_PER_S)

    def step_s(self, seconds: float) -> None:
        self.wall_ns += round(seconds * NS_PER_S)


class Recorded:
    """A recorder and its clock, told things as the data path tells them."""

    def __init__(
        self,
        max_keys: int = 100,
        max_resources: int = 100,
        pinned: Iterable[Resource] = (),
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.recorder = Recorder(max_keys, max_resources, set(pinned), self.clock.now_ns, self.clock.wall_ns)

    def count(
        self,
        resources: Sequence[Resource],
        outcome: Outcome,
        sender: Sender,
        amount: tuple[int, int, int],
        judged: Judged | None = None,
    ) -> None:
        if self.clock.now_ns >= self.recorder.ends_ns:
            self.recorder.turn(self.clock.now_ns, self.clock.wall_ns)
        self.recorder.count(resources, amount, outcome, sender, judged)

    def admit(self, *resources: Resource, sender: Sender = ANN, messages: int = 1) -> None:
        self.count(resources or (A,), "admitted", sender, (1, messages, 100 * messages))

    def refuse(
        self, *resources: Resource, sender: Sender = ANN, rule: str = "rule", group: str = "g", wait_us: int = 0
    ) -> None:
        judged: Judged = ("refuse", rule, group, wait_us, 1)
        self.count(resources or (A,), "refused", sender, (1, 2, 100), judged)

    def take(self, *, unfinished: bool = False) -> list[TrafficSecond]:
        raw = self.recorder.take(self.clock.now_ns, self.clock.wall_ns, unfinished=unfinished)
        return [step for second in raw for step in second.steps() if step is not None]

    def over(self) -> TrafficSecond:
        """Let the second pass, and return it."""
        self.clock.pass_s(1)
        (second,) = self.take()
        return second


def messages(seconds: Iterable[TrafficSecond]) -> int:
    return sum(amount.messages for each in seconds for of in each.resources for amount in of.outcomes.values())


class TestResources:
    def test_each_outcome_is_added_up(self) -> None:
        recorded = Recorded()
        recorded.count((A,), "admitted", ANN, (1, 10, 1000))
        recorded.count((A,), "admitted", ANN, (2, 20, 2000))
        recorded.count((A,), "dropped", ANN, (1, 3, 300))
        recorded.count((B,), "held", ANN, (1, 4, 400))
        assert recorded.over() == TrafficSecond(
            at_s=BEGAN_S,
            resources=(
                ResourceSecond(
                    A,
                    {"admitted": Amount(3, 30, 3000), "dropped": Amount(1, 3, 300)},
                    0,
                    {"JAVA": (4, 0)},
                    ("192.0.2.1",),
                    more_clients=False,
                ),
                ResourceSecond(B, {"held": Amount(1, 4, 400)}, 0, {}, ("192.0.2.1",), more_clients=False),
            ),
            rejections=(),
            other=0,
        )

    def test_requests_for_several_count_for_each(self) -> None:
        recorded = Recorded()
        recorded.refuse(A, B)
        second = recorded.over()
        assert [(each.resource, each.outcomes) for each in second.resources] == [
            (A, {"refused": Amount(1, 2, 100)}),
            (B, {"refused": Amount(1, 2, 100)}),
        ]
        assert {each.resource for each in second.rejections} == {A, B}

    def test_languages_tell_requests_and_refused_ones_but_not_held_ones_twice(self) -> None:
        recorded = Recorded()
        recorded.count((A,), "held", ANN, (1, 1, 1), ("hold", "rule", "", 0, 0))
        recorded.refuse(sender=ANN)
        recorded.admit(sender=ANN)
        recorded.admit(sender=BOB)
        recorded.admit(sender=Sender("192.0.2.3"))
        (of,) = recorded.over().resources
        assert of.languages == {"JAVA": (2, 1), "GO": (1, 0), "": (1, 0)}

    def test_a_charge_is_an_amount_without_a_request_and_in_no_language(self) -> None:
        recorded = Recorded()
        recorded.count((A,), "admitted", ANN, (0, 32, 9000))
        (of,) = recorded.over().resources
        assert (of.outcomes, of.languages) == ({"admitted": Amount(0, 32, 9000)}, {})

    def test_languages_are_bounded_and_their_sum_is_not_short(self) -> None:
        recorded = Recorded()
        for number in range(3 * MAX_LANGUAGES):
            recorded.refuse(sender=Sender("192.0.2.1", f"L{number}"))
        (of,) = recorded.over().resources
        assert len(of.languages) == MAX_LANGUAGES + 1
        assert of.languages[OTHER] == (2 * MAX_LANGUAGES, 2 * MAX_LANGUAGES)

    def test_clients_are_told_apart_by_address_up_to_a_bound(self) -> None:
        recorded = Recorded()
        for number in range(MAX_CLIENTS):
            recorded.admit(sender=Sender(f"c{number}"))
            recorded.admit(sender=Sender(f"c{number}", "GO"))
        recorded.admit(sender=Sender("c0"))
        recorded.admit(B, sender=Sender(""))
        recorded.clock.pass_s(1)
        recorded.admit(sender=Sender("c0"))
        full, without = recorded.take()[0].resources
        assert (len(full.clients), full.more_clients) == (MAX_CLIENTS, False)
        assert (without.clients, without.more_clients) == ((), False)
        for number in range(MAX_CLIENTS + 1):
            recorded.admit(sender=Sender(f"c{number}"))
        (of,) = recorded.over().resources
        assert (len(of.clients), of.more_clients) == (MAX_CLIENTS, True)


class TestRejections:
    def test_one_entry_for_each_client_group_rule_and_verdict(self) -> None:
        recorded = Recorded()
        recorded.refuse(wait_us=5)
        recorded.refuse(wait_us=9)
        recorded.refuse(wait_us=7)
        recorded.refuse(sender=BOB)
        recorded.refuse(group="h")
        recorded.refuse(rule="another")
        recorded.count((A,), "shadowed", ANN, (1, 2, 100), ("shadow", "rule", "g", 0, 0))
        recorded.count((A,), "held", ANN, (1, 2, 100), ("hold", "rule", "g", 0, 0))
        second = recorded.over()
        once = Amount(1, 2, 100)
        expected = [
            Rejection(A, "192.0.2.1", "g", "rule", "refuse", Amount(3, 6, 300), 9),
            Rejection(A, "192.0.2.2", "g", "rule", "refuse", once, 0),
            Rejection(A, "192.0.2.1", "h", "rule", "refuse", once, 0),
            Rejection(A, "192.0.2.1", "g", "another", "refuse", once, 0),
            Rejection(A, "192.0.2.1", "g", "rule", "shadow", once, 0),
            Rejection(A, "192.0.2.1", "g", "rule", "hold", once, 0),
        ]
        assert list(second.rejections) == expected
        assert second.resources[0].busy_answers == 6

    def test_beyond_the_bound_client_and_group_are_others_then_the_resource_then_the_rule(self) -> None:
        recorded = Recorded(max_keys=2, max_resources=2000)
        for number in range(3):
            recorded.refuse(A, sender=Sender(f"c{number}"))
        recorded.refuse(A, sender=Sender("c0"))
        recorded.refuse(B)
        for number in range(1001):
            recorded.refuse(Resource("topic", f"t{number}"), rule=f"r{number}")
        second = recorded.over()
        kept = {(str(each.resource), each.client, each.rule): each.amount.requests for each in second.rejections}
        assert kept[str(A), "c0", "rule"] == 2
        assert kept[str(A), "c1", "rule"] == kept[str(A), OTHER, "rule"] == kept[str(B), OTHER, "rule"] == 1
        assert kept[f"topic:{OTHER}", OTHER, "r0"] == 1
        assert kept[f"topic:{OTHER}", OTHER, OTHER] == 1
        assert sum(kept.values()) == 1006
        assert second.other == 1003

    def test_resources_beyond_the_bound_are_counted_together_unless_they_are_pinned(self) -> None:
        vip = Resource("topic", "vip")
        recorded = Recorded(max_resources=2, pinned=[vip])
        for name in ("a", "b", "c", "d", "vip", "a"):
            recorded.refuse(Resource("topic", name))
        second = recorded.over()
        assert {each.resource.name: each.outcomes["refused"].requests for each in second.resources} == {
            "a": 2,
            "b": 1,
            OTHER: 2,
            "vip": 1,
        }
        assert {each.resource.name for each in second.rejections} == {"a", "b", OTHER, "vip"}
        assert second.other == 2


class TestCollection:
    def test_the_garbage_collector_need_not_look_at_each_entry_and_account(self) -> None:
        recorded = Recorded()
        recorded.refuse(A)
        account = recorded.recorder.account(A, ANN, "refused", ("refuse", "rule", "g", 0, 0))
        (entry,) = recorded.recorder.second.resources.values()
        assert account.sums is entry.asked["JAVA", "refused"]
        assert not gc.is_tracked(entry)
        assert not gc.is_tracked(account)


class TestSeconds:
    def test_begin_and_end_with_those_on_the_wall(self) -> None:
        recorded = Recorded(clock=Clock(offset_ms=250))
        recorded.admit(messages=1)
        recorded.clock.pass_s(0.74)
        recorded.admit(messages=2)
        assert recorded.take() == []
        recorded.clock.pass_s(0.01)
        recorded.admit(messages=4)
        (first,) = recorded.take()
        assert (first.at_s, messages([first])) == (BEGAN_S, 3)
        second = recorded.over()
        assert (second.at_s, messages([second])) == (BEGAN_S + 1, 4)

    def test_silent_ones_are_left_out(self) -> None:
        recorded = Recorded()
        recorded.admit()
        recorded.clock.pass_s(10)
        assert [each.at_s for each in recorded.take()] == [BEGAN_S]
        recorded.clock.pass_s(10.5)
        assert recorded.take() == []
        recorded.admit()
        assert [each.at_s for each in recorded.take(unfinished=True)] == [BEGAN_S + 20]

    def test_what_is_taken_unfinished_goes_on_as_one_of_its_own(self) -> None:
        recorded = Recorded()
        recorded.admit(messages=1)
        (first,) = recorded.take(unfinished=True)
        recorded.clock.pass_s(0.999)
        recorded.admit(messages=2)
        (rest,) = recorded.take(unfinished=True)
        assert [(each.at_s, messages([each])) for each in (first, rest)] == [(BEGAN_S, 1), (BEGAN_S, 2)]
        recorded.admit(messages=4)
        last = recorded.over()
        assert (last.at_s, messages([last])) == (BEGAN_S, 4)

    def test_a_wall_clock_a_little_behind_makes_no_second_of_a_millisecond(self) -> None:
        recorded = Recorded()
        recorded.admit()
        recorded.clock.pass_s(1)
        recorded.clock.step_s(-0.001)
        recorded.admit()
        recorded.clock.pass_s(1.002)
        assert [(each.at_s, each.stepped_s) for each in recorded.take()] == [(BEGAN_S, 0), (BEGAN_S + 1, 0)]

    def test_a_clock_set_forward_is_told_by_the_next_second(self) -> None:
        recorded = Recorded()
        recorded.admit()
        recorded.clock.step_s(3600)
        recorded.admit()
        recorded.clock.pass_s(1)
        recorded.admit()
        recorded.clock.pass_s(1)
        recorded.admit()
        recorded.clock.pass_s(1)
        assert [(each.at_s - BEGAN_S, each.stepped_s, messages([each])) for each in recorded.take()] == [
            (0, 0, 2),
            (3601, 3600, 1),
            (3602, 0, 1),
        ]

    def test_a_clock_set_back_is_told_and_nothing_is_lost(self) -> None:
        recorded = Recorded()
        recorded.admit()
        recorded.clock.step_s(-7.5)
        recorded.clock.pass_s(1)
        recorded.admit()
        recorded.clock.pass_s(1)
        recorded.admit()
        recorded.clock.pass_s(1)
        seconds = recorded.take()
        assert [(each.at_s - BEGAN_S, each.stepped_s) for each in seconds] == [(0, 0), (-7, -8), (-6, 0)]
        assert messages(seconds) == 3

    def test_a_clock_set_back_by_less_than_a_second_makes_two_of_the_same(self) -> None:
        recorded = Recorded()
        recorded.admit()
        recorded.clock.pass_s(1)
        recorded.clock.step_s(-0.3)
        recorded.admit()
        recorded.clock.pass_s(0.3)
        recorded.admit()
        recorded.clock.pass_s(1)
        assert [each.at_s - BEGAN_S for each in recorded.take()] == [0, 0, 1]

    def test_a_step_in_a_silence_is_told_by_the_first_that_is_not_silent(self) -> None:
        recorded = Recorded()
        recorded.clock.step_s(100)
        for _ in range(5):
            recorded.clock.pass_s(1)
            assert recorded.take() == []
        recorded.admit()
        assert recorded.over().stepped_s == 100


class TestLateTaker:
    def test_a_bounded_number_is_kept_and_the_last_goes_on(self) -> None:
        recorded = Recorded()
        for _ in range(3 * KEPT_S):
            recorded.admit()
            recorded.clock.pass_s(1)
        seconds = recorded.take()
        assert [each.at_s - BEGAN_S for each in seconds] == list(range(KEPT_S + 1))
        assert [each.seconds for each in seconds] == [1] * KEPT_S + [2 * KEPT_S]
        assert messages(seconds) == 3 * KEPT_S
        recorded.admit()
        assert recorded.over().seconds == 1

    def test_what_is_kept_is_bounded_by_what_it_holds_too(self) -> None:
        recorded = Recorded(max_keys=5, max_resources=5)
        for at in range(KEPT_S):
            for number in range(20):
                recorded.refuse(Resource("topic", f"t{at}.{number}"), sender=Sender(f"c{number}"))
            recorded.clock.pass_s(1)
        seconds = recorded.take()
        assert len(seconds) < 10
        assert sum(len(each.resources) + len(each.rejections) for each in seconds) < 200
        assert messages(seconds) == 2 * 20 * KEPT_S

    def test_a_step_of_the_clock_meanwhile_is_told_later(self) -> None:
        recorded = Recorded()
        for _ in range(KEPT_S + 5):
            recorded.admit()
            recorded.clock.pass_s(1)
        recorded.clock.step_s(50)
        recorded.admit()
        recorded.clock.pass_s(1)
        recorded.take()
        recorded.admit()
        assert recorded.over().stepped_s == 50

    def test_what_came_to_nothing_is_taken_back_before_what_came_since(self) -> None:
        recorded = Recorded()
        recorded.admit(messages=1)
        recorded.clock.pass_s(1)
        recorded.admit(messages=2)
        raw = recorded.recorder.take(recorded.clock.now_ns, recorded.clock.wall_ns, unfinished=False)
        recorded.clock.pass_s(1)
        recorded.admit(messages=4)
        recorded.recorder.put_back(raw)
        recorded.clock.pass_s(1)
        assert [messages([each]) for each in recorded.take()] == [1, 2, 4]


OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
VERDICTS: tuple[RejectionVerdict, ...] = get_args(RejectionVerdict)
NAMES = ["a", "b", "c", "d", OTHER]


@given(
    max_keys=st.integers(1, 4),
    max_resources=st.integers(1, 4),
    told=st.lists(
        st.tuples(
            st.lists(st.builds(Resource, st.sampled_from(["topic", "queue"]), st.sampled_from(NAMES)), min_size=1),
            st.sampled_from(OUTCOMES),
            st.builds(Sender, st.sampled_from(["", "c", "d", "e"]), st.sampled_from(["", "JAVA", OTHER])),
            st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 999)),
            st.none()
            | st.tuples(
                st.sampled_from(VERDICTS),
                st.sampled_from(["r", "s", OTHER]),
                st.sampled_from(["", "g", OTHER]),
                st.integers(0, 99),
                st.integers(0, 3),
            ),
            st.sampled_from([0.0, 0.0, 0.3, 1.0, 70.0]),
            st.sampled_from([0.0, 0.0, 0.0, -0.4, 5.0, -5.0]),
            st.sampled_from(["no", "no", "take", "unfinished"]),
        ),
        max_size=60,
    ),
)
def test_no_sum_is_ever_short_whatever_is_told_and_whenever_it_is_taken(
    max_keys: int, max_resources: int, told: list[Any]
) -> None:
    recorded = Recorded(max_keys, max_resources)
    taken: list[TrafficSecond] = []
    outcomes: Counter[tuple[str, str, str]] = Counter()
    rejected: Counter[tuple[str, str, str]] = Counter()
    languages: Counter[str] = Counter()
    answers = longest_us = 0
    for resources, outcome, sender, amount, judged, passed_s, stepped_s, take in told:
        recorded.clock.pass_s(passed_s)
        recorded.clock.step_s(stepped_s)
        recorded.count(resources, outcome, sender, amount, judged)
        for resource in resources:
            for word, value in zip(Amount.__struct_fields__, amount, strict=True):
                outcomes[resource.kind, outcome, word] += value
                if judged is not None:
                    rejected[resource.kind, judged[0], word] += value
            if outcome != "held":
                languages["asked"] += amount[0]
            if outcome == "refused":
                languages["refused"] += amount[0]
            if judged is not None:
                longest_us = max(longest_us, judged[3])
                answers += judged[4]
        if take != "no":
            taken += recorded.take(unfinished=take == "unfinished")
    taken += recorded.take(unfinished=True)
    assert recorded.take(unfinished=True) == []
    for second in taken:
        for of in second.resources:
            for found, amount_of in of.outcomes.items():
                for word in Amount.__struct_fields__:
                    outcomes[of.resource.kind, found, word] -= getattr(amount_of, word)
            languages["asked"] -= sum(asked for asked, _ in of.languages.values())
            languages["refused"] -= sum(refused for _, refused in of.languages.values())
            answers -= of.busy_answers
        for rejection in second.rejections:
            for word in Amount.__struct_fields__:
                rejected[rejection.resource.kind, rejection.verdict, word] -= getattr(rejection.amount, word)
        kinds = 2
        assert len(second.resources) <= max_resources + kinds
        assert (
            len(
                {
                    (each.resource, each.client, each.producer_group, each.rule, each.verdict)
                    for each in second.rejections
                }
            )
            == len(second.rejections)
            <= 2 * max_keys + 1000 + 3 * kinds
        )
    assert not any((outcomes - Counter()).values())
    assert not any(outcomes.values())
    assert not any(rejected.values())
    assert not any(languages.values())
    assert answers == 0
    assert max((each.wait_max_us for second in taken for each in second.rejections), default=0) == longest_us
