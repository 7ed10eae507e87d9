"""Topics, queues and the bounds of what is kept."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_records import decode_records

from admin.demo.broker.store import (
    Found,
    LoopbackConfig,
    Message,
    Reading,
    Store,
    Stored,
    TopicRefusedError,
    pack_host,
)

_HOST = pack_host("127.0.0.1", 10911)
_CONFIG = LoopbackConfig()


def _store(**changes: Any) -> Store:
    return Store(dataclasses.replace(_CONFIG, **changes), _HOST)


def _append(store: Store, topic: str = "orders", queue_id: int = 0, body: bytes = b"body", tag: str = "") -> Stored:
    message = Message(topic, queue_id, body, b"", 0, 0, 0, _HOST)
    return store.append(store.create_topic(topic, 4), message, tag, 1000 + len(store))


def _read(store: Store, offset: int, *, max_messages: int = 32, max_bytes: int = 1 << 20, tag: str = "") -> Reading:
    return store.read(
        store.queue("orders", 0),
        offset,
        max_messages=max_messages,
        max_bytes=max_bytes,
        accepts=(lambda found: found == tag) if tag else None,
    )


def test_messages_are_read_in_the_order_they_were_stored() -> None:
    store = _store()
    for number in range(5):
        _append(store, body=b"%d" % number)
    _append(store, queue_id=1, body=b"other queue")
    reading = _read(store, 1, max_messages=3)
    assert reading.found is Found.FOUND
    assert [record.message.body for record in decode_records(reading.body)] == [b"1", b"2", b"3"]
    assert [record.queue_offset for record in decode_records(reading.body)] == [1, 2, 3]
    assert (reading.next_offset, reading.min_offset, reading.max_offset) == (4, 0, 5)
    assert store.stored() == {"orders": 6}


@pytest.mark.parametrize(
    ("offset", "found", "next_offset"),
    [
        (-1, Found.OFFSET_TOO_SMALL, 2),
        (1, Found.OFFSET_TOO_SMALL, 2),
        (2, Found.FOUND, 4),
        (4, Found.OFFSET_OVERFLOW_ONE, 4),
        (5, Found.OFFSET_OVERFLOW_BADLY, 4),
    ],
)
def test_offset_outside_the_queue_is_named(offset: int, found: Found, next_offset: int) -> None:
    store = _store(max_queue_messages=2)
    for _ in range(4):
        _append(store)
    reading = _read(store, offset)
    assert (reading.found, reading.next_offset) == (found, next_offset)


def test_queue_that_was_never_written_is_empty() -> None:
    store = _store()
    assert _read(store, 7).found is Found.NO_MESSAGE_IN_QUEUE
    assert store.queue("orders", 0).min_offset == 0


def test_unwanted_tags_are_passed_over() -> None:
    store = _store()
    for tag in ("a", "b", "a", "c"):
        _append(store, tag=tag, body=tag.encode())
    reading = _read(store, 0, tag="a")
    assert [record.queue_offset for record in decode_records(reading.body)] == [0, 2]
    assert reading.next_offset == 4
    reading = _read(store, 3, tag="a")
    assert (reading.found, reading.next_offset) == (Found.NO_MATCHED_MESSAGE, 4)


def test_answer_is_bounded_in_bytes_but_holds_one_message() -> None:
    store = _store()
    for _ in range(3):
        _append(store, body=b"x" * 1000)
    assert _read(store, 0, max_bytes=2500).next_offset == 2
    assert _read(store, 0, max_bytes=10).next_offset == 1


def test_queue_keeps_its_newest_messages() -> None:
    store = _store(max_queue_messages=3)
    for number in range(10):
        _append(store, body=b"%d" % number)
    queue = store.queue("orders", 0)
    assert (queue.min_offset, queue.max_offset, len(store), store.dropped) == (7, 10, 3, 7)
    assert store.stored() == {"orders": 10}


def test_oldest_messages_of_all_queues_go_first_when_the_store_is_full() -> None:
    store = _store(max_store_bytes=10_000)
    _append(store, topic="quiet")
    while store.queue("quiet", 0).messages:
        _append(store, queue_id=len(store) % 4)
    assert store.queue("quiet", 0).min_offset == 1
    assert store.dropped == 1
    assert store.size_bytes <= 10_000


def test_topics_are_bounded_and_their_names_checked() -> None:
    store = _store(max_topics=2)
    store.create_topic("a", 4)
    store.create_topic("%RETRY%b", 1)
    assert store.create_topic("a", 9).queue_count == 4
    with pytest.raises(TopicRefusedError, match="already 2 topics"):
        store.create_topic("c", 4)
    for name in ("", "t" * 128, "a b", "ä", "a/b"):
        with pytest.raises(TopicRefusedError, match="1 to 127"):
            _store().create_topic(name, 4)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3000)), max_size=60),
    st.integers(1, 8),
    st.integers(500, 6000),
    st.integers(500, 12_000),
)
def test_bounds_hold_and_what_is_kept_is_the_newest(
    writes: list[tuple[str, int, int]], messages: int, queue_bytes: int, store_bytes: int
) -> None:
    store = _store(max_queue_messages=messages, max_queue_bytes=queue_bytes, max_store_bytes=store_bytes)
    for name, queue_id, size in writes:
        _append(store, name, queue_id, b"x" * size)
    assert store.size_bytes <= store_bytes
    assert sum(store.stored().values()) == len(writes) == len(store) + store.dropped
    for topic in store.topics.values():
        for queue in topic.queues.values():
            assert len(queue.messages) <= messages
            assert queue.size_bytes <= queue_bytes
            offsets = [stored.queue_offset for stored in queue.messages]
            assert offsets == list(range(queue.min_offset, queue.max_offset))
