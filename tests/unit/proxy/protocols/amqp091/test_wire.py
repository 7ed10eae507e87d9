import struct

import pytest
from amqp_playbook import frames

from proxy.protocols.amqp091.about import AboutClient
from proxy.protocols.amqp091.wire import (
    CONNECTION_START_OK,
    Malformed,
    Reader,
    ack,
    connection_close,
    nack,
    read_content_header,
    read_expiration,
)
from proxy.stats.snapshot import ClientDescription


def header(headers: bytes, flags: int = 1 << 13) -> bytes:
    return struct.pack(">HHQH", 60, 0, 7, flags) + headers


def test_frames_of_our_own_are_as_others_make_them() -> None:
    assert ack(3, 1 << 40) == frames.ack(3, 1 << 40)
    assert nack(65535, 7) == frames.nack(65535, 7)
    assert connection_close(320, "busy") == frames.close(0, 320, "CONNECTION_FORCED - busy")
    assert connection_close(501, "ä" * 200) == frames.close(0, 501, "ä" * 127)


def test_copies_are_found_among_fields_of_all_types() -> None:
    fields = {
        "t": b"t\1",
        "b": b"b\1",
        "B": b"B\1",
        "s": b"s\0\1",
        "u": b"u\0\1",
        "I": b"I\0\0\0\1",
        "i": b"i\0\0\0\1",
        "l": b"l" + bytes(8),
        "f": b"f" + bytes(4),
        "d": b"d" + bytes(8),
        "D": b"D" + bytes(5),
        "S": "text",
        "x": b"x" + frames.long("bytes"),
        "T": b"T" + bytes(8),
        "F": b"F" + frames.table({"CC": ["inner"]}),
        "A": ["CC"],
        "V": b"V",
        "BCC": ["a", "b"],
        "CC": b"A" + frames.long(b"S" + frames.long("b") + b"I\0\0\0\1" + b"S" + frames.long("k" * 300)),
    }
    raw = header(frames.table(fields))
    assert read_content_header(raw, 0, len(raw)) == (60, 7, [b"a", b"b", b"k" * 255], 24)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        header(b"\0\0\0\xffCC"),
        header(frames.long(b"\2CC?")),
        header(frames.long(b"\2CCA\0\0\0\xff")),
        header(frames.long(b"\2CCA" + frames.long(b"S\0\0\0\xff"))),
        header(b"\xffCC", flags=1 << 15 | 1 << 13),
        header(frames.table({"CC": [str(number) for number in range(257)]})),
        header(frames.long(b"\2CCV" + b"\0V" * 2048)),
        header(frames.long((b"\2CCA" + frames.long(b"V" * 100)) * 30)),
    ],
)
def test_a_header_that_ends_too_early_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        read_content_header(raw, 0, len(raw))


@pytest.mark.parametrize(
    ("mechanism", "response", "user"),
    [
        ("PLAIN", b"\0guest\0secret", b"guest"),
        ("PLAIN", b"admin\0guest\0secret", b"guest"),
        ("AMQPLAIN", frames.table({"LOGIN": "guest", "PASSWORD": "secret"})[4:], b"guest"),
        ("AMQPLAIN", 2 * frames.table({"LOGIN": "guest"})[4:] + frames.table({"LOGIN": "other"})[4:], b"guest"),
        ("AMQPLAIN", frames.table({"LOGIN": ["guest"]})[4:] + frames.table({"LOGIN": "other"})[4:], b""),
        ("EXTERNAL", b"", b""),
    ],
)
def test_a_client_says_who_it_is(mechanism: str, response: bytes, user: bytes) -> None:
    said = frames.table({"product": "pika", "version": "1.3.2\n", "platform": "Python 3.11\n"})
    raw = said + frames.short(mechanism) + frames.long(response) + frames.short("en_US")
    about = AboutClient()
    about.take(CONNECTION_START_OK, Reader(raw, 0, len(raw)))
    assert about.user == user
    about.opened = True
    other = raw.replace(b"guest", b"admin").replace(b"pika", b"java")
    about.take(CONNECTION_START_OK, Reader(other, 0, len(other)))
    # Without a version, since accounts are kept by it.
    assert about.language == "Python"
    assert about.product == "pika 1.3.2?"
    assert about.describe() == ClientDescription("", "Python", "1.3.2?", "pika", user.decode())


@pytest.mark.parametrize(
    ("said", "product"), [({"product": "pika"}, "pika"), ({"version": "1.4.4"}, "1.4.4"), ({"platform": "Go"}, "")]
)
def test_a_client_may_leave_out_its_product_or_the_version(said: dict[str, str], product: str) -> None:
    raw = frames.table(said) + frames.short("EXTERNAL") + frames.long(b"") + frames.short("en_US")
    about = AboutClient()
    about.take(CONNECTION_START_OK, Reader(raw, 0, len(raw)))
    assert about.product == product


def content_with(flags: int, properties: bytes) -> bytes:
    begin = frames.publish(1, "exchange", "key", b"")[0]
    return begin + frames.frame(2, 1, struct.pack(">HHQH", 60, 0, 0, flags) + properties)


@pytest.mark.parametrize(
    ("flags", "properties", "expiration_ms"),
    [
        (1 << 8, frames.short("60000"), 60_000),
        (1 << 8, frames.short("0"), 0),
        (1 << 8 | 1 << 7, frames.short("5") + frames.short("id"), 5),
        (
            0xFF00,
            frames.short("text/plain")
            + frames.short("gzip")
            + frames.table({"a": "b"})
            + b"\2\4"
            + frames.short("id")
            + frames.short("reply")
            + frames.short("17"),
            17,
        ),
        (1 << 13 | 1 << 8, frames.table({"CC": ["a"]}) + frames.short("1"), 1),
        (1 << 7, frames.short("5"), None),
        (0, b"", None),
        (1 << 8, frames.short("-5"), None),
        (1 << 8, frames.short("soon"), None),
        (1 << 8, frames.short(""), None),
        (1 << 8, frames.short("12345678901"), None),
        (1 << 8, frames.short(b"\xb2"), None),
        (1 << 8, b"\xff5", None),
        (1 << 13 | 1 << 8, b"\0\0\xff\xff" + frames.short("5"), None),
        (1 << 8, b"", None),
    ],
)
def test_a_content_says_when_it_expires(flags: int, properties: bytes, expiration_ms: int | None) -> None:
    content = content_with(flags, properties)
    assert read_expiration(content) == expiration_ms
    for stop in range(len(content)):
        assert read_expiration(content[:stop]) in {None, expiration_ms}
