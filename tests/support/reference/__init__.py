"""The reference pages in ``docs/reference``, made from the code that they describe.

``make reference`` writes them, and a test compares them with what the code says now. A developer's tool: nothing that
is installed imports it.
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
"""The pages by their file's name, each with what writes it."""

__all__ = ["FOLDER", "PAGES", "protocol_words"]
