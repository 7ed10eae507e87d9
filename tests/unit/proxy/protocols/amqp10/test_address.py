import pytest
from amqp10_playbook import codec

from limiter.rules.resource import Resource
from proxy.protocols.amqp.names import Names
from proxy.protocols.amqp10.address import (
    Address,
    delivered,
    published,
    source_of,
    target_of,
    vhost_of,
)
from proxy.protocols.amqp10.message import MessageHead
from proxy.protocols.amqp10.wire import Terminus


def names_of(vhost: bytes = b"/", *, with_keys: bool = True) -> Names:
    names = Names()
    names.enter(vhost)
    names.with_keys = with_keys
    return names


def head(to: str | None = None, subject: str | None = None, copies: list[str] | None = None) -> MessageHead:
    annotations = None if copies is None else {codec.Symbol("x-cc"): copies}
    found = MessageHead()
    found.take(codec.message(b"body", to=to, subject=subject, annotations=annotations), last=True)
    return found


def charged(address: str | None, said: MessageHead | None = None, vhost: bytes = b"/") -> list[str]:
    target = target_of(Terminus(None if address is None else address.encode()))
    return [str(each) for each in published(names_of(vhost), target, said)]


# As observed with RabbitMQ 4.0.5.
@pytest.mark.parametrize(
    ("address", "resources"),
    [
        ("/queues/q", ["queue:q"]),
        ("/queues/a%2Fb", ["queue:a%2Fb"]),
        ("/queues/a%2fb", ["queue:a%2Fb"]),
        ("/queues/%C3%A4", ["queue:ä"]),
        ("/queues/q+q", ["queue:q+q"]),
        ("/queues/a/b", ["queue:a%2Fb"]),
        ("/exchanges/ex/k", ["exchange:ex", "routing_key:ex/k"]),
        ("/exchanges/e%2Fx/a%2Fb", ["exchange:e%2Fx", "routing_key:e%2Fx/a%2Fb"]),
        ("/exchanges/ex", ["exchange:ex", "routing_key:ex/"]),
        ("/exchanges/ex/", ["exchange:ex", "routing_key:ex/"]),
        ("/exchanges//q", ["queue:q"]),
        ("/exchanges/amq.default/q", ["queue:q"]),
        ("/exchanges/%61mq.default/q", ["queue:q"]),
        ("q", ["queue:q"]),
        ("a%2Fb", ["queue:a%2Fb"]),
        ("a%2fb", ["queue:a%252fb"]),
        ("a/b", ["queue:a%2Fb"]),
        ("/queue/q", ["queue:q"]),
        ("/queue/a%2Fb", ["queue:a%2Fb"]),
        ("/queue/%41", ["queue:%2541"]),
        ("/amq/queue/q", ["queue:q"]),
        ("/exchange/ex/k", ["exchange:ex", "routing_key:ex/k"]),
        ("/exchange/e%2Fx/k", ["exchange:e%2Fx", "routing_key:e%2Fx/k"]),
        ("/exchange/amq.default/q", ["queue:q"]),
        ("/exchange//q", ["queue:q"]),
        ("/topic/a.b", ["exchange:amq.topic", "routing_key:amq.topic/a.b"]),
        ("/management", []),
        ("$management", ["queue:$management"]),
        ("$cbs", ["queue:$cbs"]),
        ("/other/q", ["queue:%2Fother%2Fq"]),
        ("/amq/other", ["queue:%2Famq%2Fother"]),
        ("/", ["queue:%2F"]),
    ],
)
def test_where_an_address_leads(address: str, resources: list[str]) -> None:
    assert charged(address) == resources
    # A message's own address and subject are ignored then.
    assert charged(address, head("/queues/other", "other")) == resources
    # Nor does another vhost differ.
    assert charged(address, vhost=b"t") == [each.replace(":", ":t/", 1) for each in resources]


@pytest.mark.parametrize(
    ("address", "resources"),
    [
        ("/exchange/ex", ["exchange:ex", "routing_key:ex/s"]),
        ("/exchange/ex/", ["exchange:ex", "routing_key:ex/s"]),
        ("/exchange/amq.default", ["queue:s"]),
        ("/queue", ["queue:s"]),
        ("/queue/", ["queue:s"]),
        ("", ["queue:s"]),
    ],
)
def test_where_the_subject_is_the_key(address: str, resources: list[str]) -> None:
    assert target_of(Terminus(address.encode())).by == "subject"
    assert charged(address) == []
    assert charged(address, head("/queues/other", "s")) == resources
    assert charged(address, head()) == [each.removesuffix("s") for each in resources]


