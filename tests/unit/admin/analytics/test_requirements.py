import importlib.util
from pathlib import Path

import pytest

from admin.analytics import requirements
from admin.analytics.requirements import check_requirements
from admin.common.errors import StartError


def _java(folder: Path, says: str) -> dict[str, str]:
    """Return an environment whose Java says this."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    java.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize(
    "says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25-ea"', 'java version "21" LTS']
)
def test_java_that_is_new_enough_will_do(tmp_path: Path, says: str) -> None:
    check_requirements(_java(tmp_path, says))


@pytest.mark.parametrize(("says", "found"), [('version "1.8.0_392"', "8"), ('openjdk version "11.0.2"', "11")])
def test_java_that_is_too_old_is_named_with_what_installs_another(tmp_path: Path, says: str, found: str) -> None:
    with pytest.raises(StartError, match=rf"17 or newer.*is Java {found}; install with: apt-get install openjdk-17"):
        check_requirements(_java(tmp_path, says))


def test_no_java_says_what_installs_it(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="here is none; install with: apt-get install openjdk-17-jre-headless"):
        check_requirements({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=rf"{tmp_path}.*\(JAVA_HOME\) cannot be run: No such file"):
        check_requirements({"JAVA_HOME": str(tmp_path)})


def test_something_else_called_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not say what it is"):
        check_requirements(_java(tmp_path, "island"))


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((), "pyspark and pyarrow and pandas"),
        (("pyspark",), "pyarrow and pandas"),
        (("pyspark", "pyarrow"), "pandas"),
    ],
)
def test_missing_packages_say_what_installs_them_and_java_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in there else None)
    with pytest.raises(StartError, match=rf"needs {said}; install with: pip install 'sluice-proxy\[spark\]'"):
        check_requirements({"PATH": str(tmp_path)})


@pytest.mark.parametrize("found", ["3.5.1", "4.0.1", "5.0.0"])
def test_another_spark_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(requirements, "version", lambda _name: found)
    with pytest.raises(StartError, match=rf"needs pyspark 4.3 or a later 4, and here is {found}"):
        check_requirements({"PATH": str(tmp_path)})


def test_where_spark_runs_elsewhere_no_java_is_needed(tmp_path: Path) -> None:
    check_requirements({"PATH": str(tmp_path)}, java=False)


def test_what_a_connection_needs_besides_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grpc_status" else name)
    with pytest.raises(StartError, match=r"install with: pip install 'pyspark\[connect\]'"):
        check_requirements({"PATH": str(tmp_path)}, java=False)


def test_under_spark_submit_java_is_there_already(tmp_path: Path) -> None:
    check_requirements({"PATH": str(tmp_path), "PYSPARK_GATEWAY_PORT": "4711"})
