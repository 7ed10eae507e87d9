"""The protocol-neutral words between protocols and handlers: Request, Response, Charge, Batch, Verdict, Ticket.

Sessions make batches out of bytes and turn verdicts into bytes; handlers see only what is defined here. No protocol, no
I/O and no clock.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from limiter.plans import plans
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension

Refusal = Literal["answered", "silent", "impossible"]
"""What a refusal is to a request: its client is told; its client chose not to be told; or it is impossible, as the
client believes that the broker has the message. Then it passes, or waits.
"""
Asks = plans.Asks
"""Which rules decide."""


class MessageIds(Protocol):
    """The ids that clients have given the messages of the current chunk."""

    def message_id(self, request: "Request") -> bytes:
        """Return the id of a request's message, the same for each repeat; empty without one."""


class Side(Enum):
    """One of the two peers of a connection; also the direction of what comes *from* it."""

    CLIENT = "client"
    BROKER = "broker"

    # Enum's own hash is Python code, and costs several times a lookup.
    __hash__ = object.__hash__

    # The opposite peer. An attribute, as a property of an enum costs several times as much.
    other: "Side"


Side.CLIENT.other, Side.BROKER.other = Side.BROKER, Side.CLIENT


class ConnectionInfo(msgspec.Struct, frozen=True):
    """The client of a connection, as handlers and operators see it."""

    id: int  # number of the connection, unique within one data path
    listener: str
    scope: str  # what the listener's limits are shared under; a VIP port names its main port's scope
    peer: str  # the client's ``address:port``, as in every log line about it
    address: str  # the client's IP address; IPv4 mapped into IPv6 as IPv4
    exempt: bool = False  # the listener's configuration exempts this client
    scopes: tuple[Resource, ...] = ()  # others that the connection belongs to, such as its user; its batches carry them
    spools: bool = False  # its session can spool requests, so these may get a Later
    tls: str = ""  # the version of TLS, such as ``TLSv1.3``; empty without
    certificate: str = ""  # the name in the client's certificate; empty without one
    local: str = ""  # the IP address that the client connected to, spelled like ``address``


class Request(msgspec.Struct, gc=False):
    """One limitable request of a client."""

    resources: tuple[Resource, ...]  # everything it is charged to; all must admit. Mostly one.
    messages: int  # its cost in messages, at least 1; 0 if its answer is charged
    size_bytes: int  # on the wire, with framing
    producer_group: str
    refusal: Refusal  # what a refusal is to it
    # Requests of one connection with equal keys never overtake each other; None is independent.
    order_key: str | int | None
    handle: object  # belongs to the session, opaque to handlers. A verdict on it also covers bytes still to come.
    consumes: bool = False  # scopes of producers do not limit it
    by_answer: bool = False  # its answer tells its cost, and comes as a Charge
    since_ns: int = 0  # since when it waits, if it was spooled; otherwise 0
    # If its ticket is dropped, it comes again, perhaps on another connection: that is not counted.
    returns: bool = False
    # It asks for credit: for ``messages`` permits at least and this many at most, of ``size_bytes`` each. Without a
    # verdict all are granted. A held one waits for as long as it takes, and its ``messages`` are what it is granted
    # when its ticket is resolved. It cannot be refused, and is not counted as admitted: ``Paid`` messages are. 0: an
    # ordinary request.
    most: int = 0
    asks: Asks = "all"  # which rules decide. Shadow rules never decide on credit.
    # It can be held. Otherwise delay rules refuse it; what cannot be refused either passes and is charged.
    may_wait: bool = True
    message_id: bytes = b""  # as in ``MessageIds``; set once it is held


class Group(NamedTuple):
    """The requests of a batch that are decided alike."""

    request: Request  # the first of them
    indexes: Sequence[int]  # of all in the batch, ascending
    messages: Sequence[int]  # of each


class Response(msgspec.Struct, gc=False):
    """One answer of the broker, made only when some handler asks for responses."""

    request_code: int | None  # the protocol's number of the request, or None if unknown
    resources: tuple[Resource, ...]  # of the request; empty if it was not limitable
    status: int  # the protocol's own result code
    size_bytes: int


class Verdict(msgspec.Struct, frozen=True):
    """A handler's decision about one request; a request without a verdict passes.

    A request keeps the first Refuse. Hold and Later give way to a Refuse, Shadow to all three. One that cannot be
    refused gets none. A request for credit gets a Grant or a Hold, which is the stronger, and no Later.
    """


