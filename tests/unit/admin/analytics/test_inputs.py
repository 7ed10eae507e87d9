import gzip
import os
from pathlib import Path

import pytest

from admin.analytics.findings import SetAside
from admin.analytics.inputs import find
from admin.common.errors import StartError


def _write(file: Path, content: bytes = b"{}\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_a_folder_is_read_with_all_in_it(tmp_path: Path) -> None:
    wanted = [_write(tmp_path / "a.jsonl"), _write(tmp_path / "deep" / "er" / "b.jsonl.gz", gzip.compress(b"{}\n"))]
    _write(tmp_path / "notes.txt")
    found = find([str(tmp_path)])
    assert found.paths == tuple(map(str, wanted))
    assert found.size_bytes == sum(file.stat().st_size for file in wanted)
    assert found.skipped == ()


def test_what_is_hidden_is_not_there(tmp_path: Path) -> None:
    wanted = _write(tmp_path / "a.jsonl")
    for name in (".b.jsonl.open", ".c.jsonl", "_d.jsonl", ".hidden/e.jsonl", "_records/f.jsonl"):
        _write(tmp_path / name)
    assert find([str(tmp_path)]).paths == (str(wanted),)


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl")
    assert find([str(file), str(tmp_path), str(tmp_path / "*.jsonl")]).paths == (str(file),)


def test_a_file_that_is_named_may_be_called_anything(tmp_path: Path) -> None:
    file = _write(tmp_path / "copied.log")
    assert find([str(file)]).paths == (str(file),)


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    _write(tmp_path / "a" / "a.jsonl")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    assert len(find([str(tmp_path)]).paths) == 1


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere" / "a.jsonl")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "linked").symlink_to(tmp_path / "elsewhere")
    assert find([str(tmp_path / "logs")]).paths == (str(tmp_path / "logs" / "linked" / "a.jsonl"),)


def test_what_cannot_be_read_is_set_aside_and_the_rest_is_read(tmp_path: Path) -> None:
    good = _write(tmp_path / "good.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    found = find([str(tmp_path), str(tmp_path / "missing")])
    assert found.paths == (str(good),)
    assert {Path(each.file).name: each.reason for each in found.skipped} == {
        "link.jsonl": "is a link to nothing",
        "missing": "no such file or folder",
        "pipe.jsonl": "is no regular file",
        "self.jsonl": "cannot be read: too many levels of symbolic links",
    }


def test_a_folder_that_is_called_like_a_file_is_a_folder(tmp_path: Path) -> None:
    inner = _write(tmp_path / "folder.jsonl" / "a.jsonl")
    assert find([str(tmp_path)]).paths == (str(inner),)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(b"{}\n" * 1000)[:-20], "ends in the middle; what is there was read"),
        (b"no gzip at all", "is no gzip, or damaged; what is before the damage was read"),
    ],
    ids=["cut", "junk"],  # a gzip holds the time of its making, and each worker would give the test another name
)
def test_a_damaged_gzip_is_read_as_far_as_it_goes_and_said(tmp_path: Path, content: bytes, reason: str) -> None:
    file = _write(tmp_path / "a.jsonl.gz", content)
    found = find([str(tmp_path)])
    assert found.paths == (str(file),)
    assert found.skipped == (SetAside(file=str(file), reason=reason),)


def test_several_gzips_in_one_file_are_whole(tmp_path: Path) -> None:
    _write(tmp_path / "a.jsonl.gz", gzip.compress(b"{}\n") + gzip.compress(b"{}\n"))
    assert find([str(tmp_path)]).skipped == ()


def test_nothing_to_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no file of a rejection log in it"):
        find([str(tmp_path)])
    with pytest.raises(StartError, match="missing: no such file or folder"):
        find([str(tmp_path / "missing")])
    with pytest.raises(StartError, match="nothing is named like that"):
        find([str(tmp_path / "*.x")])


def test_addresses_are_left_to_spark() -> None:
    found = find(["s3a://logs/fleet/", "s3a://logs/fleet"])
    assert found.addresses == ("s3a://logs/fleet",)
    assert found.paths == ()


def test_no_character_of_a_name_means_anything_to_spark(tmp_path: Path) -> None:
    _write(tmp_path / "a{b}[c]*?.jsonl")
    assert find([str(tmp_path)]).spark_paths() == [rf"file://{tmp_path}/a\{{b\}}\[c\]\*\?.jsonl"]


def test_files_that_have_gone_are_named(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.jsonl")
    found = find([str(tmp_path)])
    file.unlink()
    assert found.vanished() == [SetAside(file=str(file), reason="vanished while it was read")]
