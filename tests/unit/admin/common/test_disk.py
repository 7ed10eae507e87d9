from pathlib import Path

from admin.common.disk import replace_durably


def test_a_file_is_not_written_through_a_link_beside_it(tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / "file"
    other.write_bytes(b"precious")
    (tmp_path / "file.new").symlink_to(other)
    replace_durably(file, [b"one", b", two"])
    assert (file.read_bytes(), file.is_symlink(), other.read_bytes()) == (b"one, two", False, b"precious")
    assert sorted(tmp_path.iterdir()) == [file, other]
