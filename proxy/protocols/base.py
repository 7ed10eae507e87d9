"""What a protocol is to the rest of the proxy: a Session for each connection, and no I/O.

A session is a pure function, in the manner of h11: bytes, ends of stream, verdicts and the time go in; batches to
decide and bytes to write come out. It owns no socket, no task and no clock.

The driver (``proxy.net.peer``) keeps these promises:

1. Calls never overlap, and all come from one thread. Calls about one side may come between two about the other.
2. After ``receive`` returned a batch of one side, that side's next ``receive`` comes after ``decided`` for that batch.
3. The chunk given to ``receive`` stays valid and unchanged until everything that ``take`` handed out of it for the
   *other* side has been written. A session copies what it keeps for longer, or sends back.
4. After every call the driver takes and writes the queued bytes for either side, in order, with one writer per peer.
5. While ``paused(side)`` is true that side is not read, so TCP slows that peer down. The rest of a chunk comes later.
6. One batch of a side from ``tick`` and one from ``receive`` may be open at the same time. ``resolved`` may come
   between ``receive`` and ``decided``; the session says where among a chunk's bytes the result goes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from limiter.plans import plans
from limiter.rules.resource import CERTIFICATE, CLIENT, LISTENER, Resource
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, Action, Rule
from proxy.common.buffers import GatherRoom
from proxy.control import LimitCommandReply, LimitCommandVerb
from proxy.deciding.batch import Batch, ConnectionInfo, Refuse, Request, Response, Side
from proxy.flow.broker_signals import BrokerSignals
from proxy.flow.credit import Stage
from proxy.spool.spool import QueueName, Spool
from proxy.stats.snapshot import ClientDescription, ConfirmState, LinkState
from proxy.stats.timing import Histogram

if TYPE_CHECKING:
    from sluice_native import Lent, Resources

    from proxy.deciding.judge import Judge

Buffer = bytes | memoryview

NO_BOUND: Final = 1 << 30  # bytes that may be read: any number


class Close(Exception):  # noqa: N818 - an order to the driver, not a failure of ours
    """The session's connection must end: queued bytes are written, then both sides are closed."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason  # one word for the metric, e.g. ``bad_frame``
        self.detail = detail  # a sentence for the log


@dataclass(slots=True)
class WireCounters:
    """What sessions count about the wire, shared by all connections of one data path."""

    # Whole frames, by the peer they came from.
    frames: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    # Headers that only the lenient parser could read, or that none could, by which of the two.
    undecodable: dict[str, int] = field(default_factory=dict)
    # How long the broker took to answer; sessions time some requests.
    round_trip: Histogram = field(default_factory=Histogram)
    # Answers of name servers: ``rewritten``, ``left`` if some addresses were kept, or ``unread``.
    routes: dict[str, int] = field(default_factory=dict)


class CommandRequest(msgspec.Struct, gc=False):
    """A client's request to Sluice itself, in the words of ``proxy.control.LimitCommand``."""

    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""  # as rules write it
    rate_per_s: float = 0.0
    handle: object = None  # belongs to the session: what its answer needs


CommandStatus = Literal["taken", "full", "nobody"]
"""The result of a CommandRequest: ``replied`` follows; too many are open; or it is for the broker."""


class Replayed(NamedTuple):
    """The result of a queue that an earlier process left in the spool."""

    name: QueueName
    sent: int
    expired: int  # their own time to live was over
    dropped: int  # messages dropped for the reason
    left: int  # messages left for another connection
    reason: str = ""  # in words; empty if none was dropped, except unreadable ones


Confirming = plans.Confirming
Advance = plans.Advance
Terms = plans.Terms
NO_TERMS: Final = plans.NO_TERMS


TermsOf = Callable[[ConnectionInfo, tuple[Resource, ...], bool], Terms]
"""Returns what the current rules say about messages of a connection for some resources. The last argument says whether
they are consumed. NO_TERMS for an exempt connection, and while limiting is off.
"""


class ListenerAddresses(NamedTuple):
    """Where a listener listens, and what is behind it."""

    protocol: str
    # Host and port. A session sees the bound ones; configured ones may be a name, and port 0 any port.
    listen: tuple[str, int]
    brokers: tuple[tuple[str, int], ...]  # host and port of the broker and of its backups, as configured


