"""The page without a mouse."""

from typing import Any

import pytest
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(limits=["topic:*=200/s"])


@pytest.fixture
def topic(sidecar: Sluice, flood: Any, fresh_name: Any) -> str:
    """A topic with a sender."""
    name = fresh_name("keys")
    flood(sidecar, name, 20)
    return name


def _tab_to(page: Page, name: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel") == name:
            return
    raise AssertionError(f"Tab does not lead to {name}")


def test_limit_is_edited_by_keys_alone(sidecar: Sluice, topic: str, open_tab: Any, limit_of: Any) -> None:
    page = open_tab(sidecar).open()
    page.keyboard.press("/")
    expect(page.get_by_label("Search names")).to_be_focused()
    page.keyboard.type(topic)
    expect(page.locator("tbody tr")).to_have_count(1)

    _tab_to(page, topic)
    _tab_to(page, "Edit")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    expect(drawer.get_by_label("Rate, per second")).to_be_focused()
    page.keyboard.type("25")
    page.keyboard.press("Enter")
    expect(drawer.get_by_role("button", name="Apply")).to_be_focused()
    page.keyboard.press("Enter")

    expect(drawer).to_be_hidden()
    expect(page.get_by_role("button", name=f"Edit the limit of topic {topic}")).to_be_focused()
    assert limit_of(sidecar, topic)["limit"]["rate"] == 25


def test_arrows_go_from_row_to_row(sidecar: Sluice, flood: Any, open_tab: Any, fresh_name: Any) -> None:
    prefix = fresh_name("rows")
    for letter in "ab":
        flood(sidecar, f"{prefix}-{letter}", 20)
    page = open_tab(sidecar).open(f"#/limits?search={prefix}&sort=name&order=asc")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name=f"{prefix}-a", exact=True).focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name=f"{prefix}-b", exact=True)).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("link", name=f"{prefix}-a", exact=True)).to_be_focused()


def test_headers_sort_and_say_so(sidecar: Sluice, topic: str, open_tab: Any) -> None:
    page = open_tab(sidecar).open()
    header = page.get_by_role("columnheader", name="Resource")
    header.get_by_role("button").press("Enter")
    expect(header).to_have_attribute("aria-sort", "ascending")
    header.get_by_role("button").press("Enter")
    expect(header).to_have_attribute("aria-sort", "descending")
    assert "sort=name&order=desc" in page.url


def test_the_view_is_announced_and_skipped_to(sidecar: Sluice, open_tab: Any) -> None:
    page = open_tab(sidecar).open()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.get_by_role("link", name="Connections").press("Enter")
    expect(page.get_by_role("heading", name="Connections")).to_be_visible()
    expect(page.get_by_role("link", name="Connections")).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("main")).to_be_focused()
