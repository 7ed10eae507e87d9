"""What the addresses of links and messages stand for, in the words of ``proxy.protocols.amqp.names``.

What RabbitMQ 4.0.5 makes of a target, as it was seen to do. Version 2 of its addresses:

- ``/queues/:q``: the queue. It is percent-decoded (``%2F`` and ``%2f``; ``+`` stays). What would have to be encoded and
  is not, is refused: ``/queues/a/b`` and ``/queues/ä``, too.
- ``/exchanges/:e/:k``: the exchange with the routing key, decoded likewise. ``/exchanges/:e`` and ``/exchanges/:e/``
  have an empty key, never the message's subject.
- ``/exchanges//:k`` and ``/exchanges/amq.default/:k`` are refused, and encoded there is no such exchange: the default
  exchange is reached as a queue only. Were it otherwise, it would be charged as the queue here.
- A null address: each message's ``to``, which is one of these; any other, version 1 too, has the message rejected.

Version 1, which is on unless ``deprecated_features.permit.amqp_address_v1 = false``. Only ``%2F`` is decoded; ``%2f``
and ``%41`` stand for themselves:

- ``:q`` without a slash, ``/queue/:q``: a queue, which is declared; ``/amq/queue/:q``: a queue that is there.
- ``/exchange/:e/:k``: the exchange with the key. Without a key, or with an empty one, the message's subject is the key.
- ``/topic/:k``: the exchange ``amq.topic`` with the key.
- ``/queue``, and an empty string: the default exchange, with the message's subject as the key: the name of any queue.
- ``$management``, ``$cbs``: queues of that name. ``/management`` is the node that declares things, if the link is one
  of a pair, and else refused.
- All else is refused.

A target that is null itself ends the session; so do dynamic nodes (4.2 has dynamic sources). A message's own ``to``
counts on a link without an address only. The annotations ``x-exchange`` and ``x-routing-key`` change nothing. ``x-cc``
counts from 4.1.0 on, on all links: its strings are routing keys beside that of the address, in the same exchange. So
``/queues/a`` with ``b`` in ``x-cc`` goes to both queues.

Other things of 4.0.5 that matter here: it does not know aborted deliveries (2.6.14): what came of one is delivered, its
delivery-count goes up by one. It does not ask that delivery-ids ascend. Its
first transfer-id is 2^32 - 4 and its first delivery-count as a sender 2^32 - 5, so both wrap at once. Without SASL it
answers with the header of SASL, and closes.

As a source ``/queues/:q``, and of version 1 ``/queue/:q``, ``/amq/queue/:q`` and ``:q`` are the queue; ``/exchange/…``
and ``/topic/…`` are a queue that the broker makes, ``amq.gen-…``, whose name its attach does not tell: it repeats the
address. ``/exchanges/…`` is refused.

The vhost is what stands behind ``vhost:`` in the hostname of ``open``, as it stands (``vhost:%2F`` is refused); any
other hostname, or none, means the broker's default vhost. A hostname that is a symbol ends the connection.

Only a broker whose open says that its product is RabbitMQ is read like this. All others have no vhosts, and an address
is the name of a queue there, with whatever is in it. Seen of Artemis 2.44: ``$management``, ``/management``,
``/queues/q`` and ``/topic/k`` are such names, without any decoding. An empty address is the anonymous terminus.
``a::q`` is the queue ``q`` of the address ``a``, so ``a::a`` is ``a``. The subject and ``x-cc`` mean nothing.
"""

from typing import Final, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from limiter.rules.resource import Resource
from proxy.protocols.amqp.names import DEFAULT_VHOST, Names
from proxy.protocols.amqp10.message import MessageHead
from proxy.protocols.amqp10.wire import Terminus

KeyBy = Literal["address", "to", "subject", "nothing"]
"""What says where the messages of a link go: its address; each one's own address; its exchange and each one's subject;
or nothing, as it is not to be limited."""

#: How names begin that RabbitMQ gives to queues of its own making.
MADE_BY_BROKER: Final = b"amq.gen"
_VHOST: Final = b"vhost:"
_DEFAULT_EXCHANGES: Final = (b"", b"amq.default")


