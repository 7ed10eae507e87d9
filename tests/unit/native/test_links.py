"""The plain frames of an AMQP 1.0 chunk: which they are, and what came with them."""

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
import sluice_native
from hypothesis import given
from hypothesis import strategies as st
from playbook import amqp10_values as amqp

from proxy.protocols.amqp10 import wire

COPIES = b"x-cc"
MAX_RUNS = 10_000
NUMBERS = 1 << 32
TRANSFER, DISPOSITION = amqp.TRANSFER, amqp.DISPOSITION
BODY = amqp.described(0x75, amqp.binary(b"hello"))


@dataclass
class Taken:
    """As ``Links.scan`` returns it, but for ids of deliveries that are not settled, which are here one by one."""

    stop: int
    frames: int = 0
    deliveries: dict[tuple[int, int], int] = field(default_factory=dict)
    size_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
    begun: dict[int, tuple[int, int, list[int]]] = field(default_factory=dict)
    disposed: dict[tuple[int, bool, bool], list[tuple[int, int]]] = field(default_factory=dict)


def links_of(*handles: int, channel: int = 0) -> sluice_native.Links:
    """Return a peer with a session that has begun, and some plain links."""
    links = sluice_native.Links(COPIES)
    links.begin(channel)
    for handle in handles:
        links.mark(channel, handle)
    return links


def _ids(ranges: list[tuple[int, int]]) -> list[int]:
    return [(first + at) % NUMBERS for first, last in ranges for at in range((last - first) % NUMBERS + 1)]


def taken_by(links: sluice_native.Links, chunk: bytes, position: int = 0) -> Taken:
    """Return all that is said of what was taken."""
    stop, count, moved, begun, disposed, flows = links.scan(chunk, position, MAX_RUNS)
    assert not flows
    taken = Taken(stop, count)
    for channel, handle, deliveries, size_bytes in moved:
        assert (channel, handle) not in taken.deliveries
        taken.deliveries[channel, handle] = deliveries
        taken.size_bytes[channel, handle] = size_bytes
    for channel, first, last, unsettled in begun:
        assert channel not in taken.begun
        # As few as can be.
        assert all((last + 1) % NUMBERS != first for (_, last), (first, _) in pairwise(unsettled))
        taken.begun[channel] = first, last, _ids(unsettled)
    for channel, receiver, settles, first, last in disposed:
        taken.disposed.setdefault((channel, receiver, settles), []).append((first, last))
    return taken


def test_transfers_are_summed_by_link() -> None:
    chunk = [amqp.transfer(0, number % 2, number, BODY, settled=number % 3 == 0) for number in range(6)]
    taken = taken_by(links_of(0, 1), b"".join(chunk))
    assert (taken.stop, taken.frames) == (sum(map(len, chunk)), 6)
    assert taken.deliveries == {(0, 0): 3, (0, 1): 3}
    assert taken.size_bytes == {(0, at): sum(map(len, chunk[at::2])) for at in range(2)}
    assert taken.begun == {0: (0, 5, [1, 2, 4, 5])}


def test_ids_that_follow_each_other_are_one_range_even_where_they_wrap() -> None:
    ids = [NUMBERS - 2, NUMBERS - 1, 0, 1]
    chunk = b"".join(amqp.transfer(0, 0, number) for number in ids)
    assert links_of(0).scan(chunk, 0, 9)[3] == [(0, NUMBERS - 2, 1, [(NUMBERS - 2, 1)])]
    chunk = b"".join(amqp.disposition(0, number) for number in ids)
    assert links_of(0).scan(chunk, 0, 9)[4] == [(0, True, True, NUMBERS - 2, 1)]


def test_what_each_role_says_is_said_apart() -> None:
    chunk = [
        amqp.disposition(0, 1, 4),
        amqp.disposition(0, 7, receiver=False),
        amqp.disposition(0, 5),
        amqp.disposition(0, 3, settled=False),
        amqp.disposition(0, 9, 12),
    ]
    disposed = [(0, True, True, 1, 5), (0, False, True, 7, 7), (0, True, False, 3, 3), (0, True, True, 9, 12)]
    assert links_of().scan(b"".join(chunk), 0, 9)[1:] == (5, [], [], disposed, [])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        [amqp.uint(0), amqp.uint(1)],
        [amqp.wide_uint(0), amqp.wide_uint(1), amqp.NULL, amqp.NULL, amqp.NULL, amqp.NULL],
        [b"\x52\x00", b"\x52\x01", struct.pack(">BI", 0xB0, 1) + b"t", amqp.uint(300), b"\x56\x01", b"\x56\x00"],
        [amqp.uint(0), amqp.uint(1), *[amqp.NULL] * 9],
        [amqp.uint(0), amqp.uint(1), *[amqp.NULL] * 3, b"\x42", b"\x50\x01", amqp.NULL, b"\x42", b"\x42", b"\x41"],
    ],
)
def test_a_transfer_is_plain_in_all_usual_encodings(fields: list[bytes], *, wide: bool) -> None:
    chunk = amqp.frame(0, amqp.performative(TRANSFER, *fields, wide=wide) + BODY)
    assert taken_by(links_of(0), chunk).deliveries == {(0, 0): 1}


