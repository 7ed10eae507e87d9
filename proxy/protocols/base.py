"""The interface between a protocol and the rest of the proxy: one Session per connection, without I/O.

Bytes, ends of streams, verdicts and the time go in. Batches to decide and bytes to write come out. A session owns no
socket, task or clock.

The driver (``proxy.net.peer``) guarantees:

1. Calls never overlap and come from one thread. Calls for both sides may alternate.
2. After ``receive`` returned a batch, that side's next ``receive`` comes after ``decided`` for the batch.
3. The chunk given to ``receive`` stays valid until the parts that ``take`` returned for the *other* side are written.
   A session copies data that it keeps longer or sends back.
4. After every call the driver takes and writes the queued bytes of both sides.
5. While ``paused(side)`` is true that side is not read. The rest of its chunk comes later.
6. One batch of a side from ``tick`` and one from ``receive`` may be open at the same time. ``resolved`` may come
   between ``receive`` and ``decided``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from limiter.plans import plans
from limiter.rules.resource import CERTIFICATE, CLIENT, LISTENER, Resource
from limiter.rules.rule import DEFAULT_MAX_DELAY_S, Action, Rule
from limiter.waiting.holding import Bounds
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

NO_BOUND: Final = 1 << 30  # bytes


class Close(Exception):  # noqa: N818 - an order to the driver, not a failure of ours
    """Raised by a session to end the connection, after queued bytes are written."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason  # for the metric, e.g. ``bad_frame``
        self.detail = detail  # a sentence for the log


@dataclass(slots=True)
class WireCounters:
    frames: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    # Headers that the strict parser refused, by the parser that could read them: ``lenient`` or ``none``.
    undecodable: dict[str, int] = field(default_factory=dict)
    round_trip: Histogram = field(default_factory=Histogram)
    # By outcome, as in ``sluice_routes_total``.
    routes: dict[str, int] = field(default_factory=dict)


class CommandRequest(msgspec.Struct, gc=False):
    """A client's request to Sluice itself (see ``proxy.control.LimitCommand``)."""

    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""
    rate_per_s: float = 0.0
    handle: object = None  # for the session


CommandStatus = Literal["taken", "full", "nobody"]
"""``taken``: ``replied`` follows. ``full``: too many are open. ``nobody``: forward it to the broker."""


class Replayed(NamedTuple):
    """The result of replaying a queue of an earlier process."""

    name: QueueName
    sent: int
    expired: int
    dropped: int
    left: int  # for another connection
    reason: str = ""  # for the log. Empty: nothing was dropped, or only unreadable messages


Confirming = plans.Confirming
Advance = plans.Advance
Terms = plans.Terms
NO_TERMS: Final = plans.NO_TERMS


TermsOf = Callable[[ConnectionInfo, tuple[Resource, ...], bool], Terms]
"""Takes a connection, resources of a message, and whether it is consumed. NO_TERMS: nothing is limited."""


class ListenerAddresses(NamedTuple):
    protocol: str
    # The bound address for sessions, the configured one for ``lint``.
    listen: tuple[str, int]
    brokers: tuple[tuple[str, int], ...]  # the broker and its backups, as configured


class Description(msgspec.Struct, frozen=True):
    """See ``proxy.stats.snapshot.ConnectionState``."""

    client: ClientDescription = ClientDescription()
    requests: int = 0
    refused: int = 0
    resources: tuple[str, ...] = ()  # as ``kind:name``, at most MAX_RESOURCES_SHOWN
    more_resources: int = 0
    links: tuple[LinkState, ...] = ()  # at most MAX_LINKS_SHOWN, waiting ones first
    more_links: int = 0


