import os
import re
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

from admin.config import logs
from admin.config.settings import Endpoint
from admin.demo import embedded, view


@pytest.fixture(autouse=True)
def _own_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the usual ports, and no logging."""
    monkeypatch.setattr(embedded, "_LISTEN", Endpoint("127.0.0.1", 0))
    monkeypatch.setattr(embedded, "_NAME_SERVER", Endpoint("127.0.0.1", 0))
    monkeypatch.setattr(embedded, "DEFAULT_ADMIN", "127.0.0.1:0")
    monkeypatch.setattr(logs, "configure", lambda _: None)


def rows(text: str) -> dict[str, list[int]]:
    """Read the summary's figures: limit, sent, passed, refused, other, stored."""
    return {
        topic: [int(figure.replace(",", "")) for figure in figures.split()[:6]]
        for topic, figures in re.findall(r"^ (\w+) +([\d,. ]+)$", text, re.MULTILINE)
    }


async def test_a_short_run_ends_with_an_account_that_is_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code = await embedded.perform(seconds=1.5)
    text = capsys.readouterr().out
    assert exit_code == 0, text
    assert text.count("✓ ") == 5
    figures = rows(text)
    assert set(figures) == {load.topic for load in embedded.LOADS}
    for load in embedded.LOADS:
        _, sent, passed, refused, other, stored = figures[load.topic]
        assert sent == passed + refused
        assert (other, stored) == (0, passed)
        assert (refused > 0) == load.runaway
    assert "/metrics" in text
    assert re.search(r"^page +open http://127\.0\.0\.1:[0-9]+ ", text, re.MULTILINE)


async def test_state_is_kept_for_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: dict[str, Any] = {}
    summary = view.summary

    def looked(*args: Any, **how: Any) -> Any:
        (folder,) = tmp_path.iterdir()
        seen["files"] = {path.name for path in folder.iterdir()}
        return summary(*args, **how)

    monkeypatch.setattr(view, "summary", looked)
    await embedded.perform(seconds=0.5)
    assert seen["files"] >= {"rejections", "spool"}
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - a pathlib iterator is one of blocking calls


async def test_ctrl_c_ends_it_with_the_account(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_line = trio.Event()

    def line(*args: Any) -> str:
        first_line.set()
        return view_line(*args)

    view_line = view.line
    monkeypatch.setattr(view, "line", line)
    exit_codes: list[int] = []

    async def perform() -> None:
        exit_codes.append(await embedded.perform(seconds=None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(perform)
        await first_line.wait()
        signal.raise_signal(signal.SIGINT)
    text = capsys.readouterr().out
    assert exit_codes == [0], text
    assert "quiet topics lost nothing" in text
    assert "sent/passed/refused per second: runaway " in text


async def test_a_used_port_is_replaced_by_a_free_one_with_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(embedded, "_LISTEN", Endpoint("127.0.0.1", port))
        assert await embedded.perform(seconds=0.1) == 0
    text = capsys.readouterr().out
    (other,) = re.findall(rf"port {port} is taken, so sluice uses ([0-9]+)", text)
    assert int(other) not in {0, port}
    assert text.count("is taken") == 1


async def test_a_port_that_is_to_be_had_is_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reserved_address: tuple[str, int]
) -> None:
    monkeypatch.setattr(embedded, "_NAME_SERVER", Endpoint(*reserved_address))
    assert await embedded.perform(seconds=0.1) == 0
    text = capsys.readouterr().out
    assert f"127.0.0.1:{reserved_address[1]}" in text
    assert "is taken" not in text
