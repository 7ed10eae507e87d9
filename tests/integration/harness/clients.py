"""Runs the client programs in `clients/`: real, unchanged clients, each told only where the name server is."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.paths import CLIENTS, PARTS, program, required, rocketmq_classpath

# A client that hangs is a failure; none of them takes a quarter of this on a slow machine besides its own seconds.
_GRACE_S = 180.0


class ClientFailedError(RuntimeError):
    """A client program ended with an error, hung, or printed no report."""


def java(source: str, *arguments: str, home: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a one-file Java client; ``home`` is where it puts its logs."""
    return [
        program("java"),
        *("-Xmx256m", f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}"),
        *options,
        *("-cp", rocketmq_classpath(), str(CLIENTS / source)),
        *arguments,
    ]


def cpp(source: str, *arguments: str) -> list[str]:
    """Return the command of a client of PyPI's rocketmq, which bundles the C++ client."""
    required(PARTS / "python" / ".stamp", "make parts")
    return [str(PARTS / "python" / "bin" / "python"), str(CLIENTS / source), *arguments]


def node(source: str, *arguments: str) -> list[str]:
    """Return the command of a client of npm's ali-ons."""
    required(PARTS / "node" / ".stamp", "make parts")
    return [program("node"), str(CLIENTS / source), *arguments]


def run_client(command: Sequence[str], *, home: Path, seconds: float, env: Mapping[str, str] | None = None) -> Any:
    """Run a client program to its end and return the report it prints as its last line.

    Args:
        command: from `java`, `cpp` or `node`.
        home: the directory it runs in, and its home.
        seconds: how long it sends or waits by its own clock.
        env: variables on top of the environment of the tests.

    Raises:
        ClientFailedError: it failed or did not end in time; the message shows its output.
    """
    home.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [program("setpriv"), "--pdeathsig", "KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds + _GRACE_S,
            check=False,
            cwd=home,
            env={
                **os.environ,
                "HOME": str(home),
                "NODE_PATH": str(PARTS / "node" / "node_modules"),
                **(env or {}),
            },
        )
    except subprocess.TimeoutExpired as expired:
        raise ClientFailedError(f"{command[-1]}: no end after {expired.timeout:g} s: {expired.stdout!r}") from None
    report = done.stdout.strip().rpartition("\n")[2]
    try:
        if done.returncode == 0:
            return json.loads(report)
    except ValueError:
        pass
    raise ClientFailedError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
