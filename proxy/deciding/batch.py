"""The protocol-neutral types between sessions and handlers."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from limiter.plans import plans
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension

Refusal = Literal["answered", "silent", "impossible"]
"""With an answer, silently if the client asked for none, or not at all.

``impossible``: the client assumes that the broker has the message. The request passes or waits.
"""
Asks = plans.Asks


class MessageIds(Protocol):
    def message_id(self, request: "Request") -> bytes:
        """Return the client's id, equal for each repeat. Empty: there is none."""


class Side(Enum):
    """A peer, or the direction of traffic *from* it."""

    CLIENT = "client"
    BROKER = "broker"

    # Enum's own hash is Python code and several times slower.
    __hash__ = object.__hash__

    # A property would be several times slower.
    other: "Side"


Side.CLIENT.other, Side.BROKER.other = Side.BROKER, Side.CLIENT


class ConnectionInfo(msgspec.Struct, frozen=True):
    id: int
    listener: str
    scope: str  # shares the listener's limits. A VIP port has its main port's scope
    peer: str
    address: str  # the client's IP address. IPv4-mapped IPv6 is IPv4
    exempt: bool = False
    scopes: tuple[Resource, ...] = ()  # such as its user
    spools: bool = False  # its requests may get a Later
    tls: str = ""  # such as ``TLSv1.3``
    certificate: str = ""  # name in it
    local: str = ""  # the address connected to, normalized


class Request(msgspec.Struct, gc=False):
    resources: tuple[Resource, ...]  # all must admit it. Usually one
    messages: int  # at least 1, 0 if the answer is charged
    size_bytes: int  # with framing
    producer_group: str
    refusal: Refusal
    # Requests of one connection with equal keys never overtake each other. None: independent.
    order_key: str | int | None
    handle: object  # opaque, owned by the session. Its verdict also covers bytes still to come
    consumes: bool = False  # scopes of producers do not limit it
    by_answer: bool = False  # its cost arrives later, as a Charge
    since_ns: int = 0  # when it was spooled, or 0
    # If its ticket is dropped, the request comes again, perhaps on another connection.
    returns: bool = False
    # Above 0: a request for credit, for ``messages`` to this many permits of ``size_bytes`` each. Without a verdict,
    # all are granted. A held one waits as long as necessary, and its resolved ticket sets ``messages`` to the grant. It
    # cannot be refused, and does not count as admitted: ``Paid`` messages do.
    most: int = 0
    asks: Asks = "all"  # shadow rules never decide on credit
    # False: delay rules refuse it, or charge and pass it if it cannot be refused.
    may_wait: bool = True
    message_id: bytes = b""  # set once the request is held


class Group(NamedTuple):
    request: Request
    indexes: Sequence[int]  # in ascending order
    messages: Sequence[int]


class Response(msgspec.Struct, gc=False):
    request_code: int | None
    resources: tuple[Resource, ...]  # empty: the request was not limitable
    status: int
    size_bytes: int


class Verdict(msgspec.Struct, frozen=True):
    """A request without a verdict passes.

    The first Refuse is kept. Refuse overrides Hold and Later, and all three override Shadow. Requests that cannot be
    refused get no Refuse. A request for credit gets a Grant or, stronger, a Hold.
    """


class Refuse(Verdict, frozen=True):
    resource: Resource  # over its limit: a resource, scope or total
    rule: str  # for log, metric and answer
    wait_us: int  # as far as known
    busy_code: int | None = None  # None: the protocol's default
    # Permits that the rule admits at once, if the request can never be admitted.
    most: int | None = None
    most_of: Dimension = "messages"


class Shadow(Verdict, frozen=True):
    """The request passes, although a shadow rule would refuse it."""

    resource: Resource  # over its limit
    rule: str