def test_anonymous_link_uses_the_address_of_each_message() -> None:
    assert target_of(None).by == target_of(Terminus()).by == "to"
    assert charged(None) == []
    assert charged(None, head(subject="k")) == []
    assert charged(None, head("/queues/q")) == ["queue:q"]
    assert charged(None, head("/exchanges/ex/k", "s")) == ["exchange:ex", "routing_key:ex/k"]
    assert charged(None, head("q")) == ["queue:q"]
    assert charged(None, head("/exchange/ex", "s")) == ["exchange:ex", "routing_key:ex/s"]
    assert charged(None, head("/management")) == []


# As observed with Artemis 2.44.
@pytest.mark.parametrize(
    ("address", "queue"),
    [
        ("q", "q"),
        ("q::q", "q"),
        ("q::x", "q::x"),
        ("::q", "::q"),
        ("q::q::q", "q::q::q"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("$management", "$management"),
        ("/management", "%2Fmanagement"),
        ("/queues/q", "%2Fqueues%2Fq"),
        ("/queue/q", "%2Fqueue%2Fq"),
        ("/exchanges/ex/k", "%2Fexchanges%2Fex%2Fk"),
        ("/topic/q", "%2Ftopic%2Fq"),
    ],
)
def test_addresses_of_other_brokers_are_names_of_queues(address: str, queue: str) -> None:
    for target, said in (
        (Terminus(address.encode()), head("other", "subject", copies=["b"])),
        (None, head(address, "subject", copies=["b"])),
        (Terminus(b""), head(address)),
    ):
        found = published(names_of(), target_of(target, plain=True), said)
        assert [str(each) for each in found] == [f"queue:{queue}"]
    (delivery,) = delivered(names_of(), Terminus(address.encode()), plain=True)
    assert delivery.name == queue


def test_copies_are_charged_in_the_exchange_of_the_address() -> None:
    assert charged("/queues/q", head(copies=["b", "q"])) == ["queue:q", "queue:b"]
    assert charged("/exchanges/ex/k", head(copies=["b"])) == ["exchange:ex", "routing_key:ex/k", "routing_key:ex/b"]
    assert charged(None, head("/queues/q", copies=["b"])) == ["queue:q", "queue:b"]
    assert charged("/queue", head(subject="s", copies=["b"])) == ["queue:s", "queue:b"]
    assert charged("/management", head(copies=["b"])) == []


def test_keys_are_named_only_where_they_are_limited() -> None:
    names = names_of(with_keys=False)
    assert published(names, Address("address", b"ex", b"k")) == (Resource("exchange", "ex"),)


def test_transactions_and_nodes_that_are_still_to_be_made_are_nothing() -> None:
    assert target_of(Terminus(coordinator=True)).by == "nothing"
    assert target_of(Terminus(dynamic=True)).by == "nothing"
    assert target_of(Terminus(b"made", dynamic=True)) == Address(routing_key=b"made")
    assert source_of(Terminus(dynamic=True)) is None
    assert source_of(Terminus(b"made", dynamic=True)) == b"made"


def test_equal_addresses_share_their_resources() -> None:
    names = names_of()
    target = target_of(Terminus(b"/queues/q"))
    assert published(names, target) is published(names, target_of(Terminus(b"q")))


def test_of_a_long_name_the_beginning_counts() -> None:
    names = names_of()
    (resource,) = published(names, Address("address", b"", b"q" * 1000))
    assert resource == Resource("queue", "q" * 255)


@pytest.mark.parametrize(
    ("address", "queue"),
    [
        ("/queues/a%2Fb", "a%2Fb"),
        ("/queue/a%2Fb", "a%2Fb"),
        ("/amq/queue/q", "q"),
        ("q", "q"),
        ("", ""),
        ("/queues/", ""),
        ("/exchange/ex/k", "amq.gen"),
        ("/topic/k", "amq.gen"),
        ("/exchanges/ex/k", "amq.gen"),
        ("/management", None),
        ("$management", "$management"),
        ("/amq/other", "%2Famq%2Fother"),
        (None, None),
    ],
)
def test_where_deliveries_come_from(address: str | None, queue: str | None) -> None:
    found = delivered(names_of(b"t"), Terminus(None if address is None else address.encode()))
    assert found == (() if queue is None else (Resource("delivery", f"t/{queue}"),))
    assert delivered(names_of(), None) == ()


@pytest.mark.parametrize(
    ("hostname", "vhost"),
    [(None, b"/"), (b"localhost", b"/"), (b"vhost:/", b"/"), (b"vhost:t", b"t"), (b"vhost:%2F", b"%2F"), (b"t", b"/")],
)
def test_the_hostname_names_the_vhost(hostname: bytes | None, vhost: bytes) -> None:
    assert vhost_of(hostname) == vhost
