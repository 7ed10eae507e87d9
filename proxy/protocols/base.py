"""The interface between a protocol and the rest of the proxy: one Session per connection, without I/O.

A session takes in bytes, ends of streams, verdicts and the time. It returns batches to decide and bytes to write. It
owns no socket, task or clock.

The driver (``proxy.net.peer``) guarantees:

1. Calls come from one thread and never overlap. Calls for the two sides may alternate.
2. If ``receive`` returns a batch, ``decided`` is called for it before ``receive`` is called again for that side.
3. The chunk given to ``receive`` stays valid until the parts that ``take`` returned for the *other* side are written.
   A session must copy data that it keeps longer or sends back.
4. After every call the driver takes and writes the queued bytes for both sides.
5. While ``paused(side)`` is true, the driver does not read that side. It delivers the rest of the chunk later.
6. A side may have two undecided batches, one from ``tick`` and one from ``receive``. ``resolved`` may be called between
   ``receive`` and ``decided``.
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


class Close(Exception):  # noqa: N818 - an instruction to the driver, not an error
    """Raised by a session to end the connection, after queued bytes are written."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason  # for the metric, e.g. ``bad_frame``
        self.detail = detail  # for the log


@dataclass(slots=True)
class WireCounters:
    frames: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    # Headers that the strict parser rejected, by the parser that accepted them: ``lenient`` or ``none``.
    undecodable: dict[str, int] = field(default_factory=dict)
    round_trip: Histogram = field(default_factory=Histogram)
    # Answers by outcome, as in ``sluice_routes_total``.
    routes: dict[str, int] = field(default_factory=dict)


class CommandRequest(msgspec.Struct, gc=False):
    """A client's request to read or change limits (see ``proxy.control.LimitCommand``)."""

    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""
    rate_per_s: float = 0.0
    handle: object = None  # owned by the session


CommandStatus = Literal["taken", "full", "nobody"]
"""``taken``: ``replied`` will be called. ``full``: too many are pending. ``nobody``: forward it to the broker."""


class Replayed(NamedTuple):
    """The result of replaying a queue left by an earlier process."""

    name: QueueName
    sent: int
    expired: int
    dropped: int
    left: int  # messages left for another connection
    reason: str = ""  # for the log, empty if nothing or only unreadable messages were dropped


Confirming = plans.Confirming
Advance = plans.Advance
Terms = plans.Terms
NO_TERMS: Final = plans.NO_TERMS


TermsOf = Callable[[ConnectionInfo, tuple[Resource, ...], bool], Terms]
"""Takes a connection, a message's resources, and whether it is consumed. Returns NO_TERMS if nothing limits it."""


class ListenerAddresses(NamedTuple):
    protocol: str
    listen: tuple[str, int]  # bound address in sessions, configured address in ``lint``
    brokers: tuple[tuple[str, int], ...]  # the broker and its backups, as configured


class Description(msgspec.Struct, frozen=True):
    """The session's part of ``proxy.stats.snapshot.ConnectionState``."""

    client: ClientDescription = ClientDescription()
    requests: int = 0
    refused: int = 0
    resources: tuple[str, ...] = ()  # ``kind:name``, at most MAX_RESOURCES_SHOWN
    more_resources: int = 0
    links: tuple[LinkState, ...] = ()  # waiting ones first, at most MAX_LINKS_SHOWN
    more_links: int = 0