class Session(ABC):
    """The protocol state of one connection.

    ``now_ns`` is in monotonic nanoseconds. ``receive``, ``tick``, ``decided`` and ``resolved`` may raise Close.
    """

    # False: the driver calls ``tick`` only after the first wake-up.
    ticks: bool = False
    lends: bool = False  # ``lend`` may return something
    # Set by the driver: the client has left, and its remaining data is still read.
    client_left: bool = False

    @property
    def closing(self) -> Side | None:
        """The peer that closed the connection in the protocol. After that an end of stream is normal."""
        return None

    @property
    def language(self) -> str:
        """Empty until known, then constant."""
        return ""

    @property
    def product(self) -> str:
        """As ``client 2.3.1``, printable and short. Empty until known."""
        return ""

    @abstractmethod
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        """Process a chunk of one peer, never empty. Return the requests to decide, if any."""

    def left_bytes(self, side: Side) -> int:
        """Return how many bytes of the last chunk were left for the next one, to bound the work of a call."""
        del side
        return 0

    def lend(self, judge: "Judge") -> "Lent | None":
        """Let the compiled part read both streams, if it would read them as the session does.

        Called between two chunks, when all output is written. Until ``returned`` the driver calls only ``describe``,
        ``count_lent`` and the methods that count requests in flight. ``judge`` decides and counts whatever the compiled
        part does not.
        """
        del judge
        return None

    def put_back(self, side: Side, beginning: bytes, now_ns: int) -> None:
        """Process the beginning of a frame that the compiled part has read. Called after ``returned``."""
        self.receive(side, memoryview(beginning), now_ns)

    def returned(self, state: Any) -> bool:
        """Take both streams back. ``state`` is the compiled part's report.

        Returns:
            Whether the compiled part read too little to be worth it. The driver then waits some chunks.
        """
        del state
        return False

    def count_lent(self, requests: int, refused: int) -> None:
        """Count requests that the compiled part has read, and refused."""
        del requests, refused

    @abstractmethod
    def decided(self, batch: Batch, now_ns: int) -> None:
        """Queue the bytes of a batch according to its verdicts. A held request is copied. Later ones do not wait."""

    @abstractmethod
    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        """Queue a held request for the broker, or its refusal.

        Called at most once, after ``decided`` for its batch and before ``end``, never for a dropped request.
        """

    def take_responses(self) -> Sequence[Response]:
        """Return the broker's answers since the last call. Called only if a handler wants them."""
        return ()

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        """Queue the answer to a ``taken`` CommandRequest. Called once for each, unless the connection ends first."""
        del ask, reply, now_ns

    def describe(self, now_ns: int) -> Description:
        del now_ns
        return Description()

    def has_undelivered(self, side: Side) -> bool:
        """Return whether data still waits here that a peer whose stream has ended assumes delivered.

        Nothing more is written to that peer. Give up held requests that expect its answer, or an answer to it. Called
        after every call until it returns False.
        """
        del side
        return False

    @abstractmethod
    def end(self, side: Side, now_ns: int) -> None:
        """Handle the end of one peer's stream: queue or drop an incomplete frame.

        Called once ``has_undelivered`` is False, after the tickets of its held requests were dropped.
        """

    def start_close(self, detail: str, now_ns: int) -> None:
        """Queue the protocol's close messages before Sluice ends the connection."""
        del detail, now_ns

    def close_client(self, detail: str, now_ns: int) -> bool:
        """Queue the close of a draining connection's client if it waits for nothing else. Return whether it is queued.

        Called often. The client is not read any more, and the stream to it ends after the close. Its earlier data may
        still be forwarded.
        """
        del detail, now_ns
        return False

    def receive_closing(self, side: Side, chunk: memoryview) -> bool:
        """Ignore a chunk, perhaps empty, after ``start_close``. Return whether the stream to that peer may end now."""
        del side, chunk
        return True

    def written(self, side: Side, now_ns: int) -> None:
        """All output for that peer is in the kernel's buffer. Called after ``watch_writes(True)``."""
        del side, now_ns

    def alarm(self, reason: str, now_ns: int) -> None:
        """Stop the client's publishes, because Sluice is short of a resource.

        Tell the client and pause it, or refuse its publishes as busy. Consuming and earlier requests continue. Call
        ``block`` of the connection's stage when publishes stop. The driver unblocks it. Called again when the reason
        changes, never for an exempt connection. ``reason`` is for clients, less than 255 bytes. Empty: the alarm has
        ended.
        """
        del reason, now_ns

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        """Refuse a resource's spooled requests and drop those that cannot be refused, a few thousand per call.

        Return both counts. Called again until they are 0.
        """
        del resource, now_ns
        return 0, 0

    def waiting(self) -> Iterable[tuple[Resource, int]]:
        """Return resource and start of messages waiting in memory without a ticket, at least each resource's oldest."""
        return ()

    def stages(self) -> Iterable[Stage]:
        return ()

    def settle(self, now_ns: int) -> Batch | None:
        """Return the connection's final charges, refunds and counts. ``close`` follows."""
        del now_ns
        return None

    def close(self) -> None:  # noqa: B027 - few sessions have anything to do
        """Release shared state. The last call."""

    @abstractmethod
    def take(self, side: Side) -> Sequence[Buffer]:
        """Return everything that may be written to that peer now, once."""

    @abstractmethod
    def backlog_bytes(self, side: Side) -> int:
        """Return how many of the session's own bytes for that peer cannot be written yet."""

    def paused(self, side: Side) -> bool:
        del side
        return False

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many requests a drain waits for: held or unanswered ones, without long polls."""

    def unanswered(self) -> int:
        """Return how many forwarded messages expect an answer or a confirm of the broker."""
        return 0

    def unanswered_in_batches(self) -> int:
        """Return how many of ``unanswered`` the compiled part does not count during a lend."""
        return 0

    @abstractmethod
    def between_frames(self, side: Side) -> bool:
        """Return whether that peer's stream may end here."""

    def within_frame(self, side: Side) -> bool:
        """Return whether that peer is within a frame, which a client must complete in time.

        Between two frames of one message, a sender may have to wait for credit.
        """
        return not self.between_frames(side)

    def missing_bytes(self, side: Side) -> int:
        """Return how many bytes a drain may read without starting another frame. 1 is always correct."""
        del side
        return 1

    def max_bytes(self, side: Side) -> int:
        """Return how many bytes to read next at most, at least 1."""
        del side
        return NO_BOUND

    def next_tick_ns(self) -> int | None:
        """Return when to call ``tick``. None: only after a wake-up.

        Called at the start and after each ``tick``. Call ``SessionContext.wake`` to change the time in between.
        """
        return None

    def tick(self, now_ns: int) -> Batch | None:
        del now_ns
        return None


