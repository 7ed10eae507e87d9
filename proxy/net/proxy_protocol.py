"""Parses and builds PROXY protocol headers, which contain the real client's address. Does no I/O.

Source: HAProxy's doc/proxy-protocol.txt, sections 2.1 (version 1, text) and 2.2 (version 2, binary).
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import Final, Literal, NamedTuple

Address = tuple[str, int]
Version = Literal["v1", "v2"]

MAX_HEADER_BYTES: Final = 16 * 1024
"""HAProxy's limit. The format allows 64 KiB."""

_V1_SIGNATURE: Final = b"PROXY "
#: Maximum, including the CRLF (section 2.1).
_V1_LINE_BYTES: Final = 107
_V2_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_V2_START: Final = Struct("!12sBBH")
_V2_INET: Final = Struct("!4s4sHH")
_V2_INET6: Final = Struct("!16s16sHH")
_LOCAL, _PROXY = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21
#: For the families IPv4, IPv6 and AF_UNIX.
_ADDRESS_BYTES: Final = {0x1: _V2_INET.size, 0x2: _V2_INET6.size, 0x3: 216}
_PORT = re.compile(rb"0|[1-9][0-9]{0,4}")
_TEXT_ADDRESS: Final = {b"TCP4": re.compile(rb"[0-9.]{7,15}"), b"TCP6": re.compile(rb"[0-9A-Fa-f:.]{2,39}")}


class Header(NamedTuple):
    """A parsed header. If it has no addresses (health checks and local connections), the socket's addresses apply."""

    source: Address | None
    destination: Address | None
    size_bytes: int


class HeaderError(Exception):
    """The header is invalid. ``missing`` is True if there is no header at all."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


def parse(data: bytes) -> Header | None:
    """Parse the header at the start of ``data``. Return None if it is incomplete. Raises HeaderError."""
    if data.startswith(_V2_SIGNATURE[: len(data)]):
        return _parse_v2(data)
    if data.startswith(_V1_SIGNATURE[: len(data)]):
        return _parse_v1(data)
    raise HeaderError("no PROXY signature", missing=True)


def make(version: Version, source: Address, destination: Address) -> bytes:
    (from_, from_port), (to, to_port) = source, destination
    ends = [ip_address(from_), ip_address(to)]
    if len({end.version for end in ends}) > 1:
        # The families must be the same, so map IPv4 to IPv6 (RFC 4291, section 2.5.5.2).
        ends = [end if isinstance(end, IPv6Address) else IPv6Address(0xFFFF << 32 | int(end)) for end in ends]
    is_inet = isinstance(ends[0], IPv4Address)
    if version == "v1":
        family = "TCP4" if is_inet else "TCP6"
        return f"PROXY {family} {_text(ends[0])} {_text(ends[1])} {from_port} {to_port}\r\n".encode()
    block = (_V2_INET if is_inet else _V2_INET6).pack(ends[0].packed, ends[1].packed, from_port, to_port)
    return _V2_START.pack(_V2_SIGNATURE, _PROXY, _TCP4 if is_inet else _TCP6, len(block)) + block


def _text(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    # str() may write the last 32 bits in dotted form, which version 1 does not allow.
    return ":".join(f"{int(address) >> shift & 0xFFFF:x}" for shift in range(112, -1, -16))


def _parse_v1(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, _V1_LINE_BYTES)
    if end < 0:
        if len(data) >= _V1_LINE_BYTES:
            raise HeaderError(f"no line end within {_V1_LINE_BYTES} bytes")
        return None
    size_bytes = end + 2
    _, family, *fields = data[:end].split(b" ")
    if family == b"UNKNOWN":
        return Header(None, None, size_bytes)
    if family not in _TEXT_ADDRESS:
        raise HeaderError(f"unknown address family {family.decode('latin-1')!r}")
    if len(fields) != 4:
        raise HeaderError(f"expected two addresses and two ports, got {len(fields)} fields")
    source, destination, source_port, destination_port = fields
    return Header(
        (_v1_address(family, source), _v1_port(source_port)),
        (_v1_address(family, destination), _v1_port(destination_port)),
        size_bytes,
    )


def _v1_address(family: bytes, text: bytes) -> str:
    # ip_address also accepts zone IDs.
    if _TEXT_ADDRESS[family].fullmatch(text):
        try:
            address = ip_address(text.decode())
        except ValueError:
            pass
        else:
            if (address.version == 4) is (family == b"TCP4"):
                return str(address)
    raise HeaderError(f"{text.decode('latin-1')!r} is not a valid {family.decode()} address")


def _v1_port(text: bytes) -> int:
    if not _PORT.fullmatch(text) or int(text) > 0xFFFF:
        raise HeaderError(f"{text.decode('latin-1')!r} is not a valid port")
    return int(text)


def _parse_v2(data: bytes) -> Header | None:
    if len(data) < _V2_START.size:
        return None
    _, command, family, length = _V2_START.unpack_from(data)
    if command not in {_LOCAL, _PROXY}:
        raise HeaderError(f"unknown version or command 0x{command:02x}")
    size_bytes = _V2_START.size + length
    if size_bytes > MAX_HEADER_BYTES:
        raise HeaderError(f"the header is {size_bytes} bytes long; the maximum is {MAX_HEADER_BYTES}")
    if command == _PROXY and (family >> 4 > 3 or family & 0xF > 2):
        raise HeaderError(f"unknown address family or transport 0x{family:02x}")
    address_bytes = _ADDRESS_BYTES.get(family >> 4, 0)
    if command == _PROXY and length < address_bytes:
        raise HeaderError(f"the addresses take up only {length} bytes; the minimum is {address_bytes}")
    if len(data) < size_bytes:
        return None
    if command == _LOCAL or not family >> 4 or not family & 0xF:
        return Header(None, None, size_bytes)
    start = _V2_START.size
    if family not in {_TCP4, _TCP6}:
        return Header(None, None, size_bytes)
    is_inet = family == _TCP4
    source, destination, source_port, destination_port = (_V2_INET if is_inet else _V2_INET6).unpack_from(data, start)
    kind = IPv4Address if is_inet else IPv6Address
    return Header((str(kind(source)), source_port), (str(kind(destination)), destination_port), size_bytes)
