"""Looks up the installed version of Sluice."""

from importlib.metadata import version
from typing import Final

DISTRIBUTION: Final = "sluice-proxy"


def sluice_version() -> str:
    return version(DISTRIBUTION)
