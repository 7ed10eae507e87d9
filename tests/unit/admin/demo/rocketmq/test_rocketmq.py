"""What the demos with real brokers look for before they start, and what RocketMQ's load generator reports."""

from pathlib import Path

import pytest

from admin.demo.rabbitmq import broker as rabbitmq
from admin.demo.rabbitmq.broker import RabbitMQ
from admin.demo.rocketmq.broker import RocketMQ

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
    assert RocketMQ.missing(jars) == []


def test_a_machine_without_java_is_told_how_to_get_it(jars: Path, java: Path) -> None:
    java.unlink()
    (line,) = RocketMQ.missing(jars)
    assert line.startswith("java is not on PATH: RocketMQ needs Java 17")
    assert line.endswith(" apt-get install default-jdk-headless")


def test_an_old_java_is_named(jars: Path, java: Path) -> None:
    says(java, "11.0.2")
    (line,) = RocketMQ.missing(jars)
    assert "bin/java is Java 11: RocketMQ needs 17 or newer" in line


def test_all_that_is_missing_is_told_at_once(tmp_path: Path, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java.unlink()
    _, jars = RocketMQ.missing(tmp_path)
    assert "make demo-rocketmq fetches it" in jars
    monkeypatch.setattr(rabbitmq, "_SERVER", tmp_path / "rabbitmq-server")
    _, server, jars = RabbitMQ.missing(tmp_path)
    assert server.endswith("is missing: install it, e.g. by apt-get install rabbitmq-server")
    assert "make demo-rabbitmq fetches it" in jars


@pytest.mark.parametrize(("output", "failed"), [("", 0), (REPORT, 231)])
def test_the_last_report_of_the_benchmark_counts(output: str, failed: int) -> None:
    assert RocketMQ.failed_of(output) == failed
