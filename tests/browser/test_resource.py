"""The page of one resource: its history, refused clients, reasons, the report's advice, and its changes."""

import json
import re
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_examples import RESOURCE_HISTORY
from axe_playwright_python.sync_playwright import Axe
from harness.frames import FrameClient, sends
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect

from admin.common.recommendations import Backtest, Period, Recommendation, RecommendationsFile, Replay, WhatIf
from admin.wire import ResourceHistory
from proxy.common.clock import write_time

INSTANCE = "broker-a"
LIMITS = """
[rejection_log]
instance = "broker-a"

[[limits]]
kind = "topic"
name = "orders"
rate = 100
burst_s = 1

[[limits]]
kind = "topic"
name = "pay*"
rate = 300

[[limits]]
kind = "topic"
name = "log-*"
rate = 5000
shared = true
"""
# A name with markup, and all special characters of addresses and patterns.
ODD = "<img src=x onerror=alert(1)>/%2F?a=b&c#d [x]"
ADVISED = Recommendation(
    instance=INSTANCE,
    kind="topic",
    name="orders",
    action="raise",
    rule="topic:orders",
    rate_per_s=100.0,
    recommended_rate_per_s=650.0,
    confidence="high",
    evidence="Asked for 620/s in the busiest minute; 43 of 60 minutes were over the limit.",
    backtest=Backtest(
        current=Replay(refused_messages=43_756, refused_share=0.043),
        recommended=Replay(refused_messages=12, refused_share=0.00001),
    ),
    what_if=tuple(
        WhatIf(rate_per_s=rate, refused_share=one, refused_share_uncorrected=other)
        for rate, one, other in ((150.0, 0.031, 0.052), (400.0, 0.004, 0.019), (650.0, 0.00001, 0.002))
    ),
)


def write_report(sluice: Sluice, *recommendations: Recommendation) -> None:
    """Write a report's recommendations to a sidecar's path, as a report does."""
    folder = Path(json.loads(sluice.get("/api/v1/state")[1])["persistence"]["directory"]) / "report"
    folder.mkdir(exist_ok=True)
    head = RecommendationsFile(
        made_at="2026-01-02T03:04:05Z",
        period=Period(from_s=1_767_225_600, until_s=1_767_312_000),
        instances=(INSTANCE,),
    )
    lines = b",\n".join(map(msgspec.json.encode, recommendations))
    text = msgspec.json.encode(head).removesuffix(b"]}") + b"\n" + lines + b"\n]}\n"
    (folder / "recommendations.json").write_bytes(text)


def address(name: str, kind: str = "topic", **more: str) -> str:
    return f"#/resource?{urllib.parse.urlencode({'kind': kind, 'name': name, **more})}"


def region(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=name, exact=True)


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice) -> Sluice:
    return start_sluice(config=LIMITS)


@pytest.fixture
def flooded(sluice: Sluice, flood: Any) -> Iterator[Sluice]:
    write_report(sluice, ADVISED)
    running = flood(sluice, "orders", 400)
    with FrameClient(sluice.routes[0].listen) as client:
        client.ask(*sends(7, "payments", group="checkout"))
        running.wait_for(800)
        yield sluice


def serious(page: Page) -> list[str]:
    return [
        f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes']]}"
        for each in Axe().run(page).response["violations"]
    ]


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        *((1280, "dark"), (360, "light")),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((1280, "light"), (360, "dark"))),
    ],
)
def test_all_that_is_known_of_a_resource_is_on_one_page(
    flooded: Sluice, open_tab: Any, picture: Any, width: int, theme: str
) -> None:
    page = open_tab(flooded, width=width, height=900, theme=theme, bypass_csp=True).open(address("orders"))
    graph = region(page, "Messages per second")
    expect(graph.locator("canvas")).to_be_visible()
    expect(graph.locator(".sum")).to_contain_text(re.compile(r"messages passed and [\d,]+ were refused"))
    expect(page.locator(".figures")).to_contain_text("100/s")
    expect(page.locator(".figures .refusing")).to_be_visible()
    refused = region(page, "Refused clients, last hour").locator("tbody tr")
    expect(refused).to_have_count(1)
    expect(refused).to_contain_text("127.0.0.1")
    expect(refused).to_contain_text("100 %")
    expect(region(page, "Applied limits").locator("li").first).to_contain_text("topic:orders")
    expect(region(page, "Applied limits")).to_contain_text("permits")
    expect(region(page, "Connected clients").locator("tbody tr")).to_have_count(1)
    expect(region(page, "Recommendation")).to_contain_text("650/s")
    expect(region(page, "Recommendation")).to_contain_text("4.3 % (43,756) would be refused by the current limit")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, f"resource-{theme}-{width}")
    assert serious(page) == []


