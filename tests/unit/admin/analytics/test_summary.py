import io
import re
from pathlib import Path

import findings_maker
from findings_maker import HOSTILE

from admin.analytics.findings import Findings, Inputs, Totals
from admin.analytics.summary import summary
from admin.run.check import show


def _printed(findings: Findings) -> str:
    stream = io.StringIO()
    show(summary(findings, Path("sluice-report/report.html")), stream)
    return stream.getvalue()


def test_it_begins_with_the_period_what_was_observed_and_what_was_refused() -> None:
    lines = _printed(findings_maker.findings()).splitlines()
    assert lines[0] == (
        "2026-11-21 12:00:00 to 18:00:00 (6 h) UTC, 2 sidecars (orders-eu-1 360 minutes, orders-eu-2 338 minutes)"
    )
    assert lines[1] == (
        "2,188,979 messages of 13,393,530 refused (16.3%), of 4 of 212 resources, in 5 storms, 1 of them may go on"
    )


def test_what_waited_for_a_limit_is_said_beside_what_was_refused() -> None:
    quiet = _printed(findings_maker.findings(totals=Totals(admitted=9000, held=8500), storms=()))
    assert "Nothing was refused of 9,000 messages; 8,500 messages had to wait for a limit first." in quiet
    totals = Totals(resources=2, refused_resources=1, admitted=90, refused=10, held=1, storms=1)
    loud = _printed(findings_maker.findings(totals=totals))
    assert "in 1 storm; 1 message had to wait for a limit first" in loud


def test_what_is_not_known_is_said_before_all_else() -> None:
    lines = _printed(findings_maker.findings()).splitlines()
    assert "Attention: 2 lines could not be understood and were set aside." in lines
    assert "Attention: 17 records were lost, so the figures are too small." in lines
    assert "Attention" not in _printed(findings_maker.findings(inputs=Inputs(), totals=Totals(admitted=1)))


def test_it_ends_with_what_to_do_next() -> None:
    printed = _printed(findings_maker.findings())
    assert printed.rstrip().endswith("sluice limits apply sluice-report/recommendations.json --lower")
    assert "put it in force:   sluice limits apply sluice-report/recommendations.json\n" in printed
    assert "sluice limits apply" not in _printed(findings_maker.findings(recommendations=()))


def test_what_limits_in_shadow_would_have_refused_is_said_apart() -> None:
    printed = _printed(findings_maker.findings())
    assert printed.splitlines()[2] == ("Limits in shadow would have refused 88,000 messages in 1 storm; these passed.")
    assert re.search(r"^  payments .* 88,000 in shadow ", printed, re.MULTILINE)
    assert "shadow" not in _printed(findings_maker.findings(totals=Totals(admitted=1), storms=()))


def test_it_says_what_the_page_says_of_limits() -> None:
    printed = _printed(findings_maker.findings())
    parts = {each.splitlines()[0]: each for each in printed.split("\n\n")}
    recommended = parts["Recommended limits"]
    assert "14.1% → 2.1% (4% if nobody retries)   high, retries assumed" in recommended
    assert "500/s, in fair shares by client   others 3% → 0%" in recommended
    assert "lower" not in recommended
    assert "Besides: 206 limits to leave as they are, 2 never used" in recommended
    assert "2,000/s → 90/s" in parts["Offered: could be lower"]


def test_a_name_gives_a_terminal_no_orders() -> None:
    printed = _printed(findings_maker.findings())
    assert "\u202e" not in printed
    assert HOSTILE.replace("\u202e", "\\u202e") in printed


def test_who_was_refused_is_named_by_what_its_protocol_has() -> None:
    printed = _printed(findings_maker.findings())
    assert "   clients                        producer groups       by" in printed
    assert re.search(r"^  client +producer group +resource ", printed, re.MULTILINE)
    printed = _printed(findings_maker.of_queues())
    assert re.search(r"^  resource .* clients +users +by$", printed, re.MULTILINE)
    assert "nightly-import 90%, billing 10%" in printed
    assert re.search(r"^  client +user +product +resource ", printed, re.MULTILINE)
    assert re.search(r"^  10\.20\.0\.7 +nightly-import +pika 1\.4\.4 +orders ", printed, re.MULTILINE)


def test_a_directory_with_blanks_is_quoted_in_what_is_to_be_typed() -> None:
    assert "apply 'my report/recommendations.json'" in _printed(findings_maker.findings(out="my report"))


def test_a_report_of_nothing_says_so() -> None:
    printed = _printed(Findings(made_at="2026-11-21T12:00:00Z", out="out"))
    assert printed.startswith("There is not one record in these logs.")
