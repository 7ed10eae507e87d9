"""Frames, header blocks, windows and gRPC's messages."""

from collections.abc import Sequence

import pytest
from grpc_talk import grpc
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given
from hypothesis import strategies as st

from proxy.protocols.base import Close
from proxy.protocols.rocketmq_grpc import http2
from proxy.protocols.rocketmq_grpc.http2 import DEFAULT_WINDOW, Frames, HeaderBlocks, Messages, Outlet

NAMES = st.sampled_from((b":path", b"x-a", b"x-b", b"grpc-timeout", b"a" * 130, b"b" * 300))
VALUES = st.one_of(
    st.binary(max_size=20), st.sampled_from((b"v" * 126, b"v" * 127, b"v" * 254, b"v" * 255, b"v" * 5000))
)
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=8)


def blocks() -> HeaderBlocks:
    return HeaderBlocks("client")


def data(size: int, stream: int = 1, flags: int = 0) -> bytes:
    return http2.frame_of(http2.DATA, flags, stream, bytes(size))


# --- Frames ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40)), st.integers(0, 6))
def test_frames_are_the_same_in_any_chunks(cuts: list[int], kind: int) -> None:
    whole = b"".join(
        (
            http2.frame_of(kind if kind != http2.HEADERS else http2.DATA, 0, 1, b"abc"),
            http2.headers_of(http2.END_STREAM, 3, bytes(40)),
            http2.frame_of(http2.HEADERS, 0, 5, b"one"),
            http2.frame_of(http2.CONTINUATION, 0, 5),
            http2.frame_of(http2.CONTINUATION, http2.END_HEADERS, 5, b"two"),
            data(9),
        )
    )
    frames, found, at = Frames("client"), [], 0
    for cut in (*cuts, len(whole)):
        found += [
            (kind, flags, stream, bytes(frame))
            for kind, flags, stream, frame in frames.read(memoryview(whole)[at : at + cut])
        ]
        at += cut
    assert frames.is_between
    assert frames.count == 6
    assert [each[0] for each in found[1:]] == [http2.HEADERS, http2.HEADERS, http2.DATA]
    assert b"".join(each[3] for each in found) == whole
    assert http2.block_of(found[2][3], found[2][1]) == b"onetwo"


def test_a_drain_reads_no_further_than_the_frame_in_hand() -> None:
    frames = Frames("client")
    assert frames.missing_bytes() == http2.FRAME_HEADER_BYTES
    assert not list(frames.read(memoryview(data(20)[:15])))
    assert frames.missing_bytes() == 14


def test_a_chunk_of_many_frames_is_read_in_parts() -> None:
    frames = Frames("client")
    chunk = memoryview(data(1) * 1000)
    found = 0
    while chunk:
        found += len(list(frames.read(chunk)))
        chunk = chunk[len(chunk) - frames.left_bytes :]
    assert found == 1000


def test_padding_and_priority_are_not_content() -> None:
    padded = http2.frame_of(http2.DATA, http2.PADDED, 1, b"\x03abc000")
    assert http2.content_of(padded, http2.PADDED) == b"abc"
    flags = http2.PADDED | http2.HAS_PRIORITY | http2.END_HEADERS
    headers = http2.frame_of(http2.HEADERS, flags, 1, b"\x02" + bytes(5) + b"block00")
    assert http2.block_of(headers, flags) == b"block"


def test_a_long_block_is_written_in_frames_that_every_peer_takes() -> None:
    frames = http2.headers_of(http2.END_STREAM, 1, bytes(40_000))
    ((kind, flags, _, whole),) = Frames("broker").read(memoryview(frames))
    assert (kind, flags) == (http2.HEADERS, http2.END_STREAM)
    assert http2.block_of(whole, flags) == bytes(40_000)


# --- Header blocks --------------------------------------------------------------------------------


