"""Which scan is in use: the compiled one if it is installed, else the one in Python, unless the options say which."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple

from proxy.protocols.rocketmq import python_scan
from proxy.protocols.rocketmq.codes import (
    KIND_RETRY_GROUP,
    KIND_TOPIC,
    LIMITABLE,
    MAX_NAME_CHARS,
    RETRY_PREFIX,
    SEND_BACK_FIELDS,
)
from proxy.protocols.rocketmq.frame import MAX_HEADER_BYTES
from proxy.protocols.rocketmq.owed import MAX_OWED
from proxy.protocols.rocketmq.scanning import MAX_KEYS, Opaques, Scanner

ScanName = Literal["auto", "compiled", "python"]

#: The module of the compiled scan.
_MODULE: Final = "sluice_scan"


class Scan(NamedTuple):
    """One implementation.

    Attributes:
        name: as the options call it.
        version: of its package; empty for the one in Python.
        opaques: makes the set of what is owed on one connection.
        scanner: makes the scanner of one connection, which notes in that set.
        least_bytes: smaller chunks are read faster frame by frame.
    """

    name: ScanName
    version: str
    opaques: Callable[[], Opaques]
    scanner: Callable[[Any], Scanner]
    least_bytes: int

    def __str__(self) -> str:
        """Return what people read: the compiled scan 0.1.0, the Python scan."""
        return f"the compiled scan {self.version}" if self.version else "the Python scan"


PYTHON: Final = Scan("python", "", lambda: python_scan.Opaques(MAX_OWED), python_scan.Scanner, 8192)


def _compiled() -> Scan | None:
    """Return the compiled scan, or None if it is not installed."""
    try:
        module = import_module(_MODULE)
    except ImportError:
        return None
    limitable = {
        code: (KIND_RETRY_GROUP if fields is SEND_BACK_FIELDS else KIND_TOPIC, *fields)
        for code, fields in LIMITABLE.items()
    }
    try:
        table = module.Table(limitable, MAX_NAME_CHARS, RETRY_PREFIX, KIND_RETRY_GROUP, MAX_HEADER_BYTES)
    except (AttributeError, TypeError):
        return None  # of another version, made for other words
    return Scan(
        "compiled",
        version("sluice-scan"),
        lambda: module.Opaques(MAX_OWED),
        lambda owed: module.Scanner(table, owed, MAX_KEYS),
        0,
    )


COMPILED: Final = _compiled()
"""None if it is not installed."""


def scan_named(name: ScanName) -> Scan | None:
    """Return the scan that the options name; None for a compiled one that is not installed."""
    if name == "python":
        return PYTHON
    return COMPILED or (PYTHON if name == "auto" else None)
