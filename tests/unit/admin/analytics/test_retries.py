from typing import Any

import pyarrow as pa
import pytest
from demands import LANGUAGES

from admin.analytics.demand import Rows, without_retries
from admin.analytics.options import default_attempts

ATTEMPTS = {"JAVA": 3, "CPP": 2}
JAVA = {"JAVA": (300, 300)}


def left(seconds: list[tuple[int, int]], languages: dict[str, tuple[int, int]], **fields: Any) -> Any:
    """Return the remaining fraction of a minute, given as messages admitted and refused in each second."""
    total = sum(refused for _, refused in languages.values())
    its = {"refused_requests": total, "identified": 0, "busy_answers": total, "dropped_requests": 0} | fields
    by_second = dict(zip(("admitted", "refused"), zip(*seconds, strict=True), strict=True))
    by_second["repeated"] = its.pop("repeated", ())
    columns = {f"second_{name}": pa.array([list(values)], pa.list_(pa.int64())) for name, values in by_second.items()}
    counts = [(name, {"requests": one, "refused": other}) for name, (one, other) in languages.items()]
    columns["languages"] = pa.array([counts], LANGUAGES)
    columns["second"] = pa.array([list(range(len(seconds)))])
    batch = pa.RecordBatch.from_pydict(columns | {name: [value] for name, value in its.items()})
    found, *known = without_retries(Rows(batch), ATTEMPTS)
    return found.tolist(), *known


@pytest.mark.parametrize(
    ("seconds", "languages", "fields", "expected"),
    [
        # Three refusals of a Java client are one request.
        ([(0, 300)], JAVA, {}, 1 / 3),
        # Half of each attempt is admitted: 1 + 1/2 + 1/4 attempts for each request.
        ([(150, 150)], JAVA, {}, 1 / 1.75),
        # Clients of other languages do not retry.
        ([(0, 300)], {"GO": (300, 300)}, {}, 1),
        # Each language has its part of the refusals, whatever was admitted.
        ([(0, 400)], {"JAVA": (200, 150), "GO": (1000, 50)}, {}, (300 / 3 + 100) / 400),
        # One-way requests are refused without an answer, and not sent again.
        ([(0, 300)], JAVA, {"busy_answers": 150}, 0.5 + 0.5 / 3),
        ([(0, 300)], JAVA, {"busy_answers": 0}, 1),
        # Counted repeats.
        ([(150, 100)], {"JAVA": (250, 100)}, {"repeated": [60], "identified": 95}, 190 / 250),
        # Ids without repeats show that no client retried, whatever the language's default.
        ([(100, 50)], {"JAVA": (150, 50)}, {"identified": 50}, 1),
        # A third has ids and was counted, the others are assumed to have retried.
        ([(0, 300)], JAVA, {"repeated": [50], "identified": 100}, 1 - 50 / 300 - 2 / 3 * 2 / 3),
        # Admitted messages were wanted.
        ([(290, 10)], {"JAVA": (300, 10)}, {"repeated": [9]}, 290 / 300),
    ],
)
def test_the_part_that_is_not_retries(
    seconds: list[tuple[int, int]], languages: dict[str, tuple[int, int]], fields: dict[str, Any], expected: float
) -> None:
    assert left(seconds, languages, **fields)[0] == [pytest.approx(expected)]


@pytest.mark.parametrize(("identified", "known"), [(300, (300, 0)), (285, (300, 0)), (200, (200, 100)), (0, (0, 300))])
def test_measured_and_assumed_attempts(identified: int, known: tuple[int, int]) -> None:
    assert left([(0, 300)], JAVA, identified=identified)[1:] == known


def test_how_often_clients_try_is_known_from_the_protocols() -> None:
    found = default_attempts()
    assert found["JAVA"] == 3
    assert all(most >= 1 for most in found.values())
