import struct
from typing import Any

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import Array, Described, Raw, Symbol, UByte, UInt, ULong, encode
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.wire import Malformed, Performative, performative

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.binary(max_size=300)
    | st.text(max_size=300)
    | st.builds(Symbol, st.text("ab:", max_size=9))
    | st.builds(UInt, st.integers(0, 2**32 - 1))
    | st.builds(ULong, st.integers(0, 2**64 - 1))
    | st.builds(UByte, st.integers(0, 255))
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        | st.builds(Described, st.builds(ULong, st.integers(0, 2**64 - 1)), inner)
        | st.builds(Array, st.lists(st.builds(Symbol, st.text("ab:", max_size=9)), max_size=4))
    ),
    max_leaves=12,
)


def read(data: bytes) -> Performative:
    found = performative(data, 0, len(data))
    assert found is not None
    return found


def fields_of(*values: Any) -> Performative:
    return read(encode(Described(ULong(0x12), list(values))))


@given(VALUES, st.binary(max_size=3))
def test_a_value_ends_where_it_ends(value: object, behind: bytes) -> None:
    data = encode(value)
    assert wire.skip(data + behind, 0, len(data) + len(behind)) == len(data)
    for stop in range(len(data)):
        with pytest.raises(Malformed):
            wire.skip(data, 0, stop)


@given(st.lists(VALUES, max_size=14), st.binary(max_size=5))
def test_fields_are_kept_as_they_are_encoded(values: list[object], payload: bytes) -> None:
    data = encode(Described(ULong(0x14), values))
    found = read(data + payload)
    assert (found.code, found.stop, found.fields) == (0x14, len(data), [encode(each) for each in values])
    while values and values[-1] is None:
        values.pop()
    assert found.replaced({}) == encode(Described(ULong(0x14), values))
    for stop in range(len(data)):
        assert performative(data, 0, stop, whole=False) is None
        with pytest.raises(Malformed):
            performative(data, 0, stop)


def test_changed_fields_are_in_their_place() -> None:
    found = fields_of("name", UInt(300), None)
    assert codec.decode(found.replaced({1: wire.uint(7)}))[0].value == ["name", 7]
    assert codec.decode(found.replaced({4: wire.boolean(True), 1: wire.NULL}))[0].value == [
        "name",
        None,
        None,
        None,
        True,
    ]
    assert found.replaced({0: wire.NULL, 1: wire.NULL}) == b"\x00\x53\x12\x45"
    assert found.fields[1] == wire.uint(300)


@pytest.mark.parametrize(
    "descriptor",
    [
        b"\x53\x14",
        b"\x80" + struct.pack(">Q", 0x14),
        b"\x52\x14",
        b"\x70" + struct.pack(">I", 0x14),
        b"\x50\x14",
        b"\x51\x14",
        b"\x54\x14",
        b"\x55\x14",
        b"\x60\x00\x14",
        b"\x61\x00\x14",
        b"\x71\x00\x00\x00\x14",
        b"\x73\x00\x00\x00\x14",
        b"\x81" + struct.pack(">q", 0x14),
        b"\x83" + struct.pack(">q", 0x14),
        b"\xa3\x12amqp:transfer:list",
        b"\xb3\x00\x00\x00\x12amqp:transfer:list",
    ],
)
def test_a_transfer_is_known_by_any_descriptor_that_a_broker_takes(descriptor: bytes) -> None:
    data = b"\x00" + descriptor + b"\xc0\x03\x01\x52\x07"
    found = read(data)
    assert (found.code, found.uint(0)) == (wire.TRANSFER, 7)
    assert found.replaced({}) == data
    for stop in range(len(data)):
        assert performative(data, 0, stop, whole=False) is None


def test_unknown_described_values_keep_their_descriptor() -> None:
    for descriptor in (Symbol("amqp:other:list"), ULong(0x0000468C00000004), ULong(0x99)):
        data = encode(Described(descriptor, ["as", {"it": "came"}]))
        found = read(data)
        assert found.code == (descriptor if isinstance(descriptor, int) else wire.UNKNOWN)
        assert found.replaced({}) == data


