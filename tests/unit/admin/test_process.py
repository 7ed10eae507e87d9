import resource

import pytest

from admin.process import OpenFilesLimited, raise_descriptor_limit


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The process's limits, oldest first; what is set is appended."""
    history = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: history[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: history.append(pair))
    return history


def test_enough_is_left_alone(limits: list[tuple[int, int]]) -> None:
    assert raise_descriptor_limit(100) is None
    assert limits == [(1024, 4096)]


def test_the_soft_limit_is_raised_to_what_the_connections_need(limits: list[tuple[int, int]]) -> None:
    assert raise_descriptor_limit(1000) is None
    assert limits[-1] == (2512, 4096)


def test_a_hard_limit_that_is_too_low_is_told_with_what_fits(limits: list[tuple[int, int]]) -> None:
    assert raise_descriptor_limit(10_000) == OpenFilesLimited(open_files=4096, room_for_connections=1792)
    assert limits[-1] == (4096, 4096)


def test_no_hard_limit_allows_all_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, limits: list[tuple[int, int]]
) -> None:
    limits[:] = [(1024, resource.RLIM_INFINITY)]
    assert raise_descriptor_limit(10_000) is None
    assert limits[-1] == (20_512, resource.RLIM_INFINITY)
