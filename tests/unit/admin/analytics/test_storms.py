"""Storms from the parts of hours: over hours and midnight, who was in them, and whether they go on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_rows import MONDAY_S, Run, lines_of, rows_of

from admin.analytics.storms import Row, storms
from admin.analytics.tables import STORMS, day_of

GAP_S = 30
LATER_S = MONDAY_S + 10**6
MIDNIGHT_S = MONDAY_S + 86_400


def _storms(
    *seconds: tuple[int, str, int], gap_s: int = GAP_S, newest_s: int = LATER_S, top: int = 10, **fields: Any
) -> list[Row]:
    """Return storms of refusals, each as second, client and messages."""
    run = Run()
    for at_s, client, messages in seconds:
        run.rejection(at_s, messages, client=client, **fields)
    hours = rows_of(lines_of(run.records), gap_s=gap_s)["hours"]
    parts = [part for row in hours for part in row["storm_parts"]]
    return list(storms(("a", "topic", "orders"), parts, gap_s=gap_s, newest_s=newest_s, top=top))


def _at(*seconds: int) -> list[tuple[int, str, int]]:
    return [(at_s, "c", 5) for at_s in seconds]


def _ends(found: list[Row]) -> list[tuple[int, int]]:
    return [(storm["start_s"], storm["end_s"]) for storm in found]


def test_a_storm_has_the_columns_of_its_table() -> None:
    (storm,) = _storms((MONDAY_S, "c", 5), wait_max_us=9)
    assert tuple(sorted(storm)) == tuple(sorted(STORMS.names))
    expected = {
        "instance": "a", "kind": "topic", "name": "orders", "shadow": False, "start_s": MONDAY_S, "end_s": MONDAY_S + 1,
        "requests": 5, "messages": 5, "bytes": 500, "wait_max_us": 9, "refused_seconds": 1, "peak_per_s": 5,
        "peak_at_s": MONDAY_S, "client_count": 1, "user_count": 1, "producer_group_count": 1, "is_open": False,
        "rules": [{"name": "topic:orders", "messages": 5, "share": 1.0}], "dt": day_of(MONDAY_S),
    }  # fmt: skip
    assert {name: storm[name] for name in expected} == expected


def test_a_storm_over_midnight_is_one_on_the_day_it_began() -> None:
    (storm,) = _storms(*_at(*range(MIDNIGHT_S - 40, MIDNIGHT_S + 40)))
    assert _ends([storm]) == [(MIDNIGHT_S - 40, MIDNIGHT_S + 40)]
    assert (storm["dt"], storm["messages"], storm["refused_seconds"]) == (day_of(MONDAY_S), 400, 80)


@pytest.mark.parametrize("hour_s", [MONDAY_S + 3600, MIDNIGHT_S])
def test_refusals_exactly_the_gap_apart_are_of_one_storm_over_the_hour_too(hour_s: int) -> None:
    for before in (1, 17, GAP_S):
        first = hour_s - before
        assert len(_storms(*_at(first, first + GAP_S))) == 1
        assert len(_storms(*_at(first, first + GAP_S + 1))) == 2


def test_gaps_as_wide_as_an_hour_are_as_exact() -> None:
    at = [MONDAY_S + each for each in (10, 3610, 7211, 7212)]
    assert _ends(_storms(*_at(*at), gap_s=3600)) == [(at[0], at[1] + 1), (at[2], at[3] + 1)]
    assert _ends(_storms(*_at(*at), gap_s=1)) == [(at[0], at[0] + 1), (at[1], at[1] + 1), (at[2], at[3] + 1)]


@pytest.mark.parametrize(("after_s", "is_open"), [(0, True), (GAP_S, True), (GAP_S + 1, False)])
def test_a_storm_is_open_while_the_log_ends_within_its_gap(after_s: int, is_open: bool) -> None:  # noqa: FBT001 - expected
    (storm,) = _storms(*_at(MONDAY_S), newest_s=MONDAY_S + after_s)
    assert storm["is_open"] is is_open


def test_ties_are_broken_by_name_and_the_first_few_are_named() -> None:
    clients = [f"10.0.0.{place:02d}" for place in range(30)]
    # Over the hour, so that two parts come to the same.
    (storm,) = _storms(*((MONDAY_S + 3599 + at, client, 3) for at in (0, 1) for client in reversed(clients)))
    assert [client["name"] for client in storm["clients"]] == clients[:10]
    assert (storm["client_count"], storm["messages"]) == (30, 180)
    assert {each["share"] for each in storm["clients"]} == {6 / 180}
    assert (storm["peak_per_s"], storm["peak_at_s"]) == (90, MONDAY_S + 3599)


def test_the_most_come_first_over_all_hours() -> None:
    at = MONDAY_S + 3590
    (storm,) = _storms((at, "a", 5), (at + 12, "b", 9), (at + 13, "a", 5), (at + 14, "c", 1), top=2)
    assert [(each["name"], each["messages"], each["share"]) for each in storm["clients"]] == [
        ("a", 10, 0.5), ("b", 9, 0.45)
    ]  # fmt: skip
    assert (storm["peak_per_s"], storm["peak_at_s"], storm["client_count"]) == (9, at + 12, 3)


def test_refusals_of_no_messages_are_a_storm_of_none() -> None:
    (storm,) = _storms((MONDAY_S, "c", 0))
    assert (storm["messages"], storm["clients"][0]["share"], storm["peak_at_s"]) == (0, 0.0, MONDAY_S)


@given(
    st.lists(st.tuples(st.integers(0, 4 * 3600), st.sampled_from("abc"), st.integers(0, 9)), max_size=60),
    st.sampled_from([1, 30, 900, 3600]),
)
def test_storms_are_what_second_after_second_comes_to(seconds: list[tuple[int, str, int]], gap_s: int) -> None:
    expected: list[dict[str, Any]] = []
    for at, client, messages in sorted(seconds):
        if not expected or at - expected[-1]["last"] > gap_s:
            expected.append({"first": at, "messages": 0, "clients": set(), "seconds": set()})
        storm = expected[-1]
        storm["last"] = at
        storm["messages"] += messages
        storm["clients"].add(client)
        storm["seconds"].add(at)
    found = (
        _storms(*((MONDAY_S + at, client, messages) for at, client, messages in seconds), gap_s=gap_s)
        if seconds
        else []
    )
    assert [
        (each["start_s"], each["end_s"], each["messages"], each["client_count"], each["refused_seconds"])
        for each in found
    ] == [
        (
            MONDAY_S + each["first"],
            MONDAY_S + each["last"] + 1,
            each["messages"],
            len(each["clients"]),
            len(each["seconds"]),
        )
        for each in expected
    ]
