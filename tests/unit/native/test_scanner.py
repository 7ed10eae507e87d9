"""Frames, keys, and what is owed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook import frames
from playbook.extension import Extension, Run, keys_of, runs_of


def _prefix(length: int, header_bytes: int, header_type: int = 0) -> bytes:
    return struct.pack(">iI", length, header_type << 24 | header_bytes)


def test_all_plain_frames_of_a_chunk_are_taken(extension: Extension) -> None:
    sends = [frames.send("orders", opaque, body=bytes(opaque)) for opaque in range(1, 6)]
    segment = extension.scan(b"".join(sends))
    assert len(segment) == 5
    assert segment.stop == sum(map(len, sends))
    assert runs_of(segment) == [Run("topic", "orders", "producers", [0, 1, 2, 3, 4], segment.stop, 0)]
    assert [opaque in extension.owed for opaque in range(7)] == [False, True, True, True, True, True, False]


@pytest.mark.parametrize("position", [99, 2**40])
def test_behind_the_chunk_there_is_nothing(extension: Extension, position: int) -> None:
    segment = extension.scan(frames.heartbeat()[:99], position)
    assert (len(segment), segment.stop) == (0, position)


@pytest.mark.parametrize("other", [frames.heartbeat(), frames.unparsable(), frames.send_batch("orders", 3)])
def test_the_first_other_frame_ends_it(extension: Extension, other: bytes) -> None:
    first = frames.send("orders")
    segment = extension.scan(first + other + first)
    assert (len(segment), segment.stop) == (1, len(first))
    assert extension.scan(first + other + first, len(first + other)).stop == len(first + other + first)


def test_a_frame_is_taken_as_soon_as_its_header_is_there(extension: Extension) -> None:
    whole = frames.send("orders", body=b"hello")
    for cut in range(len(whole)):
        segment = extension.scan(whole[:cut])
        assert len(segment) == (cut >= len(whole) - 5)
        assert segment.stop == (len(whole) if len(segment) else 0)


def test_the_last_frame_ends_beyond_the_chunk_if_more_is_to_come(extension: Extension) -> None:
    first, second = frames.send("orders"), frames.send("orders", 2, body=bytes(10_000))
    chunk = first + second[:-9_000]
    segment = extension.scan(chunk)
    assert (len(segment), segment.stop) == (2, len(chunk) + 9_000)
    assert segment.run(0) == (range(2), len(chunk) + 9_000)


_HEADER = frames.send("orders", body=b"")[8:]
_SIZE = len(_HEADER)


@pytest.mark.parametrize(
    ("length", "header_bytes", "header_type"),
    [
        (_SIZE + 3, _SIZE, 0),
        (3, 0, 0),
        (0, 0, 0),
        (-1, 0, 0),
        (-(2**31), 0, 0),
        (2**31 - 1, _SIZE, 0),
        (_SIZE + 4, _SIZE, 2),
        (_SIZE + 4, _SIZE, 255),
        (_SIZE + 4, 0xFFFFFF, 0),
        (_SIZE + 4, _SIZE, 1),
        (4, 0, 0),
    ],
)
def test_what_is_no_frame_is_left_alone(extension: Extension, length: int, header_bytes: int, header_type: int) -> None:
    chunk = _prefix(length, header_bytes, header_type) + _HEADER
    segment = extension.scan(chunk)
    assert (len(segment), segment.stop, len(extension.owed)) == (0, 0, 0)


def test_a_frame_longer_than_allowed_is_left_alone(extension: Extension) -> None:
    whole = frames.send("orders")
    assert len(extension.scan(whole, 0, len(whole) - 4)) == 1
    assert len(extension.scan(whole, 0, len(whole) - 5)) == 0
    assert len(extension.scan(whole, 0, -1)) == 0


def test_frames_are_grouped_by_name_group_and_code(extension: Extension) -> None:
    chunk = b"".join(
        [
            frames.send("a", 1, group="g"),
            frames.send("b", 2, group="g", flag=frames.ONEWAY),
            frames.send("a", 3, group="h"),
            frames.send("a", 4, group="g", binary=True),
            frames.send("a", 5, group="g", code=320),
            frames.send_back("g", 6),
            frames.send("b", 7, group="g"),
            frames.send("b", 8, group="g"),
        ]
    )
    sizes = list(map(len, frames.split(chunk)))
    segment = extension.scan(chunk)
    assert runs_of(segment) == [
        Run("topic", "a", "g", [0, 3], sizes[0] + sizes[3], 0),
        Run("topic", "b", "g", [1, 6, 7], sizes[1] + sizes[6] + sizes[7], 1),
        Run("topic", "a", "h", [2], sizes[2], 0),
        Run("topic", "a", "g", [4], sizes[4], 0),
        Run("retry_group", "g", "", [5], sizes[5], 0),
    ]
    assert isinstance(segment.run(2)[0], range)
    assert segment.sizes(range(8)) == segment.sizes(list(range(8))) == sizes
    assert [segment.frame(index)[0] for index in range(8)] == [0, 1, 2, 0, 3, 4, 1, 1]
    assert 2 not in extension.owed


def test_keys_are_remembered_from_chunk_to_chunk(extension: Extension) -> None:
    extension.scan(frames.send("a") + frames.send("b"))
    segment = extension.scan(frames.send("b") + frames.send("c") + frames.send("a"))
    assert [name for _, name, _ in keys_of(segment)] == ["b", "c", "a"]
    assert extension.scanner.names() == [("topic", "a"), ("topic", "b"), ("topic", "c")]
    other = extension.new_scanner()
    assert keys_of(other.scan(frames.send("b"), 0, 1000, 9)) == [("topic", "b", "producers")]
    assert other.names() == [("topic", "b")]


def test_too_many_keys_are_forgotten_when_the_next_scan_begins(extension: Extension) -> None:
    scanner = extension.new_scanner(most_keys=2)
    segment = scanner.scan(b"".join(map(frames.send, "abc")), 0, 1000, 9)
    assert [name for _, name, _ in keys_of(segment)] == ["a", "b", "c"]
    segment = scanner.scan(frames.send("c") + frames.send("a"), 0, 1000, 9)
    assert [name for _, name, _ in keys_of(segment)] == [name for _, name in scanner.names()] == ["c", "a"]


def test_a_scan_ends_with_as_many_runs_as_there_may_be(extension: Extension) -> None:
    a, b, c = map(frames.send, "abc")
    segment = extension.scanner.scan(a + a + b + b + c, 0, 1000, 2)
    assert segment.stop == len(a + a + b)
    assert [(run.name, run.indexes) for run in runs_of(segment)] == [("a", [0, 1]), ("b", [2])]


def test_more_than_fits_is_not_owed(extension: Extension) -> None:
    owed = extension.opaques(most=2)
    scanner = extension.new_scanner(owed=owed)
    segment = scanner.scan(b"".join(frames.send("a", opaque) for opaque in range(5)), 0, 1000, 9)
    assert (len(segment), len(owed), owed.ambiguous) == (5, 2, True)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8))
def test_scan_says_whether_two_have_one_number(sends: list[tuple[int, bool]]) -> None:
    owed = Extension().opaques()
    scanner = Extension().new_scanner(owed=owed)
    scanner.scan(b"".join(frames.send("a", opaque, flag=2 * oneway) for opaque, oneway in sends), 0, 10_000, 9)
    answered = [opaque for opaque, oneway in sends if not oneway]
    assert owed.ambiguous is (len(set(answered)) < len(answered))
    assert len(owed) == len(set(answered))
