"""Generates the reference pages in ``docs/reference`` from the code.

``make reference`` writes them, and a test compares them with the code. It is a developer's tool, not installed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from reference import api, cli, configuration, log, metrics, protocol_words

FOLDER: Final = Path(__file__).parents[3] / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "configuration.md": configuration.page,
    "metrics.md": metrics.page,
    "api.md": api.page,
    "cli.md": cli.page,
    "log.md": log.page,
}
"""The pages by file name, with their generators."""

__all__ = ["FOLDER", "PAGES", "protocol_words"]
