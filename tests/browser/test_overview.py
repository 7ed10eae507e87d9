"""The first view: totals, most refused resources, alarms, and the last changes."""

import re
from typing import Any

import pytest
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(limits=["topic:*=50/s"])


def _section(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=name, exact=True)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_overview_has_the_current_problems(
    sidecar: Sluice, open_tab: Any, flood: Any, put_limit: Any, width: int
) -> None:
    for number in range(7):
        flood(sidecar, f"loud-{number}", 100 + 40 * number)
    put_limit(sidecar, "quiet", rate=7, reason="a promise")
    page = open_tab(sidecar, width=width, height=844).open("")

    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    totals = _section(page, "Messages per second, last 5 minutes")
    expect(totals.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"now \d+ passed and [\d,]+ refused"))
    expect(totals.locator("canvas")).to_be_visible()
    most = _section(page, "Most refused, last 10 s").locator("tbody tr")
    expect(most).to_have_count(5)
    expect(most.first).to_contain_text("loud-6")
    expect(_section(page, "Current alarms")).to_contain_text("None. The broker is reachable")
    expect(_section(page, "Last changes").locator("tbody tr").first).to_contain_text("a promise")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    most.first.get_by_role("link").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("loud-")
