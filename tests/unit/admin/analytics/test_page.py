import html
import json
import re

import findings_maker
import msgspec
import pytest
from findings_maker import HOSTILE, LONG

from admin.analytics.findings import Edit, Findings, Inputs, LimitChange, Point, Totals
from admin.analytics.page import render
from admin.analytics.page.markup import broken, data, label, table
from admin.common.tables import printable
from admin.wire.recommendations import Recommendation


def test_no_name_comes_through_unescaped() -> None:
    page = render(findings_maker.findings())
    body = page[page.index("<body>") : page.index('<script type="application/json" id="palette">')]
    assert "<script>alert" not in body
    assert "<img" not in body
    assert "\u202e" not in page
    assert "&lt;script&gt;alert" in body


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


def test_every_chart_has_its_data_once_and_a_table_beside_it() -> None:
    page = render(findings_maker.findings())
    charts = re.findall(r'class="chart" id="([^"]+)"', page)
    assert sorted(re.findall(r'data-chart="([^"]+)"', page)) == sorted(charts)
    assert len(charts) == 6
    assert page.count("<table") == 4 + len(findings_maker.findings().curves) + 2


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
    assert "10.20.0.7  nightly-import \u2192 orders on orders-eu-1" in _charted(found["topics"])
    assert "10.20.0.7  nightly-import  pika 1.4.4 \u2192 orders" in _charted(found["queues"])
    assert "10.20.0.9 \u2192 orders" in _charted(found["queues"])


def _charted(page: str) -> str:
    (drawn,) = re.findall(r'class="chart-data" data-chart="culprits-chart">(.*?)</script>', page)
    return json.dumps(json.loads(drawn), ensure_ascii=False)


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
        (Inputs(logs=("s3a://b/logs",), records=203), "Read: 203 records, from"),
        (Inputs(logs=("logs",), files=1, size_bytes=1500, records=1), "Read: 1 file, 1.5 kB, 1 record, from"),
        (Inputs(logs=("logs",)), "Read as they come in:"),
    ],
    ids=["address", "files", "followed"],
)
def test_what_was_read_is_said_as_far_as_it_was_counted(inputs: Inputs, said: str) -> None:
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
    # The smallest tick of the scale has as many decimals.
    (decimals,) = re.findall(r'"format":"0,0\.\[(0+)\]"', own)
    assert len(decimals) >= len(written.partition(".")[2])


def test_a_step_is_said_to_be_of_many_minutes_only_if_it_is() -> None:
    steps = {60: False, 1: False, 300: True}
    for step_s, many in steps.items():
        curve = msgspec.structs.replace(findings_maker.curve("orders", 300.0, points=5), step_s=step_s)
        assert ("so many minutes are drawn as one" in render(findings_maker.findings(curves=(curve,)))) is many


def test_an_edit_is_drawn_at_its_time() -> None:
    curve = findings_maker.curve("orders", 300.0, points=3, storms=0)
    at_s = curve.points[1].at_s + 25
    curve = msgspec.structs.replace(curve, edits=(Edit(at_s=at_s, before_per_s=200.0, after_per_s=300.0),))
    page = render(findings_maker.findings(curves=(curve,)))
    assert "limit 300/s, 200/s" in page
    (drawn,) = re.findall(r'class="chart-data" data-chart="curve-0">(.*?)</script>', page)
    assert f'["from",[{curve.points[0].at_s}000,{curve.points[1].at_s}000,{at_s}000,' in drawn


def test_a_table_says_what_its_cells_are() -> None:
    written = table("Figures", ("Name", "Count"), [("a", "1")], right=(1,))
    assert '<th scope="row" role="rowheader">a</th>' in written
    assert '<td role="cell" data-label="Count" class="number">1</td>' in written


def test_a_column_that_nobody_uses_is_left_out() -> None:
    written = table("Figures", ("Name", "User", "Count"), [("a", "", "1"), ("", "", "2")], right=(2,))
    assert "User" not in written
    assert '<td role="cell" data-label="Count" class="number">2</td>' in written
    assert "User" in table("Figures", ("Name", "User"), [])
