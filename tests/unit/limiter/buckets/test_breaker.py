import pytest

from limiter.buckets.bucket import closes_at_ns, is_open


@pytest.mark.parametrize(
    ("next_free_ns", "now_ns", "expected"),
    [
        (None, 0, False),
        (1_000, 0, True),
        (1_000, 1_000, True),
        (1_000, 1_499, True),
        (1_000, 1_500, False),
        (1_000, 9_999, False),
    ],
)
def test_stays_open_until_a_break_after_next_free(*, next_free_ns: int | None, now_ns: int, expected: bool) -> None:
    assert is_open(next_free_ns, 500, now_ns) is expected


def test_closes_exactly_when_it_says() -> None:
    closes_ns = closes_at_ns(1_000, 500)

    assert is_open(1_000, 500, closes_ns - 1)
    assert not is_open(1_000, 500, closes_ns)


def test_clock_that_runs_backwards_does_not_close_it() -> None:
    assert is_open(1_000, 500, -1_000_000)
