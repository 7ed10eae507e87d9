"""The fleet: its panel of the first view, and the banner without Redis, with hand-made answers."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_examples import FLEET
from harness.redis import RedisServer
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect

from admin.wire import FleetAnswer, sentences
from proxy.stats.snapshot import FleetState

AWAY = msgspec.structs.replace(FLEET, away_s=12.0, error="connection refused")


@pytest.fixture(scope="module")
def sluice(start_sluice: StartSluice) -> Sluice:
    return start_sluice()


def opened(open_tab: Any, sluice: Sluice, state: FleetState | None, **how: Any) -> Page:
    tab = open_tab(sluice, **how)
    fleet = None if state is None else sentences.of_fleet(state)
    body = msgspec.json.encode(FleetAnswer(fleet))
    tab.page.route("**/api/v1/fleet", lambda route: route.fulfill(content_type="application/json", body=body))
    # The stream of figures cannot be intercepted, so the page reads this into its state.
    known = json.dumps(msgspec.to_builtins(fleet))
    tab.page.add_init_script(
        f"const parse = JSON.parse; JSON.parse = (text, ...more) => {{ const value = parse(text, ...more);"
        f" if (value && 'compiled_extension' in value) value.fleet = {known}; return value; }};"
    )
    page: Page = tab.open("#/overview")
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_members_shares_and_demand_are_shown(
    open_tab: Any, sluice: Sluice, picture: Any, width: int, theme: str
) -> None:
    page = opened(open_tab, sluice, FLEET, width=width, height=1200, theme=theme)
    panel = page.get_by_role("region", name="Fleet orders-prod")
    expect(panel).to_contain_text("4 members; last response from Redis 0.1 s ago.")
    limits = panel.locator("table.fleet-limits tbody tr")
    expect(limits.first).to_contain_text("orders")
    expect(panel.locator('[data-label="Share/s"]')).to_have_text(["312", "262,144"])
    expect(panel.locator('[data-label="Asks/s"]')).to_have_text(["340", "10,240"])
    expect(panel.locator("table.fleet-members tbody tr")).to_have_count(4)
    expect(page.locator("#banners")).not_to_contain_text("Redis")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, f"fleet-{theme}-{width}")


def test_without_redis_a_banner_explains_the_effect(open_tab: Any, sluice: Sluice, picture: Any) -> None:
    page = opened(open_tab, sluice, AWAY, height=1200)
    banner = page.locator("#banners .banner.bad")
    expect(banner).to_contain_text("The fleet orders-prod cannot reach Redis:")
    expect(banner).to_contain_text("(connection refused); this member keeps its last share of each limit.")
    expect(page.get_by_role("region", name="Current alarms")).to_contain_text("cannot reach Redis")
    picture(page, "fleet-away")


def test_members_that_disagree_are_named(open_tab: Any, sluice: Sluice) -> None:
    text = "members disagree about the rate of topic orders: 500/s here, 300/s on host-b-901"
    page = opened(open_tab, sluice, msgspec.structs.replace(FLEET, disagreements=(text,)))
    panel = page.get_by_role("region", name="Fleet orders-prod")
    expect(panel).to_contain_text(f"M{text[1:]}.")


def test_without_a_fleet_there_is_no_panel(open_tab: Any, sluice: Sluice) -> None:
    page = opened(open_tab, sluice, None)
    expect(page.get_by_role("region", name="Last changes")).to_be_visible()
    expect(page.get_by_role("region", name="Fleet")).to_have_count(0)


def test_a_limit_is_made_one_of_the_fleet(open_tab: Any, start_sluice: StartSluice, limit_of: Any) -> None:
    fleet = '[fleet]\nurl = "redis://127.0.0.1:1"\nname = "orders-prod"\n'
    sluice = start_sluice(config=fleet + '[[limits]]\nkind = "topic"\nname = "a"\nrate = 5\n')
    page = open_tab(sluice).open("#/limits?edit=topic/a")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("More").click()
    drawer.get_by_label("Fleet: one limit for all members together").check()
    drawer.get_by_role("button", name="Preview").click()
    expect(drawer).to_contain_text("for the fleet")
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_have_count(0)
    entry = limit_of(sluice, "a")
    assert (entry["limit_text"], entry["limit"]["fleet"]) == ("5/s for the fleet", True)


def test_a_limit_is_changed_at_all_members(
    open_tab: Any, start_sluice: StartSluice, limit_of: Any, tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as redis:
        config = f'[fleet]\nurl = "{redis.url}"\nname = "orders-prod"\n'
        config += '[[limits]]\nkind = "topic"\nname = "a"\nrate = 5\nfleet = true\n'
        here, there = (start_sluice(config=config) for _ in range(2))
        tab = open_tab(here)
        page = tab.open("#/limits?edit=topic/a")
        drawer = page.get_by_role("dialog")
        expect(drawer.get_by_label("On all members of the fleet")).to_be_checked()
        drawer.get_by_label("Rate, per second").fill("8")
        drawer.get_by_role("button", name="Preview").click()
        expect(drawer).to_contain_text("On all members of the fleet.")
        drawer.get_by_role("button", name="Apply").click()
        expect(drawer).to_have_count(0)
        expect(
            page.get_by_text("5/s · for the fleet → 8/s · for the fleet, on all members of the fleet")
        ).to_be_visible()
        for sluice in (here, there):
            other = open_tab(sluice).open("#/audit")
            expect(other.locator(".audit > tbody > tr").first).to_contain_text("for the fleet")
        assert limit_of(there, "a")["edit"]["fleet"]["number"] == 1

        redis.process.kill()
        here.wait_for_metrics(lambda metrics: metrics.total("sluice_fleet_away") == 1)
        tab.failing_loads = True
        page.goto(f"{page.url.split('#')[0]}#/limits?edit=topic/a")
        drawer.get_by_label("Rate, per second").fill("9")
        drawer.get_by_role("button", name="Preview").click()
        drawer.get_by_role("button", name="Apply").click()
        expect(drawer).to_contain_text("connection refused; start Redis, or correct fleet.url; nothing was changed")
        assert limit_of(here, "a")["limit"]["rate"] == 8