class Session(ABC):
    """The protocol state of one connection.

    ``now_ns`` is in monotonic nanoseconds. ``receive``, ``tick``, ``decided`` and ``resolved`` may raise Close.
    """

    # If False, the driver calls ``tick`` only after the first ``wake``.
    ticks: bool = False
    lends: bool = False  # whether ``lend`` may return a Lent
    # Set by the driver once the client has left. Its remaining data is still read.
    client_left: bool = False

    @property
    def closing(self) -> Side | None:
        """The peer that has closed the connection at the protocol level. The end of a stream is then not an error."""
        return None

    @property
    def language(self) -> str:
        """The client's language. Empty until known, then constant."""
        return ""

    @property
    def product(self) -> str:
        """The client library, such as ``client 2.3.1``: short and printable. Empty until known."""
        return ""

    @abstractmethod
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        """Process a nonempty chunk from one peer. Return the requests to decide, if any."""

    def left_bytes(self, side: Side) -> int:
        """Return how many bytes of the last chunk to pass to ``receive`` again, because it bounds its work."""
        del side
        return 0

    def lend(self, judge: "Judge") -> "Lent | None":
        """Let the compiled part read both streams, or return None if it would not behave like the session.

        Called between chunks, when all output is written. Until ``returned``, the driver calls only ``describe``,
        ``count_lent`` and the methods that count requests in flight. ``judge`` decides and counts requests that the
        compiled part does not.
        """
        del judge
        return None

    def put_back(self, side: Side, beginning: bytes, now_ns: int) -> None:
        """Process the start of a frame that the compiled part has read. Called after ``returned``."""
        self.receive(side, memoryview(beginning), now_ns)

    def returned(self, state: Any) -> bool:
        """Take both streams back. ``state`` is the compiled part's report.

        Returns:
            Whether lending was not worthwhile. The driver then waits before the next ``lend``.
        """
        del state
        return False

    def count_lent(self, requests: int, refused: int) -> None:
        """Count the requests that the compiled part has read, and those it has refused."""
        del requests, refused

    @abstractmethod
    def decided(self, batch: Batch, now_ns: int) -> None:
        """Apply a batch's verdicts to its bytes: queue, drop or answer them.

        Copy held requests. They do not delay later requests.
        """

    @abstractmethod
    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        """Queue a held request for the broker, or a refusal for the client.

        Called at most once per request, after ``decided`` for its batch and before ``end``. Never called for a dropped
        request.
        """

    def take_responses(self) -> Sequence[Response]:
        """Return the broker's answers received since the last call. Called only if a handler wants them."""
        return ()

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        """Queue the answer to a ``taken`` CommandRequest. Called once, unless the connection ends first."""
        del ask, reply, now_ns

    def describe(self, now_ns: int) -> Description:
        del now_ns
        return Description()

    def has_undelivered(self, side: Side) -> bool:
        """Return whether the session still holds data that a departed peer considers delivered.

        Nothing more is written to that peer, so give up held requests that expect an answer from or to it. Called after
        every call until it returns False.
        """
        del side
        return False

    @abstractmethod
    def end(self, side: Side, now_ns: int) -> None:
        """Handle the end of one peer's stream: queue or drop an incomplete frame.

        Called once ``has_undelivered`` is False and the tickets of its held requests have been dropped.
        """

    def start_close(self, detail: str, now_ns: int) -> None:
        """Queue the protocol's close messages before Sluice ends the connection."""
        del detail, now_ns

    def close_client(self, detail: str, now_ns: int) -> bool:
        """Queue a close for the client of a draining connection once no answers are due. Return whether it is queued.

        Called repeatedly. Once it is queued, Sluice stops reading from the client and ends the stream to it. Earlier
        data from the client may still be forwarded.
        """
        del detail, now_ns
        return False

    def receive_closing(self, side: Side, chunk: memoryview) -> bool:
        """Discard a possibly empty chunk after ``start_close``. Return whether the stream to that peer may end now."""
        del side, chunk
        return True

    def written(self, side: Side, now_ns: int) -> None:
        """Called when the kernel has all output for that peer, after ``watch_writes(True)``."""
        del side, now_ns

    def alarm(self, reason: str, now_ns: int) -> None:
        """Stop the client's publishes because Sluice is short of a resource.

        Notify the client and pause it, or refuse its publishes as busy. Consuming and earlier requests continue. Call
        the connection stage's ``block`` when publishes stop. The driver unblocks it. Called again when ``reason``
        changes, but never for exempt connections. Clients see the reason, which is below 255 bytes. It is empty when
        the alarm ends.
        """
        del reason, now_ns

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        """Refuse up to a few thousand spooled requests of a resource, or drop them if they cannot be refused.

        Return how many were refused, and how many dropped. Called again until both are 0.
        """
        del resource, now_ns
        return 0, 0

    def waiting(self) -> Iterable[tuple[Resource, int]]:
        """Return the resource and start time in nanoseconds of messages that wait in memory without a ticket.

        Only the oldest message of each resource is required.
        """
        return ()

    def stages(self) -> Iterable[Stage]:
        return ()

    def settle(self, now_ns: int) -> Batch | None:
        """Return the connection's final charges, refunds and counts. Called just before ``close``."""
        del now_ns
        return None

    def close(self) -> None:  # noqa: B027 - few sessions have anything to do
        """Release shared state. No calls follow."""

    @abstractmethod
    def take(self, side: Side) -> Sequence[Buffer]:
        """Remove and return everything that may be written to that peer now."""

    @abstractmethod
    def backlog_bytes(self, side: Side) -> int:
        """Return how many bytes of the session's own output for that peer cannot be written yet."""

    def paused(self, side: Side) -> bool:
        del side
        return False

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many requests a drain waits for: held or unanswered ones, except long polls."""

    def unanswered(self) -> int:
        """Return how many forwarded messages await an answer or confirm from the broker."""
        return 0

    def unanswered_in_batches(self) -> int:
        """Return how many of ``unanswered`` the compiled part does not count."""
        return 0

    @abstractmethod
    def between_frames(self, side: Side) -> bool:
        """Return whether that peer's stream may end here."""

    def within_frame(self, side: Side) -> bool:
        """Return whether that peer is inside a frame, which a client must complete in time.

        False between two frames of a message, where a sender may have to wait for credit.
        """
        return not self.between_frames(side)

    def missing_bytes(self, side: Side) -> int:
        """Return how many bytes a drain may read without starting another frame. 1 is always valid."""
        del side
        return 1

    def max_bytes(self, side: Side) -> int:
        """Return the maximum size of the next read, at least 1 byte."""
        del side
        return NO_BOUND

    def next_tick_ns(self) -> int | None:
        """Return when to call ``tick``, or None to call it only after ``wake``.

        Called at the start and after each ``tick``. To change the time in between, call ``SessionContext.wake``.
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
    wants_responses: bool  # whether a handler wants the broker's answers
    # Whether a rule limits this kind of resource. If not, ``receive`` need not return its requests.
    limits_kind: Callable[[str], bool]
    options: Any
    # Passes a client's limit command to the control side. Called during ``receive``.
    ask: Callable[[CommandRequest], CommandStatus] = lambda _: "nobody"
    # Drops held requests. ``resolved`` is not called for them.
    give_up: Callable[[Sequence[Request]], None] = lambda _: None
    # Counts held requests that are forwarded anyway as admitted and drops their tickets. ``resolved`` is not called.
    # The session charges their cost.
    pass_on: Callable[[Sequence[Request]], None] = lambda _: None
    # Counts undecided requests that will not be forwarded. Items may repeat.
    lose: Callable[[Sequence[Request]], None] = lambda _: None
    # Bounds on held requests that the limiter does not bound because they cannot be refused.
    held_bounds: Callable[[], Bounds] = Bounds
    # If False, the session must not refuse requests itself.
    limiting: Callable[[], bool] = lambda: True
    room: GatherRoom = field(default_factory=GatherRoom)
    hub: Any = None  # from ``Protocol.open_hub``
    resources: "Resources | None" = None  # for the compiled part
    spool: Spool | None = None
    # The session calls its ``send`` for queued data. While it is out of credit, the driver does not read the client.
    # The session's other stages use the same ``gives``.
    stage: Stage = field(default_factory=lambda: Stage("connection"))
    writer: Stage = field(default_factory=lambda: Stage("writer"))  # bytes queued for the broker
    # Turns calls to ``written`` on or off. Initially off.
    watch_writes: Callable[[bool], None] = lambda _: None
    # Ends the stream to a client that has closed the connection. Its waiting data is still forwarded.
    end_client: Callable[[], None] = lambda: None
    client_silent: Callable[[], None] = lambda: None  # no data from the client for half of its heartbeat interval
    replayed: Callable[[Replayed], None] = lambda _: None
    terms: TermsOf = lambda *_: NO_TERMS
    # Returns the tightest limit on names of these kinds.
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False  # whether a rule sets ``confirm = "after_consume"``
    rules_version: Callable[[], int] = lambda: 0  # changes when the results of ``terms`` may change
    listeners: Callable[[], Sequence[ListenerAddresses]] = tuple
    # Logs a rate-limited warning. Takes a constant event and details.
    warn: Callable[[str, str], None] = lambda *_: None
    # The broker's answers to messages and their latency, for adaptive limits.
    signals: BrokerSignals = field(default_factory=BrokerSignals)
    begun: Any = None  # the state from ``Protocol.begin``, if the connection started without a session


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource that a protocol limits, and its defaults."""

    name: str  # in rules, metrics and the API
    meaning: str  # description shown to users
    spelling: str = ""  # the form of a composite name, such as ``GROUP@TOPIC``
    rate_per_s: float | None = None  # None if unlimited
    action: Action = "reject"
    # Protocols or versions whose senders wait for credit if the rule has no action.
    credit_waits: str = ""
    max_delay_s: float = DEFAULT_MAX_DELAY_S
    consumes: bool = False  # its requests consume messages, so scopes that limit senders do not apply
    client_timeout_s: float | None = None  # clients' default timeout, None if unknown
    in_commands: bool = False  # clients can read and change its limits with requests of the protocol
    # If False, all requests wait as long as needed, whatever the action.
    refuses: bool = True
    # Text for users about requests that wait because they cannot be refused.
    waits: str = ""
    # Senders with messages over a delaying limit wait for credit as long as needed. Nothing is spooled.
    by_credit: bool = False
    # Consumer acks can replace the broker's confirms, so a rule may set ``confirm = "after_consume"``.
    after_consume: bool = False
    # Number of queues that receive a message. If None, the rule must set it, or the broker confirms.
    queues: int | None = None
    # Rule fields without effect, each with the reason for users.
    ignores: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol, registered in the entry-point group ``sluice.protocols``."""

    name: str
    # Rules for other kinds are errors. Forms default to the first kind. If empty, nothing is limited.
    kinds: tuple[Kind, ...]
    # Built-in exemptions. A configured rule with the same name wins.
    default_rules: tuple[Rule, ...]
    open_session: Callable[[SessionContext], Session]
    options: type[Any]  # for the listener's ``options`` table: a dataclass or a msgspec struct
    # Takes the listener's options, a judge and ``SessionContext.limits_kind``. Returns the compiled part's reader for a
    # connection without a session, and ``SessionContext.begun``, or None if a session is needed.
    begin: "Callable[[Any, Judge, Callable[[str], bool]], tuple[Lent, Any] | None]" = lambda *_: None
    # Creates the state shared by all sessions of one broker. A session that changes it wakes the sessions affected.
    open_hub: Callable[[], Any] = lambda: None
    # Returns how many bytes a hub's sessions hold outside the spool, or 0 if they do not count them.
    held_bytes: Callable[[Any], int] = lambda _: 0
    # Takes a hub and ``now_ns``. Returns the destinations where consumers may confirm publishes.
    confirm_states: Callable[[Any, int], Sequence[ConfirmState]] = lambda *_: ()
    # Raises RuleError for a rule that the protocol does not support or that can never match.
    check_rule: Callable[[Rule], None] = lambda _: None
    # Takes a listener's options. Describes the frame reader, or is empty if there is only one.
    reads_by: Callable[[Any], str] = lambda _: ""
    # Takes a listener's options and a resource. Returns the name of the rule under which sessions always refuse it.
    always_refuses: Callable[[Any, Resource], str] = lambda *_: ""
    # Whether a peer may end its stream and keep reading. If not, the end of either stream ends the connection.
    half_closes: bool = True
    extra_port_offset: int = 0  # from a broker's main port to a second one with the same hub. 0 if there is none
    kind_hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # kinds to suggest for unknown kinds
    # Supported scopes of ``limiter.rules.resource.SCOPES`` beyond those that all protocols have.
    scopes: tuple[str, ...] = ()
    # Total attempts of clients that are refused as busy, by language. Others try once.
    busy_attempts: Mapping[str, int] = field(default_factory=dict)
    # Clients may log in by TLS certificate, which the broker does not see if Sluice terminates TLS.
    certificate_logins: bool = False
    # ALPN protocols (RFC 7301) offered to clients and to the broker.
    alpn: tuple[str, ...] = ()
    # Takes a listener's options and all listeners. Returns warnings about likely mistakes in settings, each with the
    # name of the option, or an empty name for the listener.
    lint: Callable[[Any, Sequence[ListenerAddresses]], Iterable[tuple[str, str]]] = lambda *_: ()

    def has(self, kind: str) -> bool:
        """Return whether rules for this kind of resource or scope can limit the protocol's requests."""
        if not self.kinds:
            return False
        return kind in (CLIENT, CERTIFICATE, LISTENER, *self.scopes) or any(kind == each.name for each in self.kinds)


def kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Merge the protocols' kinds, in order.

    The first protocol that supports a kind defines it, but each connection uses its own protocol's default action.
    """
    kinds: dict[str, Kind] = {}
    granting: dict[str, str] = {}
    for protocol in protocols:
        for kind in protocol.kinds:
            if kind.by_credit and kind.action == "delay":
                granting.setdefault(kind.name, protocol.name)
            first = kinds.setdefault(kind.name, kind)
            ignores = ignored_by_all((first, kind))
            if ignores != first.ignores:
                first = kinds[kind.name] = replace(first, ignores=ignores)
            if first.action != kind.action or kind.credit_waits:
                refusing = kind if first.by_credit else first
                waits = first.credit_waits or kind.credit_waits or granting.get(kind.name, "")
                kinds[kind.name] = replace(refusing, credit_waits=waits)
    return tuple(kinds.values())


def ignored_by_all(kinds: Sequence[Kind]) -> dict[str, str]:
    """Return the rule fields without effect for any of the kinds, each with the first kind's reason."""
    ignores = kinds[0].ignores.items() if kinds else ()
    return {key: why for key, why in ignores if all(key in kind.ignores for kind in kinds)}


def unsupported_kind(protocols: Sequence[Protocol], kind: str) -> str:
    names = " and ".join(protocol.name for protocol in protocols)
    return f'{names} {"does" if len(protocols) == 1 else "do"} not support "{kind}"'
