"""The view of flow and spool with hand-made answers, and the purge."""

import json
import re
from typing import Any

import msgspec
import pytest
from api_examples import CONNECTIONS, FLOW, PURGED, SPOOL
from harness.frames import FrameClient, send
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, Route, expect

# A name with markup, which must be escaped.
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice) -> Sluice:
    return start_sluice()


def answer(page: Page, path: str, body: msgspec.Struct, asked: list[str] | None = None) -> None:
    """Answer instead of the sidecar."""

    def fulfill(route: Route) -> None:
        if asked is not None:
            asked.append(f"{route.request.method} {route.request.url.partition('/api/v1/')[2]}")
        route.fulfill(status=200, content_type="application/json", body=msgspec.json.encode(body))

    page.route(f"**/api/v1/{path}", fulfill)


def opened(open_tab: Any, sluice: Sluice, flow: Any = FLOW, spool: Any = SPOOL, **how: Any) -> Page:
    tab = open_tab(sluice, **how)
    answer(tab.page, "flow?*", flow)
    answer(tab.page, "spool?*", spool)
    page: Page = tab.open("#/flow")
    return page


@pytest.mark.parametrize("width", [1280, 390])
def test_bottleneck_is_shown_first_then_the_waiting_senders(open_tab: Any, sluice: Sluice, width: int) -> None:
    page = opened(open_tab, sluice, width=width, height=800)
    expect(page.locator(".findings")).to_have_text(FLOW.findings[0].text)
    expect(page.locator(".stages tbody tr")).to_have_count(2)
    expect(page.locator(".stages tbody tr").first).to_contain_text("in flow 3 times, 2.5 s")
    expect(page.locator(".panels")).to_contain_text("512 MiB is free on the spool's disk")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_four_places_of_the_spool_are_listed(open_tab: Any, sluice: Sluice, picture: Any) -> None:
    page = opened(open_tab, sluice, theme="light")
    messages = page.locator('.places [data-label="Messages"]')
    expect(messages).to_have_text(["800", "200", "0", "49,000"])
    messages.last.scroll_into_view_if_needed()
    picture(page, "flow-light")
    row = page.locator(".spooled tbody tr")
    expect(row).to_contain_text("topic")
    expect(row).to_contain_text("50,000")


def test_an_empty_flow_view_without_a_spool_is_explained(open_tab: Any, sluice: Sluice) -> None:
    flow = msgspec.structs.replace(FLOW, sentences=("Nobody waits.",), connections=())
    text = "There is no spool: /big: it is not writable"
    page = opened(open_tab, sluice, flow, msgspec.structs.replace(SPOOL, holds=None, sentences=(text,), details=()))
    expect(page.locator(".findings")).to_have_text("Nobody waits.")
    expect(page.locator("main")).to_contain_text("No connections are waiting.")
    expect(page.locator("main")).to_contain_text(text)


