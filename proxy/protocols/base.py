"""The interface between a protocol and the rest of the proxy: one Session per connection, without I/O.

A session is a pure function, like h11: bytes, ends of streams, verdicts and the time go in, batches to decide and bytes
to write come out. It owns no socket, task or clock.

The driver (``proxy.net.peer``) guarantees:

1. Calls never overlap and come from one thread. Calls for one side may come between two for the other.
2. After ``receive`` returned a batch, that side's next ``receive`` comes after ``decided`` for the batch.
3. The chunk given to ``receive`` stays valid and unchanged until all of it that ``take`` returned for the *other* side
   has been written. A session copies data that it keeps longer or sends back.
4. After every call the driver takes and writes the queued bytes of both sides, in order, with one writer per peer.
5. While ``paused(side)`` is true that side is not read, so TCP slows the peer down. The rest of a chunk comes later.
6. One batch of a side from ``tick`` and one from ``receive`` may be open at the same time. ``resolved`` may come
   between ``receive`` and ``decided``. The session decides where among a chunk's bytes the result goes.
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

NO_BOUND: Final = 1 << 30  # bytes to read: any number


class Close(Exception):  # noqa: N818 - an order to the driver, not a failure of ours
    """Ends the connection: queued bytes are written, then both sides are closed."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason  # for the metric, e.g. ``bad_frame``
        self.detail = detail  # a sentence for the log


@dataclass(slots=True)
class WireCounters:
    """Wire statistics of all connections of one data path."""

    # Whole frames, by sending peer.
    frames: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    # Headers that only the lenient parser, or no parser, could read.
    undecodable: dict[str, int] = field(default_factory=dict)
    # The broker's response times, for a sample of requests.
    round_trip: Histogram = field(default_factory=Histogram)
    # Answers of name servers: ``rewritten``, ``left`` if some addresses were kept, or ``unread``.
    routes: dict[str, int] = field(default_factory=dict)


class CommandRequest(msgspec.Struct, gc=False):
    """A client's request to Sluice itself (see ``proxy.control.LimitCommand``)."""

    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""  # as in rules
    rate_per_s: float = 0.0
    handle: object = None  # the session's, for its answer


CommandStatus = Literal["taken", "full", "nobody"]
"""``taken``: ``replied`` follows. ``full``: too many are open. ``nobody``: the broker answers it."""


class Replayed(NamedTuple):
    """The result of replaying a queue of an earlier process."""

    name: QueueName
    sent: int
    expired: int
    dropped: int
    left: int  # for another connection
    reason: str = ""  # for people; only unreadable messages are dropped without one


Confirming = plans.Confirming
Advance = plans.Advance
Terms = plans.Terms
NO_TERMS: Final = plans.NO_TERMS


TermsOf = Callable[[ConnectionInfo, tuple[Resource, ...], bool], Terms]
"""Takes a connection, resources of a message, and whether it is consumed. Returns the terms of the current rules:
NO_TERMS for an exempt connection and while limiting is off.
"""


class ListenerAddresses(NamedTuple):
    protocol: str
    # Sessions see the bound host and port. In the configuration the host may be a name and the port 0.
    listen: tuple[str, int]
    brokers: tuple[tuple[str, int], ...]  # the broker and its backups, as configured


class Description(msgspec.Struct, frozen=True):
    """A connection as its session knows it (see ``proxy.stats.snapshot.ConnectionState``)."""

    client: ClientDescription = ClientDescription()
    requests: int = 0
    refused: int = 0  # including requests that were held first
    resources: tuple[str, ...] = ()  # as ``kind:name``, at most MAX_RESOURCES_SHOWN
    more_resources: int = 0  # remembered beyond ``resources``
    links: tuple[LinkState, ...] = ()  # at most MAX_LINKS_SHOWN, waiting ones first
    more_links: int = 0