def read_all(read: object, many: Sequence[bytes]) -> list[object]:
    found: list[object] = []
    for block in many:
        try:
            found.append([tuple(field) for field in read(block)])  # type: ignore[operator]
        except (HPACKError, Close):
            found.append("unreadable")
            break
    return found


@given(st.lists(FIELDS, max_size=8), st.booleans())
def test_blocks_are_read_as_the_library_reads_them(lists: list[list[tuple[bytes, bytes, bool]]], huffman: bool) -> None:  # noqa: FBT001 - Hypothesis gives it
    encoder = Encoder()
    many = [encoder.encode(fields, huffman=huffman) for fields in lists for _ in range(2)]
    mine, library = blocks(), Decoder(http2.MAX_HEADER_LIST_BYTES)
    assert read_all(lambda block: mine.read(block)[0], many) == read_all(
        lambda block: library.decode(block, raw=True), many
    )


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_are_read_as_the_library_reads_them(many: list[bytes]) -> None:
    mine, library = blocks(), Decoder(http2.MAX_HEADER_LIST_BYTES)
    assert read_all(lambda block: mine.read(block)[0], many) == read_all(
        lambda block: library.decode(block, raw=True), many
    )


def test_a_block_says_whether_it_has_changed_the_table() -> None:
    mine = blocks()
    adds = b"\x40" + http2.literal(b"x-a", b"1")[1:]
    assert mine.read(http2.literal(b"x-a", b"1")) == ([(b"x-a", b"1")], False)
    assert mine.read(adds) == ([(b"x-a", b"1")], True)
    assert mine.read(b"\xbe") == ([(b"x-a", b"1")], False)
    assert mine.read(adds[:-1] + b"2") == ([(b"x-a", b"2")], True)
    assert mine.read(b"\xbe") == ([(b"x-a", b"2")], False)
    assert mine.read(b"\x20")[1]
    assert http2.is_indexed(b"\x88\xbe")
    assert not http2.is_indexed(b"\x88\xff\x00")
    assert not http2.is_indexed(adds)


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=20_000)), max_size=4))
def test_literals_need_no_table(headers: list[tuple[bytes, bytes]]) -> None:
    decoder = Decoder(1 << 30)
    assert [tuple(each) for each in decoder.decode(http2.literals(headers), raw=True)] == headers
    assert not decoder.header_table.dynamic_entries


def test_a_table_follows_the_settings_that_were_acknowledged() -> None:
    mine = blocks()
    signals = [mine.to_signal]
    mine.allow(100)
    signals.append(mine.to_signal)
    mine.acknowledged()
    signals.append(mine.to_signal)
    with pytest.raises(Close):
        mine.read(b"\x88")
    mine.read(b"\x3f\x45\x88")
    signals.append(mine.to_signal)
    assert signals == [b"", b"", b"\x3f\x45", b""]
    mine.allow(None)
    mine.allow(8192)
    mine.acknowledged()
    mine.read(b"\x3f\xe1\x3f\x88")


def test_settings_that_are_never_acknowledged_are_bounded() -> None:
    mine = blocks()
    for _ in range(100):
        mine.allow(4096)
    with pytest.raises(Close) as caught:
        mine.allow(4096)
    assert caught.value.reason == "flood"


# --- Windows --------------------------------------------------------------------------------------


class Book:
    """The windows as both peers see them."""

    def __init__(self) -> None:
        self.outlet = Outlet(is_open=True)
        # The sender's credit, and the receiver's window.
        self.credit = self.window = DEFAULT_WINDOW
        # Received and not granted again, and held.
        self.unread = 0
        self.held: list[int] = []

    def check(self) -> None:
        outlet = self.outlet
        for frame in outlet.take():
            size = len(frame) - http2.FRAME_HEADER_BYTES
            self.window -= size
            self.unread += size
        assert self.window >= 0
        assert (self.credit, self.window) == (outlet.credit, outlet.window)
        assert outlet.waiting >= 0

    def grant(self) -> None:
        self.credit += self.outlet.grant()


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("passes", "passes", "swallowed", "held", "released", "dropped", "own", "update", "update")),
        st.integers(1, 30_000),
    ),
    max_size=80,
)


