"""An operator's most frequent actions: find the flooding client, lower the limit, and undo that."""

import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from harness.embedded import EmbeddedBroker
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Page, expect

_LIMITS = """
[[limits]]
kind = "topic"
name = "*"
rate = 200
"""


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(config=_LIMITS)


@pytest.fixture
def form(sidecar: Sluice, open_tab: Any, fresh_name: Any) -> Any:
    """The editor of a topic without its own limit, with all fields visible."""
    page = open_tab(sidecar).open(f"#/limits?edit=topic/{fresh_name('plain')}")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("More", exact=True).click()
    return drawer


def _row(page: Page, name: str) -> Any:
    return page.locator(f'tr[data-row="topic/{name}"]')


def _edit(page: Page, name: str, rate: str, reason: str = "") -> None:
    _row(page, name).get_by_role("button", name="Edit").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill(rate)
    drawer.get_by_label("Reason").fill(reason)
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_be_hidden()


def test_flood_shows_in_its_row_and_in_the_header(sidecar: Sluice, open_tab: Any, flood: Any, fresh_name: Any) -> None:
    topic = fresh_name("runaway")
    flood(sidecar, topic, 800)
    page = open_tab(sidecar).open(f"#/limits?search={topic}")

    row = _row(page, topic)
    expect(row.locator("td.refusing")).to_be_visible()
    expect(row.locator("td.limit")).to_have_text("200/s")
    expect(row.locator(".flag.bad")).to_be_visible()
    expect(row.locator("td.last_refused time")).to_have_text("now")
    expect(page.locator("#strip .refusing")).to_be_visible()


def test_lowered_limit_is_stored_slower_until_it_is_reverted(
    sidecar: Sluice, broker: EmbeddedBroker, open_tab: Any, flood: Any, fresh_name: Any
) -> None:
    topic = fresh_name("lowered")
    load = flood(sidecar, topic, 800)
    page = open_tab(sidecar).open(f"#/limits?search={topic}")
    expect(_row(page, topic).locator("td.refusing")).to_be_visible()

    _edit(page, topic, "20", reason="too loud")
    before, from_s = broker.stored(topic), time.monotonic()
    load.wait_for(1600)
    stored, elapsed_s = broker.stored(topic) - before, time.monotonic() - from_s
    # Messages in flight when the edit is acknowledged were admitted before it: at most one tick of the flood.
    assert stored <= 20 * elapsed_s + 20 + 1 + 40
    expect(_row(page, topic).locator("td.limit")).to_have_text("20/s")
    expect(_row(page, topic).locator(".tag.edited")).to_be_visible()

    _row(page, topic).get_by_role("button", name="Edit").click()
    drawer = page.get_by_role("dialog")
    expect(drawer.get_by_text("too loud")).to_be_visible()
    drawer.get_by_role("button", name="Revert to file").click()
    expect(drawer.locator("del")).to_have_text("20/s")
    expect(drawer.locator("ins")).to_have_text("200/s by topic:*")
    drawer.get_by_role("button", name="Revert", exact=True).click()
    expect(drawer).to_be_hidden()
    expect(_row(page, topic).locator("td.limit")).to_have_text("200/s")
    expect(_row(page, topic).locator(".tag.edited")).to_have_count(0)

    page.get_by_role("link", name="Audit").click()
    changes = page.locator(".audit > tbody > tr").filter(has_text=f"topic/{topic}")
    expect(changes).to_have_count(2)
    expect(changes.nth(1)).to_contain_text("too loud")
    expect(changes.nth(0)).to_contain_text("reverted to file")


def test_undo_reverts_the_last_edit(sidecar: Sluice, open_tab: Any, flood: Any, fresh_name: Any) -> None:
    topic = fresh_name("undone")
    flood(sidecar, topic, 20)
    page = open_tab(sidecar).open(f"#/limits?search={topic}")
    _edit(page, topic, "55")
    expect(_row(page, topic).locator("td.limit")).to_have_text("55/s")

    page.get_by_role("button", name="Undo", exact=True).click()

    expect(_row(page, topic).locator("td.limit")).to_have_text("200/s")


def test_change_of_the_audit_trail_is_reverted_after_a_look(
    sidecar: Sluice, open_tab: Any, flood: Any, fresh_name: Any, limit_of: Any
) -> None:
    topic = fresh_name("regretted")
    flood(sidecar, topic, 20)
    page = open_tab(sidecar).open(f"#/limits?search={topic}")
    _edit(page, topic, "33")
    page.goto(f"{page.url.split('#')[0]}#/audit?target=limits/topic/{topic}")

    page.get_by_role("button", name="Revert change").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("ins")).to_have_text("200/s by topic:*")
    dialog.get_by_label("Reason").fill("not that one")
    dialog.get_by_role("button", name="Revert", exact=True).click()

    changes = page.locator(".audit > tbody > tr")
    expect(changes).to_have_count(2)
    expect(changes.first).to_contain_text("not that one")
    assert limit_of(sidecar, topic)["limit"]["rate"] == 200