class Session(ABC):
    """The protocol state of one connection.

    ``now_ns`` is in monotonic nanoseconds. ``receive``, ``tick``, ``decided`` and ``resolved`` may raise Close.
    """

    # Needs ``tick`` from the start. Otherwise the driver starts a task at the first wake-up.
    ticks: bool = False
    # ``lend`` may return something at some time.
    lends: bool = False
    # Set by the driver: the client has left, and its remaining data is still read.
    client_left: bool = False

    @property
    def closing(self) -> Side | None:
        """The peer that closed the connection in the protocol. After that an end of stream is normal."""
        return None

    @property
    def language(self) -> str:
        """As the protocol spells it. Empty until known, then constant."""
        return ""

    @property
    def product(self) -> str:
        """Product and version, as ``client 2.3.1``, printable and short. Empty until known."""
        return ""

    @abstractmethod
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        """Process bytes of one peer, never empty.

        Returns:
            The requests to decide, or None if the bytes are queued. Batches come from either side: deliveries and
            credit come from the broker.
        """

    def left_bytes(self, side: Side) -> int:
        """Return how many bytes of the peer's last chunk were not read, because it contained much work.

        The driver feeds them again as the side's next chunk, after other connections. Connections with leftovers take
        turns, so that others wait for one such chunk at a time.
        """
        del side
        return 0

    def lend(self, judge: "Judge") -> "Lent | None":
        """Let the compiled part read both streams for a while, if it would read them as the session does.

        Called between two chunks, while nothing of the session waits to be written. Until ``returned`` the driver calls
        only ``describe``, ``count_lent`` and the methods that count requests in flight.

        Args:
            judge: Decides and counts whatever the compiled part does not.
        """
        del judge
        return None

    def put_back(self, side: Side, beginning: bytes, now_ns: int) -> None:
        """Process the beginning of a frame that was read during the lend. Comes after ``returned``."""
        self.receive(side, memoryview(beginning), now_ns)

    def returned(self, state: Any) -> bool:
        """Continue with both streams. ``state`` is the compiled part's report.

        Returns:
            Whether the compiled part has read too little to be worth it. Then the session is not lent for some chunks.
        """
        del state
        return False

    def count_lent(self, requests: int, refused: int) -> None:
        """Count requests read, and refused, by the compiled part."""
        del requests, refused

    @abstractmethod
    def decided(self, batch: Batch, now_ns: int) -> None:
        """Queue the bytes of a batch, for either side, according to its verdicts.

        A held request is copied, and its rest as it arrives. Requests behind it do not wait.
        """

    @abstractmethod
    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        """Queue a held request for the broker, or its refusal.

        Comes after ``decided`` for its batch and before the end of its side's stream, at most once, and never for a
        dropped request.
        """

    def take_responses(self) -> Sequence[Response]:
        """Return the broker's answers since the last call. Only called if a handler wants them."""
        return ()

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        """Queue the answer to a request to Sluice.

        Comes once for every ``taken`` CommandRequest, after that ``receive``, unless the connection ends first.
        """
        del ask, reply, now_ns

    def describe(self, now_ns: int) -> Description:
        del now_ns
        return Description()

    def has_undelivered(self, side: Side) -> bool:
        """Return whether a peer whose stream has ended assumes data delivered that still waits here.

        Nothing more is written to that peer, and its held requests that expect an answer are given up. Called after
        every call until it returns False.
        """
        del side
        return False

    @abstractmethod
    def end(self, side: Side, now_ns: int) -> None:
        """Handle the end of one peer's stream. An incomplete frame is queued or dropped.

        Comes when nothing of that peer is kept any more, and the tickets of its held requests were dropped.
        """

    def start_close(self, detail: str, now_ns: int) -> None:
        """Queue the protocol's close messages before Sluice ends the connection. ``detail``: for people."""
        del detail, now_ns

    def close_client(self, detail: str, now_ns: int) -> bool:
        """Close the client's side of a draining connection if the client waits for nothing else.

        The client is not read any more, but its earlier data may still be forwarded. Called often. ``detail``: for
        people.

        Returns:
            Whether the close is queued. The stream to the client then ends after it.
        """
        del detail, now_ns
        return False

    def receive_closing(self, side: Side, chunk: memoryview) -> bool:
        """Ignore data that a peer sends after ``start_close``. The chunk may be empty.

        Returns:
            Whether the stream to that peer may end now, because it has answered or need not. Otherwise it ends a moment
            later.
        """
        del side, chunk
        return True

    def written(self, side: Side, now_ns: int) -> None:
        """All output for that peer is in the kernel's buffer. Called if enabled by ``watch_writes``."""
        del side, now_ns

    def alarm(self, reason: str, now_ns: int) -> None:
        """Stop the client's publishes, because Sluice is short of a resource.

        The client is told and then not read, or its publishes are refused as busy. Consuming continues, and so do
        earlier requests. Called again when the reason changes, never for an exempt connection. When publishes stop, the
        session calls ``block`` of the connection's stage. The driver ends that with the alarm.

        Args:
            reason: For clients, less than 255 bytes. Empty when the alarm has ended.
            now_ns: Monotonic.
        """
        del reason, now_ns

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        """Refuse a resource's spooled requests and drop those that cannot be refused, a few thousand per call.

        Other held requests stay.

        Returns:
            How many were refused and how many dropped. Called again until both are 0.
        """
        del resource, now_ns
        return 0, 0

    def waiting(self) -> Iterable[tuple[Resource, int]]:
        """Return resource and start time of messages that wait in memory, at least each resource's oldest.

        Without messages that tickets held from the beginning.
        """
        return ()

    def stages(self) -> Iterable[Stage]:
        return ()

    def settle(self, now_ns: int) -> Batch | None:
        """Return the final charges, refunds and counts of the connection. ``close`` follows."""
        del now_ns
        return None

    def close(self) -> None:  # noqa: B027 - few sessions have anything to do
        """Release shared state. The last call."""

    @abstractmethod
    def take(self, side: Side) -> Sequence[Buffer]:
        """Return everything that may be written to that peer now, in order, once."""

    @abstractmethod
    def backlog_bytes(self, side: Side) -> int:
        """Return how many of the session's own bytes for that peer may not be written yet."""

    def paused(self, side: Side) -> bool:
        """Return whether that peer should not be read. Called after every call."""
        del side
        return False

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many requests are held or unanswered, without long polls. A drain waits for these."""

    def unanswered(self) -> int:
        """Return how many forwarded messages still expect an answer or a confirm of the broker."""
        return 0

    def unanswered_in_batches(self) -> int:
        """Return how many of these the compiled part does not count during a lend."""
        return 0

    @abstractmethod
    def between_frames(self, side: Side) -> bool:
        """Return whether that peer's stream may end here."""

    def within_frame(self, side: Side) -> bool:
        """Return whether that peer is within a frame, which a client must complete in time.

        A message of several frames may take longer: its sender may have to wait for credit.
        """
        return not self.between_frames(side)

    def missing_bytes(self, side: Side) -> int:
        """Return how many bytes can be read without leaving the current frame. 1 is always correct.

        A drain uses this to take no further requests of a client.
        """
        del side
        return 1

    def max_bytes(self, side: Side) -> int:
        """Return how many bytes to read next at most, at least 1. Called before each read."""
        del side
        return NO_BOUND

    def next_tick_ns(self) -> int | None:
        """Return when to call ``tick``. None: only after a wake-up.

        Called at the start and after each ``tick``. A session that sets a timer elsewhere calls its waker.
        """
        return None

    def tick(self, now_ns: int) -> Batch | None:
        del now_ns
        return None


