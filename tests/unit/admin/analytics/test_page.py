import html
import json
import re
from typing import Any

import report_results as made
from report_results import HOSTILE, LONG, MAIN, OTHER

from admin.analytics.page import broken, render
from admin.analytics.words import NOT_KNOWN
from admin.common.tables import printable

_LARGEST_BYTES = 150_000


def _figures(page: str) -> Any:
    (drawn,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page)
    return json.loads(drawn)


def _section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}"')[1].split("</section>", maxsplit=1)[0]


def _text(markup: str) -> str:
    """Return the visible text, with single blanks."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", markup.replace("<wbr>", "")))
    return re.sub(r"\s+(?=[:,.])", "", re.sub(r"\s+", " ", text))


def _answers(page: str) -> dict[str, str]:
    found = re.findall(r"<dt[^>]*>(.*?)</dt><dd>(.*?)</dd>", _section(page, "answers"), re.DOTALL)
    return {question: _text(answer).strip() for question, answer in found}


def test_names_are_escaped_and_unprintable_characters_visible() -> None:
    page = render(made.results())
    body = page[page.index("<body>") : page.index('<script type="application/json" id="figures">')]
    assert page.count("<script") == page.count("</script>") == 3
    assert "<img" not in body
    assert "\u202e" not in page
    assert "&lt;script&gt;alert" in body


def test_page_is_small_and_self_contained() -> None:
    assert len(render(made.empty()).encode()) < _LARGEST_BYTES
    own = re.sub(r"<script>.*?</script>", "", render(made.results()), flags=re.DOTALL)
    linked = re.findall(r'<[^<>]*\s(?:src|href)="([^"]*)"', own)
    assert linked
    assert all(each.startswith(("#", "data:")) for each in linked)
    assert not re.search(r"url\((?!data:)|@import", own)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', own)
    assert policy.startswith("default-src 'none';")
    assert not re.search("unsafe|http", policy)


def test_five_questions_are_answered_first() -> None:
    answers = _answers(render(made.results()))
    assert list(answers) == ["Who flooded?", "When?", "What to change?", "What would change?", "What is unknown?"]
    assert (
        "10.20.0.7 (group nightly-import): 1,467,579 messages to orders on orders-eu-1 refused"
        in answers["Who flooded?"]
    )
    assert answers["When?"].startswith(
        "2026-11-21 13:57:00 to 14:07:40 UTC (10 min 40 s): orders on orders-eu-1: 1,152,331"
    )
    assert answers["What to change?"].startswith("Raise orders on orders-eu-1: 300/s → 450/s refused 14.1% → 2.1%")
    assert (
        "would refuse 310,000 messages, compared with 2,096,541 under the current limits. Fair shares"
        in answers["What would change?"]
    )
    assert "sluice limits apply sluice-report/recommendations.json --dry-run" in answers["What would change?"]
    assert "17 records lost" in answers["What is unknown?"]


def test_an_empty_report_is_explained() -> None:
    page = render(made.empty())
    assert "These logs contain no records." in page
    assert _answers(page) == {
        "Who flooded?": "No caller was refused.", "When?": "There were no storms.",
        "What to change?": "Nothing: no limit has to change.", "What is unknown?": "Nothing: the log is complete.",
    }  # fmt: skip


def test_limit_of_the_largest_storm_is_explained_even_if_it_stays() -> None:
    kept = made.advice("orders", "keep", 300.0, evidence="Floods alone were refused.", current=made.replay(9, 0.1))
    answers = _answers(render(made.results(recommendations=[kept])))
    assert (
        "The largest storm was on orders on orders-eu-1: keep, 300/s. Floods alone were refused."
        in answers["What to change?"]
    )


def test_a_short_log_does_not_say_that_nothing_has_to_change() -> None:
    kept = made.advice("orders", "keep", 300.0, evidence=f"{NOT_KNOWN}: 1 min …", current=made.replay(9, 0.1))
    answer = _answers(render(made.results(recommendations=[kept])))["What to change?"]
    assert answer.startswith("Not known yet: the log is too short to tell demand from a flood. The largest storm")


def test_one_flood_at_several_sidecars_is_one_row() -> None:
    page = render(made.results(storms=made.flood("orders", 1_000, "eu-0", "eu-1", "eu-2"), instance_count=3))
    assert "on 3 sidecars most on eu-0, eu-1 and eu-2" in _text(_section(page, "storms"))
    assert (
        "2026-11-21 12:00:00 to 12:01:20 UTC (1 min 20 s): orders on 3 sidecars (one flood): 3,000 messages"
        in _answers(page)["When?"]
    )
    drawn = re.findall(r'<line stroke="var\(--refuse\)" x1="(\d+)" x2="(\d+)".*?<title>(.*?)</title>', page)
    assert drawn == [
        ("0", "80", "2026-11-21 12:00:00 to 12:01:20 UTC (1 min 20 s): 3,000 messages refused, up to 23/s")
    ]


def test_callers_are_judged_by_their_refusals_of_all_resources() -> None:
    many = [made.culprit("orders", f"10.0.0.{at}", 90, 0.09, resources=1) for at in range(3)]
    said = _answers(render(made.results(callers=many)))["Who flooded?"]
    assert said.startswith("No caller stands out. These had the most refusals:")
    one = made.culprit("orders", "10.0.0.7", 900, 0.85, resources=20)
    victim = made.culprit("orders", "10.0.0.8", 150, 0.15, resources=1)
    said = _answers(render(made.results(callers=[one, victim])))["Who flooded?"]
    assert "900 messages to orders on orders-eu-1 and 19 other resources refused (85% of all refusals)" in said
    assert "10.0.0.8" not in said


def test_a_chart_has_the_unit_of_the_limit() -> None:
    curve = made.curve("orders", 50.0)
    assert "Messages per second, averaged over 1 min." in render(made.results(curves=[curve]))
    curve["points"] = [each | {"count": "requests"} for each in curve["points"]]
    page = render(made.results(curves=[curve]))
    assert "Requests per second, the unit of the limit, averaged over 1 min." in page
    assert 'aria-label="Requests per second of orders on orders-eu-1, in steps of 1 min: ' in page


def test_other_rates_are_on_demand() -> None:
    details = re.findall(r"<details>.*?</details>", _section(render(made.results()), "recommendations"), re.DOTALL)
    assert "Rate Refused With retries 300/s now 20% 30% 400/s 10% 15% 450/s recommended 6.7%" in _text(details[0])


def test_the_rest_and_the_commands_are_named() -> None:
    page = render(made.results(out="my report", tables="s3a://bucket/report", instance_count=9))
    assert "The first 5 of 212 recommendations. All are in" in page
    assert "All are in <code>s3a://bucket/report/coverage</code>" in page
    assert "sluice limits apply &#39;my report/recommendations.json&#39; --dry-run" in page


def test_names_are_broken_between_their_parts_only() -> None:
    assert broken("10.20.0.7") == "10.20.0.7"
    assert broken("orders-eu-1") == '<span class="nowrap">orders-eu-1</span>'
    assert broken("com.example.orders_of.eu") == "com.<wbr>example.<wbr>orders_<wbr>of.<wbr>eu"
    assert broken("topic " + "x" * 45) == f"topic {'x' * 20}<wbr>{'x' * 20}<wbr>{'x' * 5}"
    assert broken('<b a="1">') == "&lt;b a=&#34;1&#34;&gt;"
    for name in (LONG, HOSTILE, "", " a  b", "-" * 50, "a::b" * 9):
        assert html.unescape(re.sub(r"<[^<>]+>", "", broken(name))) == printable(name)


def test_shadow_limits_are_separate_from_refusals() -> None:
    point = made.point(0, 100.0, 0.0, 150.0, None) | {"shadowed_per_s": 30.0}
    curve = made.curve("orders", None) | {"points": [point], "shadowed": 1_800}
    page = render(made.results(curves=[curve]))
    (drawn,) = _figures(page)["curves"]
    assert (drawn["plain"][0], drawn["admitted"][0], drawn["asked"][0]) == (70, 100, 100)
    assert 'data-label="Would refuse" class="number"><div>1,800<' in page
    assert page.count('<line stroke="var(--would)"') == page.count('<span class="muted">in shadow mode</span>') == 1


def test_offers_are_separate_and_limits_without_refusals_are_folded() -> None:
    section = _section(render(made.results()), "recommendations")
    first, offered = section.split("Offered: could be lower", 1)
    assert "alert" not in first
    assert "recommendations.json --lower" in offered
    assert "json --raise" not in section
    assert "busiest second of &lt;script&gt;alert" in offered
    assert "retired-*" in section.split("<summary>1 limit without refusals, to keep</summary>")[1]


def test_recommendation_has_its_replay_and_its_details_on_demand() -> None:
    section = _section(render(made.results()), "recommendations")
    assert "14.1% → 2.1% (4% with retries)" in section
    assert "logged: 14%" in section
    assert "high with assumed retries" in _text(section)
    assert "others 3% → at most 0% each" in section
    reason, details = re.findall(r'<p class="why">(.*?)</p>\s*<details.*?<p>(.*?)</p>', section, re.DOTALL)[0]
    assert reason == "p99 of demand over 6 hours is 370/s; the limit of 300/s refused 14.1% in 2 storms"
    assert details == "All that is known of orders."


def test_fleet_shows_each_sidecar_and_its_share() -> None:
    fleet = _section(render(made.results()), "fleet")
    assert "orders: 2 sidecars need 600/s, limits add up to 900/s" in _text(fleet)
    rows = [_text(row).split() for row in fleet.split('<tr role="row">')[2:]]
    assert rows == [[MAIN, "450/s", "300/s", "75%", "675/s"], [OTHER, "150/s", "600/s", "25%", "225/s"]]


def test_weeks_are_compared_and_new_names_listed() -> None:
    page = render(made.results())
    week, new = _section(page, "week"), _section(page, "new")
    assert "2026-11-14 12:00:00 to 2026-11-21 12:00:00 UTC (7 d), compared with the week before." in week
    assert re.findall(r"<div>(.*?)</div>", week) == ["112", "100", "+12%", "12", "0", "new"]
    assert "10.20.0.8" in new
    page = render(made.results(week=None, new_resources=[], new_clients=[], fleets=[]))
    assert not re.search(r'id="(week|new|fleet)"|href="#(week|new|fleet)"', page)


def test_sources_are_listed() -> None:
    inputs = made.inputs(logs=["s3a://b/logs"], files=2, size_bytes=2_000_000, records=203, duplicates=1000)
    page = render(made.results(inputs=inputs))
    assert "Read: 2 files, 2.0 MB, 203 records and 1,000 copies of them, from" in page
    data = _section(render(made.results()), "data")
    assert "Minutes missing" in data
    assert "Minutes missing" not in _section(render(made.results(coverage=[made.coverage(MAIN)])), "data")
