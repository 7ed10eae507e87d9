"""Adaptive limits: the panel of the first view with a hand-made answer, and the editor."""

from typing import Any

import msgspec
import pytest
from api_examples import ADAPTIVE
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect

from admin.wire import AdaptiveLimits, sentences


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice) -> Sluice:
    return start_sluice()


def opened(open_tab: Any, sluice: Sluice, *states: Any, **how: Any) -> Page:
    tab = open_tab(sluice, **how)
    body = msgspec.json.encode(AdaptiveLimits(sentences.adaptive(states)))
    tab.page.route("**/api/v1/adaptive", lambda route: route.fulfill(content_type="application/json", body=body))
    page: Page = tab.open("#/overview")
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_limit_latency_and_shares_are_shown(
    open_tab: Any, sluice: Sluice, picture: Any, width: int, theme: str
) -> None:
    page = opened(open_tab, sluice, ADAPTIVE, width=width, height=1500, theme=theme)
    panel = page.get_by_role("region", name="Adaptive limit of main")
    expect(panel.locator(".figures")).to_contain_text("1,840/s")
    expect(panel.locator(".figures")).to_contain_text("85 ms")
    expect(panel.locator(".figures")).to_contain_text("usually 12 ms")
    expect(panel.locator(".chart canvas")).to_have_count(2)
    expect(panel.locator("tbody tr").first).to_contain_text("topic:orders")
    expect(panel.locator('tbody [data-label="May use"]')).to_have_text(["612", "1,224", "612"])
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, f"adaptive-{theme}-{width}")


def test_without_an_adaptive_limit_there_is_no_panel(open_tab: Any, sluice: Sluice) -> None:
    page = opened(open_tab, sluice)
    expect(page.get_by_role("region", name="Last changes")).to_be_visible()
    expect(page.get_by_role("region", name="Adaptive limit")).to_have_count(0)


def test_without_a_current_limit_that_is_shown(open_tab: Any, sluice: Sluice) -> None:
    calm = msgspec.structs.replace(ADAPTIVE, limit_per_s=None, reason="", names=(), history=(), action="shadow")
    panel = opened(open_tab, sluice, calm).get_by_role("region", name="Adaptive limit of main")
    expect(panel).to_contain_text("no limit")
    expect(panel).to_contain_text("shadow")
    expect(panel).to_contain_text("No messages were sent.")


def test_a_listener_is_given_an_adaptive_limit_and_a_rate_again(
    open_tab: Any, sluice: Sluice, limit_of: Any, picture: Any
) -> None:
    page = open_tab(sluice).open("#/limits?edit=listener/default")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("More").click()
    drawer.get_by_label("Adaptive").check()
    expect(drawer.get_by_label("Rate, per second")).to_have_count(0)
    drawer.get_by_label("Floor").fill("300")
    drawer.get_by_label("Fair shares", exact=True).select_option("topic")
    picture(page, "adaptive-editor")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_have_count(0)
    entry = limit_of(sluice, "default", "listener")
    assert (entry["limit_text"], entry["limit"]["action"]) == ("adaptive, at least 300/s, shared by topic", "reject")
    page.goto(page.url.split("#")[0] + "#/limits?edit=listener/default")
    drawer.get_by_label("Adaptive").uncheck()
    expect(drawer.get_by_label("Floor")).to_have_count(0)
    drawer.get_by_label("Rate, per second").fill("700")
    drawer.get_by_label("Fair shares", exact=True).select_option("")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_have_count(0)
    entry = limit_of(sluice, "default", "listener")
    assert (entry["limit_text"], entry["limit"]["floor"]) == ("700/s", 100)
