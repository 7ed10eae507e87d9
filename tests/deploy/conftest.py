"""Fixtures of the deployment tests: the chart rendered by helm, and the published packages."""

import os
import subprocess
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from harness.paths import PARTS, ROOT, required

CHART: Final = ROOT / "deploy" / "helm" / "sluice"
# The default of `helm template` is another version.
_CLUSTER: Final = "1.31.0"
_MAKE: Final = "make deploy"

Render = Callable[..., list[Any]]


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program and return its output of both streams. If it fails, the test fails with that."""
    done = subprocess.run(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
    )
    if done.returncode != 0:
        pytest.fail(f"{command[0]} ended with {done.returncode}:\n{done.stdout}", pytrace=False)
    return done.stdout


Run = Callable[..., str]


@pytest.fixture(scope="session", name="run")
def running() -> Run:
    return run


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs helm, which `make deploy` builds, and returns the result."""
    program = required(PARTS / "helm" / "helm", _MAKE)

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *map(str, arguments)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    return call


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """Renders the chart as release ``mq`` of namespace ``mq``, and returns its objects."""

    def template(*arguments: str | Path) -> list[Any]:
        done = helm("template", "mq", CHART, "-n", "mq", "--kube-version", _CLUSTER, *arguments)
        if done.returncode != 0:
            pytest.fail(f"helm template: {done.stderr}", pytrace=False)
        return [each for each in yaml.safe_load_all(done.stdout) if each is not None]

    return template


Definitions = dict[str, Any]


def _closed(schema: Any) -> Any:
    """Return a schema that also refuses unknown fields, which Kubernetes would ignore."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if "properties" in schema and schema.get("type") == "object" and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
    if "(?i)" in str(schema.get("pattern", "")):
        # Go's inline flag within the pattern, which Python only allows at the beginning.
        del closed["pattern"]
    return closed


@pytest.fixture(scope="session")
def definitions() -> Definitions:
    """The schemas of the Prometheus operator's kinds, in the chart's versions."""
    found = {}
    for kind, file in (("ServiceMonitor", "servicemonitors.yaml"), ("PrometheusRule", "prometheusrules.yaml")):
        text = required(PARTS / "definitions" / file, _MAKE).read_text(encoding="utf-8")
        (version,) = yaml.safe_load(text)["spec"]["versions"]
        schema = _closed(version["schema"]["openAPIV3Schema"])
        # The schema only says that metadata is an object.
        schema["properties"]["metadata"] = {"type": "object"}
        found[kind] = schema
    return found


class Packages(NamedTuple):
    """The output of ``make dist``."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """The source distribution, and the wheel built from it, not from the tree."""
    directory = tmp_path_factory.mktemp("dist")
    python = required(PARTS / "packaging" / ".stamp", _MAKE).parent / "bin" / "python"
    # Build requirements are pinned, too. Older versions of pip know the first variable, newer ones the second.
    pins = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(ROOT / "constraints.txt"))
    run(python, "-m", "build", "--outdir", directory, ROOT, env=pins)
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return Packages(wheel, sdist)


@pytest.fixture(scope="session")
def empty_environment(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with only the wheel and its requirements, without pip."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    pip = required(PARTS / "packaging" / ".stamp", _MAKE).parent / "bin" / "pip"
    run(
        pip,
        "--python",
        directory / "bin" / "python",
        "install",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
        packages.wheel,
    )
    return directory
