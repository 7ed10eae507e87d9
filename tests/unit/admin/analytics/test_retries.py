import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.analytics.retries import ATTEMPTS, corrected, expected_attempts, weights


@given(st.floats(0.001, 1), st.integers(1, 5))
def test_expected_attempts_are_those_of_the_formula(admitted_share: float, attempts: int) -> None:
    expected = (1 - (1 - admitted_share) ** attempts) / admitted_share
    assert expected_attempts(admitted_share, attempts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("admitted_share", "attempts", "expected"), [(0, 3, 3), (1, 3, 1), (0.5, 3, 1.75), (0.5, 1, 1), (0.25, 2, 1.75)]
)
def test_expected_attempts_of_known_cases(admitted_share: float, attempts: int, expected: float) -> None:
    assert expected_attempts(admitted_share, attempts) == pytest.approx(expected)


def test_of_java_alone_three_refusals_are_one_request() -> None:
    assert corrected(0, 300, weights({"JAVA": (300, 300)}, 300)) == pytest.approx(100)


def test_of_clients_that_do_not_retry_all_counts() -> None:
    assert corrected(100, 300, weights({"GO": (400, 300)}, 300)) == 400
    assert corrected(100, 300, weights({"SMALLTALK": (400, 300)}, 300)) == 400
    assert corrected(100, 300, weights({"": (400, 300)}, 300)) == 400


def test_of_mixed_languages_each_counts_by_what_of_it_was_refused() -> None:
    parts = weights({"JAVA": (200, 150), "GO": (1000, 50)}, 200)
    assert parts == {3: 0.75}
    assert corrected(0, 400, parts) == pytest.approx(300 / 3 + 100)


def test_who_is_not_told_does_not_retry() -> None:
    assert weights({"JAVA": (100, 100)}, 50) == {3: 0.5}
    assert weights({"JAVA": (100, 100)}, 0) == {3: 0.0}


def test_without_refusals_nothing_is_corrected() -> None:
    assert weights({"JAVA": (100, 0)}, 0) == {}
    assert corrected(100, 0, {}) == 100
    assert corrected(0, 0, {3: 1.0}) == 0


LANGUAGES = st.dictionaries(
    st.sampled_from([*ATTEMPTS, "RUST", ""]),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    max_size=5,
)


@given(st.integers(0, 10_000), st.integers(0, 10_000), LANGUAGES, st.integers(0, 5000))
def test_what_was_wanted_lies_between_what_was_admitted_and_what_was_asked_for(
    admitted: int, refused: int, languages: dict[str, tuple[int, int]], busy_answers: int
) -> None:
    found = corrected(admitted, refused, weights(languages, busy_answers))
    assert admitted - 1e-6 <= found <= admitted + refused + 1e-6
    assert found >= (admitted + refused) / max(ATTEMPTS.values()) - 1e-6
