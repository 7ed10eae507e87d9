"""Headers as in HAProxy's doc/proxy-protocol.txt."""

import struct
from ipaddress import ip_address

import pytest

from proxy.net.proxy_protocol import MAX_HEADER_BYTES, Address, Header, HeaderError, Version, make, parse

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FOUR = bytes([192, 0, 2, 1, 198, 51, 100, 7]) + struct.pack("!HH", 56324, 5672)
SIX = bytes(15) + b"\1" + bytes(15) + b"\2" + struct.pack("!HH", 1, 65535)


def v2(command: int, family: int, block: bytes) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(block)) + block


def extension(kind: int, value: bytes) -> bytes:
    return struct.pack("!BH", kind, len(value)) + value


@pytest.mark.parametrize(
    ("header", "source", "destination"),
    [
        (b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 5672\r\n", ("192.0.2.1", 56324), ("198.51.100.7", 5672)),
        (b"PROXY TCP6 2001:db8::1 ::2 0 65535\r\n", ("2001:db8::1", 0), ("::2", 65535)),
        (
            b"PROXY TCP6 " + 2 * (b":".join(8 * [b"ffff"]) + b" ") + b"65535 65535\r\n",
            (":".join(8 * ["ffff"]), 65535),
            (":".join(8 * ["ffff"]), 65535),
        ),
        (b"PROXY UNKNOWN\r\n", None, None),
        (b"PROXY UNKNOWN ffff::1 what ever 1 2\r\n", None, None),
        (v2(0x21, 0x11, FOUR), ("192.0.2.1", 56324), ("198.51.100.7", 5672)),
        (v2(0x21, 0x21, SIX), ("::1", 1), ("::2", 65535)),
        (
            v2(0x21, 0x11, FOUR + extension(4, b"") + extension(0x20, b"x" * 300)),
            ("192.0.2.1", 56324),
            ("198.51.100.7", 5672),
        ),
        (v2(0x21, 0x11, FOUR + b"no extension"), ("192.0.2.1", 56324), ("198.51.100.7", 5672)),
        # Headers without a TCP address: the connection's own is used.
        (v2(0x20, 0x00, b""), None, None),
        (v2(0x20, 0xFF, b"any"), None, None),
        (v2(0x21, 0x00, b"any"), None, None),
        (v2(0x21, 0x31, bytes(216)), None, None),
        (v2(0x21, 0x12, FOUR), None, None),
        (v2(0x21, 0x10, FOUR), None, None),
        (v2(0x21, 0x00, bytes(MAX_HEADER_BYTES - 16)), None, None),
    ],
)
def test_the_header_identifies_the_client(header: bytes, source: Address | None, destination: Address | None) -> None:
    found = parse(header + b"AMQP\0\0\11\1")
    assert found == Header(source, destination, len(header))
    assert [parse(header[:size]) for size in range(len(header))] == [None] * len(header)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PROXY " + b"x" * 101, "no line end within 107 bytes"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 " + b"1" * 80 + b"\r\n", "no line end within 107 bytes"),
        (b"PROXY tcp4 1.2.3.4 1.2.3.4 1 2\r\n", "unknown address family 'tcp4'"),
        (b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "unknown address family ''"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n", "expected two addresses and two ports, got 3 fields"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 \r\n", "expected two addresses and two ports, got 5 fields"),
        (b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n", "'1.2.3' is not a valid TCP4 address"),
        (b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n", "'01.2.3.4' is not a valid TCP4 address"),
        (b"PROXY TCP4 1.2.3.4 ::1 1 2\r\n", "'::1' is not a valid TCP4 address"),
        (b"PROXY TCP6 1.2.3.4 ::1 1 2\r\n", "'1.2.3.4' is not a valid TCP6 address"),
        (b"PROXY TCP6 fe80::1%lo ::1 1 2\r\n", "'fe80::1%lo' is not a valid TCP6 address"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n", "'01' is not a valid port"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n", "'65536' is not a valid port"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 +2\r\n", r"'\+2' is not a valid port"),
        (v2(0x22, 0x11, FOUR), "unknown version or command 0x22"),
        (v2(0x11, 0x11, FOUR), "unknown version or command 0x11"),
        (v2(0x21, 0x41, FOUR), "unknown address family or transport 0x41"),
        (v2(0x21, 0x13, FOUR), "unknown address family or transport 0x13"),
        (v2(0x21, 0x21, FOUR), "the addresses take up only 12 bytes; the minimum is 36"),
        (v2(0x21, 0x11, bytes(MAX_HEADER_BYTES)), "the header is 16400 bytes long; the maximum is 16384"),
    ],
)
def test_invalid_header_is_explained(data: bytes, message: str) -> None:
    with pytest.raises(HeaderError, match=f"^{message}") as caught:
        parse(data)
    assert not caught.value.missing


@pytest.mark.parametrize(
    "data", [b"AMQP\0\0\11\1", b"PROXIED", b"proxy TCP4", b"\r\n\r\n\0\r\nQUIT\r", b"\x16\3\1", b"X"]
)
def test_bytes_without_a_header_are_recognised(data: bytes) -> None:
    with pytest.raises(HeaderError) as caught:
        parse(data)
    assert caught.value.missing


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("source", "destination", "read"),
    [
        (("192.0.2.1", 1), ("198.51.100.7", 5672), ("192.0.2.1", 1)),
        (("2001:db8::1", 65535), ("::2", 2), ("2001:db8::1", 65535)),
        (("192.0.2.1", 1), ("2001:db8::2", 2), ("::ffff:c000:201", 1)),
    ],
)
def test_header_round_trips(version: Version, source: Address, destination: Address, read: Address) -> None:
    header = make(version, source, destination)
    found = parse(header)
    assert found is not None
    assert found.size_bytes == len(header)
    # The spelling of IPv4 in IPv6 depends on the version of Python.
    assert found.source is not None
    assert (ip_address(found.source[0]), found.source[1]) == (ip_address(read[0]), read[1])
    assert found.destination == destination
