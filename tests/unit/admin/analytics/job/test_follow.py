"""What can be followed, and what a directory says that belongs to something else; all before Spark reads a line."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from admin.analytics.job.follow import sources
from admin.analytics.staging import VERSION, Followed, Staging
from admin.common.errors import SettingsError, StartError

NO_SPARK: Any = None


def staging(out: Path) -> Staging:
    out.mkdir(exist_ok=True)
    return Staging(NO_SPARK, out)


def test_folders_patterns_and_addresses_are_followed_in_an_order_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    given = ["s3a://bucket/logs/", str(tmp_path / "a"), str(tmp_path / "a" / "..") + "/a", str(tmp_path / "?")]
    assert sources(given) == tuple(sorted([str(tmp_path / "a"), str(tmp_path / "?"), "s3a://bucket/logs"]))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("file.jsonl", "is a file, and only folders are followed"),
        ("missing", "no such folder"),
        ("x*", "no folder is named like that yet"),
    ],
)
def test_what_is_no_folder_is_named(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "file.jsonl").touch()
    with pytest.raises(SettingsError, match=what):
        sources([str(tmp_path / name)])


def test_directory_that_follows_other_logs_says_which(tmp_path: Path) -> None:
    staging(tmp_path / "out").open(["/logs/a"])
    assert staging(tmp_path / "out").open(["/logs/a"]).logs == ("/logs/a",)
    with pytest.raises(StartError, match="follows /logs/a, not /logs/b; choose another"):
        staging(tmp_path / "out").open(["/logs/b"])


def test_directory_of_another_version_says_so(tmp_path: Path) -> None:
    staging(tmp_path / "out").note(Followed(version=VERSION + 1, logs=("/logs",)))
    with pytest.raises(StartError, match=f"layout {VERSION + 1}, this one has {VERSION}"):
        staging(tmp_path / "out").open(["/logs"])


@pytest.mark.parametrize("lost", ["_follow.json", "_checkpoint"])
def test_directory_that_has_lost_a_part_is_not_made_worse(tmp_path: Path, lost: str) -> None:
    out = tmp_path / "out"
    staging(out).open(["/logs"])
    for part in ("_checkpoint", "_records"):
        (out / part).mkdir()
    path = out / lost
    path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(StartError, match=rf"{lost}: is missing beside .* to read all logs again"):
        staging(out).open(["/logs"])


def test_damaged_note_is_named(tmp_path: Path) -> None:
    (tmp_path / "_follow.json").write_bytes(b"{")
    with pytest.raises(StartError, match="is damaged"):
        staging(tmp_path).open(["/logs"])


def test_what_killed_jobs_left_is_removed_and_the_rest_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    records = out / "_records"
    staging(out).open(["/logs"])
    for number in range(5):
        (out / "_checkpoint" / "commits").mkdir(parents=True, exist_ok=True)
        (out / "_checkpoint" / "commits" / str(number)).touch()
    kept = [records / "day=2026-11-21" / "upto=3", records / "batch=4" / "dt=2026-11-21", records / "batch=5"]
    gone = [
        records / "day=2026-11-21" / "upto=1",
        records / "batch=3" / "dt=2026-11-21",
        records / ".compacting" / "part",
    ]
    for path in (*kept, *gone):
        path.mkdir(parents=True)
    staging(out).open(["/logs"])
    assert [path.exists() for path in (*kept, *gone)] == [True] * 3 + [False] * 3
    assert not (records / "batch=3").exists()


def test_newest_second_is_that_as_of_a_batch(tmp_path: Path) -> None:
    here = staging(tmp_path)
    assert here.newest(7) == {}
    for batch in range(20):
        here.note_newest(batch, {"a": batch})
    assert here.newest(18) == {"a": 18}
    assert here.newest(99) == {"a": 19}
    assert msgspec.json.decode((tmp_path / "_newest" / "19.json").read_bytes()) == {"a": 19}
    assert not (tmp_path / "_newest" / "0.json").exists()
