"""The protocols that Sluice supports. Each is a package that implements the interface in ``base``."""

from typing import Final

DEFAULT: Final = "rocketmq"
"""Entry point of listeners without a protocol."""
