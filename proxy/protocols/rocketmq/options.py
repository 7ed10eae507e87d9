"""The typed configuration of the RocketMQ protocol, a listener's ``options`` table."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from proxy.protocols.rocketmq import codes


@dataclass(frozen=True, slots=True)
class RocketMQOptions:
    """What can be set for a RocketMQ listener.

    Attributes:
        tls: what to do with a client that begins with a TLS handshake, which Sluice does not decode:
            ``refuse`` closes the connection, ``pass`` relays it unread and therefore unlimited.
        max_frame_bytes: a frame above this ends its connection, as it would at the broker; the frame's own
            length word is included. At least the words that every frame begins with.
    """

    tls: Literal["refuse", "pass"] = "refuse"
    max_frame_bytes: Annotated[int, Ge(codes.PREFIX_BYTES)] = codes.MAX_FRAME_BYTES
