"""Reload of a real process's configuration, by SIGHUP and over HTTP."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.api import ask, rate
from harness.embedded import EmbeddedBroker
from harness.sidecar import Sluice, run_sluice

TEXT = '[[limits]]\nkind = "topic"\nname = "orders"\nrate = {rate}\n'
_TIMEOUT_S = 60.0


@pytest.fixture
def sluice(tmp_path: Path, broker: EmbeddedBroker) -> Iterator[Sluice]:
    with Sluice(
        tmp_path, (broker.route(),), config=TEXT.format(rate=5), limits=("topic:flagged=3/s",), covered=False
    ) as running:
        yield running


def logged(sluice: Sluice, text: str) -> str:
    return sluice.process.wait_for_line(text, timeout_s=_TIMEOUT_S)


def test_a_valid_file_is_applied_by_sighup_while_traffic_continues(sluice: Sluice, tmp_path: Path) -> None:
    ask(sluice, "PUT", "limits/topic/edited", {"rate": 9})
    (tmp_path / "sluice.toml").write_text(TEXT.format(rate=7) + TEXT.format(rate=1).replace("orders", "edited"))
    sluice.process.signal(signal.SIGHUP)
    line = logged(sluice, "configuration reloaded")
    assert "topic:orders: rate 5.0 -> 7.0" in line
    assert "topic:edited: added, 1/s" in line
    assert "topic:edited: live edit 1 overrides it with 9/s" in logged(sluice, "changed limit has no effect")
    assert (rate(sluice), rate(sluice, "edited"), rate(sluice, "flagged")) == (7, 9, 3)
    change = ask(sluice, "GET", "audit")[1]["changes"][0]
    assert (change["action"], change["by"], change["target"]) == ("reload", "SIGHUP", "configuration")


def test_a_bad_file_changes_nothing_and_is_reported_as_by_check(sluice: Sluice, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text(TEXT.format(rate=7) + "x = 1\n")
    sluice.process.signal(signal.SIGHUP)
    what = "sluice.toml:5: limits[0].x: unknown"
    assert what in logged(sluice, "reload failed")
    status, problem = ask(sluice, "POST", "reload")
    assert status == 409
    assert what in problem["errors"][0]["detail"]
    assert (rate(sluice), ask(sluice, "GET", "audit")[1]["changes"]) == (5, [])
    failed = ask(sluice, "GET", "state")[1]["failed_reload"]
    assert (failed["by"], what in failed["problems"][0]) == ("local", True)
    assert (
        f"reload       FAILED by {failed['by']}"
        in run_sluice("state", "--admin", f"http://{sluice.admin}", cwd=tmp_path).stdout
    )
    (tmp_path / "sluice.toml").write_text(TEXT.format(rate=5))
    ask(sluice, "POST", "reload")
    assert ask(sluice, "GET", "state")[1]["failed_reload"] is None
    # Both reloads over HTTP are in the log, too.
    logged(sluice, "configuration reloaded")
    lines = [line for line in sluice.process.log.read_text(encoding="utf-8").splitlines() if '"by": "local"' in line]
    assert ["reload failed" in line for line in lines] == [True, False]


def test_reload_names_changes_that_need_a_restart_and_applies_the_rest(sluice: Sluice, tmp_path: Path) -> None:
    text = TEXT.format(rate=7) + TEXT.format(rate=8).replace("orders", "flagged") + "[bounds]\nmax_connections = 7\n"
    (tmp_path / "sluice.toml").write_text(text)
    dry = ask(sluice, "POST", "reload?dry_run=1")[1]
    assert rate(sluice) == 5
    report = ask(sluice, "POST", "reload")[1]
    assert {**report, "change": None} == {**dry, "change": None}
    assert report["changed"] == ["topic:orders: rate 5.0 -> 7.0"]
    assert report["needs_restart"] == ["bounds.max_connections: 10000 -> 7"]
    assert (rate(sluice), rate(sluice, "flagged"), report["change"]["id"]) == (7, 3, 1)


def test_limits_without_a_rule_any_more_go_and_the_built_in_ones_come_back(sluice: Sluice, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text("")
    assert ask(sluice, "POST", "reload")[1]["changed"] == ["topic:orders: removed, was 5/s"]
    assert rate(sluice) == "unlimited"
