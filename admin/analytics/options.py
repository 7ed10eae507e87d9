"""The settings of a report that change its tables. Plain data without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Try(NamedTuple):
    """A rate to be replayed for one resource, in what its limit counts."""

    kind: str
    name: str
    rate_per_s: float


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings that change the tables."""

    storm_gap_s: int = 30  # refusals at most this many seconds apart (1 to 3600) are one storm
    since_s: int | None = None  # seconds since 1970 UTC: earlier records are left out
    until_s: int | None = None  # and those from this second on
    headroom: float = 0.2  # margin of a recommended limit above the need, as a share
    attempts: Mapping[str, int] = field(default_factory=dict)  # in all if refused as busy, by language; others try once
    tries: tuple[Try, ...] = ()


def default_attempts() -> dict[str, int]:
    """Return how often clients try when refused as busy, by language. Spark's executors have no protocols."""
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - not on executors

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}
