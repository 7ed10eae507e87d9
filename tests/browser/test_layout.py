"""Layout: on a phone, in the table of rules, and listeners by their configured addresses."""

from collections.abc import Iterator
from typing import Any

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect

_LIMITS = """
[[limits]]
kind = "topic"
name = "orders"
rate = 500

[defaults.topic]
rate = 200
"""
_WHERE = """() => { const box = document.activeElement.getBoundingClientRect();
    return [Math.round(box.top + scrollY), Math.round(box.left), box.width * box.height]; }"""


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(config=_LIMITS)


@pytest.fixture
def phone(sidecar: Sluice, open_tab: Any) -> Iterator[Page]:
    with FrameClient(sidecar.routes[0].listen) as client:
        client.ask(send("orders"), send("zebra"))
        page: Page = open_tab(sidecar, width=390, height=844).open()
        expect(page.locator('tr[data-row="topic/zebra"]')).to_be_visible()
        yield page


def test_phone_sorts_by_a_choice(phone: Page) -> None:
    choice = phone.get_by_label("Sort by")
    choice.select_option("Sort: Resource ↑")
    expect(phone.locator("tbody tr").first).to_have_attribute("data-row", "topic/*")
    assert "sort=name&order=asc" in phone.url
    phone.goto(phone.url.replace("order=asc", "order=desc"))
    expect(choice).to_have_value("name desc")
    expect(phone.locator("tbody tr").first).to_have_attribute("data-row", "topic/zebra")


@pytest.mark.parametrize("view", ["limits", "connections"])
def test_phone_focus_order_follows_the_layout_and_stays_visible(phone: Page, view: str) -> None:
    phone.goto(f"{phone.url.split('#')[0]}#/{view}")
    # The focus starts at the top again.
    phone.reload()
    expect(phone.locator("tbody tr").first).to_be_visible()
    bottoms: list[int] = []
    for _ in range(22):
        phone.keyboard.press("Tab")
        if phone.evaluate("document.activeElement === document.body"):
            break
        top, left, area = phone.evaluate(_WHERE)
        if phone.evaluate("document.activeElement.id === 'skip'"):
            continue
        assert area > 100, phone.evaluate("document.activeElement.outerHTML")
        assert 0 <= left < 390
        # A button beside a name may start a little above it.
        assert not bottoms or top > bottoms[-1] - 40, phone.evaluate("document.activeElement.outerHTML")
        bottoms.append(top)
    assert len(bottoms) > 8


def test_phone_shows_several_limits_at_a_time(phone: Page) -> None:
    heights = phone.locator("tbody tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert max(heights) <= 150


def test_rules_are_one_table_with_sluices_own_folded_at_its_end(sidecar: Sluice, open_tab: Any) -> None:
    page = open_tab(sidecar).open("#/rules")
    expect(page.locator("main table")).to_have_count(1)
    expect(page.locator("main tbody tr").first).to_contain_text("orders")
    built_in = page.get_by_role("row").filter(has_text="RMQ_SYS_*")
    expect(built_in).to_have_count(0)
    fold = page.get_by_role("button", name="Built-in rules")
    fold.click()
    expect(built_in).to_be_visible()
    expect(page.locator("main tbody tr").last).to_contain_text("RMQ_SYS_*")
    expect(fold).to_have_attribute("aria-expanded", "true")


def test_default_of_each_kind_is_in_the_table_of_rules(sidecar: Sluice, open_tab: Any) -> None:
    page = open_tab(sidecar).open("#/rules")
    expect(page.get_by_role("row").filter(has_text="topic*")).to_contain_text("200/s")
    row = page.get_by_role("row").filter(has_text="client*")
    expect(row).to_contain_text("unlimited")
    row.get_by_role("button", name="Edit the default of client").click()
    expect(page.get_by_role("dialog", name="Default of client")).to_be_visible()


def test_listener_is_shown_by_the_address_that_it_was_given(
    start_sluice: StartSluice, broker: EmbeddedBroker, open_tab: Any
) -> None:
    route = broker.route()._replace(listen="127.0.0.1:0")
    sluice = start_sluice(routes=(route,))
    page = open_tab(sluice).open("#/state")
    bound = page.evaluate("fetch('/api/v1/state').then((answer) => answer.json())")["listeners"][0]["listen"]
    assert not bound.endswith(":0")
    listeners = page.locator(".panel").filter(has_text="Listeners")
    expect(listeners.locator("dt")).to_have_text(bound)
    with FrameClient(bound) as client:
        client.ask(send("orders"))
        page.goto(f"{page.url.split('#')[0]}#/connections")
        expect(page.locator("tbody tr th")).to_contain_text(bound)
