from typing import Any

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import Array, Described, Symbol, ULong, encode
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.amqp10.message import MAX_HEAD_BYTES, MessageHead, may_name_copies
from proxy.protocols.amqp10.wire import Malformed


def head_of(*payloads: bytes) -> MessageHead:
    head = MessageHead()
    for number, payload in enumerate(payloads, 1):
        if head.take(payload, last=number == len(payloads)):
            break
    return head


def section(descriptor: object, value: object) -> bytes:
    return encode(Described(descriptor, value))


PROPERTIES = section(ULong(0x73), [None, None, "/queues/q"])
DATA = section(ULong(0x75), b"body")


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@given(
    to=st.none() | st.text(max_size=300),
    subject=st.none() | st.text(max_size=9),
    annotations=st.none() | st.dictionaries(st.builds(Symbol, st.text("x-abc", max_size=5)), st.text(max_size=300)),
    copies=st.none() | st.lists(st.text(max_size=9)),
    body=st.binary(max_size=2000),
    durable=st.booleans(),
    size=st.integers(1, 400),
)
def test_it_is_read_in_pieces_of_any_size(
    *,
    to: str | None,
    subject: str | None,
    annotations: dict[Any, Any] | None,
    copies: list[str] | None,
    body: bytes,
    durable: bool,
    size: int,
) -> None:
    if copies is not None:
        annotations = {**(annotations or {}), Symbol("x-cc"): copies}
    raw = codec.message(body, to=to, subject=subject, annotations=annotations, durable=durable)
    for view in (raw, memoryview(raw)):
        head = MessageHead()
        for at in range(0, len(raw), size):
            if head.take(view[at : at + size], last=at + size >= len(raw)):
                break
        assert head.known
        assert (head.to, head.subject) == (encoded(to), encoded(subject))
        assert head.copies == tuple(dict.fromkeys(each.encode() for each in copies or ()))
        assert not head.copies or may_name_copies(raw)


def test_nothing_behind_the_requested_data_is_read() -> None:
    assert head_of(PROPERTIES + b"\xff\xff", b"\xff").to == b"/queues/q"
    assert head_of(section(ULong(0x74), {"a": "b"})[:5], b"").known
    assert head_of(DATA[:4], b"\xff").to is None


@pytest.mark.parametrize(
    "descriptor", [ULong(0x73), Symbol("amqp:properties:list"), codec.Raw(b"\x80" + bytes(7) + b"\x73")]
)
def test_properties_are_known_by_any_descriptor(descriptor: object) -> None:
    assert head_of(section(descriptor, [None, None, "q", "key"]) + DATA).to == b"q"


def test_a_message_without_a_body_has_its_properties() -> None:
    assert head_of(b"").to is None
    assert head_of(PROPERTIES).to == b"/queues/q"
    assert head_of(section(ULong(0x70), [True])).known


@pytest.mark.parametrize(
    "payloads",
    [
        [PROPERTIES[:-1]],
        [PROPERTIES[:2], b""],
        [b"\x45" + DATA],
        [section(ULong(0x79), [])],
        [section(Symbol("amqp:other:list"), []) + PROPERTIES],
        [section("amqp:properties:list", []) + PROPERTIES],
        [section(ULong(0x72), {}) + section(ULong(0x72), {}) + PROPERTIES],
        [section(ULong(0x72), {}) + section(ULong(0x70), []) + PROPERTIES],
        [section(ULong(0x73), {Symbol("to"): "q"})],
        [section(ULong(0x73), [None, None, Symbol("q")])],
        [section(ULong(0x73), [None, None, b"q"])],
        [section(ULong(0x72), {Symbol("x-cc"): [str(number) for number in range(257)]}) + DATA],
        [section(ULong(0x72), None) + DATA],
        [section(ULong(0x71), b"x") + DATA],
        # A symbol of five bytes, or of twenty, which RabbitMQ 4.0.5 treats as a body.
        [b"\x00\xa3\x05amqp:data:binary" + PROPERTIES],
        [b"\x00\xa3\x14amqp:data:binary\x00\x53\x73\x45"],
        [section(ULong(0x71), {Symbol("x"): b"y" * MAX_HEAD_BYTES}), b"", PROPERTIES],
        [section(ULong(0x71), {Symbol("x"): b"y" * MAX_HEAD_BYTES})[:9], b"", PROPERTIES],
        [b"\x00\x53\x71\xd1\xff\xff\xff\xff", *[b"\x00" * 1000] * 70],
    ],
)
def test_ambiguous_bodies_are_malformed(payloads: list[bytes]) -> None:
    with pytest.raises(Malformed):
        head_of(*payloads)


@pytest.mark.parametrize("value", ["key", Array([Symbol("key")]), {"key": "key"}, None, ["a", 1]])
def test_copies_other_than_a_list_are_none(value: object) -> None:
    found = head_of(section(ULong(0x72), {Symbol("x-cc"): value}) + DATA)
    assert found.copies == ((b"a",) if isinstance(value, list) and not isinstance(value, Array) else ())


def test_single_bytes_take_no_more_than_long_pieces() -> None:
    looked_at = 0

    class Counted(MessageHead):
        def _sections(self, data: Any, *, last: bool) -> int:
            nonlocal looked_at
            looked_at += 1
            return super()._sections(data, last=last)

    annotations = {Symbol(f"x-{number}"): "v" * 100 for number in range(500)}
    raw = codec.message(b"body", to="q", annotations=annotations)
    head = Counted()
    for at in range(len(raw)):
        if head.take(raw[at : at + 1], last=False):
            break
    assert head.to == b"q"
    assert looked_at < 30
