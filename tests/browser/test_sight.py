"""The page as users see or hear it: every view, both themes, wide and narrow."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from harness.frames import FrameClient, sends
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.long

_LIMITS = """
[[limits]]
kind = "topic"
name = "orders"
rate = 500

[[limits]]
kind = "topic"
name = "images.*"
rate = 100
bytes_per_s = 4194304

[[limits]]
kind = "topic"
name = "reports"
rate = 1000
between = "22:00-06:00"
time_zone = "Europe/Berlin"

[[limits]]
kind = "topic"
name = "log-*"
rate = 5000
shared = true

[[limits]]
kind = "topic"
name = "payments"
rate = 300
action = "shadow"

[defaults.topic]
rate = 200

[defaults.retry_group]
rate = 50
"""
_VIEWS = ("overview", "limits", "rules", "audit", "connections", "flow", "state", "resource?kind=topic&name=shipments")
_QUIET = {
    "payments": 4,
    "shipments": 3,
    "images.thumbnails": 2,
    "log-web": 6,
    "search-index": 1,
    "user-sessions": 7,
    "mail-outbound": 2,
    "audit-events": 1,
}


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(config=_LIMITS)


@pytest.fixture
def busy(sidecar: Sluice, flood: Any) -> Iterator[Sluice]:
    """The sidecar with one topic over its limit and several below."""
    flood(sidecar, "orders", 1500)
    flood(sidecar, "invoices", 190)
    with FrameClient(sidecar.routes[0].listen) as client:
        for topic, count in _QUIET.items():
            client.ask(*sends(count, topic, group=f"{topic}-producers"))
        yield sidecar


def _serious(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes']]}"
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


def _first_edit(page: Page, topic: str, rate: str, reason: str) -> None:
    page.goto(f"{page.url.split('#')[0]}#/limits?search={topic}&edit=topic%2F{topic}")
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill(rate)
    drawer.get_by_label("Reason").fill(reason)
    drawer.get_by_label("For how long").select_option("1 hour")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_be_hidden()


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_is_fit_to_be_seen_and_read_out(
    busy: Sluice, open_tab: Any, picture: Any, theme: str, width: int
) -> None:
    # The browser injects the axe library, past the page's content security policy.
    page = open_tab(busy, theme=theme, width=width, height=844 if width == 390 else 900, bypass_csp=True).open()
    _first_edit(page, "shipments", "400", "two new shops tonight")
    findings = {}
    for view in _VIEWS:
        page.goto(f"{page.url.split('#')[0]}#/{view}")
        expect(page.locator("main :is(tbody tr, .findings):visible").first).to_be_visible()
        if view == "limits":
            expect(page.locator("td.refusing").first).to_be_visible()
            expect(page.locator('tr[data-row="topic/orders"] .spark-line')).to_have_attribute("d", re.compile("L"))
        picture(page, f"{view.partition('?')[0]}-{theme}-{width}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than {width} px"
        findings[view] = _serious(page)

    page.goto(f"{page.url.split('#')[0]}#/limits?edit=topic%2Forders")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("More", exact=True).click()
    findings["editor"] = _serious(page)
    picture(page, f"editor-{theme}-{width}")
    drawer.get_by_label("Rate, per second").fill("650")
    drawer.get_by_role("button", name="Preview").click()
    expect(drawer.get_by_role("button", name="Apply")).to_be_visible()
    findings["preview"] = _serious(page)
    picture(page, f"preview-{theme}-{width}")
    for _ in range(2):
        page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()

    page.get_by_role("button", name="Switch off…", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    findings["switch"] = _serious(page)
    dialog.get_by_label("Reason").fill("broker moves tonight")
    dialog.get_by_role("button", name="Switch off").click()
    banner = page.locator(".banner.off")
    expect(banner).to_contain_text("broker moves tonight")
    findings["off"] = _serious(page)
    picture(page, f"off-{theme}-{width}")
    banner.get_by_role("button", name="Switch back on").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch on").click()
    expect(banner).to_be_hidden()
    assert {place: each for place, each in findings.items() if each} == {}


def test_theme_is_the_systems_until_it_is_chosen(sidecar: Sluice, open_tab: Any) -> None:
    page = open_tab(sidecar, theme="light").open()
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Use the dark theme").click()
    expect(root).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(root).to_have_attribute("data-theme", "dark")
