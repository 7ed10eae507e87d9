"""The wheel and the source distribution: contents, reproducibility, and that they run alone."""

import json
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.paths import PARTS, ROOT, VENV_BIN, required

from admin.common.version import sluice_version

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
Run = Callable[..., str]


def test_the_version_is_written_once_and_repeated_right() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "sluice" / "Chart.yaml").read_text(encoding="utf-8"))
    assert sluice_version() == PROJECT["version"] == chart["version"] == chart["appVersion"]


def test_the_wheel_has_the_packages_with_their_types_and_nothing_else(packages: Any) -> None:
    with zipfile.ZipFile(packages.wheel) as wheel:
        names = wheel.namelist()
        metadata = HeaderParser().parsestr(wheel.read(f"sluice_proxy-{PROJECT['version']}.dist-info/METADATA").decode())
    assert {name.split("/")[0] for name in names} == {
        "admin",
        "limiter",
        "proxy",
        f"sluice_proxy-{PROJECT['version']}.dist-info",
    }
    assert {"admin/py.typed", "limiter/py.typed", "proxy/py.typed"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert any(name.startswith("admin/web/") and name.endswith(".html") for name in names)
    assert (metadata["Version"], metadata["License-Expression"]) == (PROJECT["version"], "Apache-2.0")


def test_the_source_distribution_has_the_files_of_a_clone(packages: Any) -> None:
    with tarfile.open(packages.sdist) as sdist:
        members = {member.name.partition("/")[2]: member for member in sdist.getmembers()}
    assert {"Makefile", "constraints.txt", "tests/conftest.py", "deploy/container/Containerfile"} <= set(members)
    hidden = {name for name in members if "__pycache__" in name or name.startswith((".", "out", "dist"))}
    assert hidden == {".gitignore"}
    # Links lead to members.
    assert all(not member.islnk() and not member.linkname.startswith("/") for member in members.values())


def test_the_wheel_runs_in_an_empty_environment(empty_environment: Path, run: Run, tmp_path: Path) -> None:
    program = empty_environment / "bin" / "sluice"
    assert run(program, "--version", cwd=tmp_path).strip() == f"sluice {PROJECT['version']}"
    shown = run(program, "demo", "--seconds", "3", cwd=tmp_path)
    assert "every request was answered: 0 were not" in shown
    assert list(tmp_path.iterdir()) == []


def test_its_types_are_seen_from_outside(empty_environment: Path, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text(
        "from limiter.rules.rule import Rule\n\n"
        "reveal_type(Rule('topic', 'orders', 5).rate_per_s)\nRule('topic', 5, 5)\n",
        encoding="utf-8",
    )
    command = (VENV_BIN / "mypy", "--strict", "--python-executable", empty_environment / "bin" / "python")
    # mypy does not look for the project's own source there.
    shown = run("sh", "-c", '"$@"; test $? -eq 1', "-", *command, file.name, cwd=tmp_path)
    assert 'user.py:3: note: Revealed type is "' in shown
    assert "float" in shown
    assert 'user.py:4: error: Argument 2 to "Rule" has incompatible type "int"; expected "str"' in shown


@pytest.fixture(scope="module")
def bill(empty_environment: Path, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The bill of materials of that environment, validated by its generator."""
    file = tmp_path_factory.mktemp("sbom") / "sluice.cdx.json"
    maker = required(PARTS / "packaging" / ".stamp", "make deploy").parent / "bin" / "cyclonedx-py"
    run(
        *(maker, "environment", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "application"),
        *("--output-reproducible", "--validate", "--output-file", file, empty_environment / "bin" / "python"),
    )
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_bill_of_materials_lists_installed_packages(bill: Any, empty_environment: Path, run: Run) -> None:
    assert bill["bomFormat"] == "CycloneDX"
    root = bill["metadata"]["component"]
    assert (root["name"], root["version"], root["type"]) == (PROJECT["name"], PROJECT["version"], "application")
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    installed = {_normal(each) for each in run(empty_environment / "bin" / "python", "-c", code).split()}
    listed = {_normal(f"{each['name']}=={each['version']}") for each in bill["components"]}
    assert listed | {_normal(f"{PROJECT['name']}=={PROJECT['version']}")} == installed
    assert all("licenses" in each or "evidence" in each for each in bill["components"])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.partition("==")[0]).lower() + name[len(name.partition("==")[0]) :]
