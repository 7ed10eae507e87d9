"""Packages of a guide's code blocks, installed during a test."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guides import write_package

DOCS = Path(__file__).parents[3] / "docs"
Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a guide's files into the test's folder, and install them as a package."""
    modules = set(sys.modules)

    def write(guide: str) -> Path:
        write_package((DOCS / guide).read_text(encoding="utf-8"), tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    yield write
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
