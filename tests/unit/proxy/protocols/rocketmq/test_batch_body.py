"""Batch bodies: counted in pieces, written and read."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.rocketmq.batch_body import (
    MIN_MESSAGE_BYTES,
    BatchCounter,
    BatchMessage,
    count_messages,
    decode_batch,
    decode_properties,
    encode_batch,
    encode_properties,
)
from proxy.protocols.rocketmq.errors import LocalProtocolError, RemoteProtocolError

_messages = st.lists(
    st.builds(BatchMessage, st.binary(max_size=40), st.text(max_size=10), st.integers(-(2**31), 2**31 - 1)), max_size=6
)


def _pieces(body: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(edges)]


@given(_messages)
def test_a_batch_is_read_as_it_was_written(messages: list[BatchMessage]) -> None:
    assert list(decode_batch(encode_batch(messages))) == messages


@given(_messages, st.lists(st.integers(min_value=0), max_size=8))
def test_a_count_does_not_depend_on_how_the_body_is_cut(messages: list[BatchMessage], cuts: list[int]) -> None:
    counter = BatchCounter()
    for piece in _pieces(encode_batch(messages), cuts):
        counter.feed(memoryview(piece))
    assert (counter.count, counter.malformed) == (len(messages), False)


@given(_messages)
def test_a_count_byte_by_byte_never_falls(messages: list[BatchMessage]) -> None:
    body = encode_batch(messages)
    counter = BatchCounter()
    counts = []
    for at in range(len(body)):
        counter.feed(body[at : at + 1])
        counts.append(counter.count)
    assert counts == sorted(counts)


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0), max_size=8))
def test_any_body_counts_the_same_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    counter = BatchCounter()
    for piece in _pieces(body, cuts):
        counter.feed(piece)
    assert counter.count == count_messages(body)
    assert counter.count <= len(body) // MIN_MESSAGE_BYTES + 1


def _as_the_broker_counts(body: bytes) -> int | None:
    """The broker's loop over a batch: it goes by the lengths of body and properties. None where it fails."""
    at = count = 0
    while at < len(body):
        if at + 20 > len(body):
            return None
        (body_bytes,) = struct.unpack_from(">i", body, at + 16)
        at += 20 + body_bytes
        if body_bytes < 0 or at + 2 > len(body):
            return None
        (properties_bytes,) = struct.unpack_from(">h", body, at)
        at += 2 + properties_bytes
        if properties_bytes < 0 or at > len(body):
            return None
        count += 1
    return count


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0), max_size=8))
def test_a_doubtful_body_counts_the_same_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    counter, whole = (BatchCounter(doubtful_bytes=len(body)) for _ in range(2))
    whole.feed(body)
    for piece in _pieces(body, cuts):
        counter.feed(piece)
    assert counter.count == whole.count
    assert counter.count in {min(1, len(body) // 20), count_messages(body)}


@pytest.mark.parametrize("body", [b"some text " * 100, b"\x78\x9c" * 500, b"\xff" * 1000, b"short"])
def test_a_doubtful_body_that_can_be_no_batch_is_one_message_at_most(body: bytes) -> None:
    counter = BatchCounter(doubtful_bytes=len(body))
    counter.feed(body)
    assert counter.count <= 1


def _as_sizes_count(body: bytes) -> int | None:
    """The broker's loop for batch-queue topics, for sizes that a message can have: it goes by totalSize."""
    at = count = 0
    while at < len(body):
        if at + 4 > len(body):
            return None
        (total_bytes,) = struct.unpack_from(">i", body, at)
        if total_bytes < MIN_MESSAGE_BYTES or at + total_bytes > len(body):
            return None
        at += total_bytes
        count += 1
    return count


_lying = st.lists(
    st.builds(
        lambda off_by, body, properties: (
            struct.pack(">iiiii", MIN_MESSAGE_BYTES + len(body) + len(properties) + off_by, 0, 0, 0, len(body))
            + body
            + struct.pack(">h", len(properties))
            + properties
        ),
        st.sampled_from((0, 0, 1, -1, 22, 44, 66)),
        st.sampled_from((b"", b"x", bytes(22), encode_batch([BatchMessage(b""), BatchMessage(b"")]))),
        st.sampled_from((b"", b"k\x01v\x02", bytes(22))),
    ),
    max_size=5,
).map(b"".join)


@given(_lying)
def test_no_lie_about_lengths_makes_the_count_too_small(body: bytes) -> None:
    for count in (_as_the_broker_counts(body), _as_sizes_count(body)):
        doubtful = BatchCounter(doubtful_bytes=len(body))
        doubtful.feed(body)
        assert count is None or min(count_messages(body), doubtful.count) >= count


def test_one_message_that_claims_to_be_the_whole_body_counts_for_all_it_may_hide() -> None:
    body = encode_batch([BatchMessage(b"x")] * 10)
    lying = struct.pack(">i", len(body)) + body[4:]
    counter = BatchCounter()
    counter.feed(lying)
    assert counter.malformed
    assert counter.count == len(body) // MIN_MESSAGE_BYTES


def test_an_empty_body_holds_no_message() -> None:
    assert count_messages(b"") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        encode_batch([BatchMessage(b"body", "k\x01v\x02")])[:-1],
        encode_batch([BatchMessage(b"body")]) + b"x",
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
        struct.pack(">iiiii", 23, 0, 0, 0, 0) + b"\0\0",
        struct.pack(">iiiii", 21, 0, 0, 0, 0) + b"\xff\xff",
    ],
)
def test_a_batch_whose_lengths_do_not_add_up_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        list(decode_batch(body))


def test_properties_that_do_not_fit_are_refused() -> None:
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchMessage(b"", "x" * 32_768)])


_property_text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))


@given(st.dictionaries(_property_text, _property_text))
def test_properties_are_read_as_they_were_written(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_odd_properties_are_read_as_far_as_they_go() -> None:
    assert decode_properties("a\x01b\x02nothing\x02\x02a\x01c\x01d") == {"a": "c\x01d"}


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}])
def test_properties_with_a_separator_cannot_be_written(properties: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_properties(properties)
