"""The only interface between the data path and the admin side. All types are plain data.

A RuleSet goes in, a Snapshot comes out. Commands with replies go in both directions.
"""

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
    """A client's command to Sluice itself in the broker's protocol, where the listener allows it.

    ``view_limits`` lists all limits of the kinds that the protocol shows. ``update_limit`` changes one.
    """

    id: int  # for ``DataPath.reply``
    listener: str
    peer: str
    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""  # as in rules
    rate_per_s: float = 0.0


class ListedLimit(msgspec.Struct, frozen=True):
    """One limit in the answer to ``view_limits``."""

    kind: str
    name: str
    rate_per_s: float | None  # None: unlimited
    last_wait_us: int  # the last wait stated to a client, in microseconds. 0: none yet
    last_refused_ms: int  # when it was stated, in milliseconds since 1970. 0: never


class LimitCommandReply(msgspec.Struct, frozen=True):
    """The answer to a LimitCommand."""

    error: str = ""  # message for the operator. Empty on success
    version: int = 0  # of the active rules
    limits: tuple[ListedLimit, ...] = ()


class Cleared(msgspec.Struct, frozen=True):
    """Counts of a reset. Messages include requests."""

    limiters: int = 0
    debt_messages: float = 0.0
    debt_bytes: float = 0.0
    open_breakers: int = 0  # including those of shares
    shares: int = 0


class FleetError(Exception):
    """The fleet's Redis is not usable. The message has the reason and the remedy.

    Attributes:
        sent: a command was sent, and its result is unknown.
    """

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class DataPath(Protocol):
    """The data path, as the admin side sees it."""

    async def apply(self, rule_set: RuleSet) -> None:
        """Activate a rule set. Returns when every data path decides by that version.

        Raises:
            ValueError: its version is not above the active one.
        """

    async def reset(self, kind: str, name: str) -> Cleared:
        """Reset limiters, so that they are full and closed.

        ``name`` is one resource or scope, ``KIND:PATTERN`` of a total, or a pattern for all names under its active
        rule.
        """

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        """Return the present counters. If ``whole``, include those of each resource, rule and connection."""

    async def totals(self) -> ResourceCounts: ...

    def resources(self, since_ns: int = 0) -> Iterator[ResourceState]:
        """Yield resources used since that monotonic time. Call only on a thread of ``proxy.common.threads``."""

    async def connections(self) -> tuple[ConnectionState, ...]: ...

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        """Close one connection. Returns whether it existed."""

    async def flow(self, max_connections: int = 100) -> Flow:
        """Return waiting stages and the bottleneck. ``max_connections`` bounds connections and destinations."""

    async def spool(self, max_resources: int = 100) -> SpoolState | None:
        """Return the contents of the spool. None without a spool."""

    async def purge(self, kind: str, name: str) -> Purged:
        """Refuse the spooled messages of one resource, or drop them if their senders expect no answer.

        Messages that arrive during the purge may be purged as well.

        Raises:
            ValueError: there is no spool.
        """

    async def explain(self, question: Question) -> Explanation:
        """Return the limits that apply to a request, in order, each with its live state. Changes nothing.

        Raises:
            QuestionError: the question is inconsistent.
        """

    async def adaptive(self) -> tuple[AdaptiveState, ...]:
        """Return the active adaptive limits by listener. Empty without adaptive rules."""

    async def fleet(self) -> FleetState | None:
        """Return the fleet as this process knows it. Waits up to 1 s for Redis. None outside a fleet."""

    async def fleet_edits_changed(self, known: bytes | None) -> None:
        """Return once Redis reports a version of the edit log other than ``known``."""

    async def read_fleet_edits(self) -> Mapping[bytes, bytes]:
        """Return the fields of the fleet's edit log. Field ``""`` is its version.

        Raises:
            FleetError: it cannot be read.
        """

    async def write_fleet_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        """Set and remove fields of the fleet's edit log. False if its version is not ``known``.

        Raises:
            FleetError: it cannot be written.
        """

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        """Return the request outcomes of complete seconds not taken yet, in order of time.

        Recording begins with the first call. Seconds without requests are left out. A bounded number of seconds is kept
        for a late caller. After that, the last one is extended. Nothing is lost if the call is cancelled.

        Args:
            unfinished: include the current second so far. Its rest is returned later as a separate entry.
        """

    async def probe_brokers(self) -> tuple[ListenerState, ...]:
        """Try to connect to each listener's broker. Returns the listeners afterwards."""

    def limit_commands(self) -> AbstractAsyncContextManager[AsyncIterator[LimitCommand]]:
        """Receive limit commands, each to answer with ``reply``, by one receiver. Without one the broker gets them."""

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        """Answer a command. Ignored if its client has left."""

    def descriptors(self) -> list[int]:
        """Return the descriptors of the listening sockets, for another process."""

    async def hand_over(self, grace_s: float) -> SavedLimits:
        """Stop accepting connections and requests, close the spool, and return the state of all limits.

        The sockets stay open: new clients wait for the other process. Requests in flight or held are finished. Call
        ``drain`` or ``resume`` next. If the spool is in use, all connections end at once, since the other process has
        the spool's messages.
        """

    async def resume(self) -> None:
        """Accept clients and open the spool again, after a failed ``hand_over``."""

    async def save_limits(self) -> SavedLimits: ...

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        """Return the permits spent since ``hand_over``, minus the reserve set aside then."""

    def debit(self, spent: Iterable[Spent]) -> None:
        """Charge the limits for permits spent by another process. Negative amounts are given back."""

    async def turn(self) -> None:
        """Return once the event loop and each lane of the executor have run. Never returns while one hangs."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, finish requests in flight, and close. Returns after ``grace_s`` seconds at the latest."""
