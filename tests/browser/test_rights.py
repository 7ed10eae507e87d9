"""Read and write access, and that stored text is never markup."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.frames import FrameClient, send
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import expect

pytestmark = pytest.mark.long

_WRITE = "0123456789abcdef0123456789abcdef-write"
_READ = "0123456789abcdef0123456789abcdef-read"
_HTML = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture(scope="module")
def guarded(start_sluice: StartSluice, tmp_path_factory: pytest.TempPathFactory) -> Sluice:
    """A sidecar that requires a token."""
    tokens = Path(tmp_path_factory.mktemp("tokens")) / "tokens"
    tokens.write_text(f"alice write {_WRITE}\nwall read {_READ}\n", encoding="utf-8")
    tokens.chmod(0o600)
    return start_sluice(limits=["topic:*=200/s"], arguments=("--admin-token-file", str(tokens)))


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice) -> Sluice:
    return start_sluice(limits=["topic:*=200/s"])


@pytest.fixture
def client(guarded: Sluice) -> Iterator[FrameClient]:
    with FrameClient(guarded.routes[0].listen) as connected:
        yield connected


def test_token_is_asked_for_until_it_is_right_and_forgotten_with_the_tab(
    guarded: Sluice, client: FrameClient, open_tab: Any
) -> None:
    client.ask(send("guarded"))
    tab = open_tab(guarded)
    tab.failing_loads = True
    page = tab.open(live=False)
    form = page.get_by_role("dialog", name="Sign in")
    expect(form.get_by_label("Token")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    form.get_by_label("Token").fill("wrong")
    form.get_by_label("Token").press("Enter")
    expect(form).to_contain_text("Unknown token")

    form.get_by_label("Token").fill(_WRITE)
    form.get_by_label("Token").press("Enter")

    expect(form).to_be_hidden()
    expect(page.locator("#connection")).to_contain_text("live")
    expect(page.locator('tr[data-row="topic/guarded"]')).to_be_visible()
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page.get_by_role("button", name="Sign out alice").click()
    expect(page.get_by_role("dialog", name="Sign in")).to_be_visible()


def test_a_read_only_token_sees_everything_and_gets_a_reason_for_refused_changes(
    guarded: Sluice, client: FrameClient, open_tab: Any
) -> None:
    client.ask(send("seen"))
    tab = open_tab(guarded)
    tab.failing_loads = True
    page = tab.open("#/limits?search=seen", live=False)
    page.get_by_label("Token").fill(_READ)
    page.get_by_role("button", name="Sign in").click()
    row = page.locator('tr[data-row="topic/seen"]')
    expect(row).to_be_visible()
    expect(page.get_by_role("button", name="Switch off")).to_be_disabled()
    expect(page.get_by_role("button", name="New limit")).to_be_disabled()

    row.get_by_role("button", name="Show").click()
    drawer = page.get_by_role("dialog")
    expect(drawer.get_by_label("Rate, per second")).to_be_disabled()
    expect(drawer.get_by_role("button", name="Preview")).to_be_disabled()
    expect(drawer).to_contain_text("read-only")


def test_html_in_names_and_reasons_stays_text(sidecar: Sluice, open_tab: Any) -> None:
    with FrameClient(sidecar.routes[0].listen) as client:
        client.ask(send(_HTML))
        page = open_tab(sidecar).open("#/limits?search=onerror")
        page.get_by_role("button", name=f"Edit the limit of topic {_HTML}").click()
        drawer = page.get_by_role("dialog")
        drawer.get_by_label("Rate, per second").fill("9")
        drawer.get_by_label("Reason").fill(_HTML)
        drawer.get_by_role("button", name="Preview").click()
        drawer.get_by_role("button", name="Apply").click()
        expect(drawer).to_be_hidden()
        expect(page.locator(".toast")).to_contain_text(_HTML)

        page.get_by_role("link", name="Audit").click()
        expect(page.locator(".audit > tbody > tr").first.locator(".reason")).to_have_text(_HTML)
        page.get_by_role("link", name="Connections").click()
        expect(page.locator("main table > tbody > tr").first).to_contain_text(_HTML)
        page.get_by_role("link", name="Rules", exact=True).click()
        expect(page.locator(".rules tbody tr").filter(has_text=_HTML)).to_have_count(1)
        assert page.locator("main img, main b").count() == 0
