import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from admin.common.errors import StartError
from admin.config import folders
from admin.config.folders import Folder
from admin.config.settings import RejectionLogSettings, SpoolSettings
from admin.config.sources import Flags, load

Make = Callable[[Folder], Folder]
BOTH = pytest.mark.parametrize("make", [folders.make_rejections, folders.make_spool])


@pytest.mark.parametrize(
    ("listen", "environ", "found"),
    [
        ("127.0.0.1:1", {"STATE_DIRECTORY": "/srv:/x"}, Folder(Path("/srv/127.0.0.1-1"))),
        ("[::1]:2", {"STATE_DIRECTORY": "/srv"}, Folder(Path("/srv/__1-2"))),
        ("127.0.0.1:1", {"SLUICE_STATE_DIR": "/own"}, Folder(Path("/own"), given=True)),
        ("127.0.0.1:1", {"SLUICE_STATE_DIR": "off"}, Folder(None, given=True)),
    ],
)
def test_the_state_directory_is_named_after_the_first_listener(
    listen: str, environ: dict[str, str], found: Folder
) -> None:
    flags = Flags(listen=[listen], broker=["127.0.0.1:9"])
    assert folders.state_dir(load(None, environ, flags).settings, environ) == found


def test_a_port_that_the_system_chooses_names_no_state_directory() -> None:
    flags = Flags(listen=["127.0.0.1:0"], broker=["127.0.0.1:9"])
    found = folders.state_dir(load(None, {}, flags).settings, {})
    assert (found.path, "set --state-dir" in found.why) == (None, True)


def test_folders_are_in_the_state_directory_unless_configured_otherwise(tmp_path: Path) -> None:
    assert folders.spool(SpoolSettings(), tmp_path) == Folder(tmp_path / "spool")
    assert folders.rejections(RejectionLogSettings(), tmp_path) == Folder(tmp_path / "rejections")
    assert folders.spool(SpoolSettings(dir="/x"), None) == Folder(Path("/x"), given=True)
    assert folders.spool(SpoolSettings(dir="off"), tmp_path) == Folder(None, given=True)
    nowhere = folders.spool(SpoolSettings(), None)
    assert nowhere == Folder(None, why="there is no state directory; set spool.dir")
    assert folders.make_spool(nowhere) == nowhere


@pytest.mark.parametrize(("make", "mode"), [(folders.make_rejections, 0o750), (folders.make_spool, 0o700)])
def test_a_folder_is_made(tmp_path: Path, make: Make, mode: int) -> None:
    folder = Folder(tmp_path / "a" / "b", given=True)
    assert make(folder) == folder
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == mode


@BOTH
@pytest.mark.parametrize("name", ["file", "file/below", "nul\0"])
def test_a_configured_folder_that_cannot_be_is_an_error_that_names_it(tmp_path: Path, make: Make, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"(spool|rejection_log)\.dir .*(file|nul)"):
        make(Folder(tmp_path / name, given=True))


@BOTH
def test_an_unwritable_folder_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StartError, match=r"\.dir /.*: it is not writable; make it writable for this user"):
        make(Folder(tmp_path, given=True))
    default = make(Folder(tmp_path))
    assert (default.path, default.why.partition(";")[0]) == (None, f"{tmp_path}: it is not writable")


def test_a_full_disk_lets_a_sidecar_start_and_only_the_log_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    folder, why = Folder(tmp_path, given=True), f"{tmp_path}: there is no space left on the disk"
    assert folders.make_rejections(folder) == Folder(tmp_path, given=True, why=why)
    assert folders.make_spool(folder) == Folder(None, given=True, why=why)
