"""The only interface between the data path and the admin side. All types are plain data."""

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
    """A client's command to Sluice in the broker's protocol. ``view_limits`` lists the limits of its kinds."""

    id: int  # for ``DataPath.reply``
    listener: str
    peer: str
    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""  # as in rules
    rate_per_s: float = 0.0


class ListedLimit(msgspec.Struct, frozen=True):
    kind: str
    name: str
    rate_per_s: float | None  # None: unlimited
    last_wait_us: int  # last stated to a client. 0: none yet
    last_refused_ms: int  # in milliseconds since 1970. 0: never


class LimitCommandReply(msgspec.Struct, frozen=True):
    error: str = ""  # for the operator. Empty on success
    version: int = 0  # of the active rules
    limits: tuple[ListedLimit, ...] = ()


class Cleared(msgspec.Struct, frozen=True):
    """Messages include requests."""

    limiters: int = 0
    debt_messages: float = 0.0
    debt_bytes: float = 0.0
    open_breakers: int = 0  # with those of shares
    shares: int = 0


class FleetError(Exception):
    """``sent``: a command was sent, and its result is unknown."""

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class DataPath(Protocol):
    async def apply(self, rule_set: RuleSet) -> None:
        """Returns when every data path uses the rules. Raises ValueError if the version is not above the active one."""

    async def reset(self, kind: str, name: str) -> Cleared:
        """Fill limiters and close their breakers.

        ``name`` is a resource or scope, ``KIND:PATTERN`` of a total, or a pattern for all names under its active rule.
        """

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        """``whole``: with the counters of each resource, rule and connection."""

    async def totals(self) -> ResourceCounts: ...

    def resources(self, since_ns: int = 0) -> Iterator[ResourceState]:
        """Yield resources used since that monotonic time. Call only on a thread of ``proxy.common.threads``."""

    async def connections(self) -> tuple[ConnectionState, ...]: ...

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        """Return whether the connection existed."""

    async def flow(self, max_connections: int = 100) -> Flow:
        """``max_connections`` bounds connections and destinations."""

    async def spool(self, max_resources: int = 100) -> SpoolState | None:
        """Return None without a spool."""

    async def purge(self, kind: str, name: str) -> Purged:
        """Refuse one resource's spooled messages, or drop them if their senders expect no answer.

        Raises ValueError if there is no spool.
        """

    async def explain(self, question: Question) -> Explanation:
        """Return the limits that apply to a request, in order, with their state. Raises QuestionError."""

    async def adaptive(self) -> tuple[AdaptiveState, ...]:
        """By listener."""

    async def fleet(self) -> FleetState | None:
        """Waits up to 1 s for Redis. None: not in a fleet."""

    async def fleet_edits_changed(self, known: bytes | None) -> None:
        """Return once the version of the edit log is not ``known``."""

    async def read_fleet_edits(self) -> Mapping[bytes, bytes]:
        """Return the fields of the edit log. Field ``""`` is its version. Raises FleetError."""

    async def write_fleet_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        """Return False if the version of the edit log is not ``known``. Raises FleetError."""

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        """Return complete seconds with requests that are not taken yet, in order. A cancelled call loses nothing.

        Recording begins with the first call. The backlog is bounded: its last entry grows until it is taken.
        ``unfinished``: include the current second so far. Its rest follows later as a separate entry.
        """

    async def probe_brokers(self) -> tuple[ListenerState, ...]:
        """Try to connect to each listener's broker."""

    def limit_commands(self) -> AbstractAsyncContextManager[AsyncIterator[LimitCommand]]:
        """Receive limit commands, each to be answered with ``reply``. Without a receiver, the broker gets them."""

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        """Ignored if the client has left."""

    def descriptors(self) -> list[int]:
        """Return the listening sockets."""

    async def hand_over(self, grace_s: float) -> SavedLimits:
        """Stop accepting connections and requests, close the spool, and return the state of all limits.

        New clients wait for the other process. Requests in flight or held are finished. Call ``drain`` or ``resume``
        next. If the spool is in use, all connections end at once, because the other process gets its messages.
        """

    async def resume(self) -> None:
        """After a failed ``hand_over``."""

    async def save_limits(self) -> SavedLimits: ...

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        """Return the permits spent since ``hand_over``, minus the reserve kept for them."""

    def debit(self, spent: Iterable[Spent]) -> None:
        """Charge permits spent by another process. Negative amounts are given back."""

    async def turn(self) -> None:
        """Return once the event loop and each lane of the executor have run. Never returns while one hangs."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, finish requests in flight, and close, within ``grace_s`` seconds."""
