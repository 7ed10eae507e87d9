import html
import json
import re
from typing import Any

import findings_maker
import msgspec
import pytest
from findings_maker import HOSTILE, LONG

from admin.analytics.findings import Findings, Inputs, LimitChange, Point, Totals
from admin.analytics.page import render
from admin.analytics.page.markup import broken, data, label, table
from admin.common.recommendations import Recommendation
from admin.common.tables import printable

_LARGEST_BYTES = 150_000


def _figures(page: str) -> Any:
    (drawn,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page)
    return json.loads(drawn)


def test_no_name_comes_through_unescaped() -> None:
    page = render(findings_maker.findings())
    body = page[page.index("<body>") : page.index('<script type="application/json" id="figures">')]
    assert "<script>alert" not in page
    assert "<img" not in body
    assert "\u202e" not in page
    assert "&lt;script&gt;alert" in body


def test_without_its_data_it_is_small() -> None:
    page = render(Findings(made_at="2026-11-21T12:00:00Z", out="out"))
    assert len(page.encode()) < _LARGEST_BYTES


def test_it_names_nothing_of_elsewhere() -> None:
    page = render(findings_maker.findings())
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    named = re.findall(r'<[^<>]*\s(?:src|href)="([^"]*)"', own)
    assert named
    assert all(each.startswith(("#", "data:")) for each in named)
    assert not re.search(r"url\((?!data:)|@import", own)


def test_a_report_of_nothing_is_a_page_too() -> None:
    page = render(Findings(made_at="2026-11-21T12:00:00Z", out="out"))
    assert "There is not one record in these logs." in page
    assert "Nothing was refused." in page


def test_a_report_without_refusals_says_so() -> None:
    totals = Totals(resources=3, admitted=1000, recommendations={"keep": 3})
    found = findings_maker.findings(storms=(), culprits=(), totals=totals)
    assert "refused nothing of 1,000 messages" in render(found)


def test_what_waited_for_a_limit_is_said() -> None:
    found = findings_maker.findings(storms=(), culprits=(), totals=Totals(admitted=9000, held=8500))
    assert "refused nothing of 9,000 messages; 8,500 messages had to wait for a limit first." in render(found)


def test_every_chart_has_its_data_and_a_table_beside_it() -> None:
    found = findings_maker.findings()
    page, drawn = render(found), _figures(render(found))
    charts = re.findall(r'class="chart" id="([^"]+)"', page)
    assert charts == ["storms-chart", *(f"curve-{at}" for at in range(len(found.curves)))]
    assert len(drawn["curves"]) == len(found.curves)
    assert len(drawn["storms"]["storms"]) == len(found.storms)
    assert page[page.index('id="demand"') : page.index('id="culprits"')].count("<table") == len(found.curves)
    what_ifs = re.findall(r'class="what-if" id="([^"]+)".*?<table', page)
    assert what_ifs == list(drawn["what_ifs"]) == ["what-if-0", "what-if-1"]


def test_who_was_refused_is_named_by_what_its_protocol_has() -> None:
    found = {
        name: render(page)
        for name, page in (("topics", findings_maker.findings()), ("queues", findings_maker.of_queues()))
    }
    columns = {name: re.findall(r'role="columnheader"[^>]*>([^<]+)</th>', page) for name, page in found.items()}
    by_name = {
        name: {"Users", "User", "Product", "Producer groups", "Producer group"} & {*columns[name]} for name in found
    }
    assert by_name == {"topics": {"Producer groups", "Producer group"}, "queues": {"Users", "User", "Product"}}


def test_what_is_left_out_is_said() -> None:
    page = render(findings_maker.findings())
    assert "The first 5 of 212 recommendations; all are in" in page


def test_where_the_tables_are_is_said_and_what_is_to_be_typed_is_quoted() -> None:
    page = render(findings_maker.findings(out="my report", tables="s3a://bucket/report", instance_count=9))
    assert "all are in <code>s3a://bucket/report/coverage</code>" in page
    assert "sluice limits apply &#x27;my report/recommendations.json&#x27; --dry-run" in page


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (Inputs(logs=("logs",), files=1, size_bytes=1500, records=1), "Read: 1 file, 1.5 kB, 1 record, from"),
        (
            Inputs(logs=("s3a://b/logs",), files=2, size_bytes=2_000_000, records=203, duplicates=1000),
            "Read: 2 files, 2.0 MB, 203 records, 1,000 more that were copies, from",
        ),
    ],
    ids=["one", "copies"],
)
def test_what_was_read_is_said(inputs: Inputs, said: str) -> None:
    assert f"<p>{said}</p>" in render(findings_maker.findings(inputs=inputs))


def test_data_cannot_end_the_script_that_it_stands_in() -> None:
    written = data({"a": "</script><!-- &"})
    assert "<" not in written
    assert "&" not in written
    assert json.loads(written) == {"a": "</script><!-- &"}


def test_long_names_keep_their_ends_in_charts() -> None:
    assert label(LONG).startswith("billing-very")
    assert label(LONG).endswith("very-long")
    assert len(label(LONG)) <= 44


def test_a_name_is_broken_between_its_parts_only_and_not_at_all_if_it_is_short() -> None:
    assert broken("10.20.0.7") == "10.20.0.7"
    assert broken("orders-eu-1") == '<span class="whole">orders-eu-1</span>'
    assert broken("com.example.orders_of.eu") == "com.<wbr>example.<wbr>orders_<wbr>of.<wbr>eu"
    assert broken("topic " + "x" * 45) == f"topic {'x' * 20}<wbr>{'x' * 20}<wbr>{'x' * 5}"
    assert broken('<b a="1">') == "&lt;b a=&quot;1&quot;&gt;"
    for name in (LONG, HOSTILE, "", " a  b", "-" * 50, "a::b" * 9):
        assert html.unescape(re.sub(r"<[^<>]+>", "", broken(name))) == printable(name)


