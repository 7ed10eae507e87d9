"""Lends a connection to the compiled extension. See ``RocketMQSession.lend``."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from limiter.compiled import COMPILED
from proxy.deciding.judge import Judge
from proxy.protocols.options import ScanName, scans
from proxy.protocols.rocketmq.answers import MAX_PENDING, NOTHING_TIMED
from proxy.protocols.rocketmq.refusals import around_opaque
from proxy.protocols.rocketmq.wire.codes import KIND_SUBSCRIPTION

if TYPE_CHECKING:
    from sluice_native import Lent, Requests, Resources

# Maximum number of (resource, producer group) pairs per connection.
MAX_KEYS: Final = 1024


def open_requests(name: ScanName, resources: "Resources | None") -> "Requests | None":
    if COMPILED is None or resources is None or not scans(name):
        return None
    requests: Requests = COMPILED.Requests(resources, MAX_KEYS, MAX_PENDING)
    return requests


def lend(
    judge: Judge,
    requests: "Requests",
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
    """Lend the connection to the compiled extension, which returns it as soon as a rule limits subscriptions."""
    assert COMPILED is not None  # noqa: S101 - it has made these
    judge.stays = lambda: not limits_kind(KIND_SUBSCRIPTION)
    state = client, broker, polls, timed, kept, is_new
    lent: Lent = COMPILED.lend_rocketmq(judge, requests, around_opaque, max_frame_bytes - 4, MAX_PENDING, *state)
    return lent
