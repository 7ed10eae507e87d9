"""The interface that a protocol implements. Each connection has one Session, which performs no I/O.

The driver (``proxy.net.peer``) gives a session bytes, ends of streams, verdicts and the time. The session returns
batches of requests that need a decision, and bytes to write.

The driver guarantees:

1. Calls come from one thread and never overlap.
2. If ``receive`` returns a batch, ``decided`` is called with it before ``receive`` is called again for the same side.
3. The chunk passed to ``receive`` stays valid until everything that ``take`` returned for the *other* side has been
   written. A session must copy data that it keeps longer or sends back to the same peer.
4. After every call, the driver takes and writes the queued bytes for each side, unless it is still writing earlier
   bytes for that side.
5. While ``paused(side)`` is true, the driver does not call ``receive`` for that side.
6. Up to two batches of a side can be undecided at a time: one from ``tick`` and one from ``receive``. ``resolved`` may
   be called between ``receive`` and ``decided``.
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
    """Raised by a session to close the connection. The driver writes the queued bytes first."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason  # a metric label, such as ``bad_frame``
        self.detail = detail  # a text for the log


@dataclass(slots=True)
class WireCounters:
    frames: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    # Headers that the strict parser rejected, keyed by the parser that accepted them: ``lenient`` or ``none``.
    undecodable: dict[str, int] = field(default_factory=dict)
    round_trip: Histogram = field(default_factory=Histogram)
    # Answers that contain broker addresses, keyed by the outcome in ``sluice_routes_total``.
    routes: dict[str, int] = field(default_factory=dict)


class CommandRequest(msgspec.Struct, gc=False):
    """A client's request to read or change limits. ``proxy.control.LimitCommand`` documents the other fields."""

    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""
    rate_per_s: float = 0.0
    handle: object = None  # for the session's own use


CommandStatus = Literal["taken", "full", "nobody"]
"""The result of ``SessionContext.ask``.

``taken``: ``Session.replied`` will be called. ``full``: refuse the request, because too many are pending. ``nobody``:
forward the request to the broker.
"""


class Replayed(NamedTuple):
    """The result of replaying a queue that an earlier process left behind."""

    name: QueueName
    sent: int
    expired: int
    dropped: int
    left: int  # number of messages that another connection will replay
    reason: str = ""  # why readable messages were dropped


Confirming = plans.Confirming
Advance = plans.Advance
Terms = plans.Terms
NO_TERMS: Final = plans.NO_TERMS


TermsOf = Callable[[ConnectionInfo, tuple[Resource, ...], bool], Terms]
"""Takes a connection, a message's resources, and whether a consumer receives the message.

Returns how rules treat such messages, or NO_TERMS if no rule limits them.
"""


class ListenerAddresses(NamedTuple):
    protocol: str
    listen: tuple[str, int]  # a session gets the bound address, ``Protocol.lint`` the configured one
    brokers: tuple[tuple[str, int], ...]  # the broker and its backups, as configured


class Description(msgspec.Struct, frozen=True):
    """The fields of ``proxy.stats.snapshot.ConnectionState`` that the session provides."""

    client: ClientDescription = ClientDescription()
    requests: int = 0
    refused: int = 0
    resources: tuple[str, ...] = ()  # each as ``kind:name``, at most MAX_RESOURCES_SHOWN
    more_resources: int = 0
    links: tuple[LinkState, ...] = ()  # waiting links first, at most MAX_LINKS_SHOWN
    more_links: int = 0


