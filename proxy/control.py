"""The one interface between the data path and the operator's side; every type here is plain data.

A RuleSet goes in, a Snapshot comes out; besides there are commands with replies in both directions.
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
    """A client's question to Sluice itself in the broker's own protocol, where its listener allows that.

    ``view_limits`` wants all limits of the kinds that the protocol shows, ``update_limit`` a change.
    """

    id: int  # for ``DataPath.reply``
    listener: str
    peer: str
    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""  # as rules write it
    rate_per_s: float = 0.0


class ListedLimit(msgspec.Struct, frozen=True):
    """One limit as ``view_limits`` is told."""

    kind: str
    name: str
    rate_per_s: float | None  # its limit; None is unlimited
    last_wait_us: int  # the wait that was last stated to a client, in microseconds; 0 if none was
    last_refused_ms: int  # when that was, in milliseconds since 1970; 0 if it never was


class LimitCommandReply(msgspec.Struct, frozen=True):
    """The answer to a LimitCommand."""

    error: str = ""  # for people; empty if it was done
    version: int = 0  # of the active rules
    limits: tuple[ListedLimit, ...] = ()


class Cleared(msgspec.Struct, frozen=True):
    """What a reset cleared; messages include requests."""

    limiters: int = 0
    debt_messages: float = 0.0
    debt_bytes: float = 0.0
    open_breakers: int = 0  # also those of shares
    shares: int = 0


class FleetError(Exception):
    """The fleet's Redis cannot be used; the message says why, with the remedy.

    Attributes:
        sent: a command was sent, and it is not known whether it was done.
    """

    def __init__(self, reason: str, *, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class DataPath(Protocol):
    """What the admin side knows of the data path."""

    async def apply(self, rule_set: RuleSet) -> None:
        """Put a rule set in force; returns when every data path decides by that version.

        Raises:
            ValueError: its version is not above the one in force.
        """

    async def reset(self, kind: str, name: str) -> Cleared:
        """Reset limiters, so that they are full and closed.

        ``name`` is that of one resource or scope, ``KIND:PATTERN`` of a total, or a pattern: all names under its active
        rule.
        """

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        """Return the present counters, with ``whole`` those for each resource, rule and connection, too."""

    async def totals(self) -> ResourceCounts: ...

    def resources(self, since_ns: int = 0) -> Iterator[ResourceState]:
        """Go through resources asked for since that monotonic time; only on a thread of ``proxy.common.threads``."""

    async def connections(self) -> tuple[ConnectionState, ...]: ...

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        """Close one connection; returns whether it was there."""

    async def flow(self, max_connections: int = 100) -> Flow:
        """Return what waits for what, and which stage is the bottleneck; also at most as many destinations."""

    async def spool(self, max_resources: int = 100) -> SpoolState | None:
        """Return what the spool holds; None if there is no spool."""

    async def purge(self, kind: str, name: str) -> Purged:
        """Refuse what the spool holds of one resource, or drop messages whose senders expect no answer.

        Messages that arrive during the purge may be purged as well.

        Raises:
            ValueError: there is no spool.
        """

    async def explain(self, question: Question) -> Explanation:
        """Return what would limit a request, in order, and the live state of each limit; changes nothing.

        Raises:
            QuestionError: the question makes no sense.
        """

    async def adaptive(self) -> tuple[AdaptiveState, ...]:
        """Return the adaptive limits in force, by listener; empty while no rule is adaptive."""

    async def fleet(self) -> FleetState | None:
        """Return the fleet as this process knows it; waits up to 1 s for Redis. None if it is not in a fleet."""

    async def fleet_edits_changed(self, known: bytes | None) -> None:
        """Return once the fleet's Redis answers, with another version of the log of edits than is known."""

    async def read_fleet_edits(self) -> Mapping[bytes, bytes]:
        """Return the fields of the fleet's log of edits; its version is that of the field ``""``.

        Raises:
            FleetError: it cannot be read.
        """

    async def write_fleet_edits(self, known: bytes, fields: Mapping[str, bytes], removed: Sequence[str]) -> bool:
        """Set and remove fields of the fleet's log of edits; False if it is not of the version that is known.

        Raises:
            FleetError: it cannot be written.
        """

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        """Return the outcomes of requests in complete seconds that were not taken yet, in order of time.

        Recording begins with the first call. Seconds without requests are left out. A bounded number of seconds is kept
        for a late caller; then the last one is prolonged. Nothing is lost if the call is cancelled.

        Args:
            unfinished: with the current second so far; its rest is returned later as one of its own.
        """

    async def probe_brokers(self) -> tuple[ListenerState, ...]:
        """Try to connect to each listener's broker; return the listeners afterwards."""

    def limit_commands(self) -> AbstractAsyncContextManager[AsyncIterator[LimitCommand]]:
        """Take limit commands; each is answered by ``reply``. Without a taker they go to the broker. One at most."""

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        """Answer a command; one whose client has left is forgotten."""

    def descriptors(self) -> list[int]:
        """Return the descriptors of the listening sockets, for another process."""

    async def hand_over(self, grace_s: float) -> SavedLimits:
        """Stop accepting connections and requests, close the spool, and return the state of all limits.

        The sockets stay open: new clients wait for the other process. Requests in flight or held are finished; call
        ``drain`` or ``resume`` next. If the spool is in use, all connections end at once, since the other process has
        the spool's messages.
        """

    async def resume(self) -> None:
        """Accept clients and open the spool again, after a ``hand_over`` that failed."""

    async def save_limits(self) -> SavedLimits: ...

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        """Return what was spent of the limits since ``hand_over``, minus the reserve set aside then."""

    def debit(self, spent: Iterable[Spent]) -> None:
        """Charge the limits for what another process has spent; negative amounts are given back."""

    async def turn(self) -> None:
        """Return once the event loop and each lane of the executor have had a turn; never while one hangs."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let what is in flight finish, close; returns after ``grace_s`` seconds at the latest."""
