"""Objects that all connections in a data path share."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
import trio

from limiter.waiting.holding import Bounds
from proxy.common.buffers import BufferPool
from proxy.common.log_rate import LogRate
from proxy.deciding.batch import ConnectionInfo, Side
from proxy.deciding.counting import Tally
from proxy.deciding.pipeline import Pipeline
from proxy.flow.broker_signals import BrokerSignals
from proxy.flow.credit import DEFAULT_CREDIT, Credit, Stage, State
from proxy.net.limit_commands import LimitCommands
from proxy.net.reactor import Reactor
from proxy.net.sockets import ReadAhead
from proxy.net.turn import Lending
from proxy.protocols.base import NO_TERMS, Advance, TermsOf
from proxy.spool.spool import Spool
from proxy.stats.timing import Timings

if TYPE_CHECKING:
    from sluice_native import Resources

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Services:
    """Objects that all connections share.

    Attributes:
        spool: None if there is no spool. Set before the first connection.
        credit: The credit that all stages except the store grant.
        decoding: The stage for data that takes multiple turns to decode.
        limiter: The stage for requests in handlers' lanes.
        lending: None if the compiled extension is not installed.
        waited_ns: Total time that closed connections spent in each state except running.
        lost_messages: Messages lost on each listener although their clients assume that they were delivered.
    """

    pipeline: Pipeline
    tally: Tally
    buffers: BufferPool
    now_ns: Callable[[], int]
    bytes_read: dict[Side, int]
    limits_kind: Callable[[str], bool]
    commands: LimitCommands
    timings: Timings
    reactor: Reactor
    limiting: Callable[[], bool] = lambda: True
    resources: "Resources | None" = None
    lending: Lending | None = None
    spool: Spool | None = None
    credit: Credit = DEFAULT_CREDIT
    decoding: Stage = field(default_factory=lambda: Stage("channel", "decoding"))
    limiter: Stage = field(default_factory=lambda: Stage("resource", "limiter"))
    waited_ns: Counter[State] = field(default_factory=Counter)
    ahead: ReadAhead = field(default_factory=ReadAhead)
    terms: TermsOf = lambda *_: NO_TERMS
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False
    rules_version: Callable[[], int] = lambda: 0
    held_bounds: Callable[[], Bounds] = Bounds
    log_rate: LogRate = field(default_factory=LogRate)
    signals: defaultdict[str, BrokerSignals] = field(default_factory=lambda: defaultdict(BrokerSignals))
    lost_messages: Counter[str] = field(default_factory=Counter)
    lost_bytes: Counter[str] = field(default_factory=Counter)

    def count_lost(self, info: ConnectionInfo, messages: int, size_bytes: int, unread_bytes: int) -> None:
        self.lost_messages[info.listener] += messages
        self.lost_bytes[info.listener] += size_bytes + unread_bytes
        not_logged = self.log_rate.take((info.listener, "lost"), trio.current_time())
        if not_logged is not None:
            _log.warning(
                "lost messages that the client assumes were delivered",
                peer=info.peer,
                listener=info.listener,
                messages=messages,
                bytes=size_bytes,
                unread_bytes=unread_bytes,
                not_logged=not_logged,
            )

    def log_failed(self, info: ConnectionInfo, error: Exception) -> None:
        not_logged = self.log_rate.take((info.listener, type(error)), trio.current_time())
        if not_logged is not None:
            _log.error(
                "connection failed", peer=info.peer, listener=info.listener, not_logged=not_logged, exc_info=error
            )
