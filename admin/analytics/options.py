"""The options of a report that affect its tables. Does not import Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Try(NamedTuple):
    """A rate to replay. ``rate_per_s`` is in the unit of the resource's limit."""

    kind: str
    name: str
    rate_per_s: float


@dataclass(frozen=True, kw_only=True)
class Options:
    storm_gap_s: int = 30  # 1 to 3600
    since_s: int | None = None  # seconds since 1970 UTC
    until_s: int | None = None  # exclusive
    headroom: float = 0.2
    attempts: Mapping[str, int] = field(default_factory=dict)  # as in ``default_attempts``, 1 if missing
    tries: tuple[Try, ...] = ()


def default_attempts() -> dict[str, int]:
    """Return how often clients try at a busy broker, by language. Not for Spark's executors, which lack protocols."""
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - not on executors

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}
