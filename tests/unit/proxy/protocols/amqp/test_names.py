import pytest

from limiter.rules.resource import Resource
from proxy.protocols.amqp.names import MAX_NAMES, Names, encoded


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (b"orders", "orders"),
        ("bestellungen-ä".encode(), "bestellungen-ä"),
        (b"a/b%", "a%2Fb%25"),
        (b"a\nb", "a%0Ab"),
        (b"a\xffb", "a%FFb"),
        ("\u2028".encode(), "%E2%80%A8"),
        (b"", ""),
    ],
)
def test_a_part_is_encoded_where_it_could_be_mistaken(part: bytes, written: str) -> None:
    assert encoded(part) == written


def test_two_destinations_never_have_one_name() -> None:
    names = Names()
    names.with_keys = True
    seen = set()
    for exchange, key in ((b"a/b", b"c"), (b"a", b"b/c"), (b"a%2Fb", b"c"), (b"a", b"b%2Fc")):
        seen.add(names.target(exchange, key).resources)
    assert len(seen) == 4


def test_names_are_forgotten_rather_than_kept_without_bound() -> None:
    names = Names()
    for number in range(MAX_NAMES + 1):
        target = names.target(b"", b"%d" % number)
        assert names.target(b"", b"%d" % number) is target
        names.delivery(b"%d" % number)
    shown, more = names.shown()
    assert shown == (f"queue:{MAX_NAMES}", f"delivery:{MAX_NAMES}")
    assert more == 0
    assert names.delivery(b"q") == (Resource("delivery", "q"),)
