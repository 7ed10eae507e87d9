"""The options of a report that change its tables. Plain data without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Try(NamedTuple):
    """A rate to replay for one resource, in its limit's unit."""

    kind: str
    name: str
    rate_per_s: float


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that change the tables."""

    storm_gap_s: int = 30  # maximum distance of refusals in one storm, in seconds, 1 to 3600
    since_s: int | None = None  # seconds since 1970 UTC. Earlier records are left out
    until_s: int | None = None  # records from this second on are left out
    headroom: float = 0.2  # margin of a recommended limit above the need, as a share
    attempts: Mapping[str, int] = field(default_factory=dict)  # total if refused as busy, by language. Default: 1
    tries: tuple[Try, ...] = ()


def default_attempts() -> dict[str, int]:
    """Return how often clients try when refused as busy, by language. Spark's executors have no protocols."""
    from admin.config.plugins import own_protocols  # noqa: PLC0415 - not on executors

    return {language: most for protocol in own_protocols() for language, most in protocol.busy_attempts.items()}