PLAIN = amqp.transfer(0, 0, 4)
_LATER = [amqp.NULL] * 3
_OTHER_TRANSFERS = [
    [],
    [amqp.NULL, amqp.uint(5)],
    [amqp.uint(0)],
    [amqp.uint(0), amqp.uint(6)],
    [amqp.uint(9), amqp.uint(5)],
    [b"\x50\x00", amqp.uint(5)],
    [amqp.uint(0), b"\x80" + bytes(7) + b"\x05"],
    [amqp.uint(0), amqp.uint(5), amqp.symbol(b"tag")],
    [amqp.uint(0), amqp.uint(5), *_LATER, b"\x41"],
    [amqp.uint(0), amqp.uint(5), *_LATER, b"\x56\x02"],
    [amqp.uint(0), amqp.uint(5), *_LATER, amqp.NULL, amqp.NULL, amqp.ACCEPTED],
    [amqp.uint(0), amqp.uint(5), *_LATER, *_LATER, b"\x41"],
    [amqp.uint(0), amqp.uint(5), *_LATER, *_LATER, amqp.NULL, b"\x41"],
    [amqp.uint(0), amqp.uint(5), *[amqp.NULL] * 10],
]


@pytest.mark.parametrize("fields", _OTHER_TRANSFERS)
def test_another_transfer_ends_a_scan(fields: list[bytes]) -> None:
    chunk = PLAIN + amqp.frame(0, amqp.performative(TRANSFER, *fields)) + amqp.EMPTY_FRAME
    assert taken_by(links_of(0), chunk).stop == len(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        amqp.transfer(0, 0, 5)[:-1],
        amqp.transfer(1, 0, 5),
        amqp.frame(0, amqp.performative(amqp.FLOW, amqp.uint(0))),
        amqp.frame(0, amqp.performative(TRANSFER, amqp.uint(0), amqp.uint(5)), kind=1),
        amqp.frame(0, bytes(4) + amqp.performative(TRANSFER, amqp.uint(0), amqp.uint(5)), doff=3),
        amqp.frame(0, b"\0\x80" + bytes(7) + b"\x14" + amqp.list_of([amqp.uint(0), amqp.uint(5)])),
        amqp.frame(0, b"\0" + amqp.symbol(b"amqp:transfer:list") + amqp.list_of([amqp.uint(0), amqp.uint(5)])),
        amqp.frame(0, b"\0\x53\x14" + b"\xc0\x05\x03" + amqp.uint(0) + b"\x52\x05"),
        amqp.frame(0, b"\0\x53\x14" + b"\xc0\x05\x01" + amqp.uint(0) + b"\x52\x05"),
        amqp.frame(0, b"\0\x53\x14" + b"\xc0\xff\x02" + amqp.uint(0) + b"\x52\x05"),
        amqp.frame(0, b"\0\x53\x14" + b"\xc0\x00"),
        amqp.disposition(1, 0),
        amqp.frame(0, amqp.performative(DISPOSITION, b"\x41", amqp.uint(0)) + b"\0"),
        amqp.frame(0, amqp.performative(DISPOSITION, b"\x41")),
        amqp.frame(0, amqp.performative(DISPOSITION, b"\x41", amqp.uint(0), amqp.NULL, b"\x41", b"\x41")),
        amqp.disposition(0, 5, 4),
        amqp.frame(0, b"\0"),
        struct.pack(">IBBH", 7, 2, 0, 0),
    ],
)
def test_the_first_frame_that_is_something_else_ends_it(other: bytes) -> None:
    taken = taken_by(links_of(0), PLAIN + other + amqp.EMPTY_FRAME)
    assert (taken.stop, taken.frames) == (len(PLAIN), 1)


def test_a_session_that_is_left_has_nothing_plain_until_it_begins_again() -> None:
    links, settles = links_of(0), amqp.disposition(0, 1)
    links.leave(0)
    assert taken_by(links, PLAIN).frames == taken_by(links, settles).frames == 0
    links.begin(0)
    assert taken_by(links, PLAIN).frames == taken_by(links, settles).frames == 1
    links.end(0)
    links.begin(0)
    assert (taken_by(links, PLAIN).frames, taken_by(links, settles).frames) == (0, 1)
    links.mark(0, 0)
    assert taken_by(links, PLAIN).frames == 1
    links.unmark(0, 0)
    assert taken_by(links, PLAIN).frames == 0


