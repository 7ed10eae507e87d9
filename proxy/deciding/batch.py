"""Protocol-neutral types that sessions and handlers exchange."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from limiter.plans import plans
from limiter.rules.resource import Resource
from limiter.rules.rule import Dimension

Refusal = Literal["answered", "silent", "impossible"]
"""How a request can be refused.

``answered``: the client gets an error response. ``silent``: the client expects no response and gets none.
``impossible``: the request passes or waits, because the client assumes that the broker has the message.
"""
Asks = plans.Asks


class MessageIds(Protocol):
    def message_id(self, request: "Request") -> bytes:
        """Return the message id that the client reuses in retries, or empty bytes if there is none."""


class Side(Enum):
    """A peer, or the direction of the traffic that comes from it."""

    CLIENT = "client"
    BROKER = "broker"

    # Enum's own hash is written in Python and is much slower.
    __hash__ = object.__hash__

    # A property would be much slower.
    other: "Side"


Side.CLIENT.other, Side.BROKER.other = Side.BROKER, Side.CLIENT


class ConnectionInfo(msgspec.Struct, frozen=True):
    id: int
    listener: str
    scope: str  # listeners with the same scope share limits. A VIP port uses the scope of its main port
    peer: str
    address: str  # the client's IP address. IPv4-mapped IPv6 addresses become IPv4
    exempt: bool = False
    scopes: tuple[Resource, ...] = ()  # such as the user
    spools: bool = False  # whether requests may get a Later
    tls: str = ""  # version, such as ``TLSv1.3``
    certificate: str = ""  # name in the client's certificate
    local: str = ""  # address that the client connected to, normalized


class Request(msgspec.Struct, gc=False):
    resources: tuple[Resource, ...]  # usually one. All of them must admit the request
    messages: int  # at least 1, or 0 if the response determines the cost
    size_bytes: int  # including framing
    producer_group: str
    refusal: Refusal
    # Requests on a connection that have the same key never overtake each other. None if order does not matter.
    order_key: str | int | None
    handle: object  # opaque, owned by the session. The verdict also covers bytes that have not arrived yet
    consumes: bool = False  # whether a consumer sent it. If so, producer scopes do not limit it
    by_answer: bool = False  # whether its cost is determined by the response (see Charge)
    since_ns: int = 0  # when it was spooled, otherwise 0
    # The request is submitted again if its ticket is dropped, perhaps on another connection.
    returns: bool = False
    # Above 0 in a request for credit, which asks for ``messages`` to ``most`` permits of ``size_bytes`` each. Without a
    # verdict, it gets ``most``. If held, it waits as long as necessary, and ``messages`` is set to the grant before its
    # ticket is resolved. It is never refused and does not count as admitted.
    most: int = 0
    asks: Asks = "all"  # shadow rules never decide on credit
    # If False, delay rules refuse the request. If it cannot be refused, they charge it and let it pass.
    may_wait: bool = True
    message_id: bytes = b""  # set when the request is held


class Group(NamedTuple):
    request: Request
    indexes: Sequence[int]  # in ascending order
    messages: Sequence[int]


class Response(msgspec.Struct, gc=False):
    request_code: int | None
    resources: tuple[Resource, ...]  # empty if the request was not limitable
    status: int
    size_bytes: int


class Verdict(msgspec.Struct, frozen=True):
    """A handler's decision on a request. A request without a verdict passes.

    Refuse overrides Hold and Later, and all three override Shadow. If there is more than one Refuse, the first counts.
    Requests that cannot be refused get no Refuse. A request for credit gets a Grant or a Hold. Hold overrides Grant.
    """


class Refuse(Verdict, frozen=True):
    resource: Resource  # the resource, scope or total that is over its limit
    rule: str  # the rule's name in logs, metrics and the response
    wait_us: int  # estimated time until a retry would pass
    busy_code: int | None = None  # None for the protocol's default
    # The cost of the largest request that can pass. Set only if this request exceeds it.
    most: int | None = None
    most_of: Dimension = "messages"


class Shadow(Verdict, frozen=True):
    """The request passes although a shadow rule would refuse it."""

    resource: Resource
    rule: str


class Ticket:
    """A held request. It can be resolved (passed or refused) or dropped only once. Later calls have no effect.

    The handler resolves it on the event loop. ``on_dropped`` is called if the client disconnects or another handler
    refuses the request.
    """

    __slots__ = ("_on_dropped", "_on_resolved", "dropped", "refuse", "resolved", "shadow")

    def __init__(self, on_dropped: Callable[[], None]) -> None:
        self.resolved = False
        self.dropped = False
        self.refuse: Refuse | None = None  # None if it passes
        self.shadow: Shadow | None = None  # None if it is refused
        self._on_dropped: Callable[[], None] | None = on_dropped
        self._on_resolved: Callable[[Ticket], None] | None = None

    def attach(self, on_resolved: "Callable[[Ticket], None]") -> None:
        """Call ``on_resolved`` when the ticket is resolved, or immediately if it already has been."""
        if self.resolved:
            on_resolved(self)
        elif not self.dropped:
            self._on_resolved = on_resolved

    def resolve(self, refuse: Refuse | None, shadow: Shadow | None = None) -> None:
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
        if self.resolved or self.dropped:
            return
        self.dropped = True
        self._on_resolved = None
        on_dropped, self._on_dropped = self._on_dropped, None
        if on_dropped is not None:
            on_dropped()


class Hold(Verdict, frozen=True):
    """The session keeps the request until its ticket is resolved."""

    resource: Resource  # the resource whose limit it waits for
    rule: str
    ticket: Ticket
    spools: bool = False  # whether similar requests that follow are spooled without a decision


Verdicts = Mapping[int, Verdict]
"""Verdicts by request index in the batch."""

NO_VERDICTS: Final[Verdicts] = {}


def drop_tickets(verdicts: Verdicts) -> None:
    for verdict in verdicts.values():
        if isinstance(verdict, Hold):
            verdict.ticket.drop()


class Grant(Verdict, frozen=True):
    """Grants a request for credit at least 1 message, but fewer than ``most``."""

    messages: int


class Later(Verdict, frozen=True):
    """The session submits the request again in a later batch, when the held request ahead of it has been resolved.

    Use this only for requests that cannot be refused or can be spooled. Until then, the request has no ticket and is
    not counted.
    """


LATER: Final = Later()


class Charge(msgspec.Struct, gc=False):
    """A cost that becomes known only after the verdict on its request. It cannot be refused."""

    resources: tuple[Resource, ...]
    messages: int  # additional cost. A negative number is a refund
    size_bytes: int = 0
    producer_group: str = ""
    consumes: bool = False  # whether a consumer sent the request. An empty response costs 0
    asks: Asks = "all"
    counts: bool = True  # whether it counts as admitted. False if it corrects credit


class Paid(msgspec.Struct, gc=False):
    """Messages sent on credit that was granted earlier. They count as admitted."""

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
        self.charges = charges
        self.paid = paid
        self.ids = ids
        self.verdicts: dict[int, Verdict] = {}  # only the pipeline changes it
        self.bypassed: dict[str, str] = {}  # why handlers were skipped, by handler

    @property
    def spools(self) -> bool:
        return self.connection.spools and self.side is Side.CLIENT

    @property
    def came_back(self) -> bool:
        requests = self.requests
        return self.connection.spools and len(requests) > 0 and requests[0].since_ns > 0

    @cached_property
    def groups(self) -> Sequence[Group]:
        """Groups of requests that can be decided together, ordered by each group's first request.

        A request gets a group of its own if it asks for credit, or if requests with its ``order_key`` would otherwise
        be in multiple groups, because it depends on the requests before it.
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
        """Merge a handler's verdicts as ``Verdict`` describes, and drop the tickets of overridden verdicts.

        If this raises an error, no verdict is merged.

        Raises:
            IndexError: A verdict is for a request that is not in the batch.
            TypeError: A value is not a verdict, or an attribute has the wrong type.
        """
        for index, verdict in verdicts.items():
            if not 0 <= index < len(self.requests):
                raise IndexError(
                    f"the handler returned a verdict for request {index}, but the batch contains only"
                    f" {len(self.requests)} requests"
                )
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
