"""What a protocol is to the rest of the proxy: a Session for each connection, and no I/O.

A session is a pure function of what it is told, in the manner of h11: bytes, ends of stream, verdicts and
the time go in; batches to decide and bytes to write come out. It owns no socket, no task and no clock.

The driver (``proxy.net.connection``) keeps these promises:

1. Calls never overlap, and all come from one thread. Between two calls about one side there may be calls
   about the other.
2. After ``receive`` returned a batch of one side, that side's next ``receive`` comes after ``decided`` for
   that batch. The other side goes on meanwhile.
3. The chunk given to ``receive`` stays valid and unchanged until everything that ``take`` handed out of it for
   the *other* side has been written. What a session keeps for longer, or sends back, it must copy.
4. After every call the driver takes and writes what waits for either side, in the order it was queued; all
   bytes for one peer go through one writer.
5. While ``paused(side)`` is true that side is not read, so TCP carries the back pressure to that peer. What a session
   left of a chunk it gets once it is false.
6. Batches of one side from ``tick`` and from ``receive`` may be open at the same time, but no two of ``tick``; and
   ``resolved`` may come between ``receive`` and ``decided``. Where among a chunk's bytes goes what is queued then is
   the session's to say.
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
from proxy.flow.credit import Stage
from proxy.spool.spool import QueueName, Spool
from proxy.stats.snapshot import ClientDescription, ConfirmState, LinkState
from proxy.stats.timing import Histogram

if TYPE_CHECKING:
    from sluice_native import Resources

Buffer = bytes | memoryview

#: Where a session says how many bytes may be read: as many as the driver likes.
NO_BOUND: Final = 1 << 30


class Close(Exception):  # noqa: N818 - an order to the driver, not a failure of ours
    """The session's connection must end: what it already queued is written, then both sides are closed.

    Attributes:
        reason: one word for the metric, e.g. ``bad_frame``; ``proxy.stats.closing`` has what they mean.
        detail: a sentence for the log that says what was seen.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class WireCounters:
    """What sessions count about the wire, shared by all connections of one data path; plain integers.

    Attributes:
        frames: whole frames seen, by the peer they came from.
        undecodable: headers that only the lenient parser could read, or that none could, by which of the two.
        round_trip: how long the broker took to answer requests, of as many as a session cares to time.
        routes: answers of name servers in which brokers' addresses are to be replaced, by what became of them:
            ``rewritten``, or ``left`` if some addresses were left as they are, or ``unread``.
    """

    frames: dict[Side, int] = field(default_factory=lambda: dict.fromkeys(Side, 0))
    undecodable: dict[str, int] = field(default_factory=dict)
    round_trip: Histogram = field(default_factory=Histogram)
    routes: dict[str, int] = field(default_factory=dict)


class CommandRequest(msgspec.Struct, gc=False):
    """What a client asks of Sluice itself, in the words of ``proxy.control.LimitCommand``.

    Attributes:
        verb: what is wanted.
        kind: of what is to be changed.
        name: of what is to be changed, as rules write it.
        rate_per_s: the new limit.
        handle: belongs to the session: what its answer needs.
    """

    verb: LimitCommandVerb
    kind: str = ""
    name: str = ""
    rate_per_s: float = 0.0
    handle: object = None


CommandStatus = Literal["taken", "full", "nobody"]
"""What became of a CommandRequest: ``replied`` follows; too much is open already; nobody takes such requests, so
that it goes on to the broker as all others do."""


def nobody_takes(ask: CommandRequest) -> CommandStatus:
    """Take no request to Sluice itself."""
    del ask
    return "nobody"


class Replayed(NamedTuple):
    """What a connection made of a queue that an earlier process left in the spool.

    Attributes:
        name: the queue's.
        sent: how many messages were sent on; likewise the next three.
        expired: were not, as their own time to live was over.
        dropped: nor were these, for the reason.
        left: are still there for another connection.
        reason: in words; empty if none was dropped, but for what cannot be read.
    """

    name: QueueName
    sent: int
    expired: int
    dropped: int
    left: int
    reason: str = ""


