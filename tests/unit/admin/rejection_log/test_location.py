import errno
import os
from pathlib import Path

import pytest

from admin.common.errors import StartError
from admin.config.settings import RejectionLogSettings
from admin.rejection_log.location import LogPlace, of, prepare


def test_it_is_in_the_state_directory_unless_configured_otherwise(tmp_path: Path) -> None:
    assert of(RejectionLogSettings(), tmp_path) == LogPlace(tmp_path / "rejections", given=False)
    assert of(RejectionLogSettings(dir=str(tmp_path / "x")), None) == LogPlace(tmp_path / "x", given=True)
    assert of(RejectionLogSettings(dir="off"), tmp_path) == LogPlace(None, given=True)
    nowhere = of(RejectionLogSettings(), None)
    assert (nowhere.directory, nowhere.given) == (None, False)
    assert nowhere.why is not None
    assert prepare(nowhere) == (None, nowhere.why)
    assert prepare(LogPlace(None, given=True)) == (None, None)


def test_a_folder_is_made(tmp_path: Path) -> None:
    assert prepare(LogPlace(tmp_path / "a" / "b", given=True)) == (tmp_path / "a" / "b", None)
    assert (tmp_path / "a" / "b").is_dir()


def test_a_full_disk_is_a_warning_and_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    place = tmp_path / "x"
    assert prepare(LogPlace(place, given=True)) == (place, f"{place}: there is no space left on the disk")


@pytest.mark.parametrize("name", ["file", "file/below", "nul\0"])
def test_a_given_folder_that_cannot_be_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"rejection_log\.dir .*(file|nul)"):
        prepare(LogPlace(tmp_path / name, given=True))


def test_a_given_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StartError, match="it may not be written; make it writable"):
        prepare(LogPlace(tmp_path, given=True))


def test_a_usual_folder_that_cannot_be_switches_the_log_off_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "rejections").write_text("")
    assert prepare(of(RejectionLogSettings(), tmp_path)) == (
        None,
        f"{tmp_path}/rejections: there is a file of that name; give rejection_log.dir",
    )
