"""A real Prometheus for queries."""

import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from harness.paths import program
from harness.ports import free_port
from harness.process import ManagedProcess

_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1

Vector = dict[frozenset[tuple[str, str]], float]
"""The values of an instant query by their labels."""
Found = TypeVar("Found", Vector, dict[str, str])


class Prometheus:
    def __init__(self, directory: Path, config: str) -> None:
        file = directory / "prometheus.yml"
        file.write_text(config, encoding="utf-8")
        subprocess.run([program("promtool"), "check", "config", str(file)], check=True, capture_output=True)
        self.address = f"127.0.0.1:{free_port()}"
        command = [
            program("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self.address}",
        ]
        self.process = ManagedProcess("prometheus", command, log=directory / "prometheus.log", cwd=directory)
        try:
            self.process.wait_for_line("ready to receive web requests", timeout_s=_TIMEOUT_S)
        except BaseException:
            self.process.stop()
            raise

    def query(self, promql: str, *, at_s: float | None = None) -> Any:
        """Return the result of an instant query, now or at a time in seconds since 1970."""
        question = {"query": promql} if at_s is None else {"query": promql, "time": f"{at_s:.3f}"}
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode(question)}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)["data"]["result"]

    def vector(self, promql: str, *, at_s: float | None = None) -> Vector:
        found = self.query(promql, at_s=at_s)
        return {frozenset(each["metric"].items()): float(each["value"][1]) for each in found}

    def wait_for(self, promql: str, condition: Callable[[Vector], bool]) -> Vector:
        return self._wait_for(promql, lambda: self.vector(promql), condition)

    def wait_for_errors(self, condition: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Wait for the errors of the last scrapes, and return them by job."""
        return self._wait_for("what the scrapes failed of", self._errors, condition)

    def _errors(self) -> dict[str, str]:
        with urllib.request.urlopen(f"http://{self.address}/api/v1/targets", timeout=_TIMEOUT_S) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
        return {target["labels"]["job"]: target["lastError"] for target in targets}

    def _wait_for(self, what: str, look: Callable[[], Found], condition: Callable[[Found], bool]) -> Found:
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition(found := look()):
            if time.monotonic() > deadline:
                raise self.process.failure(f"{what} is {found}")
            time.sleep(_POLL_S)
        return found

    def wait_for_value(self, promql: str, value: float) -> None:
        def is_it(found: Vector) -> bool:
            return len(found) == 1 and math.isclose(next(iter(found.values())), value, rel_tol=1e-6)

        self.wait_for(promql, is_it)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.stop()
