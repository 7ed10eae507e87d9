import gzip
import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from admin.analytics.inputs import File, Found, SkippedInput, clocks, find
from admin.common.errors import StartError


def _paths(found: Found) -> tuple[str, ...]:
    return tuple(file.path for file in found.files)


def _write(file: Path, content: bytes = b"{}\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_folders_and_files_are_found_once_each_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    deep, named = _write(tmp_path / "deep" / "er" / "b.jsonl.gz", gzip.compress(b"{}\n")), _write(tmp_path / "a.log")
    plain = _write(tmp_path / "a.jsonl")
    for name in ("notes.txt", ".b.jsonl.open", ".c.jsonl", "_d.jsonl", ".hidden/e.jsonl", "_records/f.jsonl"):
        _write(tmp_path / name)
    logs = [str(plain), str(tmp_path), str(tmp_path / "a*.jsonl"), "s3a://logs/fleet", str(named)]
    found = find(logs)
    # A named file may have any name.
    assert _paths(found) == (str(plain), str(named), str(deep))
    assert found.size_bytes == 6 + deep.stat().st_size
    assert found.skipped == ()


def test_a_path_is_named_as_by_spark(tmp_path: Path) -> None:
    file = _write(tmp_path / "logs" / "a.jsonl")
    (tmp_path / "other").mkdir()
    assert _paths(find([f"/{tmp_path}/logs"])) == _paths(find([f"{tmp_path}/other/../logs"])) == (str(file),)


def test_links_to_folders_are_followed_and_a_loop_of_them_ends(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere" / "a.jsonl")
    (tmp_path / "elsewhere" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "linked.jsonl").symlink_to(tmp_path / "elsewhere")
    assert _paths(find([str(tmp_path / "logs")])) == (str(tmp_path / "logs" / "linked.jsonl" / "a.jsonl"),)


def test_unreadable_files_are_skipped_and_the_rest_is_read(tmp_path: Path) -> None:
    good = _write(tmp_path / "good.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    _write(tmp_path / "10:15.jsonl")
    found = find([str(tmp_path), str(tmp_path / "missing")])
    assert _paths(found) == (str(good),)
    assert {Path(each.file).name: each.reason for each in found.skipped} == {
        "10:15.jsonl": "has a name that Spark cannot read",
        "link.jsonl": "cannot be read: no such file or directory",
        "missing": "no such file or folder",
        "pipe.jsonl": "cannot be read: not a regular file",
        "self.jsonl": "cannot be read: too many levels of symbolic links",
    }


def test_addresses_are_shown_without_secrets() -> None:
    logs = ("s3a://key:secret@logs/fleet", "s3a://logs/fleet?token=secret", "s3a://logs/a@b", "/logs/a?b@c")
    assert Found(logs, ()).shown == ["s3a://logs/fleet", "s3a://logs/fleet", "s3a://logs/a@b", "/logs/a?b@c"]


def test_nothing_to_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="contains no rejection log files"):
        find([str(tmp_path)])
    with pytest.raises(StartError, match="missing: no such file or folder"):
        find([str(tmp_path / "missing")])
    with pytest.raises(StartError, match="no match"):
        find([str(tmp_path / "*.x")])


_NOV_21_S = 1_795_219_200
_DAY_S = 86_400


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("2026-11-21/a.jsonl", True),
        ("2026-11-20/a.jsonl", True),
        ("2026-11-19/a.jsonl", False),
        ("2026-11-23/a.jsonl.gz", False),
        ("dt=2026-11-19/hour=07/a.jsonl", False),
        ("2026-11-21/eu-2026-11-01.jsonl", True),
        # The last date counts. An impossible date does not.
        ("2025-01-01/2026-11-21/a.jsonl", True),
        ("2026-02-31/a.jsonl", True),
    ],
)
def test_of_a_period_files_of_other_days_are_left_out(tmp_path: Path, name: str, is_read: bool) -> None:  # noqa: FBT001 - expected
    _write(tmp_path / "2026-11-01" / "logs" / "other.jsonl")
    file = _write(tmp_path / "2026-11-01" / "logs" / name)
    # Named folders say nothing about the time of their records.
    found = find([str(tmp_path / "2026-11-01" / "logs")], _NOV_21_S, _NOV_21_S + _DAY_S)
    assert (str(file) in _paths(found)) is is_read
    assert found.outside == (not is_read)
    assert len(_paths(find([str(tmp_path)]))) == 2


