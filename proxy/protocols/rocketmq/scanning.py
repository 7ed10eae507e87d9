"""The compiled scan, the package ``sluice_scan`` (folder ``scan``): all plain frames of a chunk are read in one call.

*Plain* frames are single sends and send-backs whose headers can be read beyond any doubt. The first frame that is not
plain ends a scan and is read by ``header``, with all the care that takes, so that a scan never has to be lenient. What
it took is in columns: no object is made for a frame that nobody looks at. ``sluice_scan.pyi`` describes its types.

Where it is not installed, or the options say ``python``, every frame is read by ``header``.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from proxy.protocols.rocketmq.forbidden import INTERNAL_PREFIX, INTERNAL_TOPICS
from proxy.protocols.rocketmq.pending import MAX_PENDING
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

if TYPE_CHECKING:
    from sluice_scan import Opaques, Scanner

ScanName = Literal["auto", "compiled", "python"]

#: Keys (resource and producer group) remembered by a scanner. What is kept by name is kept for each connection.
MAX_KEYS: Final = 1024
#: A scan ends when it has taken frames of so many keys.
MAX_RUNS: Final = 256
#: Steps, in either direction, are frames looked at one by one, and keys of a scan: each takes some microseconds. Up to
#: so many in a chunk, much may be read at once.
FEW_STEPS: Final = 64

#: The module of the compiled scan, and which of its interfaces this is made for.
_MODULE: Final = "sluice_scan"
_INTERFACE: Final = 3
_OTHER_VERSION: Final = (
    "the compiled scan that is installed belongs to another version of Sluice: build it again from the folder scan"
)


class Scan(NamedTuple):
    """The compiled scan.

    Attributes:
        version: of its package.
        opaques: makes the set of what is owed on one connection.
        scanner: makes the scanner of one connection, which notes in that set.
    """

    version: str
    opaques: "Callable[[], Opaques]"
    scanner: "Callable[[Opaques], Scanner]"


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


def find(module_name: str = _MODULE) -> tuple[Scan | None, str]:
    """Return the compiled scan, or None and why an installed one cannot be used; that is empty if there is none."""
    try:
        module = import_module(module_name)
    except ImportError:
        return None, ""
    if getattr(module, "INTERFACE", None) != _INTERFACE:
        return None, _OTHER_VERSION
    table = make_table(module)
    compiled = Scan(
        version("sluice-scan"),
        lambda: module.Opaques(MAX_PENDING),
        lambda owed: module.Scanner(table, owed, MAX_KEYS, MAX_RUNS),
    )
    return compiled, ""


COMPILED, _UNUSABLE = find()
"""The compiled scan; None if none of this version is installed."""


def scan_named(name: ScanName) -> Scan | None:
    """Return the scan that the options name; None reads frame by frame."""
    return None if name == "python" else COMPILED


def read_by(name: ScanName, unusable: str = _UNUSABLE) -> str:
    """Return what reads the frames, for people; ``unusable`` says why an installed scan is not it."""
    scan = scan_named(name)
    if scan is not None:
        return f"the compiled scan {scan.version}"
    return f"Python, frame by frame; {unusable}" if unusable and name == "auto" else "Python, frame by frame"
