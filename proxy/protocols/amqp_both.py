"""AMQP 0.9.1 and AMQP 1.0 on one port, as in RabbitMQ."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from proxy.deciding.batch import Batch, Refuse, Request, Side
from proxy.protocols.amqp.kinds import amqp_protocol, kinds
from proxy.protocols.amqp091.after_consume import Hub, confirm_states
from proxy.protocols.amqp091.session import AMQP091Options, AMQP091Session
from proxy.protocols.amqp10.credit import UnpaidOfClients
from proxy.protocols.amqp10.session import AMQP10Session
from proxy.protocols.amqp10.wire import AMQP_HEADER, SASL_HEADER
from proxy.protocols.base import Buffer, Session, SessionContext

_HEADERS: Final = (SASL_HEADER, AMQP_HEADER)
_HEADER_BYTES: Final = len(SASL_HEADER)


@dataclass(frozen=True, slots=True)
class AMQPOptions(AMQP091Options):
    """Options for both versions. The bounds on waiting messages apply to AMQP 0.9.1 only."""


@dataclass
class BothHub(Hub):
    clients: UnpaidOfClients = field(default_factory=UnpaidOfClients)  # AMQP 1.0 clients


class AMQPSession(Session):
    """Becomes an AMQP10Session if the client begins with AMQP 1.0's header, otherwise an AMQP091Session."""

    def __init__(self, context: SessionContext) -> None:
        self._first = context
        self._begun = b""  # incomplete protocol header
        self._alarm = ""

    def receive(self, side: Side, chunk: memoryview, now_ns: int) -> Batch | None:
        if side is Side.CLIENT:
            if self._begun:
                chunk = memoryview(self._begun + chunk)
            header = bytes(chunk[:_HEADER_BYTES])
            if len(header) < _HEADER_BYTES and any(each.startswith(header) for each in _HEADERS):
                self._begun = header
                return None
            self._become(AMQP10Session if header in _HEADERS else AMQP091Session, now_ns)
        else:
            self._begin_with_nothing(now_ns)
        return self.receive(side, chunk, now_ns)

    def end(self, side: Side, now_ns: int) -> None:
        self._begin_with_nothing(now_ns)
        self.end(side, now_ns)

    def _begin_with_nothing(self, now_ns: int) -> None:
        begun = memoryview(self._begun)
        self._become(AMQP091Session, now_ns)
        if begun:
            self.receive(Side.CLIENT, begun, now_ns)

    def _become(self, version: type[AMQP091Session | AMQP10Session], now_ns: int) -> None:
        # Changing the class makes later calls as fast as those to a session of that version.
        context, alarm = self._first, self._alarm
        self.__dict__.clear()
        self.__class__ = version  # type: ignore[assignment] # only the class changes
        self.__init__(context)  # type: ignore[misc] # the method of the new class
        if self.ticks:
            context.wake()
        if alarm:
            self.alarm(alarm, now_ns)

    def alarm(self, reason: str, now_ns: int) -> None:
        del now_ns
        self._alarm = reason

    def take(self, side: Side) -> Sequence[Buffer]:
        # Callers may keep this bound method after the class has changed.
        return () if type(self) is AMQPSession else self.take(side)

    def decided(self, batch: Batch, now_ns: int) -> None: ...

    def resolved(self, request: Request, refuse: Refuse | None, now_ns: int) -> None: ...

    def backlog_bytes(self, side: Side) -> int:
        del side
        return 0

    def in_flight(self) -> int:
        return 0

    def between_frames(self, side: Side) -> bool:
        return side is Side.BROKER or not self._begun

    def missing_bytes(self, side: Side) -> int:
        del side
        return _HEADER_BYTES - len(self._begun)


PROTOCOL = amqp_protocol(
    name="amqp",
    kinds=kinds(
        "reject",
        "an AMQP 0.9.1 publish without confirms or in a transaction, and a settled AMQP 1.0 message, cannot be refused;"
        " they wait regardless of the rule's action. With delay, or without an action, AMQP 1.0 grants no credit beyond"
        " the limit, no matter how long messages wait",
        credit_waits="AMQP 1.0",
        after_consume=True,
    ),
    open_session=AMQPSession,
    options=AMQPOptions,
    open_hub=BothHub,
    held_bytes=attrgetter("held_bytes"),
    confirm_states=confirm_states,
)
