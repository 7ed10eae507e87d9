"""The typed configuration of the AMQP 0.9.1 protocol, a listener's ``options`` table."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from proxy.protocols.amqp091.stream import MAX_BODY_BYTES, MAX_MESSAGE_BYTES
from proxy.protocols.options import Scan, Tls

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class AMQP091Options:
    """What can be set for an AMQP 0.9.1 listener.

    Attributes:
        tls: for clients that begin with a TLS handshake, where that does not end at the listener: ``refuse`` closes
            the connection, ``pass`` relays it unread, without limits.
        max_waiting_bytes: what may wait of one connection in each direction, with what it takes in memory; over it
            that side is not read until some of it has gone on.
        max_waiting_bytes_in_all: likewise of all connections to a broker; over it no side is read of which more
            waits than an equal part.
        max_message_bytes: a publish that announces a longer body counts as one message without a body, since the broker
            refuses it and none of it may ever come. It should be no less than the broker's own ``max_message_size``:
            128 MiB in RabbitMQ 3, 16 MiB in RabbitMQ 4, unless it is set there.
        max_pending_bytes: what messages may take in memory, of all connections to a broker, that wait for the acks of
            their consumers because of a rule with ``confirm = "after_consume"``; over it messages go as they came.
        scan: what reads plain publishes, and confirms: ``compiled`` is the compiled part (the package sluice_native),
            ``python`` reads frame by frame and is always available, ``auto`` takes the compiled part if it is
            installed.
    """

    tls: Tls = "refuse"
    max_waiting_bytes: Annotated[int, Ge(0)] = 16 * _MIB
    max_waiting_bytes_in_all: Annotated[int, Ge(0)] = 128 * _MIB
    max_message_bytes: Annotated[int, Ge(1), Le(MAX_BODY_BYTES)] = MAX_MESSAGE_BYTES
    max_pending_bytes: Annotated[int, Ge(0)] = 64 * _MIB
    scan: Scan = "auto"