class Refuse(Verdict, frozen=True):
    """The request does not reach the broker; the session answers it in the protocol's own words."""

    resource: Resource  # the resource, scope or total whose limit refused it
    rule: str  # name of that rule, for log, metric and answer
    wait_us: int  # microseconds until the same request could be admitted, as far as is known
    busy_code: int | None = None  # the protocol's number to refuse it with; None leaves that to the protocol
    # The most that the rule admits at once, if the request costs more and can never be admitted; else None.
    most: int | None = None
    most_of: Dimension = "messages"


class Shadow(Verdict, frozen=True):
    """The request passes, and is counted as one that a shadow rule would refuse."""

    resource: Resource  # the resource, scope or total whose limit would have refused it
    rule: str


class Ticket:
    """The claim of one held request: resolved once, to pass or to be refused, unless it is dropped before.

    The handler that made it resolves it, on the event loop; the driver attaches itself and tells the session.
    ``on_dropped`` is called if its client left, or another handler refused it.
    """

    __slots__ = ("_on_dropped", "_on_resolved", "dropped", "refuse", "resolved", "shadow")

    def __init__(self, on_dropped: Callable[[], None]) -> None:
        self.resolved = False
        self.dropped = False
        self.refuse: Refuse | None = None  # None is pass
        self.shadow: Shadow | None = None  # if it passes, what a shadow rule says about it
        self._on_dropped: Callable[[], None] | None = on_dropped
        self._on_resolved: Callable[[Ticket], None] | None = None

    def attach(self, on_resolved: "Callable[[Ticket], None]") -> None:
        """Call a function when the ticket is resolved, at once if it is already."""
        if self.resolved:
            on_resolved(self)
        elif not self.dropped:
            self._on_resolved = on_resolved

    def resolve(self, refuse: Refuse | None, shadow: Shadow | None = None) -> None:
        """Resolve the request; without effect once it was resolved or dropped."""
        if self.resolved or self.dropped:
            return
        self.resolved = True
        self.refuse = refuse
        self.shadow = shadow
        self._on_dropped = None
        on_resolved, self._on_resolved = self._on_resolved, None
        if on_resolved is not None:
            on_resolved(self)

    def drop(self) -> None:
        """Give up the request; without effect once it was resolved or dropped."""
        if self.resolved or self.dropped:
            return
        self.dropped = True
        self._on_resolved = None
        on_dropped, self._on_dropped = self._on_dropped, None
        if on_dropped is not None:
            on_dropped()


class Hold(Verdict, frozen=True):
    """The request waits in the session until its ticket is resolved."""

    resource: Resource  # the resource, scope or total whose limit it waits for
    rule: str
    ticket: Ticket
    spools: bool = False  # later requests of its kind are spooled behind it, undecided


Verdicts = Mapping[int, Verdict]
"""Verdicts by the request's index in its batch. Other requests pass."""

NO_VERDICTS: Final[Verdicts] = {}


def drop_tickets(verdicts: Verdicts) -> None:
    """Drop the tickets among verdicts without effect."""
    for verdict in verdicts.values():
        if isinstance(verdict, Hold):
            verdict.ticket.drop()


class Grant(Verdict, frozen=True):
    """A request for credit gets only this many messages, at least one; it may ask for the rest again.

    A held one is granted its ``messages`` when it is resolved.
    """

    messages: int


class Later(Verdict, frozen=True):
    """The request is not decided: it comes again in a later batch, when the held one before it is resolved.

    For requests that cannot be refused, or can be spooled, behind a held one with their order key. They cost their
    bytes and no ticket, and are not counted yet.
    """


LATER: Final = Later()


class Charge(msgspec.Struct, gc=False):
    """A cost that became known after its request had been decided; it cannot be refused."""

    resources: tuple[Resource, ...]
    messages: int  # the cost beyond what was decided; negative is given back
    size_bytes: int = 0  # the cost in bytes beyond that; likewise
    producer_group: str = ""
    consumes: bool = False  # its request consumes; an empty answer is a charge of 0
    asks: Asks = "all"  # which rules it is charged to
    counts: bool = True  # it is counted as admitted; a correction of credit is not


class Paid(msgspec.Struct, gc=False):
    """Messages that came on credit: already decided, and counted as admitted."""

    resources: tuple[Resource, ...]
    requests: int
    messages: int  # in these requests
    size_bytes: int
    consumes: bool = False


