"""What is in the tables in Spark's words and in Arrow's, and how days are put in place."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from admin.analytics import kernels, lines, tables
from admin.analytics.combine import COMBINED
from admin.analytics.tables import TABLES, Days, Store, Table, arrow_struct, day_of, in_spark


def _said(schema: pa.Schema) -> str:
    return ",".join(f"{each.name}{each.dataType.simpleString()}" for each in in_spark(schema)).upper()


def _plain(words: str) -> str:
    return words.replace(" ", "").upper()


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_table_goes_to_arrow_and_back(table: Table) -> None:
    struct = arrow_struct(table.columns)
    assert [field.name for field in struct] == list(table.names)
    assert _said(pa.schema(list(struct))) == _plain(",".join(table.columns))


@pytest.mark.parametrize(
    "schema",
    [lines.GATHERED, lines.HOURS_IN, COMBINED, kernels.JUDGED, kernels.REPLAYED, kernels.SETTLED, kernels.KNOWN],
)
def test_what_goes_between_steps_has_types_that_spark_knows(schema: pa.Schema) -> None:
    assert [each.name for each in in_spark(schema)] == schema.names


@pytest.mark.parametrize(
    ("table", "moments"),
    [
        (tables.MINUTES, {"minute_s": "minute_at"}),
        (tables.HOURS, {"hour_s": "hour_at", "first_minute_s": "first_minute_at", "last_minute_s": "last_minute_at"}),
        (tables.REFUSALS, {"hour_s": "hour_at"}),
        (tables.STORMS, {"start_s": "start_at", "end_s": "end_at", "peak_at_s": "peak_at"}),
        (tables.CULPRITS, {}),
        (tables.LIMITS, {"seen_s": "seen_at"}),
        (tables.LIMIT_CHANGES, {"at_s": "at"}),
        (
            tables.COVERAGE,
            {"hour_s": "hour_at", "first_minute_s": "first_minute_at", "last_minute_s": "last_minute_at"},
        ),
    ],
    ids=lambda each: each.name if isinstance(each, Table) else "",
)
def test_beside_each_second_since_1970_stands_a_timestamp(table: Table, moments: dict[str, str]) -> None:
    assert table.moments == moments
    *columns, day = table.ddl_columns
    assert (columns[: len(table.columns) - 1], day) == (list(table.columns[:-1]), "dt DATE")
    assert columns[len(table.columns) - 1 :] == [f"{name} TIMESTAMP" for name in moments.values()]


def test_days_are_those_of_seconds() -> None:
    assert day_of(86_399) == date(1970, 1, 1)
    assert day_of(86_400) == date(1970, 1, 2)
    found = Days.of_seconds(86_400, 2 * 86_400)
    assert [day in found for day in (date(1970, 1, 1), date(1970, 1, 2), date(1970, 1, 3))] == [False, True, False]
    assert date(1970, 1, 3) in Days.of_seconds(86_400, 2 * 86_400 + 1)
    assert all(date(1970, 1, 1) in days for days in (Days(), Days.of_seconds(None, 1), Days.of_seconds(0, None)))
    assert "1970-01-01" not in Days()


# Putting in place; what is written aside is made by hand here.


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(None, str(tmp_path))  # type: ignore[arg-type] - no rows are made


def _write(folder: Path, name: str, content: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "part-0.parquet").write_text(content)


def _there(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in folder.glob("*/part-0.parquet")}


@pytest.fixture(params=["exchanged", "renamed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to put a directory in another's place: not every file system can exchange them."""
    if request.param == "renamed":
        monkeypatch.setattr(tables, "_exchange", lambda _new, _old: False)


@pytest.mark.parametrize(
    ("days", "left"),
    [
        (Days(), {"dt=1970-01-02": "new", "dt=1970-01-04": "new"}),
        (
            Days(date(1970, 1, 2), date(1970, 1, 2)),
            {"dt=1970-01-01": "old", "dt=1970-01-02": "new", "dt=1970-01-03": "old", "dt=1970-01-04": "new"},
        ),
        (
            frozenset([date(1970, 1, 3)]),
            {"dt=1970-01-01": "old", "dt=1970-01-02": "new", "dt=1970-01-04": "new"},
        ),
    ],
)
def test_days_are_replaced_removed_or_left(
    store: Store, tmp_path: Path, way: None, days: object, left: dict[str, str]
) -> None:
    there = tmp_path / "minutes"
    for day in (1, 2, 3):
        _write(there, f"dt=1970-01-0{day}", "old")
    _write(there, "dt=elsewhere", "not ours")
    with store.scratch() as scratch:
        for day in (2, 4):
            _write(Path(scratch, "aside", "minutes"), f"dt=1970-01-0{day}", "new")
        store._swap_days(tables.MINUTES, days)  # type: ignore[arg-type] - with what has days in it
    assert _there(there) == {**left, "dt=elsewhere": "not ours"}
    assert [path.name for path in tmp_path.iterdir()] == ["minutes"]


def test_a_day_is_one_or_the_other_at_any_moment(tmp_path: Path) -> None:
    new, old = tmp_path / "aside", tmp_path / "there"
    for folder, content in ((new, "new"), (old, "old")):
        _write(folder, "dt=1970-01-01", content)
    assert tables._exchange(new, old)
    assert (_there(new), _there(old)) == ({"dt=1970-01-01": "old"}, {"dt=1970-01-01": "new"})
    assert not tables._exchange(new, tmp_path / "nowhere")


def test_a_table_of_which_no_day_was_made_is_there_without_any(store: Store, tmp_path: Path) -> None:
    with store.scratch():
        store._swap_days(tables.STORMS, Days())
    assert list((tmp_path / "storms").iterdir()) == []


def test_what_a_killed_job_left_aside_is_removed_before_and_after(store: Store, tmp_path: Path) -> None:
    _write(tmp_path / "_scratch" / "aside" / "minutes", "dt=1970-01-01", "half")
    with store.scratch() as scratch:
        assert not Path(scratch).exists()
        _write(Path(scratch), "combined", "half")
    assert list(tmp_path.iterdir()) == []
