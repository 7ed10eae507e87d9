"""Fixtures of the page's tests: a real Chromium, a real sidecar in front of an embedded broker, and floods."""

import itertools
import json
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send
from harness.paths import required
from harness.sidecar import Sluice, StartSluice
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

_CHROMIUM: Final = Path("/usr/bin/chromium")
_SLOWEST_MS: Final = 30_000
"""For events within a second or two on an idle machine."""
_FAILED_LOAD: Final = "Failed to load resource"
"""Chromium's console message for each error answer."""
_FLOOD_TICK_S: Final = 0.05

expect.set_options(timeout=_SLOWEST_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here need a browser and a sidecar."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    required(_CHROMIUM, "apt-get install --no-install-recommends chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(_CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """One page of the browser without console errors and foreign requests.

    ``complaints``: of the console. ``failing_loads``: the test expects error answers.
    """

    def __init__(self, context: BrowserContext, admin: str) -> None:
        self.url = f"http://{admin}/"
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.failing_loads = False
        self.page: Page = context.new_page()
        self.page.set_default_timeout(_SLOWEST_MS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._request)

    def open(self, where: str = "#/limits", *, live: bool = True) -> Page:
        """Open a view, and wait for its figures."""
        self.page.goto(self.url + where)
        if live:
            expect(self.page.locator("#connection")).to_contain_text("live")
        return self.page

    def check(self) -> None:
        assert self.complaints == []
        assert self.foreign == []

    def _console(self, message: ConsoleMessage) -> None:
        if message.type not in {"error", "warning"}:
            return
        if not (self.failing_loads and message.text.startswith(_FAILED_LOAD)):
            self.complaints.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url)


OpenTab = Callable[..., Tab]


@pytest.fixture
def open_tab(chromium: Browser) -> Iterator[OpenTab]:
    """Makes tabs, each with separate storage and without console errors."""
    tabs: list[Tab] = []
    with ExitStack() as contexts:

        def make(sluice: Sluice, *, width: int = 1280, height: int = 900, theme: str = "dark", **how: Any) -> Tab:
            viewport = {"width": width, "height": height}
            context = chromium.new_context(viewport=viewport, color_scheme=theme, reduced_motion="reduce", **how)
            contexts.callback(context.close)
            tabs.append(Tab(context, sluice.admin))
            return tabs[-1]

        yield make
    for tab in tabs:
        tab.check()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def start_sluice(tmp_path_factory: pytest.TempPathFactory, broker: EmbeddedBroker) -> Iterator[StartSluice]:
    """Starts sidecars in front of the broker, each with its own state directory, and stops them after the module."""
    with ExitStack() as running:

        def start(**how: Any) -> Sluice:
            directory = tmp_path_factory.mktemp("sluice")
            arguments = ("--state-dir", str(how.pop("state_dir", directory / "state")), *how.pop("arguments", ()))
            routes = how.pop("routes", None) or (broker.route(),)
            sluice = Sluice(directory, routes, arguments=arguments, covered=False, **how)
            return running.enter_context(sluice)

        yield start


class Flood:
    """One client that sends to a topic until it is stopped, whatever the answers.

    ``sent``: requests with an answer. ``refused``: those over a limit.
    """

    def __init__(self, address: str, topic: str, rate_per_s: int) -> None:
        self.sent = self.refused = 0
        self._address, self._topic = address, topic
        self._each_tick = max(1, round(rate_per_s * _FLOOD_TICK_S))
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def wait_for(self, more: int) -> None:
        """Wait for this many more answers."""
        with self._changed:
            wanted = self.sent + more
            while self.sent < wanted:
                assert self._changed.wait(_SLOWEST_MS / 1000), "the flood has dried up"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with FrameClient(self._address) as client:
            while not self._stopping.wait(_FLOOD_TICK_S):
                answers = client.ask(*(send(self._topic) for _ in range(self._each_tick)))
                with self._changed:
                    self.sent += len(answers)
                    self.refused += len(refused(answers))
                    self._changed.notify_all()


@pytest.fixture
def flood() -> Iterator[Callable[..., Flood]]:
    """Starts floods, and stops them after the test."""
    with ExitStack() as running:

        def start(sluice: Sluice, topic: str, rate_per_s: int = 400) -> Flood:
            return running.enter_context(Flood(sluice.routes[0].listen, topic, rate_per_s))

        yield start


@pytest.fixture
def limit_of() -> Callable[..., Any]:
    """Returns the limit of one name from the API."""

    def ask(sluice: Sluice, name: str, kind: str = "topic") -> Any:
        status, text = sluice.get(f"/api/v1/limits/{kind}/{urllib.parse.quote(name, safe='')}")
        assert status == 200, text
        return json.loads(text)

    return ask


@pytest.fixture
def put_limit() -> Callable[..., Any]:
    """Sets a limit through the API, and returns the change."""

    def put(sluice: Sluice, name: str, **limit: Any) -> Any:
        request = urllib.request.Request(
            f"http://{sluice.admin}/api/v1/limits/topic/{urllib.parse.quote(name, safe='')}",
            method="PUT",
            data=json.dumps(limit).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    return put


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Page, str], None]:
    """Saves a screenshot, in BROWSER_SCREENSHOTS or the test's own directory."""
    folder = Path(os.environ.get("BROWSER_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> None:
        page.screenshot(path=folder / f"{name}.png")

    return take


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """Returns a unique name with this beginning."""
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}-{next(numbers)}"