class Session(ABC):
    """One connection's protocol state.

    ``now_ns`` is a monotonic time in nanoseconds. ``receive``, ``tick``, ``decided`` and ``resolved`` may raise Close.
    """

    # If False, the driver does not call ``tick`` before the session first calls ``wake``.
    ticks: bool = False
    lends: bool = False  # whether ``lend`` may return a Lent
    # Set by the driver when the client is gone. Data that the client sent before is still read.
    client_left: bool = False

    @property
    def closing(self) -> Side | None:
        """The peer that has sent the protocol's closing message. A stream that ends afterwards is not an error."""
        return None

    @property
    def language(self) -> str:
        """The client's programming language. Empty until it is known, and constant afterwards."""
        return ""

    @property
    def product(self) -> str:
        """The client library and its version, such as ``client 2.3.1``. Short and printable. Empty until known."""
        return ""

    @abstractmethod
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        """Process a nonempty chunk from one peer. Return the requests that need a decision, if any."""

    def left_bytes(self, side: Side) -> int:
        """Return how many bytes at the end of the last chunk were left unprocessed, to limit the work per call.

        The driver passes them to ``receive`` again.
        """
        del side
        return 0

    def lend(self, judge: "Judge") -> "Lent | None":
        """Hand both streams to the compiled extension, or return None if it would not behave exactly like the session.

        Called between chunks, when all output has been written. Until the driver calls ``returned``, it calls only
        ``describe``, ``count_lent`` and the methods that count requests in flight. The extension asks ``judge`` about
        requests that it cannot decide itself.
        """
        del judge
        return None

    def put_back(self, side: Side, beginning: bytes, now_ns: int) -> None:
        """Process the start of a frame that the compiled extension had received when it returned the streams."""
        self.receive(side, memoryview(beginning), now_ns)

    def returned(self, state: Any) -> bool:
        """Take both streams back from the compiled extension, which reports its ``state``.

        Returns:
            True if the extension had nothing to do. In that case, the driver waits before it calls ``lend`` again.
        """
        del state
        return False

    def count_lent(self, requests: int, refused: int) -> None:
        """Count the requests that the compiled extension has read, and those that it has refused."""
        del requests, refused

    @abstractmethod
    def decided(self, batch: Batch, now_ns: int) -> None:
        """Queue, hold, drop or answer each request of a batch, as its verdict requires.

        Copy the bytes of held requests. Later requests must not wait for held ones.
        """

    @abstractmethod
    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        """Queue a held request for the broker, or a refusal for the client if ``refuse`` is given.

        Called at most once for each held request, after ``decided`` and before ``end``. Not called for requests that
        are dropped.
        """

    def take_responses(self) -> Sequence[Response]:
        """Return the broker's answers since the last call. Called only if a handler wants them."""
        return ()

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        """Queue the answer to a CommandRequest that was ``taken``. Called once, unless the connection ends first."""
        del ask, reply, now_ns

    def describe(self, now_ns: int) -> Description:
        del now_ns
        return Description()

    def has_undelivered(self, side: Side) -> bool:
        """Return whether the session still holds data from a departed peer, which assumes that the data was delivered.

        Nothing more is written to that peer, so give up held requests that it would answer or whose answer it would
        receive. Called again after each other call until it returns False.
        """
        del side
        return False

    @abstractmethod
    def end(self, side: Side, now_ns: int) -> None:
        """Handle the end of one peer's stream: queue an incomplete frame for the other peer, or drop it.

        Called when ``has_undelivered`` is False and the tickets of the peer's held requests have been dropped.
        """

    def start_close(self, detail: str, now_ns: int) -> None:
        """Queue the protocol's closing messages. Sluice is about to close the connection."""
        del detail, now_ns

    def close_client(self, detail: str, now_ns: int) -> bool:
        """Queue a closing message for the client, unless it still expects answers. Return whether one is queued.

        Called repeatedly while the connection drains. When the message is queued, Sluice stops reading from the client
        and ends the stream to it. Earlier data from the client may still be forwarded.
        """
        del detail, now_ns
        return False

    def receive_closing(self, side: Side, chunk: memoryview) -> bool:
        """Discard a chunk, which may be empty, after ``start_close``. Return whether the peer's stream may now end."""
        del side, chunk
        return True

    def written(self, side: Side, now_ns: int) -> None:
        """Called whenever the kernel has accepted all output for ``side``, while ``watch_writes`` is on."""
        del side, now_ns

    def alarm(self, reason: str, now_ns: int) -> None:
        """Stop the client from publishing, because Sluice is short of memory or disk space.

        Notify the client and let ``paused`` return True, or refuse its publishes as busy. Consumers and earlier
        requests continue. When publishes stop, call ``block`` on the connection's stage. The driver unblocks the stage.

        ``reason`` is a text for clients, shorter than 255 bytes. It is empty when the alarm ends. Called again when the
        reason changes, but never for exempt connections.
        """
        del reason, now_ns

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        """Refuse up to a few thousand of a resource's spooled requests, and drop those that cannot be refused.

        Return how many requests were refused, and how many were dropped. Called again until both numbers are 0.
        """
        del resource, now_ns
        return 0, 0

    def waiting(self) -> Iterable[tuple[Resource, int]]:
        """Return the resource and start time of messages that wait in memory without a ticket.

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
        """Release state shared with other sessions. This is the last call."""

    @abstractmethod
    def take(self, side: Side) -> Sequence[Buffer]:
        """Remove and return all queued output that may be written to ``side`` now."""

    @abstractmethod
    def backlog_bytes(self, side: Side) -> int:
        """Return the size of queued output for ``side`` that the session itself created, such as refusals.

        The driver stops reading from a client while this is large.
        """

    def paused(self, side: Side) -> bool:
        del side
        return False

    @abstractmethod
    def in_flight(self) -> int:
        """Return the number of held or unanswered requests, excluding long polls. A drain waits until it is 0."""

    def unanswered(self) -> int:
        """Return how many forwarded messages the broker has not answered or confirmed yet."""
        return 0

    def unanswered_in_batches(self) -> int:
        """Return how many ``unanswered`` messages of a lent connection the compiled extension does not count."""
        return 0

    @abstractmethod
    def between_frames(self, side: Side) -> bool:
        """Return whether the stream from ``side`` may end now, because nothing in it is incomplete."""

    def within_frame(self, side: Side) -> bool:
        """Return whether a frame from ``side`` is incomplete. A client must complete each frame in time.

        Must be False between the frames of a message, because the sender may have to wait for credit there.
        """
        return not self.between_frames(side)

    def missing_bytes(self, side: Side) -> int:
        """Return how many bytes a drain may read from ``side`` without reading into its next frame.

        1 is always valid.
        """
        del side
        return 1

    def max_bytes(self, side: Side) -> int:
        """Return the maximum number of bytes that the driver may read next, at least 1."""
        del side
        return NO_BOUND

    def next_tick_ns(self) -> int | None:
        """Return when to call ``tick`` next, or None to call it only after ``SessionContext.wake``.

        Called before the first ``tick`` and after each. To change the time in between, call ``SessionContext.wake``.
        """
        return None

    def tick(self, now_ns: int) -> Batch | None:
        """Do the work that is due. Return the requests that need a decision, if any."""
        del now_ns
        return None


@dataclass(frozen=True, slots=True)
class SessionContext:
    connection: ConnectionInfo
    counters: WireCounters
    wake: Callable[[], None]  # makes the driver call ``tick`` soon
    wants_responses: bool  # whether a handler wants ``Session.take_responses``
    # Whether any rule limits a kind. If not, batches need not contain requests for it.
    limits_kind: Callable[[str], bool]
    options: Any  # an instance of ``Protocol.options``
    # Passes a client's request about limits to the admin side. ``Session.replied`` gets the answer.
    ask: Callable[[CommandRequest], CommandStatus] = lambda _: "nobody"
    # Drops held requests. ``resolved`` is not called for them.
    give_up: Callable[[Sequence[Request]], None] = lambda _: None
    # Like ``give_up``, for requests that the session forwards early. They count as admitted. The session must charge
    # for them.
    pass_on: Callable[[Sequence[Request]], None] = lambda _: None
    # Counts undecided requests that the session discards. A request may be listed more than once.
    lose: Callable[[Sequence[Request]], None] = lambda _: None
    # Returns the bounds on held requests, which the session must apply to requests that cannot be refused.
    held_bounds: Callable[[], Bounds] = Bounds
    # Whether limits are switched on. If not, the session must not refuse requests on its own.
    limiting: Callable[[], bool] = lambda: True
    room: GatherRoom = field(default_factory=GatherRoom)  # memory budget for incomplete frames
    hub: Any = None  # from ``Protocol.open_hub``
    resources: "Resources | None" = None  # needed by the compiled extension
    spool: Spool | None = None
    # The session calls its ``send`` for queued data. While it is out of credit, the driver does not read from the
    # client. Stages that the session creates must have the same ``gives``.
    stage: Stage = field(default_factory=lambda: Stage("connection"))
    writer: Stage = field(default_factory=lambda: Stage("writer"))  # bytes queued for the broker
    # Turns calls to ``Session.written`` on or off. They are initially off.
    watch_writes: Callable[[bool], None] = lambda _: None
    # Ends the stream to a client that has sent the protocol's closing message. Its earlier data is still forwarded.
    end_client: Callable[[], None] = lambda: None
    # The client has sent no data for half of its heartbeat interval.
    client_silent: Callable[[], None] = lambda: None
    replayed: Callable[[Replayed], None] = lambda _: None
    terms: TermsOf = lambda *_: NO_TERMS
    # Returns the tightest limit on resources of these kinds, or None if they have no limit.
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False  # whether a rule sets ``confirm = "after_consume"``
    rules_version: Callable[[], int] = lambda: 0  # changes whenever the results of ``terms`` may change
    listeners: Callable[[], Sequence[ListenerAddresses]] = tuple
    # Logs a rate-limited warning. Takes the event, which must be a constant, and details.
    warn: Callable[[str, str], None] = lambda *_: None
    # Records the broker's answers and their latencies, for adaptive limits.
    signals: BrokerSignals = field(default_factory=BrokerSignals)
    begun: Any = None  # from ``Protocol.begin``, if the connection started without a session


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource that a protocol can limit, and the defaults for its rules."""

    name: str
    meaning: str  # a description for users
    spelling: str = ""  # the form of a composite name, such as ``GROUP@TOPIC``
    rate_per_s: float | None = None  # default limit of each resource. None if unlimited
    action: Action = "reject"
    # The protocol or version whose senders wait for credit if a rule sets no action.
    credit_waits: str = ""
    max_delay_s: float = DEFAULT_MAX_DELAY_S
    consumes: bool = False  # whether its requests consume messages, so that scopes for senders do not apply to them
    client_timeout_s: float | None = None  # how long clients wait for an answer by default. None if unknown
    in_commands: bool = False  # whether a ``CommandRequest`` can read and change its limits
    # If False, requests wait as long as necessary and are never refused, whatever the rule's action.
    refuses: bool = True
    # A text for users about requests that wait because they cannot be refused.
    waits: str = ""
    # Whether delay rules make senders wait for credit, as long as necessary, instead of spooling.
    by_credit: bool = False
    # Whether rules may set ``confirm = "after_consume"``.
    after_consume: bool = False
    # Number of queues that receive a message. If neither the kind nor the rule sets it, the broker confirms.
    queues: int | None = None
    # Rule fields that have no effect on this kind, each with the reason, as a text for users.
    ignores: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol, registered in the entry-point group ``sluice.protocols``."""

    name: str
    # Rules for other kinds are errors. Forms on the admin page preselect the first. If empty, nothing is limited.
    kinds: tuple[Kind, ...]
    # Built-in exemptions. A configured rule with the same name replaces one of these.
    default_rules: tuple[Rule, ...]
    open_session: Callable[[SessionContext], Session]
    options: type[Any]  # for the listener's ``options`` table: a dataclass or a msgspec struct
    # Lets the compiled extension serve a new connection without a session. Takes the listener's options, a judge and
    # ``SessionContext.limits_kind``. Returns the extension's reader and the value for ``SessionContext.begun``, or None
    # if a session is needed.
    begin: "Callable[[Any, Judge, Callable[[str], bool]], tuple[Lent, Any] | None]" = lambda *_: None
    # Creates a hub: the state that all sessions of one broker share. A session that changes it must wake all
    # affected sessions.
    open_hub: Callable[[], Any] = lambda: None
    # Returns how many bytes of messages a hub's sessions keep outside the spool, or 0 if they do not count them.
    held_bytes: Callable[[Any], int] = lambda _: 0
    # Takes a hub and ``now_ns``.
    confirm_states: Callable[[Any, int], Sequence[ConfirmState]] = lambda *_: ()
    # Raises RuleError for a rule that is not supported or can never match.
    check_rule: Callable[[Rule], None] = lambda _: None
    # Takes a listener's options. Describes the frame reader, or returns "" if there is only one.
    reads_by: Callable[[Any], str] = lambda _: ""
    # Takes a listener's options and a resource. Returns the name of the built-in rule by which sessions always refuse
    # the resource, or "".
    always_refuses: Callable[[Any, Resource], str] = lambda *_: ""
    # Whether a peer may end its stream and keep reading. If not, the end of either stream ends the connection.
    half_closes: bool = True
    # Offset of a second broker port from the main port, with which it shares the hub. 0 if there is none.
    extra_port_offset: int = 0
    # Kinds to suggest for an unknown kind in a rule.
    kind_hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Supported scopes, in addition to those of all protocols (``limiter.rules.resource.SCOPES``).
    scopes: tuple[str, ...] = ()
    # How often a client tries to send a message that is refused as busy, keyed by language. Other clients try once.
    busy_attempts: Mapping[str, int] = field(default_factory=dict)
    # Whether clients may log in with a TLS certificate, which the broker does not see if Sluice terminates TLS.
    certificate_logins: bool = False
    # ALPN protocols (RFC 7301) offered to clients and to the broker.
    alpn: tuple[str, ...] = ()
    # Takes a listener's options and the addresses of all listeners. Returns warnings about likely mistakes, as pairs of
    # an option's name and a text. The name is empty if the warning is about the listener.
    lint: Callable[[Any, Sequence[ListenerAddresses]], Iterable[tuple[str, str]]] = lambda *_: ()

    def has(self, kind: str) -> bool:
        """Return whether rules for this kind of resource or scope can limit the protocol's requests."""
        if not self.kinds:
            return False
        return kind in (CLIENT, CERTIFICATE, LISTENER, *self.scopes) or any(kind == each.name for each in self.kinds)


def kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Merge the kinds of multiple protocols.

    The first protocol that has a kind defines it, but each connection uses its own protocol's default action.
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
    """Return the rule fields that all of these kinds ignore, each with the first kind's reason."""
    ignores = kinds[0].ignores.items() if kinds else ()
    return {key: why for key, why in ignores if all(key in kind.ignores for kind in kinds)}


def unsupported_kind(protocols: Sequence[Protocol], kind: str) -> str:
    names = " and ".join(protocol.name for protocol in protocols)
    return f'{names} {"does" if len(protocols) == 1 else "do"} not support "{kind}"'
