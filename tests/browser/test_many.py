"""Ten thousand resources: only the visible ones are sent and drawn. Times are printed, never asserted."""

from typing import Any

import pytest
from harness.frames import FrameClient, send
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import CDPSession, expect

pytestmark = pytest.mark.long

_COUNT = 10_000
_AT_ONCE = 500
_PAGE = 50


@pytest.fixture(scope="module")
def crowded(start_sluice: StartSluice) -> Sluice:
    """A sidecar with traffic of ten thousand topics."""
    sluice = start_sluice(config="[bounds]\nmax_resource_labels = 20000\n\n[defaults.topic]\nrate = 100\n")
    with FrameClient(sluice.routes[0].listen) as client:
        for first in range(0, _COUNT, _AT_ONCE):
            client.ask(*(send(f"tenant-{number:05}") for number in range(first, first + _AT_ONCE)))
    return sluice


def _script_ms(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return 1000 * next(each["value"] for each in metrics if each["name"] == "ScriptDuration")


def test_page_and_search_handle_only_visible_rows(crowded: Sluice, open_tab: Any) -> None:
    tab = open_tab(crowded)
    session = tab.page.context.new_cdp_session(tab.page)
    session.send("Performance.enable")
    page = tab.open("#/limits?search=tenant-")
    rows = page.locator("tbody tr")
    expect(page.locator(".pager")).to_contain_text(f"of {_COUNT:,}")
    expect(rows).to_have_count(_PAGE)
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    first_ms = _script_ms(session)

    page.get_by_label("Search names").fill("tenant-0777")
    expect(rows).to_have_count(10)
    search_ms = _script_ms(session) - first_ms
    expect(page.locator(".pager")).to_contain_text("1\u201310 of 10")

    page.get_by_label("Search names").fill("tenant-")
    expect(page.locator(".pager")).to_contain_text(f"of {_COUNT:,}")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".pager")).to_contain_text(f"51\u2013100 of {_COUNT:,}")
    assert page.locator("tbody tr").count() == _PAGE
    print(
        f"\n{_COUNT:,} resources: first contentful paint {paint_ms:.0f} ms, script until the table stands "
        f"{first_ms:.0f} ms, script of a search {search_ms:.0f} ms"
    )
