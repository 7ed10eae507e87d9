"""Runs the client programs in `clients/`: real, unchanged clients that know only the name server or broker."""

import atexit
import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.java import compiled_java
from harness.paths import (
    AMQP_CLIENTS,
    AMQP_ONE_CLIENTS,
    CLIENTS,
    GRPC_CLIENTS,
    PARTS,
    MissingPartError,
    amqp_one_classpath,
    grpc_clients,
    program,
    rabbitmq_classpath,
    required,
    rocketmq_classpath,
)
from harness.process import ManagedProcess

# A hanging client is a failure. Beyond its own seconds, none takes a quarter of this on a slow machine.
_GRACE_S = 180.0


class ClientFailedError(RuntimeError):
    """A client program ended with an error, hung, or printed no report."""


# None of them runs long enough for the second compiler.
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def java(source: str, *arguments: str, home: Path, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a one-file Java client. ``home`` is for its logs."""
    file = CLIENTS / source
    return [
        program("java"),
        *_JAVA,
        *(f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}"),
        *options,
        *("-cp", f"{compiled_java(file.parent)}:{rocketmq_classpath()}", file.stem),
        *arguments,
    ]


def cpp(source: str, *arguments: str) -> list[str]:
    required(PARTS / "python" / ".stamp", "make parts")
    return [str(PARTS / "python" / "bin" / "python"), str(CLIENTS / source), *arguments]


def node(source: str, *arguments: str) -> list[str]:
    required(PARTS / "node" / ".stamp", "make parts")
    return [program("node"), str(CLIENTS / source), *arguments]


def amqp_python(source: str, *arguments: str) -> list[str]:
    required(PARTS / "python" / ".stamp", "make parts")
    return [str(PARTS / "python" / "bin" / "python"), str(AMQP_CLIENTS / source), *arguments]


def amqp_node(source: str, *arguments: str) -> list[str]:
    required(PARTS / "node" / ".stamp", "make parts")
    return [program("node"), str(AMQP_CLIENTS / source), *arguments]


def amqp_java(source: str, *arguments: str) -> list[str]:
    file = AMQP_CLIENTS / source
    classes = compiled_java(file.parent, rabbitmq_classpath())
    return [program("java"), *_JAVA, "-cp", f"{classes}:{rabbitmq_classpath()}", file.stem, *arguments]


def amqp_one_client(name: str) -> list[str]:
    """Return the command of a client for AMQP 1.0. The README beside the clients has its arguments."""
    if name == "rhea":
        required(PARTS / "node" / ".stamp", "make parts")
        return [program("node"), str(AMQP_ONE_CLIENTS / "rhea_client.js")]
    if name == "java":
        classes = compiled_java(AMQP_ONE_CLIENTS, amqp_one_classpath())
        return [program("java"), *_JAVA, "-cp", f"{classes}:{amqp_one_classpath()}", "AmqpOneClient"]
    if name == "go":
        return _built_go(AMQP_ONE_CLIENTS / "go")
    required(PARTS / "python" / ".stamp", "make parts")
    return [str(PARTS / "python" / "bin" / "python"), str(AMQP_ONE_CLIENTS / f"{name}_client.py")]


def amqp_go(package: str = ".") -> list[str]:
    """Build a client of amqp091-go, once per test run, and return its command."""
    return _built_go(AMQP_CLIENTS / "go", package)


@functools.cache
def _built_go(sources: Path, package: str = ".") -> list[str]:
    compiler = shutil.which("go")
    if compiler is None:
        raise MissingPartError("go is not on PATH: install Go 1.21 or newer, see go.dev/doc/install")
    folder = Path(tempfile.mkdtemp(prefix="sluice-tests-go-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = folder / "client"
    subprocess.run([compiler, "build", "-o", str(built), f"./{package}"], check=True, cwd=sources)
    return [str(built)]


def grpc_client(language: str, source: str, *arguments: str, home: Path) -> list[str]:
    """Return the command of a client of RocketMQ 5: ``java``, ``python`` or ``node``. ``home`` is for its logs."""
    parts = grpc_clients()
    if language == "java":
        classpath = f"{parts / 'lib'}/*"
        classes = compiled_java(GRPC_CLIENTS, classpath)
        return [program("java"), *_JAVA, f"-Duser.home={home}", "-cp", f"{classes}:{classpath}", source, *arguments]
    interpreter = str(parts / "python" / "bin" / "python") if language == "python" else program("node")
    return [interpreter, str(GRPC_CLIENTS / source), *arguments]


def start_client(command: Sequence[str], *, home: Path) -> ManagedProcess:
    """Start a client program and wait until it has printed ``started``."""
    home.mkdir(parents=True, exist_ok=True)
    process = ManagedProcess(Path(command[1]).name, command, log=home / "client.log", env=_environment(home), cwd=home)
    try:
        process.wait_for_line("started", timeout_s=_GRACE_S)
    except BaseException:
        process.stop()
        raise
    return process


def run_client(command: Sequence[str], *, home: Path, seconds: float, env: Mapping[str, str] | None = None) -> Any:
    """Run a client program to its end. Return the report of its last line."""
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
            env={**os.environ, **_environment(home), **(env or {})},
        )
    except subprocess.TimeoutExpired as expired:
        raise ClientFailedError(
            f"{command[-1]}: no end after {expired.timeout:g} s: {expired.stdout!r}\n{expired.stderr!r}"
        ) from None
    report = done.stdout.strip().rpartition("\n")[2]
    try:
        if done.returncode == 0:
            return json.loads(report)
    except ValueError:
        pass
    raise ClientFailedError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def _environment(home: Path) -> dict[str, str]:
    modules = (PARTS / "node" / "node_modules", PARTS / "grpc-clients" / "node" / "node_modules")
    return {"HOME": str(home), "NODE_PATH": ":".join(map(str, modules))}