def test_files_that_were_last_written_before_the_period_are_left_out(tmp_path: Path) -> None:
    # An hour is allowed for clocks that differ.
    for name, at_s in (
        ("old.jsonl", _NOV_21_S - 3601),
        ("clocks.jsonl", _NOV_21_S - 3599),
        ("new.jsonl", _NOV_21_S + 9),
    ):
        os.utime(_write(tmp_path / name), (at_s, at_s))
    found = find([str(tmp_path)], _NOV_21_S, None)
    assert [Path(path).name for path in _paths(found)] == ["clocks.jsonl", "new.jsonl"]
    assert found.outside == 1
    # Later files may contain earlier records.
    assert len(_paths(find([str(tmp_path)], None, _NOV_21_S - 10 * _DAY_S))) == 3


def test_files_that_have_gone_are_named(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl")
    found = find([str(tmp_path)])
    file.unlink()
    assert found.vanished() == [SkippedInput(str(file), "was deleted while being read")]
    assert found.spark_paths(packed=False) == []


@pytest.mark.parametrize(
    ("log", "address"),
    [
        ("s3a://logs", "s3a://logs/"), ("s3a://logs/", "s3a://logs/"), ("s3a://b/logs//", "s3a://b/logs"),
        ("file:///logs", "file:///logs"),
    ],
)  # fmt: skip
def test_spark_lists_addresses(log: str, address: str) -> None:
    session = MagicMock()
    reader = session.read.format.return_value.option.return_value.option.return_value
    row = {"path": "file:/logs/a%20b c.jsonl", "length": 10, "written_ms": _NOV_21_S * 1000}
    reader.load.return_value.selectExpr.return_value.collect.return_value = [row]
    found = find([log, log], session=session)
    assert found.files == (File("/logs/a%20b c.jsonl", 10, _NOV_21_S),)
    # Without the slash, it would be a folder named after the bucket.
    reader.load.assert_called_with(address)
    with pytest.raises(StartError, match="found 1 log file, but none for the requested period; check --since"):
        find([log, log], since_s=_NOV_21_S + _DAY_S, session=session)


@pytest.mark.parametrize(
    ("offsets_s", "ahead_s"),
    [
        # The last record of each of four files, ten minutes apart, after the file's time.
        ([10_800] * 4, 10_800),
        ([-10_800] * 4, -10_800),
        ([-60, -90, -60, -70], None),
        # Copied hours later.
        ([-10_800, -10_200, -9_600, -9_000], None),
        ([-10_800], None),
        # One record is later than its file.
        ([-10_800, -10_200, -9_600, 900], 900),
    ],
)
def test_clocks_that_differ_from_those_of_files_are_named(
    tmp_path: Path, offsets_s: list[int], ahead_s: int | None
) -> None:
    for at, offset_s in enumerate(offsets_s):
        file = _write(tmp_path / f"a{at}.jsonl", b'{"at_s":1}\n{"instance":"a","at_s":%d}\n' % (_NOV_21_S + 600 * at))
        os.utime(file, (0, _NOV_21_S + 600 * at - offset_s))
    # Pods that came and went, and a file without records.
    for at in range(3):
        file = _write(tmp_path / f"b{at}.jsonl", b'{"instance":"b-%d","at_s":%d}' % (at, _NOV_21_S + at * 9000))
        os.utime(file, (0, _NOV_21_S + at * 9000 + 20))
    _write(tmp_path / "c.jsonl", b'{"instance":"c","at_s":1e99}')
    _write(tmp_path / "d.jsonl.gz", b"{}")
    found = {each["instance"]: each["ahead_s"] for each in clocks(find([str(tmp_path)]).files)}
    assert found == ({} if ahead_s is None else {"a": ahead_s})
