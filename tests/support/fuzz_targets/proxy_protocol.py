"""The PROXY header: any bytes are read, incomplete, or refused, independently of the data behind."""

import struct
from collections.abc import Iterable

from proxy.net.proxy_protocol import MAX_HEADER_BYTES, Header, HeaderError, make, parse

_V2 = b"\r\n\r\n\0\r\nQUIT\n"


def seeds() -> Iterable[bytes]:
    """Return headers of both versions, with all optional parts."""
    four, six = ("192.0.2.1", 40000), ("2001:db8::1", 65535)
    for source, destination in ((four, four), (six, six), (four, six)):
        yield make("v1", source, destination)
        header = make("v2", source, destination)
        yield header
        authority = b"\x02" + struct.pack(">H", 4) + b"host"
        yield header[:14] + struct.pack(">H", len(header) + len(authority) - 16) + header[16:] + authority
    yield b"PROXY UNKNOWN\r\n"
    yield b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\nAMQP"
    yield _V2 + b"\x20\x00\x00\x00"
    yield _V2 + b"\x21\x31\x00\xd8" + bytes(216)
    yield b"AMQP\0\0\x09\x01"


def run(data: bytes) -> None:
    found = _read(data)
    if isinstance(found, Header):
        size = found.size_bytes
        assert 0 < size <= min(len(data), MAX_HEADER_BYTES)
        assert _read(data[:size]) == found, "what follows makes a difference"
        assert _read(data[: size - 1]) is None, "it was there before its end"
        if found.source is not None and found.destination is not None:
            for version in ("v1", "v2"):
                again = _read(make(version, found.source, found.destination))
                assert isinstance(again, Header)
                assert (again.source, again.destination) == (found.source, found.destination)
    elif found is None:
        assert len(data) < MAX_HEADER_BYTES
    for stop in range(0, len(data), 1 + len(data) // 64):
        before = _read(data[:stop])
        assert before is None or before == found or isinstance(before, str)
        assert not (isinstance(before, str) and not isinstance(found, str)), "refused, and then it was none"


def _read(data: bytes) -> Header | str | None:
    try:
        return parse(data)
    except HeaderError as error:
        assert str(error)
        return str(error)
