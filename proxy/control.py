"""The only interface between the data path and the admin side. Only plain data crosses it."""

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
    """A command for Sluice that a client has sent over the broker's protocol."""

    id: int  # pass this to ``DataPath.reply``
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
    last_wait_us: int  # last waiting time reported to a client. 0 if none
    last_refused_ms: int  # time of the last refusal, in milliseconds since 1970. 0 if none


class LimitCommandReply(msgspec.Struct, frozen=True):
    error: str = ""  # empty on success
    version: int = 0  # version of the active rules
    limits: tuple[ListedLimit, ...] = ()


class Cleared(msgspec.Struct, frozen=True):
    """The effect of a reset. ``debt_messages`` also counts debts that are measured in requests."""

    limiters: int = 0
    debt_messages: float = 0.0
    debt_bytes: float = 0.0
    open_breakers: int = 0  # including those of shares
    shares: int = 0


class FleetError(Exception):
    """A request to the fleet's Redis failed. If ``sent`` is true, its outcome is unknown."""

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class DataPath(Protocol):
    async def apply(self, rule_set: RuleSet) -> None:
        """Activate rules. Raises ValueError if their version is not newer than the active one."""

    async def reset(self, kind: str, name: str) -> Cleared:
        """Fill buckets and close breakers.

        ``name`` is a resource, a scope, the ``KIND:PATTERN`` of a total, or an active rule's pattern. A pattern resets
        all names to which its rule applies.
        """

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        """Return the metrics. If ``whole``, include those that require a pass over resources or connections."""

    async def totals(self) -> ResourceCounts: ...

    def resources(self, since_ns: int = 0) -> Iterator[ResourceState]:
        """Yield the resources used since a monotonic time. Call this on a thread from ``proxy.common.threads``."""

    async def connections(self) -> tuple[ConnectionState, ...]: ...

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        """Close a connection. Return whether it existed."""

    async def flow(self, max_connections: int = 100) -> Flow:
        """Return the state of back pressure, with up to ``max_connections`` connections and as many destinations."""

    async def spool(self, max_resources: int = 100) -> SpoolState | None:
        """Return the spool's state, or None if there is no spool."""

    async def purge(self, kind: str, name: str) -> Purged:
        """Refuse a resource's spooled messages. Drop those whose senders expect no answer.

        Raises ValueError if there is no spool.
        """

    async def explain(self, question: Question) -> Explanation:
        """Return the limits that apply to a request, in the order of checking. Raises QuestionError."""

    async def adaptive(self) -> tuple[AdaptiveState, ...]:
        """Return the state of each listener's adaptive limit."""

    async def fleet(self) -> FleetState | None:
        """Return the fleet's state, or None if there is no fleet. Waits up to 1 s for Redis."""

    async def fleet_edits_changed(self, known: bytes | None) -> None:
        """Wait until the version of the edit log differs from ``known``."""

    async def read_fleet_edits(self) -> Mapping[bytes, bytes]:
        """Return the fields of the edit log, including its version in the field ``""``. Raises FleetError."""

    async def write_fleet_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        """Write to the edit log. Return False if its version differs from ``known``. Raises FleetError."""

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        """Return an entry for each completed second that had traffic since the last call, in order.

        A cancelled call loses no entries. Recording starts with the first call. When the backlog is full, its last
        entry covers more than a second. With ``unfinished``, include the current second so far. The rest of that second
        follows as a separate entry.
        """

    async def probe_brokers(self) -> tuple[ListenerState, ...]:
        """Try to connect to each listener's broker, and return the listeners' states."""

    def limit_commands(self) -> AbstractAsyncContextManager[AsyncIterator[LimitCommand]]:
        """Receive limit commands. Answer each with ``reply``. While there is no receiver, the broker gets them."""

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        """Answer a limit command. Ignored if the client has disconnected."""

    def descriptors(self) -> list[int]:
        """Return the file descriptors of the listening sockets."""

    async def hand_over(self, grace_s: float) -> SavedLimits:
        """Stop accepting connections and requests, close the spool, and return the state of all limits.

        New clients wait for the new process. Requests in flight or held are finished. Call ``drain`` or ``resume``
        next. If the spool is in use, all connections are closed immediately, because the new process takes over the
        spooled messages.
        """

    async def resume(self) -> None:
        """Continue after a failed ``hand_over``."""

    async def save_limits(self) -> SavedLimits: ...

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        """Return the permits spent since ``hand_over``, minus those that ``hand_over`` reserved for this process."""

    def debit(self, spent: Iterable[Spent]) -> None:
        """Charge permits spent by another process. Negative amounts are refunds."""

    async def turn(self) -> None:
        """Return after the event loop and every lane of the executor have run. If one hangs, this does not return."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting connections, finish requests in flight, and close all connections within ``grace_s``."""
