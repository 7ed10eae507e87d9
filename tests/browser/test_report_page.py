"""The report's page in a real Chromium, without a network, a server or a sidecar."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import report_results as made
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from report_results import HOSTILE

from admin.analytics.page import render

pytestmark = pytest.mark.long

_DRAWN = "html[data-drawn={theme}]"
OpenReport = Callable[..., Page]


@pytest.fixture
def open_report(chromium: Browser, tmp_path: Path) -> Iterator[OpenReport]:
    """Opens pages from a file, without console errors and requests."""
    complaints: list[str] = []
    contexts = []

    def open_(text: str, *, width: int = 1280, theme: str = "light", **how: Any) -> Page:
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", **how
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda told: complaints.append(told.text) if told.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))

        def asked(route: Any) -> None:
            if route.request.url == file.as_uri():
                route.continue_()
            else:
                complaints.append(f"asks for {route.request.url}")
                route.abort()

        page.route(re.compile("^(?!data:|blob:)"), asked)
        page.goto(file.as_uri())
        if how.get("java_script_enabled", True):
            page.wait_for_selector(_DRAWN.format(theme=theme), state="attached")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


def _canvases(page: Page) -> int:
    return page.locator(".chart canvas").count()


def _box_of(page: Page, chart: str) -> Any:
    """Return a chart's position, with a visible part of it to point at."""
    place = page.locator(f"{chart} .u-over")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    return box


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible_and_fits(
    open_report: OpenReport, picture: Callable[[Page, str], None], theme: str, width: int
) -> None:
    page = open_report(render(made.results()), width=width, theme=theme)
    picture(page, f"report-{theme}-{width}")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert _canvases(page) == page.locator(".chart").count() == 3


@pytest.mark.parametrize("width", [1024, 1100, 1440])
def test_tables_have_room_for_long_names(open_report: OpenReport, width: int) -> None:
    name = "com.example.billing.invoices.customer-facing.v2.retries"
    storms = [each | {"name": HOSTILE if each["name"] == HOSTILE else name} for each in made.results()["storms"]]
    page = open_report(render(made.results(storms=storms)), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    clients = page.locator("#storms tbody tr").first.locator("td").nth(3)
    assert clients.evaluate("cell => cell.innerText.split('\\n').length") == 2
    heights = page.locator("#culprits tbody th code").evaluate_all("all => all.map(one => one.getClientRects().length)")
    assert set(heights) == {1}


def test_a_storm_in_the_timeline_zooms_all_charts(open_report: OpenReport) -> None:
    page = open_report(render(made.results()))
    storm = page.locator(".timeline line").nth(2)
    expect(storm.locator("title")).to_have_text(re.compile("88,120 messages refused"))
    storm.click(force=True)
    expect(page.locator("#range")).to_have_text("2026-11-21 12:40:00 to 2026-11-21 13:01:35")
    expect(page.locator(".timeline svg").first).to_have_attribute("viewBox", "2400 0 1295 10")
    expect(page.locator(".ticks span").first).to_have_text("12:40:00")


def _pictures(page: Page) -> list[str]:
    return page.locator(".chart canvas").evaluate_all("all => all.map(one => one.toDataURL())")


def test_selection_in_one_chart_applies_to_all(open_report: OpenReport) -> None:
    page = open_report(render(made.results()))
    before, whole = _pictures(page), "2026-11-21 12:00:00 to 2026-11-21 18:00:00"
    expect(page.locator("#range")).to_have_text(whole)
    box = _box_of(page, "#curve-0")
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 90, steps=4)
    page.mouse.up()
    expect(page.locator("#range")).to_contain_text(
        re.compile(r"^2026-11-21 (13:59|14:00):\d\d to 2026-11-21 (14:59|15:00)")
    )
    assert all(one != other for one, other in zip(before, _pictures(page), strict=True))
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + 90)
    expect(page.locator("#range")).to_have_text(whole)


def test_the_cursor_is_in_all_charts_at_once(open_report: OpenReport) -> None:
    page = open_report(render(made.results()))
    values = page.locator("#demand [data-value=peak]")
    expect(values).to_have_text(["", "", ""])
    box = _box_of(page, "#curve-1")
    page.mouse.move(box["x"] + box["width"] / 20, box["y"] + 80)
    expect(values).to_have_text([re.compile(r"^[\d,]+/s$")] * 3)
    expect(page.locator("#at")).to_contain_text("2026-11-21 12:1")
    page.mouse.move(2, 2)
    expect(values).to_have_text(["", "", ""])


def test_limit_above_the_chart_is_labelled(open_report: OpenReport) -> None:
    page = open_report(render(made.results(curves=[made.curve("orders", 300.0), made.curve("calm", 50_000.0)])))
    above = page.get_by_text("(above the chart)")
    expect(above.nth(0)).to_be_hidden()
    expect(above.nth(1)).to_be_visible()


def test_the_time_is_chosen_by_keyboard_too(open_report: OpenReport) -> None:
    page = open_report(render(made.results()))
    shown = page.locator("#range")
    last_hour = page.get_by_role("button", name="Last hour")
    last_hour.press("Enter")
    expect(shown).to_have_text("2026-11-21 17:00:00 to 2026-11-21 18:00:00")
    expect(last_hour).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Earlier").press("Enter")
    expect(shown).to_have_text("2026-11-21 16:30:00 to 2026-11-21 17:30:00")
    expect(last_hour).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="Zoom in").press("Space")
    expect(shown).to_have_text("2026-11-21 16:45:00 to 2026-11-21 17:15:00")
    # It cannot zoom out further.
    for _ in range(5):
        page.get_by_role("button", name="Zoom out").press("Enter")
    expect(shown).to_have_text("2026-11-21 12:00:00 to 2026-11-21 18:00:00")
    page.locator("#storms").get_by_role("button", name="2026-11-21 15:57:00").press("Enter")
    expect(shown).to_have_text("2026-11-21 15:45:19 to 2026-11-21 16:20:22")
    expect(page.locator("#curve-0")).to_be_in_viewport()


def test_a_report_of_nothing_is_a_page_too(open_report: OpenReport) -> None:
    page = open_report(render(made.empty()))
    assert _canvases(page) == 0
    expect(page.locator(".times")).to_be_hidden()


def test_without_scripts_the_tables_say_it_all(open_report: OpenReport) -> None:
    page = open_report(render(made.results()), java_script_enabled=False)
    expect(page.get_by_text("Charts and zoom require JavaScript")).to_be_visible()
    expect(page.locator("#storms tbody tr")).to_have_count(6)
    expect(page.locator(".timeline line")).to_have_count(6)
    expect(page.locator(".times")).to_be_hidden()
    page.get_by_text("Details and other rates").click()
    expect(page.locator("#recommendations details tbody tr").filter(has_text="450/s")).to_be_visible()


def test_on_paper_it_is_light_and_nothing_is_cut_off(open_report: OpenReport) -> None:
    page = open_report(render(made.results()), theme="dark")
    dark = _pictures(page)
    page.emulate_media(media="print")
    page.wait_for_selector(_DRAWN.format(theme="light"), state="attached")
    assert all(one != other for one, other in zip(dark, _pictures(page), strict=True))
    page.set_viewport_size({"width": 720, "height": 1000})
    # Charts are resized in the next frame.
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.pdf().startswith(b"%PDF")
