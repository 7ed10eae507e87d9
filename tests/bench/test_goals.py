"""Goals, growth and rows, from made-up measurements."""

import pytest
from goals import goals_text, growth, growth_text, held_against, saturations
from report import GUAVA, Table
from rows import ON_REQUEST, ROWS, SATURATION, Row, named


def row(name: str) -> Row:
    return next(each for each in ROWS if each.name == name)


def table(name: str, **peers: list[dict[str, float | None]]) -> Table:
    return Table(row(name), {peer.replace("_", "-"): rounds for peer, rounds in peers.items()})


def verdicts(*tables: Table) -> dict[tuple[str, str], tuple[float | None, str]]:
    found = [held.as_json() for held in held_against(tables)]
    return {(held["goal"], held["scan"]): (held["measured"], held["met"]) for held in found}


def test_without_measurements_no_goal_is_met() -> None:
    assert {met for _, met in verdicts().values()} == {"not measured"}
    assert " report " not in goals_text(held_against([])), "what nobody wanted and nobody measured is not listed"


def test_goal_is_held_against_the_median_of_its_row_for_each_scan() -> None:
    found = verdicts(
        table(
            "throughput-64",
            haproxy=[{"decided_per_s": 100, "cpu_us_per_frame": 0.3}] * 3,
            trio_relay=[{"decided_per_s": 100, "cpu_us_per_frame": 0.5}] * 3,
            sluice_limited_python=[{"decided_per_s": 10, "cpu_us_per_frame": 3.0}] * 3,
            sluice_limited_compiled=[
                {"decided_per_s": rate, "cpu_us_per_frame": cost} for rate, cost in ((120, 0.75), (80, 1.0), (150, 5.0))
            ],
            sluice_refused_compiled=[{"decided_per_s": 60, "cpu_us_per_frame": 2.0}] * 3,
        )
    )
    cpu = "CPU us a frame over the relay, JSON header"
    assert found[cpu, "python"] == (2.5, "reported")
    assert found[cpu, "compiled"] == (0.5, "NOT met")
    relayed = "frames/s x HAProxy, 64 connections"
    assert found[relayed, "python"] == (0.1, "reported")
    assert found[relayed, "compiled"] == (1.2, "met")
    refused = "everything refused: answers/s x own frames/s that pass"
    assert found[refused, "compiled"] == (0.5, "met")
    assert found[refused, "python"] == (None, "not measured")


def test_decisions_are_held_against_guava() -> None:
    measured = Table(
        row("decisions"),
        {
            GUAVA: [{"decisions_per_s": 20.0}, {"decisions_per_s": 10.0}],
            "sluice, batches of a full read": [{"decisions_per_s": 30.0}, {"decisions_per_s": 15.0}],
        },
    )
    goal = "decisions/s x Guava, one bucket, batched as the data path does"
    assert verdicts(measured)[goal, "python"] == (1.5, "met")


def test_growth_by_topics_is_held_against_one_topic() -> None:
    one = table("throughput-64", sluice_limited_compiled=[{"cpu_us_per_frame": cost} for cost in (0.5, 0.6)])
    many = table("topics-1000", sluice_limited_compiled=[{"cpu_us_per_frame": cost} for cost in (1.5, 1.8)])
    goal = "CPU us a frame, 1,000 topics against one"
    assert verdicts(one, many)[goal, "compiled"] == (3.0, "NOT met")
    assert verdicts(many)[goal, "compiled"] == (None, "not measured")


@pytest.mark.parametrize(
    ("per_s", "relay_per_s", "met"),
    [(3000, 4000, ("met", "other met")), (900, 1000, ("other met", "met")), (2000, 4000, ("NOT met", "NOT met"))],
)
def test_one_of_the_goals_for_new_connections_suffices(per_s: float, relay_per_s: float, met: tuple[str, str]) -> None:
    found = verdicts(
        table(
            "accept",
            trio_relay=[{"connections_per_s": relay_per_s}],
            sluice_limited_compiled=[{"connections_per_s": per_s}],
        )
    )
    goals = ("new connections a second", "new connections a second x relay")
    assert tuple(found[goal, "compiled"][1] for goal in goals) == met


def test_growth_lists_the_cost_by_what_grows() -> None:
    tables = [
        table(
            name,
            trio_relay=[{"cpu_us_per_frame": 0.5}],
            sluice_limited_python=[{"cpu_us_per_frame": cost}],
        )
        for name, cost in (("throughput-64", 3.0), ("topics-1000", 4.5), ("connections-64", 9.0))
    ]
    found = growth(tables)
    assert [entry["topics"] for entry in found["topics"]] == [1, 1000]
    assert [entry["over_trio_relay_us"] for entry in found["topics"]] == [
        {"sluice-limited-python": 2.5},
        {"sluice-limited-python": 4.0},
    ]
    text = growth_text(found)
    assert "by topics" in text
    assert "by connections" not in text


def test_saturation_is_the_median_of_the_answers() -> None:
    answered = table(SATURATION, haproxy=[{"decided_per_s": rate} for rate in (100, 300, 200)])
    assert saturations([answered]) == {"haproxy": 200}


def test_rows_have_names_of_their_own_and_those_on_request_are_left_out() -> None:
    names = [each.name for each in (*ROWS, *ON_REQUEST)]
    assert len(set(names)) == len(names)
    assert named(None) == list(ROWS)
    assert named(["rtt-open"]) == list(ON_REQUEST)


def test_a_share_of_saturation_brings_its_measurement_along() -> None:
    assert [each.name for each in named(["rtt-50"])] == [SATURATION, "rtt-50"]
    assert [each.name for each in named(["rtt-low"])] == ["rtt-low"]
