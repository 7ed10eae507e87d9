"""What the demos need of the machine, looked at before anything is started: Java, ports, a folder."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from admin.common.errors import StartError
from admin.config.addresses import DEFAULT_ADMIN, parse_endpoint
from admin.demo.real.broker import BROKER_HOST

_JAVA: Final = 17
_PAGE: Final = ("Sluice's page", (parse_endpoint(DEFAULT_ADMIN).port, ((BROKER_HOST, 0),)))
#: Where other ports are tried, and how far apart, below those that outgoing connections get.
_OTHER_PORTS: Final = range(15_000, 32_000, 10)


def choose_ports(wanted: Mapping[str, tuple[int, Sequence[tuple[str, int]]]]) -> tuple[list[int], list[str]]:
    """Return the usual ports, or others for those that are taken, and what to say of these; Sluice's page has the last.

    Args:
        wanted: as ``RealBroker.ports``.

    Raises:
        StartError: there are none.
    """
    chosen: list[int] = []
    notes = []
    for what, (usual, places) in (*wanted.items(), _PAGE):
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
    return chosen, notes


def java(classpath: str, home: Path, *options: str) -> list[str]:
    """Return a command line up to the name of the class that is run; ``home`` is where it may leave files."""
    # Quickly up on few cores, and quickly gone.
    fast = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    # Nor does it leave anything outside its folder when it is killed.
    here = ("-XX:-UsePerfData", f"-Duser.home={home}", f"-Djava.io.tmpdir={home}")
    return ["java", *fast, *here, *options, "-cp", f"{home}:{classpath}"]


def java_problem(name: str) -> str:
    """Say what is wrong with this machine's Java for a broker; empty if nothing is."""
    install = "install it, e.g. by apt-get install default-jdk-headless"
    java = shutil.which("java")
    if java is None:
        return f"java is not on PATH: {name} needs Java {_JAVA} or newer; {install}"
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr  # noqa: S603 - a program of the system
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} cannot be run: {error}"
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < _JAVA:
        found = version[1] if version else "of an unknown version"
        return f"{java} is Java {found}: {name} needs {_JAVA} or newer; {install}"
    return ""


@contextmanager
def scratch(program: str) -> Iterator[Path]:
    """Make a folder for everything that is thrown away at the end; also throws away what a killed demo left."""
    prefix = f"sluice-{program}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        owner = left.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
