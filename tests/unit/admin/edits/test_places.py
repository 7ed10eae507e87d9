from datetime import UTC, datetime
from pathlib import Path

import pytest

from admin.common.errors import StartError
from admin.config.addresses import Endpoint
from admin.edits import places
from admin.edits.places import Place

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LISTEN = Endpoint("127.0.0.1", 10911)


def test_a_given_directory_that_is_no_path_is_named() -> None:
    place = places.find("/tmp/a\0b", {}, LISTEN)
    with pytest.raises(StartError, match=r"a\\x00b.*is no path"):
        places.open_store(place, NOW)
    assert places.active_in(place) == ({}, "is no path: it has a character that none may have")


@pytest.mark.parametrize("name", ["edits.journal", "lock"])
def test_a_file_that_cannot_be_had_is_named(state_dir: Path, name: str) -> None:
    (state_dir / name).mkdir()
    with pytest.raises(StartError, match=f"{name}: is a directory"):
        places.open_store(Place(state_dir, given=True), NOW)
    kept = places.open_store(Place(state_dir, given=False), NOW)
    assert kept.directory is None
    assert kept.error is not None
    assert name in kept.error


def test_a_second_process_is_kept_out_even_of_a_usual_place(state_dir: Path) -> None:
    first = places.open_store(Place(state_dir, given=False), NOW)
    with pytest.raises(StartError, match=r"in use by another process: .* or --take-over to replace it"):
        places.open_store(Place(state_dir, given=False), NOW)
    first.close()
    places.open_store(Place(state_dir, given=False), NOW).close()