def test_messages_that_may_be_copied_are_not_plain_where_that_is_asked_for() -> None:
    header, properties = amqp.described(0x70, amqp.LIST_0), amqp.described(0x73, amqp.list_of([]))
    copies = amqp.described(0x72, amqp.map_of(amqp.symbol(b"x-cc"), amqp.list_of([])))
    other = amqp.described(0x72, amqp.map_of(amqp.symbol(b"x-opt"), amqp.list_of([])))
    unsaid = amqp.described(0x77, amqp.uint(7)), BODY[:-1], b"\0\x80" + bytes(8)
    links = links_of(0)
    for copied, asked in ((False, 0), (True, 1)):
        links.mark(0, 0, None, copied)
        for payload in (b"", header + other + properties + BODY, amqp.described(0x75, amqp.binary(b"x-cc"))):
            assert taken_by(links, amqp.transfer(0, 0, 4, payload)).frames == 1
        for payload in (copies, header + copies + BODY, BODY + copies, *unsaid):
            assert taken_by(links, amqp.transfer(0, 0, 4, payload)).frames == 1 - asked


def _uint(random: Random, value: int) -> bytes:
    return random.choice([amqp.uint, amqp.uint, amqp.wide_uint])(value)


def _payload(random: Random) -> bytes:
    sections = [
        amqp.described(0x70, amqp.LIST_0),
        amqp.described(0x72, amqp.map_of(amqp.symbol(random.choice([b"x-cc", b"x-other"])), amqp.NULL)),
        amqp.described(0x77, amqp.uint(1)),
        BODY,
    ]
    return b"".join(section for section in sections if random.random() < 0.4)


def _frame(random: Random, ids: dict[int, int]) -> bytes:
    channel, handle = random.randrange(3), random.randrange(3)
    kind = random.random()
    if kind < 0.1:
        return amqp.frame(channel, b"")
    wide = random.random() < 0.2
    if kind < 0.35:
        first = random.choice([random.randrange(40), NUMBERS - 1 - random.randrange(3)])
        last = random.choice([amqp.NULL, _uint(random, (first + random.randrange(4)) % NUMBERS)])
        state = random.choice([amqp.NULL, amqp.ACCEPTED, amqp.described(0x25, amqp.list_of([amqp.ACCEPTED]))])
        booleans = [amqp.boolean(random.random() < 0.7) for _ in range(2)]
        fields = [booleans[0], _uint(random, first), last, booleans[1], state]
        return amqp.frame(channel, amqp.performative(DISPOSITION, *fields[: random.choice([2, 3, 5, 5])], wide=wide))
    ids[channel] = (ids[channel] + (random.random() < 0.97)) % NUMBERS
    fields = [
        _uint(random, handle),
        _uint(random, ids[channel]),
        random.choice([amqp.NULL, amqp.binary(b"tag")]),
        random.choice([amqp.NULL, _uint(random, 0)]),
        amqp.boolean(random.random() < 0.3),
        amqp.boolean(random.random() < 0.03),
    ]
    return amqp.frame(
        channel, amqp.performative(TRANSFER, *fields[: random.choice([2, 4, 6])], wide=wide) + _payload(random)
    )


def _decoded(chunk: bytes) -> list[object]:
    frames: list[object] = []
    at = 0
    while at < len(chunk):
        size, doff, kind, channel = struct.unpack_from(">IBBH", chunk, at)
        body = chunk[at + 8 : at + size]
        reader = amqp.Reader(body)
        frames.append((doff, kind, channel, reader.value() if body else None, body[reader.at :]))
        at += size
    return frames


def _numbered(decoded: object, sessions: dict[int, tuple[int, int]]) -> object:
    doff, kind, channel, performative, payload = decoded  # type: ignore[misc]  # as _decoded returns it
    if performative is None or channel not in sessions:
        return decoded
    fields = list(performative.value)
    sent, received = sessions[channel]
    if performative.descriptor == ("ulong", TRANSFER):
        numbers, by = (1,), -sent
    else:
        numbers, by = (1, 2)[: len(fields) - 1], received if fields[0].value else -sent  # type: ignore[assignment]
    for at in numbers:
        if fields[at] is not None:
            fields[at] = amqp.Typed("uint", (fields[at].value + by) % NUMBERS)
    return doff, kind, channel, performative._replace(value=fields), payload


