from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from admin.config.sources import Flags, load
from admin.edits.model import Author, ReloadError
from admin.edits.service import EditService
from admin.edits.store import MemoryStore
from admin.http.auth import Keyring
from admin.run import reload
from admin.run.composition import Plan, compose

Make = Callable[[str], reload.Reloader]
SOMEBODY = Author("ada")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a reloader of a file, which a test then writes anew."""

    def reloader(text: str) -> reload.Reloader:
        file = tmp_path / "sluice.toml"
        file.write_text(text, encoding="utf-8")

        def plan() -> Plan:
            return compose(load(str(file), {}, Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])))

        first = plan()
        return reload.Reloader(plan, first, EditService(first.rulebook, MemoryStore()), Keyring(first.access))

    return reloader


def shown(reloader: reload.Reloader | None) -> list[str]:
    return [line for family in reload.families(reloader) for line in family.texts]


async def test_whether_the_configuration_was_right_when_last_read_is_a_metric(make: Make, tmp_path: Path) -> None:
    reloader = make("grace_s = 1")
    assert shown(reloader) == ["sluice_reload_ok 1.0\n"]
    (tmp_path / "sluice.toml").write_text("grace_s = -1", encoding="utf-8")
    with pytest.raises(ReloadError):
        await reloader(SOMEBODY, False)
    assert shown(reloader) == ["sluice_reload_ok 0.0\n"]
    (tmp_path / "sluice.toml").write_text("grace_s = 2", encoding="utf-8")
    await reloader(SOMEBODY, False)
    assert shown(reloader) == ["sluice_reload_ok 1.0\n"]


async def test_asking_what_would_change_is_no_reload(make: Make, tmp_path: Path) -> None:
    reloader = make("grace_s = 1")
    (tmp_path / "sluice.toml").write_text("grace_s = -1", encoding="utf-8")
    with pytest.raises(ReloadError):
        await reloader(SOMEBODY, True)
    assert reloader.failed is None
    with pytest.raises(ReloadError):
        await reloader(SOMEBODY, False)
    (tmp_path / "sluice.toml").write_text("grace_s = 1", encoding="utf-8")
    await reloader(SOMEBODY, True)
    assert reloader.failed is not None


def test_where_nothing_can_be_read_again_there_is_no_such_metric() -> None:
    assert shown(None) == []


async def test_a_reload_is_a_line_of_the_log_whoever_asked_for_it(make: Make, tmp_path: Path) -> None:
    reloader = make("grace_s = 1")
    (tmp_path / "sluice.toml").write_text("grace_s = -1", encoding="utf-8")
    author = Author("ada", "10.0.0.1:5")
    with structlog.testing.capture_logs() as logged:
        with pytest.raises(ReloadError):
            await reloader(author, True)
        assert logged == []
        with pytest.raises(ReloadError):
            await reloader(author, False)
        (tmp_path / "sluice.toml").write_text("grace_s = 1", encoding="utf-8")
        await reloader(author, False)
    wrong, right = logged
    assert (wrong["event"], wrong["by"], wrong["address"]) == (
        "configuration not reloaded: it is wrong, and nothing was changed",
        "ada",
        "10.0.0.1:5",
    )
    assert wrong["problems"][0].startswith(f"{tmp_path / 'sluice.toml'}:1: ")
    assert (right["event"], right["by"], right["changed"]) == ("configuration reloaded", "ada", [])


async def test_what_was_wrong_is_known_until_a_reload_succeeds(make: Make, tmp_path: Path) -> None:
    reloader = make("grace_s = 1")
    (tmp_path / "sluice.toml").write_text("grace_s = -1", encoding="utf-8")
    with pytest.raises(ReloadError):
        await reloader(SOMEBODY, False)
    assert reloader.failed is not None
    assert (reloader.failed.by, len(reloader.failed.problems)) == ("ada", 1)
    (tmp_path / "sluice.toml").write_text("grace_s = 1", encoding="utf-8")
    await reloader(SOMEBODY, False)
    assert reloader.failed is None
