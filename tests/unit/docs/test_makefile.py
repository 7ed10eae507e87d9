"""``make`` with parts that several trees share by a link."""

import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"


@pytest.mark.parametrize("stamped", [True, False], ids=["older than the tree", "without a stamp"])
def test_nothing_is_removed_through_a_link(tmp_path: Path, *, stamped: bool) -> None:
    shared, tree = tmp_path / "shared", tmp_path / "tree"
    jar, pom, script = (
        shared / "rocketmq" / "lib" / "a.jar",
        tree / "tests" / "integration" / "rocketmq" / "pom.xml",
        tree / "tests" / "integration" / "packages.sh",
    )
    for each in (jar, pom, script):
        each.parent.mkdir(parents=True, exist_ok=True)
        each.touch()
    if stamped:
        (shared / "rocketmq" / ".stamp").touch()
        subprocess.run(["touch", "-d", "2020-01-01", shared / "rocketmq" / ".stamp"], check=True)
    (tree / ".parts").symlink_to(shared)
    command = ["make", "-f", str(MAKEFILE), ".parts/rocketmq/.stamp"]
    ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert jar.exists()
    assert ran.returncode == (0 if stamped else 2)
    assert stamped or "not removed through the link" in ran.stderr
