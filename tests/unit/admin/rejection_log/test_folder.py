import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.common.disk import LockedError
from admin.rejection_log.folder import Folder, finished_name, new_run, open_name, slug_of, write_ahead_name

RUN = "0123456789ab"


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("_usual_umask")
def test_what_is_missing_is_made_private(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a" / "b")
    folder.take()
    assert (mode(tmp_path / "a"), mode(folder.path), mode(folder.path / ".lock")) == (0o750, 0o750, 0o640)


@pytest.mark.usefixtures("_usual_umask")
def test_what_vanished_is_made_again_as_private_as_it_was(tmp_path: Path) -> None:
    state, folder = tmp_path / "sluice" / "state", Folder(tmp_path / "sluice" / "state" / "rejections")
    state.parent.mkdir(mode=0o711)
    state.mkdir(mode=0o700)
    folder.path.mkdir(mode=0o700)
    folder.take()
    shutil.rmtree(state.parent)
    assert not folder.held
    folder.take()
    assert [mode(each) for each in (state.parent, state, folder.path)] == [0o711, 0o700, 0o700]
    assert folder.held


def test_a_lock_that_was_removed_is_not_held_any_more(tmp_path: Path) -> None:
    folder, other = Folder(tmp_path), Folder(tmp_path)
    folder.take()
    with pytest.raises(LockedError):
        other.take()
    (tmp_path / ".lock").unlink()
    assert not folder.held
    other.take()
    assert (folder.held, other.held) == (False, True)
    with pytest.raises(LockedError):
        folder.take()


@pytest.mark.parametrize(
    ("instance", "slug"),
    [("broker-a:10911", "broker-a-10911"), ("../../x y", "x-y"), ("\u00e4\n", "sluice"), ("a" * 300, "a" * 100)],
)
def test_an_instance_becomes_a_name_of_files(instance: str, slug: str) -> None:
    assert slug_of(instance) == slug
    name = finished_name(f"rejections-{slug}-{RUN}-000007.jsonl")
    assert name == (slug, RUN, 7)
    assert (open_name(name.open), write_ahead_name(name.write_ahead)) == (name, name._replace(number=0))


@pytest.mark.parametrize(
    "name", ["x.jsonl", f"rejections-a-{RUN}-1.jsonl", "rejections-a-XYZ-000001.jsonl", ".lock", ""]
)
def test_other_names_are_nobodys(name: str) -> None:
    assert finished_name(name) is None
    assert open_name(f".{name}.open") is None
    assert write_ahead_name(name) is None
    assert finished_name(f"rejections-a-b-{RUN}-1234567.jsonl.gz") == ("a-b", RUN, 1234567)


def test_runs_have_names_that_files_can_have_and_each_its_own() -> None:
    runs = {new_run() for _ in range(100)}
    assert len(runs) == 100
    assert all(finished_name(f"rejections-a-{run}-000001.jsonl") for run in runs)
