"""Paths of the project and its external parts, and errors for missing parts."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VENV_BIN = ROOT / ".venv" / "bin"
PARTS = ROOT / ".parts"
CLIENTS = ROOT / "tests" / "integration" / "clients"
AMQP_CLIENTS = CLIENTS / "amqp"
AMQP_ONE_CLIENTS = CLIENTS / "amqp10"
GRPC_CLIENTS = CLIENTS / "grpc"
ARTEMIS = ROOT / "tests" / "integration" / "artemis"
ROCKETMQ = ROOT / "tests" / "integration" / "rocketmq"
_RABBITMQ = Path("/usr/lib/rabbitmq/bin")


class MissingPartError(RuntimeError):
    """A program or library that the tests run is missing. The message says how to get it."""


def required(path: Path, command: str) -> Path:
    """Return ``path``, which ``command`` makes."""
    if not path.exists():
        raise MissingPartError(f"{path} is missing: run `{command}`")
    return path


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingPartError(f"{name} is not on PATH: run `make setup`")
    return found


def rocketmq_classpath() -> str:
    """Return the class path of RocketMQ's broker, tools and Java client, and of their dependencies (with Guava)."""
    required(PARTS / "rocketmq" / ".stamp", "make parts")
    return f"{PARTS / 'rocketmq' / 'lib'}/*"


def rocketmq_proxy_classpath() -> str:
    required(PARTS / "rocketmq-proxy" / ".stamp", "make parts")
    return f"{PARTS / 'rocketmq-proxy' / 'lib'}/*"


def grpc_clients() -> Path:
    return required(PARTS / "grpc-clients" / ".stamp", "make parts").parent


def rabbitmq_program(name: str, root: Path | None = None) -> str:
    """Return one of RabbitMQ's programs, but not the one on PATH, which changes the user."""
    if root is None:
        return str(required(_RABBITMQ / name, "make parts` or `apt-get install rabbitmq-server"))
    required(root / (_RABBITMQ / name).relative_to("/"), "make rabbitmq4")
    return str(_RABBITMQ / name)


def rabbitmq_classpath() -> str:
    """Return the class path of RabbitMQ's Java client, its load generator and their dependencies (with Gson)."""
    required(PARTS / "rabbitmq" / ".stamp", "make parts")
    return f"{PARTS / 'rabbitmq' / 'lib'}/*"


def artemis_classpath() -> str:
    required(PARTS / "artemis" / ".stamp", "make parts")
    return f"{PARTS / 'artemis' / 'lib'}/*"


def amqp_one_classpath() -> str:
    required(PARTS / "amqp10" / ".stamp", "make parts")
    return f"{PARTS / 'amqp10' / 'lib'}/*"
