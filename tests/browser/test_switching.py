"""The emergency switch, and the page while the sidecar or the connection is impaired."""

import urllib.request
from typing import Any

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import expect


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(limits=["topic:*=200/s", "topic:closed=0/s"])


def test_switch_is_unmistakable_in_every_view_until_it_is_back_on(
    sidecar: Sluice, open_tab: Any, broker: EmbeddedBroker
) -> None:
    page = open_tab(sidecar).open()
    page.get_by_role("button", name="Switch off…", exact=True).first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Afterwards, limiting is switched back on automatically")
    dialog.get_by_label("Reason").fill("broker moves tonight")
    dialog.get_by_role("button", name="Switch off").click()

    banner = page.get_by_role("alert").filter(has_text="LIMITING IS SWITCHED OFF")
    for view in ("Limits", "Rules", "Audit", "Connections", "State"):
        page.get_by_role("link", name=view, exact=True).click()
        expect(banner).to_contain_text("broker moves tonight")
        expect(banner).to_contain_text("left")
    assert page.title().startswith("⚠ LIMITING OFF")
    with FrameClient(sidecar.routes[0].listen) as client:
        client.ask(send("closed"))
    assert broker.stored("closed") == 1

    banner.get_by_role("button", name="Switch back on").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch on").click()
    expect(banner).to_be_hidden()
    with FrameClient(sidecar.routes[0].listen) as client:
        client.ask(send("closed"))
    assert broker.stored("closed") == 1


@pytest.mark.parametrize(("width", "height"), [pytest.param(1280, 500, marks=pytest.mark.long), (390, 600)])
def test_an_alarm_stays_visible_while_scrolling(sidecar: Sluice, open_tab: Any, width: int, height: int) -> None:
    page = open_tab(sidecar, width=width, height=height).open("#/state")
    page.get_by_role("button", name="Switch off…", exact=True).first.click()
    # Without a reason, because it may be urgent.
    page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
    banner = page.locator(".banner.off")
    expect(banner).to_be_visible()
    expect(page.locator(".part-health")).to_contain_text("limiting off")
    expect(page.locator(".part-health .dot")).to_have_class("dot bad")

    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait_for_function("scrollY > 100")
    expect(banner).to_be_in_viewport(ratio=1)
    banner.get_by_role("button", name="Switch back on").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch on").click()
    expect(banner).to_be_hidden()


