"""Maps publishes and deliveries to the resources that they are charged to.

Names in the vhost ``/`` have no prefix, as in ``orders`` or ``events/eu.created``. Names in other vhosts begin with the
vhost, as in ``tenant1/orders``. In each part of a name, ``/``, ``%``, unprintable characters and invalid UTF-8 are
percent-encoded.
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
# Cached names per connection and direction. A full cache is cleared.
MAX_NAMES: Final = 1024
MAX_NAME_BYTES: Final = 255  # the maximum in AMQP 0.9.1 and in RabbitMQ


def encoded(part: bytes) -> str:
    text = part.decode(errors="surrogateescape")
    if text.isprintable() and "/" not in text and "%" not in text:
        return text
    return "".join(_character(each) for each in text)


def _character(each: str) -> str:
    # Invalid UTF-8 was decoded to lone surrogates, which are not printable.
    if each.isprintable() and each not in "/%":
        return each
    return "".join(f"%{byte:02X}" for byte in each.encode(errors="surrogateescape"))


class Target(msgspec.Struct, gc=False):
    exchange: bytes
    routing_key: bytes
    resources: tuple[Resource, ...]  # charged for a publish without CC and BCC


class Names:
    def __init__(self) -> None:
        self.with_keys = False  # whether publishes are also charged to their routing key
        self._vhost = ""
        self._targets: tuple[dict[tuple[bytes, bytes], Target], dict[tuple[bytes, bytes], Target]] = ({}, {})
        self._queues: dict[bytes, tuple[Resource, ...]] = {}

    @property
    def before(self) -> str:
        return self._vhost

    def enter(self, vhost: bytes) -> None:
        self._vhost = "" if vhost == DEFAULT_VHOST else encoded(vhost[:MAX_NAME_BYTES]) + "/"

    def target(self, exchange: bytes, routing_key: bytes) -> Target:
        exchange, routing_key = exchange[:MAX_NAME_BYTES], routing_key[:MAX_NAME_BYTES]
        known = self._targets[self.with_keys]
        target = known.get((exchange, routing_key))
        if target is None:
            if len(known) >= MAX_NAMES:
                known.clear()
            resources = tuple(self._charged_to(exchange, [routing_key]))
            target = known[exchange, routing_key] = Target(exchange, routing_key, resources)
        return target

    def with_copies(self, target: Target, keys: list[bytes]) -> tuple[Resource, ...]:
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
        queue = queue[:MAX_NAME_BYTES]
        resources = self._queues.get(queue)
        if resources is None:
            if len(self._queues) >= MAX_NAMES:
                self._queues.clear()
            resources = self._queues[queue] = (Resource(DELIVERY, self._vhost + encoded(queue)),)
        return resources

    def forget(self) -> None:
        for known in (*self._targets, self._queues):
            known.clear()

    def shown(self, scanned: Iterable[Resource] = ()) -> tuple[tuple[str, ...], int]:
        resources = dict.fromkeys(
            each
            for known in (*self._targets[::-1], self._queues)
            for value in known.values()
            for each in (value.resources if isinstance(value, Target) else value)
        )
        resources |= dict.fromkeys(scanned)
        first = tuple(map(str, islice(resources, MAX_RESOURCES_SHOWN)))
        return first, len(resources) - len(first)
