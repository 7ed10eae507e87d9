"""A child process with recorded output, which is ready once it prints a line, and never outlives its owner."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from harness.paths import program

# Lines of the log shown in an error.
_TAIL_LINES = 40


class ProcessFailedError(RuntimeError):
    """A process ended or printed nothing before it was ready. Shows the end of its log."""


class ManagedProcess:
    """A program in its own process group, with its output copied to a log file."""

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
        # The kernel kills it when the test process dies: no orphan keeps a port.
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
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def lines(self) -> list[str]:
        with self._changed:
            return list(self._lines)

    def tail(self) -> str:
        return "\n".join(self.lines[-_TAIL_LINES:])

    def failure(self, what: str) -> ProcessFailedError:
        state = "is running" if self.running else f"ended with {self._popen.returncode}"
        return ProcessFailedError(
            f"{self.name} (pid {self.pid}, {state}): {what}; {self.log} ends with:\n{self.tail()}"
        )

    def wait_for_line(self, text: str, *, timeout_s: float) -> str:
        """Wait for a line that contains ``text``, and return it."""

        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._closed, timeout=timeout_s)
            line = found()
        if line is None:
            raise self.failure(f"did not print {text!r} within {timeout_s:g} s")
        return line

    def signal(self, number: int) -> None:
        """Signal the process alone."""
        self._popen.send_signal(number)

    def wait(self, *, timeout_s: float) -> int:
        try:
            status = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not end within {timeout_s:g} s") from None
        self._clear_group()
        return status

    def stop(self, *, timeout_s: float = 30.0) -> int:
        if self.running:
            self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout_s=timeout_s)
        finally:
            self._clear_group()

    def kill(self) -> None:
        self._clear_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _clear_group(self) -> None:
        """Kill the rest of the process group, reap the process and finish the log."""
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
