"""The image's definition. `make chroot` tests its stages."""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from harness.embedded import EmbeddedBroker
from harness.paths import ROOT
from harness.ports import free_port
from harness.sidecar import Sluice

CONTAINER: Final = ROOT / "deploy" / "container"
INSTRUCTIONS: Final = [
    line
    for line in re.sub(r"\\\n\s*", "", (CONTAINER / "Containerfile").read_text(encoding="utf-8")).splitlines()
    if line and not line.startswith("#")
]
STAGES: Final = "\n".join(INSTRUCTIONS).split("\nFROM ")[1:]
Run = Callable[..., str]


def instructions(stage: int, word: str) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in STAGES[stage].splitlines() if line.startswith(f"{word} ")]


@pytest.mark.parametrize("line", instructions(0, "COPY") + instructions(1, "COPY")[:1])
def test_copied_files_exist(line: str) -> None:
    *sources, _ = line.split()
    assert all((ROOT / source).exists() for source in sources)


def test_container_runs_unprivileged_and_reports_health() -> None:
    assert instructions(1, "USER") == ["10001:10001"]
    assert "10001" in (CONTAINER / "runtime.sh").read_text(encoding="utf-8")
    assert len(instructions(1, "HEALTHCHECK")) == 1
    assert instructions(1, "VOLUME") == ["/var/lib/sluice"]


def test_nothing_is_fetched_but_by_the_stages_scripts() -> None:
    assert [line for stage in (0, 1) for line in instructions(stage, "RUN")] == [
        "sh /src/deploy/container/build.sh /src ${NATIVE}",
        "sh /tmp/runtime.sh && rm /tmp/runtime.sh",
    ]
    assert not [line for line in INSTRUCTIONS if line.startswith("ADD ")]


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    with (
        EmbeddedBroker() as broker,
        Sluice(tmp_path_factory.mktemp("sluice"), (broker.route(),), covered=False) as sluice,
    ):
        yield sluice


def test_the_health_check_passes_while_it_answers(sidecar: Sluice, run: Run) -> None:
    assert run(sys.executable, CONTAINER / "healthcheck.py", env={"SLUICE_URL": f"http://{sidecar.admin}"}) == ""


def test_the_health_check_fails_with_a_reason_without_an_answer(run: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    command = 'if "$@"; then exit 1; fi'
    shown = run("sh", "-c", command, "-", sys.executable, CONTAINER / "healthcheck.py", env={"SLUICE_URL": url})
    assert shown.startswith(f"{url}/healthz: ")
    assert "refused" in shown