@pytest.mark.parametrize(
    "data",
    [
        b"\x45",
        encode(Described(ULong(0x14), {Symbol("handle"): UInt(1)})),
        encode(Described(ULong(0x14), b"binary")),
        encode(Described(Described(ULong(0x14), ULong(0x14)), [])),
        encode(Described("amqp:transfer:list", [])),
        b"\x00\x53\x14\xc0\x00",
        b"\x00\x53\x14\xc0\x03\x02\x52\x07",
        b"\x00\x53\x14\xc0\x03\x00\x52\x07",
        b"\x00\x53\x14\xc0\x02\x01\x52\x07",
        b"\x00\x53\x14\xc0\x03\x01\x3f\x07",
        b"\x00\x53\x14\xd0\x00\x00\x00\x03\x00\x00\x00\x00",
        b"\x00\x53\x14\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\x00\x53\x14\xd0\xff\xff\xff\xff",
        b"\x00\xb3\xff\xff\xff\xff",
        b"\x00\x53\x14\xc0\x42\x41" + b"\x40" * 65,
        b"\x00\x53\x14\xc0\x23\x01" + b"\x00" * 34,
    ],
)
def test_performative_without_a_list_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        performative(data, 0, len(data), whole=False)


@pytest.mark.parametrize(
    "header",
    [b"\x00\x00\x00\x07\x02\x00\x00\x00", b"\x00\x00\x00\x08\x01\x00\x00\x00", b"\x00\x00\x00\x08\x03\x00\x00\x00"],
)
def test_a_frame_shorter_than_its_header_is_malformed(header: bytes) -> None:
    with pytest.raises(Malformed):
        wire.frame_header(header, 0)


def test_a_header_has_its_stated_length() -> None:
    frame = wire.frame_header(b"x\x00\x00\x00\x20\x04\x01\x01\x02", 1)
    assert (frame.size, frame.doff, frame.type, frame.channel) == (32, 16, wire.SASL, 258)


def test_fields_are_read_by_their_type() -> None:
    found = fields_of(
        UInt(0), UInt(255), UInt(256), UByte(2), True, Raw(b"\x56\x01"), Raw(b"\x56\x00"), "text", Symbol("é"), b"bin"
    )
    assert [found.uint(number) for number in range(3)] == [0, 255, 256]
    assert found.ubyte(3) == 2
    assert [found.boolean(number) for number in (4, 5, 6)] == [True, True, False]
    assert (found.octets(7), found.symbol(8), found.binary(9)) == (b"text", "é".encode(), b"bin")
    assert (found.uint(10), found.octets(10), found.binary(10), found.ubyte(10), found.ushort(10)) == (None,) * 5
    assert (found.boolean(10, True), found.boolean(10), found.raw(10)) == (True, False, wire.NULL)
    long = fields_of("t" * 300, b"b" * 300, None, codec.UShort(5))
    assert (long.octets(0), long.binary(1), long.octets(2), long.ushort(3)) == (b"t" * 300, b"b" * 300, None, 5)


def test_a_field_of_another_type_is_malformed() -> None:
    found = fields_of(ULong(1), "text", b"\xff", Raw(b"\x56\x02"), Symbol("s"))
    wrong = (
        lambda: found.uint(0),
        lambda: found.ubyte(0),
        lambda: found.ushort(0),
        lambda: found.boolean(0),
        lambda: found.boolean(3),
        lambda: found.octets(4),
        lambda: found.symbol(1),
        lambda: found.binary(1),
        lambda: wire.described(found.raw(1)),
    )
    for each in wrong:
        with pytest.raises(Malformed):
            each()


def test_frames_of_our_own_are_as_others_make_them() -> None:
    assert wire.flow_frame(3, None, 400, 2**32 - 1, 1, link=(0, 7, 170, True)) == codec.say(
        3,
        "flow",
        incoming_window=400,
        next_outgoing_id=2**32 - 1,
        outgoing_window=1,
        handle=0,
        delivery_count=7,
        link_credit=170,
        drain=True,
    )
    busy = Described(ULong(0x25), [Described(ULong(0x1D), [Symbol("amqp:resource-limit-exceeded"), "SYSTEM_BUSY é"])])
    assert wire.rejection_frame(1, 4, wire.RESOURCE_LIMIT_EXCEEDED, "SYSTEM_BUSY é") == codec.say(
        1, "disposition", role=True, first=4, settled=True, state=busy
    )
    why = Described(ULong(0x1D), [Symbol("amqp:connection:forced"), "w" * 400])
    assert wire.close_frame(wire.error(wire.CONNECTION_FORCED, "w" * 400)) == codec.say(0, "close", error=why)
    assert wire.close_frame() == codec.say(0, "close")
    transfer = codec.performative("transfer", handle=1, delivery_id=256, delivery_tag=b"t", settled=False)
    again = read(transfer).replaced({1: wire.uint(255)})
    payload = b"payload"
    expected = codec.say(6, "transfer", payload, handle=1, delivery_id=255, delivery_tag=b"t", settled=False)
    assert wire.frame(6, again, len(payload)) + payload == expected


