"""A program that the demo starts: its output goes to a file, and it never outlives the demo."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from admin.common.errors import StartError

_POLL_S: Final = 0.05
#: So much of its output an error shows.
_TAIL_LINES: Final = 12
#: Has the kernel kill the program that follows when the demo ends, however that ends; if it has ended before the kernel
#: knew, the program is not started.
_NO_ORPHAN: Final = (
    "/usr/bin/setpriv",
    "--pdeathsig",
    "KILL",
    "--",
    "/bin/sh",
    "-c",
    '[ "$PPID" = "$0" ] && exec "$@"',
)
#: What Java writes between the first line of an error and the next one, and logback about itself.
_NOISE: Final = ("\tat ", "\t... ", "|-INFO")


class Child:
    """One running program, in a process group of its own so that Ctrl-C reaches the demo alone.

    Args:
        name: what messages call it.
        command: the program and its arguments.
        folder: where it runs and where its output goes, ``NAME.log``.
        env: variables on top of the demo's own.

    Attributes:
        ending: it was told to end.

    Raises:
        StartError: the program is not there.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = folder / f"{name.replace(' ', '-')}.log"
        with self.log.open("wb") as output:
            try:
                # By this thread and no worker of trio's: the kernel kills it when the thread that started it ends.
                self._popen = subprocess.Popen(  # noqa: S603 - the demo's own command lines, no shell
                    [*_NO_ORPHAN, str(os.getpid()), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=folder,
                    env={**os.environ, **(env or {})},
                )
            except OSError as error:
                raise StartError(f"{name} cannot be started: {error.filename}: {error.strerror}") from None
        self.pid = self._popen.pid
        self.ending = False

    def output(self) -> str:
        """Return what it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    async def wait_for_line(self, text: str, timeout_s: float) -> None:
        """Wait until it has printed a text.

        Raises:
            StartError: it did not within so many seconds.
        """
        with trio.move_on_after(timeout_s):
            while text not in self.output():  # noqa: ASYNC110 - a file tells nobody
                await trio.sleep(_POLL_S)
            return
        raise StartError(self.problem(f"was not ready within {timeout_s:g} s"))

    async def ended(self) -> int:
        """Wait for its end and return its exit status, negative if it was a signal."""
        with suppress(ProcessLookupError):
            watched = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(watched)
            finally:
                os.close(watched)
        return self._popen.wait()

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, give it so many seconds for that, and kill what is left."""
        self.ending = True
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            with trio.move_on_after(grace_s):
                await self.ended()
        self.kill()

    def kill(self) -> None:
        """End it, and all that it has started, at once."""
        self.ending = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def problem(self, what: str) -> list[str]:
        """Return lines for an error: what it did, and the last lines that it printed."""
        printed = [line for line in self.output().splitlines() if line.strip() and not any(n in line for n in _NOISE)]
        return [f"{self.name} {what}; its last words:", *(f"    {line}" for line in printed[-_TAIL_LINES:])]
