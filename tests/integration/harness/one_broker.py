"""Artemis or RabbitMQ 4 behind one interface: creating, naming and emptying queues."""

from typing import Final

from harness.amqp_one import AmqpOneClient, AmqpOneError, body_of
from harness.artemis import Artemis
from harness.rabbitmq import RabbitMQ

_AT_ONCE: Final = 1000
_EMPTY_DRAINS: Final = 3
_TIMEOUT_S: Final = 60.0
_QUIET_S: Final = 5.0


class OneBroker:
    def __init__(self, broker: Artemis | RabbitMQ) -> None:
        self.broker = broker
        self.address = broker.address
        self._prefix = "/queues/" if isinstance(broker, RabbitMQ) else ""

    @property
    def clients(self) -> tuple[str, ...]:
        """Clients that work with it. RabbitMQ's own refuse another broker."""
        return ("proton", "rhea", "go", "rabbitmq", "java") if self._prefix else ("proton", "rhea")

    def queue(self, name: str) -> str:
        """Make a queue, directly at the broker, and return its address."""
        if isinstance(self.broker, RabbitMQ):
            with self.broker.connect() as client:
                client.call(client.open_channel(), "queue.declare", queue=name, durable=True)
        return self._prefix + name

    def take_all(self, address: str) -> list[bytes]:
        """Return the bodies of all messages in a queue, in order, directly from the broker."""
        bodies: list[bytes] = []
        with AmqpOneClient(self.address) as client:
            receiver = client.attach_receiver(address)
            empty = 0
            # Artemis may report a drain as over while messages are left, or not at all.
            while empty < _EMPTY_DRAINS:
                receiver.flow(_AT_ONCE, drain=True)
                limit = (receiver.count + _AT_ONCE) & 0xFFFF_FFFF
                before = len(bodies)
                while receiver.count != limit:
                    try:
                        came = client.wait_for(
                            lambda came: came.name in {"transfer", "flow"} and came.get("handle") == receiver.theirs,
                            what="a message or the end of a drain",
                            timeout_s=_QUIET_S if empty else _TIMEOUT_S,
                        )
                    except AmqpOneError:
                        if empty:
                            return bodies
                        raise
                    if came.name == "transfer":
                        bodies.append(body_of(receiver.rest_of(came)))
                    elif came["delivery_count"] == limit:
                        receiver.count = limit
                empty = 0 if len(bodies) > before else empty + 1
        return bodies
