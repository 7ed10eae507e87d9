"""A change of the code that pages do not follow must be found: each name here is changed in a copy of the project.

The reference is made anew from the changed code, as whoever changes it is told to do, so that what is left to find is
what people wrote. That the reference itself would not be forgotten is ``test_reference.py``'s.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from claims import ROOT

pytestmark = pytest.mark.long

_CODE = ("admin", "proxy", "limiter")
_COPIED = (*_CODE, "docs", "tests/support")

CHANGES = {
    "a flag's name": ("storm_gap", "storm_pause", "docs/reports.md: --storm-gap: no command has this flag"),
    "a flag of one command": ("ttl: Annotated", "lifetime: Annotated", "Unknown option: --ttl."),
    "a metric": (
        '"sluice_bypassed_total"',
        '"sluice_skipped_total"',
        "README.md: sluice_bypassed_total: no such metric",
    ),
    "a path of the API": ('"/events"', '"/stream"', "docs/live-limits.md: /api/v1/events: no such path"),
    "a key of the configuration": ("max_fair_keys", "most_fair_keys", "limits[0].max_fair_keys: unknown"),
    "a command": (
        "def revert(\n    change: Annotated",
        "def undo(\n    change: Annotated",
        "docs/faq.md: sluice audit revert: audit has no such command",
    ),
    "a variable": ("SLUICE_PROFILE", "SLUICE_SIDECAR", "docs/live-limits.md: SLUICE_PROFILE: no such variable"),
}
"""What is renamed, to what, and what must be said of it."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project; what is only read there leads back to the project itself."""
    folder = tmp_path_factory.mktemp("project")
    for name in _COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for there, here in ((ROOT, folder), (ROOT / "tests", folder / "tests")):
        for path in there.iterdir():
            if not path.name.startswith(".") and not (here / path.name).exists():
                (here / path.name).symlink_to(path)
    return folder


def _python(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy: what is installed is the project itself, so the copy comes first on its path."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    path = f"{project}:{project / 'tests' / 'support'}:{project / 'tests' / 'integration'}"
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=kept | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _complaints(project: Path) -> list[str]:
    """Return the claims that do not hold, of the pages that people write."""
    code = """
from claims import CHECKS, PAGES, ROOT
for page in PAGES:
    for check in CHECKS.values():
        for line in check((ROOT / page).read_text(encoding="utf-8")):
            print(f"{page}: {line}")
"""
    done = _python(project, "-c", code)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def _rename(project: Path, old: str, new: str) -> None:
    """Change a name in all of the code."""
    pattern = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)")
    changed = 0
    for path in (path for folder in _CODE for path in (project / folder).rglob("*.py")):
        text, times = pattern.subn(new, path.read_text(encoding="utf-8"))
        if times:
            path.write_text(text, encoding="utf-8")
            changed += times
    assert changed, f"{old} is nowhere in the code any more: take another one"


@pytest.fixture(scope="module")
def complaints(project: Path) -> list[str]:
    """What is said after all the changes."""
    assert _complaints(project) == []
    for old, new, _ in CHANGES.values():
        _rename(project, old, new)
    forgotten = _python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/docs/test_reference.py")
    assert forgotten.returncode == 1, forgotten.stdout
    made = _python(project, "-m", "reference")
    assert made.returncode == 0, made.stdout
    return [*forgotten.stdout.splitlines(), *_complaints(project)]


@pytest.mark.parametrize("what", CHANGES)
def test_a_name_that_the_code_changes_is_found_on_the_pages(what: str, complaints: list[str]) -> None:
    old, new, expected = CHANGES[what]
    found = [line for line in complaints if expected in line]
    print(f"{what}, {old} renamed to {new}:", *found, sep="\n  ")
    assert found, "\n".join(complaints)


@pytest.mark.parametrize("page", ["cli.md", "metrics.md", "api.md", "configuration.md"])
def test_a_reference_that_is_not_made_anew_is_found(page: str, complaints: list[str]) -> None:
    assert any(f"docs/reference/{page} is not what the code says; run: make reference" in line for line in complaints)
