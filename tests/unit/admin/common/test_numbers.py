import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.common.numbers import number, per_second


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (500.0, "500"),
        (1234567.5, "1234567.5"),
        (0.1 + 0.2, "0.3"),
        (2.0004, "2"),
        (0.0001, "0.0001"),
        (0.00025, "0.00025"),
        (0.0012345, "0.00123"),
        (-0.0004, "-0.0004"),
        (1e-12, "1e-12"),
        (1e15, "1e+15"),
        (math.inf, "inf"),
    ],
)
def test_a_figure_has_no_needless_decimals_and_no_needed_one_less(value: float, text: str) -> None:
    assert number(value) == text


def test_decimals_are_as_many_as_are_asked_for_unless_nothing_would_be_left() -> None:
    assert [number(value, 0) for value in (1800.4, 10, 0.96, 0.2, 0.04)] == ["1800", "10", "1", "0.2", "0.04"]
    assert [per_second(value) for value in (200.04, 0.96, 0.04)] == ["200", "1", "0.04"]
    assert number(1234.5, 0, grouped=True) == "1,234"


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 3))
def test_only_nothing_reads_as_nothing(value: float, decimals: int) -> None:
    assert (float(number(value, decimals)) == 0) == (value == 0)
