import io
import re
from pathlib import Path
from typing import Any

import pytest
import report_results as made
from report_results import HOSTILE, NOON_S

from admin.analytics import summary as module
from admin.analytics import words
from admin.analytics.summary import summary, unknowns
from admin.run.check import show


def _printed(results: dict[str, Any]) -> str:
    stream = io.StringIO()
    show(summary(results, Path("sluice-report/report.html")), stream)
    return stream.getvalue()


def test_it_begins_with_the_result_and_gaps() -> None:
    lines = _printed(made.results()).splitlines()
    assert lines[0].startswith(
        "From 2026-11-21 12:00:00 to 18:00:00 UTC (6 h), 2 sidecars refused 2,188,979 of 13,393,530"
    )
    assert "Unknown: 2 lines damaged or of unknown type, and ignored." in lines
    assert "Unknown" not in _printed(made.empty())


def test_it_ends_with_the_next_steps() -> None:
    printed = _printed(made.results())
    assert printed.rstrip().endswith("sluice limits apply sluice-report/recommendations.json --lower --dry-run")
    assert "apply the changes: sluice limits apply sluice-report/recommendations.json\n" in printed
    assert "sluice limits apply" not in _printed(made.results(recommendations=[]))
    assert "apply 'my report/recommendations.json'" in _printed(made.results(out="my report"))


def test_storms_are_one_row_each_also_at_several_sidecars_or_in_shadow() -> None:
    assert re.search(r"^  payments in shadow mode on orders-eu-1 ", _printed(made.results()), re.MULTILINE)
    printed = _printed(made.results(storms=made.flood("orders", 1_000, "a", "b", "c"), instance_count=3))
    assert re.search(
        r"^  orders on 3 sidecars +2026-11-21 12:00:00 to 12:01:20 UTC \(1 min 20 s\) +3,000 ", printed, re.MULTILINE
    )


def test_recommendations_are_those_of_the_page() -> None:
    parts = {each.splitlines()[0]: each for each in _printed(made.results()).split("\n\n")}
    recommended = parts["Recommended limits"]
    assert re.search(r"Raise 300/s → 450/s +14.1% → 2.1% \(4% with retries\) .* high with assumed retries", recommended)
    assert re.search(r"Share fairly 500/s, shared by client +others 3% → at most 0% each", recommended)
    assert "Lower" not in recommended
    assert "2,000/s → 90/s" in parts["Offered, not applied by default"]


def test_rates_that_were_tried_are_listed() -> None:
    named = {"kind": "topic", "name": "orders", "rate_per_s": 450.0}
    tried = [
        {**named, "instance": "a", "refused_share": 0.1, "refused_share_uncorrected": 0.2},
        {**named, "instance": "", "name": "none"},
    ]
    printed = _printed(made.results(tried=tried))
    assert re.search(r"orders +a +450/s +10% \(20% with retries\)", printed)
    assert re.search(r"none +450/s +no demand under this name", printed)


def test_names_cannot_control_the_terminal() -> None:
    printed = _printed(made.results())
    assert "\u202e" not in printed
    assert HOSTILE.replace("\u202e", "\\u202e") in printed


def test_callers_are_named_by_their_protocols_scopes() -> None:
    assert re.search(r"^  client +producer group +resource ", _printed(made.results()), re.MULTILINE)
    printed = _printed(made.of_queues())
    assert re.search(r"^  resource .* clients +users +refused by$", printed, re.MULTILINE)
    assert "nightly-import 90% …" in printed
    assert re.search(r"^  10\.20\.0\.7 +nightly-import +pika 1\.4\.4 +orders ", printed, re.MULTILINE)


def test_lede_is_plain_english() -> None:
    assert module.lede(made.results()) == (
        "From 2026-11-21 12:00:00 to 18:00:00 UTC (6 h), 2 sidecars refused 2,188,979 of 13,393,530 messages (16.3%):"
        " 5 storms on 4 resources. 1 storm may not have ended."
        " Limits in shadow mode would have refused 88,000 messages."
    )
    quiet = made.results(instance_count=1, totals=made.totals(admitted=9_000, held=8_500))
    assert module.lede(quiet).endswith(
        "1 sidecar refused none of 9,000 messages. 8,500 messages had to wait for a limit."
    )


def test_clocks_that_seem_to_be_off_are_named() -> None:
    clocks = [{"instance": name, "ahead_s": ahead_s} for name, ahead_s in {"b": 7200, "d": -3600}.items()]
    assert list(unknowns(made.empty() | {"clocks": clocks, "recorded_twice": ["The clock of a was set back"]})) == [
        "The clock of a was set back.",
        "The records of b are 2 h later than the times of their files: its clock may be wrong.",
        "The records of d are 1 h earlier than the times of their files: its clock may be wrong.",
    ]


def test_missing_minutes_say_whether_the_sidecar_was_running() -> None:
    totals = made.totals(gap_minutes=5, missing_minutes=2)
    running = "2 minutes without records although the sidecar was running."
    assert list(unknowns(made.empty() | {"totals": totals})) == [
        "3 minutes without records: the sidecar was not running.", running,
    ]  # fmt: skip
    aside = [{"file": "/logs/a.gz", "reason": "is damaged", "lines": 0, "example": ""}]
    assert list(unknowns(made.empty() | {"totals": totals, "inputs": made.inputs(set_aside=aside)})) == [
        "Not read, or only in part: a.gz.",
        "3 minutes without records: it is unknown whether the sidecar was running.", running,
    ]  # fmt: skip


