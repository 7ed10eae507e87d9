"""From lines to rows: each record once, added up; the demand of an hour against the same worked out step by step."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_rows import MONDAY_S, Asked, Limit, Rows, Run, lines_of, rows_of
from retry_formula import corrected, weights

from admin.analytics.combine import HISTOGRAMS, Minute, amounts_of, demand_from, hour_demand
from admin.analytics.figures import HourDemand
from admin.analytics.retries import MEASURED_SHARE
from admin.analytics.tables import TABLES, day_of
from admin.rejection_log.records import LimitChangeRecord, TrafficRecord
from limiter.counting.rejections import Amount

GAP_S = 30
ATTEMPTS = {"JAVA": 3, "CPP": 2}


@pytest.fixture
def run() -> Run:
    return Run()


def _rows(run: Run, **how: Any) -> Rows:
    found = rows_of(lines_of(run.records), **how)
    for name, rows in found.items():
        columns = {*TABLES[name].names} if name in TABLES else {"file", "reason", "lines", "example"}
        assert all(set(row) == columns for row in rows)
    return found


# Minutes


def test_a_minute_has_what_its_record_says_and_what_follows_from_it(run: Run) -> None:
    limit = Limit("topic:orders", 50.0, burst_s=2.0, bytes_per_s=9e6)
    record = run.traffic(
        MONDAY_S, {3: Asked(50, 150, 80, 9000), 7: Asked(20, 0, 20, 500, 5)}, limit,
        language="JAVA", held=Amount(1, 2, 3), bypassed=Amount(4, 5, 6), exempt=Amount(7, 8, 9),
        dropped=Amount(1, 1, 1), shadowed=Amount(2, 3, 4), identified=60, clients=3,
    )  # fmt: skip
    run.rejection(MONDAY_S + 3, 150, wait_max_us=900)
    run.rejection(MONDAY_S + 59, 1, wait_max_us=70, verdict="hold")
    (row,) = _rows(run)["minutes"]
    assert {name: row[name] for name in ("instance", "kind", "name", "minute_s", "dt")} == {
        "instance": "a", "kind": "topic", "name": "orders", "minute_s": MONDAY_S, "dt": day_of(MONDAY_S)
    }  # fmt: skip
    for outcome in ("admitted", "refused", "held", "shadowed", "bypassed", "exempt", "dropped", "repeated"):
        amount = getattr(record, outcome)
        expected = [amount.requests, amount.messages, amount.size_bytes]
        assert [row[f"{outcome}_{what}"] for what in ("requests", "messages", "bytes")] == expected, outcome
    same = ("identified", "busy_answers", "clients", "more_clients", "rule", "rate_per_s", "burst_s", "bytes_per_s")
    assert [row[name] for name in same] == [getattr(record, name) for name in same]
    assert row["languages"] == [("JAVA", {"requests": 100, "refused": 60})]
    assert (row["second"], row["second_admitted"], row["second_refused"]) == ([3, 7], [50, 20], [150, 0])
    assert (row["second_requests"], row["second_bytes"]) == ([80, 20], [9000, 500])
    assert (row["second_repeated"], row["second_shadowed"]) == ([0, 5], [])
    assert row["demand_messages"] == 70 + 150 + 3 + 5 + 8 + 1
    assert (row["demand_peak_per_s"], row["refused_peak_per_s"], row["wait_max_us"]) == (200, 150, 900)


def test_what_shadow_limits_would_have_refused_is_by_second_too(run: Run) -> None:
    run.traffic(MONDAY_S, {at: Asked(10) for at in (1, 2, 3)}, shadowed=Amount(9, 9, 9))
    for at, messages in ((1, 4), (1, 2), (3, 3), (5, 7)):
        run.rejection(MONDAY_S + at, messages, verdict="shadow", rule="trial")
    run.rejection(MONDAY_S + 2, 50)
    (row,) = _rows(run)["minutes"]
    # Of a second without requests there is no place to put it.
    assert row["second_shadowed"] == [6, 0, 3]


def test_several_records_of_a_minute_add_up_with_the_limit_of_the_last(run: Run) -> None:
    one, other = Limit("old", 10.0), Limit("new", 20.0)
    run.traffic(MONDAY_S, {1: Asked(5, 3, 4, 70), 9: Asked(1, 0, 1, 10, 1)}, one, language="JAVA", identified=2)
    later = Run(run="s")
    # A restart: numbers begin anew, and more of them make this the later one.
    later.heartbeat(MONDAY_S)
    later.heartbeat(MONDAY_S + 60)
    later.traffic(MONDAY_S, {1: Asked(2, 1, 3, 20), 4: Asked(8, 0, 8, 80)}, other, clients=6, identified=1)
    lines = lines_of([*later.records, *run.records])
    (row,) = rows_of(lines)["minutes"]
    assert (row["second"], row["second_admitted"], row["second_refused"]) == ([1, 4, 9], [7, 8, 1], [4, 0, 0])
    assert (row["second_requests"], row["second_bytes"], row["second_repeated"]) == ([7, 8, 1], [90, 80, 10], [0, 0, 1])
    assert (row["admitted_messages"], row["refused_messages"], row["demand_messages"]) == (16, 4, 20)
    assert (row["rule"], row["rate_per_s"]) == ("new", 20.0)
    assert (row["clients"], row["more_clients"], row["identified"]) == (6, True, 3)
    assert dict(row["languages"]) == {
        "GO": {"requests": 11, "refused": 1},
        "JAVA": {"requests": 5, "refused": 2},
    }


def test_a_minute_in_pieces_is_the_minute(run: Run) -> None:
    seconds = {at: Asked(at, at % 7, at + 1, 10 * at, at % 3) for at in range(60)}
    run.traffic(MONDAY_S, seconds, identified=5)
    whole = _rows(run)
    pieces = Run()
    for at in range(0, 60, 20):
        part = {each: seconds[each] for each in range(at, at + 20)}
        pieces.traffic(MONDAY_S, part, identified=5 if at == 0 else 0)
    # Requests that were refused are rounded by piece.
    left_out = {"busy_answers", "languages", "more_clients", "admitted_requests", "refused_requests", "demand"}
    for table in ("minutes", "hours"):
        (one,), (other,) = whole[table], _rows(pieces)[table]
        assert {name: one[name] for name in one if name not in left_out} == {
            name: other[name] for name in other if name not in left_out
        }


# Duplicates


def test_copies_change_nothing_and_are_counted(run: Run) -> None:
    for minute in range(3):
        run.traffic(MONDAY_S + 60 * minute, {1: Asked(50, 5)}, Limit("r", 50.0))
        run.rejection(MONDAY_S + 60 * minute + 1, 5)
        run.heartbeat(MONDAY_S + 60 * minute)
    run.limit(MONDAY_S, Limit("r", 50.0))
    run.other(LimitChangeRecord, MONDAY_S + 5, change_id=1, action="reload")
    once = _rows(run)
    lines = lines_of(run.records)
    thrice = rows_of([*lines, *reversed(lines), *lines[::2], *lines[1::2]])

    def tables(rows: Rows) -> Any:
        without = {"copies"}
        found: dict[str, Counter[str]] = {}
        for name, of in rows.items():
            found[name] = Counter(str({key: value for key, value in row.items() if key not in without}) for row in of)
        return found

    assert tables(thrice) == tables(once)
    assert sum(row["copies"] for row in once["coverage"]) == 0
    assert sum(row["copies"] for row in thrice["coverage"]) == 2 * len(lines)
    assert sum(row["records"] for row in thrice["coverage"]) == len(lines)


def test_the_same_number_of_another_run_is_another_record(run: Run) -> None:
    other = Run(run="s")
    for each in (run, other):
        each.rejection(MONDAY_S, 5)
    (row,) = rows_of(lines_of([*run.records, *other.records]))["refusals"]
    assert row["messages"] == 10


# Storms


def _parts(run: Run, gap_s: int = GAP_S) -> list[dict[str, Any]]:
    return [part for row in _rows(run, gap_s=gap_s).get("hours", []) for part in row["storm_parts"]]


def _ends(parts: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(part["start_s"] - MONDAY_S, part["last_s"] - MONDAY_S) for part in parts]


def test_whom_a_part_refused_is_its_own_at_the_borders_of_slots(run: Run) -> None:
    # Slots are of 31 seconds: the first storm is of the first two, the second one of the fourth.
    for at, client, messages in ((20, "a", 5), (40, "b", 7), (61, "a", 1), (93, "c", 2), (93, "a", 4)):
        run.rejection(MONDAY_S + at, messages, client=client, rule=f"rule-{client}", user="u", producer_group="g")
    one, other = _parts(run)
    assert _ends([one, other]) == [(20, 61), (93, 93)]
    assert {each["name"]: each["messages"] for each in one["clients"]} == {"a": 6, "b": 7}
    assert {each["name"]: each["messages"] for each in other["clients"]} == {"c": 2, "a": 4}
    assert {each["name"]: each["messages"] for each in one["rules"]} == {"rule-a": 6, "rule-b": 7}
    assert [(each["name"], each["messages"]) for each in one["users"]] == [("u", 13)]
    assert [(each["name"], each["messages"]) for each in other["producer_groups"]] == [("g", 6)]
    assert (one["messages"], one["refused_seconds"], one["peak_per_s"], one["peak_at_s"]) == (13, 3, 7, MONDAY_S + 40)


def test_what_was_held_is_no_storm_and_what_only_shadows_is_one_by_itself(run: Run) -> None:
    for at, verdict in ((0, "hold"), (5, "shadow"), (10, "refuse"), (40, "shadow"), (12, "refuse")):
        run.rejection(MONDAY_S + at, 3, verdict=verdict)
    parts = _parts(run)
    assert [(part["shadow"], *_ends([part])[0]) for part in parts] == [(False, 10, 12), (True, 5, 5), (True, 40, 40)]
    assert [part["messages"] for part in parts] == [6, 3, 3]
    (row,) = _rows(run)["hours"]
    # Refusals whose traffic is not known.
    assert (row["minutes"], row["first_minute_s"], row["demand_messages"]) == (0, None, 0)
    assert demand_from(row["demand"]) == HourDemand()


# Hours, refusals, limits, coverage


def test_an_hour_is_the_sum_of_its_minutes(run: Run) -> None:
    run.traffic(MONDAY_S + 3540, {1: Asked(5, 1), 2: Asked(9)}, Limit("late", 7.0), clients=2, language="JAVA")
    run.traffic(MONDAY_S + 60, {0: Asked(50, 30)}, Limit("early", 9.0), clients=5, more_clients=True)
    run.traffic(MONDAY_S + 3600, {0: Asked(1)})
    run.rejection(MONDAY_S + 60, 30, wait_max_us=11)
    rows = _rows(run)
    hour, after = rows["hours"]
    minutes = [row for row in rows["minutes"] if row["minute_s"] < MONDAY_S + 3600]
    assert (hour["hour_s"], hour["minutes"], after["hour_s"], after["minutes"]) == (MONDAY_S, 2, MONDAY_S + 3600, 1)
    assert (hour["first_minute_s"] - MONDAY_S, hour["last_minute_s"] - MONDAY_S) == (60, 3540)
    for name in ("admitted_messages", "refused_messages", "refused_requests", "busy_answers", "demand_messages"):
        assert hour[name] == sum(row[name] for row in minutes), name
    assert (hour["demand_peak_per_s"], hour["demand_peak_per_minute"], hour["refused_peak_per_s"]) == (80, 80, 30)
    assert (hour["rule"], hour["clients"], hour["more_clients"], hour["wait_max_us"]) == ("late", 5, True, 11)
    assert [name for name, _ in hour["languages"]] == ["GO", "JAVA"]


def test_refusals_are_by_whom_rule_and_verdict(run: Run) -> None:
    for at, client, verdict, rule in (
        (0, "a", "refuse", "r"), (40, "a", "refuse", "r"), (41, "a", "hold", "r"), (42, "a", "refuse", "s"),
        (43, "b", "refuse", "r"), (3600, "a", "refuse", "r"),
    ):  # fmt: skip
        run.rejection(
            MONDAY_S + at, 2, client=client, verdict=verdict, rule=rule, wait_max_us=at, user="u", product="p"
        )
    found = {
        (row["hour_s"] - MONDAY_S, row["client"], row["verdict"], row["rule"]): (row["messages"], row["wait_max_us"])
        for row in _rows(run)["refusals"]
    }
    assert found == {
        (0, "a", "refuse", "r"): (4, 40), (0, "a", "hold", "r"): (2, 41), (0, "a", "refuse", "s"): (2, 42),
        (0, "b", "refuse", "r"): (2, 43), (3600, "a", "refuse", "r"): (2, 3600),
    }  # fmt: skip


def test_of_a_rule_the_last_that_was_written_in_the_hour_counts(run: Run) -> None:
    run.limit(MONDAY_S + 9, Limit("r", 2.0))
    run.limit(MONDAY_S + 5, Limit("r", 1.0))
    run.limit(MONDAY_S + 9, Limit("s", None, action="off"), name="log-*")
    run.limit(MONDAY_S + 9, Limit("r", 3.0))
    rows = _rows(run)["limits"]
    assert {(row["name"], row["rule"], row["rate_per_s"], row["action"], row["seen_s"] - MONDAY_S) for row in rows} == {
        ("orders", "r", 3.0, "reject", 9), ("log-*", "s", None, "off", 9)
    }  # fmt: skip


def test_limit_changes_are_as_in_the_log(run: Run) -> None:
    fields = {"change_id": 7, "action": "set", "kind": "topic", "name": "t", "rate_after_per_s": 5.0, "by": "ada"}
    run.other(LimitChangeRecord, MONDAY_S + 1, **fields)
    (row,) = _rows(run)["limit_changes"]
    expected = {"instance": "a", "run": "r", "n": 1, "at_s": MONDAY_S + 1, "reason": "", "rate_before_per_s": None}
    assert row == {**expected, **fields, "dt": day_of(MONDAY_S)}


def test_coverage_is_by_run_and_hour(run: Run) -> None:
    run.heartbeat(MONDAY_S, seconds=40, connections=3, bypassed_requests={"a/b": 2, "c/d": 1}, other=4)
    run.heartbeat(MONDAY_S, seconds=40, limiting=False, lost_records=2)
    run.heartbeat(MONDAY_S + 120, connections=9, version="2", lost_records=1)
    run.traffic(MONDAY_S + 3540, {0: Asked(1)})
    rows = _rows(run)["coverage"]
    of_sidecar = next(row for row in rows if row["minutes"])
    assert of_sidecar == {
        "instance": "a", "run": "r", "hour_s": MONDAY_S, "minutes": 2, "seconds": 120, "first_minute_s": MONDAY_S,
        "last_minute_s": MONDAY_S + 120, "limiting_off_minutes": 1, "connections_max": 9, "bypassed_requests": 3,
        "other": 4, "lost_records": 2, "records": 3, "copies": 0, "first_n": 1, "last_n": 3,
        "newest_s": MONDAY_S + 179, "version": "2", "dt": day_of(MONDAY_S),
    }  # fmt: skip
    (of_topic,) = (row for row in rows if not row["minutes"])
    assert [of_topic[name] for name in ("records", "first_n", "last_n", "newest_s", "version", "seconds")] == [
        1, 4, 4, MONDAY_S + 3599, "", 0
    ]  # fmt: skip


def test_what_could_not_be_understood_is_handed_on(run: Run) -> None:
    run.rejection(MONDAY_S)
    rows = rows_of([*lines_of(run.records), b"junk", b"17"])
    assert rows["bad"] == [
        {"file": "file:/a.jsonl", "reason": "not one JSON object with fields of the right types", "lines": 2}
        | {"example": "17"}
    ]
    assert len(rows["refusals"]) == 1


# The demand of an hour


def _demand(records: Sequence[TrafficRecord]) -> HourDemand:
    minutes = list(map(Minute, records))
    return hour_demand(minutes, amounts_of(minutes), ATTEMPTS)


def test_the_demand_of_an_hour_is_kept_in_its_row(run: Run) -> None:
    for minute in range(3):
        seconds = {0: Asked(30, 10 * minute, repeated=minute), 1: Asked(20)}
        run.traffic(MONDAY_S + 60 * minute, seconds, Limit("r", 30.0, bytes_per_s=1e6), language="JAVA")
    (row,) = _rows(run, attempts=ATTEMPTS)["hours"]
    records = [record for record in run.records if isinstance(record, TrafficRecord)]
    demand = demand_from(row["demand"])
    assert demand == _demand(records)
    assert {name for name in HISTOGRAMS if getattr(demand, name)} == set(HISTOGRAMS)


def test_retries_are_measured_where_ids_are_known_and_assumed_elsewhere() -> None:
    run = Run()
    seconds = {0: Asked(100, 300, repeated=200), 1: Asked(100)}
    assumed = run.traffic(MONDAY_S, {at: each._replace(repeated=0) for at, each in seconds.items()}, language="JAVA")
    measured = run.traffic(MONDAY_S, seconds, language="JAVA", identified=290)
    neither = run.traffic(MONDAY_S, {0: Asked(100, 300), 1: Asked(100)}, language="GO")
    by_formula = corrected(100, 300, weights(assumed.languages, 300, ATTEMPTS)) + 100
    for minute, wanted in ((assumed, by_formula), (measured, 200 + 100), (neither, 500)):
        found = _demand([minute])
        assert found.wanted_messages == found.wanted == pytest.approx(wanted)
        assert (found.asked, found.messages) == (500, 500)
    found = _demand([measured])
    assert (found.refused_requests, found.identified_requests, found.repeated_messages) == (300, 290, 200)


def test_rates_are_in_the_order_in_which_they_were_in_force() -> None:
    run = Run()
    rates = [(10.0, "reject"), (20.0, "reject"), (10.0, "reject"), (30.0, "off"), (20.0, "shadow")]
    minutes = [
        run.traffic(MONDAY_S + 60 * at, {0: Asked(1)}, Limit("r", rate, action=action))
        for at, (rate, action) in enumerate(rates)
    ]
    assert _demand(minutes).rates == (10.0, None, 20.0)


@st.composite
def _minutes(draw: st.DrawFn) -> list[TrafficRecord]:
    run = Run()
    found = []
    large = draw(st.sampled_from([20, 300, 50_000]))
    for at in sorted(draw(st.sets(st.integers(0, 59), max_size=5))):
        seconds = {}
        for offset in sorted(draw(st.sets(st.integers(0, 59), max_size=6))):
            admitted = draw(st.integers(0, large))
            refused = draw(st.sampled_from([0, 0, 1, 7, large]))
            requests = draw(st.integers(1, 1 + admitted + refused))
            repeated = draw(st.sampled_from([0, 0, 1, (admitted + refused) // 2, admitted + refused]))
            seconds[offset] = Asked(admitted, refused, requests, draw(st.integers(0, 99_999)), repeated)
        limit = Limit(
            "r",
            draw(st.sampled_from([None, 1.0, 10.0, 40.0, 30_000.0])),
            count=draw(st.sampled_from(["messages", "requests"])),
            bytes_per_s=draw(st.sampled_from([None, None, 5000.0])),
            action=draw(st.sampled_from(["reject", "shadow", "off"])),
        )
        minute = run.traffic(MONDAY_S + 60 * at, seconds, limit)
        requests, refused = sum(minute.second_requests), minute.refused.requests
        of_java = draw(st.integers(0, refused))
        found.append(
            msgspec.structs.replace(
                minute,
                languages={"JAVA": (requests, of_java), "CPP": (requests, refused - of_java), "GO": (1, 0)},
                busy_answers=draw(st.integers(0, refused)),
                identified=draw(st.sampled_from([0, refused // 2, refused])),
                shadowed=draw(st.sampled_from([Amount(), Amount(3, 4, 5)])),
                dropped=draw(st.sampled_from([Amount(), Amount(2, 3, 4)])),
            )
        )
    return found


@given(_minutes())
def test_the_demand_of_an_hour_is_what_its_definitions_say(minutes: list[TrafficRecord]) -> None:
    found, expected = _demand(minutes), _naive(minutes)
    for name, value in expected.items():
        if name in HISTOGRAMS:
            of_it = getattr(found, name)
            assert [seconds for _, seconds in of_it] == [seconds for _, seconds in value], name
            assert [each for each, _ in of_it] == [pytest.approx(each) for each, _ in value], name
        else:
            assert getattr(found, name) == (pytest.approx(value) if isinstance(value, float) else value), name
    assert set(expected) == set(HourDemand.__dataclass_fields__)


def _shares(minute: TrafficRecord) -> list[float]:
    """What is left of each second without retries, by the words of ``retries``."""
    refused = minute.refused.requests + minute.dropped.requests
    repeated = minute.second_repeated or (0,) * len(minute.second)
    asked = [a + r for a, r in zip(minute.second_admitted, minute.second_refused, strict=True)]
    counted = [max(0.0, 1 - again / all_) if all_ else 1.0 for again, all_ in zip(repeated, asked, strict=True)]
    if refused and minute.identified >= MEASURED_SHARE * refused:
        return counted
    parts = weights(minute.languages, minute.busy_answers, ATTEMPTS)
    by_formula = [
        corrected(a, r, parts) / (a + r) if r else 1.0
        for a, r in zip(minute.second_admitted, minute.second_refused, strict=True)
    ]
    return [min(each) for each in zip(counted, by_formula, strict=True)]


def _histogram(values: list[float], digits: int) -> list[tuple[float, int]]:
    return sorted(Counter(float(f"{value:.{digits}g}") for value in values).items())


def _naive(minutes: list[TrafficRecord]) -> dict[str, Any]:
    """The demand of an hour, field by field, as ``HourDemand`` describes them."""
    with_bytes = any(minute.bytes_per_s is not None for minute in minutes)
    rates = [None if minute.action == "off" else minute.rate_per_s for minute in minutes]
    of: dict[str, Any] = dict.fromkeys(HourDemand.__dataclass_fields__, 0)
    of |= {name: [] for name in HISTOGRAMS}
    of |= dict.fromkeys(("wanted", "wanted_messages", "refusing"), 0.0)
    most = ("minute_wanted", "calm_minute", "quiet_minute", "minute_bytes", "calm_minute_bytes", "quiet_minute_bytes")
    of |= dict.fromkeys(most, 0.0)
    loud = []
    for minute, rate in zip(minutes, rates, strict=True):
        shares = _shares(minute)
        messages = [a + r for a, r in zip(minute.second_admitted, minute.second_refused, strict=True)]
        asked = list(minute.second_requests) if minute.count == "requests" else messages
        wanted = [each * share for each, share in zip(asked, shares, strict=True)]
        size = [each * share for each, share in zip(minute.second_bytes, shares, strict=True)]
        places = [at for at, refused in enumerate(minute.second_refused) if refused]
        is_shadowed = bool(minute.shadowed.messages)
        refused_requests = minute.refused.requests + minute.dropped.requests
        if places or is_shadowed:
            loud.append(minute.at_s)
        reached = (minute.admitted, minute.shadowed, minute.bypassed, minute.exempt)
        of["requests"] += sum(each.requests for each in reached) + refused_requests
        of["messages"] += sum(each.messages for each in reached) + minute.refused.messages + minute.dropped.messages
        of["refused_messages"] += minute.refused.messages + minute.dropped.messages + minute.shadowed.messages
        of["wanted_messages"] += sum(each * share for each, share in zip(messages, shares, strict=True))
        of["asked"] += sum(asked)
        of["wanted"] += sum(wanted)
        of["active_s"] += len(asked)
        of["refused_requests"] += refused_requests
        of["identified_requests"] += minute.identified
        of["repeated_messages"] += minute.repeated.messages
        kinds = ["minute"] + ["calm_minute"] * (not places) + ["quiet_minute"] * (not places and not is_shadowed)
        for kind in kinds:
            by_wanted = "minute_wanted" if kind == "minute" else kind
            of[by_wanted] = max(of[by_wanted], sum(wanted))
            of[f"{kind}_bytes"] = max(of[f"{kind}_bytes"], sum(size))
        if rate:
            of["near_s"] += sum(
                each >= 0.8 * rate and not no for each, no in zip(asked, minute.second_refused, strict=True)
            )
        within = range(places[0], places[-1] + 1) if places else range(0)
        if places:
            of["refused_s"] += minute.second[places[-1]] - minute.second[places[0]] + 1
            of["refused_active_s"] += len(within)
            of["refusing"] += sum(wanted[at] for at in within)
            of["loud_asked"] += asked
            of["loud_wanted"] += wanted
            of["loud_outside"] += [each for at, each in enumerate(wanted) if at not in within]
            of["loud_wanted_bytes"] += size
            of["loud_outside_bytes"] += [each for at, each in enumerate(size) if at not in within]
        else:
            of["calm"] += wanted
            of["calm_bytes"] += size
        if not is_shadowed:
            of["quiet_s"] += len(asked) - len(within)
    for name in HISTOGRAMS:
        is_bytes = name.endswith("bytes")
        of[name] = _histogram(of[name], 3 if is_bytes else 4) if with_bytes or not is_bytes else []
    of["rates"] = tuple(rate for at, rate in enumerate(rates) if rate not in rates[at + 1 :])
    of["loud_from_s"], of["loud_until_s"] = (loud[0], loud[-1] + 60) if loud else (None, None)
    return of
