"""What the addresses of links and messages stand for, in the words of ``proxy.protocols.amqp.names``.

RabbitMQ 4.0.5 treats a target like this, as observed. Version 2 of its addresses:

- ``/queues/:q``: the queue, percent-decoded (``%2F`` and ``%2f``; ``+`` stays). Characters that would need encoding are
  refused: ``/queues/a/b``, ``/queues/ä``.
- ``/exchanges/:e/:k``: the exchange with the routing key, decoded likewise. ``/exchanges/:e`` and ``/exchanges/:e/``
  have an empty key, never the message's subject.
- ``/exchanges//:k`` and ``/exchanges/amq.default/:k`` are refused: the default exchange is reached as a queue only.
- A null address: each message's ``to``, in one of these forms; with any other the message is rejected.

Version 1, unless ``deprecated_features.permit.amqp_address_v1 = false``. Only ``%2F`` is decoded, not ``%2f`` or
``%41``:

- ``:q`` without a slash and ``/queue/:q``: a queue, which is declared; ``/amq/queue/:q``: an existing queue.
- ``/exchange/:e/:k``: the exchange with the key. Without a key, the message's subject is the key.
- ``/topic/:k``: the exchange ``amq.topic`` with the key.
- ``/queue``, and an empty string: the default exchange, with the message's subject as the key: the name of any queue.
- ``$management``, ``$cbs``: queues of that name. ``/management`` is the management node if the link is one of a pair,
  and else refused.
- Everything else is refused.

A null target ends the session; so do dynamic nodes (4.2 has dynamic sources). A message's ``to`` counts only on a link
without an address. ``x-exchange`` and ``x-routing-key`` change nothing. From 4.1.0 on the strings in ``x-cc`` are
further routing keys in the same exchange, on all links: ``/queues/a`` with ``b`` in ``x-cc`` goes to both queues.

Also of 4.0.5: aborted deliveries (2.6.14) are delivered as far as they came, and counted. Delivery-ids need not ascend.
Its first transfer-id is 2^32 - 4 and its first delivery-count as a sender 2^32 - 5, so both wrap at once. Without SASL
it answers with the header of SASL, and closes.

As a source ``/queues/:q``, ``/queue/:q``, ``/amq/queue/:q`` and ``:q`` are the queue; ``/exchange/…`` and ``/topic/…``
are a queue ``amq.gen-…`` of the broker's, whose name its attach does not tell. ``/exchanges/…`` is refused.

The vhost is what follows ``vhost:`` in the hostname of ``open``, not decoded (``vhost:%2F`` is refused); any other
hostname means the default vhost. A hostname that is a symbol ends the connection.

Only a broker whose open says that its product is RabbitMQ is read like this. Others have no vhosts, and an address is
the name of a queue. Seen of Artemis 2.44: ``$management``, ``/queues/q`` and ``/topic/k`` are such names, without
decoding. An empty address is the anonymous terminus. ``a::q`` is the queue ``q`` of the address ``a``, so ``a::a`` is
``a``. The subject and ``x-cc`` mean nothing.
"""

from typing import Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from limiter.rules.resource import Resource
from proxy.protocols.amqp.names import DEFAULT_VHOST, Names
from proxy.protocols.amqp10.message import MessageHead
from proxy.protocols.amqp10.wire import Terminus

KeyBy = Literal["address", "to", "subject", "nothing"]
"""What tells where the messages of a link go: its address, each message's address, the link's exchange and each
message's subject, or nothing, as it is not to be limited."""

MADE_BY_BROKER: Final = b"amq.gen"  # prefix of the queues that RabbitMQ names itself
_VHOST: Final = b"vhost:"
_DEFAULT_EXCHANGES: Final = (b"", b"amq.default")
_SOURCES_MADE: Final = (b"exchange", b"exchanges", b"topic")


class Address(msgspec.Struct, frozen=True):
    """Where a link's messages go."""

    by: KeyBy = "address"
    exchange: bytes = b""  # empty is the default one, where routing keys are names of queues
    routing_key: bytes = b""
    plain: bool = False  # addresses of messages are names of queues: the broker is not RabbitMQ


_NOTHING: Final = Address("nothing")
_TO: Final = Address("to")
_TO_PLAIN: Final = Address("to", plain=True)


def vhost_of(hostname: bytes | None) -> bytes:
    if hostname is not None and hostname.startswith(_VHOST):
        return hostname[len(_VHOST) :]
    return DEFAULT_VHOST


def target_of(target: Terminus | None, *, plain: bool = False) -> Address:
    """Return where messages for a target go. For a dynamic node this is known from the receiver's attach only.

    ``plain``: the broker is not RabbitMQ.
    """
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
    # A message that the broker refuses may be charged to anything.
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
    """Return a queue of version 1; an empty name is none."""
    return Address(routing_key=name) if name else Address("subject")


def _exchange(exchange: bytes, key: bytes) -> Address:
    return Address(exchange=b"" if exchange in _DEFAULT_EXCHANGES else exchange, routing_key=key)


def _plain(address: bytes) -> bytes:
    """Return one name for a queue of Artemis that has the name of its address."""
    name, separator, queue = address.partition(b"::")
    return name if separator and queue == name else address


def _unescaped(name: bytes) -> bytes:
    return name.replace(b"%2F", b"/") if b"%" in name else name


def published(names: Names, address: Address, head: MessageHead | None = None) -> tuple[Resource, ...]:
    """Return what a message is charged to; nothing if it is not limited or does not tell.

    Its own ``head`` is needed where ``address.by`` is not "address".
    """
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
    """Return the name of the queue that a source stands for; None if it is not limited.

    MADE_BY_BROKER if the client does not know the name. For a dynamic source it is in the sender's attach.
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
    """Return what deliveries from a source are charged to; nothing if they are not limited."""
    queue = source_of(source, plain=plain)
    return () if queue is None else names.delivery(queue)
