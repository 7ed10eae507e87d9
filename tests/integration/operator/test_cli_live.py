"""The commands that query a running Sluice, against a real `sluice run`."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, stored
from harness.paths import VENV_BIN
from harness.sidecar import Sluice, StartSluice

from admin.cli import main

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """
[admin]
token_file = "tokens"

[[limits]]
kind = "topic"
name = "orders"
rate = 500

[[limits]]
kind = "topic"
name = "log-*"
rate = 5000
shared = true

[[limits]]
kind = "topic"
name = "reports"
rate = 50

[[limits]]
kind = "topic"
name = "reports"
rate = 1000
between = "22:00-06:00"
days = ["mon"]
time_zone = "Europe/Berlin"

[defaults.retry_group]
rate = 20
"""
WRITE, READ = "write-token-for-the-tests-0", "read-token-for-the-tests-00"


@pytest.fixture(scope="module")
def sidecar(
    start_sluice: StartSluice, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sluice]:
    home = tmp_path_factory.mktemp("tokens")
    tokens = home / "tokens"
    tokens.write_text(f"ada write {WRITE}\neve read {READ}\n", encoding="utf-8")
    tokens.chmod(0o600)
    with start_sluice(
        routes=(broker.route(),),
        config=CONFIG.replace('"tokens"', json.dumps(str(tokens))),
        ready=False,
    ) as running:
        yield running


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.exit_code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(sidecar: Sluice, tmp_path: Path) -> Run:
    def run_(*tokens: str, token: str = WRITE, **environ: str) -> Ran:
        usual = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        given = {"SLUICE_URL": sidecar.admin, "SLUICE_TOKEN": token, "XDG_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(
            [VENV_BIN / "sluice", *tokens],
            env={name: value for name, value in (usual | given | environ).items() if value},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert WRITE not in done.stdout + done.stderr
        return Ran(done)

    return run_


@pytest.fixture(autouse=True)
def _as_configured(sidecar: Sluice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo all edits afterwards, in this process, because starting another takes longer than most of these tests."""
    yield
    monkeypatch.setenv("SLUICE_TOKEN", WRITE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for undo in (["limits", "unset", "--all"], ["switch", "reset"]):
        assert main([*undo, "--admin", sidecar.admin]) in (0, 5)  # 5: no edits to undo


def test_edit_applies_to_the_next_request(run: Run, sidecar: Sluice) -> None:
    with FrameClient(sidecar.routes[0].listen) as client:
        # Silent connections are closed.
        assert stored(client.ask(send("stopped"))) == 1
        run("limits", "set", "topic", "stopped", "0")
        assert refused(client.ask(send("stopped")))
        run("limits", "unset", "topic", "stopped")
        assert stored(client.ask(send("stopped"))) == 1


@pytest.mark.parametrize("name", ["a/b", "100%", "ünïcode", "..", ".", "a b?x=1#y", "<b>&"])
def test_a_name_of_any_characters_can_be_edited(run: Run, name: str) -> None:
    assert run("limits", "set", "topic", name, "5").exit_code == 0
    assert run("limits", "get", "topic", name, "--json").json["name"] == name
    assert run("limits", "unset", "topic", name).exit_code == 0


@pytest.mark.parametrize(
    ("tokens", "exit_code", "said"),
    [
        (["limits", "set", "topic", "orders", "5", "--action", "deny"], 2, "--action: "),
        (["limits", "set", "shelf", "orders", "5"], 2, 'unknown kind "shelf"; must be one of '),
        (["limits", "get", "shelf", "orders"], 2, 'unknown kind "shelf"; must be one of '),
        (["limits", "list", "--kind", "topc"], 2, 'unknown kind "topc"; did you mean "topic"?'),
        (["limits", "set", "topic", "orders", "5", "--time-zone", "Mars"], 2, "--time-zone: "),
        (["limits", "set", "topic", "orders", "5", "--exempt"], 2, "--exempt: "),
        (["connections", "close", "999999"], 5, ""),
        (["limits", "explain", "topic", "orders", "--client", "x"], 2, "--client: "),
        (["limits", "list", "--sort", "colour"], 2, "--sort: "),
    ],
)
def test_refusals_are_printed_with_an_exit_code(run: Run, tokens: list[str], exit_code: int, said: str) -> None:
    done = run(*tokens)
    assert (done.exit_code, done.out) == (exit_code, ""), done.err
    assert done.err.startswith(f"sluice: {said}")


def test_tokens_are_asked_for(run: Run) -> None:
    assert run("state", token="").exit_code == 4
    assert run("state", token="wrong-token-for-the-tests-0").exit_code == 4
    assert run("state", token=READ).exit_code == 0
    refused = run("limits", "set", "topic", "orders", "5", token=READ)
    assert refused.exit_code == 4
    assert READ not in refused.err


def test_a_profile_has_address_and_token(run: Run, sidecar: Sluice, tmp_path: Path) -> None:
    profiles = tmp_path / "sluice" / "profiles.toml"
    profiles.parent.mkdir()
    profiles.write_text(f'[here]\nadmin = "{sidecar.admin}"\ntoken = "{READ}"\n', encoding="utf-8")
    nowhere = {"SLUICE_URL": "127.0.0.1:1", "SLUICE_TOKEN": ""}
    assert run("state", "--profile", "here", **nowhere).exit_code == 0
    assert run("state", token="", SLUICE_URL="", SLUICE_PROFILE="here").exit_code == 0
    assert run("limits", "set", "topic", "orders", "5", "--profile", "here", **nowhere).exit_code == 4


def test_a_file_is_applied_as_a_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(
        '[[limits]]\nkind = "topic"\nname = "orders"\nrate = 500\n\n'
        '[[limits]]\nkind = "topic"\nname = "mail"\nrate = 7\n\n[defaults.topic]\nrate = 2000\nburst_s = 0\n',
        encoding="utf-8",
    )
    refused = run("limits", "apply", str(file))
    assert refused.exit_code == 2
    assert refused.err.startswith(f"sluice: {file}:13: defaults.topic.burst_s = 0: must be more than 0")
    assert run("limits", "diff").out == "Nothing differs from the configuration.\n"

    file.write_text(file.read_text(encoding="utf-8").replace("burst_s = 0", "burst_s = 2"), encoding="utf-8")
    run("limits", "set", "topic", "other", "1")
    planned = run("limits", "apply", str(file), "--dry-run", "--prune")
    assert "would change: topic mail: " in planned.out
    assert "would change: topic other: 1/s → " in planned.out
    assert planned.out.endswith("unchanged: topic orders: 500/s\nwould change 3, left 1 unchanged\n")
    assert run("limits", "apply", str(file), "--prune").out.endswith("changed 3, left 1 unchanged\n")
    assert run("limits", "apply", str(file), "--prune").out.endswith("changed 0, left 3 unchanged\n")
    assert {each["name"] for each in run("limits", "diff", "--json").json["limits"]} == {"mail", "*"}


def test_an_export_can_be_checked_and_makes_the_same_limits(run: Run, tmp_path: Path) -> None:
    run("limits", "set", "topic", "orders", "1000", "--fair-by", "client", "--reason", 'say "hi"\n[[limits]]')
    run("limits", "set", "topic", "warm-*", "9", "--warm-up-s", "3")
    run("limits", "set", "topic", "held", "9", "--action", "delay", "--max-delay-s", "1.5")
    run("limits", "set", "topic", "alarms", "--exempt")
    exported = run("limits", "export")
    file = tmp_path / "exported.toml"
    file.write_text(exported.out, encoding="utf-8")
    checked = run("check", str(file))
    assert checked.exit_code == 0, checked.err
    unchanged = run("limits", "apply", str(file))
    # Two rules for one name with different hours are possible in a file, but cannot be edited.
    assert unchanged.exit_code == 2
    assert "another limit for topic reports" in unchanged.err
    without = exported.out.split("[[limits]]")
    file.write_text("[[limits]]".join(part for part in without if "between" not in part), encoding="utf-8")
    assert "changed 0, left " in run("limits", "apply", str(file)).out
    edits = run("limits", "export", "--edits-only", "--format", "json").json["limits"]
    assert {each["name"] for each in edits} == {"orders", "warm-*", "held", "alarms"}


def test_connections_are_listed_and_closed(run: Run, sidecar: Sluice) -> None:
    with FrameClient(sidecar.routes[0].listen) as client:
        assert stored(client.ask(send("orders"))) == 1
        (row,) = run("connections", "--json").json["rows"]
        assert f"{row['id']}   {row['peer']}" in run("connections", "list").out
        assert run("connections", "close", str(row["id"])).exit_code == 0
        assert client.read_to_end() == []


def test_the_settings_of_the_sidecar_beside_lead_to_it(run: Run, sidecar: Sluice) -> None:
    beside = {"SLUICE_URL": "", "SLUICE_ADMIN": sidecar.admin, "SLUICE_ADMIN_TOKEN": READ}
    assert run("state", token="", **beside).exit_code == 0


def test_hangup_is_a_reload_and_no_end(run: Run, sidecar: Sluice) -> None:
    before = run("state", "--json").json["started_at"]
    sidecar.process.signal(signal.SIGHUP)
    assert run("state", "--json").json["started_at"] == before
