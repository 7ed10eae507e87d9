"""The protocols Sluice speaks; each is a package of its own behind the interface in ``base``."""

from typing import Final

DEFAULT: Final = "rocketmq"
"""What the clients of a listener speak that does not say it; the name of an entry point."""