@pytest.mark.parametrize("limit", [0.0001, 0.00002, 0.05])
def test_no_limit_above_nothing_reads_as_nothing(limit: float) -> None:
    point = Point(at_s=0, admitted_per_s=limit, refused_per_s=limit, peak_per_s=1.0, limit_per_s=limit)
    curve = msgspec.structs.replace(findings_maker.curve("slow", limit), points=(point,))
    change = LimitChange(instance="a", at_s=0, change_id=1, action="set", rate_before_per_s=limit, rate_after_per_s=1.0)
    advice = Recommendation(
        instance="a", kind="topic", name="slow", action="raise", rate_per_s=limit, recommended_rate_per_s=1.0
    )
    found = findings_maker.findings(curves=(curve,), limit_changes=(change,), recommendations=(advice,))
    page = render(found)
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?<![\d.,])0/s", own)
    written = f"{limit:.5f}".rstrip("0")
    assert f"{written}/s → 1/s" in own


def test_what_a_limit_in_shadow_would_have_refused_is_among_what_was_admitted() -> None:
    point = Point(at_s=0, admitted_per_s=100.0, refused_per_s=0.0, shadowed_per_s=30.0, peak_per_s=150.0)
    curve = msgspec.structs.replace(findings_maker.curve("orders", None), points=(point,), shadowed=1_800)
    page = render(findings_maker.findings(curves=(curve,)))
    (drawn,) = _figures(page)["curves"]
    assert (drawn["plain"][0], drawn["admitted"][0], drawn["asked"][0]) == (70, 100, 100)
    assert 'data-label="Would have been" class="number"><div>1,800<' in page


def test_storms_of_limits_in_shadow_are_marked_and_not_among_what_was_refused() -> None:
    page = render(findings_maker.findings())
    assert "refused 2,188,979 of 13,393,530 messages (16.3%), in 5 storms" in page
    assert "Limits in shadow would have refused 88,000 messages in 1 storm; these passed." in page
    assert [each["shadow"] for each in _figures(page)["storms"]["storms"]] == [False] * 5 + [True]
    assert page.count('<span class="tag would">in shadow</span>') == 1
    assert "would have been" not in render(findings_maker.findings(storms=(), culprits=(), curves=()))


def test_the_largest_storm_has_its_answers_at_the_top() -> None:
    page = render(findings_maker.findings())
    largest = page[page.index('id="largest"') : page.index('class="cards"')]
    said = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", largest))).replace("\xa0", " ")
    assert "When 2026-11-21 13:57:00 to 14:07:40 (10 min 40 s)" in said
    assert "10.20.0.7 70% , 10.20.0.8 30%" in said
    assert "1,152,331 messages refused, at most 2,520/s" in said
    assert "What to do Raise 300/s → 450/s" in said
    assert 'id="largest"' not in render(findings_maker.findings(storms=()))


def test_what_is_only_offered_stands_apart() -> None:
    page = render(findings_maker.findings())
    assert "sluice limits apply sluice-report/recommendations.json --lower" in page
    assert "json --raise" not in page
    first, offered = page[page.index('id="recommendations"') :].split("Offered: could be lower", 1)
    assert "alert" not in first
    assert "busiest second of &lt;script&gt;alert" in offered
    (to_change,) = re.findall(r"Limits to change</dt><dd><span class=\"big\">(\d+)<", page)
    assert to_change == "3"


def test_a_recommendation_says_how_retries_are_known_and_both_shares_where_they_are_assumed() -> None:
    page = render(findings_maker.findings())
    assert "14.1% → 2.1% (4% if nobody retries)" in page
    assert "logged: 14%" in page
    assert "Confidence: high; retries assumed." in page
    assert "others 3% → 0%" in page
    assert "retries measured" in page


def test_a_fleet_has_a_row_for_all_and_one_for_each_with_its_share() -> None:
    page = render(findings_maker.findings())
    fleet = page[page.index('id="fleet"') : page.index('<section id="week"')]
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in fleet.split('<tr role="row">')[2:]]
    assert rows == [
        ["orders", "all", "2", "600/s", "900/s"],
        ["orders", "orders-eu-1", "450/s", "300/s", "75%", "675/s"],
        ["orders", "orders-eu-2", "150/s", "600/s", "25%", "225/s"],
    ]


def test_a_week_is_compared_with_the_one_before_and_what_is_new_is_named() -> None:
    page = render(findings_maker.findings())
    week = page[page.index('id="week"') : page.index('id="new"')]
    assert "2026-11-14 12:00 to 2026-11-21 12:00, beside 2026-11-07 12:00 to 2026-11-14 12:00" in week
    assert re.findall(r"<div>(.*?)</div>", week) == ["112", "100", "+12%", "12", "0", "new"]
    new = page[page.index('id="new"') : page.index('id="data"')]
    assert "10.20.0.8" in new
    assert "4,301" in new
    page = render(findings_maker.findings(week=None, new_resources=(), new_clients=(), fleets=()))
    assert not re.search(r'id="(week|new|fleet)"|href="#(week|new|fleet)"', page)


def test_a_column_that_nobody_uses_is_left_out() -> None:
    written = table("Figures", ("Name", "User", "Count"), [("a", "", "1"), ("", "", "2")], right=(2,))
    assert "User" not in written
    assert '<td role="cell" data-label="Count" class="number"><div>2</div></td>' in written
    assert "User" in table("Figures", ("Name", "User"), [])