def test_purge_asks_for_confirmation_and_reports_the_result(open_tab: Any, sluice: Sluice) -> None:
    page = opened(open_tab, sluice)
    asked: list[str] = []
    answer(page, "spool/topic/orders?*", PURGED, asked)
    page.get_by_role("button", name="Purge the spooled messages of topic orders").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("50,000 messages will be refused")
    assert asked == []
    dialog.get_by_label("Reason").fill("too old")
    dialog.get_by_role("button", name="Purge", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("topic orders: 49,950 refused, 50 dropped.")
    assert asked == ["DELETE spool/topic/orders?reason=too+old"]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_confirming_side_is_shown_with_the_reason(open_tab: Any, sluice: Sluice, picture: Any, width: int) -> None:
    behind, kept_up = FLOW.confirms
    marked = msgspec.structs.replace(behind, name=MARKUP, reason="falls_back", nacked_total=9)
    page = opened(
        open_tab,
        sluice,
        msgspec.structs.replace(FLOW, confirms=(behind, marked, kept_up), more_confirms=2),
        width=width,
    )
    section = page.get_by_role("region", name="Confirmed by consumers")
    rows = section.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first.locator('[data-label="Confirmed by"]')).to_have_text("broker: its consumers do not keep up")
    expect(rows.first.locator('[data-label="Oldest"]')).to_have_text("1.5 s")
    expect(rows.nth(1).locator("th")).to_contain_text(MARKUP)
    expect(rows.nth(1).locator('[data-label="Refused"]')).to_have_text("9")
    expect(rows.last).to_contain_text("queueorders")
    expect(rows.last.locator('[data-label="Confirmed by"]')).to_have_text("consumers")
    expect(rows.last.locator('[data-label="By consumers"]')).to_have_text("4,811,020")
    expect(section).to_contain_text("and 2 more")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    section.scroll_into_view_if_needed()
    picture(page, f"confirms-{width}")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_links_of_a_connection_are_shown_below_it(open_tab: Any, sluice: Sluice, picture: Any, width: int) -> None:
    first = CONNECTIONS.rows[0]
    (link,) = first.links
    idle = msgspec.structs.replace(link, name=MARKUP, sends=False, resource="delivery:mail", waits_ms=0, refused=2)
    rows = (
        msgspec.structs.replace(first, links=(link, idle), more_links=3),
        msgspec.structs.replace(first, id=42, links=()),
    )
    tab = open_tab(sluice, width=width, height=800)
    answer(tab.page, "connections?*", msgspec.structs.replace(CONNECTIONS, rows=rows, total=2))
    page = tab.open("#/connections")
    fold = page.get_by_role("button", name="5 links, 1 waiting")
    expect(fold).to_have_count(1)
    expect(page.locator("table.links")).to_have_count(0)
    fold.click()
    expect(fold).to_be_focused()
    shown = page.locator("table.links tbody tr")
    expect(shown).to_have_count(2)
    row = page.locator("table.connections > tbody > tr").first
    expect(row.locator('[data-label="State"]')).to_contain_text("in flow")
    expect(row.locator('[data-label="Spooled"]')).to_have_text("50,000")
    expect(shown.first).to_contain_text("orders-out")
    expect(shown.first.locator('[data-label="Withheld"]')).to_have_text("150")
    expect(shown.first.locator('[data-label="Waits"]')).to_have_text("1.3 s")
    expect(shown.last.locator("th")).to_contain_text(MARKUP)
    expect(shown.last).to_contain_text("client receives")
    expect(page.locator(".below")).to_contain_text("and 3 more")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, f"links-{width}")
    fold.click()
    expect(page.locator("table.links")).to_have_count(0)


def test_active_alarm_is_a_banner_in_every_view(start_sluice: StartSluice, open_tab: Any, picture: Any) -> None:
    config = "[alarms]\nmemory_high_watermark = 0.0001\n"
    sidecar = start_sluice(config=config)
    page = open_tab(sidecar).open("#/limits")
    banner = page.locator("#banners .banner").filter(has_text="Alarm: low on memory")
    expect(banner).to_contain_text("publishers are blocked until")
    expect(banner).to_contain_text("Consumers are not affected. Since ")
    picture(page, "alarm")
    status, body = sidecar.get("/readyz")
    assert (status, list(json.loads(body)["alarms"])) == (200, ["memory"])
    page.get_by_role("link", name="Flow", exact=True).click()
    expect(page.locator(".panels")).to_contain_text("RAISED")


def test_spooled_messages_are_shown_and_purged(start_sluice: StartSluice, open_tab: Any, picture: Any) -> None:
    limit = '[[limits]]\nkind = "topic"\nname = "slow"\nrate = 1\naction = "delay"\nspool = true\nmax_delay_s = 3600\n'
    sidecar = start_sluice(config=limit)
    with FrameClient(sidecar.routes[0].listen) as client:
        client.write(*(send("slow") for _ in range(60)))
        page = open_tab(sidecar).open("#/flow")
        row = page.locator(".spooled tbody tr")
        expect(row).to_contain_text("slow")
        expect(page.locator(".findings")).to_contain_text("limit")
        picture(page, "flow-real")
        page.get_by_role("link", name="Limits", exact=True).click()
        expect(page.locator('tr[data-row="topic/slow"]')).to_contain_text(re.compile(r"oldest waiting \d"))
        page.get_by_role("link", name="slow", exact=True).click()
        expect(page.locator(".figures")).to_contain_text(re.compile(r"Oldest waiting\d"))
        page.get_by_role("link", name="Flow", exact=True).click()
        page.get_by_role("button", name="Purge the spooled messages of topic slow").click()
        page.get_by_role("dialog").get_by_role("button", name="Purge", exact=True).click()
        expect(page.locator(".toast")).to_contain_text("refused, 0 dropped")
        (change,) = json.loads(sidecar.get("/api/v1/audit")[1])["changes"]
        assert (change["action"], change["target"]) == ("purge", "spool/topic/slow")
        assert change["details"][0].endswith("messages refused")
