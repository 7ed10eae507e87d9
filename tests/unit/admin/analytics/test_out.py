from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.analytics.out import locked, write_file
from admin.common.errors import StartError


def test_one_report_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "out"),
        pytest.raises(StartError, match="another report is writing"),
        locked(tmp_path / "out"),
    ):
        pass
    with locked(tmp_path / "out"):
        pass


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StartError, match=r"file/out: cannot be used: .*; choose another"),
        locked(tmp_path / "file" / "out"),
    ):
        pass


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "report.html"
    write_file(file, [b"one"])
    assert file.stat().st_mode & 0o777 == 0o644

    def pieces() -> Iterator[bytes]:
        yield b"half"
        assert file.read_bytes() == b"one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_file(file, pieces())
    assert file.read_bytes() == b"one"
    write_file(file, [b"an", b"other"])
    assert file.read_bytes() == b"another"
    assert list(file.parent.iterdir()) == [file]


def test_a_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(StartError, match=r"^/dev/full/report.html: cannot be written: there is a file of that name$"):
        write_file(Path("/dev/full/report.html"), [b""])
