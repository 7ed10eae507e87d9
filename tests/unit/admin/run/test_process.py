import resource
from pathlib import Path

import pytest

from admin.common.errors import StartError
from admin.http.http1 import MAX_CONNECTIONS
from admin.run import process
from admin.run.process import share_descriptors

IN_USE = 15
OTHERS = IN_USE + 16 + 3


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The process's limits, oldest first. Changes are appended."""
    history = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: history[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: history.append(pair))
    monkeypatch.setattr(process, "_in_use", lambda: IN_USE)
    return history


def test_sufficient_descriptor_limit_is_unchanged(limits: list[tuple[int, int]]) -> None:
    shared = share_descriptors(100, 1)
    assert (shared.open_files, shared.admin) == (1024, (1024 - OTHERS) // 4)
    assert shared.clients >= 100
    assert limits == [(1024, 4096)]


def test_the_soft_limit_is_raised_for_the_connections(limits: list[tuple[int, int]]) -> None:
    assert share_descriptors(1000, 1).clients >= 1000
    assert limits[-1] == (2000 + MAX_CONNECTIONS + OTHERS, 4096)


@pytest.mark.parametrize("hard", [4096, 1024, 256, 64, 40])
def test_where_the_hard_limit_is_low_all_that_there_is_room_for_fits_into_it(
    limits: list[tuple[int, int]], hard: int
) -> None:
    limits[:] = [(hard, hard)]
    shared = share_descriptors(10_000, 1)
    assert shared.open_files == hard
    assert shared.clients >= 1
    assert shared.admin >= 4
    assert hard - 1 <= OTHERS + 2 * shared.clients + shared.admin <= hard


def test_too_few_for_any_share_are_reported_with_the_minimum(limits: list[tuple[int, int]]) -> None:
    limits[:] = [(OTHERS + 5, OTHERS + 5)]
    with pytest.raises(
        StartError, match=rf"^open files: the system allows {OTHERS + 5}, .* needs {OTHERS + 6} .*LimitN"
    ):
        share_descriptors(10_000, 1)
    limits[:] = [(OTHERS + 6, OTHERS + 6)]
    assert share_descriptors(10_000, 1).clients == 1


def test_open_descriptors_are_counted() -> None:
    before = process._in_use()
    with Path("/dev/null").open(encoding="ascii"):
        assert process._in_use() == before + 1