@dataclass(frozen=True, slots=True)
class SessionContext:
    connection: ConnectionInfo
    counters: WireCounters
    wake: Callable[[], None]  # asks for a ``tick`` soon
    wants_responses: bool  # some handler wants the broker's answers
    # Whether any rule limits a kind of resource. If not, ``receive`` need not return its requests.
    limits_kind: Callable[[str], bool]
    options: Any
    # Passes a client's request to Sluice to the control side, during ``receive``.
    ask: Callable[[CommandRequest], CommandStatus] = lambda _: "nobody"
    # Drops held requests, without ``resolved``.
    give_up: Callable[[Sequence[Request]], None] = lambda _: None
    # Drops the tickets of held requests that are forwarded anyway and counts these as admitted, without ``resolved``.
    # The session charges their cost.
    pass_on: Callable[[Sequence[Request]], None] = lambda _: None
    # Counts undecided requests that will not be forwarded. An item may repeat.
    lose: Callable[[Sequence[Request]], None] = lambda _: None
    # Bounds on held requests, for those that the limiter does not bound because they cannot be refused.
    held_bounds: Callable[[], Bounds] = Bounds
    # False: the session's own refusals do not apply.
    limiting: Callable[[], bool] = lambda: True
    room: GatherRoom = field(default_factory=GatherRoom)
    hub: Any = None  # from ``Protocol.open_hub``
    resources: "Resources | None" = None  # for the compiled part
    spool: Spool | None = None
    # The session calls its ``send`` for queued data. The driver does not read the client while it is out of credit.
    # The session's other stages get the same ``gives``.
    stage: Stage = field(default_factory=lambda: Stage("connection"))
    writer: Stage = field(default_factory=lambda: Stage("writer"))  # for bytes queued for the broker
    # Turns calls of ``written`` on or off. Initially off.
    watch_writes: Callable[[bool], None] = lambda _: None
    # Ends the stream to a client that has closed the connection. Its waiting data is still forwarded.
    end_client: Callable[[], None] = lambda: None
    client_silent: Callable[[], None] = lambda: None  # nothing was read from the client for half of its heartbeat
    replayed: Callable[[Replayed], None] = lambda _: None
    terms: TermsOf = lambda *_: NO_TERMS
    # Returns the rate of the tightest limit on names of these kinds.
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False  # whether any rule has consumers confirm publishes
    rules_version: Callable[[], int] = lambda: 0  # changes when ``terms`` may return something else
    listeners: Callable[[], Sequence[ListenerAddresses]] = tuple
    # Logs a warning at a bounded rate: a constant event, and details.
    warn: Callable[[str, str], None] = lambda *_: None
    # The broker's answers to messages and their latency, for adaptive limits.
    signals: BrokerSignals = field(default_factory=BrokerSignals)
    begun: Any = None  # from ``Protocol.begin``, if the connection began without a session


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource that a protocol limits, and its defaults."""

    name: str  # in rules, metrics and the API
    meaning: str  # for people
    spelling: str = ""  # of names with parts, as ``GROUP@TOPIC``
    rate_per_s: float | None = None  # None: unlimited
    action: Action = "reject"
    # Protocols or versions whose connections wait for credit under a rule without an action.
    credit_waits: str = ""
    max_delay_s: float = DEFAULT_MAX_DELAY_S
    consumes: bool = False  # its requests take messages, so scopes of senders do not limit them
    client_timeout_s: float | None = None  # how long clients wait for an answer by default. None: unknown
    in_commands: bool = False  # clients can read and change its limits in the protocol itself
    # False: all requests wait as long as needed, whatever the action.
    refuses: bool = True
    # A sentence for people about requests that wait because they cannot be refused.
    waits: str = ""
    # Messages over a delaying limit wait at the sender, for credit, as long as needed. They are never spooled.
    by_credit: bool = False
    # Consumer acks can confirm a message in place of the broker, so a rule may set ``confirm = "after_consume"``.
    after_consume: bool = False
    # How many queues each message goes to. None: as the rule says, or the broker confirms.
    queues: int | None = None
    # Fields of rules that have no effect, with the reason for people.
    ignores: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol, registered in the entry-point group ``sluice.protocols``."""

    name: str
    # A rule for another kind is an error. The first kind is the default in forms. Empty: nothing is limited.
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
    # Takes a hub and ``now_ns``. Returns the destinations where consumers may confirm publishes.
    confirm_states: Callable[[Any, int], Sequence[ConfirmState]] = lambda *_: ()
    # Raises RuleError for a rule that cannot be followed or can never match.
    check_rule: Callable[[Rule], None] = lambda _: None
    # Names the reader of frames, by a listener's options. Empty: there is no choice.
    reads_by: Callable[[Any], str] = lambda _: ""
    # Takes a listener's options and a resource. Names the rule by which sessions always refuse it, if any.
    always_refuses: Callable[[Any, Resource], str] = lambda *_: ""
    # A peer may end its stream and still wait for the other's. False: the end of one stream ends the connection.
    half_closes: bool = True
    extra_port_offset: int = 0  # a broker's second port minus its main one. Both share a hub. 0: none
    kind_hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the kinds that other words may mean
    # Scopes from ``limiter.rules.resource.SCOPES``, beyond those of all protocols.
    scopes: tuple[str, ...] = ()
    # Total attempts of clients that are refused as busy, by language. Others try once.
    busy_attempts: Mapping[str, int] = field(default_factory=dict)
    # Clients may log in by TLS certificate. The broker does not see it if Sluice terminates TLS.
    certificate_logins: bool = False
    # ALPN protocols (RFC 7301) that TLS offers, to clients and to the broker.
    alpn: tuple[str, ...] = ()
    # Takes a listener's options and all listeners. Returns warnings about probable mistakes in the settings, each with
    # the name of the option, or an empty one for the listener.
    lint: Callable[[Any, Sequence[ListenerAddresses]], Iterable[tuple[str, str]]] = lambda *_: ()

    def has(self, kind: str) -> bool:
        """Return whether rules for a kind of resource or scope can limit its requests."""
        if not self.kinds:
            return False
        return kind in (CLIENT, CERTIFICATE, LISTENER, *self.scopes) or any(kind == each.name for each in self.kinds)


def kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Return the kinds of some protocols, each once, in order.

    The first protocol with a kind defines it. The default action is still that of each connection's own protocol.
    """
    kinds: dict[str, Kind] = {}
    granting: dict[str, str] = {}
    for protocol in protocols:
        for kind in protocol.kinds:
            if kind.by_credit and kind.action == "delay":
                granting.setdefault(kind.name, protocol.name)
            first = kinds.setdefault(kind.name, kind)
            ignores = {key: why for key, why in first.ignores.items() if key in kind.ignores}
            if ignores != first.ignores:
                first = kinds[kind.name] = replace(first, ignores=ignores)
            if first.action != kind.action or kind.credit_waits:
                refusing = kind if first.by_credit else first
                waits = first.credit_waits or kind.credit_waits or granting.get(kind.name, "")
                kinds[kind.name] = replace(refusing, credit_waits=waits)
    return tuple(kinds.values())


def unsupported_kind(protocols: Sequence[Protocol], kind: str) -> str:
    names = " and ".join(protocol.name for protocol in protocols)
    return f"{names} {'knows' if len(protocols) == 1 else 'know'} no {kind.replace('_', ' ')}"