def test_concurrent_edit_is_refused(sidecar: Sluice, open_tab: Any, flood: Any, fresh_name: Any) -> None:
    topic = fresh_name("contested")
    flood(sidecar, topic, 20)
    tab = open_tab(sidecar)
    tab.failing_loads = True
    page = tab.open(f"#/limits?search={topic}")
    _row(page, topic).get_by_role("button", name="Edit").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill("60")

    other = open_tab(sidecar).open(f"#/limits?search={topic}")
    _edit(other, topic, "70")
    drawer.get_by_role("button", name="Preview").click()

    expect(drawer.get_by_role("alert")).to_contain_text("Nothing was changed")
    expect(drawer.get_by_label("Rate, per second")).to_have_value("70")
    drawer.get_by_label("Rate, per second").fill("60")
    drawer.get_by_role("button", name="Preview").click()
    expect(drawer.locator("del")).to_have_text("70/s")


@pytest.mark.parametrize(
    ("label", "typed", "meant"),
    [
        ("Rate, per second", "1,000", "such as 1000"),
        ("Rate, per second", "1e3", "such as 1000"),
        ("Bytes per second", "4,194,304", "such as 1000"),
        ("Break, seconds", "Infinity", "such as 1000"),
        ("Minutes", "0", "more than 0"),
    ],
)
def test_an_ambiguous_number_is_refused_with_the_right_spelling(form: Any, label: str, typed: str, meant: str) -> None:
    if label == "Minutes":
        form.get_by_label("For how long").select_option("other…")
    form.get_by_label(label, exact=True).fill(typed)
    form.get_by_role("button", name="Preview").click()

    expect(form.locator(".field-error").filter(has_text=re.compile(meant))).to_be_visible()
    expect(form.get_by_label(label, exact=True)).to_have_attribute("aria-invalid", "true")
    expect(form.get_by_label(label, exact=True)).to_be_focused()
    expect(form.get_by_role("button", name="Apply")).to_have_count(0)


@pytest.mark.parametrize(("typed", "read"), [("500/s", "500/s"), ("2.5", "2.5/s"), ("unlimited", "unlimited")])
def test_rate_is_read_as_it_is_written(form: Any, typed: str, read: str) -> None:
    form.get_by_label("Rate, per second").fill(typed)
    form.get_by_role("button", name="Preview").click()
    expect(form.locator("ins")).to_have_text(read)


def test_the_preview_of_a_first_limit_shows_the_replaced_one(form: Any) -> None:
    expect(form.locator(".note")).to_contain_text("a separate limit")
    expect(form.locator(".note")).to_contain_text("topic:* still applies")
    form.get_by_label("Rate, per second").fill("2.5")
    form.get_by_role("button", name="Preview").click()

    expect(form.locator(".old-new")).to_contain_text("200/s by topic:*")
    expect(form.locator("ins")).to_have_text("2.5/s")
    expect(form.locator(".differences tbody tr")).to_have_count(1)
    expect(form.locator(".differences tbody tr")).to_contain_text("rate")


def test_the_audit_trail_lists_all_changes_in_short(
    sidecar: Sluice, open_tab: Any, fresh_name: Any, put_limit: Any
) -> None:
    topic = fresh_name("bursty")
    put_limit(sidecar, topic, rate=50, burst_s=2)
    put_limit(sidecar, topic, rate=50, burst_s=1)
    page = open_tab(sidecar).open(f"#/audit?target=limits/topic/{topic}")
    changes = page.locator(".audit > tbody > tr")
    expect(changes).to_have_count(2)
    expect(changes.first.locator("summary")).to_contain_text("50/s, burst_s 2 → 1")


def test_a_change_with_a_successor_is_reverted_only_on_request(
    sidecar: Sluice, open_tab: Any, fresh_name: Any, limit_of: Any, put_limit: Any
) -> None:
    topic = fresh_name("twice")
    first, second = (put_limit(sidecar, topic, rate=rate)["id"] for rate in (40, 30))
    tab = open_tab(sidecar)
    tab.failing_loads = True
    page = tab.open(f"#/audit?target=limits/topic/{topic}")
    page.get_by_role("button", name=f"Revert change {first} of").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Change {second} has since changed topic/{topic}. Revert anyway?")
    assert limit_of(sidecar, topic)["limit"]["rate"] == 30

    dialog.get_by_role("button", name="Revert anyway").click()

    expect(dialog).to_be_hidden()
    assert limit_of(sidecar, topic)["limit"]["rate"] == 200


