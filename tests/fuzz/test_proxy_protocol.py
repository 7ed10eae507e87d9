"""PROXY headers cut off, changed, and made up: reading them raises HeaderError only and takes what is there only."""

from ipaddress import ip_address
from random import Random

import pytest

from proxy.net.proxy_protocol import MAX_HEADER_BYTES, Address, HeaderError, make, parse

SEEDS = (b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0", b"")


def end(random: Random, *, is_inet: bool) -> Address:
    number = random.getrandbits(32 if is_inet else 128)
    return str(ip_address(number.to_bytes(4 if is_inet else 16, "big"))), random.randrange(65536)


@pytest.mark.parametrize("seed", range(20))
def test_any_header_is_read_as_it_was_made_however_it_is_cut(seed: int, factor: int) -> None:
    random = Random(seed)
    for _ in range(100 * factor):
        is_inet = random.random() < 0.5
        source, destination = end(random, is_inet=is_inet), end(random, is_inet=is_inet)
        header = make(random.choice(("v1", "v2")), source, destination)
        cut = random.randrange(len(header))
        assert parse(header[:cut]) is None
        found = parse(header + random.randbytes(random.randrange(9)))
        assert found is not None
        assert (found.source, found.destination, found.size_bytes) == (source, destination, len(header))


@pytest.mark.parametrize("seed", range(20))
def test_anything_else_is_refused_or_no_longer_than_it_is(seed: int, factor: int) -> None:
    random = Random(seed)
    for _ in range(500 * factor):
        is_inet = random.random() < 0.5
        data = bytearray(make(random.choice(("v1", "v2")), end(random, is_inet=is_inet), end(random, is_inet=is_inet)))
        if random.random() < 0.3:
            data = bytearray(random.choice(SEEDS) + random.randbytes(random.randrange(300)))
        for _ in range(random.randrange(1, 4)):
            place = random.randrange(len(data) + 1)
            data[place : place + random.randrange(4)] = random.randbytes(random.randrange(4))
        try:
            found = parse(bytes(data))
        except HeaderError as error:
            assert str(error)  # noqa: PT017 - either is right
            continue
        if found is None:
            assert len(data) < MAX_HEADER_BYTES
        else:
            assert 0 < found.size_bytes <= len(data)
            for address in filter(None, (found.source, found.destination)):
                ip_address(address[0])
                assert 0 <= address[1] <= 65535
