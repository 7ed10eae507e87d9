"""The real runs, and the browser for pictures of them."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from harness.paths import ROOT, VENV_BIN, required
from harness.process import ManagedProcess
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

CALM_S: Final = 15
FLOOD_S: Final = 40
# From the beginning, at the height of the flood.
LOOK_AT_S: Final = CALM_S + 30
_CHROMIUM: Final = Path("/usr/bin/chromium")
_START_TIMEOUT_S: Final = 300.0
_RUN_TIMEOUT_S: Final = 600.0
# Pixels of a picture per CSS pixel.
_FINE: Final = 2
_COLOURS: Final = 64


@contextmanager
def demo(folder: Path, name: str, *arguments: str) -> Iterator[tuple[ManagedProcess, Path]]:
    """Run the demo to its end. Yields it and its record once its clients send."""
    record = folder / f"{name}.json"
    seconds = CALM_S + FLOOD_S + CALM_S
    command = [
        *(sys.executable, str(ROOT / "deploy" / "demo" / "demo.py"), "rocketmq", "--no-browser"),
        *("--log", str(folder / "log"), "--record", str(record), "--seconds", str(seconds)),
        *("--calm", str(CALM_S), "--calm-after", str(CALM_S), *arguments),
    ]
    with ManagedProcess(name, command, log=folder / f"{name}.log", cwd=folder) as running:
        running.wait_for_line("join in", timeout_s=_START_TIMEOUT_S)
        yield running, record
        if status := running.wait(timeout_s=_RUN_TIMEOUT_S):
            raise running.failure(f"ended with {status}")


def admin_of(running: ManagedProcess) -> str:
    """Return the ``host:port`` that a demo tells the user to open."""
    found = re.search(r"open http://([\d.]+:\d+)", "\n".join(running.lines))
    if found is None:
        raise running.failure("tells no page")
    return found[1]


def report(folder: Path) -> Path:
    """Make the report of a demo's refusals. Return its page."""
    command = [str(VENV_BIN / "sluice"), "report", str(folder / "log"), "--out", str(folder / "report")]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder / "report" / "report.html"


@contextmanager
def browser() -> Iterator[Browser]:
    required(_CHROMIUM, "apt-get install --no-install-recommends chromium")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(_CHROMIUM), args=["--no-sandbox"])
        yield running
        running.close()


def page_of(chromium: Browser, width: int, height: int) -> Page:
    """Return a new tab, light and without motion."""
    context = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light",
        reduced_motion="reduce",
        device_scale_factor=_FINE,
        bypass_csp=True,  # for the styles of a picture
    )
    return context.new_page()


def shrink(picture: Path) -> None:
    """Write a picture with few colors."""
    with Image.open(picture) as taken:
        few = taken.convert("RGB").quantize(_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


def wait_until(at_s: float) -> None:
    """Wait for a moment of ``time.monotonic``, which the run follows."""
    time.sleep(max(0.0, at_s - time.monotonic()))