class Address(msgspec.Struct, frozen=True):
    """Where a link's messages go.

    Attributes:
        by: what says so.
        exchange: empty is the default one, where routing keys are names of queues.
        routing_key: empty unless the address says it.
        plain: the addresses of messages are names of queues, as they stand: the broker is not RabbitMQ.
    """

    by: KeyBy = "address"
    exchange: bytes = b""
    routing_key: bytes = b""
    plain: bool = False


_NOTHING: Final = Address("nothing")
_TO: Final = Address("to")
_TO_PLAIN: Final = Address("to", plain=True)


def vhost_of(hostname: bytes | None) -> bytes:
    """Return the vhost that an open names."""
    if hostname is not None and hostname.startswith(_VHOST):
        return hostname[len(_VHOST) :]
    return DEFAULT_VHOST


def target_of(target: Terminus | None, *, plain: bool = False) -> Address:
    """Return where messages go that are sent to a target, as its sender's attach has it.

    The target of a dynamic node is that of the receiver's attach: before that, nothing.

    Args:
        target: as the attach has it.
        plain: the broker is not RabbitMQ.
    """
    if target is None:
        return _TO_PLAIN if plain else _TO
    if target.coordinator:
        return _NOTHING
    if target.address is None:
        return _NOTHING if target.dynamic else _TO_PLAIN if plain else _TO
    return address_of(target.address, plain=plain)


def address_of(address: bytes, *, plain: bool = False) -> Address:
    """Return where an address leads that is there."""
    if plain:
        return Address(routing_key=_plain(address), plain=True) if address else _TO_PLAIN
    if not address.startswith(b"/"):
        return _queue(_unescaped(address))
    _, node, *rest = address.split(b"/", 2)
    name = rest[0] if rest else b""
    # What a broker refuses may be charged to anything that it could mean.
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
    """Return a queue by version 1, where an empty name is none."""
    return Address(routing_key=name) if name else Address("subject")


def _exchange(exchange: bytes, key: bytes) -> Address:
    return Address(exchange=b"" if exchange in _DEFAULT_EXCHANGES else exchange, routing_key=key)


def _plain(address: bytes) -> bytes:
    """Return the one name of a queue of Artemis that its address has as well."""
    name, separator, queue = address.partition(b"::")
    return name if separator and queue == name else address


def _unescaped(name: bytes) -> bytes:
    return name.replace(b"%2F", b"/") if b"%" in name else name


def published(names: Names, address: Address, head: MessageHead | None = None) -> tuple[Resource, ...]:
    """Return what a message is charged to, without copies.

    Args:
        names: of the connection.
        address: of its link.
        head: its own; may be left out where ``address.by`` is "address".

    Returns:
        Nothing where it is not limited, or does not say where it is to go.
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
    target = names.published(address.exchange, key)
    copies = head.copies if head is not None and not address.plain else ()
    return names.with_copies(target, [*copies]) if copies else target.resources


def source_of(source: Terminus | None, *, plain: bool = False) -> bytes | None:
    """Return the name of the queue that a source stands for, None if it is nothing that is limited.

    Of one without a name that the client knows it is MADE_BY_BROKER. Of a dynamic one, it is as its sender's attach has
    it: before that, None.
    """
    if source is None or source.address is None or source.coordinator:
        return None
    address = source.address
    if plain:
        return _plain(address)
    if not address.startswith(b"/"):
        return _unescaped(address)
    _, node, *rest = address.split(b"/", 2)
    name = rest[0] if rest else b""
    match node:
        case b"queues":
            return unquote_to_bytes(name)
        case b"queue":
            return _unescaped(name)
        case b"amq" if name.startswith(b"queue/"):
            return _unescaped(name.removeprefix(b"queue/"))
        case b"exchange" | b"exchanges" | b"topic":
            return MADE_BY_BROKER
        case b"management" if not rest:
            return None
        case _:
            return address


def delivered(names: Names, source: Terminus | None, *, plain: bool = False) -> tuple[Resource, ...]:
    """Return what deliveries from a source are charged to; nothing where they are not limited."""
    queue = source_of(source, plain=plain)
    return () if queue is None else names.delivery(queue)