Confirming = plans.Confirming
Advance = plans.Advance
Terms = plans.Terms
NO_TERMS: Final = plans.NO_TERMS


TermsOf = Callable[[ConnectionInfo, tuple[Resource, ...], bool], Terms]
"""Says what the rules in force say to messages of a connection for some resources; the last is whether they are taken,
not sent. Of a connection that is exempt, and while limiting is off, it is NO_TERMS."""


def no_terms(connection: ConnectionInfo, resources: tuple[Resource, ...], consumes: bool) -> Terms:  # noqa: FBT001
    """Say that nothing is limited."""
    del connection, resources, consumes
    return NO_TERMS


def nobody_waits(requests: Sequence[Request]) -> None:
    """Do nothing about requests that wait no more."""
    del requests


class ListenerAddresses(NamedTuple):
    """Where a listener listens, and what is behind it.

    Attributes:
        protocol: the name of what is spoken there.
        listen: host and port. What a session sees is bound; what is configured may be a name, and port 0 any port.
        brokers: host and port of the broker and of its backups, as configured.
    """

    protocol: str
    listen: tuple[str, int]
    brokers: tuple[tuple[str, int], ...]


class Description(msgspec.Struct, frozen=True):
    """One connection as its session knows it, in the words of ``proxy.stats.snapshot.ConnectionState``.

    Attributes:
        client: what the client said of itself.
        requests: frames of the client.
        refused: requests that were refused, held ones among them once they are.
        resources: what was asked for, as ``kind:name``, at most MAX_RESOURCES_SHOWN.
        more_resources: how many others there were, as far as the session remembers.
        links: the links that are attached, at most MAX_LINKS_SHOWN, those that wait first.
        more_links: how many others there are.
    """

    client: ClientDescription = ClientDescription()
    requests: int = 0
    refused: int = 0
    resources: tuple[str, ...] = ()
    more_resources: int = 0
    links: tuple[LinkState, ...] = ()
    more_links: int = 0


