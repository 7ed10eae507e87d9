"""Packages of the files in a guide, as `pip install` would leave them."""

import tomllib
from pathlib import Path

from page_commands import files_of


def write_package(text: str, folder: Path) -> None:
    """Write a guide's files, and the metadata with the package's entry points."""
    files = files_of(text)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    project = tomllib.loads(files["pyproject.toml"])["project"]
    name, version = project["name"], project["version"]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
            for group, entries in project["entry-points"].items()
        ),
        encoding="utf-8",
    )
