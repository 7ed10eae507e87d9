from typing import Any

import pytest

from admin.analytics import edits
from admin.analytics.edits import Piece
from admin.analytics.findings import Curve, Edit, Held, LimitChange, Point

NOON_S = 1_795_262_400


def change(at_s: int, before: float | None, after: float | None, name: str = "orders-1", **how: Any) -> LimitChange:
    fields: dict[str, Any] = {"instance": "a", "change_id": at_s, "action": "set", "kind": "topic"}
    return LimitChange(
        **(fields | how), name=name, at_s=NOON_S + at_s, rate_before_per_s=before, rate_after_per_s=after
    )


def points(step_s: int, limits: dict[int, float | None]) -> list[Point]:
    return [
        Point(at_s=NOON_S + at_s, admitted_per_s=1, refused_per_s=0, peak_per_s=1, limit_per_s=limit)
        for at_s, limit in limits.items()
    ]


def line(step_s: int, limits: dict[int, float | None], *changes: LimitChange) -> list[tuple[int, int, float | None]]:
    placed, found = edits.placed(points(step_s, limits), step_s, changes, "topic", "orders-1")
    curve = Curve(
        instance="a", kind="topic", name="orders-1", step_s=step_s, admitted=1, refused=0, points=placed, edits=found
    )
    return [(piece.from_s - NOON_S, piece.until_s - NOON_S, piece.limit_per_s) for piece in edits.limit_line(curve)]


def test_a_curve_of_seconds_has_the_limit_of_before_until_the_edit() -> None:
    # The minute from 60 on ends with 1000.
    found = line(20, {40: 200.0, 60: 1000.0, 80: 1000.0, 100: 1000.0}, change(90, None, 1000.0))
    assert found == [(40, 60, 200), (60, 80, 200), (80, 90, 200), (90, 100, 1000), (100, 120, 1000)]


def test_a_step_of_minutes_is_cut_where_the_edit_was() -> None:
    assert line(60, {0: 200.0, 60: 1000.0, 120: 1000.0}, change(100, None, 1000.0)) == [
        (0, 60, 200),
        (60, 100, 200),
        (100, 120, 1000),
        (120, 180, 1000),
    ]


def test_several_edits_in_a_minute_follow_each_other() -> None:
    changes = (change(70, 200.0, 500.0), change(80, 500.0, None, action="unset"), change(90, None, 1000.0))
    assert line(60, {0: 200.0, 60: 1000.0}, *reversed(changes)) == [
        (0, 60, 200),
        (60, 70, 200),
        (70, 80, 500),
        (80, 90, None),
        (90, 120, 1000),
    ]


def test_an_edit_while_nothing_is_asked_for_is_no_piece_and_is_not_forgotten() -> None:
    assert line(60, {0: 200.0, 180: 1000.0}, change(70, 200.0, 500.0), change(200, None, 1000.0)) == [
        (0, 60, 200),
        (180, 200, 500),
        (200, 240, 1000),
    ]


def test_before_the_first_edit_nothing_is_drawn_that_is_not_known() -> None:
    assert line(60, {0: 1000.0}, change(30, None, 1000.0)) == [(0, 30, None), (30, 60, 1000)]
    assert line(60, {0: 1000.0}, change(30, 5.0, 1000.0)) == [(0, 30, 5), (30, 60, 1000)]
    assert line(60, {0: 1000.0}, change(0, 5.0, 1000.0)) == [(0, 60, 1000)]


@pytest.mark.parametrize(
    ("how", "cuts"),
    [
        ({"name": "orders-*"}, True),
        ({"name": "", "kind": "", "action": "reload"}, True),
        ({"name": "bills-*"}, False),
        ({"name": "orders-*", "kind": "retry_group"}, False),
        ({"name": "", "kind": "all"}, False),
    ],
    ids=["its pattern", "reload", "another pattern", "another kind", "a switch"],
)
def test_what_may_change_the_limit_is_the_name_its_patterns_and_the_configuration(
    how: dict[str, Any], *, cuts: bool
) -> None:
    found = line(60, {0: 200.0, 60: 300.0}, change(100, 2.0, 3.0, **how))
    assert found == [(0, 60, 200), *([(60, 100, 200), (100, 120, 300)] if cuts else [(60, 120, 300)])]


