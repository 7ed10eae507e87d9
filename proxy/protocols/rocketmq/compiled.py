"""How a connection is lent to the compiled part; see ``RocketMQSession.lend``."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from limiter.compiled import COMPILED
from proxy.deciding.judge import Judge
from proxy.protocols.options import ScanName, scans
from proxy.protocols.rocketmq.answers import LONG_POLLS, MAX_PENDING, NOTHING_TIMED
from proxy.protocols.rocketmq.refusals import INTERNAL_PREFIX, INTERNAL_TOPICS, around_opaque
from proxy.protocols.rocketmq.wire.codes import (
    HEARD,
    KIND_RETRY_GROUP,
    KIND_SUBSCRIPTION,
    KIND_TOPIC,
    LIMITABLE,
    MAX_NAME_CHARS,
    PLAIN_SYS_FLAGS,
    RETRY_PREFIX,
    SEND_BACK_FIELDS,
    SENDS,
    RequestCode,
)
from proxy.protocols.rocketmq.wire.frame import MAX_HEADER_BYTES

if TYPE_CHECKING:
    from sluice_native import Lent, Resources, Scanner

# Keys (resource and producer group) remembered per connection.
MAX_KEYS: Final = 1024


def make_table(module: Any) -> Any:
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
        sorted({*LIMITABLE, *HEARD, RequestCode.CHECK_TRANSACTION_STATE.value}),
        sorted(LONG_POLLS),
    )


_TABLE: Final = None if COMPILED is None else make_table(COMPILED)


def open_scanner(name: ScanName, resources: "Resources | None") -> "Scanner | None":
    """Return the scanner of one connection, with the set of requests owed there; None reads with Python alone."""
    if COMPILED is None or resources is None or not scans(name):
        return None
    scanner: Scanner = COMPILED.Scanner(_TABLE, COMPILED.Opaques(MAX_PENDING), resources, MAX_KEYS)
    return scanner


def lend(
    judge: Judge,
    scanner: "Scanner",
    max_frame_bytes: int,
    limits_kind: Callable[[str], bool],
    *,
    client: tuple[int, bool] = (0, False),
    broker: int = 0,
    polls: Sequence[int] = (),
    timed: tuple[int | None, int] = NOTHING_TIMED,
    kept: bytes = b"",
    is_new: bool = False,
) -> "Lent":
    """Return what reads a connection, by default from its first byte on, for as long as no subscriptions are limited.

    The optional arguments are those of ``sluice_native.lend_rocketmq``.
    """
    assert COMPILED is not None  # noqa: S101 - it has made the scanner
    judge.stays = lambda: not limits_kind(KIND_SUBSCRIPTION)
    state = client, broker, polls, timed, kept, is_new
    lent: Lent = COMPILED.lend_rocketmq(judge, scanner, around_opaque, max_frame_bytes - 4, MAX_PENDING, *state)
    return lent
