"""Retries: measured by message ids, or assumed from the languages of clients, by a formula; with cases by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retry_formula import corrected, weights

from admin.analytics.retries import default_attempts, is_measured, shares

ATTEMPTS = {"JAVA": 3, "CPP": 2, "PATIENT": 6}


def _minute(
    seconds: list[tuple[int, int]],
    languages: dict[str, tuple[int, int]],
    busy: int,
    *,
    repeated: Any = (),
    ids: int = 0,
) -> Any:
    admitted, refused = zip(*seconds, strict=True) if seconds else ((), ())
    return SimpleNamespace(
        busy_answers=busy, languages=languages, identified=ids, second_admitted=admitted, second_refused=refused,
        second_repeated=tuple(repeated),
    )  # fmt: skip


def _left(seconds: list[tuple[int, int]], languages: dict[str, tuple[int, int]], busy: int) -> list[float]:
    """Messages that are left of each second."""
    refused = sum(each[1] for each in languages.values())
    found = shares(_minute(seconds, languages, busy), refused, ATTEMPTS)
    asked = [sum(each) for each in seconds]
    return [all_ * share for all_, share in zip(asked, found or [1.0] * len(asked), strict=True)]


def test_of_java_alone_three_refusals_are_one_request() -> None:
    assert _left([(0, 300)], {"JAVA": (300, 300)}, 300) == [pytest.approx(100)]


@pytest.mark.parametrize("language", ["GO", "SMALLTALK", ""])
def test_of_clients_that_do_not_retry_all_counts(language: str) -> None:
    assert shares(_minute([(100, 300)], {language: (400, 300)}, 300), 300, ATTEMPTS) is None


def test_of_mixed_languages_each_counts_by_what_of_it_was_refused() -> None:
    languages = {"JAVA": (200, 150), "GO": (1000, 50)}
    assert weights(languages, 200, ATTEMPTS) == {3: 0.75}
    assert _left([(0, 400)], languages, 200) == [pytest.approx(300 / 3 + 100)]


def test_who_is_not_told_does_not_retry() -> None:
    languages = {"JAVA": (100, 100)}
    assert weights(languages, 50, ATTEMPTS) == {3: 0.5}
    assert _left([(0, 100)], languages, 50) == [pytest.approx(50 + 50 / 3)]
    assert shares(_minute([(0, 100)], languages, 0), 100, ATTEMPTS) is None


def test_without_refusals_nothing_is_corrected() -> None:
    assert shares(_minute([(100, 0), (0, 0)], {"JAVA": (100, 0)}, 0), 0, ATTEMPTS) is None
    assert shares(_minute([], {}, 0), 0, ATTEMPTS) is None
    assert corrected(100, 0, {3: 1.0}) == 100


_COUNT = st.integers(0, 5000)
_LANGUAGES = st.dictionaries(
    st.sampled_from(["JAVA", "CPP", "PATIENT", "GO", ""]),
    st.tuples(_COUNT, _COUNT).map(lambda each: (sum(each), each[1])),
    max_size=5,
)


@given(st.lists(st.tuples(_COUNT, _COUNT), max_size=10), _LANGUAGES, _COUNT)
def test_what_is_assumed_is_what_the_formula_says(
    seconds: list[tuple[int, int]], languages: dict[str, tuple[int, int]], busy: int
) -> None:
    parts = weights(languages, busy, ATTEMPTS)
    for (admitted, refused), left in zip(seconds, _left(seconds, languages, busy), strict=True):
        assert left == pytest.approx(corrected(admitted, refused, parts))
        assert admitted - 1e-6 <= left <= admitted + refused


def test_where_nearly_all_refused_have_ids_repeats_are_counted() -> None:
    of_java = {"JAVA": (400, 100)}
    minute = _minute([(100, 50), (150, 100)], of_java, 100, repeated=(0, 60), ids=95)
    assert shares(minute, 100, ATTEMPTS) == [1.0, pytest.approx(190 / 250)]
    # None came again, so nobody retried, whatever their language is known for.
    assert shares(_minute([(100, 50)], of_java, 100, ids=95), 100, ATTEMPTS) is None
    assert is_measured(100, 95)
    assert not is_measured(100, 94)
    assert not is_measured(0, 0)


def test_more_repeats_than_were_asked_for_leave_nothing_and_no_less() -> None:
    assert shares(_minute([(1, 1), (0, 0)], {}, 0, repeated=(5, 5), ids=1), 1, ATTEMPTS) == [0.0, 1.0]
    assert shares(_minute([(1, 1), (0, 0)], {}, 0, repeated=(5, 5)), 1, ATTEMPTS) == [0.0, 1.0]


def test_where_some_have_ids_the_larger_correction_counts() -> None:
    of_java = {"JAVA": (300, 300)}
    # Of 300 refused at once, 200 are retries by the formula.
    for repeated, left in ((150, 1 / 3), (250, 1 / 6)):
        minute = _minute([(0, 300)], of_java, 300, repeated=(repeated,), ids=100)
        assert shares(minute, 300, ATTEMPTS) == [pytest.approx(left)]


def test_repeats_of_what_an_earlier_minute_refused_count_too() -> None:
    assert shares(_minute([(100, 0)], {"JAVA": (100, 0)}, 0, repeated=(40,)), 0, ATTEMPTS) == [pytest.approx(0.6)]


def test_how_often_clients_try_is_known_of_the_protocols_that_are_installed() -> None:
    found = default_attempts()
    assert found["JAVA"] == 3
    assert all(most >= 1 for most in found.values())
