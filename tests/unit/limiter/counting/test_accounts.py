"""The accounts with the data path's calls, on manual clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limiter.counting import accounts as module
from limiter.counting.accounts import NEVER, Accounts, Usage
from limiter.counting.rejections import (
    DID,
    OTHER,
    OUTCOMES,
    Amount,
    Outcome,
    RejectionVerdict,
    TrafficSecond,
)
from limiter.counting.row import KEPT_S, MAX_SENDERS, Row
from limiter.counting.seconds import MAX_LANGUAGES, Judged
from limiter.rules.resource import Resource
from limiter.rules.rule import Rule

S: Final = 1_000_000_000
BEGAN_S: Final = 1_800_000_000
LONG_S: Final = module._SILENT_S
ANN: Final = ("192.0.2.1", "JAVA")
BOB: Final = ("192.0.2.2", "GO")


def topic(name: str) -> Resource:
    return Resource("topic", name)


class Told:
    def __init__(self, *bounds: int, offset_s: float = 0.0, taking: bool = True) -> None:
        self.now_ns = 5 * S
        self.wall_ns = BEGAN_S * S + round(offset_s * S)
        self.accounts = Accounts(*bounds, now_ns=self.now_ns, wall_ns=lambda: self.wall_ns)
        if taking:
            assert self.take() == []

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)
        self.wall_ns += round(seconds * S)

    def step_s(self, seconds: float) -> None:
        self.wall_ns += round(seconds * S)

    def count(
        self,
        *names: str,
        outcome: Outcome = "admitted",
        sender: tuple[str, ...] = ANN,
        amount: tuple[int, int, int] = (1, 1, 100),
    ) -> None:
        self.accounts.count(self.now_ns, list(map(topic, names)), self.accounts.sender(*sender), outcome, amount)

    def judge(
        self,
        *names: str,
        verdict: RejectionVerdict = "refuse",
        rule: str = "rule",
        group: str = "g",
        wait_us: int = 0,
        told: int = 0,
        sender: tuple[str, ...] = ANN,
        amount: tuple[int, int, int] = (1, 2, 100),
    ) -> None:
        judged = Judged(verdict, rule, group, wait_us, told)
        self.accounts.count(self.now_ns, list(map(topic, names)), self.accounts.sender(*sender), judged, amount)

    def take(self, *, unfinished: bool = False) -> list[TrafficSecond]:
        taken = self.accounts.take(self.now_ns, unfinished=unfinished)
        seconds = [second for second in self.accounts.steps_of(taken) if second is not None]
        for span in taken:
            assert len(list(span.drain())) >= len(span) == 0
        return seconds

    def over(self) -> TrafficSecond:
        """Let the second pass, and return it."""
        self.pass_s(1)
        (second,) = self.take()
        return second

    def shown(self, since_ns: int = 0) -> dict[str, dict[Outcome, int]]:
        """Return the requests by visible name, without zeros."""
        found = [each for each in self.accounts.each(since_ns) if each is not None]
        assert len({resource for resource, _ in found}) == len(found)
        return {
            resource.name: {word: requests for word, (requests, *_) in zip(OUTCOMES, amounts, strict=True) if requests}
            for resource, amounts in found
        }


def messages(seconds: Iterable[TrafficSecond]) -> int:
    return sum(amount.messages for each in seconds for of in each.resources for amount in of.outcomes.values())


class TestResourcesOfASecond:
    def test_languages_tell_requests_and_refused_ones_but_neither_held_ones_nor_charges(self) -> None:
        told = Told()
        told.judge("a", verdict="hold")
        told.count("a", amount=(0, 32, 9000), sender=("192.0.2.9", "C"))
        told.judge("a")
        for sender in (ANN, BOB, ("192.0.2.1", "")):
            told.count("a", sender=sender)
        (of,) = told.over().resources
        assert of.languages == {"JAVA": (2, 1), "GO": (1, 0), "": (1, 0)}
        assert of.clients == ("192.0.2.1", "192.0.2.9", "192.0.2.2")

    def test_languages_and_clients_are_bounded_and_no_sum_is_short(self) -> None:
        told = Told()
        for number in range(3 * MAX_LANGUAGES):
            told.judge("a", sender=("192.0.2.1", f"L{number}"))
        for number in range(MAX_SENDERS):
            told.count("b", sender=(f"c{number}", "GO"))
        told.count("b", sender=("c0", "GO"))
        told.count("c", sender=("", ""))
        a, full, nobody = told.over().resources
        assert (len(a.languages), a.languages[OTHER]) == (MAX_LANGUAGES + 1, (2 * MAX_LANGUAGES, 2 * MAX_LANGUAGES))
        assert (len(full.clients), full.more_clients) == (MAX_SENDERS, False)
        assert (nobody.clients, nobody.more_clients) == ((), False)
        for number in range(MAX_SENDERS + 2):
            told.judge("b", sender=(f"c{number}", "GO"))
        (of,) = told.over().resources
        assert (len(of.clients), of.more_clients) == (MAX_SENDERS, True)
        assert of.languages == {"GO": (MAX_SENDERS, MAX_SENDERS), OTHER: (2, 2)}


class TestRejections:
    def test_beyond_the_bound_client_and_group_are_others_then_the_resource_then_the_rule(self) -> None:
        told = Told(1000, 2, 2000)
        for number in (0, 1, 2, 0):
            told.judge("a", sender=(f"c{number}", ""))
        told.judge("b")
        for number in range(1001):
            told.judge(f"t{number}", rule=f"r{number}")
        second = told.over()
        kept = {(each.resource.name, each.client, each.rule): each.amount.requests for each in second.rejections}
        assert kept["a", "c0", "rule"] == 2
        assert kept["a", "c1", "rule"] == kept["a", OTHER, "rule"] == kept["b", OTHER, "rule"] == 1
        assert kept[OTHER, OTHER, "r0"] == kept[OTHER, OTHER, OTHER] == 1
        assert (sum(kept.values()), second.other) == (1006, 1003)


class TestSeconds:
    def test_silent_ones_are_left_out(self) -> None:
        told = Told()
        told.count("a")
        told.pass_s(10)
        assert [each.at_s for each in told.take()] == [BEGAN_S]
        told.pass_s(10.5)
        assert told.take() == []
        told.count("a")
        assert [each.at_s for each in told.take(unfinished=True)] == [BEGAN_S + 20]

    def test_unfinished_second_continues_as_its_own_entry(self) -> None:
        told = Told()
        told.count("a", amount=(1, 1, 1))
        seconds = told.take(unfinished=True)
        told.pass_s(0.999)
        told.count("a", amount=(1, 2, 1))
        seconds += told.take(unfinished=True)
        told.count("a", amount=(1, 4, 1))
        seconds.append(told.over())
        assert [(each.at_s, messages([each])) for each in seconds] == [(BEGAN_S, 1), (BEGAN_S, 2), (BEGAN_S, 4)]

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            pytest.param([(1, -0.001), (1.002, 0)], [(0, 0), (1, 0)], id="a little behind"),
            pytest.param([(0, 3600), (1, 0), (1, 0)], [(0, 0), (3601, 3600), (3602, 0)], id="forward"),
            pytest.param([(0, -7.5), (1, 0), (1, 0)], [(0, 0), (-7, -8), (-6, 0)], id="back"),
            pytest.param([(1, -0.3), (0.3, 0)], [(0, 0), (0, 0), (1, 0)], id="back by less than a second"),
        ],
    )
    def test_clock_step_is_reported_and_loses_nothing(
        self, steps: list[tuple[float, float]], expected: list[tuple[int, int]]
    ) -> None:
        told = Told()
        told.count("a")
        for passed_s, stepped_s in steps:
            told.pass_s(passed_s)
            told.step_s(stepped_s)
            told.count("a")
        told.pass_s(1)
        seconds = told.take()
        assert [(each.at_s - BEGAN_S, each.stepped_s) for each in seconds][: len(expected)] == expected
        assert messages(seconds) == len(steps) + 1


class TestLateTaker:
    def test_spans_are_bounded_and_the_last_continues(self) -> None:
        told = Told()
        for _ in range(3 * KEPT_S):
            told.count("a")
            told.accounts.row(topic("a"), told.now_ns).spend(told.accounts.at(told.now_ns), 0, 5)
            told.pass_s(1)
        seconds = told.take()
        assert [each.at_s - BEGAN_S for each in seconds] == list(range(KEPT_S + 1))
        assert [each.seconds for each in seconds] == [1] * KEPT_S + [2 * KEPT_S]
        assert messages(seconds) == 3 * KEPT_S
        usage = told.accounts.usage(told.now_ns, topic("a"), Rule("topic", "a", 10), "messages")
        assert usage == Usage(0.5, 0.5, 0.5)
        told.count("a")
        assert told.over().seconds == 1

    def test_memory_of_spans_is_bounded_by_their_content(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MIN_ROWS", 5)
        told = Told(5, 5, 5)
        for at in range(KEPT_S):
            for number in range(20):
                told.judge(f"t{at}.{number}", sender=(f"c{number}", ""))
            told.pass_s(LONG_S)
        seconds = told.take()
        assert len(seconds) < 10
        assert sum(len(each.resources) + len(each.rejections) for each in seconds) < 200
        assert messages(seconds) == 2 * 20 * KEPT_S


class TestNames:
    def test_those_beyond_the_rows_share_one_and_find_their_own_when_there_is_room(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_MIN_ROWS", 1)
        told = Told(1, 1, 1)
        told.count("a", "b", "c", "d")
        assert [each.resource.name for each in told.over().resources] == ["a", OTHER]
        shared = told.accounts.row(topic("c"), told.now_ns)
        assert (shared.resource.name, shared.shared, shared.retired) == (OTHER, True, False)
        told.pass_s(LONG_S)
        told.count("a", "c")
        assert told.accounts.row(topic("c"), told.now_ns).resource.name == "c"

    def test_a_silent_name_gives_its_label_to_a_new_one(self) -> None:
        told = Told(1)
        told.judge("old", "old", wait_us=9)
        row = told.accounts.row(topic("old"), told.now_ns)
        told.pass_s(LONG_S)
        told.count("new")
        assert told.shown() == {"new": {"admitted": 1}, OTHER: {"refused": 2}}
        assert (row.retired, told.accounts.last_stop(topic("old"))) == (True, NEVER)

    def test_recently_active_name_keeps_its_label(self) -> None:
        told = Told(2)
        told.count("old", "spends")
        told.pass_s(LONG_S - 1)
        told.count("old")
        told.accounts.row(topic("spends"), 0).spend(told.accounts.at(told.now_ns), 0, 1)
        told.pass_s(1)
        told.count("new")
        assert told.shown() == {"old": {"admitted": 2}, "spends": {"admitted": 1}, OTHER: {"admitted": 1}}

    def test_a_silent_name_is_found_among_busy_ones_in_time(self) -> None:
        told = Told(50)
        busy = [f"busy{number}" for number in range(49)]
        told.count("silent", *busy)
        told.pass_s(LONG_S)
        for turn in range(50):
            told.count(*busy, f"new{turn}")
        assert "silent" not in told.shown()

    def test_nothing_counts_twice_when_a_name_is_retired(self) -> None:
        told = Told(2)
        told.count("a", "b")
        each = told.accounts.each()
        assert next(each) is not None
        told.pass_s(LONG_S)
        told.count("new")
        assert [found and found[0].name for found in each] == ["b"]


class TestPinned:
    def test_names_are_outside_the_bound_and_shown_before_their_first_request(self) -> None:
        told = Told(1)
        told.accounts.pin([topic("vip"), topic("second")])
        assert told.shown() == {"vip": {}, "second": {}}
        told.count("a", "b", "vip")
        assert told.shown().keys() == {"vip", "second", "a", OTHER}

    def test_pinning_keeps_visible_counts_and_frees_the_place(self) -> None:
        told = Told(1)
        told.count("a", "b")
        row = told.accounts.row(topic("b"), 0)
        for _ in range(2):
            told.accounts.pin([topic("a"), topic("b")])
        told.count("a", "b", "c")
        assert told.shown() == {
            "a": {"admitted": 2},
            "b": {"admitted": 1},
            "c": {"admitted": 1},
            OTHER: {"admitted": 1},
        }
        assert row.retired
        assert [(each.resource.name, each.outcomes["admitted"].requests) for each in told.over().resources] == [
            ("a", 2),
            ("b", 2),
            ("c", 1),
        ]

    def test_scopes_are_not_shown_but_have_their_row_whatever_the_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MIN_ROWS", 1)
        told = Told(1, 1, 1)
        accounts, scopes = told.accounts, [Resource("client", str(number)) for number in range(4)]
        accounts.pin(scopes[2:])

        def spend(*some: Resource) -> list[Row]:
            second = accounts.at(told.now_ns)
            rows = [accounts.row(scope, told.now_ns) for scope in some]
            for row in rows:
                row.spend(second, 0, 1)
            return rows

        assert [row.resource.name for row in spend(*scopes)] == ["0", OTHER, "2", "3"]
        assert list(accounts.scopes(told.now_ns)) == [scopes[0], *scopes[2:]] == list(accounts.spent())
        assert told.shown() == {}
        told.pass_s(KEPT_S + 1)
        accounts.unpin(scopes[2:])
        assert [row.resource.name for row in spend(scopes[1])] == ["1"]
        assert list(accounts.scopes(told.now_ns)) == [scopes[1]]


class TestStopsAndRules:
    def test_each_rules_actions_count_once_for_requests_with_several_resources(self) -> None:
        told = Told(2)
        for verdict in get_args(RejectionVerdict):
            told.judge("a", "b", verdict=verdict, rule="one", amount=(1, 4, 100))
        for rule in ("two", "three", "four", "one"):
            told.judge("a", rule=rule, amount=(1, 2, 100))
        assert told.accounts.rules == {
            "one": {"refuse": (2, 6), "shadow": (1, 4), "hold": (1, 4)},
            "two": {"refuse": (1, 2)},
            OTHER: {"refuse": (2, 4)},
        }


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 25 * S) | st.integers(0, 130 * S), st.integers(0, 50), st.booleans()), max_size=60
    ),
    look_after_ns=st.integers(0, 70 * S),
)
def test_usage_is_exact(steps: list[tuple[int, int, bool]], look_after_ns: int) -> None:
    accounts, now_ns, spent = Accounts(), 0, list[tuple[int, int]]()
    rule, refuse_all = Rule("topic", "*", 10), Rule("topic", "*", 0)
    for pause_ns, permits, counted in steps:
        now_ns += pause_ns
        row = accounts.row(topic("a"), now_ns)
        row.spend(accounts.at(now_ns), 0, permits)
        if counted:
            accounts.count(now_ns, [topic("a")], accounts.sender("c"), "admitted", (1, permits, 1))
        spent.append((now_ns // S, permits))
    now_ns += look_after_ns
    found = accounts.usage(now_ns, topic("a"), rule, "messages")
    windows = [[permits for at, permits in spent if now_ns // S - s <= at < now_ns // S] for s in (1, 10, 60)]
    if windows[2]:
        assert found == Usage(*(sum(window) / (10 * s) for window, s in zip(windows, (1, 10, 60), strict=True)))
        assert accounts.usage(now_ns, topic("a"), refuse_all, "messages") == Usage(*map(bool, windows))
    else:
        assert found is None
    assert accounts.usage(now_ns, topic("a"), rule, "bytes") is None


KINDS = ["topic", "queue"]
NAMES = ["a", "b", "c", "d", OTHER]


@given(
    bounds=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 4)),
    pinned=st.sets(st.sampled_from(NAMES), max_size=2),
    told_of=st.lists(
        st.tuples(
            st.lists(st.builds(Resource, st.sampled_from(KINDS), st.sampled_from(NAMES)), min_size=1, max_size=4),
            st.sampled_from(OUTCOMES),
            st.tuples(st.sampled_from(["", "c", "d"]), st.sampled_from(["", "JAVA", OTHER])),
            st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 999)),
            st.tuples(
                st.sampled_from(["r", "s", OTHER]),
                st.sampled_from(["", "g", OTHER]),
                st.integers(0, 99),
                st.integers(0, 3),
            ),
            st.sampled_from([0.0, 0.0, 0.3, 1.0, 70.0, float(LONG_S)]),
            st.sampled_from([0.0, 0.0, 0.0, -0.4, 5.0, -5.0]),
            st.sampled_from(["no", "no", "take", "unfinished", "pin", "unpin"]),
        ),
        max_size=60,
    ),
)
def test_sums_are_complete_and_never_fall(bounds: tuple[int, int, int], pinned: set[str], told_of: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MIN_ROWS", 2)
        told = Told(*bounds)
    accounts = told.accounts
    taken: list[TrafficSecond] = []
    counted: Counter[Any] = Counter()
    logged: Counter[Any] = Counter()
    other: Counter[Any] = Counter()
    longest_us = 0
    for resources, outcome, sender, amount, (rule, group, wait_us, answers), passed_s, stepped_s, what in told_of:
        told.pass_s(passed_s)
        told.step_s(stepped_s)
        verdict = next((each for each, did in DID.items() if did == outcome), None)
        who = accounts.sender(*sender)
        word = outcome if verdict is None else Judged(verdict, rule, group, wait_us, answers)
        accounts.count(told.now_ns, resources, who, word, amount)
        longest_us = max(longest_us, 0 if verdict is None else wait_us)
        for resource in resources:
            for word, value in zip(Amount.__struct_fields__, amount, strict=True):
                counted[resource.kind, outcome, word] += value
                counted[resource.kind, "rejected", verdict, word] += 0 if verdict is None else value
            counted["answers"] += 0 if verdict is None else answers
            counted["asked"] += 0 if outcome == "held" else amount[0]
            counted["refused"] += amount[0] if outcome == "refused" else 0
        shown: Counter[Any] = Counter()
        for resource, amounts in filter(None, accounts.each()):
            for word, sums in zip(OUTCOMES, amounts, strict=True):
                for name, value in zip(Amount.__struct_fields__, sums, strict=True):
                    shown[resource.kind, word, name] += value
                    if resource.name == OTHER:
                        assert value >= other[resource.kind, word, name]
                        other[resource.kind, word, name] = value
        assert all(shown[key] == counted[key] for key in counted if key[1] in OUTCOMES and key[1] != "held")
        match what:
            case "pin":
                accounts.pin(topic(name) for name in pinned)
            case "unpin":
                accounts.unpin(topic(name) for name in pinned)
            case "take" | "unfinished":
                taken += told.take(unfinished=what == "unfinished")
    taken += told.take(unfinished=True)
    assert told.take(unfinished=True) == []
    for second in taken:
        for of in second.resources:
            for found, amount_of in of.outcomes.items():
                for word in Amount.__struct_fields__:
                    logged[of.resource.kind, found, word] += getattr(amount_of, word)
            logged["asked"] += sum(asked for asked, _ in of.languages.values())
            logged["refused"] += sum(refused for _, refused in of.languages.values())
            logged["answers"] += of.busy_answers
        for rejection in second.rejections:
            for word in Amount.__struct_fields__:
                key = (rejection.resource.kind, "rejected", rejection.verdict, word)
                logged[key] += getattr(rejection.amount, word)
        assert len(second.resources) <= bounds[2] + len(pinned) + len(KINDS)
        keys = [
            (each.resource, each.client, each.producer_group, each.rule, each.verdict) for each in second.rejections
        ]
        assert len(set(keys)) == len(keys) <= 2 * bounds[1] + 1000 + 3 * len(KINDS)
    assert +logged == +counted
    assert max((each.wait_max_us for second in taken for each in second.rejections), default=0) == longest_us
