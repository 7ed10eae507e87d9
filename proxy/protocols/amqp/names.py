"""What a publish or a delivery is charged to: exchanges, queues and routing keys under the names that rules write.

In vhost ``/`` names stand bare, as ``orders`` or ``events/eu.created``; in another one its name stands in front, as
``tenant1/orders``. Each part is percent-encoded where it holds ``/`` or ``%``, or what is not printable or not UTF-8.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from limiter.rules.resource import Resource
from proxy.stats.snapshot import MAX_RESOURCES_SHOWN

QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
ROUTING_KEY: Final = "routing_key"
DELIVERY: Final = "delivery"

DEFAULT_VHOST: Final = b"/"
#: Names that are remembered per connection and direction; beyond it all are forgotten.
MAX_NAMES: Final = 1024
#: The longest that a name is under AMQP 0.9.1, and that queues and exchanges of RabbitMQ have in any case.
MAX_NAME_BYTES: Final = 255


def encoded(part: bytes) -> str:
    """Write one part of a name."""
    text = part.decode(errors="surrogateescape")
    if text.isprintable() and "/" not in text and "%" not in text:
        return text
    return "".join(_character(each) for each in text)


def _character(each: str) -> str:
    # What is not UTF-8 is here as lone surrogates, which are not printable.
    if each.isprintable() and each not in "/%":
        return each
    return "".join(f"%{byte:02X}" for byte in each.encode(errors="surrogateescape"))


class Target(msgspec.Struct, gc=False):
    """Where publishes go that name the same exchange and routing key.

    Attributes:
        exchange: its name.
        routing_key: likewise.
        resources: what they are charged to, without copies.
        key: equal for those that must not overtake each other in one channel.
    """

    exchange: bytes
    routing_key: bytes
    resources: tuple[Resource, ...]
    key: int


class Names:
    """The names of one connection, made once each. Equal names share one tuple, which makes grouping cheap.

    Attributes:
        with_keys: publishes to an exchange are charged to their routing key as well.
    """

    __slots__ = ("_queues", "_targets", "_vhost", "with_keys")

    def __init__(self) -> None:
        self.with_keys = False
        self._vhost = ""
        self._targets: tuple[dict[bytes, Target], dict[bytes, Target]] = ({}, {})
        self._queues: dict[bytes, tuple[Resource, ...]] = {}

    @property
    def before(self) -> str:
        """How all names begin."""
        return self._vhost

    def enter(self, vhost: bytes) -> None:
        """Have all names from now on be those of a vhost."""
        self._vhost = "" if vhost == DEFAULT_VHOST else encoded(vhost[:MAX_NAME_BYTES]) + "/"

    def target(self, raw: bytes, exchange_bytes: int) -> Target:
        """Return where a publish goes.

        Args:
            raw: exchange and routing key, as they are on the wire, each with its length in front.
            exchange_bytes: how long the former is.
        """
        known = self._targets[self.with_keys]
        target = known.get(raw)
        if target is None:
            if len(known) >= MAX_NAMES:
                known.clear()
            exchange, routing_key = raw[1 : 1 + exchange_bytes], raw[2 + exchange_bytes :]
            resources = tuple(self._charged_to(exchange, [routing_key]))
            target = known[raw] = Target(exchange, routing_key, resources, hash(raw))
        return target

    def published(self, exchange: bytes, routing_key: bytes) -> Target:
        """Return where a publish goes; of names longer than one of AMQP 0.9.1 can be, the beginning counts."""
        exchange, routing_key = exchange[:MAX_NAME_BYTES], routing_key[:MAX_NAME_BYTES]
        raw = b"%c%b%c%b" % (len(exchange), exchange, len(routing_key), routing_key)
        return self.target(raw, len(exchange))

    def with_copies(self, target: Target, keys: list[bytes]) -> tuple[Resource, ...]:
        """Return what a publish is charged to that goes to other routing keys as well."""
        keys = [key[:MAX_NAME_BYTES] for key in keys]
        return tuple(dict.fromkeys((*target.resources, *self._charged_to(target.exchange, keys))))

    def _charged_to(self, exchange: bytes, keys: list[bytes]) -> list[Resource]:
        vhost = self._vhost
        if not exchange:
            return [Resource(QUEUE, vhost + encoded(key)) for key in keys]
        name = vhost + encoded(exchange)
        charged_to = [Resource(EXCHANGE, name)]
        if self.with_keys:
            charged_to += [Resource(ROUTING_KEY, f"{name}/{encoded(key)}") for key in keys]
        return charged_to

    def delivery(self, queue: bytes) -> tuple[Resource, ...]:
        """Return what deliveries of a queue are charged to; likewise."""
        queue = queue[:MAX_NAME_BYTES]
        resources = self._queues.get(queue)
        if resources is None:
            if len(self._queues) >= MAX_NAMES:
                self._queues.clear()
            resources = self._queues[queue] = (Resource(DELIVERY, self._vhost + encoded(queue)),)
        return resources

    def forget(self) -> None:
        """Forget all names."""
        for known in (*self._targets, self._queues):
            known.clear()

    def shown(self, scanned: Iterable[Resource] = ()) -> tuple[tuple[str, ...], int]:
        """Return the first MAX_RESOURCES_SHOWN as ``kind:name``, and how many others are remembered.

        Args:
            scanned: what scans remember.
        """
        resources = dict.fromkeys(
            each
            for known in (*self._targets[::-1], self._queues)
            for value in known.values()
            for each in (value.resources if isinstance(value, Target) else value)
        )
        resources |= dict.fromkeys(scanned)
        first = tuple(map(str, islice(resources, MAX_RESOURCES_SHOWN)))
        return first, len(resources) - len(first)