def test_killed_sidecars_and_assumed_retries_are_named() -> None:
    assumed = [made.advice(name, "keep", 5.0, retries="assumed") for name in ("a", "b")]
    killed = [("x", NOON_S), ("x", NOON_S + 60)]
    said = list(unknowns(made.empty() | {"killed": killed, "recommendations": assumed, "instance_count": 1}))
    assert said[0].startswith("Killed: x at about 2026-11-21 12:00:00 UTC and x at about 2026-11-21 12:01:00 UTC. Each")
    assert [each.partition("is assumed for ")[2] for each in said[1:]] == [
        "a and b: JAVA 3, others 1. To set it: --attempts JAVA=1."
    ]


def test_equal_shares_are_written_once() -> None:
    same = {"current": made.replay(8, 0.8), "recommended": made.replay(8, 0.8)}
    others = {"others_current": made.replay(5, 0.5), "others": made.replay(1, 0.1)}
    shared = made.advice("t", "share", 5.0, 5.0, fair_by="client", retries="assumed", **same, **others,
        recommended_uncorrected=made.replay(8, 0.8))  # fmt: skip
    assert words.replayed(shared) == "80% as before, others 50% → at most 10% each"
    assert words.replayed(made.advice("t", "keep", 5.0, **same)) == "80%"
    assert module.effect(made.empty() | {"recommendations": [shared]}) == (
        "In a replay of this log, 1 changed limit would refuse 8 messages, compared with 8 under the current limits."
        " Fair shares would admit"
        " at least 4 of the 5 messages refused in storms and sent by callers other than the largest."
    )


def test_storms_of_one_flood_are_merged() -> None:
    storms = made.flood("orders", 300, "b", "a")
    for each in storms:
        each["clients"] = made.shares(300, (f"of-{each['instance']}", 0.6), ("both", 0.4))
    alone = made.storm("x", 0, 60, 900, shadow=True, instance="a")
    flood, other = module.floods(made.results(storms=[alone, *storms]))
    assert (flood["start_s"], flood["end_s"], flood["messages"]) == (NOON_S, NOON_S + 70, 600)
    assert flood["instances"] == ["b", "a"]
    assert [(each["name"], each["messages"], each["share"]) for each in flood["clients"]] == [
        ("both", 240, 0.4), ("of-a", 180, 0.3), ("of-b", 180, 0.3),
    ]  # fmt: skip
    assert flood["client_count"] == 3
    assert module.located(flood, 2) == "orders on 2 sidecars"
    # Refusals come before those of shadow rules.
    assert module.located(other, 2) == "x on a"
    assert module.located(other, 1) == "x"


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "unlimited"), (0, "0/s"), (500.0, "500/s"), (1234.5, "1,234/s"), (12.5, "12.5/s"), (0.25, "0.25/s"),
        (1.26e-5, "0.0000126/s"),
    ],
)  # fmt: skip
def test_rates_are_short_and_never_rounded_to_zero(rate: float | None, text: str) -> None:
    assert words.rate(rate) == text


def test_a_span_within_a_day_has_the_day_once() -> None:
    assert words.span(NOON_S, NOON_S + 243) == "2026-11-21 12:00:00 to 12:04:03 UTC (4 min 3 s)"
    assert words.span(NOON_S, NOON_S + 86_400) == "2026-11-21 12:00:00 to 2026-11-22 12:00:00 UTC (1 d)"


def test_changes_have_the_rate_before_and_after() -> None:
    assert words.change(made.advice("t", "raise", 300.0, 450.0)) == "300/s → 450/s"
    assert words.change(made.advice("t", "new", None, 5.0)) == "unlimited → 5/s"
    assert words.change(made.advice("t", "keep", 5.0)) == "5/s"
    bytes_too = made.advice("t", "raise", 5.0, 6.0, bytes_per_s=4096.0, count="requests")
    assert words.change(bytes_too) == "5 requests/s → 6 requests/s, 4,096 bytes/s"
    shared = made.advice("t", "share", 300.0, 300.0, fair_by="producer_group")
    assert words.change(shared) == "300/s, shared by producer group"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (300.0, 450.0, "300/s → 450/s"), (None, 1000.0, "own limit: none → 1,000/s"),
        (1000.0, None, "own limit: 1,000/s → none"), (None, None, ""), (300.0, 300.0, "300/s → 300/s"),
    ],
)  # fmt: skip
def test_edit_of_a_limit(before: float | None, after: float | None, text: str) -> None:
    rates = {"rate_before_per_s": before, "rate_after_per_s": after}
    assert words.edit(rates | {"fair_by_before": None, "fair_by_after": None}) == text
    shared = "" if after is None else ", shared by client"
    assert words.edit(rates | {"fair_by_before": None, "fair_by_after": "client"}) == text + shared


def test_growth() -> None:
    amounts = ((112, 100), (60, 100), (0, 5), (5, 0), (0, 0))
    assert [words.growth(*each) for each in amounts] == ["+12%", "\N{MINUS SIGN}40%", "\N{MINUS SIGN}100%", "new", ""]


def test_limits_without_refusals_need_no_reading() -> None:
    assert not words.is_default(made.advice("t", "lower", 9.0, 5.0, only_with="lower"))
    assert not words.needs_reading(made.advice("t", "keep", 9.0, current=made.replay(0, 0.0)))
    assert words.needs_reading(made.advice("t", "keep", 9.0, current=made.replay(3, 0.1)))