def test_the_graph_has_a_range_and_is_also_text_and_table(flooded: Sluice, open_tab: Any) -> None:
    page = open_tab(flooded).open(address("orders"))
    graph = region(page, "Messages per second")
    expect(graph.locator(".sum")).to_contain_text("In the last 15 minutes")
    shown = graph.get_by_role("img")
    expect(shown).to_have_attribute("aria-label", re.compile(r"^Messages per second: In the last 15 minutes, [\d,]+ "))
    minute = graph.locator('button[data-minutes="1"]')
    minute.press("Enter")
    expect(graph.locator(".sum")).to_contain_text("In the last minute")
    expect(minute).to_have_attribute("aria-pressed", "true")
    assert "minutes=1" in page.url
    page.reload()
    expect(graph.locator(".sum")).to_contain_text("In the last minute")
    graph.get_by_text("As a table").click()
    row = graph.locator("tbody tr").first
    expect(row.locator("td").last).to_have_text("100/s")
    page.go_back()
    expect(graph.locator(".sum")).to_contain_text("In the last 15 minutes")


def counted(sluice: Sluice, name: str, verdict: str) -> int:
    """Return a count of messages of ``/metrics``."""
    line = f'sluice_messages_total{{kind="topic",resource="{name}",verdict="{verdict}"}} '
    found = [each.removeprefix(line) for each in sluice.get("/metrics")[1].splitlines() if each.startswith(line)]
    return int(float(found[0])) if found else 0


@pytest.mark.parametrize(
    "how", [{}, pytest.param({"state_dir": "off"}, marks=pytest.mark.long)], ids=["with a log", "without"]
)
def test_counts_of_the_page_are_those_of_the_metrics(
    start_sluice: StartSluice, open_tab: Any, how: dict[str, Any]
) -> None:
    sluice = start_sluice(config=LIMITS, **how)
    page = open_tab(sluice).open(address("orders"))
    graph = region(page, "Messages per second")

    def said() -> re.Pattern[str]:
        passed, refused = (counted(sluice, "orders", verdict) for verdict in ("pass", "refuse"))
        return re.compile(rf" {passed:,} messages passed and {refused:,} were refused")

    with FrameClient(sluice.routes[0].listen) as client:
        client.ask(*(each for _ in range(8) for each in sends(97, "orders")))
    assert counted(sluice, "orders", "refuse")
    for minutes in ("1", "5", "15", "60"):
        graph.locator(f'button[data-minutes="{minutes}"]').click()
        expect(graph.locator(".sum")).to_contain_text(said())
    graph.get_by_text("As a table").click()
    columns = [graph.locator(f"tbody td:nth-of-type({column})").all_inner_texts() for column in (1, 2)]
    assert sum(int(cell.replace(",", "")) for column in columns for cell in column) == 8 * 97


def test_hourly_counts_include_the_old_process(start_sluice: StartSluice, open_tab: Any, tmp_path: Path) -> None:
    ends = {"passed": 0, "refused": 0}
    for _ in range(2):
        sluice = start_sluice(config=LIMITS, state_dir=tmp_path / "state")
        with FrameClient(sluice.routes[0].listen) as client:
            client.ask(*sends(150, "orders"))
        ends["passed"] += counted(sluice, "orders", "pass")
        ends["refused"] += counted(sluice, "orders", "refuse")
        if ends["passed"] + ends["refused"] == 150:
            sluice.process.stop()
    assert sum(ends.values()) == 300
    page = open_tab(sluice).open(address("orders", minutes="60"))
    text = f"{ends['passed']} messages passed and {ends['refused']} were refused"
    expect(region(page, "Messages per second").locator(".sum")).to_contain_text(text)


