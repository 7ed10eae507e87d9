"""Maps the addresses of links and messages to the names in ``proxy.protocols.amqp.names``.

``docs/amqp10.md`` lists the addresses. RabbitMQ 4.0.5 also has these rules:

- Version 2 addresses are percent-decoded. A null address refers to each message's ``to``.
- In version 1 addresses, only ``%2F`` is decoded, not ``%2f`` or ``%41``. With the setting
  ``deprecated_features.permit.amqp_address_v1 = false``, the broker refuses them.
- For ``/exchange/:e``, the message's subject is the routing key. For ``/queue`` and an empty string, it is the routing
  key of the default exchange.
- For the sources ``/exchange/…`` and ``/topic/…``, the broker creates a queue ``amq.gen-…`` and hides its name.
- A null target or a dynamic node ends the session (4.2 supports dynamic sources).
- A hostname ``vhost:NAME`` in ``open`` selects a vhost. The name is not decoded.

Artemis 2.44 does not decode names. An empty address is the anonymous terminus. ``a::q`` is the queue ``q`` of the
address ``a``, so ``a::a`` is ``a``. The subject and ``x-cc`` have no effect.
"""

from typing import Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from limiter.rules.resource import Resource
from proxy.protocols.amqp.names import DEFAULT_VHOST, Names
from proxy.protocols.amqp10.message import MessageHead
from proxy.protocols.amqp10.wire import Terminus

KeyBy = Literal["address", "to", "subject", "nothing"]
"""Where a message's address is found: in the link's address, in the message's ``to``, or in its subject, which is then
the routing key for the link's exchange. A link with ``nothing`` is not limited.
"""

MADE_BY_BROKER: Final = b"amq.gen"
_VHOST: Final = b"vhost:"
_DEFAULT_EXCHANGES: Final = (b"", b"amq.default")
_SOURCES_MADE: Final = (b"exchange", b"exchanges", b"topic")


class Address(msgspec.Struct, frozen=True):
    by: KeyBy = "address"
    exchange: bytes = b""  # empty for the default exchange, whose routing keys are queue names
    routing_key: bytes = b""
    plain: bool = False  # whether the broker is not RabbitMQ


_NOTHING: Final = Address("nothing")
_TO: Final = Address("to")
_TO_PLAIN: Final = Address("to", plain=True)


def vhost_of(hostname: bytes | None) -> bytes:
    if hostname is not None and hostname.startswith(_VHOST):
        return hostname[len(_VHOST) :]
    return DEFAULT_VHOST


def target_of(target: Terminus | None, *, plain: bool = False) -> Address:
    if target is None:
        return _TO_PLAIN if plain else _TO
    if target.coordinator:
        return _NOTHING
    if target.address is None:
        return _NOTHING if target.dynamic else _TO_PLAIN if plain else _TO
    return address_of(target.address, plain=plain)


def address_of(address: bytes, *, plain: bool = False) -> Address:
    if plain:
        return Address(routing_key=_plain(address), plain=True) if address else _TO_PLAIN
    if not address.startswith(b"/"):
        return _queue(_unescaped(address))
    _, node, *rest = address.split(b"/", 2)
    name = rest[0] if rest else b""
    # If RabbitMQ refuses the address, the result does not matter.
    match node:
        case b"queues":
            return Address(routing_key=unquote_to_bytes(name))
        case b"exchanges":
            exchange, _, key = name.partition(b"/")
            return _exchange(unquote_to_bytes(exchange), unquote_to_bytes(key))
        case b"queue":
            return _queue(_unescaped(name))
        case b"amq" if name.startswith(b"queue/"):
            return _queue(_unescaped(name.removeprefix(b"queue/")))
        case b"exchange":
            exchange, _, key = name.partition(b"/")
            routed = _exchange(_unescaped(exchange), _unescaped(key))
            return routed if routed.routing_key else Address("subject", routed.exchange)
        case b"topic":
            return Address(exchange=b"amq.topic", routing_key=_unescaped(name))
        case b"management" if not rest:
            return _NOTHING
        case _:
            return Address(routing_key=address)


def _queue(name: bytes) -> Address:
    return Address(routing_key=name) if name else Address("subject")


def _exchange(exchange: bytes, key: bytes) -> Address:
    return Address(exchange=b"" if exchange in _DEFAULT_EXCHANGES else exchange, routing_key=key)


def _plain(address: bytes) -> bytes:
    name, separator, queue = address.partition(b"::")
    return name if separator and queue == name else address


def _unescaped(name: bytes) -> bytes:
    return name.replace(b"%2F", b"/") if b"%" in name else name


def published(names: Names, address: Address, head: MessageHead | None = None) -> tuple[Resource, ...]:
    """Return the resources of a message. If ``head`` is None, they are empty unless ``address.by`` is ``"address"``."""
    if head is not None and address.by == "to":
        address = address_of(head.to, plain=address.plain) if head.to is not None else _TO
    match address.by:
        case "address":
            key = address.routing_key
        case "subject" if head is not None:
            key = head.subject or b""
        case _:
            return ()
    target = names.target(address.exchange, key)
    copies = head.copies if head is not None and not address.plain else ()
    return names.with_copies(target, [*copies]) if copies else target.resources


def source_of(source: Terminus | None, *, plain: bool = False) -> bytes | None:
    """Return the name of a source's queue, or None if the source is not limited.

    Return MADE_BY_BROKER if the broker does not reveal the name. If the source is dynamic, pass the one in the sender's
    attach, which contains the name.
    """
    if source is None or source.address is None or source.coordinator:
        return None
    address = source.address
    if plain:
        return _plain(address)
    routed = address_of(address)
    if routed.by == "nothing":
        return None
    node = address.split(b"/", 2)[1] if address.startswith(b"/") else b""
    return MADE_BY_BROKER if node in _SOURCES_MADE else routed.routing_key


def delivered(names: Names, source: Terminus | None, *, plain: bool = False) -> tuple[Resource, ...]:
    queue = source_of(source, plain=plain)
    return () if queue is None else names.delivery(queue)
