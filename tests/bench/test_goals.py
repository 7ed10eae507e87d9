"""Goals, growth and rows, from made-up measurements."""

from goals import growth, growth_text, held_against, saturations
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


def test_goal_is_held_against_the_median_of_its_row_for_each_scan() -> None:
    found = verdicts(
        table(
            "throughput-64",
            haproxy=[{"decided_per_s": 100, "cpu_us_per_frame": 0.3}] * 3,
            trio_relay=[{"decided_per_s": 100, "cpu_us_per_frame": 0.5}] * 3,
            sluice_limited_python=[{"decided_per_s": 10, "cpu_us_per_frame": 3.0}] * 3,
            sluice_limited_compiled=[
                {"decided_per_s": rate, "cpu_us_per_frame": cost} for rate, cost in ((50, 0.75), (40, 1.0), (60, 5.0))
            ],
            sluice_refused_compiled=[{"decided_per_s": 20, "cpu_us_per_frame": 2.0}] * 3,
        )
    )
    cpu = "CPU us per 536-byte frame over the raw trio relay, JSON header"
    assert found[cpu, "python"] == (2.5, "reported")
    assert found[cpu, "compiled"] == (0.5, "NOT met")
    relayed = "MB/s against HAProxy's, 536-byte JSON frames, 64 connections"
    assert found[relayed, "python"] == (0.1, "reported")
    assert found[relayed, "compiled"] == (0.5, "met")
    refused = "everything refused: answers/s against own frames/s that pass"
    assert found[refused, "compiled"] == (0.4, "met")
    assert found[refused, "python"] == (None, "not measured")


def test_decisions_are_held_against_guava() -> None:
    measured = Table(
        row("decisions"),
        {
            GUAVA: [{"decisions_per_s": 20.0}, {"decisions_per_s": 10.0}],
            "sluice, batches of a full read": [{"decisions_per_s": 30.0}, {"decisions_per_s": 15.0}],
        },
    )
    goal = "decisions/s, one bucket, batched as the data path does, against Guava's"
    assert verdicts(measured)[goal, "python"] == (1.5, "met")


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
