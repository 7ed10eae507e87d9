"""The set of requests without an answer, and the frames of a broker that settle them."""

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.tricky import Tricks, changed
from playbook import frames
from playbook.captures import CAPTURES, Capture
from playbook.extension import BROKER, Extension, Read, feed

from proxy.protocols.rocketmq.wire.codes import FLAG_RESPONSE
from proxy.protocols.rocketmq.wire.header import read_answer

_i32 = st.integers(-(2**31), 2**31 - 1)
_near = st.integers(-3, 300)


@given(st.integers(0, 100), st.lists(st.tuples(st.booleans(), _near | _i32), max_size=400))
def test_it_is_a_set_with_a_bound(most: int, steps: list[tuple[bool, int]]) -> None:
    opaques = Extension().requests(most=most)
    model: set[int] = set()
    ambiguous = False
    for adds, number in steps:
        if adds:
            opaques.add(number, number % 3 == 0)
            ambiguous |= number in model or len(model) == most
            if len(model) < most:
                model.add(number)
        else:
            assert opaques.settle(number) is (number % 3 == 0 if number in model else None)
            model.discard(number)
        assert (len(opaques), opaques.ambiguous) == (len(model), ambiguous)
        assert opaques.sends == sum(number % 3 == 0 for number in model)
    assert all(number in opaques for number in model)
    assert all((number in opaques) is (number in model) for number in range(-3, 300))


def _settle(extension: Extension, stream: bytes, numbers: list[int]) -> tuple[list[int], Read]:
    """Read a broker's stream. Return the settled numbers and the result."""
    owed = extension.requests(numbers)
    read = feed(extension.lend(extension.recorder(), owed), BROKER, stream)
    assert (read.to_client, read.to_broker) == (stream[: read.stop], b"")
    return [number for number in numbers if number not in owed], read


@pytest.mark.parametrize(
    "other",
    [
        frames.check_transaction(1),
        frames.frame(b'{"code":0,"flag":1}'),
        frames.frame(b'{"flag":1,"opaque":2}'),
        frames.frame(b'{"code":0,"flag":1,"opaque":2,"opaque":3}'),
        frames.frame(b'{"code":0,"flag":1,"opaque":2,"op\\u0061que":3}'),
        frames.frame(b'{"code":0,"flag":1,"opaque":"2"}'),
        frames.frame(b'{"code":0,"flag":1,"opaque":2,"x":[1]}'),
        frames.frame(b'{"code":0,"flag":1,"opaque":2,"x":{"y":{}}}'),
        frames.frame(b' {"code":0,"flag":1,"opaque":2}'),
        struct.pack(">iI", 3, 0),
        struct.pack(">iI", 10, 11) + bytes(20),
        struct.pack(">iI", -4, 0),
    ],
)
def test_other_frames_are_left_to_python(extension: Extension, other: bytes) -> None:
    first = frames.answer(1)
    settled, read = _settle(extension, first + other, [1, 2])
    assert (settled, read.stop, read.leaves, read.frames) == ([1], len(first), True, (0, 1))


@pytest.mark.parametrize(
    "other",
    [
        frames.answer(9),
        frames.binary_frame(2, opaque=2),
        frames.broker_request(2),
        frames.frame(b'{"code":0,"flag":0,"opaque":2}'),
    ],
)
def test_other_frames_pass_and_settle_nothing(extension: Extension, other: bytes) -> None:
    settled, read = _settle(extension, other + frames.answer(1), [1, 2])
    assert (settled, read.leaves, read.frames) == ([1], False, (0, 2))


@pytest.mark.parametrize("cut", [1, 90])
def test_incomplete_header_waits_for_the_rest(extension: Extension, cut: int) -> None:
    first, second = frames.answer(1), frames.answer(2)
    settled, read = _settle(extension, first + second[:-cut], [1, 2])
    assert (settled, read.stop, read.leaves) == ([1], len(first), False)


def test_the_body_of_the_last_answer_may_be_still_to_come(extension: Extension) -> None:
    settled, read = _settle(extension, frames.answer(1, body=bytes(1000))[:-900], [1])
    assert (settled, read.leaves, read.frames) == ([1], False, (0, 1))


def _answers(stream: bytes) -> list[tuple[bytes, int]]:
    """Return the answers in a stream, and their opaques."""
    found = []
    for whole in frames.split(stream):
        word = int.from_bytes(whole[4:8], "big")
        answer = read_answer(whole[8 : 8 + (word & 0xFFFFFF)])
        if answer is not None and answer.flag & FLAG_RESPONSE:
            found.append((whole, answer.opaque))
    return found


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_all_answers_of_a_real_broker_are_stepped_over(extension: Extension, capture: Capture) -> None:
    for _ in range(2):
        for whole, opaque in _answers(capture.to_client):
            settled, read = _settle(extension, whole, [opaque])
            assert (settled, read.leaves, read.frames) == ([opaque], False, (0, 1))


def _check(extension: Extension, header: bytes) -> bool:
    """Compare one header with Python's reading. Return whether it was read."""
    answer = read_answer(header)
    numbers = [0, 1, 2, 3, 5, 7, 8] + ([] if answer is None else [answer.opaque])
    owed = [number for number in dict.fromkeys(numbers) if -(2**31) <= number < 2**31]
    whole = frames.frame(header)
    for _ in range(2):
        settled, read = _settle(extension, whole, owed)
        if read.leaves:
            assert (settled, read.stop, read.frames) == ([], 0, (0, 0))
            continue
        assert (read.stop, read.frames) == (len(whole), (0, 1))
        assert answer is not None
        assert settled == ([answer.opaque] if answer.flag & FLAG_RESPONSE else [])
    return not read.leaves


_RECORDED = [whole[8:] for capture in CAPTURES for whole, _ in _answers(capture.to_client)]
_HEADERS = [header[: header.index(b'"version":513}') + 14] for header in _RECORDED]


@given(st.integers(0, 2**32), st.booleans())
def test_changed_answers_are_read_as_in_python(seed: int, in_place: bool) -> None:  # noqa: FBT001 - drawn
    random = Random(seed)
    extension = Extension()
    for _ in range(30):
        header = random.choice(_HEADERS)
        assert _check(extension, header)
        if in_place:
            data = bytearray(header)
            for _ in range(random.choice((1, 1, 2, 3))):
                data[random.randrange(len(data))] = random.choice(b'"\\$:,{}[] \n\0\x80\xff0123456789-+.etfn')
            _check(extension, bytes(data))
        else:
            _check(extension, changed(random, header, _HEADERS))


@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3, 1.0]))
def test_made_up_answers_are_read_as_in_python(seed: int, level: float) -> None:
    random = Random(seed)
    extension = Extension()
    for _ in range(30):
        _check(extension, Tricks(random, level).header())
