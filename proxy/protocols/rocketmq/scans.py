"""Which scan is in use: the compiled one if it is installed, else the one in Python, unless the options say which."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple

from proxy.protocols.rocketmq import python_scan
from proxy.protocols.rocketmq.forbidden import INTERNAL_PREFIX, INTERNAL_TOPICS
from proxy.protocols.rocketmq.pending import MAX_PENDING
from proxy.protocols.rocketmq.scanning import MAX_KEYS, MAX_RUNS, Opaques, Scanner
from proxy.protocols.rocketmq.wire.codes import (
    KIND_RETRY_GROUP,
    KIND_TOPIC,
    MAX_NAME_CHARS,
    PLAIN_SYS_FLAGS,
    RETRY_PREFIX,
    SEND_BACK_FIELDS,
    SENDS,
)
from proxy.protocols.rocketmq.wire.frame import MAX_HEADER_BYTES

ScanName = Literal["auto", "compiled", "python"]

#: The module of the compiled scan, and which of its interfaces this is made for.
_MODULE: Final = "sluice_scan"
_INTERFACE: Final = 3


class Scan(NamedTuple):
    """One implementation.

    Attributes:
        name: as the options call it.
        version: of its package; empty for the one in Python.
        opaques: makes the set of what is owed on one connection.
        scanner: makes the scanner of one connection, which notes in that set.
        least_bytes: smaller chunks are read faster frame by frame.
        instead: why it is not the other one; empty if that is not installed.
    """

    name: ScanName
    version: str
    opaques: Callable[[], Opaques]
    scanner: Callable[[Any], Scanner]
    least_bytes: int
    instead: str = ""

    def __str__(self) -> str:
        """Return what people read: the compiled scan 0.1.0, the Python scan."""
        if self.version:
            return f"the compiled scan {self.version}"
        return f"the Python scan{self.instead and f'; {self.instead}'}"


PYTHON: Final = Scan("python", "", lambda: python_scan.Opaques(MAX_PENDING), python_scan.Scanner, 8192)
_OTHER_VERSION: Final = (
    "the compiled scan that is installed belongs to another version of Sluice: build it again from the folder scan"
)


def make_table(module: Any) -> Any:
    """Return the table of a compiled scan: what its scanners share."""
    limitable = {
        code: (KIND_RETRY_GROUP if fields is SEND_BACK_FIELDS else KIND_TOPIC, *fields)
        for code, fields in SENDS.items()
    }
    return module.Table(
        limitable,
        MAX_NAME_CHARS,
        RETRY_PREFIX,
        KIND_RETRY_GROUP,
        MAX_HEADER_BYTES,
        PLAIN_SYS_FLAGS,
        sorted(INTERNAL_TOPICS),
        INTERNAL_PREFIX,
    )


def find(module_name: str = _MODULE) -> tuple[Scan | None, Scan]:
    """Return the compiled scan, or None if there is none of this version; and the one to be used if nobody chooses."""
    try:
        module = import_module(module_name)
    except ImportError:
        return None, PYTHON
    if getattr(module, "INTERFACE", None) != _INTERFACE:
        return None, PYTHON._replace(instead=_OTHER_VERSION)
    table = make_table(module)
    compiled = Scan(
        "compiled",
        version("sluice-scan"),
        lambda: module.Opaques(MAX_PENDING),
        lambda owed: module.Scanner(table, owed, MAX_KEYS, MAX_RUNS),
        0,
    )
    return compiled, compiled


COMPILED, _AUTO = find()
"""The compiled one is None if none of this version is installed."""


def scan_named(name: ScanName) -> Scan | None:
    """Return the scan that the options name; None for a compiled one that is not installed."""
    if name == "python":
        return PYTHON
    return _AUTO if name == "auto" else COMPILED
