"""Makes the pictures (``make pictures``). It takes five minutes, most of them for the runs and for Spark."""

import tempfile
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page

from pictures import FOLDER, PICTURES, flood, studio

_MARGIN: Final = 20
_EXCERPT: Final = """
    nav, #culprits, .curves article + article, .curves details,
    #recommendations tbody tr:nth-child(n + 4) { display: none; }
"""
"""Parts of a report: the storm, the curve of the most refused resource, and the first actions."""
_STYLE: Final = Path(__file__).with_name("style.css")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    page_picture, flood_picture, report_picture = (FOLDER / name for name in PICTURES)
    with tempfile.TemporaryDirectory(prefix="sluice-pictures-") as scratch, studio.browser() as chromium:
        folder = Path(scratch)
        with studio.demo(folder, "limited") as (running, limited):
            page = studio.page_of(chromium, 1080, 483)
            shoot_page(page, studio.admin_of(running), time.monotonic(), page_picture)
        with studio.demo(folder, "alone", "--without") as (_, alone):
            pass
        shoot(chromium, flood.draw(flood.read(alone), flood.read(limited)), 998, flood_picture)
        shoot_report(studio.page_of(chromium, 1100, 900), studio.report(folder), report_picture)
    for name in PICTURES:
        studio.shrink(FOLDER / name)
        print(f"{FOLDER.name}/{name}: {(FOLDER / name).stat().st_size >> 10} KiB")


def shoot_page(page: Page, address: str, began_s: float, picture: Path) -> None:
    """Take a picture of the limits while one topic is flooded."""
    studio.wait_until(began_s + studio.CALM_S)
    page.goto(f"http://{address}/#/limits")
    studio.wait_until(began_s + studio.LOOK_AT_S)
    page.screenshot(path=picture)
    page.close()


def shoot_report(page: Page, report: Path, picture: Path) -> None:
    """Take a picture of the report: the storm, the curve of the most refused resource, and the recommended limits."""
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-drawn=light]", state="attached")
    page.add_style_tag(content=_EXCERPT)
    box = page.locator("#recommendations > table").first.bounding_box()
    assert box is not None
    page.set_viewport_size({"width": page.evaluate("innerWidth"), "height": round(box["y"] + box["height"]) + _MARGIN})
    page.screenshot(path=picture)
    page.close()


def shoot(chromium: Browser, body: str, width: int, picture: Path) -> None:
    page = studio.page_of(chromium, width, 300)
    page.set_content(f"<!doctype html><style>{_STYLE.read_text(encoding='utf-8')}</style>{body}")
    page.screenshot(path=picture, full_page=True)
    page.close()


if __name__ == "__main__":
    main()