class Description(msgspec.Struct, frozen=True):
    """One connection as its session knows it, in the words of ``proxy.stats.snapshot.ConnectionState``."""

    client: ClientDescription = ClientDescription()  # what it said of itself
    requests: int = 0  # frames of the client
    refused: int = 0  # with those held before
    resources: tuple[str, ...] = ()  # those asked for, as ``kind:name``, at most MAX_RESOURCES_SHOWN
    more_resources: int = 0  # how many others the session remembers
    links: tuple[LinkState, ...] = ()  # at most MAX_LINKS_SHOWN, waiting ones first
    more_links: int = 0


class Session(ABC):
    """One connection's protocol state.

    ``now_ns`` means monotonic nanoseconds. ``receive``, ``tick``, ``decided`` and ``resolved`` may raise Close.
    """

    # The session uses ``tick`` from the start on. For others the driver starts a task once they call their waker.
    ticks: bool = False
    # ``lend`` may return something, sooner or later.
    lends: bool = False
    # Set by the driver: the client has left, and what it sent before is read to its end.
    client_left: bool = False

    @property
    def closing(self) -> Side | None:
        """Which peer has closed the connection in the protocol's words: then the end of a stream is normal."""
        return None

    @property
    def language(self) -> str:
        """The language of the client, as the protocol spells it; empty until known, then constant."""
        return ""

    @property
    def product(self) -> str:
        """The client's product and version, as in ``client 2.3.1``, printable and short; empty until known."""
        return ""

    @abstractmethod
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        """Take bytes of one peer, never empty.

        Returns:
            The requests to be decided, or None if there are none and the chunk's bytes are queued. A batch can come
            from either side: deliveries and credit travel from the broker.
        """

    def left_bytes(self, side: Side) -> int:
        """Return how many bytes at the end of that peer's last chunk were not read, as there was much in it.

        The driver gives them again, as the next chunk of that side, after other connections had their turn. Connections
        that leave something wait for each other, so that all others wait for one of their chunks at a time.
        """
        del side
        return 0

    def lend(self, judge: "Judge") -> "Lent | None":
        """Let the compiled part read both streams for a while, if it would read them as the session does.

        Only asked between two chunks, while nothing of the session waits to be written. The session is not called
        until ``returned``, but to ``describe``, ``count_lent`` and for what is ``in_flight``.

        Args:
            judge: decides and counts what the compiled part does not.
        """
        del judge
        return None

    def put_back(self, side: Side, beginning: bytes, now_ns: int) -> None:
        """Take the beginning of a frame that was read while the session was lent; comes after ``returned``."""
        self.receive(side, memoryview(beginning), now_ns)

    def returned(self, state: Any) -> bool:
        """Go on with both streams; ``state`` is what the compiled part says of them.

        Returns:
            Whether it has read too little to be worth the lending. Then it is not lent for some chunks.
        """
        del state
        return False

    def count_lent(self, requests: int, refused: int) -> None:
        """Count requests that the compiled part has read, and those of them that it has refused."""
        del requests, refused

    @abstractmethod
    def decided(self, batch: Batch, now_ns: int) -> None:
        """Queue what the verdicts of ``batch`` make of its bytes, for either side.

        A held request is copied, with its rest as it comes; what is behind it does not wait.
        """

    @abstractmethod
    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        """Queue a request that was held for the broker, or its refusal.

        Comes after ``decided`` for its batch and before the end of its side's stream, at most once: never if it was
        dropped.
        """

    def take_responses(self) -> Sequence[Response]:
        """Hand out, once, the broker's answers since the last call; only asked if a handler wants them."""
        return ()

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        """Queue the answer to a request to Sluice.

        Comes once for every CommandRequest that was ``taken``, after that ``receive``, unless the connection ends
        first.
        """
        del ask, reply, now_ns

    def describe(self, now_ns: int) -> Description:
        del now_ns
        return Description()

    def keeps(self, side: Side) -> bool:
        """Return whether that peer, whose stream has ended, assumes something delivered that still waits here.

        Nothing is written to that peer any more, and its held requests that expect an answer are given up. Asked again
        after every call, until it is False.
        """
        del side
        return False

    @abstractmethod
    def end(self, side: Side, now_ns: int) -> None:
        """Take the end of one peer's stream; an unfinished frame is queued or dropped.

        Comes when nothing is kept of that peer any more. The tickets of its held requests have been dropped.
        """

    def farewell(self, detail: str, now_ns: int) -> None:
        """Queue the protocol's goodbyes, as Sluice is about to end the connection; ``detail`` is why, for people."""
        del detail, now_ns

    def dismisses_client(self, detail: str, now_ns: int) -> bool:
        """Say goodbye to the client of a draining connection, if it waits for nothing else.

        The client is not read any more, though what it sent may still be forwarded. Called often; ``detail`` is why,
        for people.

        Returns:
            Whether that is queued; the stream to the client then ends behind it.
        """
        del detail, now_ns
        return False

    def heard_out(self, side: Side, chunk: memoryview) -> bool:
        """Take, and ignore, what a peer sends after the farewell, or nothing yet.

        Returns:
            Whether the stream to that peer may end: it has answered, or need not. Otherwise it ends a moment later.
        """
        del side, chunk
        return True

    def written(self, side: Side, now_ns: int) -> None:
        """Note that everything taken for that peer is with the kernel; called if ``hear_of_writes`` was."""
        del side, now_ns

    def alarm(self, reason: str, now_ns: int) -> None:
        """Stop the client's publishes from now on, as Sluice is short of something.

        The client is told and then not read, or its publishes are refused as busy. Consuming continues, and so does
        what was read before. Called again when the reason changes; never for an exempt connection. When publishes stop,
        the session calls ``block`` of the connection's stage; the driver ends that with the alarm.

        Args:
            reason: for clients, of less than 255 bytes; empty when the alarm has ended.
            now_ns: on the monotonic clock.
        """
        del reason, now_ns

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        """Refuse spooled requests of a resource, and drop what cannot be refused; a few thousand at most in one call.

        Held requests that are not spooled stay.

        Returns:
            How many were refused, and how many dropped; called again until there are none.
        """
        del resource, now_ns
        return 0, 0

    def waiting(self) -> Iterable[tuple[Resource, int]]:
        """Return the resource of messages that wait in memory, and since when; at least the oldest of each.

        Without messages that tickets have held from the beginning.
        """
        return ()

    def stages(self) -> Iterable[Stage]:
        return ()

    def settle(self, now_ns: int) -> Batch | None:
        """Return what is still to be charged, refunded and counted at the end of the connection; ``close`` follows."""
        del now_ns
        return None

    def close(self) -> None:  # noqa: B027 - few sessions have anything to do
        """Give back what the session has taken of shared things; the last call."""

    @abstractmethod
    def take(self, side: Side) -> Sequence[Buffer]:
        """Hand out, once, all that may be written to that peer now, in order."""

    @abstractmethod
    def backlog_bytes(self, side: Side) -> int:
        """Return how many bytes of the session's own wait for that peer and may not be written yet."""

    def paused(self, side: Side) -> bool:
        """Return whether that peer should not be read; asked again after every call."""
        del side
        return False

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many requests are held, or forwarded and without an answer, without long polls; for a drain."""

    def unanswered(self) -> int:
        """Return how many messages were passed on and wait for the broker's answer or confirm, as far as one comes."""
        return 0

    def unanswered_further(self) -> int:
        """Return how many of these the compiled part does not count while the session is lent."""
        return 0

    @abstractmethod
    def between_frames(self, side: Side) -> bool:
        """Return whether that peer's stream is at a frame boundary, so that it may end here."""

    def within_frame(self, side: Side) -> bool:
        """Return whether that peer is within a frame: a client must finish one within a time.

        A message of several frames may take longer, as its sender may have to wait for credit.
        """
        return not self.between_frames(side)

    def missing_bytes(self, side: Side) -> int:
        """Return how many bytes to read without reading beyond the current frame; at least 1, which is always right.

        A drain uses it to take no further requests of a client.
        """
        del side
        return 1

    def most_bytes(self, side: Side) -> int:
        """Return how many bytes to read of that peer next at most; at least 1, asked before each read."""
        del side
        return NO_BOUND

    def next_tick_ns(self) -> int | None:
        """Return when to call ``tick`` next, or None: only a wake-up calls it.

        Asked at the start and after each ``tick``: a session that sets a timer elsewhere calls its waker.
        """
        return None

    def tick(self, now_ns: int) -> Batch | None:
        del now_ns
        return None


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What the driver gives a new session."""

    connection: ConnectionInfo
    counters: WireCounters
    wake: Callable[[], None]  # asks the driver to call ``tick`` soon; callable from any task of the data path
    wants_responses: bool  # some handler wants the broker's answers
    # Whether any current rule limits resources of a kind; if none does, no requests are needed.
    limits_kind: Callable[[str], bool]
    options: Any
    # Forwards a client's request to Sluice to the operator's side; called in ``receive``.
    ask: Callable[[CommandRequest], CommandStatus] = lambda _: "nobody"
    # Drops held requests for good: ``resolved`` does not come for them.
    give_up: Callable[[Sequence[Request]], None] = lambda _: None
    # Drops the tickets of held requests that are forwarded all the same, counted as admitted: ``resolved`` does not
    # come for them. The session charges their cost, which counts it.
    pass_on: Callable[[Sequence[Request]], None] = lambda _: None
    # Counts requests that were to be decided later and never will be forwarded; one may come many times.
    lose: Callable[[Sequence[Request]], None] = lambda _: None
    # Whether limiting is on; refusals of the session itself pass while it is off.
    limiting: Callable[[], bool] = lambda: True
    room: GatherRoom = field(default_factory=GatherRoom)
    hub: Any = None  # shared by all sessions of one broker, on any listener; see ``Protocol.open_hub``
    resources: "Resources | None" = None  # where compiled code finds the limits of requests, if there is compiled code
    spool: Spool | None = None
    # This connection's: the session calls its ``send`` for what it queues, and the driver does not read the client
    # while it is out of credit. Other stages of the session get what this one ``gives``.
    stage: Stage = field(default_factory=lambda: Stage("connection"))
    writer: Stage = field(default_factory=lambda: Stage("writer"))  # the stage of bytes queued for the broker
    # Has ``written`` called from now on, or no more; at first it is not.
    hear_of_writes: Callable[[bool], None] = lambda _: None
    # Ends the stream to a client that has closed the connection, soon, behind queued bytes; what is kept of the client
    # is still forwarded.
    end_client: Callable[[], None] = lambda: None
    client_silent: Callable[[], None] = lambda: None  # whether nothing of the client was read for half of its heartbeat
    replayed: Callable[[Replayed], None] = lambda _: None  # logs the result of a queue of an earlier process
    terms: TermsOf = lambda *_: NO_TERMS
    # What the tightest limit of any name of some kinds lets through; None if there is none.
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False  # whether any current rule has consumers confirm publishes
    rules_version: Callable[[], int] = lambda: 0  # changes with the rules, so that ``terms`` may return something else
    # All listeners of the data path, in the order of the configuration; asked once there are bytes.
    listeners: Callable[[], Sequence[ListenerAddresses]] = tuple
    # Writes a warning to the log, at a bounded rate: a constant subject, and what was seen. The session counts all.
    warn: Callable[[str, str], None] = lambda *_: None
    # Of the listener's scope: the session counts the broker's answers to messages there, and how long they took.
    signals: BrokerSignals = field(default_factory=BrokerSignals)
    begun: Any = None  # what ``Protocol.begin`` returned for the session, if it began without one


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resources that a protocol makes, and its defaults."""

    name: str  # the word in rules, metrics and the API
    meaning: str  # what such a resource is and how its name is written, for people to read
    spelling: str = ""  # how its names are written, as ``GROUP@TOPIC``, if they have parts
    rate_per_s: float | None = None  # the limit of each without any of the operator's; None is unlimited
    action: Action = "reject"  # of a rule without one
    # Connections of this protocol or version wait for credit under a rule without an action. Empty: none.
    credit_waits: str = ""
    max_delay_s: float = DEFAULT_MAX_DELAY_S  # with action ``delay``, how long a rule without one holds, in seconds
    consumes: bool = False  # its requests take messages, so that the scopes of senders do not limit them
    patience_s: float | None = None  # how long clients wait for an answer by default, in seconds; None is unknown
    in_commands: bool = False  # clients may read and change its limits in the protocol itself
    # There is an answer that refuses such a request. Otherwise all wait as long as needed, whatever the action.
    refuses: bool = True
    # A sentence for people that says which requests have no such answer and wait; empty where all have one.
    waits: str = ""
    # The sender has no credit for what a delaying limit does not admit yet. So it waits at the sender, as long as
    # needed, and is never spooled.
    by_credit: bool = False
    # The ack of consumers can confirm such a message to its sender, in place of the broker's; a rule with ``confirm =
    # "after_consume"`` for another kind is an error.
    after_consume: bool = False
    # To how many queues each such message goes; None: as the rule says, or the broker confirms.
    queues: int | None = None


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol as the entry-point group ``sluice.protocols`` names it."""

    name: str  # the word after ``--protocol``
    # The kinds of resources it makes; a rule for another kind is an error. The first is the usual one: forms begin with
    # it, and reports need not name it. Without any, nothing is limited.
    kinds: tuple[Kind, ...]
    # Built-in rules with the protocol's exemptions; any rule of the operator's with the same name wins.
    default_rules: tuple[Rule, ...]
    open_session: Callable[[SessionContext], Session]
    options: type[Any]  # a dataclass or a msgspec struct; the listener's ``options`` table is read into it
    # Returns, for a listener's options, a judge and ``SessionContext.limits_kind``, what the compiled part serves a new
    # connection with before there is a session, and what that session needs to know; None if there has to be one.
    begin: "Callable[[Any, Judge, Callable[[str], bool]], tuple[Lent, Any] | None]" = lambda *_: None
    # Makes what the sessions of one broker share. A session that changes it calls the ``wake`` of those concerned.
    open_hub: Callable[[], Any] = lambda: None
    # Returns, for a hub, the memory that its sessions hold outside of the spool; 0 if it is not counted.
    held_bytes: Callable[[Any], int] = lambda _: 0
    # Returns, for a hub and the monotonic time in nanoseconds, how publishes are confirmed where consumers do that, by
    # destination.
    confirm_states: Callable[[Any, int], Sequence[ConfirmState]] = lambda *_: ()
    # Raises RuleError for a rule that the protocol cannot follow, or that can never match.
    check_rule: Callable[[Rule], None] = lambda _: None
    # Names, for a listener's options, what will read its frames; empty without a choice.
    reads_by: Callable[[Any], str] = lambda _: ""
    # Names, for a listener's options and a resource, the rule by which sessions refuse it whatever the limits are,
    # while limiting is on; empty if they do not.
    always_refuses: Callable[[Any, Resource], str] = lambda *_: ""
    # A peer may end its stream and still wait for the other's. If none does, the end of one stream ends the connection,
    # and a broker that hangs does not keep it open.
    half_closes: bool = True
    second_port_offset: int = 0  # a broker's second port minus the main one; 0 is none. Sessions of both share one hub.
    kinds_meant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the kinds that other words may mean
    # The kinds of scopes of its requests and connections, besides those of all: of ``limiter.rules.resource.SCOPES``. A
    # rule for one that no protocol in use has is an error.
    scopes: tuple[str, ...] = ()
    # How often clients try in all when they are refused as busy, by their language; others once.
    busy_attempts: Mapping[str, int] = field(default_factory=dict)
    # Clients may log in by their TLS certificate, which a broker does not see if TLS ends before it.
    certificate_logins: bool = False
    # Returns, for a listener's options and all listeners, what is allowed but probably not meant.
    doubts: Callable[[Any, Sequence[ListenerAddresses]], Iterable[str]] = lambda *_: ()

    def has(self, kind: str) -> bool:
        """Return whether its requests can be limited by rules of a kind, of resources or of scopes."""
        if not self.kinds:
            return False
        return kind in (CLIENT, CERTIFICATE, LISTENER, *self.scopes) or any(kind == each.name for each in self.kinds)


def kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Return the kinds that protocols make, each once, in the order of their own lists.

    If protocols share a kind, the first one's counts. But the default action is each connection's own protocol's.
    """
    kinds: dict[str, Kind] = {}
    granting: dict[str, str] = {}
    for protocol in protocols:
        for kind in protocol.kinds:
            if kind.by_credit and kind.action == "delay":
                granting.setdefault(kind.name, protocol.name)
            first = kinds.setdefault(kind.name, kind)
            if first.action != kind.action or kind.credit_waits:
                refusing = kind if first.by_credit else first
                waits = first.credit_waits or kind.credit_waits or granting.get(kind.name, "")
                kinds[kind.name] = replace(refusing, credit_waits=waits)
    return tuple(kinds.values())


def know_no(protocols: Sequence[Protocol], kind: str) -> str:
    """Return the sentence that none of some protocols has a kind."""
    names = " and ".join(protocol.name for protocol in protocols)
    return f"{names} {'knows' if len(protocols) == 1 else 'know'} no {kind.replace('_', ' ')}"