@pytest.mark.long
@pytest.mark.parametrize("how", [{}, {"state_dir": "off"}], ids=["with a log", "without"])
def test_counts_are_those_of_the_metrics_after_five_minutes_under_load(
    start_sluice: StartSluice, open_tab: Any, flood: Any, how: dict[str, Any]
) -> None:
    sluice = start_sluice(config=LIMITS, **how)
    page = open_tab(sluice).open(address("orders"))
    running = [flood(sluice, "orders", 2000) for _ in range(2)]
    page.wait_for_timeout(310_000)
    for each in running:
        each.stop()
    passed, refused = (counted(sluice, "orders", verdict) for verdict in ("pass", "refuse"))
    assert refused == sum(each.refused for each in running)
    assert passed == sum(each.sent - each.refused for each in running)
    # The counters reach back five minutes. At the border to the log, a second may be counted twice or not at all.
    begin, margin = ("Since ", (passed + refused) // 10) if how else ("In the last ", 2 * 2000)
    graph = region(page, "Messages per second")
    for minutes in ("15", "60"):
        graph.locator(f'button[data-minutes="{minutes}"]').click()
        for _ in range(60):
            text = graph.locator(".sum").inner_text()
            shown = [
                int(each.replace(",", "")) for each in re.findall(r"([\d,]+) (?:messages passed|were refused)", text)
            ]
            if text.startswith(begin) and abs(sum(shown) - passed - refused) <= margin:
                break
            page.wait_for_timeout(500)
        assert text.startswith(begin)
        assert abs(sum(shown) - passed - refused) <= margin
    page.goto(page.url.split("#")[0] + "#/state")
    totals = page.locator(".panel").filter(has_text="Messages since start")
    expect(totals).to_contain_text(f"passed{passed:,} ·")
    expect(totals).to_contain_text(f"refused{refused:,} ·")


def test_dropped_messages_are_distinguished_from_refused_ones(sluice: Sluice, open_tab: Any) -> None:
    tab = open_tab(sluice)
    one = (None,) * 890
    answer_history(
        tab.page,
        begin_at=write_time(datetime.now(UTC) - timedelta(seconds=3600)),
        passed=(*one, *(5.0,) * 10),
        refused=(*one, *(8.675,) * 10),
        dropped=(*one, *(0.75,) * 10),
    )
    page = tab.open(address("quiet", minutes="60"))
    graph = region(page, "Messages per second")
    expect(graph).to_contain_text("200 messages passed and 350 were refused (60 % of all)")
    expect(graph).to_contain_text("and 30 were dropped because their clients disconnected")


def answer_history(page: Page, **changes: Any) -> None:
    """Answer instead of the sidecar with a complete hour, except for these changes."""
    steps = 900
    hour = ResourceHistory(
        kind="topic",
        name="quiet",
        begin_at="2026-01-02T03:00:00Z",
        step_s=4,
        passed=(5.0,) * steps,
        refused=(0.0,) * steps,
        held=(0.0,) * steps,
        limit=(None,) * steps,
    )
    body = msgspec.json.encode(msgspec.structs.replace(hour, **changes))
    page.route("**/api/v1/history/**", lambda route: route.fulfill(content_type="application/json", body=body))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problem": "/log: input/output error"}, "Cannot read the history: /log: input/output error."),
        ({"cut": True}, "The log is too large to read completely"),
        ({"others_together": True}, "some traffic may be missing"),
    ],
)
def test_gaps_in_the_graph_are_explained(sluice: Sluice, open_tab: Any, changes: dict[str, Any], said: str) -> None:
    tab = open_tab(sluice)
    answer_history(tab.page, **changes)
    page = tab.open(address("quiet", minutes="60"))
    expect(region(page, "Messages per second")).to_contain_text(said)


def test_clients_beyond_those_shown_are_counted(sluice: Sluice, open_tab: Any) -> None:
    (client,) = RESOURCE_HISTORY.clients
    clients = tuple(msgspec.structs.replace(client, client=f"10.0.0.{n}", user=ODD, share=0.01) for n in range(30))
    tab = open_tab(sluice)
    answer_history(tab.page, clients=clients, more_clients=70)
    page = tab.open(address("quiet"))
    section = region(page, "Refused clients, last hour")
    expect(section.locator("tbody tr")).to_have_count(20)
    expect(section).to_contain_text("and 80 more")
    expect(section.locator("tbody tr").first).to_contain_text(ODD)
    expect(section.locator("tbody tr").first).to_contain_text("1 %")
    assert page.locator("main img").count() == 0


