import errno
import os
from pathlib import Path

import pytest

from admin.common.errors import StartError
from admin.config.settings import SpoolSettings
from admin.run.spool_dir import SpoolDir, of, prepare, unspooled
from limiter.rules.rule import Rule
from limiter.rules.rule_set import RuleSet


def test_it_is_in_the_state_directory_unless_said_otherwise(tmp_path: Path) -> None:
    assert of(SpoolSettings(), tmp_path) == SpoolDir(tmp_path / "spool", given=False)
    assert of(SpoolSettings(dir=str(tmp_path / "x")), None) == SpoolDir(tmp_path / "x", given=True)
    assert of(SpoolSettings(dir="off"), tmp_path) == SpoolDir(None, given=True)
    nowhere = of(SpoolSettings(), None)
    assert nowhere == SpoolDir(None, given=False, why="there is no state directory; give spool.dir")
    assert prepare(nowhere) == nowhere


def test_the_folder_is_made_for_its_user_only(tmp_path: Path) -> None:
    place = SpoolDir(tmp_path / "a" / "b", given=True)
    assert prepare(place) == place
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["file", "file/below", "nul\0"])
def test_a_given_folder_that_cannot_be_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"spool\.dir .*(file|nul)"):
        prepare(SpoolDir(tmp_path / name, given=True))


def test_one_that_may_not_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StartError) as caught:
        prepare(SpoolDir(tmp_path, given=True))
    what = 'make it writable for this user, choose another folder, or "off" to hold in memory only'
    assert caught.value.lines == (f"spool.dir {tmp_path}: it may not be written; {what}",)
    assert prepare(SpoolDir(tmp_path, given=False)) == SpoolDir(
        None, given=False, why=f"{tmp_path}: it may not be written; give spool.dir"
    )


def test_a_full_disk_keeps_nobody_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    place = prepare(SpoolDir(tmp_path, given=True))
    assert place == SpoolDir(None, given=True, why=f"{tmp_path}: there is no space left on the disk")


def test_rules_that_would_put_something_aside_are_named_where_there_is_no_spool(tmp_path: Path) -> None:
    rules = RuleSet(
        (
            Rule("topic", "a", 5, action="delay", spool=True),
            Rule("topic", "b", 5, action="delay"),
            Rule("topic", "c", 5, spool=True),
            *(Rule("topic", f"x{number}", 5, action="delay", spool=True) for number in range(6)),
        )
    )
    assert unspooled(rules, SpoolDir(tmp_path, given=False)) == []
    assert unspooled(RuleSet(()), SpoolDir(None, given=True)) == []
    assert unspooled(rules, SpoolDir(None, given=True)) == [
        (
            "topic:a, topic:x0, topic:x1, topic:x2, topic:x3 and 2 more: spool = true, but there is no spool"
            ' (spool.dir = "off"): what waits is in memory'
        )
    ]
