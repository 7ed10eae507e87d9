import struct
from contextlib import suppress

import pytest
from amqp_playbook import frames
from amqp_playbook.broker import mode_of
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.amqp091 import wire
from proxy.protocols.amqp091.client_info import ClientInfo
from proxy.protocols.amqp091.wire import (
    CONNECTION_START_OK,
    MAX_KEYS,
    Malformed,
    Reader,
    read_content_header,
    read_expiration,
)
from proxy.stats.snapshot import ClientDescription


def header(headers: bytes, flags: int = 1 << 13) -> bytes:
    return struct.pack(">HHQH", 60, 0, 7, flags) + headers


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
    assert read_content_header(raw) == (60, 7, [b"a", b"b", b"k" * 255], 24)


@pytest.mark.parametrize(
    "copies", [{"CC": [str(number) for number in range(MAX_KEYS + 1)]}, {"CC": ["a"] * 1500, "BCC": ["a"] * 1500}]
)
def test_more_copies_than_are_read_are_malformed(copies: dict[str, str | list[str] | bytes]) -> None:
    raw = header(frames.table(copies))
    with pytest.raises(Malformed, match="a content header "):
        read_content_header(raw)


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
def test_a_client_identifies_itself(mechanism: str, response: bytes, user: bytes) -> None:
    said = frames.table({"product": "pika", "version": "1.3.2\n", "platform": "Python 3.11\n"})
    raw = said + frames.short(mechanism) + frames.long(response) + frames.short("en_US")
    about = ClientInfo()
    about.take(CONNECTION_START_OK, Reader(raw, 0, len(raw)))
    assert about.user == user
    about.opened = True
    other = raw.replace(b"guest", b"admin").replace(b"pika", b"java")
    about.take(CONNECTION_START_OK, Reader(other, 0, len(other)))
    # Without a version, because counts are by language.
    assert about.language == "Python"
    assert about.product == "pika 1.3.2?"
    assert about.describe() == ClientDescription("", "Python", "1.3.2?", "pika", user.decode())


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
def test_a_content_has_an_expiration(flags: int, properties: bytes, expiration_ms: int | None) -> None:
    content = content_with(flags, properties)
    assert read_expiration(content) == expiration_ms
    for stop in range(len(content)):
        assert read_expiration(content[:stop]) in {None, expiration_ms}


# A value may contain the field's bytes by chance. The longest that may not.
short_strings = st.binary(max_size=len(wire.CONFIRM_FIELD) - 1).map(frames.short)
NAMES = (b"a", b"n", b"x-deat", b"x-sluice-confir", b"CC")


def tables(*names: bytes) -> st.SearchStrategy[bytes]:
    values = (b"t\1", b"V", b"I" + bytes(4), b"F" + bytes(4), b"A" + frames.long(b"S" + frames.long("k")))
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(values))
    return st.lists(pairs, max_size=4).map(lambda pairs: b"".join(frames.short(name) + value for name, value in pairs))


fields = tables(*NAMES)
added_fields = tables(*NAMES, b"x-death")
properties = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            (
                *("content_type", "content_encoding", "correlation_id", "reply_to", "message_id"),
                *("type", "user_id", "app_id", "cluster_id"),
            ),
            short_strings,
        ),
        "headers": fields,
        "priority": st.binary(min_size=1, max_size=1),
        "timestamp": st.binary(min_size=8, max_size=8),
    },
).filter(
    # Values that contain such a name are not marked.
    lambda said: not any(name in value for name in (b"x-sluice-confirm", b"x-death") for value in said.values())
)
numbers = st.integers(0, (1 << 64) - 1)


@given(properties, numbers, numbers, st.integers(0, 1 << 20))
def test_a_marked_header_is_restored_byte_for_byte(said: dict[str, bytes], maker: int, number: int, size: int) -> None:
    header = frames.header(size, **said)  # type: ignore[arg-type]  # as it takes them
    marked = wire.mark_header(header, maker, number)
    assert marked is not None
    assert mode_of(marked) == 1
    assert wire.read_content_header(marked)[:2] == (60, size)
    assert wire.mark_header(marked, maker, number) is None
    mark = wire.read_mark(marked)
    assert mark is not None
    assert mark == (header, maker, number, False)


@given(properties, fields, fields)
def test_dead_lettered_messages_are_not_marked(said: dict[str, bytes], before: bytes, behind: bytes) -> None:
    death = b"\7x-deathA\0\0\0\0"
    dead = frames.header(7, **said | {"headers": before + death + behind})  # type: ignore[arg-type]  # as it takes them
    assert wire.mark_header(dead, 1, 2) is None
    marked = wire.mark_header(frames.header(7, headers=before), 1, 2)
    assert marked is not None
    at = marked.index(wire.CONFIRM_FIELD)
    length = int.from_bytes(marked[at - 4 : at], "big")
    died = b"".join((marked[: at - 4], (length + len(death)).to_bytes(4, "big"), death, marked[at:]))
    mark = wire.read_mark(died)
    assert mark is not None
    assert mark.died


@given(properties, added_fields, added_fields)
def test_headers_added_by_the_broker_stay(said: dict[str, bytes], before: bytes, behind: bytes) -> None:
    header = frames.header(7, **said)  # type: ignore[arg-type]  # as it takes them
    marked = wire.mark_header(header, 1, 2)
    assert marked is not None
    at = marked.index(wire.CONFIRM_FIELD)
    length = int.from_bytes(marked[at - 4 : at], "big")
    added = (length + len(before) + len(behind)).to_bytes(4, "big")
    changed = b"".join((marked[: at - 4], added, before, marked[at : at + length], behind, marked[at + length :]))
    mark = wire.read_mark(changed)
    assert mark is not None
    assert mark.died is (b"\7x-death" in before + behind)
    own, has_more = said.pop("headers", None), bool(before or behind)
    expected = before + (own or b"") + behind if own is not None or has_more else None
    assert mark.header == frames.header(7, headers=expected, **said)  # type: ignore[arg-type]  # likewise


@given(st.data(), properties)
def test_no_header_makes_more_than_malformed(data: st.DataObject, said: dict[str, bytes]) -> None:
    header = frames.header(7, **said)  # type: ignore[arg-type]  # as it takes them
    marked = wire.mark_header(header, 1, 2)
    assert marked is not None
    for each in (header, marked):
        broken = bytearray(each[: data.draw(st.integers(0, len(each)))])
        for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
            if at < len(broken):
                broken[at] = byte
        for edit in (lambda raw: wire.mark_header(raw, 1, 2), wire.read_mark):
            with suppress(Malformed):
                edit(bytes(broken))
