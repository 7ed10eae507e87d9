"""The frames of AMQP 1.0 that the compiled extension reads, and that a session alone treats them in the same way."""

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from amqp10_playbook.driver import BROKER, CLIENT
from amqp10_playbook.limited import SIDES, Limited
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook import amqp10_values as amqp

from limiter.rules.rule import Rule
from proxy.deciding.batch import Side

RULES = (Rule("queue", "refused", 4, burst_s=1), Rule("queue", "small", 1e6, burst_s=1, bytes_per_s=1000))
NUMBERS = 1 << 32
TRANSFER, DISPOSITION, FLOW = amqp.TRANSFER, amqp.DISPOSITION, amqp.FLOW
BODY = amqp.described(0x75, amqp.binary(b"hello"))
PLAIN = amqp.transfer(1, 0, 1)
HIDDEN = amqp.uint(0), amqp.uint(2)


def ready(*, lent: bool, queue: str = "free") -> Limited:
    """Return a connection with a link, after its first transfer."""
    driver = Limited(RULES, lent=lent)
    driver.open().sends(address=f"/queues/{queue}")
    driver.credit(1000)
    driver.give(CLIENT, amqp.transfer(1, 0, 0))
    assert (driver.lent is not None) is lent
    return driver


def check(chunk: bytes, taken_bytes: int, queue: str = "free") -> None:
    """Return how much of a client's chunk the compiled extension reads. The result is the same with either reader."""
    driver = ready(lent=True, queue=queue)
    assert driver.lent is not None
    assert driver.lent.feed(SIDES.index(CLIENT), chunk, 0, lambda: 0, driver.accounts.at(0))[1] == taken_bytes
    figures = []
    for lent in (False, True):
        driver = ready(lent=lent, queue=queue)
        driver.give(CLIENT, chunk)
        figures.append(driver.figures())
    assert figures[1] == figures[0]


def performative(code: int, fields: Sequence[bytes], payload: bytes = b"", *, wide: bool = False) -> bytes:
    return amqp.frame(1, amqp.performative(code, *fields, wide=wide) + payload)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        [amqp.uint(0), amqp.uint(1)],
        [amqp.uint(0), amqp.uint(7)],
        [amqp.wide_uint(0), amqp.wide_uint(1), amqp.NULL, amqp.NULL, amqp.NULL, amqp.NULL],
        [b"\x52\x00", b"\x52\x01", struct.pack(">BI", 0xB0, 1) + b"t", amqp.uint(300), b"\x56\x01", b"\x56\x00"],
        [amqp.uint(0), amqp.uint(1), *[amqp.NULL] * 9],
        [amqp.uint(0), amqp.uint(1), *[amqp.NULL] * 3, b"\x42", b"\x50\x01", amqp.NULL, b"\x42", b"\x42", b"\x41"],
    ],
)
def test_a_transfer_is_plain_in_all_usual_encodings(fields: list[bytes], *, wide: bool) -> None:
    chunk = performative(TRANSFER, fields, BODY, wide=wide)
    check(chunk, len(chunk))


