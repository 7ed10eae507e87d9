"""The demo with a real broker, started with the Makefile's command and its own /tmp, and the leftovers there."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.paths import ROOT
from harness.process import ManagedProcess

QUIET = ("orders", "payments", "invoices", "shipments", "audit")
"""Targets other than the flooded one."""
TIMEOUT_S = 300.0
"""JVMs, a sidecar and a load generator start slowly on a busy machine."""


@dataclass
class Demos:
    """Starts demos of one broker.

    ``broker`` is ``rocketmq`` or ``rabbitmq``, ``scratch`` the demos' /tmp, ``log`` their rejection log.
    """

    broker: str
    folder: Path
    scratch: Path = field(init=False)
    log: Path = field(init=False)
    _started: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.scratch, self.log = self.folder / "tmp", self.folder / "log"
        self.scratch.mkdir()

    def start(self, *arguments: str) -> ManagedProcess:
        script = ROOT / "deploy" / "demo" / "demo.py"
        command = [sys.executable, str(script), self.broker, "--log", str(self.log)]
        log, env = self.folder / "demo.log", {"TMPDIR": str(self.scratch)}
        demo = ManagedProcess("demo", [*command, *arguments], log=log, env=env, cwd=self.folder)
        self._started.callback(demo.kill)
        return demo

    def stop(self) -> None:
        self._started.close()

    def processes(self) -> dict[int, str]:
        """Return the command lines of processes in their /tmp, by pid."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if str(self.scratch) in command or str(self.scratch) in str((entry / "cwd").readlink()):
                        found[int(entry.name)] = command
        return found

    def left(self) -> list[str]:
        """Return processes and files that are left."""
        return [*map(str, self.scratch.iterdir()), *self.processes().values()]


@contextmanager
def demos_of(broker: str, folder: Path) -> Iterator[Demos]:
    demos = Demos(broker, folder)
    try:
        yield demos
    finally:
        demos.stop()


def figures(lines: list[str], name: str, limit: str = "200") -> dict[str, int]:
    """Return a demo's figures of the topic or queue with that limit."""
    headings = next(line.split() for line in lines if line.split()[1:2] == ["limit/s"])
    row = next(line.split() for line in lines if line.split()[:2] == [name, limit])
    return {name: int(value.replace(",", "")) for name, value in zip(headings[2:-1], row[2:-1], strict=True)}
