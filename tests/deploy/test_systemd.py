"""The unit, checked by systemd's own tools, and a Debian package's file layout."""

import re
import shlex
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from harness.paths import ROOT, VENV_BIN

from admin.cli import app
from admin.config.sources import Flags, load

SYSTEMD: Final = ROOT / "deploy" / "systemd"
UNIT: Final = SYSTEMD / "sluice.service"
SOCKET: Final = SYSTEMD / "sluice.socket"
TEMPLATE: Final = SYSTEMD / "sluice@.service"
# Tenths: 1.1 of 10.
EXPOSURE: Final = 11
Run = Callable[..., str]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing: apt-get install systemd", pytrace=False)
    return found


def settings(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def test_systemd_finds_nothing_wrong_with_the_units(run: Run, tmp_path: Path) -> None:
    copies = []
    for unit in (UNIT, SOCKET, TEMPLATE):
        copies.append(tmp_path / unit.name.replace("@", "@1"))
        # Without the program's path, which need not exist here.
        text = unit.read_text(encoding="utf-8").replace("/opt/sluice/bin/sluice", str(VENV_BIN / "sluice"))
        copies[-1].write_text(text, encoding="utf-8")
    assert run(tool("systemd-analyze"), "verify", "--man=no", *copies) == ""


def test_the_template_is_the_unit_except_for_each_processs_own_settings() -> None:
    unit, template = (
        {line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")}
        for file in (UNIT, TEMPLATE)
    )
    assert {line.partition("=")[0] for line in unit - template} == {"Description", "StateDirectory"}
    assert {line.partition("=")[0] for line in template - unit} == {
        *("Conflicts", "Description", "Environment", "EnvironmentFile", "StateDirectory"),
    }


def test_processes_of_the_template_have_names_and_addresses_of_their_own(tmp_path: Path) -> None:
    (words,) = re.findall(r"^Environment=(.*)$", TEMPLATE.read_text(encoding="utf-8"), re.MULTILINE)
    variables = dict(each.split("=") for each in words.replace("%H", "host").replace("%i", "2").split())
    file = tmp_path / "sluice.toml"
    file.write_text('[fleet]\nurl = "redis://127.0.0.1"\nname = "f"\n', encoding="utf-8")
    found = load(str(file), variables, Flags()).settings
    assert found.fleet is not None
    assert (str(found.admin.listen), found.fleet.member) == ("127.0.0.1:9872", "host-2")
    assert found.rejection_log.instance == "host-2"


def test_the_sockets_are_those_of_the_sample() -> None:
    listened = set(re.findall(r"^ListenStream=(.*)$", SOCKET.read_text(encoding="utf-8"), re.MULTILINE))
    sample = load(str(ROOT / "deploy" / "sluice.toml"), {}, Flags()).settings
    assert listened == {*(str(each.listen) for each in sample.listeners), str(sample.admin.listen)}


def test_systemd_sandboxing_is_as_strict_as_possible(run: Run) -> None:
    shown = run(tool("systemd-analyze"), "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}", UNIT)
    assert f"Overall exposure level for sluice.service: {EXPOSURE / 10:.1f} OK" in shown


def test_its_commands_are_sluices() -> None:
    commands = re.findall(r"/opt/sluice/bin/sluice ([^>\n]*)", "\n".join(settings("Exec(?:Start|Reload)")))
    assert [command.split()[0] for command in commands] == ["run", "check"]
    for command in commands:
        app.parse_args(shlex.split(command), print_error=False, exit_on_error=False)


@pytest.fixture
def root(run: Run, tmp_path: Path) -> Path:
    """A root directory with the layout, its user and its folders. Only the owners are this test's own."""
    run("sh", SYSTEMD / "install.sh", tmp_path)
    run(tool("systemd-sysusers"), f"--root={tmp_path}")
    return tmp_path


def mode(path: Path) -> str:
    return stat.filemode(path.stat().st_mode)


def test_files_lie_where_a_debian_package_puts_them(root: Path) -> None:
    files = {f"/{path.relative_to(root)}" for path in root.rglob("*") if path.is_file()}
    assert {
        "/usr/lib/systemd/system/sluice.service",
        "/usr/lib/systemd/system/sluice.socket",
        "/usr/lib/systemd/system/sluice@.service",
        "/usr/lib/sysusers.d/sluice.conf",
        "/usr/lib/tmpfiles.d/sluice.conf",
        "/etc/sluice/sluice.toml",
        "/etc/default/sluice",
    } <= files
    mentioned = {line.split()[-1] for line in settings("ExecStart")}
    assert mentioned == {"/etc/sluice/sluice.toml"}


def test_configuration_is_for_the_service_alone_and_state_is_its_own(root: Path, run: Run) -> None:
    (root / "etc" / "sluice" / "tokens").touch(mode=0o644)
    run(tool("systemd-tmpfiles"), f"--root={root}", "--create")
    found = {name: mode(root / name) for name in ("etc/sluice", "etc/sluice/sluice.toml", "etc/sluice/tokens")}
    assert found == {
        "etc/sluice": "drwxr-x---",
        "etc/sluice/sluice.toml": "-rw-r-----",
        "etc/sluice/tokens": "-rw-r-----",
    }
    assert mode(root / "var" / "lib" / "sluice") == "drwx------"
