"""Recording and alert rules: promtool's check, and that each alert is tested and documented."""

import re
import shlex
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml
from harness.paths import ROOT, program

from admin.cli import app

PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
TESTS: Final = (PROMETHEUS / "tests.yaml").read_text(encoding="utf-8")
Run = Callable[..., str]


def rules(file: str) -> list[Any]:
    groups = yaml.safe_load((PROMETHEUS / file).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS: Final = rules("alerts.yaml")
COMMANDS: Final = [
    (alert["alert"], command)
    for alert in ALERTS
    for command in re.findall(r"`(sluice [^`]*)`", alert["annotations"]["runbook"].replace("\n", " "))
]


def test_promtool_understands_the_rules(run: Run) -> None:
    shown = run(program("promtool"), "check", "rules", PROMETHEUS / "recording.yaml", PROMETHEUS / "alerts.yaml")
    assert shown.count("SUCCESS") == 2


def test_promtools_tests_of_the_rules_pass(run: Run) -> None:
    assert "SUCCESS" in run(program("promtool"), "test", "rules", PROMETHEUS / "tests.yaml")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_tested_and_has_meaning_and_remedy(alert: Any) -> None:
    assert f'alertname="{alert["alert"]}"' in TESTS
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    assert alert["annotations"]["runbook"].startswith("1. ")


@pytest.mark.parametrize("rule", rules("recording.yaml"), ids=lambda rule: rule["record"])
def test_recording_rules_are_tested_and_named_by_prometheus_conventions(rule: Any) -> None:
    assert re.fullmatch(r"job(_[a-z]+)?:sluice_[a-z_]+:[a-z0-9_]+", rule["record"])
    assert re.search(rf"{rule['record']}\b", TESTS) or any(rule["record"] in alert["expr"] for alert in ALERTS)


@pytest.mark.parametrize(("alert", "command"), COMMANDS)
def test_a_command_of_a_runbook_can_be_typed(alert: str, command: str) -> None:
    assert alert
    app.parse_args(shlex.split(re.sub(r"\s+", " ", command))[1:], print_error=False, exit_on_error=False)
