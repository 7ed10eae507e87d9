import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import Struct

from admin.common.errors import SettingsError
from admin.config import plugins
from admin.config.faults import Origins

ORIGINS = Origins("sluice.toml", {("handlers", 0): 3, ("handlers", 0, "options", "speed"): 5}, {})
PLACE = ("handlers", 0, "options")


@dataclass(frozen=True, slots=True)
class Plain:
    speed: int = 1
    colour: str = "red"


class Model(Struct):
    speed: int


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed distribution with the test's handler."""
    info = tmp_path / "someone_else-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someone-else\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[sluice.handlers]\ntheirs=someone_else:PLUGIN\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("someone_else", None)


def lines(name: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        plugins.handler(name, ("handlers", 0, "name"), ORIGINS)
    return list(caught.value.lines)


def test_a_name_that_is_not_installed_suggests_one_that_is() -> None:
    assert lines("rate_limt") == [
        'sluice.toml:3: handlers[0].name = "rate_limt": the handler is unknown; did you mean "rate_limit"?'
    ]


def test_an_external_handler_is_found(package: Path) -> None:
    (package / "someone_else.py").write_text(
        "from proxy.deciding.pipeline import HandlerPlugin\nPLUGIN = HandlerPlugin('theirs', int, lambda o, s: None)\n"
    )
    assert plugins.handler("theirs", (), ORIGINS).name == "theirs"


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (
            "raise RuntimeError('no luck\\ntoday')",
            "cannot be loaded: RuntimeError: no luck; reinstall or uninstall its package",
        ),
        (
            "",
            (
                "cannot be loaded: AttributeError: module 'someone_else' has no attribute 'PLUGIN';"
                " reinstall or uninstall its package"
            ),
        ),
    ],
)
def test_an_invalid_plug_in_names_its_package_and_the_reason(package: Path, module: str, problem: str) -> None:
    (package / "someone_else.py").write_text(module)
    where = "handler \"theirs\" (entry point 'someone_else:PLUGIN' of someone-else 1.2)"
    assert lines("theirs") == [f"{where} {problem}"]


@pytest.mark.parametrize("declared", [Plain, Model])
def test_options_become_the_declared_type(declared: type) -> None:
    assert plugins.options(declared, {"speed": 3}, PLACE, ORIGINS).speed == 3
    with pytest.raises(SettingsError) as caught:
        plugins.options(declared, {"speed": "fast", "sped": 2}, PLACE, ORIGINS)
    assert caught.value.lines == (
        'sluice.toml:3: handlers[0].options.sped: unknown; did you mean "speed"?',
        'sluice.toml:5: handlers[0].options.speed = "fast": must be a whole number',
    )
