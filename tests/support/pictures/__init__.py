"""Makes all pictures of the README and the guides from a real run (``make pictures``)."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[3] / "deploy" / "images"

PICTURES: Final = ("limits-page.png", "flood.png", "report-page.png")
"""The pictures, in the order of a run."""