@given(st.integers(0, 2**32))
def test_any_plain_frames_are_renumbered_and_nothing_else(seed: int) -> None:
    random = Random(seed)
    ids = {channel: random.choice([0, 250, NUMBERS - 3]) for channel in range(3)}
    chunk = b"".join(_frame(random, ids) for _ in range(random.randrange(12)))
    by = {channel: (random.choice([0, 1, 7, 300]), random.choice([0, 1, 7, 300])) for channel in range(2)}
    sessions = [(channel, None, sent, None, received) for channel, (sent, received) in by.items()]
    random.shuffle(sessions)
    stop, written = sluice_native.renumber(chunk, 0, len(chunk), sessions)
    assert stop == len(chunk)
    assert _decoded(written) == [_numbered(decoded, by) for decoded in _decoded(chunk)]


# --- Flows ----------------------------------------------------------------------------------------


def _flow(random: Random, channel: int) -> tuple[bytes, tuple[int | None, ...], bool]:
    """Return a flow that is plain, its first eight fields, and whether it drains."""
    numbers: list[int | None] = [random.choice([0, 5, 255, 256, NUMBERS - 1]) for _ in range(8)]
    for at in (0, 4, 5, 6, 7):
        if random.random() < 0.2:
            numbers[at] = None
    drain = random.choice([None, False, True])
    echo = random.choice([None, False, True])
    flags = [amqp.NULL if flag is None else amqp.boolean(flag) for flag in (drain, echo)]
    fields = [amqp.NULL if number is None else _uint(random, number) for number in numbers]
    fields = [*fields, *flags, amqp.NULL]
    while fields[-1] == amqp.NULL and random.random() < 0.8:
        del fields[-1]
    performative = amqp.performative(amqp.FLOW, *fields, wide=random.random() < 0.3)
    return amqp.frame(channel, performative), tuple(numbers), bool(drain)


def _takes_flows() -> sluice_native.Links:
    links = links_of(0)
    links.takes_flows = True
    return links


@given(st.integers(0, 2**32))
def test_flows_behind_others_are_taken_with_what_they_say(seed: int) -> None:
    random = Random(seed)
    flows = [_flow(random, 0) for _ in range(random.randrange(1, 4))]
    before = PLAIN + amqp.disposition(0, 7)
    between = random.choice([b"", amqp.EMPTY_FRAME])
    chunk, expected = before, []
    for frame, numbers, drains in flows:
        expected.append((0, len(chunk), len(chunk) + len(frame), numbers, drains))
        chunk += frame + between
    links = _takes_flows()
    for other in (b"", PLAIN, amqp.disposition(0, 7), _flow(random, 1)[0]):
        stop, _, moved, _, disposed, found = links.scan(chunk + other, 0, MAX_RUNS)
        assert (stop, found) == (len(chunk), expected)
        assert (len(moved), len(disposed)) == (1, 1)
    assert links.scan(chunk, 0, 3)[5] == []
    assert links_of(0).scan(chunk, 0, MAX_RUNS)[0] == len(before)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [amqp.uint(0), amqp.uint(1), amqp.uint(2)],
        [amqp.uint(0), amqp.NULL, amqp.uint(2), amqp.uint(3)],
        [amqp.uint(0), amqp.uint(1), amqp.NULL, amqp.uint(3)],
        [amqp.uint(0), amqp.uint(1), amqp.uint(2), amqp.uint(3), b"\x50\x01"],
        [amqp.uint(0), amqp.uint(1), amqp.uint(2), amqp.uint(3), *[amqp.NULL] * 4, amqp.uint(1)],
        [amqp.uint(0), amqp.uint(1), amqp.uint(2), amqp.uint(3), *[amqp.NULL] * 6, amqp.map_of()],
        [amqp.uint(0), amqp.uint(1), amqp.uint(2), amqp.uint(3), *[amqp.NULL] * 8],
    ],
)
def test_another_flow_is_not_taken(fields: list[bytes]) -> None:
    other = amqp.frame(0, amqp.performative(amqp.FLOW, *fields))
    assert _takes_flows().scan(PLAIN + other, 0, MAX_RUNS)[0] == len(PLAIN)


@given(st.integers(0, 2**32))
def test_a_flow_is_written_anew_as_python_does(seed: int) -> None:
    random = Random(seed)
    flow = _flow(random, 3)[0]
    changes = {
        number: random.choice([wire.NULL, wire.uint(random.choice([0, 7, 300])), wire.boolean(True)])
        for number in random.sample(range(9), random.randrange(6))
    }
    read = wire.performative(flow, 8, len(flow))
    assert read is not None
    chunk = b"before" + flow + b"behind"
    written = sluice_native.reflow(chunk, 6, 6 + len(flow), list(changes.items()))
    assert written == wire.frame(3, read.replaced(changes))
