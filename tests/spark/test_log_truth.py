"""Logs whose truth is known, and the report's command: what it says, a count in plain Python says, too."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from harness.sidecar import run_sluice
from log_truth import Made, Truth, count, make
from log_truth.making import EAST_1, EAST_2, FLOOD_PER_S, NASTY, SHARES, WEST_1
from log_truth.reported import p99_per_s, reported

from admin.analytics.tables import BY_DAY

_SPARK_S: Final = 580.0
_KNOWN: Final = tuple(each.name for each in fields(Truth))


@dataclass(frozen=True)
class Case:
    """Logs and what is known of them."""

    made: Made
    counted: Truth
    findings: Any
    out: Path

    @property
    def reported(self) -> Truth:
        return reported(self.out, self.findings)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("truth")
    made = make(folder / "logs")
    with pytest.MonkeyPatch.context() as patch:
        # Clocks are set back there in the third night; all times of the log are UTC.
        patch.setenv("TZ", "Europe/Berlin")
        answer = run_sluice(
            "report", "logs", "--out", "out", "--json", "--master", "local[2]", cwd=folder, timeout_s=_SPARK_S
        )
    assert answer.returncode == 0, answer.stderr
    return Case(made, count(folder / "logs"), json.loads(answer.stdout), folder / "out")


def differences(one: Any, other: Any) -> Any:
    """Return what is in only one of two of the same type; nothing if they are equal."""
    if isinstance(one, frozenset):
        return one ^ other
    if isinstance(one, dict):
        return {
            each: (one.get(each), other.get(each)) for each in one.keys() | other if one.get(each) != other.get(each)
        }
    return set() if one == other else {one, other}


@pytest.mark.parametrize("what", _KNOWN)
def test_the_count_finds_what_was_planned(case: Case, what: str) -> None:
    planned, counted = getattr(case.made.truth, what), getattr(case.counted, what)
    if what == "p99_per_s":
        counted = {each: counted[each] for each in planned}
    assert not differences(planned, counted)
    assert planned


@pytest.mark.parametrize("what", _KNOWN)
def test_the_report_says_what_the_count_does(case: Case, what: str) -> None:
    said, counted = getattr(case.reported, what), getattr(case.counted, what)
    if what == "p99_per_s":
        counted = {each: pytest.approx(value, rel=1e-12) for each, value in counted.items()}
    assert not differences(said, counted)


def test_seconds_by_minute_and_by_hour_have_the_same_percentiles(case: Case) -> None:
    assert p99_per_s(case.out, by_minutes=True) == p99_per_s(case.out)


def test_beside_each_second_of_a_table_is_its_timestamp(case: Case) -> None:
    with duckdb.connect() as duck:
        for table in BY_DAY:
            for seconds, moment in table.moments.items():
                rows = f"read_parquet('{case.out}/{table.name}/dt=*/*.parquet')"
                wrong = f'SELECT count(*) FROM {rows} WHERE epoch("{moment}") IS DISTINCT FROM {seconds}'
                assert duck.execute(wrong).fetchone() == (0,), (table.name, moment)


def test_copies_are_counted(case: Case) -> None:
    assert case.findings["inputs"]["duplicates"] == case.made.duplicates
    assert case.made.duplicates > case.counted.records // 6


def test_the_flood_is_told_first_with_the_shares_of_its_clients(case: Case) -> None:
    storm, flood = case.findings["storms"][0], case.made.flood
    assert (storm["instance"], storm["kind"], storm["name"]) == flood.resource
    assert (storm["start_s"], storm["end_s"], storm["messages"]) == (flood.start_s, flood.end_s, flood.messages)
    assert [each["share"] for each in storm["clients"]] == pytest.approx([share / 100 for share in SHARES])
    assert storm["peak_per_s"] == FLOOD_PER_S
    assert {each["client"] for each in case.findings["culprits"][:4]} <= {name for name, _ in flood.clients}


def _recommendations(case: Case) -> dict[tuple[str, str, str], Any]:
    found = json.loads((case.out / "recommendations.json").read_bytes())["recommendations"]
    return {(each["instance"], each["kind"], each["name"]): each for each in found}


def test_advice_names_the_percentile_of_steady_topics(case: Case) -> None:
    advice = _recommendations(case)
    for resource, p99 in case.made.truth.p99_per_s.items():
        evidence = advice[resource]["evidence"]
        assert evidence.startswith("p99 of demand over ")
        assert f" is {p99:g}/s, limit 2,00" in evidence
        assert "refused nothing" in evidence


def test_the_limit_is_that_after_the_last_edit(case: Case) -> None:
    for resource, rate in case.made.limits.items():
        assert _recommendations(case)[resource]["rate_per_s"] == rate
    changes = [(each["rate_before_per_s"], each["rate_after_per_s"]) for each in case.findings["limit_changes"]]
    assert sorted(changes) == [(100.0, 200.0), (200.0, 250.0)]
    assert {each["reason"] for each in case.findings["limit_changes"]} == {NASTY}


def test_what_is_not_known_is_said_first(case: Case) -> None:
    totals = case.findings["totals"]
    assert totals["lost_records"] == sum(case.counted.lost_records.values())
    assert totals["gap_minutes"] == sum(case.counted.gap_minutes.values())
    assert {each for each, lost in case.counted.lost_records.items() if lost} == {EAST_1, WEST_1}
    assert case.counted.gap_minutes[EAST_2] > case.counted.gap_minutes[EAST_1]


def test_no_character_of_a_name_is_lost_or_means_anything(case: Case) -> None:
    (storm,) = (each for each in case.findings["storms"] if each["name"] == NASTY)
    assert storm["instance"] == WEST_1
    assert [each["name"] for each in storm["users"]] == [NASTY]
    assert (WEST_1, "topic", NASTY) in case.counted.totals
    assert "<script>alert(1)" not in (case.out / "report.html").read_text(encoding="utf-8")
