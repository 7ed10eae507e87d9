"""The protocol-neutral words between protocols and handlers: Request, Response, Batch, Verdict.

A protocol's session makes batches out of bytes and turns verdicts back into bytes; a handler sees only
what is defined here. Nothing in this module knows a protocol, does I/O or reads a clock.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from limiter.resource import Resource


class Side(Enum):
    """One of the two peers of a proxied connection; also the direction of what comes *from* that peer."""

    CLIENT = "client"
    BROKER = "broker"

    # Members are singletons compared by identity; Enum's own hash is Python code, and costs several times a lookup.
    __hash__ = object.__hash__

    @property
    def other(self) -> "Side":
        """Return the opposite peer."""
        return Side.BROKER if self is Side.CLIENT else Side.CLIENT


class ConnectionInfo(msgspec.Struct, frozen=True):
    """Who is on the other end; what handlers may decide by and operators see.

    Attributes:
        id: number of the connection, unique within one data path for its lifetime.
        listener: name of the listener that accepted it.
        scope: what the listener's limits are shared under; a VIP port names its main port's scope.
        peer: the client's ``address:port``, as in every log line about it.
        address: the client's IP address alone.
    """

    id: int
    listener: str
    scope: str
    peer: str
    address: str


class Request(msgspec.Struct, gc=False):
    """One limitable request of a client.

    Attributes:
        resources: everything it is charged to; all must admit. One for RocketMQ, several for AMQP's CC and BCC.
        messages: its cost in messages (a batch counts as what it holds), at least 1.
        size_bytes: bytes on the wire, the frame's own framing included.
        producer_group: the group that sends it, or empty where the protocol has none.
        oneway: the client expects no answer, so that a refusal is silent.
        order_key: requests of one connection with equal keys never overtake each other; None is independent.
        handle: belongs to the session, opaque to handlers. A verdict on it also covers bytes still to come.
    """

    resources: tuple[Resource, ...]
    messages: int
    size_bytes: int
    producer_group: str
    oneway: bool
    order_key: str | int | None
    handle: object


class Response(msgspec.Struct, gc=False):
    """One answer of the broker, made only when some handler asks for responses.

    Attributes:
        request_code: the protocol's number of the request that it answers, or None when that is not known.
        resources: the resources of the request that it answers; empty when that request was not limitable.
        status: the protocol's own result code.
        size_bytes: bytes on the wire, the frame's own framing included.
    """

    request_code: int | None
    resources: tuple[Resource, ...]
    status: int
    size_bytes: int


class Verdict(msgspec.Struct, frozen=True):
    """What a handler decided about one request; a request without a verdict passes."""


class Refuse(Verdict, frozen=True):
    """The request does not reach the broker; the session says so in the protocol's own words.

    Attributes:
        resource: the resource whose limit refused it.
        rule: name of the rule that refused it, for the log, the metric and the answer's remark.
        wait_us: microseconds until the same request could be admitted, as far as is known.
    """

    resource: Resource
    rule: str
    wait_us: int


Verdicts = Mapping[int, Verdict]
"""Verdicts by the request's index in its batch. Requests that are not in it pass."""

NO_VERDICTS: Final[Verdicts] = {}


class Charge(msgspec.Struct, gc=False):
    """A cost that became known only after its bytes had gone on; it can no longer be refused.

    Attributes:
        resources: everything it is charged to.
        messages: the cost in messages beyond what its request was decided by.
    """

    resources: tuple[Resource, ...]
    messages: int


class Group(msgspec.Struct, gc=False):
    """The requests of a batch that are charged to the same resources.

    Attributes:
        indexes: of the requests in the batch, ascending.
        costs: of these requests, in messages.
    """

    indexes: list[int]
    costs: list[int]


class Batch:
    """The requests of one chunk from one peer, decided together.

    Attributes:
        connection: whose requests they are.
        side: the peer they came from.
        requests: in the order of the wire.
        charges: costs to be debited without a decision. Requests and charges are not both empty.
        verdicts: what the pipeline decided so far. Only the pipeline adds to it, first verdict wins.
        bypassed: names of the handlers that were skipped, with the reason.
    """

    __slots__ = ("_groups", "bypassed", "charges", "connection", "requests", "side", "verdicts")

    def __init__(
        self, connection: ConnectionInfo, side: Side, requests: Sequence[Request], charges: Sequence[Charge] = ()
    ) -> None:
        self.connection = connection
        self.side = side
        self.requests = requests
        self.charges = charges
        self.verdicts: dict[int, Verdict] = {}
        self.bypassed: dict[str, str] = {}
        self._groups: dict[tuple[Resource, ...], Group] | None = None

    def by_resources(self) -> Mapping[tuple[Resource, ...], Group]:
        """Return the requests for each distinct set of resources, in order of first appearance.

        Computed once: handlers and counters share it, so their cost grows with the distinct resources
        of a chunk and not with its messages.
        """
        groups = self._groups
        if groups is None:
            # Shown only when complete: a handler on a thread may ask at the same time as the loop.
            groups = {}
            run: tuple[Resource, ...] | None = None
            indexes: list[int] = []
            costs: list[int] = []
            for index, request in enumerate(self.requests):
                resources = request.resources
                # Sessions intern the tuple, so that a run of one topic costs an identity test a message.
                if resources is not run:
                    run = resources
                    group = groups.get(resources)
                    if group is None:
                        group = groups[resources] = Group([], [])
                    indexes, costs = group.indexes, group.costs
                indexes.append(index)
                costs.append(request.messages)
            self._groups = groups
        return groups

    def add_verdicts(self, verdicts: Verdicts) -> None:
        """Merge what one handler decided; a request keeps the first verdict it got.

        Nothing is merged of an answer that is wrong in part.

        Raises:
            IndexError: a verdict names a request that is not in the batch.
            TypeError: a value is no verdict, or a verdict's attributes are not of their types.
        """
        count = len(self.requests)
        checked: object = verdicts
        for index, verdict in verdicts.items():
            if not 0 <= index < count:
                raise IndexError(f"verdict for request {index} of a batch of {count}")
            # One verdict often stands for a whole run of requests.
            if verdict is not checked:
                _check_verdict(verdict, index)
                checked = verdict
        for index, verdict in verdicts.items():
            self.verdicts.setdefault(index, verdict)


def _check_verdict(verdict: object, index: int) -> None:
    """Refuse what a session could not make an answer of: it must be the handler's fault, not the connection's."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"{verdict!r} is not a verdict for request {index}")
    if isinstance(verdict, Refuse):
        given: tuple[object, object, object] = (verdict.resource, verdict.rule, verdict.wait_us)
        for value, wanted in zip(given, (Resource, str, int), strict=True):
            if not isinstance(value, wanted):
                raise TypeError(f"{verdict!r} holds {value!r} where a {wanted.__name__} belongs")
