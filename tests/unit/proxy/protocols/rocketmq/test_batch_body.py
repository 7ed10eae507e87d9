"""Batch bodies: counted, written and read."""

import itertools
import struct
import sys

import pytest
from harness.wire_bytes import count_messages, encode_batch, encode_properties
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.rocketmq.batch_body import (
    MIN_MESSAGE_BYTES,
    BatchMessage,
    BatchReader,
    decode_batch,
    decode_properties,
)
from proxy.protocols.rocketmq.wire.codes import RemoteProtocolError

_messages = st.lists(
    st.builds(BatchMessage, st.binary(max_size=40), st.text(max_size=10), st.integers(-(2**31), 2**31 - 1)), max_size=6
)


@given(_messages)
def test_a_batch_is_read_as_it_was_written(messages: list[BatchMessage]) -> None:
    assert list(decode_batch(encode_batch(messages))) == messages


@given(_messages, st.integers(1, 8))
def test_a_batch_is_counted_in_steps_of_any_size(messages: list[BatchMessage], most: int) -> None:
    body = encode_batch(messages)
    assert _read(body, most).count == count_messages(body) == len(messages)


@given(st.binary(max_size=200), st.integers(1, 8))
def test_any_body_counts_the_same_in_steps_of_any_size(body: bytes, most: int) -> None:
    assert _read(body, most).count == count_messages(body)
    assert count_messages(body) <= len(body)


def test_a_step_reads_no_more_than_it_may() -> None:
    reader, body = BatchReader(), encode_batch([BatchMessage(b"x")] * 10)
    steps = 1
    while not reader.resume(body, 3):
        steps += 1
    assert (steps, reader.count) == (4, 10)


def _read(body: bytes | memoryview, most: int = sys.maxsize) -> BatchReader:
    reader = BatchReader()
    while not reader.resume(body, most):
        pass
    return reader


_ONE = encode_batch([BatchMessage(b"x")])


@pytest.mark.parametrize(
    "body", [b"\xff" * 1000, b"some text " * 100, b"\x78\x9c" * 500, b"short", (_ONE * 5)[:-1], _ONE * 5 + b"x"]
)
def test_a_body_of_which_the_broker_stores_nothing_holds_no_message(body: bytes) -> None:
    reader = _read(body)
    assert (reader.count, reader.malformed) == (0, False)


@pytest.mark.parametrize(
    "body",
    [
        bytes(21),  # an endless loop in a batch queue's reading
        struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1) * 100,
        bytes(16) + (bytes(4) + b"\xff\xf0") * 20 + bytes(6),
        _ONE * 3 + struct.pack(">i", -len(_ONE)) + _ONE[4:],
        struct.pack(">i", 7) + _ONE[4:] + _ONE,
        struct.pack(">i", len(_ONE) * 2) + _ONE[4:] + _ONE,
        struct.pack(">i", 4) * 40_000,
        struct.pack(">i", 20) + encode_batch([BatchMessage(struct.pack(">i", 26) + bytes(20))])[4:],
    ],
)
def test_a_body_of_which_the_broker_might_store_something_else_is_malformed(body: bytes) -> None:
    for reader in (_read(body), _read(body, 1)):
        assert (reader.count, reader.malformed) == (0, True)


def _as_the_broker_counts(body: bytes) -> int:
    """The broker's loop over a batch: by the lengths of body and properties. 0 where it fails."""
    at = count = 0
    while at != len(body):
        if at < 0 or at + 20 > len(body) or count > len(body):
            return 0
        (body_bytes,) = struct.unpack_from(">i", body, at + 16)
        at += 20 + body_bytes
        if body_bytes < 0 or at + 2 > len(body):
            return 0
        (properties_bytes,) = struct.unpack_from(">h", body, at)
        at += 2 + properties_bytes
        if at > len(body):
            return 0
        count += 1
    return count


def _as_sizes_count(body: bytes) -> int:
    """The broker's loop for batch-queue topics: by totalSize."""
    at = count = 0
    while at != len(body):
        if at < 0 or at + 4 > len(body) or count > len(body):
            return 0
        (total_bytes,) = struct.unpack_from(">i", body, at)
        at += total_bytes
        if at > len(body):
            return 0
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


@given(_lying | st.binary(max_size=60) | st.lists(st.sampled_from([bytes(4), b"\xff\xf0", b"\0\x17"])).map(b"".join))
def test_no_lie_about_lengths_changes_the_count(body: bytes) -> None:
    reader, stored = _read(body), (_as_the_broker_counts(body), _as_sizes_count(body))
    assert (reader.malformed and not reader.count) or stored == (reader.count, reader.count)


def _with_properties(properties: str, body: bytes = b"x") -> bytes:
    return encode_batch([BatchMessage(b""), BatchMessage(body, properties)])


@pytest.mark.parametrize("most", [1, 2, sys.maxsize])
@pytest.mark.parametrize(
    "properties",
    [
        "INNER_NUM\x011000\x02",
        "a\x01b\x02INNER_NUM\x011\x02INNER_BASE\x010\x02",
        "INNER_MULTI_DISPATCH\x01orders\x02",
        "INNER_\x01\x02INNER_MULTI_QUEUE_OFFSET\x010\x02",
    ],
)
def test_a_message_with_the_brokers_own_annotations_is_found(properties: str, most: int) -> None:
    assert _read(memoryview(_with_properties(properties)), most).sets_inner
    name = properties.rpartition("\x01")[0].rpartition("\x02")[2].partition("\x01")[0]
    other = encode_batch([BatchMessage(name.encode()), BatchMessage(b"x", f"k\x01{name}\x02")])
    assert not _read(other, most).sets_inner


@pytest.mark.parametrize("name", ["INNER_NUM", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"])
def test_a_name_is_found_where_two_steps_of_the_search_meet(name: str) -> None:
    for before in range(430, 520):
        assert _read(_with_properties(f"{name}\x011\x02", bytes(before)), 1).sets_inner


def test_a_step_searches_no_more_than_it_may() -> None:
    reader, steps, seen = BatchReader(), 1, [0]
    body = _with_properties("", bytes(100_000))
    while not reader.resume(body, 10):
        steps += 1
        seen.append(reader._searched)
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 10 * 512
    assert steps == len(body) // (10 * 512) + 1
    assert reader.effort >= len(body) // 512


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


_property_text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))


@given(st.dictionaries(_property_text, _property_text))
def test_properties_are_read_as_they_were_written(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_odd_properties_are_read_as_far_as_they_go() -> None:
    assert decode_properties("a\x01b\x02nothing\x02\x02a\x01c\x01d") == {"a": "c\x01d"}
