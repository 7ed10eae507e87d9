"""The formula that Spark's expression is compared with, on cases worked out by hand."""

import pytest
from retry_formula import corrected, weights


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