def test_an_edit_without_an_effect_is_no_cut_to_be_seen() -> None:
    pieces = edits.limit_line(
        Curve(
            instance="a", kind="topic", name="t", step_s=60, admitted=1, refused=0, points=tuple(points(60, {0: None})),
            edits=(Edit(at_s=NOON_S, before_per_s=1), Edit(at_s=NOON_S + 30), Edit(at_s=NOON_S + 30, before_per_s=4)),
        )
    )  # fmt: skip
    assert pieces == [Piece(NOON_S, NOON_S + 30, None), Piece(NOON_S + 30, NOON_S + 60, None)]


def test_what_held_is_asked_for_where_there_was_no_limit_of_its_own() -> None:
    clear = change(50, 1.0, 2.0)
    own, other, pattern = change(40, None, 2.0), change(30, 1.0, 2.0, "bills"), change(20, 1.0, 2.0, "orders-*")
    before, after = change(10, None, None, action="unset"), change(60, 1.0, 2.0)
    every = [after, clear, own, other, pattern, before]
    (found,) = edits.unclear(every, [own])
    assert found == (own, NOON_S + 20, NOON_S + 20, NOON_S + 50)
    assert edits.unclear(every, [clear, other]) == []
    assert [each.change for each in edits.unclear(every, [pattern, before])] == [before]
    (first,) = edits.unclear([own, before], [own])
    assert (first.from_s, first.rules_from_s, first.until_s) == (NOON_S + 10, 0, None)
    elsewhere = change(35, 1.0, 2.0, "orders-*", instance="b")
    assert edits.unclear([own, elsewhere], [own]) == [(own, 0, 0, None)]


def rule(name: str, rate: float | None, *, seen_s: int = NOON_S, kind: str = "topic", **how: Any) -> dict[str, Any]:
    fields = {"instance": "a", "rule": f"{kind}:{name}", "action": "reject", "seen_s": seen_s}
    return {"kind": kind, "name": name, "rate_per_s": rate, **fields, **how}


def test_of_written_rules_the_most_specific_pattern_is_what_held() -> None:
    rules = [
        rule("*", 2000.0),
        rule("orders-*", 200.0),
        rule("o*", 5.0),
        rule("bills", 7.0),
        rule("*", 1.0, kind="client"),
    ]
    assert edits.by_rules(rules, "topic", "orders-1") == Held(rule="topic:orders-*", rate_per_s=200)
    assert edits.by_rules(rules, "topic", "x") == Held(rule="topic:*", rate_per_s=2000)
    assert edits.by_rules([rule("orders-*", 200.0, action="off")], "topic", "orders-1") == Held(rule="topic:orders-*")
    # The edit itself was written down, or a limit of bytes.
    assert edits.by_rules([*rules, rule("orders-1", 9.0)], "topic", "orders-1") == Held(
        rule="topic:orders-*", rate_per_s=200
    )
    assert edits.by_rules([*rules, rule("orders-1", None)], "topic", "orders-1") == Held(rule="topic:orders-1")
    networks = [rule("10.0.0.0/8", 5.0, kind="client"), rule("10.1.0.0/16", 6.0, kind="client")]
    assert edits.by_rules(networks, "client", "10.1.2.3") == Held(rule="client:10.1.0.0/16", rate_per_s=6)
    assert edits.by_rules([], "topic", "orders-1") is None
    by_the_clock = rule("orders-?", 1.0, rule="topic:orders-? 22:00-06:00 UTC")
    assert edits.by_rules([*rules, by_the_clock], "topic", "orders-1") is None


def test_rules_stand_as_they_were_written_down_last_before_the_edit() -> None:
    day_s = 86_400
    yesterday, today = rule("a", 1.0, seen_s=NOON_S - day_s), rule("b", 1.0, seen_s=NOON_S)
    gone = rule("c", 1.0, seen_s=NOON_S - 7200)
    rules = [yesterday, gone, today]
    assert edits.stood(rules, "a", NOON_S + 5) == [today]
    assert edits.stood(rules, "a", NOON_S + day_s) == [today]
    # They were written down anew later that day, in place of those that stood at this moment.
    assert edits.stood(rules, "a", NOON_S - 5) == []
    assert edits.stood(rules, "a", NOON_S - day_s + 5) == [yesterday]
    assert edits.stood(rules, "b", NOON_S + 5) == []