class Session(ABC):
    """One connection's protocol state.

    Every method that takes ``now_ns`` means monotonic nanoseconds. ``receive``, ``tick``, ``decided`` and
    ``resolved`` may raise Close.
    """

    #: Set by sessions that use ``tick`` from the start on; the driver then starts a task for it. For others it does so
    #: once they call their waker.
    ticks: bool = False
    #: Set by the driver: the client has left, and what it has sent before is read to its end.
    client_left: bool = False

    @property
    def closing(self) -> Side | None:
        """Which peer has closed the connection in the protocol's words: then the end of a stream is a normal one."""
        return None

    @property
    def language(self) -> str:
        """What the client says it is written in, as the protocol spells it; empty until it says so, then for good."""
        return ""

    @property
    def product(self) -> str:
        """What the client says it is, with its version, as in ``client 2.3.1``; printable, and short.

        Empty until it says so, then for good; always empty where the protocol has none.
        """
        return ""

    @abstractmethod
    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        """Take what came from one peer; it is never empty.

        Returns:
            The requests to be decided, or None when there are none and the chunk's bytes are already queued.
            A batch can come from either side: deliveries and credit travel from the broker.
        """

    def left_bytes(self, side: Side) -> int:
        """Return how many bytes at the end of that peer's last chunk were not looked at, as there was much in it.

        The driver gives them again, as the next chunk of that side, when others had their turn.
        """
        del side
        return 0

    def held_back(self, side: Side) -> int:
        """Return how many bytes of that peer ``take_back`` would hand out."""
        del side
        return 0

    def take_back(self, side: Side) -> bytes:
        """Hand out the beginning of an unfinished frame, with which the next chunk of that side begins then.

        A driver need not ask; one that does spares the session a frame in two pieces. It asks right before ``receive``.
        """
        del side
        return b""

    @abstractmethod
    def decided(self, batch: Batch, now_ns: int) -> None:
        """Queue what the verdicts of ``batch`` make of its bytes, for either side.

        What is held goes to neither: it is copied, and what is still to come of it is added to the copy. What
        comes behind it goes on without it.
        """

    @abstractmethod
    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None:
        """Queue what becomes of a request that was held: its bytes for the broker, or the refusal.

        It comes after ``decided`` for the request's batch and before the end of its side's stream, once or, when the
        request was dropped, never. It may raise Close.
        """

    def take_responses(self) -> Sequence[Response]:
        """Hand out, once, the broker's answers seen since the last call; only asked if a handler wants them."""
        return ()

    def replied(self, ask: CommandRequest, reply: LimitCommandReply, now_ns: int) -> None:
        """Queue the answer to what the client asked of Sluice itself.

        It comes once for every CommandRequest that was ``taken``, after that ``receive``, unless the connection ends
        first.
        """
        del ask, reply, now_ns

    def describe(self) -> Description:
        """Return what is known of the connection; asked seldom, for an operator to see."""
        return Description()

    def keeps(self, side: Side) -> bool:
        """Say, from the end of that peer's stream on, whether it takes something for delivered that still waits here.

        First asked when the stream has ended: nothing is written to that peer any more then, and its held requests that
        expect an answer are given up. Asked again after every call, until nothing is kept.
        """
        del side
        return False

    @abstractmethod
    def end(self, side: Side, now_ns: int) -> None:
        """Take the end of one peer's stream; what was held back of an unfinished frame is queued.

        It comes when nothing is kept of that peer any more. Its other held requests end with the stream: their tickets
        have been dropped.
        """

    def farewell(self, detail: str, now_ns: int) -> None:
        """Queue the protocol's goodbyes, as Sluice is about to end the connection; ``detail`` is why, for people."""
        del detail, now_ns

    def dismisses_client(self, detail: str, now_ns: int) -> bool:
        """Say goodbye to the client of a connection that drains, if it waits for nothing more than that.

        The client is not read any more, though what it sent may still go on. Called often.

        Args:
            detail: why, for people.
            now_ns: on the monotonic clock.

        Returns:
            Whether that is queued; the stream to the client then ends behind it.
        """
        del detail, now_ns
        return False

    def heard_out(self, side: Side, chunk: memoryview) -> bool:
        """Take what a peer sends after the farewell, which goes nowhere, or nothing yet.

        Returns:
            Whether the stream to that peer may end: it has answered, or need not. Otherwise it ends a moment later.
        """
        del side, chunk
        return True

    def written(self, side: Side, now_ns: int) -> None:
        """Take note that all that was taken for that peer is with the kernel; called if ``hear_of_writes`` was."""
        del side, now_ns

    def alarm(self, reason: str, now_ns: int) -> None:
        """Take note that Sluice runs short of something: from now on its client's publishes are not to come.

        Who can be told is told, and then not read, if it publishes; or its publishes are refused as busy. What only
        consumes goes on, and so does what was read before. Called again when the reason changes. Of a connection that
        is exempt it is not called.

        Once it does not let publishes come for this reason, the session says so of the connection's stage (``block``);
        the driver takes that back when the alarm ends.

        Args:
            reason: for clients, of less than 255 bytes; empty when the alarm has ended.
            now_ns: on the monotonic clock.
        """
        del reason, now_ns

    def purge(self, resource: Resource, now_ns: int) -> tuple[int, int]:
        """Refuse what is put aside of a resource, and drop what cannot be refused; a few thousand at most in one call.

        What is not put aside, but held, stays.

        Returns:
            How many were refused, and how many dropped; called again until there are none.
        """
        del resource, now_ns
        return 0, 0

    def waiting(self) -> Iterable[tuple[Resource, int]]:
        """Return the resource of messages that wait in memory, and since when; at least the oldest of each.

        The driver knows itself of those that are held by a ticket, if they are held from the beginning.
        """
        return ()

    def stages(self) -> Iterable[Stage]:
        """Return the stages that the session has made and that still are: channels, and resources with a queue."""
        return ()

    def settle(self, now_ns: int) -> Batch | None:
        """End what costs something, as the connection has ended, whatever ended it; ``close`` follows.

        Returns:
            What is still to be charged or given back, and to be counted, without requests; None if nothing is.
        """
        del now_ns
        return None

    def close(self) -> None:  # noqa: B027 - few sessions have anything to do
        """Give back what the session has taken of things that it shares with others; nothing else follows."""

    @abstractmethod
    def take(self, side: Side) -> Sequence[Buffer]:
        """Hand out, once, all that may be written to that peer now, as few large slices as possible."""

    @abstractmethod
    def backlog_bytes(self, side: Side) -> int:
        """Return how many bytes of the session's own wait for that peer and may not be written yet."""

    def paused(self, side: Side) -> bool:
        """Return whether that peer should not be read; asked again after every call."""
        del side
        return False

    @abstractmethod
    def in_flight(self) -> int:
        """Return how many requests are held, or forwarded and without an answer, long polls left aside; for a drain."""

    @abstractmethod
    def between_frames(self, side: Side) -> bool:
        """Return whether that peer's stream stands at a frame boundary, so that it may end here."""

    def within_frame(self, side: Side) -> bool:
        """Return whether a frame of that peer has begun and not ended.

        The peer has promised its end: a client that does not go on with it is not waited for for ever. A message of
        several frames is no such promise, as its sender may have to wait for credit.
        """
        return not self.between_frames(side)

    def missing_bytes(self, side: Side) -> int:
        """Return how many bytes may be read without reading beyond the frame in hand; at least 1.

        A drain reads no more than that of a client, so that it takes no further requests. Without anything
        better to say, byte by byte is always right.
        """
        del side
        return 1

    def most_bytes(self, side: Side) -> int:
        """Return how many bytes to read of that peer next at most; at least 1, asked before each read.

        ``receive`` takes its time in one go. A session that meets input that is dear to read asks for small
        reads here, so that other connections get their turn in between.
        """
        del side
        return NO_BOUND

    def reads_fast(self, side: Side) -> bool:
        """Say whether ``receive`` and ``decided`` take so little for that peer's bytes that it may get large reads."""
        del side
        return False

    def takes_turns(self, side: Side) -> bool:
        """Say whether that peer's bytes take long of late: asked before each read, and where bytes are left.

        The driver then has connections of which this is said wait for each other, so that all others together wait for
        one chunk of theirs at a time.
        """
        del side
        return False

    def next_tick_ns(self) -> int | None:
        """Return when ``tick`` wants to be called next, or None while only a wake-up should call it.

        Asked at the start and after each ``tick``: a session that sets a timer elsewhere calls its waker.
        """
        return None

    def tick(self, now_ns: int) -> Batch | None:
        """Do what is due: a timer has passed, or someone called the session's waker.

        This is how a session hears from outside its connection: another connection, a broker-wide hub, a
        ticket that was resolved.
        """
        del now_ns
        return None


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What the driver gives a new session.

    Attributes:
        connection: whose session it is.
        counters: where frames are counted.
        wake: asks the driver to call ``tick`` soon; callable from any task of the data path.
        wants_responses: some handler asked to see the broker's answers.
        limits_kind: says whether any rule in force limits resources of a kind; the answer changes with the rules. A
            session need not make requests of what nobody limits.
        options: the protocol's own typed configuration.
        ask: asks the operator's side what a client wants of Sluice itself; called in ``receive``.
        give_up: drops held requests that nobody wants any more: ``resolved`` does not come for them.
        pass_on: drops the tickets of held requests that go on all the same, counted as admitted: ``resolved`` does not
            come for them. What they cost is for the session to charge, which counts that.
        lose: counts requests that were to be decided later and go nowhere any more; the same one may come many times.
        limiting: says whether limiting is on at all; what a session refuses by itself passes while it is off.
        room: for frames that have to be whole before they can be decided; shared by all sessions.
        hub: what all sessions of one broker share, whatever their listener; see ``Protocol.open_hub``.
        resources: where compiled code finds the limits of what requests are for; None where there is none.
        spool: where what waits can be put aside, if there is one; then ``connection.spools`` is true, too.
        stage: this connection's, for what its session queues: it is what ``send`` is called on, and the driver does not
            read the client while it is out of credit. Other stages that the session makes give what this one ``gives``.
        writer: the stage of what is queued for the broker.
        hear_of_writes: has ``written`` called from now on, or no more. Nobody hears of writes at first.
        end_client: ends the stream to a client that has closed the connection, soon, and behind what is queued; what is
            kept of the client still goes on.
        client_silent: says that nothing of the client was read for half of its heartbeat.
        replayed: writes down what became of a queue of an earlier process.
        terms: what the rules in force say to messages for some resources.
        tightest: what the tightest limit of any name of some kinds lets through; None if there is none.
        after_consume: says whether any rule in force has consumers confirm what is published.
        rules_version: changes when the rules in force do, so that ``terms`` may say something else.
        listeners: all listeners of the data path, in the order of the configuration; asked once there are bytes.
        warn: writes a warning to the log, at a bounded rate: what it is about, always in the same words, and what was
            seen. Counting all of them is the session's.
    """

    connection: ConnectionInfo
    counters: WireCounters
    wake: Callable[[], None]
    wants_responses: bool
    limits_kind: Callable[[str], bool]
    options: Any
    ask: Callable[[CommandRequest], CommandStatus] = nobody_takes
    give_up: Callable[[Sequence[Request]], None] = nobody_waits
    pass_on: Callable[[Sequence[Request]], None] = nobody_waits
    lose: Callable[[Sequence[Request]], None] = nobody_waits
    limiting: Callable[[], bool] = lambda: True
    room: GatherRoom = field(default_factory=GatherRoom)
    hub: Any = None
    resources: "Resources | None" = None
    spool: Spool | None = None
    stage: Stage = field(default_factory=lambda: Stage("connection"))
    writer: Stage = field(default_factory=lambda: Stage("writer"))
    hear_of_writes: Callable[[bool], None] = lambda _: None
    end_client: Callable[[], None] = lambda: None
    client_silent: Callable[[], None] = lambda: None
    replayed: Callable[[Replayed], None] = lambda _: None
    terms: TermsOf = no_terms
    tightest: Callable[[Collection[str]], Advance | None] = lambda _: None
    after_consume: Callable[[], bool] = lambda: False
    rules_version: Callable[[], int] = lambda: 0
    listeners: Callable[[], Sequence[ListenerAddresses]] = tuple
    warn: Callable[[str, str], None] = lambda *_: None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resources that a protocol makes, and what holds for it unless an operator says otherwise.

    Attributes:
        name: the word in rules, metrics and the API.
        meaning: what such a resource is and how its name is written, for people to read.
        spelling: how its names are written, as ``GROUP@TOPIC``, if they have parts.
        rate_per_s: the limit of each when the operator gives none at all; None is unlimited.
        action: what a rule does that does not say it.
        credit_waits: which connections, though, wait for credit under a rule that does not say an action: those of this
            protocol or version. Empty: none.
        max_delay_s: with action ``delay``, how long a rule holds that does not say it, in seconds.
        consumes: its requests take messages, so that the scopes of those who send do not limit them.
        patience_s: how long clients wait for an answer unless they are told otherwise, in seconds; None is unknown.
        in_commands: clients may ask for its limits, and change them, in the protocol itself.
        refuses: there is an answer that refuses such a request. Where there is none, all wait for as long as it takes,
            whatever the action.
        waits: a sentence for people that says which requests have no such answer and wait; empty where all have one.
        by_credit: what a limit that delays does not admit yet is not sent before it does, as the sender has no credit
            for it. So it waits for as long as it takes, and not in Sluice: nothing of it is put aside.
        after_consume: the ack of consumers can confirm such a message to its sender, in place of the broker's; a rule
            with ``confirm = "after_consume"`` for another kind is an error.
        queues: to how many queues each such message goes; None is what the rule says. Where it does not say that,
            its messages are left to the broker.
    """

    name: str
    meaning: str
    spelling: str = ""
    rate_per_s: float | None = None
    action: Action = "reject"
    credit_waits: str = ""
    max_delay_s: float = DEFAULT_MAX_DELAY_S
    consumes: bool = False
    patience_s: float | None = None
    in_commands: bool = False
    refuses: bool = True
    waits: str = ""
    by_credit: bool = False
    after_consume: bool = False
    queues: int | None = None


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol as the entry-point group ``sluice.protocols`` names it.

    Attributes:
        name: the word after ``--protocol``.
        kinds: the kinds of resources it makes; a rule for another kind is an error. The first is the one that most
            limits are for: forms begin with it, and reports need not say it. Without any, nothing is limited
            there.
        default_rules: built-in rules, weaker than any rule of the operator's with the same name; they
            carry the protocol's exemptions.
        open_session: makes the session of a new connection.
        open_hub: makes what the sessions of one broker share: what connections tell each other. Who changes it calls
            the ``wake`` of those whom that concerns.
        held_bytes: says, given that, what these sessions hold in memory for their clients or the broker, outside of
            the spool; 0 if nobody counts it.
        confirm_states: says, given the same, how what is published is confirmed where a rule has consumers do that, and
            the time in monotonic nanoseconds; by destination.
        options: a pydantic model or dataclass; the listener's ``options`` table is read into it.
        check_rule: raises RuleError for a rule that the protocol cannot follow, or that can never match.
        reads_by: says of a listener's options what will read its frames, where there is a choice; empty where not.
        always_refuses: says, of a listener's options and a resource, as which rule its sessions refuse what is for that
            resource while limiting is on, whatever the limits are; empty where they do not.
        half_closes: a peer may end its stream and still wait for what the other one has to say. Where none does, the
            end of one stream is the end of the connection, and a broker that hangs does not keep it open.
        second_port_offset: where a broker has a second port, that port minus the main one; 0 is none. Sessions of both
            share what those of one broker do.
        kinds_meant: the kinds that may be meant by words that are none.
        scopes: the kinds of scopes that its requests and connections have, besides those of all: of
            ``limiter.rules.resource.SCOPES``. A rule for one that no protocol in use has is an error.
        busy_attempts: how often clients try in all when they are refused as busy, by the language that sessions say
            they are written in. Of the others, once.
        certificate_logins: clients may log in by the certificate that they show in TLS, which a broker does not see
            where that ends before it.
        doubts: says what is allowed but probably not meant, of a listener's options and all listeners as configured.
    """

    name: str
    kinds: tuple[Kind, ...]
    default_rules: tuple[Rule, ...]
    open_session: Callable[[SessionContext], Session]
    options: type[Any]
    open_hub: Callable[[], Any] = lambda: None
    held_bytes: Callable[[Any], int] = lambda _: 0
    confirm_states: Callable[[Any, int], Sequence[ConfirmState]] = lambda *_: ()
    check_rule: Callable[[Rule], None] = lambda _: None
    reads_by: Callable[[Any], str] = lambda _: ""
    always_refuses: Callable[[Any, Resource], str] = lambda *_: ""
    half_closes: bool = True
    second_port_offset: int = 0
    kinds_meant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    busy_attempts: Mapping[str, int] = field(default_factory=dict)
    certificate_logins: bool = False
    doubts: Callable[[Any, Sequence[ListenerAddresses]], Iterable[str]] = lambda *_: ()

    def has(self, kind: str) -> bool:
        """Return whether its requests can be limited by rules of a kind, of resources or of scopes."""
        if not self.kinds:
            return False
        return kind in (CLIENT, CERTIFICATE, LISTENER, *self.scopes) or any(kind == each.name for each in self.kinds)


def kinds_of(protocols: Iterable[Protocol]) -> tuple[Kind, ...]:
    """Return the kinds that protocols make, each once, in the order of their own lists.

    Protocols may have a kind in common: what the first says of it holds. But if one refuses by default and another
    gives no credit, each does so on its own connections.
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
    """Say that none of some protocols has a kind."""
    names = " and ".join(protocol.name for protocol in protocols)
    return f"{names} {'knows' if len(protocols) == 1 else 'know'} no {kind.replace('_', ' ')}"
