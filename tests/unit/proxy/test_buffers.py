from proxy.buffers import CHUNK_BYTES, LARGE_CHUNK_BYTES, SMALL_CHUNK_BYTES, BufferPool


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
    assert pool.small_total == 2


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


def test_large_buffer_is_lent_to_who_asks_for_one() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    large = pool.borrow(large=True)
    assert len(large) == LARGE_CHUNK_BYTES
    pool.give_back(large)
    assert len(pool.borrow()) == CHUNK_BYTES
    assert pool.borrow(large=True) is large


def test_budget_that_was_made_in_one_size_is_there_in_the_other() -> None:
    pool = BufferPool(2 * LARGE_CHUNK_BYTES)
    for _ in range(3):
        both = [pool.borrow(large=True) for _ in range(2)]
        assert [len(buffer) for buffer in both] == [LARGE_CHUNK_BYTES] * 2
        for buffer in both:
            pool.give_back(buffer)
        many = [pool.borrow() for _ in range(8)]
        assert [len(buffer) for buffer in many] == [CHUNK_BYTES] * 8
        assert len(pool.borrow()) == SMALL_CHUNK_BYTES
        for buffer in many:
            pool.give_back(buffer)


def test_who_asks_for_a_large_buffer_gets_what_the_budget_has_left() -> None:
    pool = BufferPool(LARGE_CHUNK_BYTES + CHUNK_BYTES)
    lent = [pool.borrow(large=True) for _ in range(3)]
    assert [len(buffer) for buffer in lent] == [LARGE_CHUNK_BYTES, CHUNK_BYTES, SMALL_CHUNK_BYTES]


def test_who_asks_for_no_large_buffer_gets_none() -> None:
    pool = BufferPool(LARGE_CHUNK_BYTES)
    pool.give_back(pool.borrow(large=True))
    assert len(pool.borrow()) == CHUNK_BYTES
    assert pool.small_total == 0