LATER = [amqp.NULL] * 3
NUMBERED = amqp.uint(0), amqp.uint(1), amqp.uint(2), amqp.uint(3)
OTHERS = {
    "no fields": performative(TRANSFER, []),
    "no handle": performative(TRANSFER, [amqp.NULL, amqp.uint(2)]),
    "no delivery-id": performative(TRANSFER, [amqp.uint(0)]),
    "unknown handle": performative(TRANSFER, [amqp.uint(9), amqp.uint(2)]),
    "handle as ubyte": performative(TRANSFER, [b"\x50\x00", amqp.uint(2)]),
    "id as ulong": performative(TRANSFER, [amqp.uint(0), b"\x80" + bytes(7) + b"\x02"]),
    "tag as symbol": performative(TRANSFER, [*HIDDEN, amqp.symbol(b"tag")]),
    "more": performative(TRANSFER, [*HIDDEN, *LATER, b"\x41"]),
    "more as 2": performative(TRANSFER, [*HIDDEN, *LATER, b"\x56\x02"]),
    "state": performative(TRANSFER, [*HIDDEN, *LATER, amqp.NULL, amqp.NULL, amqp.ACCEPTED]),
    "resumed": performative(TRANSFER, [*HIDDEN, *LATER, *LATER, b"\x41"]),
    "aborted": performative(TRANSFER, [*HIDDEN, *LATER, *LATER, amqp.NULL, b"\x41"]),
    "too many fields": performative(TRANSFER, [*HIDDEN, *[amqp.NULL] * 10]),
    "unknown channel": amqp.transfer(2, 0, 2),
    "SASL": amqp.frame(1, amqp.performative(TRANSFER, *HIDDEN), kind=1),
    "extended header": amqp.frame(1, bytes(4) + amqp.performative(TRANSFER, *HIDDEN), doff=3),
    "descriptor as ulong": amqp.frame(1, b"\0\x80" + bytes(7) + b"\x14" + amqp.list_of(HIDDEN)),
    "descriptor as symbol": amqp.frame(1, b"\0" + amqp.symbol(b"amqp:transfer:list") + amqp.list_of(HIDDEN)),
    "count too high": amqp.frame(1, b"\0\x53\x14\xc0\x04\x03" + amqp.uint(0) + amqp.uint(2)),
    "count too low": amqp.frame(1, b"\0\x53\x14\xc0\x04\x01" + amqp.uint(0) + amqp.uint(2)),
    "list too long": amqp.frame(1, b"\0\x53\x14\xc0\xff\x02" + amqp.uint(0) + amqp.uint(2)),
    "list too short": amqp.frame(1, b"\0\x53\x14\xc0\x00"),
    "disposition of an unknown channel": amqp.disposition(2, 0),
    "disposition with a payload": performative(DISPOSITION, [b"\x41", amqp.uint(0)], b"\0"),
    "disposition without a first id": performative(DISPOSITION, [b"\x41"]),
    "disposition with another state": performative(DISPOSITION, [b"\x41", amqp.uint(0), amqp.NULL, b"\x41", b"\x41"]),
    "disposition that ends before it begins": amqp.disposition(1, 5, 4),
    "flow without fields": performative(FLOW, []),
    "flow without an outgoing window": performative(FLOW, NUMBERED[:3]),
    "flow without an incoming window": performative(FLOW, [amqp.uint(0), amqp.NULL, amqp.uint(2), amqp.uint(3)]),
    "flow without an outgoing id": performative(FLOW, [amqp.uint(0), amqp.uint(1), amqp.NULL, amqp.uint(3)]),
    "flow with a handle as ubyte": performative(FLOW, [*NUMBERED, b"\x50\x01"]),
    "flow with drain as uint": performative(FLOW, [*NUMBERED, *[amqp.NULL] * 4, amqp.uint(1)]),
    "flow with properties": performative(FLOW, [*NUMBERED, *[amqp.NULL] * 6, amqp.map_of()]),
    "flow with too many fields": performative(FLOW, [*NUMBERED, *[amqp.NULL] * 8]),
    "half a performative": amqp.frame(1, b"\0"),
    "size below a header": struct.pack(">IBBH", 7, 2, 0, 0),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_the_session_reads_all_from_the_first_frame_on_that_is_something_else(other: bytes) -> None:
    check(PLAIN + other + amqp.EMPTY_FRAME, len(PLAIN))


def test_the_session_reads_messages_that_may_be_copied() -> None:
    header, properties = amqp.described(0x70, amqp.LIST_0), amqp.described(0x73, amqp.list_of([]))
    copies = amqp.described(0x72, amqp.map_of(amqp.symbol(b"x-cc"), amqp.list_of([])))
    other = amqp.described(0x72, amqp.map_of(amqp.symbol(b"x-opt"), amqp.list_of([])))
    unsaid = amqp.described(0x77, amqp.uint(7)), BODY[:-1], b"\0\x80" + bytes(8)
    for payload in (b"", header + other + properties + BODY, amqp.described(0x75, amqp.binary(b"x-cc"))):
        chunk = amqp.transfer(1, 0, 1, payload)
        check(chunk, len(chunk))
    for payload in (copies, header + copies + BODY, BODY + copies, *unsaid):
        check(amqp.transfer(1, 0, 1, payload), 0)


def test_the_session_reads_messages_larger_than_a_limit_of_bytes() -> None:
    small, large = (amqp.transfer(1, 0, 1, amqp.described(0x75, amqp.binary(bytes(size)))) for size in (9, 20_000))
    check(small, len(small), "small")
    check(large, 0, "small")


def _uint(random: Random, value: int) -> bytes:
    return random.choice([amqp.uint, amqp.uint, amqp.wide_uint])(value)


def _disposition(random: Random, channel: int, last_id: int) -> bytes:
    first = random.randrange(last_id + 3)
    last = random.choice([amqp.NULL, _uint(random, first + random.randrange(4))])
    state = random.choice([amqp.NULL, amqp.ACCEPTED, amqp.described(0x25, amqp.list_of([amqp.ACCEPTED]))])
    booleans = [amqp.boolean(random.random() < 0.7) for _ in range(2)]
    fields = [booleans[0], _uint(random, first), last, booleans[1], state]
    wide = random.random() < 0.2
    return amqp.frame(channel, amqp.performative(DISPOSITION, *fields[: random.choice([2, 3, 5, 5])], wide=wide))


def _transfer(random: Random, delivery_id: int) -> bytes:
    fields = [
        _uint(random, int(random.random() < 0.97)),
        _uint(random, delivery_id),
        random.choice([amqp.NULL, amqp.binary(b"tag")]),
        random.choice([amqp.NULL, _uint(random, 0)]),
        amqp.boolean(random.random() < 0.3),
    ]
    return performative(TRANSFER, fields[: random.choice([2, 4, 5])], BODY, wide=random.random() < 0.2)


def _flow(random: Random, channel: int, handle: int, delivery_count: int) -> bytes:
    """Return a plain flow with optional fields."""
    drain, echo = (random.choice([amqp.NULL, amqp.boolean(False), amqp.boolean(True)]) for _ in range(2))
    numbers = [10, 10_000, NUMBERS - 4, 10_000, handle, delivery_count, random.choice([0, 5, 300]), 7]
    fields = [*(_uint(random, number) for number in numbers), drain, echo, amqp.NULL]
    fields = fields[: random.choice([4, 7, 8, 9, 11])]
    return amqp.frame(channel, amqp.performative(FLOW, *fields, wide=random.random() < 0.3))


def _decoded(stream: bytes) -> list[object]:
    frames: list[object] = []
    at = 0
    while at < len(stream):
        size, doff, kind, channel = struct.unpack_from(">IBBH", stream, at)
        body = stream[at + 8 : at + size]
        reader = amqp.Reader(body)
        value = reader.value() if body else None
        while value and value.value[-1] is None:
            del value.value[-1]  # as if it was omitted
        frames.append((doff, kind, channel, value, body[reader.at :]))
        at += size
    return frames


def _numbered(seed: int, *, lent: bool) -> tuple[dict[str, Any], int]:
    """Return the results of random frames after swallowed deliveries, and the number of chunks read by the compiled
    part.
    """
    random = Random(seed)
    driver = Limited(RULES, lent=lent)
    driver.open().sends(address="/queues/refused").sends(1, "/queues/free")
    for handle in range(2):
        driver.credit(300, handle=handle, incoming_window=10_000)
    last_id = 11
    for each in range(last_id + 1):
        driver.give(CLIENT, amqp.transfer(1, 0, each))
    driver.recall()
    assert driver.session.describe(0).refused
    for total in driver.total.values():
        total.clear()
    for _ in range(random.randrange(1, 9)):
        chunk = b""
        for _ in range(random.randrange(9)):
            last_id += 1 + (random.random() < 0.03)
            chunk += random.choice([_transfer(random, last_id), amqp.EMPTY_FRAME, _disposition(random, 1, last_id)])
        driver.give(CLIENT, chunk)
        chunk = b"".join(_disposition(random, 5, last_id) for _ in range(random.randrange(4)))
        if random.random() < 0.3:
            handle = random.randrange(2)
            chunk += _flow(random, 5, 3 + handle, random.randrange(20))
        driver.give(BROKER, chunk)
        driver.now_ns += 1_000_000
    figures = driver.figures()
    figures["sent"] = {side: _decoded(bytes(driver.total[side])) for side in Side}
    return figures, driver.served


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_any_plain_frames_are_renumbered_as_the_session_does(seed: int) -> None:
    lent, served = _numbered(seed, lent=True)
    assert lent == _numbered(seed, lent=False)[0]
    assert served