class Batch:
    """The requests of one chunk from one peer, decided together."""

    def __init__(
        self,
        connection: ConnectionInfo,
        side: Side,
        requests: Sequence[Request],
        charges: Sequence[Charge] = (),
        paid: Sequence[Paid] = (),
        *,
        ids: MessageIds | None = None,
    ) -> None:
        self.connection = connection
        self.side = side
        self.requests = requests
        self.charges = charges  # costs to be debited without a decision
        self.paid = paid
        self.ids = ids  # of its messages; None if there are none
        self.verdicts: dict[int, Verdict] = {}  # of the pipeline so far; only the pipeline adds to it
        self.bypassed: dict[str, str] = {}  # handlers that were skipped, with the reason

    @property
    def spools(self) -> bool:
        return self.connection.spools and self.side is Side.CLIENT

    @property
    def came_back(self) -> bool:
        """Whether all of it was spooled before."""
        requests = self.requests
        return self.connection.spools and len(requests) > 0 and requests[0].since_ns > 0

    @cached_property
    def groups(self) -> Sequence[Group]:
        """Groups of requests that are decided alike, in order of first appearance.

        Requests for credit stand alone, and so do those with an ``order_key`` that spans several groups: each depends
        on the outcome of those before it.
        """
        requests, keys = self.requests, [_alike(request) for request in self.requests]
        first: dict[object, tuple[object, ...]] = {}
        spread = {key[0] for key in keys if key[0] is not None and first.setdefault(key[0], key) != key}
        alike: dict[tuple[object, ...], list[int]] = {}
        for index, (key, request) in enumerate(zip(keys, requests, strict=True)):
            alone = request.most or request.order_key in spread
            alike.setdefault((*key, index) if alone else key, []).append(index)
        return [
            Group(requests[indexes[0]], indexes, [requests[index].messages for index in indexes])
            for indexes in alike.values()
        ]

    def size_bytes(self, indexes: Sequence[int]) -> Sequence[int]:
        """Return costs in bytes: 0 for a request that is charged by its answer."""
        requests = self.requests
        return [0 if requests[index].by_answer else requests[index].size_bytes for index in indexes]

    def add_verdicts(self, verdicts: Verdicts) -> None:
        """Merge a handler's verdicts, as ``Verdict`` says; dropped verdicts drop their tickets.

        Nothing is merged if one of them is wrong.

        Raises:
            IndexError: a verdict names a request that is not in the batch.
            TypeError: a value is no verdict, or a verdict's attributes are not of their types.
        """
        for index, verdict in verdicts.items():
            if not 0 <= index < len(self.requests):
                raise IndexError(f"verdict for request {index} of a batch of {len(self.requests)}")
            _check_verdict(index, verdict)
        for index, verdict in verdicts.items():
            if self._may_be(index, verdict):
                self._merge(index, verdict)

    def _may_be(self, index: int, verdict: Verdict) -> bool:
        if not isinstance(verdict, Refuse | Later | Grant):
            return True
        request = self.requests[index]
        if request.most or isinstance(verdict, Grant):
            return isinstance(verdict, Grant) and 0 < verdict.messages < request.most
        if request.refusal == "impossible":
            return isinstance(verdict, Later)
        return isinstance(verdict, Refuse) or (self.spools and not request.consumes)

    def _merge(self, index: int, verdict: Verdict) -> None:
        present = self.verdicts.get(index)
        if present is None:
            self.verdicts[index] = verdict
            return
        gives_way = verdict
        fewer = isinstance(verdict, Grant) and isinstance(present, Grant) and verdict.messages < present.messages
        if fewer or _weight(verdict) > _weight(present):
            self.verdicts[index] = verdict
            gives_way = present
        if isinstance(gives_way, Hold):
            gives_way.ticket.drop()


def _alike(request: Request) -> tuple[object, ...]:
    """Return what is equal for requests that are decided alike; ``order_key`` comes first."""
    who = request.order_key, request.resources, request.producer_group, request.consumes, request.by_answer
    return *who, request.refusal == "impossible", request.asks, request.may_wait, request.most


def _weight(verdict: Verdict) -> int:
    return next(weight for weight, kinds in enumerate(_WEIGHTS) if isinstance(verdict, kinds))


_WEIGHTS: Final[Sequence[type[Verdict] | tuple[type[Verdict], ...]]] = (Shadow, Grant, (Hold, Later), Verdict)


_LIMIT: Final[dict[str, Any]] = {"resource": Resource, "rule": str}
_FIELDS: Final[dict[type[Verdict], dict[str, Any]]] = {
    Refuse: _LIMIT | {"wait_us": int, "busy_code": int | None},
    Hold: _LIMIT | {"ticket": Ticket},
    Shadow: _LIMIT,
    Grant: {"messages": int},
}


def _check_verdict(index: int, verdict: object) -> None:
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{verdict!r} is not a verdict for request {index}")
    for name, kind in _FIELDS.get(type(verdict), {}).items():
        value = getattr(verdict, name)
        if not isinstance(value, kind):
            raise TypeError(f"{verdict!r} has {value!r} where its {name} belongs")