def test_limits_that_a_name_meets_are_on_its_page(form: Any) -> None:
    page = form.page
    form.get_by_role("link", name="Open the resource's page").click()
    expect(form).to_be_hidden()
    expect(page.locator(".explanation li")).to_contain_text("200/s")
    expect(page.locator(".explanation li")).to_contain_text("topic:*")


def test_temporary_limit_of_a_new_pattern_counts_down(
    sidecar: Sluice, open_tab: Any, fresh_name: Any, limit_of: Any
) -> None:
    pattern = f"{fresh_name('new')}-*"
    page = open_tab(sidecar).open()
    page.get_by_role("button", name="New limit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name or pattern").fill(pattern)
    dialog.get_by_role("button", name="Set the limit…").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill("7.5")
    drawer.get_by_label("For how long").select_option("15 minutes")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_be_hidden()

    page.get_by_label("Search names").fill(pattern)
    expect(_row(page, pattern).locator(".remaining")).to_contain_text("left")
    assert limit_of(sidecar, pattern)["edit"]["expires_at"]


def test_default_is_edited_like_any_limit(sidecar: Sluice, open_tab: Any, limit_of: Any) -> None:
    page = open_tab(sidecar).open("#/rules")
    page.get_by_role("button", name="Edit the default of retry_group").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_label("Rate, per second").fill("15")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()

    expect(page.get_by_role("row").filter(has_text="retry_group*")).to_contain_text("15/s")
    assert limit_of(sidecar, "*", "retry_group")["limit"]["rate"] == 15


def test_all_edits_are_reverted_after_a_preview(sidecar: Sluice, open_tab: Any, flood: Any, fresh_name: Any) -> None:
    topic = fresh_name("many")
    flood(sidecar, topic, 20)
    page = open_tab(sidecar).open(f"#/limits?search={topic}")
    _edit(page, topic, "44")
    page.get_by_role("button", name="Revert all edits").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("tbody tr").filter(has_text=topic)).to_contain_text("44/s")
    dialog.get_by_role("button", name="Revert all").click()
    expect(dialog).to_be_hidden()
    expect(_row(page, topic).locator("td.limit")).to_have_text("200/s")
    expect(page.get_by_role("button", name="Revert all edits")).to_be_hidden()


def test_spooling_is_chosen_in_the_form(sidecar: Sluice, open_tab: Any, fresh_name: Any, limit_of: Any) -> None:
    topic = fresh_name("bulk")
    page = open_tab(sidecar).open(f"#/limits?edit=topic/{topic}")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("More", exact=True).click()
    drawer.get_by_label("Rate, per second").fill("5")
    drawer.get_by_label("Above the limit").select_option("delay")
    drawer.get_by_label("Spool").select_option("all requests above the limit")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_be_hidden()
    limit = limit_of(sidecar, topic)["limit"]
    assert (limit["spool"], limit["max_delay_s"]) == (True, 2)

    page.goto(page.url.split("#")[0] + f"#/limits?edit=topic/{topic}")
    expect(drawer.get_by_label("Spool")).to_have_value("true")
    drawer.get_by_label("Spool").select_option("no requests")
    drawer.get_by_role("button", name="Preview").click()
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_be_hidden()
    limit = limit_of(sidecar, topic)["limit"]
    assert (limit["spool"], limit["max_delay_s"]) == (False, 2)

    # A delay that was given is kept when the spool changes.
    for spool, delay in (("no requests", "7"), ("all requests above the limit", "")):
        page.goto(page.url.split("#")[0] + f"#/limits?edit=topic/{topic}")
        drawer.get_by_label("Spool").select_option(spool)
        if delay:
            drawer.get_by_label("Longest delay, seconds").fill(delay)
        drawer.get_by_role("button", name="Preview").click()
        drawer.get_by_role("button", name="Apply").click()
        expect(drawer).to_be_hidden()
    limit = limit_of(sidecar, topic)["limit"]
    assert (limit["spool"], limit["max_delay_s"]) == (True, 7)