class Ticket:
    """One held request. It is resolved once (pass or refuse), unless it is dropped first.

    Its handler resolves it, on the event loop. ``on_dropped`` is called if the client left or another handler refused
    the request.
    """

    __slots__ = ("_on_dropped", "_on_resolved", "dropped", "refuse", "resolved", "shadow")

    def __init__(self, on_dropped: Callable[[], None]) -> None:
        self.resolved = False
        self.dropped = False
        self.refuse: Refuse | None = None  # None: pass
        self.shadow: Shadow | None = None  # if it passes
        self._on_dropped: Callable[[], None] | None = on_dropped
        self._on_resolved: Callable[[Ticket], None] | None = None

    def attach(self, on_resolved: "Callable[[Ticket], None]") -> None:
        """Call ``on_resolved`` when the ticket is resolved, immediately if it already is."""
        if self.resolved:
            on_resolved(self)
        elif not self.dropped:
            self._on_resolved = on_resolved

    def resolve(self, refuse: Refuse | None, shadow: Shadow | None = None) -> None:
        """No effect if the ticket is resolved or dropped."""
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
        """Abandon the request. No effect if the ticket is resolved or dropped."""
        if self.resolved or self.dropped:
            return
        self.dropped = True
        self._on_resolved = None
        on_dropped, self._on_dropped = self._on_dropped, None
        if on_dropped is not None:
            on_dropped()


class Hold(Verdict, frozen=True):
    """The request waits in the session until its ticket is resolved."""

    resource: Resource  # waited for
    rule: str
    ticket: Ticket
    spools: bool = False  # later requests of its kind are spooled behind it, undecided


Verdicts = Mapping[int, Verdict]
"""By index in the batch. Other requests pass."""

NO_VERDICTS: Final[Verdicts] = {}


def drop_tickets(verdicts: Verdicts) -> None:
    for verdict in verdicts.values():
        if isinstance(verdict, Hold):
            verdict.ticket.drop()


class Grant(Verdict, frozen=True):
    """A request for credit gets only this many messages, at least one. A held one gets its own ``messages``."""

    messages: int


class Later(Verdict, frozen=True):
    """The request comes again in a later batch, once the held one before it is resolved.

    Only for requests that cannot be refused or can be spooled. They cost their bytes but no ticket, and are not counted
    yet.
    """


LATER: Final = Later()


class Charge(msgspec.Struct, gc=False):
    """A cost that becomes known after its request was decided. It cannot be refused."""

    resources: tuple[Resource, ...]
    messages: int  # beyond the decided cost. Negative: given back
    size_bytes: int = 0  # as ``messages``
    producer_group: str = ""
    consumes: bool = False  # its request consumes. An empty answer is a charge of 0
    asks: Asks = "all"
    counts: bool = True  # as admitted. False for a correction of credit


class Paid(msgspec.Struct, gc=False):
    """Messages sent on credit: already decided, and counted as admitted."""

    resources: tuple[Resource, ...]
    requests: int
    messages: int
    size_bytes: int
    consumes: bool = False


class Batch:
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
        self.charges = charges  # debited without a decision
        self.paid = paid
        self.ids = ids
        self.verdicts: dict[int, Verdict] = {}  # only the pipeline adds to it
        self.bypassed: dict[str, str] = {}  # reason by skipped handler

    @property
    def spools(self) -> bool:
        return self.connection.spools and self.side is Side.CLIENT

    @property
    def came_back(self) -> bool:
        requests = self.requests
        return self.connection.spools and len(requests) > 0 and requests[0].since_ns > 0

    @cached_property
    def groups(self) -> Sequence[Group]:
        """Requests that are decided alike, in order of first appearance.

        A request for credit is its own group. So is one whose ``order_key`` spans several groups, because each depends
        on those before it.
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
        requests = self.requests
        return [0 if requests[index].by_answer else requests[index].size_bytes for index in indexes]

    def add_verdicts(self, verdicts: Verdicts) -> None:
        """Merge a handler's verdicts as ``Verdict`` says, or none of them. Overridden ones drop their tickets.

        Raises:
            IndexError: a verdict for a request that is not in the batch.
            TypeError: a value is not a verdict, or its attribute has the wrong type.
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
    """``order_key`` comes first."""
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
        raise TypeError(f"{verdict!r} is not a valid verdict for request {index}")
    for name, kind in _FIELDS.get(type(verdict), {}).items():
        value = getattr(verdict, name)
        if not isinstance(value, kind):
            raise TypeError(f"{verdict!r} has an invalid {name}: {value!r}")