@dataclass(frozen=True, slots=True)
class SessionContext:
    connection: ConnectionInfo
    counters: WireCounters
    wake: Callable[[], None]  # asks for a ``tick`` soon; callable from any task of the data path
    wants_responses: bool  # some handler wants the broker's answers
    # Whether any current rule limits a kind of resource. If none does, no requests are needed.
    limits_kind: Callable[[str], bool]
    options: Any
    # Forwards a client's request to Sluice to the control side, during ``receive``.
    ask: Callable[[CommandRequest], CommandStatus] = lambda _: "nobody"
    # Drops held requests. ``resolved`` does not come for them.
    give_up: Callable[[Sequence[Request]], None] = lambda _: None
    # Drops the tickets of held requests that are forwarded anyway, counted as admitted. ``resolved`` does not come for
    # them. The session charges their cost.
    pass_on: Callable[[Sequence[Request]], None] = lambda _: None
    # Counts undecided requests that will never be forwarded, which may repeat.
    lose: Callable[[Sequence[Request]], None] = lambda _: None
    # Off: the session's own refusals do not apply.
    limiting: Callable[[], bool] = lambda: True
    room: GatherRoom = field(default_factory=GatherRoom)
    hub: Any = None  # shared by a broker's sessions on all listeners; see ``Protocol.open_hub``
    resources: "Resources | None" = None  # the limits for the compiled part, if it is installed
    spool: Spool | None = None
    # The connection's. The session calls its ``send`` for queued data, and the driver does not read the client while it
    # is out of credit. The session's other stages get the same ``gives``.
    stage: Stage = field(default_factory=lambda: Stage("connection"))
    writer: Stage = field(default_factory=lambda: Stage("writer"))  # for bytes queued for the broker
    # Turns calls of ``written`` on or off, initially off.
    watch_writes: Callable[[bool], None] = lambda _: None
    # Ends the stream to a client that has closed the connection, after queued bytes. Its kept data is still forwarded.
    end_client: Callable[[], None] = lambda: None
    client_silent: Callable[[], None] = lambda: None  # nothing was read from the client for half of its heartbeat
    replayed: Callable[[Replayed], None] = lambda _: None  # logs the result
    terms: TermsOf = lambda *_: NO_TERMS
    # The rate of the tightest limit on any name of some kinds.
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False  # whether any current rule has consumers confirm publishes
    rules_version: Callable[[], int] = lambda: 0  # changes when ``terms`` may return something else
    # All listeners in the order of the configuration. Called once there are bytes.
    listeners: Callable[[], Sequence[ListenerAddresses]] = tuple
    # Logs a warning at a bounded rate: a constant subject, and details. The session counts all.
    warn: Callable[[str, str], None] = lambda *_: None
    # Of the listener's scope, for the broker's answers to messages and their latency.
    signals: BrokerSignals = field(default_factory=BrokerSignals)
    begun: Any = None  # from ``Protocol.begin``, if the connection began without a session


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource that a protocol limits, and its defaults."""

    name: str  # in rules, metrics and the API
    meaning: str  # of the resource and its name, for people
    spelling: str = ""  # of names with parts, as ``GROUP@TOPIC``
    rate_per_s: float | None = None  # default limit; None: unlimited
    action: Action = "reject"  # of a rule without one
    # Protocols or versions whose connections wait for credit under a rule without an action.
    credit_waits: str = ""
    max_delay_s: float = DEFAULT_MAX_DELAY_S  # default of how long a rule with action ``delay`` holds, in seconds
    consumes: bool = False  # its requests take messages, so scopes of senders do not limit them
    client_timeout_s: float | None = None  # how long clients wait for an answer by default; None: unknown
    in_commands: bool = False  # clients can read and change its limits in the protocol itself
    # False: all requests wait as long as needed, whatever the action.
    refuses: bool = True
    # A sentence for people about requests that wait because they cannot be refused.
    waits: str = ""
    # The sender has no credit for messages that a delaying limit does not admit yet. They wait there as long as needed
    # and are never spooled.
    by_credit: bool = False
    # Consumer acks can confirm a message in place of the broker. For other kinds, a rule with ``confirm =
    # "after_consume"`` is an error.
    after_consume: bool = False
    # How many queues each message goes to. None: as the rule says, or the broker confirms.
    queues: int | None = None


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol, registered in the entry-point group ``sluice.protocols``."""

    name: str  # the word after ``--protocol``
    # A rule for another kind is an error. The first kind is the usual one: forms start with it, and reports need not
    # name it. Empty: nothing is limited.
    kinds: tuple[Kind, ...]
    # Built-in exemptions. An operator's rule with the same name wins.
    default_rules: tuple[Rule, ...]
    open_session: Callable[[SessionContext], Session]
    options: type[Any]  # for the listener's ``options`` table: a dataclass or a msgspec struct
    # Takes the listener's options, a judge and ``SessionContext.limits_kind``. Returns the compiled part's reader for a
    # connection without a session, and ``SessionContext.begun``. None: a session is needed.
    begin: "Callable[[Any, Judge, Callable[[str], bool]], tuple[Lent, Any] | None]" = lambda *_: None
    # Makes the state shared by all sessions of one broker. A session that changes it wakes the others concerned.
    open_hub: Callable[[], Any] = lambda: None
    # Returns the bytes that a hub's sessions hold outside of the spool. 0: not counted.
    held_bytes: Callable[[Any], int] = lambda _: 0
    # Takes a hub and the monotonic time in nanoseconds. Returns, by destination, how publishes are confirmed where
    # consumers may do that.
    confirm_states: Callable[[Any, int], Sequence[ConfirmState]] = lambda *_: ()
    # Raises RuleError for a rule that the protocol cannot follow or that can never match.
    check_rule: Callable[[Rule], None] = lambda _: None
    # Names the reader of a listener's frames, by its options. Empty: there is no choice.
    reads_by: Callable[[Any], str] = lambda _: ""
    # Takes a listener's options and a resource. Names the rule by which sessions refuse it regardless of limits, while
    # limiting is on, if any.
    always_refuses: Callable[[Any, Resource], str] = lambda *_: ""
    # A peer may end its stream and still wait for the other's. Otherwise the end of one stream ends the connection, so
    # a broker that hangs does not keep it open.
    half_closes: bool = True
    extra_port_offset: int = 0  # a broker's second port minus its main one, 0: none; both share a hub
    kind_hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the kinds that other words may mean
    # Kinds of scopes from ``limiter.rules.resource.SCOPES``, beyond those of all protocols. A rule for a scope of no
    # protocol in use is an error.
    scopes: tuple[str, ...] = ()
    # Total attempts of clients that are refused as busy, by language. Others try once.
    busy_attempts: Mapping[str, int] = field(default_factory=dict)
    # Clients may log in by TLS certificate, which the broker does not see if TLS ends before it.
    certificate_logins: bool = False
    # Protocols that TLS offers by ALPN (RFC 7301), to clients and to the broker. Empty: none.
    alpn: tuple[str, ...] = ()
    # Takes a listener's options and all listeners. Returns warnings about settings that are probably not intended.
    lint: Callable[[Any, Sequence[ListenerAddresses]], Iterable[str]] = lambda *_: ()

    def has(self, kind: str) -> bool:
        """Return whether rules of a kind, of resources or scopes, can limit its requests."""
        if not self.kinds:
            return False
        return kind in (CLIENT, CERTIFICATE, LISTENER, *self.scopes) or any(kind == each.name for each in self.kinds)


def kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Return the kinds of some protocols, each once, in order.

    If protocols share a kind, the first one's counts, but the default action is that of each connection's own protocol.
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


def unsupported_kind(protocols: Sequence[Protocol], kind: str) -> str:
    names = " and ".join(protocol.name for protocol in protocols)
    return f"{names} {'knows' if len(protocols) == 1 else 'know'} no {kind.replace('_', ' ')}"