def test_dependent_fields_appear_with_their_choice_only(
    start_sluice: Any, open_tab: Any, limit_of: Any, picture: Any
) -> None:
    sidecar = start_sluice(protocol="amqp091")
    page = open_tab(sidecar).open("#/limits?edit=exchange/events")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("More", exact=True).click()
    within, longest = drawer.get_by_label("Time for consumers, seconds"), drawer.get_by_label("Longest delay, seconds")
    expect(within).to_be_hidden()
    for action, is_there in (("delay, then reject", True), ("reject", False), ("default for the kind", True)):
        drawer.get_by_label("Above the limit").select_option(action)
        expect(longest).to_be_visible(visible=is_there)
    drawer.get_by_label("Confirmed by").select_option("the consumers, by their acks")
    within.fill("2.5")
    drawer.get_by_label("Queues per message").fill("3")
    drawer.get_by_label("Unconfirmed messages").select_option("are refused")
    within.scroll_into_view_if_needed()
    picture(page, "confirms-form")
    drawer.get_by_role("button", name="Preview").click()
    expect(drawer.locator(".differences")).to_contain_text("after_consume")
    drawer.get_by_role("button", name="Apply").click()
    expect(drawer).to_be_hidden()
    limit = limit_of(sidecar, "events", "exchange")["limit"]
    fields = ("rate", "confirm", "confirm_within_s", "confirm_queues", "fallback")
    assert [limit[field] for field in fields] == ["unlimited", "after_consume", 2.5, 3, "nack"]
    page.get_by_role("link", name="Rules", exact=True).click()
    row = page.locator("table.rules tbody tr").filter(has_text="events")
    expect(row.locator('[data-label="Limit"]')).to_have_text("unlimited confirmed by consumers")


def test_empty_rate_is_asked_for_in_the_words_of_the_form(form: Any) -> None:
    rate = form.get_by_label("Rate, per second")
    rate.fill("")
    form.get_by_role("button", name="Preview").click()
    expect(form.locator(".field-error").first).to_have_text(
        "Enter a rate, select unlimited, or limit the bytes per second."
    )
    expect(rate).to_be_focused()
    form.get_by_label("Bytes per second").fill("1000")
    form.get_by_role("button", name="Preview").click()
    expect(form.locator(".preview")).to_be_visible()


def test_the_apis_texts_about_fields_are_the_forms(sidecar: Sluice, open_tab: Any, fresh_name: Any) -> None:
    tab = open_tab(sidecar)
    tab.failing_loads = True
    tab.open(f"#/limits?edit=topic/{fresh_name('words')}")
    form = tab.page.get_by_role("dialog")
    form.get_by_text("More", exact=True).click()
    form.get_by_label("Rate, per second").fill("5")
    form.get_by_label("Burst, seconds").fill("0.5")
    form.get_by_label("Break, seconds").fill("2")
    form.get_by_role("button", name="Preview").click()
    error = form.locator(".field-error, .problem").filter(has_text=re.compile(r"\w"))
    expect(error.first).to_be_visible()
    assert not re.search(r"\w+_\w+|\w+ = ", " ".join(error.all_inner_texts()))


def test_form_has_no_fields_of_other_protocols(start_sluice: StartSluice, sidecar: Sluice, open_tab: Any) -> None:
    def labels(sluice: Sluice, target: str) -> list[str]:
        page = open_tab(sluice).open(f"#/limits?edit={target}")
        expect(page.get_by_role("dialog").get_by_label("Rate, per second")).to_be_visible()
        return [*page.locator("dialog label").all_text_contents(), *page.locator("dialog option").all_text_contents()]

    topic = labels(sidecar, "topic/orders")
    queue = labels(start_sluice(protocol="amqp091"), "queue/orders")
    only_topics, only_queues = {"Refusal code", "by producer group"}, {"Confirmed by", "by user"}
    assert only_topics <= set(topic)
    assert not only_queues & set(topic)
    assert only_queues <= set(queue)
    assert not only_topics & set(queue)


def test_escape_leads_from_a_preview_to_its_form_and_loses_no_edits(form: Any) -> None:
    rate = form.get_by_label("Rate, per second")
    rate.fill("77")
    form.get_by_role("button", name="Preview").click()
    expect(form.get_by_role("button", name="Apply")).to_be_focused()
    form.press("Escape")
    expect(rate).to_have_value("77")
    form.press("Escape")
    expect(form).to_be_hidden()


def test_limits_are_exported_as_the_command_line_does(start_sluice: StartSluice, open_tab: Any, put_limit: Any) -> None:
    more = '[[limits]]\nkind = "topic"\nname = "a \\"b\\" *"\nrate = 2.5\naction = "delay"\nspool = true\n'
    more += '[[limits]]\nkind = "client"\nname = "*"\nbytes_per_s = 4096\nshared = true\n'
    sluice = start_sluice(config=_LIMITS + more)
    put_limit(sluice, "orders", rate="unlimited")
    put_limit(sluice, "night", rate=5, between="22:00-06:00", days=["sat", "sun"])
    page = open_tab(sluice).open("#/rules")
    expect(page.locator("table.rules")).to_contain_text("orders")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export").click()
    written = tomllib.loads(Path(saved.value.path()).read_text())
    command = Path(sys.executable).with_name("sluice")
    told = subprocess.run(
        [command, "limits", "export", "--admin", sluice.admin], check=True, capture_output=True, text=True
    )
    assert written["limits"]
    assert written == tomllib.loads(told.stdout)
