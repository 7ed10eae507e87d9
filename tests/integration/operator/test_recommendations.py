"""`sluice limits apply recommendations.json` against `sluice run` as a real process."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, refused, send, stored
from harness.paths import VENV_BIN
from harness.sidecar import Sluice, StartSluice

from admin.common.recommendations import Recommendation, RecommendationsFile

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """
[[limits]]
kind = "topic"
name = "orders"
rate = 5
burst_s = 2

[[limits]]
kind = "topic"
name = "log-*"
rate = 20
break_s = 0
"""
EVIDENCE = "p99 of demand over 7 days is 430/s, and the limit of 5/s refused 2.1 % in 14 storms."
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def sidecar(start_sluice: StartSluice, broker: EmbeddedBroker) -> Iterator[Sluice]:
    with start_sluice(routes=(broker.route(),), config=CONFIG, ready=False) as running:
        yield running


@pytest.fixture
def run(sidecar: Sluice, tmp_path: Path) -> Run:
    def run_(*tokens: str) -> subprocess.CompletedProcess[str]:
        usual = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        return subprocess.run(
            [VENV_BIN / "sluice", *tokens],
            env=usual | {"SLUICE_URL": sidecar.admin, "XDG_CONFIG_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run_


@pytest.fixture
def instance(run: Run) -> str:
    found: str = json.loads(run("state", "--json").stdout)["instance"]
    return found


def written(folder: Path, *recommendations: Recommendation) -> str:
    path = folder / "recommendations.json"
    names = tuple(sorted({each.instance for each in recommendations}))
    whole = RecommendationsFile(made_at="2026-11-22T00:00:00Z", instances=names, recommendations=recommendations)
    path.write_bytes(msgspec.json.encode(whole))
    return str(path)


def raised(instance: str, name: str = "orders", now: float = 5.0, to: float = 500.0) -> Recommendation:
    return Recommendation(
        instance=instance,
        kind="topic",
        name=name,
        action="raise",
        rate_per_s=now,
        recommended_rate_per_s=to,
        evidence=EVIDENCE,
    )


def test_it_holds_for_the_next_request_is_audited_and_can_be_undone(
    run: Run, sidecar: Sluice, instance: str, tmp_path: Path
) -> None:
    path = written(tmp_path, raised(instance), raised(instance, "log-1", 20.0, 90.0))
    with FrameClient(sidecar.routes[0].listen) as client:
        assert refused(client.ask(*(send("orders") for _ in range(50))))
        tried = run("limits", "apply", path, "--dry-run")
        assert tried.returncode == 0, tried.stderr
        assert "would change: topic orders: 5/s → 500/s" in tried.stdout
        assert tried.stdout.endswith("would change 2, skipped 0\n")
        assert json.loads(run("limits", "get", "topic", "orders", "--json").stdout)["limit"]["rate"] == 5
        done = run("limits", "apply", path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("changed 2, skipped 0\n")
        orders = json.loads(run("limits", "get", "topic", "orders", "--json").stdout)
        assert (orders["limit"]["rate"], orders["limit"]["burst_s"]) == (500, 2)
        assert orders["edit"]["reason"] == f"{EVIDENCE} Confidence: low."
        own = json.loads(run("limits", "get", "topic", "log-1", "--json").stdout)
        assert (own["rule"], own["limit"]["rate"], own["limit"]["break_s"]) == ("topic:log-1", 90, 0)
        assert EVIDENCE in run("audit").stdout
        again = run("limits", "apply", path)
        assert again.stdout.splitlines()[-3:] == [
            "skipped: topic orders: already active",
            "skipped: topic log-1: already active",
            "changed 0, skipped 2",
        ]
        change = re.findall(r"audit revert (\d+)", done.stdout)[0]
        assert run("audit", "revert", change).returncode == 0
        assert json.loads(run("limits", "get", "topic", "orders", "--json").stdout)["limit"]["rate"] == 5
        assert run("limits", "unset", "--all").returncode == 0
        assert stored(client.ask(send("other"))) == 1


def test_a_limit_that_was_changed_since_is_left(run: Run, instance: str, tmp_path: Path) -> None:
    run("limits", "set", "topic", "orders", "7")
    path = written(tmp_path, raised(instance))
    left = run("limits", "apply", path)
    assert left.returncode == 0, left.stderr
    assert "skipped: topic orders: the limit is now 7/s, but was 5/s in the report" in left.stdout
    assert run("limits", "apply", path, "--force").stdout.endswith("changed 1, skipped 0\n")
    run("limits", "unset", "--all")


def test_those_of_another_sidecar_are_refused(run: Run, instance: str, tmp_path: Path) -> None:
    path = written(tmp_path, raised("somebody-else"))
    ran = run("limits", "apply", path)
    assert ran.returncode == 2
    assert f"{path} was made for somebody-else, not for {instance} at " in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
