from collections.abc import Callable
from pathlib import Path

import pytest

from admin import reload
from admin.auth import Keyring
from admin.composition import Plan, compose
from admin.live.desk import Desk
from admin.live.model import Author, ReloadError
from admin.live.store import MemoryStore
from admin.sources import Flags, load

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
        return reload.Reloader(plan, first, Desk(first.rulebook, MemoryStore()), Keyring(first.access))

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
    assert reloader.ok
    with pytest.raises(ReloadError):
        await reloader(SOMEBODY, False)
    (tmp_path / "sluice.toml").write_text("grace_s = 1", encoding="utf-8")
    await reloader(SOMEBODY, True)
    assert not reloader.ok


def test_where_nothing_can_be_read_again_there_is_no_such_metric() -> None:
    assert shown(None) == []