def test_advice_is_put_in_force_by_one_button_with_its_evidence_and_is_undone(
    sluice: Sluice, open_tab: Any, limit_of: Any
) -> None:
    write_report(sluice, ADVISED)
    page = open_tab(sluice).open(address("orders"))
    region(page, "Recommendation").get_by_role("button", name="Apply 650/s").click()
    toast = page.locator(".toast")
    expect(toast).to_contain_text("100/s → 650/s")
    expect(region(page, "Recommendation")).to_contain_text("Nothing to apply: already active.")
    expect(page.locator(".figures")).to_contain_text("650/s")
    assert limit_of(sluice, "orders")["edit"]["reason"] == f"{ADVISED.evidence} Confidence: high."
    row = region(page, "Changes").locator("table.audit > tbody > tr").first
    expect(row).to_contain_text("100/s → 650/s")
    expect(row).to_contain_text("Confidence: high.")
    toast.get_by_role("button", name="Undo").click()
    expect(page.locator(".figures")).to_contain_text("100/s")
    expect(region(page, "Recommendation").get_by_role("button", name="Apply 650/s")).to_be_enabled()
    assert limit_of(sluice, "orders")["edit"] is None


def test_advice_for_another_limit_is_marked_and_has_no_button(sluice: Sluice, open_tab: Any, put_limit: Any) -> None:
    write_report(sluice, msgspec.structs.replace(ADVISED, name="pay-1", rate_per_s=250.0))
    page = open_tab(sluice).open(address("pay-1"))
    expect(region(page, "Recommendation")).to_contain_text(
        "Nothing to apply: the limit is now 300/s, but was 250/s in the report."
    )
    expect(region(page, "Recommendation").get_by_role("button")).to_have_count(0)
    put_limit(sluice, "pay-1", rate=250)
    expect(region(page, "Recommendation").get_by_role("button", name="Apply 650/s")).to_be_visible()


def test_its_limit_is_edited_reverted_and_reset_in_place(sluice: Sluice, open_tab: Any) -> None:
    page = open_tab(sluice).open(address("pay-2"))
    expect(region(page, "Applied limits")).to_contain_text("topic:pay*")
    page.get_by_role("button", name="Edit the limit…").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill("77")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(page.locator(".figures")).to_contain_text("77/s")
    expect(page.get_by_role("button", name="Edit the limit…")).to_be_focused()
    changes = region(page, "Changes").locator("table.audit > tbody > tr")
    changes.first.get_by_role("button", name="Revert change").click()
    page.get_by_role("dialog").get_by_role("button", name="Revert", exact=True).click()
    expect(page.locator(".figures")).to_contain_text("300/s")
    page.get_by_role("button", name="Reset…").click()
    page.get_by_role("dialog").get_by_role("button", name="Reset", exact=True).click()
    expect(changes.first).to_contain_text("reset")


@pytest.mark.long
def test_every_name_of_it_leads_there_and_back(sluice: Sluice, open_tab: Any, put_limit: Any, fresh_name: Any) -> None:
    name = fresh_name("reached")
    put_limit(sluice, name, rate=5, reason="to be reached")
    tab = open_tab(sluice)
    heading = tab.page.get_by_role("heading", level=1)
    with FrameClient(sluice.routes[0].listen) as client:
        client.ask(*sends(3, name))
        for view, link in (
            (f"limits?search={name}", name),
            ("rules", name),
            ("audit", f"topic/{name}"),
            ("connections", f"topic:{name}"),
        ):
            page = tab.open(f"#/{view}")
            # By the keyboard, for users without a pointer.
            page.get_by_role("link", name=link, exact=True).first.press("Enter")
            expect(heading).to_have_text(f"topic{name}")
            page.go_back()
            expect(heading).not_to_have_text(f"topic{name}")
        page = tab.open(address(name))
        page.locator(".back a").click()
        expect(heading).to_have_text("Limits")
        page.goto(f"{tab.url}#/limits?edit=topic%2F{name}")
        page.get_by_role("dialog").get_by_role("link", name="Open the resource's page").click()
        expect(heading).to_have_text(f"topic{name}")
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_change_by_another_user_links_to_the_resource(
    sluice: Sluice, open_tab: Any, put_limit: Any, fresh_name: Any
) -> None:
    page = open_tab(sluice).open("#/state")
    expect(page.locator(".panels")).to_contain_text("Listeners")
    name = fresh_name("elsewhere")
    put_limit(sluice, name, rate=5)
    page.locator(".toast").filter(has_text=name).get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"topic{name}")
    expect(region(page, "Changes")).to_contain_text("unlimited → 5/s")


