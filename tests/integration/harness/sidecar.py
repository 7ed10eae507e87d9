"""`sluice run` as a real process, watched through its admin address, under coverage with COVERED_SIDECARS=1."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

from harness.paths import ROOT, VENV_BIN, program, required
from harness.ports import free_port
from harness.process import ManagedProcess

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 240.0
_STOP_TIMEOUT_S = 120.0
_METRICS_TIMEOUT_S = 60.0
_POLL_S = 0.05
# Start takes twice the time, and messages several times: the unit tests cover the same lines.
_COVERED = os.environ.get("COVERED_SIDECARS", "") not in {"", "0"}


class Route(NamedTuple):
    """One ``--listen``/``--broker`` pair, both ``host:port``."""

    listen: str
    broker: str


class Metrics(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """One scrape: the samples by name and labels."""

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with that name and at least these labels, or 0."""
        wanted = labels.items()
        return sum(value for (sample, have), value in self.items() if sample == name and wanted <= have)


def sluice_command(*arguments: str, covered: bool = True) -> list[str]:
    """Return the command line of `sluice`, without coverage if its speed or memory is tested."""
    script = required(VENV_BIN / "sluice", "make setup")
    if not (covered and _COVERED):
        return [str(script), *arguments]
    return [
        *(sys.executable, "-m", "coverage", "run", f"--rcfile={ROOT / 'pyproject.toml'}"),
        *(f"--data-file={ROOT / '.coverage'}", str(script)),
        *arguments,
    ]


def run_sluice(
    *arguments: str, cwd: Path, timeout_s: float = 240.0, env: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """Run `sluice` to its end and return its exit status and output. ``env`` adds to the tests' environment."""
    return subprocess.run(
        [program("setpriv"), "--pdeathsig", "KILL", "--", *sluice_command(*arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=cwd,
        # Not the machine's, which another run of the tests may use.
        env={**os.environ, "STATE_DIRECTORY": str(cwd / "state"), **env},
    )


class Sluice:
    def __init__(
        self,
        directory: Path,
        routes: Sequence[Route],
        *,
        limits: Sequence[str] = (),
        config: str = "",
        arguments: Sequence[str] = (),
        protocol: str = "rocketmq",
        admin: str = "",
        ready: bool = True,
        env: Mapping[str, str] = MappingProxyType({}),
        inside: Sequence[str] = (),
        covered: bool = True,
    ) -> None:
        self.routes = tuple(routes)
        self.admin = admin or f"{_HOST}:{free_port()}"
        command = sluice_command("run", "--admin", self.admin, covered=covered)
        if config:
            file = directory / "sluice.toml"
            file.write_text(config, encoding="utf-8")
            command += ["--config", str(file)]
        if "[[listeners]]" not in config:
            command += ["--protocol", protocol]
            for route in self.routes:
                command += ["--listen", route.listen, "--broker", route.broker]
        for limit in limits:
            command += ["--limit", limit]
        if "--state-dir" not in arguments:
            # So that edits do not reach other tests.
            command += ["--state-dir", str(directory / "state")]
        command = [*inside, *command, *arguments]
        self.process = ManagedProcess("sluice", command, log=directory / "sluice.log", env=env, cwd=directory)
        try:
            self._wait_for("/readyz" if ready else "/healthz")
        except BaseException:
            self.process.stop()
            raise

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=_METRICS_TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def explain(self, **question: str) -> Any:
        """Return the API's explanation for a request with ``kind``, ``name``, and others."""
        status, text = self.get(f"/api/v1/explain?{urllib.parse.urlencode(question)}")
        if status != 200:
            raise self.process.failure(f"/api/v1/explain answered {status}: {text}")
        return json.loads(text)

    def metrics(self) -> Metrics:
        status, text = self.get("/metrics")
        if status != 200:
            raise self.process.failure(f"/metrics answered {status}: {text}")
        return Metrics(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )

    def wait_for_metrics(self, condition: Callable[[Metrics], bool]) -> Metrics:
        """Wait until a condition on ``/metrics`` is true, and return them."""
        deadline = time.monotonic() + _METRICS_TIMEOUT_S
        while not condition(metrics := self.metrics()):
            if time.monotonic() > deadline:
                raise self.process.failure(f"what was waited for is not in /metrics: {dict(metrics)}")
            time.sleep(_POLL_S)
        return metrics

    def descriptors(self) -> int:
        """Return the number of its open files, without the rejection log, which is opened with its first record."""
        return len(self._open_files())

    def _open_files(self) -> list[str]:
        names = []
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            # Closed since it was listed.
            with suppress(FileNotFoundError):
                names.append(each.readlink())
        return sorted(str(name) for name in names if not name.name.startswith("rejections-"))

    def wait_for_descriptors(self, before: int) -> int:
        """Wait until no more files are open than before it had clients, and return their number."""
        # Sockets of recent admin requests, and of brokers, are closed a moment later.
        deadline = time.monotonic() + _METRICS_TIMEOUT_S
        while len(left := self._open_files()) > before:
            if time.monotonic() > deadline:
                raise self.process.failure(f"{len(left)} descriptors, {before} before there were clients: {left}")
            time.sleep(_POLL_S)
        return len(left)

    def end_with_nothing_left(self, *, descriptors: int) -> None:
        """Stop it once all clients are gone, and check before that they left nothing."""
        metrics = self.wait_for_metrics(lambda metrics: metrics.total("sluice_connections") == 0)
        opened = metrics.total("sluice_connections_opened_total")
        assert metrics.total("sluice_connections_closed_total") == opened
        assert metrics.total("sluice_held_requests") == 0
        assert metrics.total("sluice_bypassed_total") == 0
        self.wait_for_descriptors(descriptors)
        assert self.stop() == 0
        assert "Traceback" not in "\n".join(self.process.lines)

    def stop(self) -> int:
        """Stop it with SIGTERM and return its exit status."""
        return self.process.stop(timeout_s=_STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _wait_for(self, path: str) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        last = "nothing"
        while self.process.running and time.monotonic() < deadline:
            try:
                status, body = self.get(path)
            except OSError as error:
                last = str(error)
            else:
                if status == 200:
                    return
                last = f"{status} {body}"
            time.sleep(_POLL_S)
        # Wait, so that the log in the message is complete.
        if not self.process.running:
            self.process.wait(timeout_s=_STOP_TIMEOUT_S)
        raise self.process.failure(f"{path} did not say yes; the last answer was {last}")


StartSluice = Callable[..., Sluice]
"""The fixture ``start_sluice``. Takes the broker to stand in front of, or Sluice's keyword arguments."""