def test_enter_in_the_switch_off_dialog_switches_nothing_off(sidecar: Sluice, open_tab: Any) -> None:
    page = open_tab(sidecar).open()
    page.get_by_role("button", name="Switch off…", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("no reason to")
    dialog.get_by_label("Reason").press("Enter")
    dialog.get_by_label("For how long").select_option("other…")
    dialog.get_by_label("Minutes").fill("5")
    dialog.get_by_label("Minutes").press("Enter")
    # Requests of both would have been answered before this one.
    assert page.evaluate("fetch('/api/v1/switches').then((answer) => answer.json())")["switches"][0]["limiting"]
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()


def test_the_switch_off_dialog_explains_the_effect(sidecar: Sluice, open_tab: Any, flood: Any) -> None:
    flood(sidecar, "closed", 100)
    page = open_tab(sidecar).open()
    expect(page.locator('tr[data-row="topic/closed"] .flag.bad')).to_have_text("refusing all")
    page.get_by_role("button", name="Switch off…", exact=True).click()
    dialog = page.get_by_role("dialog")
    will = dialog.get_by_label("What will happen")
    expect(will).to_contain_text("All limits stop immediately, for 1 h, until ")
    expect(will).to_contain_text("closed (")
    dialog.get_by_label("What", exact=True).select_option("only retry_group")
    dialog.get_by_label("For how long").select_option("until changed")
    expect(will).to_contain_text("All limits of retry_group stop immediately, until an operator switches them on")
    expect(will).to_contain_text("Nothing was refused or held in the last 10 s.")
    expect(dialog.get_by_role("button", name="Switch off retry_group")).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()


def test_one_kind_is_switched_off_by_itself(sidecar: Sluice, open_tab: Any) -> None:
    page = open_tab(sidecar).open("#/state")
    page.get_by_role("button", name="Switch limiting of retry_group off").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("replay")
    dialog.get_by_role("button", name="Switch off").click()

    banner = page.get_by_role("alert").filter(has_text="LIMITING OF RETRY_GROUP IS SWITCHED OFF")
    expect(banner).to_contain_text("replay")
    page.get_by_role("button", name="Switch limiting of retry_group back on").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch on").click()
    expect(banner).to_be_hidden()


@pytest.mark.long
def test_connection_is_closed_after_a_question(sidecar: Sluice, open_tab: Any) -> None:
    with FrameClient(sidecar.routes[0].listen) as client:
        client.ask(send("to-be-closed"))
        page = open_tab(sidecar).open("#/connections?search=to-be-closed")
        page.locator("tbody").get_by_role("button", name="Close the connection of").click()
        page.get_by_role("dialog").get_by_label("Reason").fill("test")
        page.get_by_role("dialog").get_by_role("button", name="Close connection").click()
        client.read_to_end()
        expect(page.locator("tbody tr")).to_have_count(0)


def test_edits_without_a_state_directory_warn_about_their_loss(start_sluice: StartSluice, open_tab: Any) -> None:
    volatile = start_sluice(state_dir="off")
    page = open_tab(volatile).open()
    expect(page.locator(".banner").filter(has_text="Edits are lost on restart")).to_be_visible()


def test_the_page_shows_that_it_is_offline_and_resumes(start_sluice: StartSluice, open_tab: Any) -> None:
    first = start_sluice(limits=["topic:*=200/s"])
    with FrameClient(first.routes[0].listen) as client:
        client.ask(send("kept-in-sight"))
        tab = open_tab(first)
        page = tab.open()
        row = page.locator('tr[data-row="topic/kept-in-sight"]')
        expect(row).to_be_visible()
        tab.failing_loads = True
    first.stop()

    banner = page.locator(".banner").filter(has_text="connection to Sluice")
    expect(banner).to_be_visible()
    expect(page.locator("#connection")).to_contain_text("figures from")
    expect(page.locator("html")).to_have_class("stale")
    expect(row).to_be_visible()

    again = start_sluice(limits=["topic:*=200/s"], routes=first.routes, admin=first.admin)
    with FrameClient(again.routes[0].listen) as client:
        client.ask(send("seen-afterwards"))
        expect(page.locator("#connection")).to_have_text("live")
        expect(banner).to_be_hidden()
        expect(page.locator('tr[data-row="topic/seen-afterwards"]')).to_be_visible()


def test_nothing_is_called_refusing_while_limiting_is_off(start_sluice: StartSluice, open_tab: Any, flood: Any) -> None:
    sluice = start_sluice(config='[[limits]]\nkind = "topic"\nname = "*"\nrate = 50\n')
    flood(sluice, "loud", 400)
    page = open_tab(sluice).open("#/resource?kind=topic&name=loud")
    expect(page.locator(".flags")).to_contain_text("refusing")
    switch = urllib.request.Request(
        f"http://{sluice.admin}/api/v1/switches/all",
        method="PUT",
        data=b'{"limiting": false}',
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(switch, timeout=60):
        expect(page.locator(".flags")).to_have_text("limiting off")
    expect(page.get_by_role("region", name="Applied limits")).to_contain_text("limiting is switched off")
    page.goto(page.url.split("#")[0] + "#/limits")
    row = page.locator('tr[data-row="topic/loud"]')
    expect(row.locator("td.limit")).to_have_text("50/s")
    expect(row.locator(".flag.bad")).to_be_hidden()


def test_switches_are_compact_on_a_phone(start_sluice: StartSluice, open_tab: Any, picture: Any) -> None:
    sluice = start_sluice()
    page = open_tab(sluice, width=390, height=800, theme="light").open("#/state")
    rows = page.locator("table.switches tbody tr")
    expect(rows).to_have_count(9)
    picture(page, "switches-phone")
    heights = rows.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().height)")
    assert max(heights) <= 48
    switch = rows.first.get_by_role("button")
    switch.click()
    page.get_by_role("dialog").get_by_role("button", name="Switch off everything").click()
    expect(rows.first).to_contain_text("configured: on")
    expect(rows.first).to_contain_text("local")
