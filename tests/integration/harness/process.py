"""A child process whose output is kept, whose readiness is a line it prints, and which never outlives its owner."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from harness.paths import program

# How much of a log an error shows.
_TAIL_LINES = 40


class ProcessFailedError(RuntimeError):
    """A process ended or stayed silent when it should have become ready; carries the end of its log."""


class ManagedProcess:
    """One running program in a process group of its own, its output copied to a log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._closed = False
        # Killed by the kernel when the test process dies, however it dies: no orphan keeps a port.
        self._popen = subprocess.Popen(
            [program("setpriv"), "--pdeathsig", "KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._copy_output, args=(self._popen.stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    @property
    def lines(self) -> list[str]:
        """What it has printed so far."""
        with self._changed:
            return list(self._lines)

    def tail(self) -> str:
        """Return the last lines it printed, for messages."""
        return "\n".join(self.lines[-_TAIL_LINES:])

    def failure(self, what: str) -> ProcessFailedError:
        """Return an error that says ``what`` went wrong and shows the end of the log."""
        state = "is running" if self.running else f"ended with {self._popen.returncode}"
        return ProcessFailedError(
            f"{self.name} (pid {self.pid}, {state}): {what}; {self.log} ends with:\n{self.tail()}"
        )

    def wait_for_line(self, text: str, *, timeout_s: float) -> str:
        """Wait until a line that contains ``text`` has been printed, and return it."""

        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._closed, timeout=timeout_s)
            line = found()
        if line is None:
            raise self.failure(f"did not print {text!r} within {timeout_s:g} s")
        return line

    def signal(self, number: int) -> None:
        """Send a signal to the process itself."""
        self._popen.send_signal(number)

    def wait(self, *, timeout_s: float) -> int:
        """Wait for its end and return its exit status."""
        try:
            status = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not end within {timeout_s:g} s") from None
        self._clear_group()
        return status

    def stop(self, *, timeout_s: float = 30.0) -> int:
        """Ask it to end, wait for that, and return its exit status."""
        if self.running:
            self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s=timeout_s)
        finally:
            self._clear_group()

    def kill(self) -> None:
        """End it and its children at once."""
        self._clear_group()

    def __enter__(self) -> Self:
        """Return itself; leaving the block stops it."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop it."""
        self.stop()

    def _clear_group(self) -> None:
        """Kill what is left of the process group, reap the process and finish the log."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._reader.join()

    def _copy_output(self, stream: IO[str]) -> None:
        with stream, self.log.open("a", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                log.flush()
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