def test_patterns_and_caller_limits_have_an_editor_but_no_page(sluice: Sluice, open_tab: Any) -> None:
    page = open_tab(sluice).open("#/limits")
    for key in ("topic/pay*", "total/topic:log-*"):
        row = page.locator(f'tr[data-row="{key}"]')
        expect(row).to_be_visible()
        expect(row.get_by_role("link")).to_have_count(0)


def test_any_name_has_its_page(sluice: Sluice, open_tab: Any) -> None:
    tab = open_tab(sluice)
    page = tab.open(address(ODD))
    expect(page.get_by_role("heading", level=1)).to_have_text(f"topic{ODD}")
    page.get_by_role("button", name="Edit the limit…").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill("9")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(page.locator(".figures")).to_contain_text("9/s")
    expect(region(page, "Changes").locator("table.audit > tbody > tr")).to_have_count(1)
    page.goto(f"{tab.url}#/audit")
    page.locator("tbody tr").first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"topic{ODD}")
    expect(page.locator(".figures")).to_contain_text("9/s")
    assert page.locator("main img").count() == 0


def test_another_resource_takes_the_place_of_the_first(sluice: Sluice, open_tab: Any) -> None:
    tab = open_tab(sluice)
    page = tab.open(address("pay-3"))
    expect(page.locator(".figures")).to_contain_text("300/s")
    page.goto(tab.url + address("quiet"))
    expect(page.get_by_role("heading", level=1)).to_have_text("topicquiet")
    expect(page.locator(".figures")).to_contain_text("unlimited")
    page.goto(f"{tab.url}#/resource")
    expect(page.locator("main")).to_contain_text("No resource is selected")


def test_last_limited_is_the_latest_of_all_sources(sluice: Sluice, open_tab: Any) -> None:
    (client,) = RESOURCE_HISTORY.clients
    at = write_time(datetime.now(UTC) - timedelta(minutes=25))
    tab = open_tab(sluice)
    answer_history(tab.page, clients=(msgspec.structs.replace(client, last_at=at),), messages_refused=481)
    page = tab.open(address("pay-4"))
    expect(page.locator(".figures")).to_contain_text("Last limited25 min ago")
    shadowed = msgspec.structs.replace(client, last_at=at, messages_refused=0, messages_shadowed=9)
    answer_history(tab.page, clients=(shadowed,))
    page.reload()
    expect(page.locator(".figures")).to_contain_text("Last limitednot since startup")


def test_held_messages_are_limited(start_sluice: StartSluice, open_tab: Any) -> None:
    sluice = start_sluice(config='[[limits]]\nkind = "topic"\nname = "*"\nrate = 20\naction = "delay"\n')
    with FrameClient(sluice.routes[0].listen) as client:
        client.ask(*sends(30, "mail"))
        page = open_tab(sluice).open(address("mail"))
        expect(page.locator(".figures")).to_contain_text(re.compile(r"Last limited(now|\d+ s ago)"))


@pytest.mark.long
def test_use_of_a_limit_in_shadow_is_all_that_passes(start_sluice: StartSluice, open_tab: Any, flood: Any) -> None:
    sluice = start_sluice(config='[[limits]]\nkind = "topic"\nname = "*"\nrate = 50\naction = "shadow"\n')
    flood(sluice, "loud", 400)
    page = open_tab(sluice).open(address("loud"))
    expect(page.locator(".figures")).to_contain_text(re.compile(r"Used[2-9]\d\d %"))
