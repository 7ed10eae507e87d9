"""The typed configuration of the AMQP 1.0 protocol, a listener's ``options`` table."""

from dataclasses import dataclass

from proxy.protocols.options import Scan, Tls


@dataclass(frozen=True, slots=True)
class AMQP10Options:
    """What can be set for an AMQP 1.0 listener.

    Attributes:
        tls: for clients that begin with a TLS handshake, where that does not end at the listener: ``refuse`` closes
            the connection, ``pass`` relays it unread, without limits.
        scan: what reads plain transfers, and dispositions: ``compiled`` is the compiled part (the package
            sluice_native), ``python`` reads frame by frame and is always available, ``auto`` takes the compiled part if
            it is installed.
    """

    tls: Tls = "refuse"
    scan: Scan = "auto"