@given(EVENTS)
def test_no_window_is_overdrawn_and_no_credit_is_lost(events: list[tuple[str, int]]) -> None:
    book = Book()
    outlet = book.outlet
    for event, size in events:
        if event in {"passes", "swallowed", "held"}:
            size = min(size, book.credit)  # noqa: PLW2901 - a sender keeps to it
            book.credit -= size
            outlet.arrive(size, "client")
            if event == "passes":
                outlet.put(data(size), size)
            else:
                outlet.retire(size)
                book.held += [size] * (event == "held")
        elif event == "own":
            outlet.add(size)
            outlet.put(data(size), size)
        elif event == "update" and book.unread:
            granted = min(size, book.unread)
            book.unread -= granted
            book.window += granted
            book.credit += outlet.update(granted)
        elif book.held and event in {"released", "dropped"}:
            held = book.held.pop(size % len(book.held))
            if event == "released":
                outlet.add(held)
                outlet.put(data(held), held)
        book.grant()
        book.check()
        # Held data takes no window from others.
        assert book.credit >= min(16_384, book.window - outlet.waiting)
    # At last everything is read.
    for held in book.held:
        outlet.add(held)
        outlet.put(data(held), held)
    book.check()
    while book.unread:
        granted, book.unread = book.unread, 0
        book.window += granted
        book.credit += outlet.update(granted)
        book.check()
    assert outlet.queued_bytes == outlet.waiting == 0
    assert book.window == DEFAULT_WINDOW
    assert book.credit >= DEFAULT_WINDOW - 16_384
    # The windows for held DATA, and for Sluice's own, are paid back completely.
    assert book.credit <= DEFAULT_WINDOW


def test_a_sender_that_overdraws_its_credit_ends_the_connection() -> None:
    outlet = Outlet(is_open=True)
    outlet.arrive(DEFAULT_WINDOW, "client")
    with pytest.raises(Close):
        outlet.arrive(1, "client")


def test_long_waiting_data_is_forwarded_in_frames_that_fit_any_window() -> None:
    outlet = Outlet(is_open=True)
    outlet.add(DEFAULT_WINDOW)
    outlet.put(data(DEFAULT_WINDOW), DEFAULT_WINDOW)
    outlet.take()
    outlet.add(40_000)
    outlet.put(data(40_000, flags=http2.END_STREAM), 40_000)
    outlet.update(20_000)
    (first,) = outlet.take()
    outlet.update(20_000)
    second, third = outlet.take()
    assert [len(each) for each in (first, second, third)] == [16_393, 16_393, 7241]
    assert [each[4] for each in (first, second, third)] == [0, 0, http2.END_STREAM]


def test_data_behind_dropped_data_is_forwarded() -> None:
    outlet = Outlet(is_open=True)
    outlet.add(60_000)
    outlet.put(data(60_000), 60_000)
    outlet.take()
    outlet.add(16_100)
    outlet.put(data(16_000, stream=1), 16_000, 1)
    outlet.put(data(100, stream=3), 100, 3)
    assert not outlet.take()
    outlet.drop(1)
    assert outlet.take() == [data(100, stream=3)]
    assert (outlet.waiting, outlet.queued_bytes) == (0, 0)


# --- Messages -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), max_size=6), st.lists(st.integers(1, 12), max_size=30))
def test_messages_are_the_same_in_any_chunks(sizes: list[int], cuts: list[int]) -> None:
    all_messages = [bytes(range(size)) for size in sizes]
    stream = b"".join(grpc(each, flag=1) for each in all_messages)
    cutter, found, at = Messages(20), [], 0
    for cut in (*cuts, len(stream)):
        found += cutter.feed(stream[at : at + cut])
        at += cut
    assert found == [(1, len(each), each[:20]) for each in all_messages]
