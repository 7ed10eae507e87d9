import errno
import os
from pathlib import Path

import pytest

from admin.common.errors import StartError
from admin.config.settings import RejectionLogSettings
from admin.rejection_log.folder import Folder
from admin.rejection_log.places import LogPlace, of, take


def test_it_is_in_the_state_directory_unless_said_otherwise(tmp_path: Path) -> None:
    assert of(RejectionLogSettings(), tmp_path) == LogPlace(tmp_path / "rejections", given=False)
    assert of(RejectionLogSettings(dir=str(tmp_path / "x")), None) == LogPlace(tmp_path / "x", given=True)
    assert of(RejectionLogSettings(dir="off"), tmp_path) == LogPlace(None, given=True)
    nowhere = of(RejectionLogSettings(), None)
    assert (nowhere.directory, nowhere.given) == (None, False)
    assert nowhere.why is not None
    assert take(nowhere) == (None, nowhere.why)
    assert take(LogPlace(None, given=True)) == (None, None)


def test_a_folder_is_made_and_taken(tmp_path: Path) -> None:
    folder, problem = take(LogPlace(tmp_path / "a" / "b", given=True))
    assert folder is not None
    assert (folder.held, problem) == (True, None)


def test_a_folder_in_use_is_a_warning_and_tried_again_later(tmp_path: Path) -> None:
    first = Folder(tmp_path)
    first.take()
    second, problem = take(LogPlace(tmp_path, given=True))
    assert second is not None
    assert not second.held
    assert problem == f"{tmp_path}: is in use by another process; give each sidecar a rejection_log.dir of its own"


def test_a_full_disk_is_a_warning_and_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    folder, problem = take(LogPlace(tmp_path, given=True))
    assert folder is not None
    assert problem == f"{tmp_path}: there is no space left on the disk"


@pytest.mark.parametrize("name", ["file", "file/below", "nul\0"])
def test_a_given_folder_that_cannot_be_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"rejection_log\.dir .*(file|nul)"):
        take(LogPlace(tmp_path / name, given=True))


def test_a_usual_folder_that_cannot_be_switches_the_log_off_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "rejections").write_text("")
    folder, problem = take(of(RejectionLogSettings(), tmp_path))
    assert folder is None
    assert problem == f"{tmp_path}/rejections: there is a file of that name; give rejection_log.dir"


def test_that_the_process_before_is_still_there_is_no_problem(tmp_path: Path) -> None:
    Folder(tmp_path).take()
    folder, problem = take(LogPlace(tmp_path, given=True), predecessor=True)
    assert folder is not None
    assert (folder.held, problem) == (False, None)
