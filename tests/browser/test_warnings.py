"""The page's warnings: with real faults where they are cheap, otherwise with scripted ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, Route, expect


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(limits=["topic:*=200/s"])


def _told(page: Page, sluice: Sluice, **different: Any) -> None:
    """Let the stream send this state once."""
    state = json.loads(sluice.get("/api/v1/state")[1]) | different

    def answer(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=f"event: state\ndata: {json.dumps(state)}\n\n")

    page.route("**/api/v1/events*", answer)


def test_bypass_and_draining_are_shown_and_the_health_is_not_green(sidecar: Sluice, open_tab: Any) -> None:
    tab = open_tab(sidecar)
    by = [{"handler": "rate_limit", "reason": "timeout", "total": 40}]
    _told(tab.page, sidecar, bypassed={"total": 40, "per_s_last_60s": 2.5, "by": by})
    page = tab.open(live=False)
    expect(page.locator("#banners .banner").filter(has_text="bypassing the limiter")).to_contain_text("2.5 per second")
    expect(page.locator(".part-health")).to_contain_text("bypassing")

    page.unroute_all()
    _told(page, sidecar, draining=True)
    page.reload()
    expect(page.locator("#banners .banner").filter(has_text="Draining.")).to_be_visible()
    expect(page.locator(".part-health .dot")).to_have_class("dot warn")


def test_a_broker_that_does_not_answer_is_a_banner_at_the_top(sidecar: Sluice, open_tab: Any) -> None:
    tab = open_tab(sidecar)
    (listener,) = json.loads(sidecar.get("/api/v1/state")[1])["listeners"]
    _told(tab.page, sidecar, listeners=[{**listener, "reachable": False, "error": "connection refused"}])
    page = tab.open("#/overview", live=False)
    text = f"{listener['broker']} is unreachable: Connection refused. {listener['name']} accepts no new clients"
    expect(page.locator("#banners .banner.bad").filter(has_text=text)).to_be_visible()
    expect(page.get_by_role("region", name="Current alarms")).to_contain_text(text)


def test_an_invalid_configuration_is_reported_until_it_is_valid(sidecar: Sluice, open_tab: Any) -> None:
    tab = open_tab(sidecar)
    failed = {"at": "2026-11-21T19:00:00.000Z", "by": "SIGHUP", "problems": ["sluice.toml:3: limits[0].rate: wrong"]}
    _told(tab.page, sidecar, failed_reload=failed)
    page = tab.open(live=False)
    banner = page.locator("#banners .banner").filter(has_text="The configuration is invalid")
    expect(banner).to_contain_text("sluice.toml:3: limits[0].rate: wrong")
    expect(banner).to_contain_text("by SIGHUP")


def test_damaged_journal_is_named_after_the_start(start_sluice: StartSluice, open_tab: Any, tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("not a journal at all\n", encoding="utf-8")
    page = open_tab(start_sluice(state_dir=tmp_path)).open()
    expect(page.locator("#notices .banner").filter(has_text="quarantined")).to_contain_text("state.db.")


def test_edit_that_cannot_be_saved_is_offered_until_the_restart(
    start_sluice: StartSluice, open_tab: Any, tmp_path: Path, limit_of: Any
) -> None:
    directory = tmp_path / "state"
    sluice = start_sluice(state_dir=directory, limits=["topic:*=200/s"])
    shutil.rmtree(directory)
    directory.write_text("no directory any more", encoding="utf-8")
    tab = open_tab(sluice)
    tab.failing_loads = True
    page = tab.open("#/limits?edit=topic/unsaved")
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill("60")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    drawer.get_by_role("button", name="Apply until restart only").click()

    expect(drawer).to_be_hidden()
    assert limit_of(sluice, "unsaved")["limit"]["rate"] == 60
    expect(page.locator("#banners .banner").filter(has_text="Edits are not saved")).to_be_visible()


def test_reload_announces_itself_before_it_acts(
    start_sluice: StartSluice, open_tab: Any, tmp_path: Path, limit_of: Any
) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[defaults.topic]\nrate = 100\n", encoding="utf-8")
    sluice = start_sluice(arguments=("--config", str(file)))
    tab = open_tab(sluice)
    tab.failing_loads = True
    page = tab.open("#/state")
    file.write_text("[defaults.topic]\nrate = -1\n", encoding="utf-8")
    page.get_by_role("button", name="Reload the configuration").click()
    dialog = page.get_by_role("dialog", name="The configuration is invalid")
    expect(dialog).to_contain_text("rate")
    dialog.get_by_role("button", name="Close").click()

    file.write_text("[defaults.topic]\nrate = 150\n", encoding="utf-8")
    page.get_by_role("button", name="Reload the configuration").click()
    dialog = page.get_by_role("dialog", name="Reload the configuration")
    expect(dialog).to_contain_text("150")
    assert limit_of(sluice, "any")["limit"]["rate"] == 100
    dialog.get_by_role("button", name="Reload", exact=True).click()

    expect(dialog).to_be_hidden()
    assert limit_of(sluice, "any")["limit"]["rate"] == 150
