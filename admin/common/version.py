"""Reads the version of the installed package."""

from importlib.metadata import version
from typing import Final

DISTRIBUTION: Final = "sluice-proxy"


def sluice_version() -> str:
    return version(DISTRIBUTION)
