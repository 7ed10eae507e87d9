"""The AMQP clients' own tests: those that pass directly pass through a sidecar, too."""

import os
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from harness.paths import PARTS, ROOT, program, required
from harness.ports import free_port
from harness.rabbitmq import RabbitMQ
from harness.sidecar import Route, StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.long]

_SUITES = PARTS / "suites"
_OURS = ROOT / "tests" / "integration" / "suites"
_AT_MOST_S = 540
_TRIES = 3

Outcomes = dict[str, str]
"""``passed``, ``failed`` or ``skipped`` by test name."""


def _run(command: Sequence[str], cwd: Path, **env: str) -> str:
    required(_SUITES / ".stamp", "make .parts/suites/.stamp")
    done = subprocess.run(
        [program("setpriv"), "--pdeathsig", "KILL", "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_AT_MOST_S,
        check=False,
        cwd=cwd,
        env={**os.environ, **env},
    )
    return done.stdout


def _aiormq(address: str, home: Path, only: Sequence[str] = ()) -> Outcomes:
    """Once, without a connection's name, which makes no difference here, and without TLS, which this proxy has not."""
    report = home / "aiormq.xml"
    report.unlink(missing_ok=True)
    without = ("amqps", "amqp-named", "ssl", "auth_external")
    printed = _run(
        [
            *(str(_SUITES / "python" / "bin" / "python"), "-m", "pytest", "-q", "-p", "sluice_aiormq"),
            *("-p", "no:cacheprovider", "-k", " and ".join(f"not {word}" for word in without)),
            *(f"--junitxml={report}", *(only or ["tests"])),
        ],
        _SUITES / "aiormq",
        AMQP_URL=f"amqp://guest:guest@{address}/",
        PYTHONPATH=str(_OURS),
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert report.exists(), printed
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        verdicts = {child.tag for child in case}
        outcomes[name] = (
            "failed" if verdicts & {"failure", "error"} else "skipped" if "skipped" in verdicts else "passed"
        )
    return outcomes


def _amqplib(address: str, home: Path, only: Sequence[str] = ()) -> Outcomes:
    """All of it each time, as it is short. A busy machine needs more than its timeout of a second."""
    names = sorted(path.name for path in (_SUITES / "amqplib" / "test").glob("*.test.js"))
    outcomes: Outcomes = {}
    for name in names:
        printed = _run(
            [
                *(program("node"), "--require", str(_OURS / "broker_address.js")),
                *("--test", "--test-reporter=tap", "--test-timeout=20000", f"test/{name}"),
            ],
            _SUITES / "amqplib",
            URL=f"amqp://{address}",
            NODE_OPTIONS=f"--require={_OURS / 'broker_address.js'}",
        )
        outcomes |= {f"{name}: {path}": outcome for path, outcome in _tap(printed).items()}
    return outcomes


def _tap(printed: str) -> Outcomes:
    """Read TAP, where nested tests precede their parent. Groups are left out."""
    above: list[str] = []
    groups: set[str] = set()
    outcomes: Outcomes = {}
    for line in printed.splitlines():
        if begun := re.match(r"( *)# Subtest: (.*)", line):
            level = len(begun[1]) // 4
            groups.add(" > ".join(above[:level]))
            above[level:] = [begun[2]]
        elif ended := re.match(r"( *)(not )?ok \d+ - (.*?)( # SKIP.*)?$", line):
            path = " > ".join([*above[: len(ended[1]) // 4], ended[3]])
            outcomes[path] = "failed" if ended[2] else "skipped" if ended[4] else "passed"
    return {path: outcome for path, outcome in outcomes.items() if path not in groups}


def _amqp091_go(address: str, home: Path, only: Sequence[str] = ()) -> Outcomes:
    """Without tests of the management plugin at its usual port, and a purely computational one of minutes."""
    chosen = ("-test.run", "^(" + "|".join(only) + ")$") if only else ("-test.skip", "TestConnectionRecovery|Issue136")
    printed = _run(
        [str(_SUITES / "amqp091-go" / "suite.test"), "-test.v", *chosen],
        _SUITES / "amqp091-go",
        AMQP_URL=f"amqp://guest:guest@{address}/",
    )
    told = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    found = re.findall(r"^--- (PASS|FAIL|SKIP): (\S+)", printed, re.MULTILINE)
    return {name: told[verdict] for verdict, name in found}


_RUN: dict[str, tuple[Callable[..., Outcomes], int]] = {
    "aiormq": (_aiormq, 250),
    "amqplib": (_amqplib, 300),
    "amqp091-go": (_amqp091_go, 200),
}


@pytest.mark.parametrize("name", _RUN)
def test_suite_of_a_client_passes_as_it_does_directly(
    name: str, rabbitmq: RabbitMQ, start_sluice: StartSluice, tmp_path: Path
) -> None:
    run, at_least = _RUN[name]
    route = Route(f"127.0.0.1:{free_port()}", rabbitmq.address)
    with start_sluice(routes=(route,), protocol="amqp091", covered=False) as sluice:
        direct, through = run(rabbitmq.address, tmp_path), run(route.listen, tmp_path)
        passed = {test for test, outcome in direct.items() if outcome == "passed"}
        lost = {test for test in passed if through.get(test) != "passed"}
        # Unreliable tests are repeated a few times.
        again, left = 0, lost
        while left and again < _TRIES:
            again += 1
            outcomes = run(route.listen, tmp_path, sorted(left))
            left = {test for test in left if outcomes.get(test) != "passed"}
        alive = sluice.process.running
    print(f"{name}: {len(passed)} of {len(direct)} pass directly")
    print("not directly:", sorted((outcome, test) for test, outcome in direct.items() if test not in passed))
    print("only when tried again:", sorted(lost - left))
    assert alive
    assert left == set()
    assert len(passed) >= at_least
