"""The one interface between the data path and everything an operator touches.

A RuleSet goes in, a Snapshot comes out, and there are events and a few commands with replies, in both directions:
the admin side asks the data path, and what clients ask of an operator's side comes from there. The admin side
uses nothing else of the data path, so that later several worker processes can stand behind the same words:
every type here is plain data that can cross a process boundary.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from limiter.buckets.limiter import LimiterState
from limiter.counting.rejections import TrafficSecond
from limiter.deciding.limits import SavedLimits, Spent
from limiter.rules.rule_set import RuleSet
from proxy.stats.flow import FlowState, Purged, SpoolState
from proxy.stats.question import Explanation, Question
from proxy.stats.snapshot import (
    BrokerReach,
    ConfirmState,
    ConnectionState,
    ResourceCounts,
    ResourceState,
    Snapshot,
)


class Event(msgspec.Struct, frozen=True):
    """Something an operator may want to hear of at once.

    Attributes:
        kind: ``rules``, ``opened``, ``closed``, ``alarm``, ``drain``.
        at_ns: monotonic time.
        detail: what changed, in plain words and figures.
    """

    kind: Literal["rules", "opened", "closed", "alarm", "drain"]
    at_ns: int
    detail: Mapping[str, str | int]


LimitCommandVerb = Literal["view_limits", "update_limit"]


class LimitCommand(msgspec.Struct, frozen=True):
    """What a client asks of Sluice itself in the broker's own protocol, where its listener lets it.

    Attributes:
        id: names it in ``DataPath.reply``.
        listener: the listener that the client came through.
        peer: the client's ``address:port``.
        verb: ``view_limits`` wants all limits of the kinds that the protocol shows; ``update_limit`` a change.
        kind: of what is to be changed.
        name: of what is to be changed, as rules write it.
        rate_per_s: the new limit.
    """

    id: int
    listener: str
    peer: str
    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""
    rate_per_s: float = 0.0


class ListedLimit(msgspec.Struct, frozen=True):
    """One limit as ``view_limits`` is told.

    Attributes:
        kind: of what is limited.
        name: its name.
        rate_per_s: its limit; None is unlimited.
        last_wait_us: the wait that was last stated to a client, in microseconds; 0 if none was.
        last_refused_ms: when that was, in milliseconds since 1970; 0 if it never was.
    """

    kind: str
    name: str
    rate_per_s: float | None
    last_wait_us: int
    last_refused_ms: int


class LimitCommandReply(msgspec.Struct, frozen=True):
    """The answer to a LimitCommand.

    Attributes:
        error: why it was not done, for people; empty if it was.
        version: of the rules in force.
        limits: what ``view_limits`` asked for.
    """

    error: str = ""
    version: int = 0
    limits: tuple[ListedLimit, ...] = ()


class Cleared(msgspec.Struct, frozen=True):
    """What was cleared when limiters began anew.

    Attributes:
        limiters: how many.
        debt_messages: what they owed, in messages or requests.
        debt_bytes: what they owed in bytes.
        open_breakers: how many of their breakers, and of their shares', were open.
        shares: fair shares that ended.
    """

    limiters: int = 0
    debt_messages: float = 0.0
    debt_bytes: float = 0.0
    open_breakers: int = 0
    shares: int = 0


class DataPath(Protocol):
    """What the admin side knows of the data path."""

    async def apply(self, rule_set: RuleSet) -> None:
        """Put a rule set in force; returns when every data path decides by that version.

        Raises:
            ValueError: its version is not above the one in force.
        """

    async def reset(self, kind: str, name: str) -> Cleared:
        """Let limiters begin anew, full and closed, in small steps; each decides at every moment by one or the other.

        Args:
            kind: of what is limited, or ``total``.
            name: of one resource or scope; of a total ``KIND:PATTERN``; or a pattern: of all names for which its rule
                is in force.
        """

    async def snapshot(self, *, whole: bool = True) -> Snapshot:
        """Return the counters of this moment; they are the caller's own.

        Args:
            whole: with ``resources``, ``rules`` and ``usage``, of which there may be many thousands; without them it
                costs next to nothing.
        """

    async def totals(self) -> ResourceCounts:
        """Return what the counts of all resources add up to, in small steps."""

    def limiters(self) -> AsyncGenerator[LimiterState, None]:
        """Go through the live limiters in small steps, without holding up the data path; to be closed by the caller."""

    def resources(self, since_ns: int = 0) -> AsyncGenerator[ResourceState, None]:
        """Go through what was asked for since that monotonic time, in small steps; to be closed by the caller.

        Args:
            since_ns: 0 is everything known.
        """

    async def connections(self) -> tuple[ConnectionState, ...]:
        """Return the open connections, gathered in small steps."""

    async def close_connection(self, connection_id: int, reason: str) -> bool:
        """Close one connection; returns whether it was there."""

    async def flow(self, most_connections: int = 100) -> FlowState:
        """Return what waits for what, and which stage is the bottleneck; gathered in small steps."""

    async def confirms(self) -> tuple[ConfirmState, ...]:
        """Return how messages are confirmed of which rules say that their consumers do that, by destination."""

    async def spool(self, most_resources: int = 100) -> SpoolState | None:
        """Return what the spool holds, gathered in small steps; None if there is no spool."""

    async def purge(self, kind: str, name: str) -> Purged:
        """Refuse what the spool holds of one resource, or drop it where nobody can be told, in small steps.

        What comes meanwhile may be purged, too.

        Raises:
            ValueError: there is no spool.
        """

    async def explain(self, question: Question) -> Explanation:
        """Return what would limit a request, in order, and the live state of each limit; changes nothing.

        Raises:
            QuestionError: the question makes no sense.
        """

    async def take_traffic(self, *, unfinished: bool = False) -> tuple[TrafficSecond, ...]:
        """Return what became of requests in the seconds that are over and were not taken yet, in order.

        Recording begins with the first call. Seconds in which nothing was asked for are left out. A bounded number of
        seconds is kept for a taker that is late: when they are full the last one goes on until somebody takes them.
        The order is that of happening: if the wall clock is set back, so are the seconds. If it is cancelled nothing
        is lost.

        Args:
            unfinished: the second under way, too, as far as it has come; its rest comes later as one of its own.
        """

    async def probe_brokers(self) -> tuple[BrokerReach, ...]:
        """Try to connect to each listener's broker."""

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """Subscribe; a subscriber that does not keep up loses the oldest events, never the data path's time."""

    def limit_commands(self) -> AbstractAsyncContextManager[AsyncIterator[LimitCommand]]:
        """Take what clients ask of Sluice itself; each is answered by ``reply``. There is one taker at most.

        While nobody takes them, such requests go on to the broker as all others do.
        """

    async def reply(self, command_id: int, reply: LimitCommandReply) -> None:
        """Answer a command; one whose client has left is forgotten."""

    def descriptors(self) -> list[int]:
        """Return the descriptors of the listening sockets, for another process."""

    async def hand_over(self, grace_s: float) -> SavedLimits:
        """Stop accepting and take no further requests, close the spool, and return what all limits are then.

        The sockets stay open: who connects waits for the process that has them, too. What is in flight and what is held
        goes on; ``drain`` follows, or ``go_on``. While something is in the spool, all connections end at once, as they
        do at the end of a drain: what waits there is the other process's.

        Args:
            grace_s: what ``drain`` will be given.
        """

    async def go_on(self) -> None:
        """Accept clients again, and open the spool again: no other process took them."""

    async def save_limits(self) -> SavedLimits:
        """Return what all limits are now, after a drain."""

    def spent_since(self, saved: SavedLimits) -> list[Spent]:
        """Return what was spent of the limits since ``hand_over``, less what was set aside then."""

    def debit(self, spent: Iterable[Spent]) -> None:
        """Take off the limits what another process has spent of them, or give back what is negative."""

    async def turn(self) -> None:
        """Return once the event loop and each lane of the executor have had a turn since now.

        It does not return while one of them hangs.
        """

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let what is in flight finish, close; returns after ``grace_s`` seconds at the latest."""
