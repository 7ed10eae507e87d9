"""What the demo needs of the machine, looked at before anything is started: Java, RocketMQ's jars and ports."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from admin.common.errors import StartError
from admin.config.addresses import DEFAULT_ADMIN, parse_endpoint
from admin.demo.rocketmq.broker import ADVERTISED_HOST, BROKER_HOST, HA_OFFSET, VIP_OFFSET, Ports

_JAVA: Final = 17
_JAR: Final = "rocketmq-example-*.jar"
_USUAL_BROKER: Final = 10911
_USUAL_NAME_SERVER: Final = 9876
#: Where other ports are tried, and how far apart, below those that outgoing connections get.
_OTHER_PORTS: Final = range(15_000, 32_000, 10)
_PREFIX: Final = "sluice-demo-rocketmq-"


def check(jars: Path) -> None:
    """Look whether all is here.

    Raises:
        StartError: with a line for each thing that is missing, and how to get it.
    """
    problems = [problem for problem in (_java(), _jars(jars)) if problem]
    if problems:
        raise StartError(problems)


def choose_ports() -> tuple[Ports, list[str]]:
    """Return the usual ports, or others for those that are taken, and what to say of these.

    Raises:
        StartError: there are none.
    """
    wanted = {
        "RocketMQ's name server": (_USUAL_NAME_SERVER, [(BROKER_HOST, 0)]),
        "the broker": (
            _USUAL_BROKER,
            # Where replicas come in it listens on all addresses, whatever bindAddress says.
            [
                *((host, at) for host in (BROKER_HOST, ADVERTISED_HOST) for at in (0, VIP_OFFSET)),
                ("0.0.0.0", HA_OFFSET),
            ],
        ),
        "Sluice's page": (parse_endpoint(DEFAULT_ADMIN).port, [(BROKER_HOST, 0)]),
    }
    chosen: list[int] = []
    notes = []
    for what, (usual, places) in wanted.items():
        port = next(
            (
                port
                for port in (usual, *_OTHER_PORTS)
                if port not in chosen and all(_free(host, port + at) for host, at in places)
            ),
            None,
        )
        if port is None:
            raise StartError(f"{what}: no port of this machine is free; end what listens on {usual}")
        if port != usual:
            notes.append(f"port {usual} or one beside it is taken, so {what} has {port}")
        chosen.append(port)
    return Ports(*chosen), notes


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder for everything that is thrown away at the end; also throws away what a killed demo left."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _java() -> str:
    install = "install it, e.g. by apt-get install default-jdk-headless"
    java = shutil.which("java")
    if java is None:
        return f"java is not on PATH: RocketMQ needs Java {_JAVA} or newer; {install}"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr  # noqa: S603 - a program of the system
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} cannot be run: {error}"
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _JAVA:
        found = version[1] if version else "of an unknown version"
        return f"{java} is Java {found}: RocketMQ needs {_JAVA} or newer; {install}"
    return ""


def _jars(jars: Path) -> str:
    return "" if any(jars.glob(_JAR)) else f"{jars} has no {_JAR}: make demo-rocketmq fetches it (Maven Central)"


def _free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
