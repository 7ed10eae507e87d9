import gzip
import os
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from admin.analytics.inputs import Found, SetAside, find
from admin.common.errors import StartError


def _paths(found: Found) -> tuple[str, ...]:
    return tuple(file.path for file in found.files)


def _write(file: Path, content: bytes = b"{}\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_a_folder_is_read_with_all_in_it(tmp_path: Path) -> None:
    wanted = [_write(tmp_path / "a.jsonl"), _write(tmp_path / "deep" / "er" / "b.jsonl.gz", gzip.compress(b"{}\n"))]
    _write(tmp_path / "notes.txt")
    found = find([str(tmp_path)])
    assert _paths(found) == tuple(map(str, wanted))
    assert found.size_bytes == sum(file.stat().st_size for file in wanted)
    assert found.skipped == ()


def test_what_is_hidden_is_not_there(tmp_path: Path) -> None:
    wanted = _write(tmp_path / "a.jsonl")
    for name in (".b.jsonl.open", ".c.jsonl", "_d.jsonl", ".hidden/e.jsonl", "_records/f.jsonl"):
        _write(tmp_path / name)
    assert _paths(find([str(tmp_path)])) == (str(wanted),)


def test_a_file_that_is_named_twice_is_read_once_and_may_be_called_anything(tmp_path: Path) -> None:
    file, copied = _write(tmp_path / "a.jsonl"), _write(tmp_path / "copied.log")
    logs = [str(file), str(copied), str(tmp_path), str(tmp_path / "*.jsonl"), "s3a://logs/fleet"]
    assert _paths(find(logs)) == (str(file), str(copied))


def test_links_to_folders_are_followed_and_a_loop_of_them_ends(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere" / "a.jsonl")
    (tmp_path / "elsewhere" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "linked.jsonl").symlink_to(tmp_path / "elsewhere")
    assert _paths(find([str(tmp_path / "logs")])) == (str(tmp_path / "logs" / "linked.jsonl" / "a.jsonl"),)


def test_what_cannot_be_read_is_set_aside_and_the_rest_is_read(tmp_path: Path) -> None:
    good = _write(tmp_path / "good.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    found = find([str(tmp_path), str(tmp_path / "missing")])
    assert _paths(found) == (str(good),)
    assert {Path(each.file).name: each.reason for each in found.skipped} == {
        "link.jsonl": "cannot be read: no such file or directory",
        "missing": "no such file or folder",
        "pipe.jsonl": "cannot be read: is no regular file",
        "self.jsonl": "cannot be read: too many levels of symbolic links",
    }


def test_nothing_to_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no file of a rejection log in it"):
        find([str(tmp_path)])
    with pytest.raises(StartError, match="missing: no such file or folder"):
        find([str(tmp_path / "missing")])
    with pytest.raises(StartError, match="no match"):
        find([str(tmp_path / "*.x")])


def test_no_character_of_a_name_means_anything_to_spark(tmp_path: Path) -> None:
    _write(tmp_path / "a{b}[c]*?.jsonl")
    _write(tmp_path / "d.jsonl.gz")
    found = find([str(tmp_path)])
    assert found.spark_paths(packed=False) == [rf"file://{tmp_path}/a\{{b\}}\[c\]\*\?.jsonl"]
    assert found.spark_paths(packed=True) == [f"file://{tmp_path}/d.jsonl.gz"]


_NOV_21_S = 1_795_219_200
_DAY_S = 86_400


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("2026-11-21/a.jsonl", True),
        ("2026-11-20/a.jsonl", True),
        ("2026-11-22/a.jsonl", True),
        ("2026-11-19/a.jsonl", False),
        ("2026-11-23/a.jsonl.gz", False),
        ("dt=2026-11-19/hour=07/a.jsonl", False),
        ("2026-11-21/eu-2026-11-01.jsonl", True),
        # The last date counts. Neither an impossible date nor a part of a larger number does.
        ("2025-01-01/2026-11-21/a.jsonl", True),
        ("2026-02-31/a.jsonl", True),
        ("12026-11-19/a.jsonl", True),
        ("1999-11-19/a.jsonl", True),
        ("a.jsonl", True),
    ],
)
def test_of_a_period_files_of_other_days_are_left_out(tmp_path: Path, name: str, is_read: bool) -> None:  # noqa: FBT001 - expected
    _write(tmp_path / "2026-11-01" / "logs" / "other.jsonl")
    file = _write(tmp_path / "2026-11-01" / "logs" / name)
    # What was named says nothing of when its records are of.
    found = find([str(tmp_path / "2026-11-01" / "logs")], _NOV_21_S, _NOV_21_S + _DAY_S)
    assert (str(file) in _paths(found)) is is_read
    assert found.outside == (not is_read)
    assert len(_paths(find([str(tmp_path)]))) == 2


@pytest.mark.parametrize(("since_s", "until_s"), [(_NOV_21_S, None), (None, _NOV_21_S), (None, None)])
def test_a_period_may_be_open(tmp_path: Path, since_s: int | None, until_s: int | None) -> None:
    for day in ("2026-11-01", "2026-12-01"):
        _write(tmp_path / day / "a.jsonl")
    days = [Path(path).parent.name for path in _paths(find([str(tmp_path)], since_s, until_s))]
    assert days == ["2026-11-01"] * (since_s is None) + ["2026-12-01"] * (until_s is None)


def test_files_that_were_last_written_before_the_period_are_left_out(tmp_path: Path) -> None:
    # An hour is left for clocks that differ.
    for name, at_s in (
        ("old.jsonl", _NOV_21_S - 3601),
        ("clocks.jsonl", _NOV_21_S - 3599),
        ("new.jsonl", _NOV_21_S + 9),
    ):
        os.utime(_write(tmp_path / name), (at_s, at_s))
    found = find([str(tmp_path)], _NOV_21_S, None)
    assert [Path(path).name for path in _paths(found)] == ["clocks.jsonl", "new.jsonl"]
    assert found.outside == 1
    # What comes later may be of any time before.
    assert len(_paths(find([str(tmp_path)], None, _NOV_21_S - 10 * _DAY_S))) == 3


def test_nothing_of_the_period_says_so(tmp_path: Path) -> None:
    _write(tmp_path / "2026-11-01" / "a.jsonl")
    with pytest.raises(StartError, match="1 file of the log, by date none in the period"):
        find([str(tmp_path)], _NOV_21_S, None)


def test_files_that_have_gone_are_named(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl")
    found = find([str(tmp_path)])
    file.unlink()
    assert found.vanished() == [SetAside(str(file), "vanished while it was read")]
    assert found.spark_paths(packed=False) == []


_WRITTEN_S = 1_800_000_000


def _listing(listings: dict[str, list[str]]) -> Any:
    """Return a session that lists these files at each address, and its reader."""
    session = MagicMock()
    reader = session.read.format.return_value.option.return_value.option.return_value
    reader.load.side_effect = lambda address: MagicMock(
        **{
            "selectExpr.return_value.collect.return_value": [
                {"path": path, "length": 10, "written_ms": _WRITTEN_S * 1000} for path in listings[address]
            ]
        }
    )
    return session, reader


def _found_at(session: Any, *logs: str, **period: int) -> list[str]:
    return [file.path for file in find(logs, **period, session=session).files]


def test_a_file_at_two_addresses_is_read_once() -> None:
    files = ["s3a://b/logs/x.jsonl", "s3a://b/logs/a/y.jsonl"]
    session, _ = _listing({"s3a://b/logs": files, "s3a://b/logs/a": files[1:]})
    listed = ["s3a://b/logs/a/y.jsonl", "s3a://b/logs/x.jsonl"]
    assert _found_at(session, "s3a://b/logs", "s3a://b/logs/a/") == listed
    assert _found_at(session, "s3a://b/logs/a/", "s3a://b/logs") == listed


@pytest.mark.parametrize(
    ("log", "address"),
    [
        ("s3a://logs", "s3a://logs/"),
        ("s3a://logs/", "s3a://logs/"),
        ("s3a://b/logs//", "s3a://b/logs"),
        ("file:///logs", "file:///logs"),
    ],
)
def test_a_whole_bucket_ends_with_a_slash_and_a_folder_without(log: str, address: str) -> None:
    # Without one it would be the folder of the user in it.
    session, reader = _listing({address: ["s3a://logs/x.jsonl"]})
    assert _found_at(session, log) == ["s3a://logs/x.jsonl"]
    reader.load.assert_called_once_with(address)


def test_files_of_this_machine_are_what_they_are_by_any_name() -> None:
    session, _ = _listing({"file:///logs": ["file:/logs/a%20b c.jsonl"]})
    assert _found_at(session, "file:///logs") == ["/logs/a%20b c.jsonl"]


def test_a_file_outside_of_the_period_is_left_out_and_counted_once() -> None:
    files = ["s3a://b/logs/x.jsonl"]
    session, _ = _listing({"s3a://b/logs": files, "s3a://b/": files})
    with pytest.raises(StartError, match="1 file of the log, by date none in the period"):
        _found_at(session, "s3a://b/logs", "s3a://b", since_s=_WRITTEN_S + 86_400)
