"""What the demo with a real RocketMQ needs, and how it counts; the demo itself is run by the integration tests."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from admin.common.errors import StartError
from admin.demo.ledger import EDITED, Counts, Ledger, TopicLoad
from admin.demo.rocketmq import account, parts

LIMIT = account.Limit(200, 0.5)
METRICS = """\
# TYPE sluice_requests counter
sluice_requests_total{kind="topic",resource="runaway",verdict="pass"} 10
sluice_requests_total{kind="topic",resource="runaway",verdict="bypass"} 2
sluice_requests_total{kind="topic",resource="runaway",verdict="refuse"} 30
sluice_requests_total{kind="topic",resource="orders",verdict="refuse"} 500
sluice_requests_total{kind="retry_group",resource="runaway",verdict="refuse"} 500
# TYPE sluice_bypassed counter
sluice_bypassed_total{handler="rate_limit",reason="late"} 2
"""
REPORT = """\
Current Time: 2026-11-22 07:26:11,041 | Send TPS: 1014 | Average RT(ms): 2.051 | Send Failed: 22 | Response Failed: 0
Current Time: 2026-11-22 07:26:12,043 | Send TPS: 1048 | Average RT(ms): 2.564 | Send Failed: 228 | Response Failed: 3
"""


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "rocketmq-example-5.5.0.jar").touch()
    return tmp_path


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only program on PATH; says that it is Java 17."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "java"
    says(program, "17.0.15")
    monkeypatch.setenv("PATH", str(folder))
    return program


def says(program: Path, version: str) -> None:
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n", encoding="utf-8")
    program.chmod(0o755)


@pytest.mark.usefixtures("java")
def test_a_machine_that_has_all_is_taken(jars: Path) -> None:
    parts.check(jars)


def test_a_machine_without_java_is_told_how_to_get_it(jars: Path, java: Path) -> None:
    java.unlink()
    with pytest.raises(StartError, match=r"^java is not on PATH: .* apt-get install default-jdk-headless$"):
        parts.check(jars)


def test_an_old_java_is_named(jars: Path, java: Path) -> None:
    says(java, "11.0.2")
    with pytest.raises(StartError, match=r"bin/java is Java 11: RocketMQ needs 17 or newer"):
        parts.check(jars)


def test_all_that_is_missing_is_told_at_once(tmp_path: Path, java: Path) -> None:
    java.unlink()
    with pytest.raises(StartError) as raised:
        parts.check(tmp_path)
    _, jars = raised.value.lines
    assert "make demo-rocketmq fetches it" in jars


@pytest.fixture
def taken() -> Iterator[int]:
    """The broker's VIP channel, where something listens, this test's or another's."""
    with socket.socket() as sock:
        with suppress(OSError):
            sock.bind(("127.0.0.2", 10909))
            sock.listen()
        yield 10909


def test_a_port_that_is_taken_is_replaced(taken: int) -> None:
    ports, notes = parts.choose_ports()
    assert ports.broker - 2 != taken
    assert f"port 10911 or one beside it is taken, so the broker has {ports.broker}" in notes
    assert len(set(ports)) == 3


def test_without_a_port_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_free", lambda host, port: False)
    with pytest.raises(StartError, match="no port of this machine is free"):
        parts.choose_ports()


def test_scratch_is_gone_afterwards_and_so_is_what_a_killed_demo_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.tempfile, "tempdir", str(tmp_path))
    # No process has this number: it is above the greatest.
    left, others = tmp_path / "sluice-demo-rocketmq-9999999-a", tmp_path / "sluice-demo-rocketmq-notes"
    left.mkdir()
    others.mkdir()
    with parts.scratch() as folder, parts.scratch() as second:
        assert set(tmp_path.iterdir()) == {folder, second, others}
    assert list(tmp_path.iterdir()) == [others]


def test_sluice_counts_the_flood_itself() -> None:
    assert account.of_metrics(text_string_to_metric_families(METRICS), "runaway") == (12, 30, 2)


@pytest.mark.parametrize(("output", "failed"), [("", 0), (REPORT, 231)])
def test_the_last_report_of_the_benchmark_counts(output: str, failed: int) -> None:
    assert account.of_benchmark(output) == failed


def ledger(quiet: Counts, flooded: Counts) -> Ledger:
    made = Ledger((TopicLoad("orders", 40), TopicLoad("runaway", 0, runaway=True)))
    made.counts = {"orders": quiet, "runaway": flooded}
    return made


@pytest.mark.parametrize(
    ("quiet", "flooded", "stored", "wrong"),
    [
        (Counts(40, 40), Counts(9000, 2100, 6900), {"orders": 40, "runaway": 2101}, []),
        (Counts(40, 40), Counts(9000, 2100, 6900), {"orders": 40, "runaway": 2102}, ["runaway was held"]),
        (Counts(40, 40), Counts(9000, 9000, 0), {"orders": 40, "runaway": 100}, ["runaway was held"]),
        (Counts(40, 39, 1), Counts(10, 10), {"orders": 40, "runaway": 10}, ["quiet topics"]),
        (Counts(40, 40), Counts(10, 10), {"orders": 39, "runaway": 10}, ["quiet topics"]),
        (Counts(40, 39), Counts(10, 10), {"orders": 39, "runaway": 10}, ["every request"]),
        (Counts(40, 39, 0, 1), Counts(10, 10), {"orders": 39, "runaway": 10}, []),
    ],
)
def test_clients_sluice_and_broker_are_held_against_each_other(
    quiet: Counts, flooded: Counts, stored: dict[str, int], wrong: list[str]
) -> None:
    # 10 s at 200/s, half a second's burst, and one.
    checks = account.checks(ledger(quiet, flooded), stored, LIMIT, 10.0, bypassed=0)
    failed = [check.text for check in checks if not check.holds]
    assert [text.startswith(start) for text, start in zip(failed, wrong, strict=True)] == [True] * len(wrong)


def test_what_bypassed_the_limiter_is_allowed_and_told() -> None:
    counted = ledger(Counts(40, 40), Counts(9000, 2150, 6850))
    checks = account.checks(counted, {"orders": 40, "runaway": 2150}, LIMIT, 10.0, bypassed=50)
    assert all(check.holds for check in checks)
    assert any("and 50 that bypassed the limiter" in check.text for check in checks)


def test_without_sluice_there_is_nothing_to_hold_the_flood_to() -> None:
    counted = ledger(Counts(40, 10, 30), Counts(9000, 9000))
    checks = account.checks(counted, {"orders": 10, "runaway": 9000}, None, 10.0, bypassed=0)
    assert all(check.holds for check in checks)
    assert checks[-1].text == "without Sluice, of 40 messages for quiet topics the broker refused 30"


def test_after_an_edit_nothing_is_held_against_the_limits() -> None:
    counted = ledger(Counts(40, 10, 30), Counts(9000, 8000, 1000))
    counted.edited = True
    checks = account.checks(counted, {"orders": 10, "runaway": 8000}, LIMIT, 10.0, bypassed=0)
    assert all(check.holds for check in checks)
    assert EDITED in checks


def test_the_version_of_the_rules_tells_an_edit() -> None:
    text = "# TYPE sluice_rule_set_version gauge\nsluice_rule_set_version 3.0\n"
    assert account.version_of(text_string_to_metric_families(text)) == 3
    assert account.version_of(text_string_to_metric_families("")) == 0
