import io
import re
from pathlib import Path
from typing import Any

import report_results as made
from report_results import HOSTILE

from admin.analytics.summary import summary
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
    assert "Unknown: 2 lines not understood and left out." in lines
    assert "Unknown" not in _printed(made.empty())


def test_it_ends_with_what_to_do_next() -> None:
    printed = _printed(made.results())
    assert printed.rstrip().endswith("sluice limits apply sluice-report/recommendations.json --lower --dry-run")
    assert "make the changes:  sluice limits apply sluice-report/recommendations.json\n" in printed
    assert "sluice limits apply" not in _printed(made.results(recommendations=[]))
    assert "apply 'my report/recommendations.json'" in _printed(made.results(out="my report"))


def test_storms_in_shadow_are_marked() -> None:
    assert re.search(r"^  payments .* 88,000 in shadow ", _printed(made.results()), re.MULTILINE)


def test_one_flood_at_several_sidecars_is_one_row() -> None:
    storms = [made.storm("orders", 0, 60, 1_000, instance=name, sidecars=3) for name in ("a", "b", "c")]
    printed = _printed(made.results(storms=storms, culprits=[], instance_count=3))
    (row,) = re.findall(r"^  orders .*one flood.*$", printed, re.MULTILINE)
    assert "one flood at 3 sidecars" in row
    assert " 3,000 " in row


def test_recommendations_are_those_of_the_page() -> None:
    parts = {each.splitlines()[0]: each for each in _printed(made.results()).split("\n\n")}
    recommended = parts["Recommended limits"]
    assert "14.1% → 2.1% (4% if nobody retries)   high, retries assumed" in recommended
    assert "500/s, in fair shares by client   others 3% → 0%" in recommended
    assert "lower" not in recommended
    assert "Also: 206 limits to keep, 2 limits never used" in recommended
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
    assert re.search(r"^  resource .* clients +users +by$", printed, re.MULTILINE)
    assert "nightly-import 90%, billing 10%" in printed
    assert re.search(r"^  10\.20\.0\.7 +nightly-import +pika 1\.4\.4 +orders ", printed, re.MULTILINE)
