"""Where the project and its real parts lie, and what to say when a part is missing."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VENV_BIN = ROOT / ".venv" / "bin"
PARTS = ROOT / ".parts"
CLIENTS = ROOT / "tests" / "integration" / "clients"
ROCKETMQ = ROOT / "tests" / "integration" / "rocketmq"


class MissingPartError(RuntimeError):
    """A program or library that the tests run is not here; the message says how to get it."""


def required(path: Path, command: str) -> Path:
    """Return ``path``, which ``command`` makes.

    Raises:
        MissingPartError: it does not exist.
    """
    if not path.exists():
        raise MissingPartError(f"{path} is missing: run `{command}`")
    return path


def program(name: str) -> str:
    """Return the full path of a program of the system.

    Raises:
        MissingPartError: it is not on PATH.
    """
    found = shutil.which(name)
    if found is None:
        raise MissingPartError(f"{name} is not on PATH: run `make setup`")
    return found


def rocketmq_classpath() -> str:
    """Return the class path of RocketMQ's broker, tools and Java client, and of what they use (Guava among it).

    Raises:
        MissingPartError: the jars are not here.
    """
    required(PARTS / "rocketmq" / ".stamp", "make parts")
    return f"{PARTS / 'rocketmq' / 'lib'}/*"
