"""Python's careful parsers read each plain header in the same way."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle.tricky import Tricks, binary, changed
from playbook import frames
from playbook.captures import CAPTURES, Capture
from playbook.extension import BROKER, CLIENT, Extension, Reading, feed

from proxy.protocols.rocketmq.wire.header import classify

Check = Callable[[bytes, int], bool]

_LEVELS = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)
_ROUNDS = 30


def _headers(stream: bytes) -> list[tuple[bytes, int]]:
    found = []
    for whole in frames.split(stream):
        word = int.from_bytes(whole[4:8], "big")
        found.append((whole[8 : 8 + (word & 0xFFFFFF)], word >> 24))
    return found


def _is_single_send(header: bytes, header_type: int) -> bool:
    reading = classify(header, header_type)
    return reading.kind != "" and not reading.is_batch


_RECORDED = [
    (header, header_type)
    for capture in CAPTURES
    for header, header_type in _headers(capture.to_broker)
    if _is_single_send(header, header_type)
]


@pytest.fixture(scope="module")
def check(seasoned: Extension) -> Check:
    """Read a header in both ways. Return whether it is a plain send."""

    def read(header: bytes, header_type: int) -> bool:
        in_python = classify(header, header_type)
        for _ in range(2):
            remembered = seasoned.read_header(header, header_type)
            fresh = Extension().read_header(header, header_type)
            assert type(remembered) is type(fresh), (header, header_type)
            for reading in (remembered, fresh):
                assert reading is None or reading.agrees_with(in_python), (header, header_type)
        return isinstance(fresh, Reading)

    return read


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_sends_and_send_backs_of_real_clients_are_plain(capture: Capture, check: Check) -> None:
    for header, header_type in _headers(capture.to_broker):
        assert check(header, header_type) is _is_single_send(header, header_type)


@given(st.integers(0, 2**32), st.sampled_from(_LEVELS))
def test_made_up_json_is_read_as_in_python(check: Check, seed: int, level: float) -> None:
    random = Random(seed)
    for _ in range(_ROUNDS):
        check(Tricks(random, level).header(), 0)


@given(st.integers(0, 2**32))
def test_made_up_binary_headers_are_read_as_in_python(check: Check, seed: int) -> None:
    random = Random(seed)
    for _ in range(_ROUNDS):
        check(binary(random), 1)


@given(st.integers(0, 2**32))
def test_changed_headers_of_real_clients_are_read_as_in_python(check: Check, seed: int) -> None:
    random = Random(seed)
    headers = [header for header, _ in _RECORDED]
    for _ in range(_ROUNDS):
        header, header_type = random.choice(_RECORDED)
        check(changed(random, header, headers), header_type)


_SPECIAL = b"\"\\$'/:,{}[] \t\n\0\x1f\x20\x7f\x80\xc3\xa9\xff0123456789-+.eEtfnu%bm"


@given(st.integers(0, 2**32))
def test_headers_as_long_as_one_read_before_are_read_as_in_python(check: Check, seed: int) -> None:
    """Bytes are replaced, not added, so that the previous header is their template."""
    random = Random(seed)
    header, header_type = random.choice(_RECORDED)
    assert check(header, header_type)
    for _ in range(_ROUNDS):
        data = bytearray(header)
        for _ in range(random.choice((1, 1, 2, 3, 8))):
            data[random.randrange(len(data))] = (
                random.choice(_SPECIAL) if random.random() < 0.8 else random.randrange(256)
            )
        check(bytes(data), header_type)


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_every_mutable_byte_is_mutated(capture: Capture, check: Check) -> None:
    """Each byte of one header of each sort becomes each of the bytes that could matter."""
    sorts = {
        header_type: header
        for header, header_type in _headers(capture.to_broker)
        if _is_single_send(header, header_type)
    }
    for header_type, header in sorts.items():
        plain = check(header, header_type)
        for at in range(len(header)):
            for byte in b'"\\$\x1f\x80 0-b}':
                check(header[:at] + bytes([byte]) + header[at + 1 :], header_type)
        assert check(header, header_type) is plain


@given(st.binary(max_size=300), st.sampled_from([CLIENT, BROKER]), st.integers(-10, 2**31))
def test_any_bytes_are_read_without_an_error(chunk: bytes, side: int, most: int) -> None:
    extension = Extension()
    read = feed(extension.lend(extension.recorder(), max_length=most), side, chunk)
    assert 0 <= read.stop <= len(chunk)


@given(st.integers(0, 2**32))
def test_frames_are_taken_up_to_the_first_that_is_for_python(seed: int) -> None:
    random = Random(seed)
    extension = Extension()
    chunk, starts, taken = b"", {0: 0}, []
    for number in range(20):
        header, header_type = random.choice(_RECORDED)
        if random.random() < 0.1:
            header = changed(random, header, [header])
        whole = frames.frame(header, bytes(random.randrange(50)), header_type=header_type)
        reading = classify(header, header_type)
        taken.append((whole, (reading.kind, reading.name, reading.producer_group, len(whole))))
        chunk += whole
        starts[len(chunk)] = number + 1
    judge = extension.recorder(lambda run: [(len(run.sizes), True)])
    read = feed(extension.lend(judge), CLIENT, chunk)
    assert read.to_broker == chunk[: read.stop]
    count = starts[read.stop]
    asked = [(*run[:3], size) for run in judge.runs for size in run.sizes]
    assert sorted(asked) == sorted(key for _, key in taken[:count] if key[0])
    assert read.leaves is (count < len(taken))
    if read.leaves:
        assert Extension().read_frame(taken[count][0]) is None
