"""Frames and messages of AMQP 1.0 cut off, changed, and made up: reading them raises Malformed only."""

import struct
from random import Random

import pytest
from amqp10_playbook import codec
from amqp10_playbook.codec import Array, Described, Symbol, UInt, ULong

from proxy.protocols.amqp.names import Names
from proxy.protocols.amqp10 import wire
from proxy.protocols.amqp10.address import delivered, published, target_of
from proxy.protocols.amqp10.message import MAX_COPIES, MAX_HEAD_BYTES, MessageHead
from proxy.protocols.amqp10.wire import Malformed, Performative

_ERROR = Described(ULong(0x1D), [Symbol("amqp:not-found"), "no queue", {Symbol("a"): 1}])
_STATE = Described(ULong(0x25), [_ERROR])
_SOURCE = Described(
    ULong(0x28), ["/queues/q", UInt(2), None, None, False, {Symbol("k"): "v"}, None, {}, None, Array(["a"])]
)
_TARGET = Described(Symbol("amqp:target:list"), ["/exchanges/e/k"])
MESSAGES = [
    codec.message(b"body"),
    codec.message(b"body", to="/queues/q", subject="s", durable=True),
    codec.message(
        b"b" * 300, to="q" * 300, annotations={Symbol("x-cc"): ["a", "b" * 300], Symbol("x-opt"): {"a": [1]}}
    ),
    codec.message(b"", subject="s", annotations={}, application={"a": 1.5, "b": None}),
]
FRAMES = [
    codec.say(0, "sasl_mechanisms", mechanisms=Array(["PLAIN", "ANONYMOUS"])),
    codec.say(0, "sasl_init", mechanism="PLAIN", initial_response=b"\0guest\0guest", hostname="h"),
    codec.say(0, "sasl_init", mechanism="AMQPLAIN", initial_response=b"\5LOGINS\0\0\0\5guest\1xV"),
    codec.say(0, "sasl_init", mechanism="SCRAM-SHA-256", initial_response=b"n,a=b,n=us=2Cer,r=x"),
    codec.say(0, "sasl_outcome", code=0),
    codec.say(
        0,
        "open",
        container_id="c" * 300,
        hostname="vhost:t",
        max_frame_size=1 << 20,
        channel_max=9,
        idle_time_out=1000,
        properties={Symbol("product"): "p", Symbol("n"): 7, Symbol("d"): Described(ULong(9), [1])},
    ),
    codec.say(3, "begin", next_outgoing_id=4294967295, incoming_window=1, outgoing_window=256, handle_max=255),
    codec.say(3, "attach", name="l", handle=0, role=False, source=_SOURCE, target=_TARGET, initial_delivery_count=0),
    codec.say(3, "attach", name="l", handle=1, role=True, unsettled={b"t": _STATE}, max_message_size=1 << 40),
    codec.say(3, "attach", name="t", handle=2, role=False, target=Described(ULong(0x30), [Array(["local"])])),
    codec.say(3, "flow", incoming_window=1, next_outgoing_id=0, outgoing_window=2, handle=0, link_credit=9, echo=True),
    *(codec.say(3, "transfer", each, handle=0, delivery_id=7, delivery_tag=b"tag", settled=False) for each in MESSAGES),
    codec.say(3, "transfer", MESSAGES[2][:50], handle=0, delivery_id=7, delivery_tag=b"tag", more=True),
    codec.say(3, "disposition", role=True, first=3, last=9, settled=True, state=_STATE),
    codec.say(3, "detach", handle=1, closed=True, error=_ERROR),
    codec.say(3, "end", error=_ERROR),
    codec.say(0, "close", error=_ERROR),
    codec.frame(0, codec.encode(Described(ULong(0x468C00000004), ["unknown", {"to": "us"}])), b"payload"),
    codec.EMPTY,
]
_PIECES = [bytes((each,)) for each in range(256)]
_PIECES += [
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x00\x53",
    b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00",
    b"\x80" + bytes(8),
]


def changed(random: Random, data: bytes) -> bytes:
    """Change a few bytes, put some in, cut some out, or repeat some."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = random.randrange(len(out) + 1)
        length = random.choice((1, 1, 2, 4, 20))
        match random.randrange(5):
            case 0:
                out[at : at + length] = b"".join(random.choices(_PIECES, k=length))
            case 1:
                out[at:at] = b"".join(random.choices(_PIECES, k=length))
            case 2:
                del out[at : at + length]
            case 3:
                out[at:at] = out[at : at + length]
            case 4 if at < len(out):
                out[at] ^= 1 << random.randrange(8)
    return bytes(out)


def as_another_reads(found: Performative, raw: bytes) -> None:
    """Hold what was read against the tests' own codec, as far as that reads it, too."""
    try:
        value, ends = codec.decode(raw)
    except (ValueError, IndexError, struct.error, TypeError):
        return
    assert ends == found.stop
    assert len(value.value) == len(found.fields)
    for number, each in enumerate(value.value):
        try:
            uint = found.uint(number)
        except Malformed:
            assert not isinstance(each, UInt)
        else:
            assert uint == each
    if isinstance(value.descriptor, int):
        assert found.code == max(value.descriptor, -1)


