import io
import re
from pathlib import Path
from typing import Any

import report_results as made
from report_results import HOSTILE, NOON_S

from admin.analytics import summary as module
from admin.analytics.summary import summary, unknowns
from admin.run.check import show


def _printed(results: dict[str, Any]) -> str:
    stream = io.StringIO()
    show(summary(results, Path("sluice-report/report.html")), stream)
    return stream.getvalue()


def test_it_begins_with_the_result_and_what_is_unknown() -> None:
    lines = _printed(made.results()).splitlines()
    assert lines[0].startswith(
        "From 2026-11-21 12:00:00 to 18:00:00 UTC (6 h), 2 sidecars refused 2,188,979 of 13,393,530"
    )
    assert "Unknown: 2 lines damaged or not understood, and left out." in lines
    assert "Unknown" not in _printed(made.empty())


def test_it_ends_with_what_to_do_next() -> None:
    printed = _printed(made.results())
    assert printed.rstrip().endswith("sluice limits apply sluice-report/recommendations.json --lower --dry-run")
    assert "make the changes:  sluice limits apply sluice-report/recommendations.json\n" in printed
    assert "sluice limits apply" not in _printed(made.results(recommendations=[]))
    assert "apply 'my report/recommendations.json'" in _printed(made.results(out="my report"))


def test_storms_in_shadow_are_marked() -> None:
    assert re.search(r"^  payments in shadow on orders-eu-1 ", _printed(made.results()), re.MULTILINE)


def test_one_flood_at_several_sidecars_is_one_row() -> None:
    printed = _printed(made.results(storms=made.flood("orders", 1_000, "a", "b", "c"), instance_count=3))
    assert re.search(r"^  orders at 3 sidecars +2026-11-21 12:00:00 for 1 min 20 s +3,000 ", printed, re.MULTILINE)


def test_recommendations_are_those_of_the_page() -> None:
    parts = {each.splitlines()[0]: each for each in _printed(made.results()).split("\n\n")}
    recommended = parts["Recommended limits"]
    assert re.search(
        r"Raise 300/s → 450/s +14.1% → 2.1% \(4% if nobody retries\) .* high with assumed retries", recommended
    )
    assert re.search(r"Share fairly 500/s, in fair shares by client +others 3% → 0%", recommended)
    assert "Lower" not in recommended
    assert "Not shown: 206 limits to keep, 2 limits never used" in recommended
    assert "2,000/s → 90/s" in parts["Offered: could be lower"]


def test_rates_that_were_tried_are_listed() -> None:
    named = {"kind": "topic", "name": "orders", "rate_per_s": 450.0}
    tried = [
        {**named, "instance": "a", "refused_share": 0.1, "refused_share_uncorrected": 0.2},
        {**named, "instance": "", "name": "none"},
    ]
    printed = _printed(made.results(tried=tried))
    assert re.search(r"orders +a +450/s +10% without retries, 20% with them", printed)
    assert re.search(r"none +450/s +no demand under this name", printed)


def test_names_cannot_control_the_terminal() -> None:
    printed = _printed(made.results())
    assert "\u202e" not in printed
    assert HOSTILE.replace("\u202e", "\\u202e") in printed


def test_callers_are_named_by_what_their_protocol_has() -> None:
    assert re.search(r"^  client +producer group +resource ", _printed(made.results()), re.MULTILINE)
    printed = _printed(made.of_queues())
    assert re.search(r"^  resource .* clients +users +refused by$", printed, re.MULTILINE)
    assert "nightly-import 90% …" in printed
    assert re.search(r"^  10\.20\.0\.7 +nightly-import +pika 1\.4\.4 +orders ", printed, re.MULTILINE)


def test_lede_is_plain_english() -> None:
    assert module.lede(made.results()) == (
        "From 2026-11-21 12:00:00 to 18:00:00 UTC (6 h), 2 sidecars refused 2,188,979 of 13,393,530 messages (16.3%):"
        " 5 storms on 4 resources. 1 storm may not be over. Limits in shadow mode would have refused 88,000 messages"
        " in 1 storm."
    )
    quiet = made.results(instance_count=1, totals=made.totals(admitted=9_000, held=8_500))
    assert module.lede(quiet).endswith(
        "1 sidecar refused none of 9,000 messages. 8,500 messages had to wait for a limit."
    )


def test_offers_are_not_changes() -> None:
    counts = {"raise": 3, "lower": 2, "new": 1, "share": 1, "keep": 9}
    assert module.to_change(made.totals(recommendations=counts, offered={"lower": 2, "raise": 1})) == 4


def test_clocks_that_seem_to_be_off_are_named() -> None:
    offsets = {"b": 7200, "a": 7200, "c": 660, "d": -3600}
    clocks = [{"instance": name, "ahead_s": ahead_s} for name, ahead_s in offsets.items()]
    assert list(unknowns(made.empty() | {"clocks": clocks})) == [
        "The log of d begins and ends 1 h before most others: the clock there may be behind.",
        "The log of c ends 11 min after most others: the clock there may be ahead.",
        "The log of b and a ends 2 h after most others: the clock there may be ahead.",
    ]


def test_missing_minutes_say_whether_the_sidecar_was_running() -> None:
    totals = made.totals(gap_minutes=5, missing_minutes=2)
    running = "2 minutes without records although the sidecar was running."
    assert list(unknowns(made.empty() | {"totals": totals})) == [
        "3 minutes without records: the sidecar was not running.", running,
    ]  # fmt: skip
    aside = [{"file": "/logs/a.gz", "reason": "is damaged", "lines": 0, "example": ""}]
    assert list(unknowns(made.empty() | {"totals": totals, "inputs": made.inputs(set_aside=aside)})) == [
        "Damaged or unreadable: /logs/a.gz.",
        "3 minutes without records: unknown whether the sidecar was running.", running,
    ]  # fmt: skip


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
    assert module.located(flood, 2) == "orders at 2 sidecars"
    # Refusals come before what only would have been refused.
    assert module.located(other, 2) == "x on a"
    assert module.located(other, 1) == "x"
