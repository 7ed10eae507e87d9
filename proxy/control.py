"""The only interface between the data path and the admin side. It exchanges plain data."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from limiter.counting.rejections import TrafficSecond
from limiter.deciding.limits import SavedLimits, Spent
from limiter.rules.rule_set import RuleSet
from proxy.spool.figures import SpoolState
from proxy.stats.flow import Flow, Purged
from proxy.stats.question import Explanation, Question
from proxy.stats.snapshot import (
    AdaptiveState,
    ConnectionState,
    FleetState,
    ListenerState,
    ResourceCounts,
    ResourceState,
    Snapshot,
)

LimitCommandVerb = Literal["view_limits", "update_limit"]


class LimitCommand(msgspec.Struct, frozen=True):
    """A client's command to Sluice in the broker's protocol."""

    id: int  # id for ``DataPath.reply``
    listener: str
    peer: str
    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""  # as in rules
    rate_per_s: float = 0.0


class ListedLimit(msgspec.Struct, frozen=True):
    kind: str
    name: str
    rate_per_s: float | None  # None if unlimited
    last_wait_us: int  # last wait stated to a client. 0 if none was
    last_refused_ms: int  # when it last refused, in milliseconds since 1970. 0 if never


class LimitCommandReply(msgspec.Struct, frozen=True):
    error: str = ""  # empty on success
    version: int = 0  # version of the active rules
    limits: tuple[ListedLimit, ...] = ()


class Cleared(msgspec.Struct, frozen=True):
    """The effect of a reset. Messages include requests."""

    limiters: int = 0
    debt_messages: float = 0.0
    debt_bytes: float = 0.0
    open_breakers: int = 0  # including those of shares
    shares: int = 0


class FleetError(Exception):
    """A request to the fleet's Redis failed. If it was ``sent``, its outcome is unknown."""

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class DataPath(Protocol):
    async def apply(self, rule_set: RuleSet) -> None:
        """Activate rules. Raises ValueError if their version is not newer than the active one."""

    async def reset(self, kind: str, name: str) -> Cleared:
        """Fill buckets and close breakers.

        ``name`` is a resource or scope, ``KIND:PATTERN`` of a total, or an active rule's pattern for all its names.
        """

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        """Return the counters. If ``whole``, include those of each resource, rule and connection."""

    async def totals(self) -> ResourceCounts: ...

    def resources(self, since_ns: int = 0) -> Iterator[ResourceState]:
        """Yield resources used since that monotonic time. Call only on a thread of ``proxy.common.threads``."""

    async def connections(self) -> tuple[ConnectionState, ...]: ...

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        """Close a connection. Return whether it existed."""

    async def flow(self, max_connections: int = 100) -> Flow:
        """Return the state of back pressure, with up to ``max_connections`` connections and destinations."""

    async def spool(self, max_resources: int = 100) -> SpoolState | None:
        """Return the spool's state, or None without a spool."""

    async def purge(self, kind: str, name: str) -> Purged:
        """Refuse one resource's spooled messages, or drop them if their senders expect no answer.

        Raises ValueError if there is no spool.
        """

    async def explain(self, question: Question) -> Explanation:
        """Return the limits that apply to a request, in order, with their state. Raises QuestionError."""

    async def adaptive(self) -> tuple[AdaptiveState, ...]:
        """Return one state for each listener with an adaptive limit."""

    async def fleet(self) -> FleetState | None:
        """Return the fleet's state. Wait up to 1 s for Redis. None if this process is not in a fleet."""

    async def fleet_edits_changed(self, known: bytes | None) -> None:
        """Wait until the version of the edit log differs from ``known``."""

    async def read_fleet_edits(self) -> Mapping[bytes, bytes]:
        """Return the fields of the edit log. The field ``""`` is its version. Raises FleetError."""

    async def write_fleet_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        """Write to the edit log. Return False if its version differs from ``known``. Raises FleetError."""

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        """Return completed seconds with traffic since the last call, in order. A cancelled call loses nothing.

        Recording starts with the first call. The backlog is bounded: when it is full, its last entry covers more time.
        With ``unfinished``, include the current second so far. Its rest follows as a separate entry.
        """

    async def probe_brokers(self) -> tuple[ListenerState, ...]:
        """Try to connect to each listener's broker. Return the listeners."""

    def limit_commands(self) -> AbstractAsyncContextManager[AsyncIterator[LimitCommand]]:
        """Receive limit commands, and answer each with ``reply``. Without a receiver, the broker gets them."""

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        """Answer a limit command. Ignored if the client has disconnected."""

    def descriptors(self) -> list[int]:
        """Return the listening sockets."""

    async def hand_over(self, grace_s: float) -> SavedLimits:
        """Stop accepting connections and requests, close the spool, and return the state of all limits.

        New clients wait for the new process. Requests in flight or held are finished. Call ``drain`` or ``resume``
        next. If the spool is in use, all connections are closed immediately, as its messages go to the new process.
        """

    async def resume(self) -> None:
        """Continue after a failed ``hand_over``."""

    async def save_limits(self) -> SavedLimits: ...

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        """Return the permits spent since ``hand_over``, minus those reserved for this process."""

    def debit(self, spent: Iterable[Spent]) -> None:
        """Charge permits spent by another process. Negative amounts are refunds."""

    async def turn(self) -> None:
        """Return once the event loop and each lane of the executor have run. Never returns while one hangs."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting connections, finish requests in flight, and close within ``grace_s`` seconds."""
