"""The report's page in a real Chromium, without a network, a server or a sidecar."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import findings_maker
import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe
from findings_maker import HOSTILE
from playwright.sync_api import Browser, Page, expect

from admin.analytics.page import render

pytestmark = pytest.mark.long

_DRAWN = "html[data-drawn={theme}]"
_LARGEST_BYTES = 2_500_000
OpenReport = Callable[..., Page]


@pytest.fixture
def open_report(chromium: Browser, tmp_path: Path) -> Iterator[OpenReport]:
    """Opens pages from a file; none may complain, nor ask anybody for anything."""
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
    """Count the charts that are drawn; Bokeh's are in shadow trees, which Playwright looks into."""
    return page.locator(".chart canvas").count()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible_and_fits(
    open_report: OpenReport, picture: Callable[[Page, str], None], theme: str, width: int
) -> None:
    page = open_report(render(findings_maker.findings()), width=width, theme=theme)
    picture(page, f"report-{theme}-{width}")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert _canvases(page) >= len(page.locator(".chart").all())


@pytest.mark.parametrize("width", [961, 1100, 1440])
def test_tables_have_room_for_long_names_and_break_them_between_their_parts(
    open_report: OpenReport, width: int
) -> None:
    made = findings_maker.findings()
    name = "com.example.billing.invoices.customer-facing.v2.retries"
    storms = tuple(
        msgspec.structs.replace(each, name=each.name if each.name == HOSTILE else name) for each in made.storms
    )
    page = open_report(render(findings_maker.findings(storms=storms)), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lines = page.locator("#storms tbody th").first.evaluate(
        """cell => {
            const range = document.createRange(), lines = new Map();
            const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
            while (texts.nextNode()) {
                for (let at = 0; at < texts.currentNode.length; at += 1) {
                    range.setStart(texts.currentNode, at);
                    range.setEnd(texts.currentNode, at + 1);
                    const top = Math.round(range.getBoundingClientRect().top);
                    lines.set(top, (lines.get(top) ?? "") + range.toString());
                }
            }
            return [...lines.values()];
        }"""
    )
    assert "".join(lines).startswith(name)
    assert all(line[-1] in ".- " for line in lines[:-1]), lines
    client = page.locator("#storms tbody tr").first.locator("td").nth(3)
    assert client.evaluate("cell => cell.innerText.split('\\n').length") == 2  # clients
    heights = page.locator("#culprits tbody th code").evaluate_all("all => all.map(one => one.getClientRects().length)")
    assert set(heights) == {1}


def test_a_name_that_is_markup_is_a_name(open_report: OpenReport) -> None:
    page = open_report(render(findings_maker.findings()))
    assert page.locator("img:not(.paper)").count() == 0  # the charts, for paper
    assert page.locator("main script").count() == 0
    named = page.locator("#storms tbody th").nth(2)
    # What would turn the writing round is written out.
    expect(named).to_contain_text(HOSTILE.replace("\u202e", "\\u202e"))


def test_a_tooltip_shows_a_name_that_is_markup_as_it_is(open_report: OpenReport) -> None:
    page = open_report(render(findings_maker.findings(storms=findings_maker.findings().storms[2:3])))
    box = page.locator("#storms-chart").bounding_box()
    assert box is not None
    tooltip = page.locator(".bk-Tooltip")
    for part in range(1, 100):
        page.mouse.move(box["x"] + box["width"] * part / 100, box["y"] + 36)
        if tooltip.count() and tooltip.first.is_visible():
            break
    expect(tooltip.first).to_contain_text("<script>alert")
    assert page.locator("img:not(.paper)").count() == 0  # the charts, for paper


def test_charts_are_drawn_anew_when_the_theme_changes(open_report: OpenReport) -> None:
    page = open_report(render(findings_maker.findings()), theme="light")
    count = _canvases(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector(_DRAWN.format(theme="dark"), state="attached")
    assert _canvases(page) == count


def test_without_scripts_the_tables_say_it_all(open_report: OpenReport) -> None:
    page = open_report(render(findings_maker.findings()), java_script_enabled=False)
    expect(page.get_by_text("The charts need JavaScript")).to_be_visible()
    expect(page.locator("#storms tbody tr")).to_have_count(5)
    expect(page.locator("#recommendations tbody tr")).to_have_count(5)


def test_on_paper_nothing_is_cut_off(open_report: OpenReport) -> None:
    page = open_report(render(findings_maker.findings()))
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.pdf().startswith(b"%PDF")


def test_its_policy_lets_nothing_else_run_or_load(open_report: OpenReport) -> None:
    text = render(findings_maker.findings())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe-eval" not in policy[1]
    assert "'unsafe-inline'" not in policy[1].split("script-src")[1].split(";")[0]
    assert "http" not in policy[1]
    assert len(text.encode()) < _LARGEST_BYTES
