"""The supported protocols. Each is a package that implements the interface in ``base``."""

from typing import Final

DEFAULT: Final = "rocketmq"
"""The protocol of listeners that do not set one."""
