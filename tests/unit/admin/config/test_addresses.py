import pytest

from admin.config.addresses import collides, leaves_ipv4, reaches
from admin.config.settings import parse_endpoint


@pytest.mark.parametrize(
    ("broker", "listen", "does"),
    [
        ("127.0.0.1:7", "127.0.0.1:7", True),
        ("127.0.0.1:7", "127.0.0.2:7", False),
        ("127.0.0.2:7", "0.0.0.0:7", True),
        ("localhost:7", "[::1]:7", True),
        ("[::ffff:127.0.0.1]:7", "127.0.0.1:7", True),
        ("Broker.example.:7", "broker.example:7", True),
        ("broker.example:7", "*:7", False),
        ("10.0.0.1:7", "0.0.0.0:7", False),
    ],
)
def test_a_broker_is_a_listener_if_a_connection_to_it_arrives_there(broker: str, listen: str, *, does: bool) -> None:
    assert reaches(parse_endpoint(broker), parse_endpoint(listen)) is does


@pytest.mark.parametrize(
    ("first", "second", "do"),
    [
        ("127.0.0.1:7", "127.0.0.1:7", True),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("127.0.0.1:7", "[::1]:7", False),
        ("localhost:7", "[::1]:7", True),
        ("0.0.0.0:7", "10.0.0.1:7", True),
        ("0.0.0.0:7", "localhost:7", True),
        ("[::]:7", "[::1]:7", True),
        ("*:7", "a.example:7", True),
    ],
)
def test_addresses_collide_if_they_cannot_both_be_listened_on(first: str, second: str, *, do: bool) -> None:
    one, other = parse_endpoint(first), parse_endpoint(second)
    assert (collides(one, other), collides(other, one)) == (do, do)


@pytest.mark.parametrize(
    ("other", "does"),
    [
        ("127.0.0.1:7", True),
        ("[::ffff:10.0.0.1]:7", True),
        ("a.example:7", True),
        ("[::]:7", False),
    ],
)
def test_the_ipv6_wildcard_leaves_ipv4_to_another_address_of_its_port(other: str, *, does: bool) -> None:
    listen = parse_endpoint("[::]:7")
    assert leaves_ipv4(listen, [listen, parse_endpoint(other)]) is does
    assert leaves_ipv4(parse_endpoint("[::]:0"), [parse_endpoint("127.0.0.1:0")]) is False