def test_an_open_names_user_and_mechanism() -> None:
    properties = {Symbol("product"): "p", Symbol("version"): "1", Symbol("n"): ULong(7), Symbol("platform"): "x"}
    body = codec.performative(
        "open",
        container_id="c",
        hostname="vhost:é",
        max_frame_size=512,
        idle_time_out=1000,
        properties=properties,
    )
    opened = wire.read_open(read(body))
    assert opened == wire.Opened(
        b"c", "vhost:é".encode(), 512, 1000, {b"product": b"p", b"version": b"1", b"platform": b"x"}
    )
    assert wire.read_open(read(codec.performative("open", container_id="c"))) == wire.Opened(
        b"c", None, 2**32 - 1, None, {}
    )


@pytest.mark.parametrize("descriptor", [ULong(0x29), Symbol("amqp:target:list"), UInt(0x29)])
def test_an_attach_names_its_nodes(descriptor: object) -> None:
    body = codec.performative(
        "attach",
        name="link",
        handle=3,
        role=False,
        snd_settle_mode=1,
        source=Described(ULong(0x28), ["here"]),
        target=Described(descriptor, ["/queues/é"]),
        initial_delivery_count=2**32 - 1,
    )
    assert wire.read_attach(read(body)) == wire.Attached(
        b"link", 3, False, 1, wire.Terminus(b"here"), wire.Terminus("/queues/é".encode()), 2**32 - 1
    )


@pytest.mark.parametrize("descriptor", [ULong(0x30), Symbol("amqp:coordinator:list")])
def test_a_coordinator_is_not_a_node(descriptor: object) -> None:
    body = codec.performative(
        "attach", name="tx", handle=0, role=False, target=Described(descriptor, [Symbol("local")])
    )
    assert wire.read_attach(read(body)).target == wire.Terminus(coordinator=True)


def test_dynamic_and_missing_nodes() -> None:
    node = Described(ULong(0x28), [None, None, None, None, True])
    attached = wire.read_attach(read(codec.performative("attach", name="l", handle=0, role=True, source=node)))
    assert (attached.source, attached.target) == (wire.Terminus(dynamic=True), None)


@pytest.mark.parametrize(
    "fields",
    [
        {"handle": 1},
        {"name": "l"},
        {"name": "l", "handle": 1, "target": "text"},
        {"name": "l", "handle": 1, "target": Described(ULong(0x29), {Symbol("address"): "q"})},
        {"name": "l", "handle": 1, "target": Described(ULong(0x99), ["q"])},
        {"name": "l", "handle": 1, "target": Described(ULong(0x29), [b"q"])},
    ],
)
def test_an_attach_that_would_be_read_in_two_ways_is_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        wire.read_attach(read(codec.performative("attach", role=False, **fields)))


@pytest.mark.parametrize(
    ("mechanism", "response", "user"),
    [
        ("PLAIN", b"\0guest\0secret", b"guest"),
        ("PLAIN", b"other\0guest\0secret", b"guest"),
        ("PLAIN", b"\0" + b"u" * 300 + b"\0", b"u" * 255),
        ("PLAIN", None, b""),
        ("AMQPLAIN", b"\5LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\1x", b"guest"),
        ("SCRAM-SHA-256", b"n,,n=us=2Cer=3D,r=nonce", b"us,er="),
        ("SCRAM-SHA-1-PLUS", b"p=tls-unique,a=other,n=user,r=nonce", b"user"),
        ("SCRAM-SHA-1", b"n=user", b""),
        ("ANONYMOUS", b"guest", b""),
        ("EXTERNAL", None, b""),
    ],
)
def test_sasl_user_is_read(mechanism: str, response: bytes | None, user: bytes) -> None:
    body = codec.performative("sasl_init", mechanism=mechanism, initial_response=response)
    assert wire.read_sasl_init(read(body)) == user


def test_an_invalid_table_is_malformed() -> None:
    with pytest.raises(Malformed):
        wire.read_sasl_init(read(codec.performative("sasl_init", mechanism="AMQPLAIN", initial_response=b"\xff")))


@pytest.mark.parametrize(
    "raw", [b"\x45", b"\xc1\x01", b"\xc1\x03\x02\x40", b"\xd1\x00\x00\x00\x04\x00", b"\xc1\x02\x01\x40"]
)
def test_an_invalid_map_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        wire.pairs(raw)
