"""Files of the log as Spark reads them, whatever they are called and whatever is in them."""

import gzip
from pathlib import Path

import pytest
from log_rows import MONDAY_S, Run, lines_of
from pyspark.sql import SparkSession

from admin.analytics.inputs import Found, find
from admin.analytics.lines import GATHERED, HOURS_IN, Wanted, gather, hours_in
from admin.analytics.report import lines_in, path_of
from admin.analytics.tables import in_spark

pytestmark = pytest.mark.long

_NAMES = (
    "odd {name} [1]*?.jsonl", "100%.jsonl", "a%3Ab c.jsonl", "ünïcode.jsonl", "per cent%20.jsonl.gz",
    "deep/a=b/c.jsonl.gz",
)  # fmt: skip
NO_OBJECT = "not one JSON object with fields of the right types"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the same under all names: good lines, a torn one, one that is no text, and one of another version."""
    run = Run()
    run.rejection(MONDAY_S)
    run.rejection(MONDAY_S + 5)
    good, other = lines_of(run.records)
    content = b"\n".join([good, other[:-9], b"\x00\xff", b"", b'{"v":7,"type":"heartbeat"}', other])
    for name in _NAMES:
        file = tmp_path / "logs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "logs" / "torn.jsonl.gz").write_bytes(gzip.compress(good)[:-9])
    (tmp_path / "logs" / "empty.jsonl").write_bytes(b"")
    return tmp_path / "logs"


def _gathered(spark: SparkSession, found: Found) -> dict[str, dict[str, int]]:
    """Return bad lines by file and reason; under no file, the good ones."""
    rows = lines_in(spark, found).mapInArrow(gather(Wanted()), in_spark(GATHERED)).collect()
    bad: dict[str, dict[str, int]] = {}
    for row in rows:
        of_file = bad.setdefault("" if row["file"] is None else path_of(row["file"]), {})
        reason = row["reason"] or "good"
        of_file[reason] = of_file.get(reason, 0) + row["records"]
    return bad


def test_what_is_bad_is_told_with_the_name_of_its_file(spark: SparkSession, folder: Path) -> None:
    bad = _gathered(spark, find([str(folder)]))
    each = {NO_OBJECT: 1, "not UTF-8": 1, "schema version 7": 1}
    torn = {"ends in the middle; what is there was read": 0}
    good = {"good": 2 * len(_NAMES) + 1}
    assert bad == {"": good, str(folder / "torn.jsonl.gz"): torn} | {str(folder / name): each for name in _NAMES}


def test_which_hours_files_are_of_is_told_with_their_names(spark: SparkSession, folder: Path) -> None:
    rows = lines_in(spark, find([str(folder)])).mapInArrow(hours_in, in_spark(HOURS_IN)).collect()
    hours: dict[str, set[int]] = {}
    for row in rows:
        hours.setdefault(path_of(row["file"]), set()).update(row["hours"])
    names = (*_NAMES, "torn.jsonl.gz")
    assert {file: of for file, of in hours.items() if of} == {str(folder / name): {MONDAY_S} for name in names}


def test_files_that_have_gone_meanwhile_are_left_out(spark: SparkSession, folder: Path) -> None:
    found = find([str(folder)])
    for name in ("100%.jsonl", "per cent%20.jsonl.gz"):
        (folder / name).unlink()
    bad = _gathered(spark, found)
    assert bad[""] == {"good": 2 * (len(_NAMES) - 2) + 1}
    assert {each.file for each in found.vanished()} == {
        str(folder / "100%.jsonl"),
        str(folder / "per cent%20.jsonl.gz"),
    }
