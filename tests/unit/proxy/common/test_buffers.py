import weakref

import pytest

from proxy.common.buffers import (
    CHUNK_BYTES,
    KEPT_NS,
    SMALL_CHUNK_BYTES,
    SMALL_FRAME_BYTES,
    BufferPool,
    Gathering,
    GatherRoom,
)


def test_buffer_given_back_is_lent_again() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    first = pool.borrow()
    pool.give_back(first)
    assert pool.borrow() is first


def test_most_recently_used_buffer_is_lent_first() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    older, newer = pool.borrow(), pool.borrow()
    pool.give_back(older)
    pool.give_back(newer)
    assert pool.borrow() is newer


def test_two_borrowers_never_share_a_buffer() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    first, second = pool.borrow(), pool.borrow()
    first[:1] = b"1"
    second[:1] = b"2"
    assert bytes(first[:1]) == b"1"


def test_buffers_are_small_once_the_budget_is_spent() -> None:
    pool = BufferPool(2 * CHUNK_BYTES)
    assert [len(pool.borrow()) for _ in range(4)] == [CHUNK_BYTES] * 2 + [SMALL_CHUNK_BYTES] * 2


def test_small_buffers_are_not_kept() -> None:
    pool = BufferPool(CHUNK_BYTES)
    large, small = pool.borrow(), pool.borrow()
    pool.give_back(small)
    pool.give_back(large)
    assert pool.borrow() is large
    assert pool.borrow() is not small


def test_even_the_smallest_budget_has_one_buffer() -> None:
    assert len(BufferPool(0).borrow()) == CHUNK_BYTES


def test_nothing_is_made_before_it_is_needed() -> None:
    pool = BufferPool(1000 * CHUNK_BYTES)
    for _ in range(10):
        pool.give_back(pool.borrow())
    assert len(pool._free) == 1


def test_few_free_buffers_are_kept() -> None:
    pool = BufferPool(100 * CHUNK_BYTES)
    lent = [pool.borrow() for _ in range(100)]
    pages = [weakref.ref(buffer.obj) for buffer in lent]
    while lent:
        pool.give_back(lent.pop())
    assert 0 < sum(page() is not None for page in pages) < 20
    assert pool.unlent == 100


KIB = 1024


def _losable(client: str = "10.0.0.1") -> Gathering:
    return Gathering(client, lambda: None)


def test_room_is_taken_for_arrived_data() -> None:
    room, one = GatherRoom(4096 * KIB), Gathering("10.0.0.1")
    assert room.fits(one, 4096 * KIB, 0)
    for size_bytes, expected in (
        (64 * KIB, 0),
        (64 * KIB + 1, 64 * KIB + 1),
        (4096 * KIB, 4096 * KIB),
    ):
        assert room.grow(one, size_bytes, 0)
        assert one.has_bytes == room.taken_bytes == expected
    assert not room.grow(one, 4097 * KIB, 0)
    assert room.taken_bytes == one.has_bytes == 4096 * KIB
    room.give_back(one)
    assert room.taken_bytes == len(room._by_client) == len(room._gatherings) == 0


@pytest.mark.parametrize(
    ("one", "another"), [("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::ffff:0:0:2"), ("::1", "::1")]
)
def test_client_takes_room_from_others_but_not_from_itself(one: str, another: str) -> None:
    room, large = GatherRoom(4096 * KIB), _losable(one)
    assert room.grow(large, 4000 * KIB, 0)
    assert not room.fits(_losable(another), 100 * KIB, 0)
    assert room.grow(_losable("2001:db8:0:1::1"), 100 * KIB, 0)
    assert large.lost


def test_small_frames_need_no_room() -> None:
    room, one = GatherRoom(0), Gathering("10.0.0.1")
    assert room.grow(one, SMALL_FRAME_BYTES, 0)
    assert not room.grow(one, SMALL_FRAME_BYTES + 1, 0)
    room.give_back(one)
    assert room.taken_bytes == 0
    full = GatherRoom(1024 * KIB)
    assert full.grow(one, 1024 * KIB, 0)
    assert full.fits(Gathering("10.0.0.1"), SMALL_FRAME_BYTES, 0)


def test_the_oldest_lose_their_room_to_new_ones() -> None:
    room = GatherRoom(4096 * KIB)
    lost: list[int] = []
    for number in range(4):
        assert room.grow(Gathering(f"10.0.0.{number}", lambda number=number: lost.append(number)), 1024 * KIB, number)  # type: ignore[misc]
    new = _losable("10.0.1.1")
    assert not room.fits(new, 1025 * KIB, KEPT_NS)
    assert not room.grow(new, 1025 * KIB, KEPT_NS)
    assert room.fits(new, 1025 * KIB, KEPT_NS + 1)
    assert not lost
    assert room.grow(new, 1024 * KIB, KEPT_NS + 3)
    assert (lost, room.taken_bytes) == ([0], 4096 * KIB)
    assert room.grow(new, 1025 * KIB, KEPT_NS + 3)
    assert lost == [0, 1]


def test_client_with_the_most_room_loses_first() -> None:
    room = GatherRoom(4096 * KIB)
    old, many = _losable(), [_losable("10.0.0.2") for _ in range(3)]
    assert room.grow(old, 448 * KIB, 0)
    for number, each in enumerate(many):
        assert room.grow(each, 320 * KIB, number)
    others = [_losable(f"10.0.1.{number}") for number in range(6)]
    assert all(room.grow(each, 448 * KIB, KEPT_NS) for each in others)
    assert room.grow(_losable("10.0.0.3"), 320 * KIB, 2 * KEPT_NS)
    assert [each.lost for each in (old, *many)] == [False, True, False, False]
    assert room.grow(_losable("10.0.0.4"), 320 * KIB, 2 * KEPT_NS)
    assert [each.lost for each in (old, *many)] == [False, True, True, False]
    assert room.grow(_losable("10.0.0.5"), 320 * KIB, 2 * KEPT_NS)
    assert [each.lost for each in (old, *many)] == [True, True, True, False], "of equals the oldest loses first"


def test_small_client_takes_room_from_larger_ones_at_once() -> None:
    room = GatherRoom(4096 * KIB)
    large = [_losable(f"10.0.0.{number}") for number in range(4)]
    assert all(room.grow(each, 1024 * KIB, 0) for each in large)
    small = [_losable("10.0.1.1") for _ in range(3)]
    assert [room.grow(each, 128 * KIB, 0) for each in small] == [True] * 3
    assert [each.lost for each in large] == [True, False, False, False]
    assert room.grow(_losable("10.0.1.2"), 640 * KIB, 0)
    assert room.fits(_losable("10.0.1.1"), 639 * KIB, 0)
    assert not room.fits(_losable("10.0.1.1"), 640 * KIB, 0), "it would have as much as the others"


def test_no_client_loses_room_while_some_is_free() -> None:
    room, slow = GatherRoom(4096 * KIB), _losable()
    for step in range(1, 41):
        assert room.grow(slow, step * 100 * KIB, step * KEPT_NS)
    assert room.taken_bytes == slow.has_bytes == 4000 * KIB
