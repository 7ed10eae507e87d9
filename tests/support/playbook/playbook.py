"""A playbook for sessions: an event goes in, with the expected outputs behind it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Self

from limiter.deciding.limits import Limits
from limiter.rules.resource import Resource
from limiter.rules.rule_set import RuleSet
from proxy.common.buffers import GatherRoom
from proxy.control import LimitCommandReply
from proxy.deciding.batch import Batch, Charge, ConnectionInfo, Hold, Refuse, Request, Side, Ticket
from proxy.protocols.base import (
    Buffer,
    Close,
    CommandRequest,
    CommandStatus,
    Session,
    SessionContext,
    WireCounters,
)
from proxy.protocols.rocketmq import PROTOCOL
from proxy.protocols.rocketmq.options import RocketMQOptions
from proxy.protocols.rocketmq.refusals import busy_answer
from proxy.protocols.rocketmq.session import RocketMQSession
from proxy.protocols.rocketmq.transactions import Transactions

WAIT_US = 123_456
# The client's.
ADDRESS = "192.0.2.1"

Decide = Callable[[Batch], None]


@dataclass(frozen=True)
class Client:
    """The client sent a chunk, which was decided at once."""

    data: bytes


@dataclass(frozen=True)
class Broker:
    data: bytes


@dataclass(frozen=True)
class Undecided:
    """The client sent a chunk. Its batch waits for ``Decided``."""

    data: bytes


@dataclass(frozen=True)
class Decided:
    """The handlers decided the waiting batch."""


@dataclass(frozen=True)
class End:
    side: Side


@dataclass(frozen=True)
class Release:
    """A held request is released, given by its number among all held ones, from 0."""

    number: int


@dataclass(frozen=True)
class GiveUp:
    """A held request is refused, given by its number among all held ones, from 0."""

    number: int
    rule: str = "some rule"


@dataclass(frozen=True)
class Reply:
    """A request to Sluice itself is answered, given by its number among all, from 0."""

    number: int
    reply: LimitCommandReply


@dataclass(frozen=True)
class ToBroker:
    slices: tuple[bytes, ...]

    def __init__(self, *slices: bytes) -> None:
        object.__setattr__(self, "slices", slices)


@dataclass(frozen=True)
class ToClient:
    slices: tuple[bytes, ...]

    def __init__(self, *slices: bytes) -> None:
        object.__setattr__(self, "slices", slices)


@dataclass(frozen=True)
class Closed:
    reason: str


@dataclass(frozen=True)
class Anything:
    """Expects nothing in particular."""


Event = Client | Broker | Undecided | Decided | End | Release | GiveUp | Reply
Expected = ToBroker | ToClient | Closed | Anything


def pass_all(batch: Batch) -> None:
    del batch


def refuse(*names: str) -> Decide:
    """Refuse every request that is charged to one of these names."""

    def decide(batch: Batch) -> None:
        for index, request in enumerate(batch.requests):
            for resource in request.resources:
                if resource.name in names:
                    batch.add_verdicts({index: Refuse(resource, "some rule", WAIT_US)})

    return decide


def hold(*names: str, refusing: Sequence[str] = ()) -> Decide:
    """Hold every request that is charged to one of these names, and refuse those in ``refusing``."""
    refuse_some = refuse(*refusing)

    def decide(batch: Batch) -> None:
        refuse_some(batch)
        for index, request in enumerate(batch.requests):
            for resource in request.resources:
                if resource.name in names:
                    batch.add_verdicts({index: Hold(resource, "some rule", Ticket(lambda: None))})

    return decide


def refuse_indexes(indexes: Iterable[int]) -> Decide:
    """Refuse the requests with these numbers, counted over the whole connection."""
    wanted, seen = frozenset(indexes), 0

    def decide(batch: Batch) -> None:
        nonlocal seen
        for index, request in enumerate(batch.requests):
            if seen + index in wanted:
                batch.add_verdicts({index: Refuse(request.resources[0], "some rule", WAIT_US)})
        seen += len(batch.requests)

    return decide


def busy(name: str, opaque: int = 1, *, kind: str = "topic") -> bytes:
    """Return the answer to a request that ``refuse`` refused."""
    return busy_answer(Refuse(Resource(kind, name), "some rule", WAIT_US), opaque, kind)


Reading = Literal["as it comes", "python"]
"""The kind of session: it can be lent, and is on trial first, or for Python alone, and trusted from the start."""
READ_BY: ContextVar[Reading] = ContextVar("READ_BY", default="as it comes")
"""The default kind."""
READINGS: tuple[Reading, ...] = ("as it comes", "python")


def open_session(
    counters: WireCounters | None = None,
    *,
    wants_responses: bool = False,
    limited: Collection[str] = (),
    ask: Callable[[CommandRequest], CommandStatus] = lambda _: "nobody",
    reading: Reading | None = None,
    exempt: bool = False,
    limiting: bool | Callable[[], bool] = True,
    room: GatherRoom | None = None,
    hub: Transactions | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Session:
    """Return the session of a new RocketMQ connection."""
    reading = reading or READ_BY.get()
    if reading != "as it comes":
        options["scan"] = reading
    connection = ConnectionInfo(1, "main", "main", f"{ADDRESS}:40000", ADDRESS, exempt)
    context = SessionContext(
        connection,
        counters or WireCounters(),
        lambda: None,
        wants_responses,
        limited.__contains__,
        RocketMQOptions(**options),
        ask,
        limiting=limiting if callable(limiting) else lambda: limiting,
        room=GatherRoom() if room is None else room,
        hub=PROTOCOL.open_hub() if hub is None else hub,
        resources=(limits or Limits(RuleSet())).resources,
    )
    session = PROTOCOL.open_session(context)
    assert isinstance(session, RocketMQSession)
    if reading != "as it comes":
        session._requests._trial = 0
    return session


class Playbook:
    def __init__(
        self,
        decide: Decide = pass_all,
        *,
        wants_responses: bool = False,
        asked: CommandStatus = "nobody",
        **options: Any,
    ) -> None:
        self.now_ns = 0
        self.counters = WireCounters()
        self.asks: list[CommandRequest] = []
        self._asked = asked
        self.session = open_session(self.counters, wants_responses=wants_responses, ask=self._ask, **options)
        self.requests: list[Request] = []
        self.held: list[Request] = []
        self.charges: list[Charge] = []
        self.refused_by: list[str] = []
        self.last_slices: dict[Side, list[Buffer]] = {}
        self.given = dict.fromkeys(Side, b"")
        self._decide = decide
        self._closed: str | None = None
        self._unexpected: dict[Side, list[bytes]] = {side: [] for side in Side}
        self._chunk = bytearray()
        self._waiting: tuple[Batch, bytearray] | None = None

    def __rshift__(self, event: Event) -> Self:
        left = [f"{side.value}: {slices}" for side, slices in self._unexpected.items() if slices]
        assert not left, f"nobody expected what went to the {' and to the '.join(left)}"
        assert self._closed is None, f"closed for {self._closed}, which nobody expected"
        try:
            self._play(event)
        except Close as close:
            self._closed = close.reason
        finally:
            self._take()
        if not isinstance(event, Undecided):
            self._overwrite(event)
        return self

    def __lshift__(self, expected: Expected) -> Self:
        """Compare with the output of the last event."""
        if isinstance(expected, Closed):
            assert self._closed == expected.reason
            self._closed = None
        elif isinstance(expected, Anything):
            self._closed = None
            self._unexpected = {side: [] for side in Side}
        else:
            side = Side.BROKER if isinstance(expected, ToBroker) else Side.CLIENT
            given, self._unexpected[side] = self._unexpected[side], []
            assert b"".join(given) == b"".join(expected.slices)
        return self

    def __bool__(self) -> bool:
        """Return True when all outputs were expected, so that a playbook can be asserted."""
        return self._closed is None and not any(self._unexpected.values())

    def _play(self, event: Event) -> None:
        if isinstance(event, End):
            self.session.end(event.side, self.now_ns)
        elif isinstance(event, Decided):
            assert self._waiting is not None
            self._decided(self._waiting[0])
        elif isinstance(event, Reply):
            self.session.replied(self.asks[event.number], event.reply, self.now_ns)
        elif isinstance(event, Release | GiveUp):
            request = self.held[event.number]
            refusal = Refuse(request.resources[0], event.rule, WAIT_US) if isinstance(event, GiveUp) else None
            self.session.resolved(request, refusal, self.now_ns)
        else:
            self._chunk = bytearray(event.data)
            side = Side.BROKER if isinstance(event, Broker) else Side.CLIENT
            left = len(self._chunk)
            while left:
                batch_or_none = self.session.receive(side, memoryview(self._chunk)[-left:], self.now_ns)
                if batch_or_none is not None:
                    self.requests += batch_or_none.requests
                    self.charges += batch_or_none.charges
                    own = [verdict for verdict in batch_or_none.verdicts.values() if isinstance(verdict, Refuse)]
                    self.refused_by += [refuse.rule for refuse in own]
                    if isinstance(event, Undecided):
                        self._waiting = (batch_or_none, self._chunk)
                        assert not self.session.left_bytes(side), "more than is looked at in one turn"
                    else:
                        self._decided(batch_or_none)
                left = self.session.left_bytes(side)

    def _ask(self, ask: CommandRequest) -> CommandStatus:
        self.asks.append(ask)
        return self._asked

    def _decided(self, batch: Batch) -> None:
        self._decide(batch)
        self.session.decided(batch, self.now_ns)
        verdicts = sorted(batch.verdicts.items())
        self.held += [batch.requests[index] for index, verdict in verdicts if isinstance(verdict, Hold)]

    def _take(self) -> None:
        for side in Side:
            taken = list(self.session.take(side))
            self.last_slices[side] = taken
            self._unexpected[side] += map(bytes, taken)
            self.given[side] += b"".join(taken)

    def _overwrite(self, event: Event) -> None:
        """Overwrite the chunk, like the driver's next read."""
        chunk = self._chunk if isinstance(event, Client | Broker) else None
        if isinstance(event, Decided) and self._waiting is not None:
            chunk = self._waiting[1]
            self._waiting = None
        if chunk is not None:
            chunk[:] = b"\xee" * len(chunk)


def turns(session: Session, chunk: bytes) -> list[list[str]]:
    """Play one chunk like the driver. Return the topics of the requests in each turn."""
    asked, out = [], b""
    left = len(chunk)
    while left:
        batch = session.receive(Side.CLIENT, memoryview(chunk)[-left:], 0)
        assert batch is not None
        asked.append([request.resources[0].name for request in batch.requests])
        session.decided(batch, 0)
        out += b"".join(session.take(Side.BROKER))
        left = session.left_bytes(Side.CLIENT)
        assert session.between_frames(Side.CLIENT) is (not left)
    assert out == chunk
    return asked
