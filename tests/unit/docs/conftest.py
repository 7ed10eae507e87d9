"""Packages made of a guide's code blocks, installed for the length of a test."""

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
NAMED = re.compile(r"^```(?:python|toml)\n# ([\w.]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a guide's files into the folder that the test then runs in, and install the package that they are."""
    modules = set(sys.modules)

    def write(guide: str) -> Path:
        blocks = dict(NAMED.findall((DOCS / guide).read_text(encoding="utf-8")))
        for name, text in blocks.items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        project = tomllib.loads(blocks["pyproject.toml"])["project"]
        name, version = project["name"], project["version"]
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
                for group, entries in project["entry-points"].items()
            )
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    yield write
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