def read_all(body: bytes) -> None:
    """Read all that can be read of a frame's body."""
    found = wire.performative(body, 0, len(body))
    assert found is not None
    as_another_reads(found, body)
    assert wire.performative(memoryview(body), 0, len(body)).fields == found.fields  # type: ignore[union-attr]
    again = wire.performative(found.replaced({}), 0, len(found.replaced({})))
    assert again is not None
    kept = found.fields.copy()
    while kept and kept[-1] == wire.NULL:
        kept.pop()
    assert (again.code, again.fields) == (found.code, kept)
    assert found.replaced(dict(enumerate(found.fields))) == found.replaced({})
    names = Names()
    for read in (wire.read_open, wire.read_attach, wire.read_sasl_init):
        try:
            said = read(found)
        except Malformed:
            continue
        if isinstance(said, wire.Attached):
            published(names, target_of(said.target))
            delivered(names, said.source)
    for number in range(len(found.fields) + 1):
        for read_field in (
            found.uint,
            found.ushort,
            found.ubyte,
            found.boolean,
            found.octets,
            found.symbol,
            found.binary,
            found.described,
        ):
            try:
                read_field(number)
            except Malformed:
                continue
        try:
            wire.octets(found.raw(number))
            wire.values(found.raw(number))
            list(wire.pairs(found.raw(number)))
        except Malformed:
            continue


def read_frame(data: bytes) -> None:
    """Read a frame, as far as there is one."""
    if len(data) < wire.HEADER_BYTES:
        return
    frame = wire.frame_header(data, 0)
    body = data[frame.doff : frame.size]
    if body:
        read_all(body)


def read_in_pieces(random: Random, message: bytes) -> MessageHead | None:
    """Read a message in pieces of any size; None if it is malformed."""
    head = MessageHead()
    at = 0
    while True:
        size = random.choice((1, 3, 10, 100, 1000))
        last = at + size >= len(message)
        try:
            if head.take(message[at : at + size], last=last):
                return head
        except Malformed:
            return None
        at += size


@pytest.mark.parametrize("whole", FRAMES, ids=lambda whole: f"{len(whole)}_bytes")
def test_a_frame_cut_off_anywhere(whole: bytes) -> None:
    read_frame(whole)
    body = whole[8:]
    for stop in range(len(body)):
        found = wire.performative(body, 0, stop, whole=False)
        assert found is None or stop >= found.stop
        if found is None:
            with pytest.raises(Malformed):
                wire.performative(body, 0, stop)


def test_frames_changed_at_random(factor: int) -> None:
    random = Random(18)
    read = 0
    for _ in range(8000 * factor):
        data = changed(random, random.choice(FRAMES))
        try:
            read_frame(data)
            read += 1
        except Malformed:
            pass
    assert read > 1000 * factor


def test_bytes_made_up(factor: int) -> None:
    random = Random(19)
    for _ in range(4000 * factor):
        data = b"".join(random.choices(_PIECES, k=random.randrange(1, 40)))
        for start in (b"", b"\x00\x53", b"\x00\x53\x14\xc0" + bytes((len(data) + 1, random.randrange(9)))):
            try:
                read_all(start + data)
            except Malformed:
                continue


def test_messages_changed_at_random(factor: int) -> None:
    random = Random(20)
    read = 0
    for _ in range(6000 * factor):
        message = changed(random, random.choice(MESSAGES))
        at_once = MessageHead()
        try:
            at_once.take(message, last=True)
        except Malformed:
            assert read_in_pieces(random, message) is None
            continue
        read += 1
        assert len(at_once.copies) <= MAX_COPIES
        in_pieces = read_in_pieces(random, message)
        assert in_pieces is not None
        said = [(each.to, each.subject, each.copies) for each in (at_once, in_pieces)]
        assert said[0] == said[1]
        published(Names(), target_of(None), at_once)
    assert read > 1000 * factor


def taken_before_malformed(random: Random, begins: bytes) -> int:
    """Feed a message that never ends; return how many bytes of it were taken."""
    head = MessageHead()
    taken = 0
    piece = begins
    while True:
        try:
            assert not head.take(piece, last=False)
        except Malformed:
            return taken
        taken += len(piece)
        piece = bytes(random.randrange(1, 5000))


@pytest.mark.parametrize(
    "begins",
    [b"\x00\x53\x72\xd1\x00\x01\x00\x00", b"\x00\x53\x71\xd1\x7f\xff\xff\xff", b"\x00\x53\x70\xd0", b"\x00\xb3\x00"],
)
def test_a_message_that_never_says_it_is_not_kept(begins: bytes, factor: int) -> None:
    random = Random(21)
    for _ in range(20 * factor):
        assert taken_before_malformed(random, begins) <= MAX_HEAD_BYTES
