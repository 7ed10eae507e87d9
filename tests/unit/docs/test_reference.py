"""The reference pages agree with the code."""

import pytest
from reference import FOLDER, PAGES, protocol_words

from admin.config.faults import keys
from admin.config.settings import Settings
from admin.config.sources import environment_names


@pytest.mark.parametrize("name", PAGES)
def test_a_page_agrees_with_the_code(name: str) -> None:
    path = FOLDER / name
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert written == PAGES[name](), f"docs/reference/{name} is not what the code says; run: make reference"


def test_the_command_lines_texts_about_protocols_are_theirs() -> None:
    assert protocol_words.FILE.read_text(encoding="utf-8") == protocol_words.module(), "run: make reference"


def test_every_page_is_generated() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_every_variable_and_every_table_of_the_configuration_is_there() -> None:
    text = PAGES["configuration.md"]()
    assert not [name for name in environment_names() if f"`{name}`" not in text]
    assert not [key for key in keys(Settings) if f"`{key}`" not in text and f"[{key}]" not in text]
