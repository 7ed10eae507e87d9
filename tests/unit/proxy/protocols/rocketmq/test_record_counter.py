"""Counting the records in the body of an answer to a pull."""

import struct

import pytest
from harness.wire_bytes import count_records
from hypothesis import given
from hypothesis import strategies as st
from playbook.frames import cut, records
from stored_records import Message, encode_record

from admin.demo.broker import pack_host
from proxy.protocols.rocketmq.answers import MIN_RECORD_BYTES, RecordCounter


def test_an_empty_body_brings_nothing() -> None:
    assert count_records(b"") == 0


def test_no_record_is_shorter_than_one_without_anything_in_it() -> None:
    message = Message("", 0, b"", b"", 0, 0, 0, pack_host("127.0.0.1", 1))
    record = encode_record(message, queue_offset=0, physical_offset=0, store_ms=0, store_host=pack_host("127.0.0.1", 1))
    assert len(record) == MIN_RECORD_BYTES


def test_every_record_counts() -> None:
    assert count_records(records(91, 200, 91, 5000)) == 4


@pytest.mark.parametrize("size", [0, 1, 4, 90, -1, -(2**31)])
def test_a_size_that_is_nonsense_counts_as_one_and_ends_the_counting(size: int) -> None:
    assert count_records(records(91) + struct.pack(">i", size) + records(91, 91)) == 2


def test_a_record_longer_than_what_follows_counts_as_one() -> None:
    assert count_records(records(91) + struct.pack(">i", 2**31 - 1) + records(91, 91)) == 2


def test_what_is_no_whole_size_counts_as_nothing() -> None:
    assert count_records(records(91) + b"\0\0\1") == 1


@given(
    body=st.one_of(
        st.binary(max_size=300),
        st.lists(st.integers(91, 400), max_size=6).map(lambda sizes: records(*sizes)),
        st.tuples(
            st.lists(st.integers(91, 400), max_size=3).map(lambda sizes: records(*sizes)), st.binary(max_size=99)
        ).map(b"".join),
    ),
    offsets=st.lists(st.integers(0, 2000), max_size=12),
)
def test_pieces_count_as_the_whole_does(body: bytes, offsets: list[int]) -> None:
    counter = RecordCounter()
    for piece in cut(body, *offsets) if body else ():
        counter.feed(memoryview(piece))
    assert counter.count == count_records(body)
