"""The scan of the compiled part, ``sluice_native`` (folder ``native``): reads all plain frames of a chunk in one call.

*Plain* frames are single sends and send-backs whose headers can be read beyond any doubt. The first frame that is not
plain ends a scan and is read by ``header``, with all the care that takes, so that a scan never has to be lenient. What
it took is in columns: no object is made for a frame that nobody looks at. ``sluice_native.pyi`` describes its types.

Where it is not installed, or the options say ``python``, every frame is read by ``header``.
"""

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limiter.compiled import COMPILED
from proxy.protocols.options import ScanName
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
    from sluice_native import Opaques, Resources, Scanner

#: Keys (resource and producer group) remembered by a scanner. What is kept by name is kept for each connection.
MAX_KEYS: Final = 1024
#: Steps, in either direction, are frames looked at one by one, and keys of a scan that are decided one by one: each
#: takes some microseconds. Up to so many in a chunk, much may be read at once.
FEW_STEPS: Final = 64
#: A chunk with frames of more keys is decided in parts: how long that takes shows only when it is done.
MAX_RUNS: Final = 256


class Scan(NamedTuple):
    """What the compiled part reads with.

    Attributes:
        opaques: makes the set of what is owed on one connection.
        scanner: makes the scanner of one connection, which notes in that set, and finds there what requests are for.
    """

    opaques: "Callable[[], Opaques]"
    scanner: "Callable[[Opaques, Resources], Scanner]"


def make_table(module: Any) -> Any:
    """Return what all scanners share."""
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


def _scan(module: ModuleType) -> Scan:
    table = make_table(module)
    return Scan(
        lambda: module.Opaques(MAX_PENDING), lambda owed, resources: module.Scanner(table, owed, resources, MAX_KEYS)
    )


SCAN: Final = None if COMPILED is None else _scan(COMPILED)
"""What the compiled part reads with; None if none of this version is installed."""


def scan_named(name: ScanName) -> Scan | None:
    """Return the scan that the options name; None reads frame by frame."""
    return None if name == "python" else SCAN
