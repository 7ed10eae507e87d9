"""Schemathesis against the API of a running sidecar: every answer has the documented form."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from harness.embedded import EmbeddedBroker
from harness.frames import FrameClient, send
from harness.paths import VENV_BIN, required
from harness.sidecar import StartSluice

pytestmark = [pytest.mark.integration, pytest.mark.long]

_CONFIG = """
[[listeners]]
name = "main"
listen = "{listen}"
broker = "{broker}"

[defaults.topic]
rate = 1000

[[limits]]
kind = "topic"
name = "orders"
rate = 500

[[limits]]
kind = "topic"
name = "audit-*"
rate = 20
shared = true
"""

# Valid requests can still fail: a rate may contradict a burst (400), and a tag may be stale (412).
_SCHEMATHESIS = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "304", "400", "404", "409", "412"]

# Never ends by itself.
[[operations]]
include-path = "/events"
enabled = false
"""


def test_every_answer_is_as_documented_and_none_is_a_fault(
    start_sluice: StartSluice, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    route = broker.route()
    sidecar = start_sluice(routes=(route,), config=_CONFIG.format(listen=route.listen, broker=route.broker))
    (tmp_path / "schemathesis.toml").write_text(_SCHEMATHESIS, encoding="utf-8")
    with FrameClient(route.listen) as client:
        # So that there is something to list.
        assert client.ask(send("orders"))
        found = subprocess.run(
            [
                str(required(VENV_BIN / "schemathesis", "make setup")),
                "run",
                f"http://{sidecar.admin}/api/v1/openapi.json",
                "--checks=all",
                "--phases=examples,coverage,fuzzing",
                "--max-examples=5",
                "--seed=20260102",
                "--request-timeout=30",
                "--continue-on-failure",
                "--no-color",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert found.returncode == 0, found.stdout[-20_000:]
        operations = re.search(r"Operations: +(\d+) selected / (\d+) total", found.stdout)
        assert operations is not None, found.stdout[:2_000]
        selected, total = map(int, operations.groups())
        assert selected == total - 1
        assert f"Tested: {selected}" in found.stdout, found.stdout[-2_000:]
    # The sidecar may have closed that connection. The next one is served.
    with FrameClient(route.listen) as client:
        assert client.ask(send("orders"))
    lines = sidecar.process.lines
    said = [json.loads(line) for line in lines if line.startswith("{")]
    assert [line for line in said if line["level"] == "error"] == []
    assert [line for line in lines if "Traceback" in line] == []
