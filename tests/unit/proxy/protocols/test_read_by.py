"""The reader of frames, for people."""

import sys
from types import ModuleType

import pytest

from limiter.compiled import find
from proxy.protocols.options import read_by


def test_a_compiled_extension_of_another_version_is_reported_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("other_scan")
    monkeypatch.setitem(sys.modules, "other_scan", other)
    for interface in (None, 0, 1):
        other.INTERFACE = interface  # type: ignore[attr-defined]
        compiled, unusable = find("other_scan")
        assert compiled is None
        assert "belongs to another version of Sluice" in unusable
    monkeypatch.setattr("proxy.protocols.options.COMPILED", None)
    assert read_by("auto", "why") == "Python, frame by frame; why"


def test_without_the_compiled_extension_frames_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("no_such_scan") == (None, "")
    assert read_by("python", "why") == "Python, frame by frame"
    monkeypatch.setattr("proxy.protocols.options.COMPILED", None)
    assert read_by("auto", "") == "Python, frame by frame"
